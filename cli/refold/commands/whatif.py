"""`refold whatif`: a run gone through again with a change, without a model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from refold import output, records
from refold.output import MASK, plural, safe
from refold.site import Dashed, Site, common, run_argument, sensitive_option
from refold_store import jsontext
from refold_store.errors import InvalidValue, RefoldError
from refold_store.looking import sensitive_since

if TYPE_CHECKING:
    from refold_replay.diff import Change
    from refold_replay.differences import Difference, Sides, WhatIf
    from refold_store.run import Run
    from refold_store.schema import Schema

SIGNS = {"add": "+", "remove": "-", "replace": "~"}
PATHS = 3
"""Paths of one event shown in a line; --json has more."""
_NOTHING = "nothing would differ"


@click.command("whatif", cls=Dashed)
@run_argument
@click.option("--skip", "skipped", multiple=True, metavar="SEQ", help="A write that had not happened.")
@click.option("--edit", "edited", multiple=True, metavar="SEQ=VALUE", help="A write of another value (JSON).")
@click.option("--reducer", "reducers", multiple=True, metavar="KEY=NAME", help="Another reducer of a key.")
@click.option("--owner", "owners", multiple=True, metavar="KEY=NAME", help="Another owner of a key.")
@click.option(
    "--condition", "conditions", multiple=True, metavar="NAME=EXPR", help="Another invariant; no EXPR takes it away."
)
@click.option("--schema", type=click.Path(), metavar="FILE", help="Another state schema, YAML.")
@sensitive_option
@common
def whatif_command(
    site: Site,
    run_name: str,
    skipped: Sequence[str],
    edited: Sequence[str],
    reducers: Sequence[str],
    owners: Sequence[str],
    conditions: Sequence[str],
    schema: str | None,
    show_sensitive: bool,
) -> None:
    """Replay RUN with changes, without a model, and tell what would differ. Nothing is written.

    SEQ is the seq of a write, or a moment that names one: routing@2. Every later write goes through the checks of a
    live one. Writes that would stay the same and rest on what would not are named last: their writers would have to
    decide again. All options but --schema may be repeated.
    """
    from refold_replay.whatif import whatif
    from refold_store.declare import compile_schema

    compiled = None if schema is None else compile_schema(schema)
    with site.run(run_name) as run:
        found = whatif(
            run,
            skip=skipped,
            edit=dict(_edit(run, one) for one in edited),
            reducers=_pairs("--reducer", "KEY=NAME", reducers),
            owners=_pairs("--owner", "KEY=NAME", owners),
            conditions={
                name: text if text.strip() else None
                for name, text in _pairs("--condition", "NAME=EXPR", conditions, empty=True).items()
            },
            schema=compiled,
        )
        mask = _Mask(run, compiled, show_sensitive)
        if site.as_json:
            output.document(_members(found, mask))
        else:
            _tell(found, mask)


def _pairs(option: str, form: str, given: Iterable[str], *, empty: bool = False) -> dict[str, str]:
    found: dict[str, str] = {}
    for one in given:
        name, mark, value = one.partition("=")
        if not mark or not name or not (value or empty):
            raise click.UsageError(f"{option} {one!r}: write {form}")
        if name in found:
            raise click.UsageError(f"{option} names {name!r} twice")
        found[name] = value
    return found


def _edit(run: Run, given: str) -> tuple[int, Any]:
    """SEQ=VALUE. A key may hold `=`, so the first one that leaves JSON behind it counts."""
    at = given.find("=")
    problem: click.UsageError | RefoldError | None = None
    if at < 1:
        raise click.UsageError(f"--edit {given!r}: write SEQ=VALUE, like 8=42 or routing@2='{{\"desk\": 1}}'")
    while at > 0:
        try:
            value = jsontext.parse(given[at + 1 :].encode("utf-8", "surrogateescape"))
            return run.at(given[:at]).seq, value
        except InvalidValue as error:
            problem = problem or click.UsageError(
                f"--edit {given!r}: what follows `=` is not JSON: {error}; a text is written '\"text\"'"
            )
        except RefoldError as error:
            if given.find("=", at + 1) < 0:
                raise
            problem = problem or error
        at = given.find("=", at + 1)
    assert problem is not None
    raise problem


# --- what may be shown ---------------------------------------------------------------------------


class _Mask:
    """Which keys' values stay hidden: those sensitive by any schema of the run, or by the one given."""

    def __init__(self, run: Run, given: Schema | None, show: bool) -> None:
        self._run, self._given, self._show = run, given, show
        self._known: dict[str, bool] = {}
        self._sensitive: list[str] | None = None

    def hides(self, key: str | None) -> bool:
        """Whether a key's values are masked."""
        if self._show or key is None:
            return False
        found = self._known.get(key)
        if found is None:
            from refold_store.backend import MAX_SEQ

            found = sensitive_since(self._run, key) <= MAX_SEQ
            if self._given is not None and key in self._given:
                found = found or self._given.key(key).sensitive
            self._known[key] = found
        return found

    def message(self, one: Difference) -> str | None:
        """A message, masked if it could tell a hidden value: that of its own key, or of one it names."""
        if one.message is None or self._show:
            return one.message
        if self._sensitive is None:
            self._sensitive = list(filter(self.hides, self._run.keys()))
        hidden = self.hides(one.key) or any(key in one.message for key in self._sensitive)
        return MASK if hidden and one.reason is not None else one.message


