"""`refold get`: the whole on-call answer about one key on one screen.

Rules of this module
- The look itself is a read, on the record as the person's, unless the store cannot be written or --no-record was
  given; the answer says which.
- Absent and deleted are told apart: "never written" is version 0, a delete is a version.
- Readers are told from the log as it was before this look.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from refold import output, records
from refold.output import ago, at_time, plural, safe
from refold.site import (
    Site,
    at_option,
    common,
    declared_key,
    key_argument,
    login_name,
    person_option,
    run_argument,
    sensitive_option,
)
from refold_store.erased import Gap, without
from refold_store.errors import ReadOnlyStore, StoreUnavailable, UnknownKey

if TYPE_CHECKING:
    from refold_store.reads import Read, ReadRecord
    from refold_store.run import Run

LISTED = 5
"""Readers, and later versions, listed on the screen; `readers` and `history` list all."""


@dataclass
class Answer:
    """What `get` found out, complete before the store closes."""

    run: str
    tenant: str
    moment: str
    seq: int
    warning: str | None
    found: dict[str, Any]
    declared_owner: str
    scope: str
    elsewhere: bool
    """Whether the log of the key's scope is not in this store."""
    reads: list[ReadRecord]
    older: list[ReadRecord]
    without: list[Gap]
    newest: int
    newer: list[dict[str, Any]]
    outdated: list[dict[str, Any]]
    replaced: dict[str, Any] | None
    near: list[str]
    recorded_as: str | None
    not_recorded: str | None
    now_us: int


@click.command("get")
@run_argument
@key_argument
@at_option
@person_option("Who looks")
@click.option("--no-record", is_flag=True, help="Leave no read event.")
@sensitive_option
@common
def get_command(
    site: Site, run_name: str, key: str, moment: str, person: str | None, no_record: bool, show_sensitive: bool
) -> None:
    """Show KEY of RUN: its value and everything around it.

    The look is recorded as a read of yours (--as); it says so if it is not.
    """
    reader = login_name() if person is None else person
    answer = _answer(site, run_name, key, moment, None if no_record else reader, show_sensitive)
    if answer.warning:
        output.note(f"warning: {answer.warning}")
    if site.as_json:
        output.document(_document(answer))
        return
    output.say(_title(answer))
    output.say(records.state_of(answer.found) or output.pretty(answer.found["value"]))
    output.say()
    output.facts(_facts(answer))


def _answer(site: Site, run_name: str, key: str, moment: str, reader: str | None, show: bool) -> Answer:
    """Look on the record if there is a reader; where that cannot be stored, without, and with the reason."""
    if reader is None:
        with site.run(run_name) as run:
            return _look(run, key, moment, None, show, "--no-record was given")
    try:
        with site.run(run_name, read_only=False, strict_reads=True) as run:
            return _look(run, key, moment, reader, show, "the run has no event yet")
    except (ReadOnlyStore, StoreUnavailable) as error:
        with site.run(run_name) as run:
            return _look(run, key, moment, None, show, f"the store cannot be written ({error})")


def _look(run: Run, key: str, moment: str, reader: str | None, show: bool, why_not: str) -> Answer:
    declared = declared_key(run, key)
    if declared.scope != "run" and moment != "end":
        raise click.UsageError(f"{key!r} has scope {declared.scope!r}: a moment of one run says nothing about it")
    reads = run.readers(key)
    at = run.at(moment)
    read = _read(run, key, at, reader, current=moment == "end")
    newest = read.version if moment == "end" else run.at("end").read_state(key).version
    own = declared.scope == "run"
    return Answer(
        run=run.name,
        tenant=run.tenant,
        moment=moment,
        seq=max(read.seen_seq, at.seq) if own else read.seen_seq,  # peek vouches for no more than its write
        warning=at.warning,
        found=records.read_members(read, show),
        declared_owner=declared.owner,
        scope=declared.scope,
        elsewhere=run._home(declared)._run_id() is None,
        reads=[one for one in reads if one.version == read.version],
        older=_older(reads, read.version),
        without=[] if read.erased else [_masked(gap, read.sensitive and not show) for gap in without(read)],
        newest=newest,
        newer=[
            _version(run, key, number) for number in range(read.version + 1, min(newest, read.version + LISTED) + 1)
        ],
        replaced=_version(run, key, read.version - 1) if own and read.version > 1 else None,
        outdated=_outdated(run, read) if own else [],
        near=difflib.get_close_matches(key, set(run.keys()) - {key}, 3, 0.6) if read.version == 0 else [],
        recorded_as=reader if read.recorded else None,
        not_recorded=None if read.recorded else why_not,
        now_us=run.now_us(),
    )


