"""`refold diff`: what changed in a run between two moments, path by path."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from refold import output, records
from refold.site import Dashed, Site, common, run_argument, sensitive_option

if TYPE_CHECKING:
    from refold_store.moments import Moment

SIGNS = {"add": "+", "remove": "-", "replace": "~"}


@click.command("diff", cls=Dashed)
@run_argument
@click.argument("moment_a", metavar="MOMENT")
@click.argument("moment_b", metavar="MOMENT")
@sensitive_option
@common
def diff_command(site: Site, run_name: str, moment_a: str, moment_b: str, show_sensitive: bool) -> None:
    """Show what changed in RUN between two moments."""
    with site.run(run_name) as run:
        older, newer = run.at(moment_a), run.at(moment_b)
        before, after = _records(older, show_sensitive), _records(newer, show_sensitive)
    for at in (older, newer):
        if at.warning:
            output.note(f"warning: {at.warning}")
    changed = [_change(key, before.get(key), after.get(key)) for key in sorted({*before, *after})]
    found = [one for one in changed if one is not None]
    if site.as_json:
        output.document(
            {"run": run_name, "tenant": site.tenant, "from_seq": older.seq, "to_seq": newer.seq, "keys": found}
        )
        return
    output.say(f"{output.safe(run_name)}, seq {older.seq} to {newer.seq}: {output.plural(len(found), 'key')} changed")
    for one in found:
        _show(one)


def _records(moment: Moment, show_sensitive: bool) -> dict[str, dict[str, Any]]:
    state = moment.state()
    return {key: records.read_members(state[key], show_sensitive) for key in state}


def _change(key: str, before: dict[str, Any] | None, after: dict[str, Any] | None) -> dict[str, Any] | None:
    """How a key differs; None if it is at the same version."""
    from refold_replay.diff import MISSING, diff

    if before is not None and after is not None and before["version"] == after["version"]:
        return None
    known = [one for one in (before, after) if one is not None]
    hidden = next((what for one in known if (what := records.state_of(one)) is not None), None)
    changes: list[dict[str, Any]] = []
    if hidden is None:
        old = MISSING if before is None else before["value"]
        new = MISSING if after is None else after["value"]
        for change in diff(old, new):
            one = {"op": change.op, "path": change.path}
            one |= {} if change.before is MISSING else {"before": change.before}
            changes.append(one | ({} if change.after is MISSING else {"after": change.after}))
    return {
        "key": key,
        "from_version": None if before is None else before["version"],
        "to_version": None if after is None else after["version"],
        "written_by": None if after is None else after["written_by"],
        "hidden": hidden,
        "changes": changes,
    }


def _show(one: dict[str, Any]) -> None:
    old, new = one["from_version"], one["to_version"]
    by = f", by {output.safe(one['written_by'])}" if one["written_by"] else ""
    moved = f"version {old} to {new}" if old and new else f"new, version {new}" if new else f"gone, was version {old}"
    output.say(f"\n{output.safe(one['key'])}: {moved}{by}")
    if one["hidden"]:
        output.say(f"  {one['hidden']}")
    for change in one["changes"]:
        sides = [records.short(change[side]) for side in ("before", "after") if side in change]
        output.say(f"  {SIGNS[change['op']]} {output.safe(change['path'])}  {' -> '.join(sides)}")
