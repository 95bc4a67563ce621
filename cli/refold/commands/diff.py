"""`refold diff`: what changed between two moments of a run, or of two runs, path by path."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from refold import output, records
from refold.output import safe
from refold.site import Dashed, Site, common, complete_runs, run_argument, sensitive_option

if TYPE_CHECKING:
    from refold_replay.comparing import Comparison, KeyChange
    from refold_store.reads import Read
    from refold_store.run import Run

SIDES = ("before", "after")
SIGNS = {"add": "+", "remove": "-", "replace": "~"}


@click.command("diff", cls=Dashed)
@run_argument
@click.argument("moment_a", metavar="MOMENT")
@click.argument("moment_b", metavar="MOMENT")
@click.option(
    "--with", "other_name", metavar="RUN", shell_complete=complete_runs, help="The second moment is one of this run."
)
@sensitive_option
@common
def diff_command(
    site: Site, run_name: str, moment_a: str, moment_b: str, other_name: str | None, show_sensitive: bool
) -> None:
    """Show what changed in RUN between two moments, or from a moment of RUN to one of another run.

    Within a run a key is the same as long as its version is; of two runs the values are compared.
    """
    from refold_replay.comparing import compare

    with site.run(run_name) as run:
        found = compare(run.at(moment_a), _other(run, other_name).at(moment_b))
        keys = [_members(change, found, show_sensitive) for change in found]
    for at in (found.before, found.after):
        if at.warning:
            output.note(f"warning: {at.warning}")
    if site.as_json:
        output.document(
            {"run": run_name, "tenant": site.tenant, "with_run": other_name, "from_seq": found.before.seq,
             "to_seq": found.after.seq, "keys": keys}
        )  # fmt: skip
        return
    count = output.plural(len(keys), "key")
    if other_name is None:
        output.say(f"{safe(run_name)}, seq {found.before.seq} to {found.after.seq}: {count} changed")
    else:
        one, other = f"{safe(run_name)} at seq {found.before.seq}", f"{safe(other_name)} at seq {found.after.seq}"
        output.say(f"{one}, {other}: {count} {'differs' if len(keys) == 1 else 'differ'}")
    for change in keys:
        _show(change, two=other_name is not None)


def _other(run: Run, name: str | None) -> Run:
    if name is None:
        return run
    other = run.store.run(name, run.tenant)
    other.info()
    return other


def _members(change: KeyChange, found: Comparison, show_sensitive: bool) -> dict[str, Any]:
    """How a key differs, as a record."""
    known = [None if read is None else records.content(read, show_sensitive) for read in (change.before, change.after)]
    states = [None if one is None else records.state_of(one) for one in known]
    hidden = next((what for what in states if what is not None), None)
    changes: list[dict[str, Any]] = []
    for op, path, before, after in () if hidden is not None else change.changes:
        one: dict[str, Any] = {"op": op, "path": path}
        one |= {} if op == "add" else {"before": before}
        changes.append(one | ({} if op == "remove" else {"after": after}))
    if change.erased and None not in known and states.count(None) == 1:  # the other side can be told all the same
        shown = {side: one["value"] for side, one in zip(SIDES, known, strict=True) if one and not one["erased"]}
        changes.append({"op": "replace", "path": "$", **shown})
    return {
        "key": change.key,
        "from_version": _version(change.before),
        "to_version": _version(change.after),
        "written_by": None if change.after is None else change.after.written_by,
        "hidden": hidden,
        "before_hidden": states[0],
        "after_hidden": states[1],
        "changes": changes,
    }


def _version(read: Read | None) -> int | None:
    return None if read is None else read.version


def _show(one: dict[str, Any], *, two: bool) -> None:
    old, new = one["from_version"], one["to_version"]
    by = f", by {safe(one['written_by'])}" if one["written_by"] else ""
    if old and new:
        moved = f"version {old} and version {new}" if two else f"version {old} to {new}"
    elif new:
        moved = f"only there, version {new}" if two else f"new, version {new}"
    else:
        moved = f"only here, version {old}" if two else f"gone, was version {old}"
    output.say(f"\n{safe(one['key'])}: {moved}{by}")
    hidden = [one["before_hidden"], one["after_hidden"]]
    if None not in hidden and hidden[0] != hidden[1]:
        output.say(f"  {SIGNS['replace']} $  {' -> '.join(hidden)}")
    elif one["hidden"] and not one["changes"]:
        output.say(f"  {one['hidden']}")
    for change in one["changes"]:
        sides = [
            one[f"{side}_hidden"] or records.short(change[side])
            for side in SIDES
            if side in change or one[f"{side}_hidden"]
        ]
        output.say(f"  {SIGNS[change['op']]} {safe(change['path'])}  {' -> '.join(sides)}")
