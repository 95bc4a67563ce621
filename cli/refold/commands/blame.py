"""`refold blame`: which version set each part of a value, and who wrote it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from refold import output, records
from refold.site import Site, at_option, common, declared_key, key_argument, run_argument, sensitive_option

if TYPE_CHECKING:
    from refold_replay.blame import Blame, BlameLine
    from refold_store.run import Run

STATES = {"absent": "it was never written", "deleted": "it is deleted"}


@click.command("blame")
@run_argument
@key_argument
@at_option
@click.option("--path", metavar="PATH", help="Only what stands at a path, or below it: $.a, $[0].")
@sensitive_option
@common
def blame_command(site: Site, run_name: str, key: str, moment: str, path: str | None, show_sensitive: bool) -> None:
    """Show for each part of KEY's value in RUN which version set it, who wrote it, when, and on what basis.

    A part keeps its version as long as its value stays the same. In a list that grew or shrank, items before and
    behind the change keep theirs.
    """
    from refold_replay.blame import blame

    with site.run(run_name) as run:
        declared_key(run, key)
        found = blame(run, key, at=moment, path=path)
        gone = _erased(run, key, moment, show_sensitive) if found.state == "erased" else STATES.get(found.state, "")
    if found.warning:
        output.note(f"warning: {found.warning}")
    masked = found.sensitive and not show_sensitive
    lines = [_members(line, masked) for line in found.lines]
    if site.as_json:
        output.document(
            {"run": run_name, "tenant": site.tenant, "key": key, "moment": moment, "at_seq": found.seq,
             "warning": found.warning, "version": found.version, "state": found.state, "masked": masked,
             "erased_versions": found.erased, "lines": lines}
        )  # fmt: skip
        return
    _show(run_name, found, lines, gone)


def _members(line: BlameLine, masked: bool) -> dict[str, Any]:
    """One part as a record. Of a sensitive value, the names inside may give it away as well."""
    return {
        "path": None if masked else line.path,
        "value": None if masked else line.value,
        "version": line.version,
        "written_by": line.writer,
        "owner": line.owner,
        "seq": line.seq,
        "recorded_at": records.time_of(line.recorded_at),
        "basis": None if masked else line.basis,
        "uncertain": line.uncertain,
    }


def _erased(run: Run, key: str, moment: str, show_sensitive: bool) -> str:
    """By whom, when and why, as every look says it."""
    read = run.peek(key) if moment == "end" else run.at(moment).read_state(key)
    return (records.state_of(records.content(read, show_sensitive)) or "")[1:-1]


def _show(run_name: str, found: Blame, lines: list[dict[str, Any]], gone: str) -> None:
    version = f"version {found.version}" if found.version else "no version"
    output.say(f"{output.safe(found.key)} in {output.safe(run_name)}: {version}, at seq {found.seq}")
    hidden = output.MASK if lines and lines[0]["path"] is None else None
    output.table(
        ("path", "value", "version", "written by", "seq", "when", "basis"),
        [
            (hidden or one["path"], hidden or records.short(one["value"]),
             f"{one['version']}{' or before' if one['uncertain'] else ''}", one["written_by"], one["seq"],
             one["recorded_at"], hidden or one["basis"])
            for one in lines
        ],
        empty=f"no value: {gone}",
    )  # fmt: skip
    if found.erased:
        which = ", ".join(map(str, found.erased))
        output.say(f"erased: version {which}; what they set is not known")
