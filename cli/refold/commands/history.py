"""`refold history` and `refold readers`: one key through time, and who saw which version of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from refold import exits, output, records
from refold.output import safe
from refold.site import (
    COUNT,
    Site,
    at_option,
    common,
    declared_key,
    key_argument,
    note_strangers,
    run_argument,
    sensitive_option,
)
from refold_store.errors import NoSuchVersion

if TYPE_CHECKING:
    from refold_store.keys import Key
    from refold_store.reads import Read
    from refold_store.run import Run


@click.command("history")
@run_argument
@key_argument
@at_option
@click.option("--limit", type=COUNT, metavar="N", help="Only the newest N.")
@sensitive_option
@common
def history_command(site: Site, run_name: str, key: str, moment: str, limit: int | None, show_sensitive: bool) -> None:
    """Show every version of KEY in RUN up to a moment, oldest first."""
    with site.run(run_name) as run:
        at_seq, warning, reads = _versions(run, key, moment)
        shown = reads if limit is None else reads[len(reads) - min(limit, len(reads)) :]
        found = [_members(read, at_seq, show_sensitive) for read in shown]
    if warning:
        output.note(f"warning: {warning}")
    if site.as_json:
        for one in found:
            output.document(one)
        return
    if moment != "end":
        count = output.plural(len(reads), "version")
        output.say(f"{safe(key)} in {safe(run_name)} at seq {at_seq} ({safe(moment)}): {count}")
    output.table(
        ("version", "seq", "when", "written by", "owner", "basis", "value"),
        [
            (one["version"], one["seq"], one["recorded_at"], one["written_by"], one["owner"],
             output.MASK if one["masked"] else one["basis"], records.cell(one))
            for one in found
        ],
        empty=f"{key} was never written in {run_name}" if limit != 0 else "none asked for",
    )  # fmt: skip
    if found and len(shown) < len(reads):
        output.say(f"and {output.plural(len(reads) - len(shown), 'older version')}")


def _members(read: Read, at_seq: int, show_sensitive: bool) -> dict[str, Any]:
    """One version as a record. The reason for a sensitive value may quote it."""
    found = records.read_members(read, show_sensitive)
    return found | {"basis": None if found["masked"] else found["basis"], "at_seq": at_seq}


def _versions(run: Run, key: str, moment: str) -> tuple[int, str | None, list[Read]]:
    """(the seq it is as of, a warning, the versions). The versions of a scope's key lie in another run."""
    declared = declared_key(run, key)
    if declared.scope != "run" and run.scope == 0:
        if moment != "end":
            raise click.UsageError(f"{key!r} has scope {declared.scope!r}: a moment of one run says nothing about it")
        reads = run.history(key)
        return (reads[-1].seq if reads else 0), None, reads
    at = run.at(moment)
    return at.seq, at.warning, run.history(key, until=at.seq)


@click.command("readers")
@run_argument
@key_argument
@click.option("--version", type=COUNT, metavar="N", help="Only reads of this version; 0: of no value.")
@click.option("--reader", metavar="NAME", help="Did NAME ever read it? Exit code 0: yes, 1: no.")
@common
def readers_command(site: Site, run_name: str, key: str, version: int | None, reader: str | None) -> None:
    """Show who read KEY of RUN, which version, and which was the newest then."""
    with site.run(run_name) as run:
        declared = declared_key(run, key, "--version {version}")
        at_seq = run.at("end").seq
        reads = [one for one in run.readers(key, version=version) if reader is None or one.reader == reader]
        if version and not reads:
            _check_version(run, declared, key, version)
        if reader is not None and not reads:
            note_strangers(run, [reader])
        found = [records.reader_members(one) for one in reads]
    if site.as_json:
        output.document(
            {"run": run_name, "tenant": site.tenant, "key": key, "version": version, "reader": reader,
             "at_seq": at_seq, "reads": found}
        )  # fmt: skip
    else:
        what = key if version is None else f"version {version} of {key}"
        if reader is not None:
            _answer(run_name, reader, what, at_seq, found)
        if found or reader is None:
            _list(found, empty=f"nobody has read {what} in {run_name}")
    if reader is not None and not found:
        raise click.exceptions.Exit(exits.NO)


def _check_version(run: Run, declared: Key, key: str, version: int) -> None:
    """Raises NoSuchVersion for one that is not there."""
    newest = (run.at("end").read_state(key) if declared.scope == "run" else run.peek(key)).version
    if version > newest:
        raise NoSuchVersion(key=key, version=version, newest=newest)


def _list(found: list[dict[str, Any]], *, empty: str) -> None:
    output.table(
        ("seq", "when", "reader", "version", "newest then", ""),
        [(_seqs(one), one["recorded_at"], one["reader"], one["version"], one["newest"], _remark(one)) for one in found],
        empty=empty,
    )


def _answer(run_name: str, reader: str, what: str, at_seq: int, found: list[dict[str, Any]]) -> None:
    """Yes or no, on one line."""
    if not found:
        output.say(f"no: {safe(reader)} has not read {safe(what)} in {safe(run_name)}, up to seq {at_seq}")
        return
    count = sum(one["count"] for one in found)
    times = "once" if count == 1 else f"{count:,} times"
    seqs = ", ".join(_seqs(one) for one in found)
    output.say(f"yes: {safe(reader)} read {safe(what)} in {safe(run_name)} {times}, at seq {seqs}")


def _seqs(one: dict[str, Any]) -> str:
    """The seq of a read, or the first and last of those rolled up."""
    return str(one["seq"]) if one["last_seq"] == one["seq"] else f"{one['seq']} to {one['last_seq']}"


def _remark(one: dict[str, Any]) -> str:
    rolled = f"{one['count']:,} reads, rolled up" if one["count"] > 1 else ""
    return ", ".join(part for part in ("stale" if one["stale"] else "", rolled) if part)
