"""`refold state` and `refold keys`: what a run holds, now or at a moment. Not recorded: nobody acts on an overview."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from refold import output, records
from refold.site import Site, at_option, common, run_argument, sensitive_option

if TYPE_CHECKING:
    from refold_store.reads import Read

MEMBERS = ("version", "value", "masked", "erased", "written_by", "owner", "seq", "recorded_at")


@click.command("state")
@run_argument
@at_option
@sensitive_option
@common
def state_command(site: Site, run_name: str, moment: str, show_sensitive: bool) -> None:
    """Show every key of RUN that holds a value, now or at a moment."""
    with site.run(run_name) as run:
        at = run.at(moment)
        state = at.state()
        found = {key: records.read_members(state[key], show_sensitive) for key in sorted(state)}
    if at.warning:
        output.note(f"warning: {at.warning}")
    if site.as_json:
        keys = {key: {name: one[name] for name in MEMBERS} for key, one in found.items()}
        output.document(
            {"run": run_name, "tenant": site.tenant, "moment": moment, "at_seq": at.seq, "warning": at.warning,
             "keys": keys}
        )  # fmt: skip
        return
    asked = "" if moment == "end" else f" ({output.safe(moment)})"
    output.say(f"{output.safe(run_name)} at seq {at.seq}{asked}: {output.plural(len(found), 'key')}")
    output.table(
        ("key", "version", "written by", "seq", "when", "value"),
        [
            (key, one["version"], one["written_by"], one["seq"], one["recorded_at"], records.cell(one))
            for key, one in found.items()
        ],
        empty="no key holds a value",
    )


@click.command("keys")
@run_argument
@common
def keys_command(site: Site, run_name: str) -> None:
    """List the keys RUN has written, deleted ones included."""
    with site.run(run_name) as run:
        now = run.at("end")
        names = run.keys()
        found = [_members(now.read_state(key)) for key in names]
    if site.as_json:
        output.document({"run": run_name, "tenant": site.tenant, "keys": found})
        return
    output.table(
        ("key", "version", "owner", "written by", "seq", "when", ""),
        [
            (one["key"], one["version"], one["owner"], one["written_by"], one["seq"], one["recorded_at"],
             "deleted" if one["deleted"] else "")
            for one in found
        ],
        empty="no key was written",
    )  # fmt: skip


def _members(read: Read) -> dict[str, Any]:
    return {
        "key": read.key,
        "version": read.version,
        "deleted": read.deleted,
        "owner": read.owner,
        "written_by": read.written_by,
        "seq": read.seq,
        "recorded_at": records.time_of(read.recorded_at),
        "sensitive": read.sensitive,
    }