# --- as JSON ---------------------------------------------------------------------------------------


def _members(found: WhatIf, mask: _Mask) -> dict[str, Any]:
    return {
        "run": found.run,
        "tenant": found.tenant,
        "at_seq": found.at_seq,
        "differs": bool(found),
        "counts": _counts(found),
        "differences": [
            {
                "seq": one.seq,
                "kind": one.kind,
                "actor": one.actor,
                "key": one.key,
                "version": one.version,
                "what": one.what,
                "direct": one.direct,
                "reason": one.reason,
                "message": mask.message(one),
                "sees": one.sees,
                "rests_on": [
                    {"key": ground.key, "version": ground.version, "kind": ground.kind, "read_seq": ground.read_seq}
                    for ground in one.rests_on
                ],
                "more_grounds": one.more_grounds,
                **_sides(one.sides, mask.hides(one.key)),
            }
            for one in found.differences
        ],
        "final": [
            {
                "key": one.key,
                "written_at": one.written_at,
                "erased": one.erased,
                **_sides(one.sides, mask.hides(one.key)),
            }
            for one in found.final
        ],
    }


def _counts(found: WhatIf) -> dict[str, int]:
    return {
        "changed": len(found.seqs("edited", "value changed", "accepted instead")),
        "refused": len(found.seqs("refused")),
        "reads": len(found.seqs("saw another value")),
        "depends": len(found.seqs("depends")),
        "not_judged": len(found.seqs("cannot be judged")),
        "keys": len(found.final),
    }


def _sides(sides: Sides, hidden: bool) -> dict[str, Any]:
    from refold_replay.diff import MISSING

    shown = {} if hidden else {"before": sides.before, "after": sides.after}
    return {
        "masked": hidden,
        "cut": sides.cut,
        "before": None if (before := shown.get("before", MISSING)) is MISSING else before,
        "after": None if (after := shown.get("after", MISSING)) is MISSING else after,
        "had_value": sides.before is not MISSING,
        "would_have_value": sides.after is not MISSING,
        "changes": [] if hidden else [_change(one) for one in sides.paths],
        "more_changes": sides.more and not hidden,
    }


def _change(one: Change) -> dict[str, Any]:
    from refold_replay.diff import MISSING

    found: dict[str, Any] = {"op": one.op, "path": one.path}
    found |= {} if one.before is MISSING else {"before": one.before}
    return found | ({} if one.after is MISSING else {"after": one.after})


# --- as text ---------------------------------------------------------------------------------------


def _tell(found: WhatIf, mask: _Mask) -> None:
    counts = _counts(found)
    where = f"{safe(found.run)}, {plural(found.at_seq, 'event')}"
    if not found:
        output.say(f"{where}: {_NOTHING}")
        return
    unjudged = f"; {counts['not_judged']} cannot be judged" if counts["not_judged"] else ""
    output.say(
        f"{where}: {plural(counts['changed'], 'event')} would change, {counts['refused']:,} would be refused, "
        f"{plural(counts['reads'], 'read')} would have seen another value; "
        f"{plural(counts['depends'], 'decision')} {'rests' if counts['depends'] == 1 else 'rest'} on these{unjudged}"
    )
    _table("would be another", found.direct, mask)
    _table("the same, resting on these", found.dependents, mask)
    if found.final:
        output.say("\nat the end")
    for one in found.final:
        lines = (
            ["(erased: what it would hold cannot be told)"] if one.erased else _changes(one.sides, mask.hides(one.key))
        )
        for line in lines:
            output.say(f"  {safe(one.key)}  {line}")


def _table(title: str, found: Sequence[Difference], mask: _Mask) -> None:
    if not found:
        return
    output.say(f"\n{title}")
    rows = [(one.seq, one.actor, _event(one), _outcome(one, mask)) for one in found]
    output.table(("seq", "who", "event", "what if"), rows, empty="")


def _event(one: Difference) -> str:
    verb = {"state.written": "writes", "state.deleted": "deletes", "state.read": "reads"}.get(one.kind)
    name = "several keys" if one.key is None else one.key
    return f"writes {name} (refused)" if verb is None else f"{verb} {name}@{one.version}"


def _outcome(one: Difference, mask: _Mask) -> str:
    hidden = mask.hides(one.key)
    match one.what:
        case "removed":
            return "left out"
        case "refused":
            return f"refused ({one.reason}): {mask.message(one)}"
        case "edited" if one.reason is not None:
            return f"edited, refused all the same ({one.reason}): {mask.message(one)}"
        case "saw another value":
            return f"would see {one.sees}"
        case "cannot be judged":
            return f"cannot be judged: {one.message}"
        case "depends":
            from refold_replay.differences import named

            return ", ".join(part for part in (named(one.rests_on, one.more_grounds), one.message) if part)
        case _:
            shown = "; ".join(_changes(one.sides, hidden)) or "as it was"
            return f"{one.what}: {shown}"


def _changes(sides: Sides, hidden: bool) -> list[str]:
    from refold_replay.diff import MISSING

    if hidden:
        return [MASK]
    lines = []
    for one in sides.paths[:PATHS]:
        shown = [records.short(value) for value in (one.before, one.after) if value is not MISSING]
        lines.append(f"{SIGNS[one.op]} {safe(one.path)}  {' -> '.join(shown)}")
    left = len(sides.paths) - len(lines)
    if left:
        lines.append(f"and {left}{' or more' if sides.more else ''} more")
    return lines