def _masked(gap: Gap, hidden: bool) -> Gap:
    return replace(gap, erasure=records.masked_erasure(gap.erasure, hidden))


def _read(run: Run, key: str, at: Any, reader: str | None, *, current: bool) -> Read:
    """The read itself. Keys of an older schema, and older moments, are read at the moment."""
    if current:
        try:
            return run.peek(key) if reader is None else run.read_state(key, reader=reader)
        except UnknownKey:
            pass
    found: Read = at.read_state(key, reader=reader)
    return found


def _older(reads: list[ReadRecord], version: int) -> list[ReadRecord]:
    """The newest read of each reader that has seen no version as new as this one."""
    newest: dict[str, ReadRecord] = {}
    for one in reads:
        if one.reader not in newest or one.version >= newest[one.reader].version:
            newest[one.reader] = one
    return [one for one in newest.values() if one.version < version]


def _version(run: Run, key: str, version: int) -> dict[str, Any]:
    """One version of a key at a glance."""
    read = run.at(f"key:{key}@{version}").read_state(key)
    return {
        "version": read.version,
        "seq": read.seq,
        "written_by": read.written_by,
        "recorded_at": records.time_of(read.recorded_at),
        "deleted": read.deleted,
    }


def _outdated(run: Run, read: Read) -> list[dict[str, Any]]:
    """What the write rests on that had a newer version when it was made."""
    if not read.based_on:
        return []
    event = next(run.events(after=read.seq - 1, limit=1))
    before = run.at((event.txn or event.seq) - 1)
    found = []
    for key, version in read.based_on:
        try:
            newest = before.read_state(key).version
        except UnknownKey:  # an import may rest on what its schema does not declare
            continue
        if newest > version:
            since = _version(run, key, version + 1)
            found.append({"key": key, "version": version, "newest": newest, "since_seq": since["seq"]})
    return found


def _document(answer: Answer) -> dict[str, Any]:
    return {
        "run": answer.run,
        "tenant": answer.tenant,
        "moment": answer.moment,
        "at_seq": answer.seq,
        "warning": answer.warning,
        **answer.found,
        "declared_owner": answer.declared_owner,
        "read_by": [records.reader_members(one) for one in answer.reads],
        "older_readers": [records.reader_members(one) for one in answer.older],
        "without": [
            {
                "version": gap.version,
                "seq": gap.seq,
                "erased_by": gap.erasure and gap.erasure.by,
                "erased_at": gap.erasure and at_time(gap.erasure.at),
                "reason": gap.erasure and gap.erasure.reason,
            }
            for gap in answer.without
        ],
        "scope": answer.scope,
        "newest_version": answer.newest,
        "superseded_by": answer.newer,
        "outdated_when_written": answer.outdated,
        "replaced": answer.replaced,
        "recorded_as": answer.recorded_as,
        "not_recorded": answer.not_recorded,
    }


# --- text --------------------------------------------------------------------------------------


def _title(answer: Answer) -> str:
    found = answer.found
    version = f"version {found['version']}" if found["version"] else "no version"
    asked = "" if answer.moment == "end" else f" ({safe(answer.moment)})"
    tenant = "" if answer.tenant == "default" else f" of tenant {safe(answer.tenant)}"
    return f"{safe(found['key'])} in {safe(answer.run)}{tenant}: {version}, at seq {answer.seq}{asked}"


def _facts(answer: Answer) -> list[tuple[str, str]]:
    found = answer.found
    lines: list[tuple[str, str]] = []
    if found["version"]:
        lines += _written(answer)
    else:
        lines.append(("owner", safe(answer.declared_owner)))
        if answer.elsewhere:
            lines.append(
                ("scope", f"{answer.scope}: its log is not in this store; a bundle of one run does not hold it")
            )
        if answer.near:
            lines.append(("near", "did you mean " + ", ".join(safe(name) for name in answer.near) + "?"))
    lines.append(("read by", _readers(answer)))
    if answer.older:
        lines.append(("saw older", _listed([_saw(answer, one) for one in answer.older], "refold readers")))
    if found["trace_id"]:
        lines.append(("trace", found["trace_id"]))
    recorded = f"this look, as {safe(answer.recorded_as)}" if answer.recorded_as is not None else ""
    lines.append(("recorded", recorded or f"no: {safe(answer.not_recorded or '')}"))
    return lines


def _written(answer: Answer) -> list[tuple[str, str]]:
    found = answer.found
    when = f"{found['recorded_at']} ({ago(_parsed(found['recorded_at']), answer.now_us)})"
    lines = [
        ("deleted by" if found["deleted"] else "written by", f"{safe(found['written_by'])} at seq {found['seq']}"),
        ("owner", safe(found["owner"])),
        ("when", when),
        *([] if answer.scope == "run" else [("scope", f"{answer.scope}: not this run's alone")]),
        ("basis", _basis(found)),
    ]
    if answer.without:
        lines.append(("without", _listed([_gap(gap) for gap in answer.without], "refold history")))
    if found["based_on"]:
        lines.append(("based on", "\n".join(_based_on(answer, key, version) for key, version in found["based_on"])))
    if answer.replaced is not None:
        lines.append(("replaced", _version_line(answer.replaced)))
    if answer.newer:
        lines.append(("superseded", _superseded(answer)))
    return lines


def _basis(found: dict[str, Any]) -> str:
    if found["basis"] is not None:
        return safe(found["basis"])
    return "none stated" if found["erased_at"] is None else "erased"


def _gap(gap: Gap) -> str:
    return f"version {gap.version}, {'erased' if gap.erasure is None else safe(str(gap.erasure))}"


def _based_on(answer: Answer, key: str, version: int) -> str:
    late = next((one for one in answer.outdated if (one["key"], one["version"]) == (key, version)), None)
    text = f"{safe(key)}@{version}"
    return (
        text
        if late is None
        else f"{text}, outdated when written: version {version + 1} was there since seq {late['since_seq']}"
    )


def _superseded(answer: Answer) -> str:
    lines = [f"by {_version_line(one)}" for one in answer.newer]
    more = answer.newest - answer.newer[-1]["version"]
    return "\n".join([*lines, f"and {more} more (`refold history` lists all)"] if more else lines)


def _parsed(text: str) -> Any:
    from datetime import datetime

    return datetime.fromisoformat(text)


def _version_line(brief: dict[str, Any]) -> str:
    what = ", a delete" if brief["deleted"] else ""
    return f"version {brief['version']}{what}, by {safe(brief['written_by'])} at seq {brief['seq']}"


def _readers(answer: Answer) -> str:
    if not answer.reads:
        return "nobody yet"
    by_reader: dict[str, list[str]] = {}
    for one in answer.reads:
        seqs = str(one.seq) if one.count == 1 else f"{one.seq} to {one.last_seq} ({one.count:,} reads, rolled up)"
        by_reader.setdefault(one.reader, []).append(seqs)
    lines = [f"{plural(sum(one.count for one in answer.reads), 'read')} by {plural(len(by_reader), 'reader')}:"]
    lines += [f"{safe(name)} at seq {_seqs(seqs)}" for name, seqs in by_reader.items()]
    return _listed(lines, "refold readers", 1)


def _seqs(seqs: list[str]) -> str:
    shown = ", ".join(seqs[:LISTED])
    return shown if len(seqs) <= LISTED else f"{shown} and {len(seqs) - LISTED} more"


def _saw(answer: Answer, one: ReadRecord) -> str:
    how = f"stale: version {one.newest} was there" if one.stale else "current then, superseded since"
    what = f"version {one.version}" if one.version else "no value"
    return f"{safe(one.reader)} saw {what} at seq {one.seq} ({how})"


def _listed(lines: list[str], command: str, head: int = 0) -> str:
    if len(lines) > LISTED + head:
        lines = [*lines[: LISTED + head], f"and {len(lines) - LISTED - head} more (`{command}` lists all)"]
    return "\n".join(lines)
