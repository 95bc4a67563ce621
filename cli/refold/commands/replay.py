"""`refold replay`: agents' work run again from the record, without a model, and compared with it."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Any

import click

from refold import exits, output
from refold.output import MASK, plural, safe
from refold.progress import bar
from refold.site import Site, common, run_argument, sensitive_option
from refold_store import jsontext

if TYPE_CHECKING:
    from refold_engine.config import Config
    from refold_replay.divergence import Divergence
    from refold_replay.rerun_judge import Rerun
    from refold_store.run import Run

SHOWN = 160
"""Characters of a side of a difference, from a little before the place where the two part."""
FOLLOWING = 5
"""Consequences told; --json has more."""


@click.group("replay")
def replay_command() -> None:
    """Run agents' work again from the record, and compare."""


@replay_command.command("run")
@run_argument
@click.option("--config", "file", required=True, metavar="FILE", type=click.Path(dir_okay=False),
              help="The engine configuration (YAML) to run it under.")  # fmt: skip
@click.option("--quiet", is_flag=True, help="Only the difference, if there is one.")
@sensitive_option
@common
def run_command(site: Site, run_name: str, file: str, quiet: bool, show_sensitive: bool) -> None:
    """Run RUN again with everything recorded, and compare it with the record, byte for byte.

    The engine works through the run as it did, under the configuration in FILE; answers of models and results of tools
    come from the record, nothing live is called, and nothing is written. Exit code 0 if it does the same, 1 at a
    difference: the first one is told with its place, then what follows from it.
    """
    from refold_replay.rerun import rerun

    config = _config(file)
    with site.run(run_name) as run, bar("replaying") as progress:
        found = rerun(run, config, tell=progress)
        hides = _Hiding(run, config, show_sensitive)
        if site.as_json:
            output.document(_members(found, hides))
        else:
            _tell(found, hides, quiet=quiet)
    if not found.ok:
        raise click.exceptions.Exit(exits.FOUND)


def _config(file: str) -> Config:
    from refold_engine.loading import load

    with redirect_stdout(sys.stderr):  # it imports the modules a configuration names, and they may print
        return load(file)


# --- what may be shown ---------------------------------------------------------------------------


class _Hiding:
    """Which differences show a value of a sensitive key."""

    def __init__(self, run: Run, config: Config, show: bool) -> None:
        from refold_store.backend import MAX_SEQ
        from refold_store.looking import sensitive_since

        names = [] if show else run.keys()
        declared = config.schema
        self._keys = {
            name
            for name in names
            if sensitive_since(run, name) <= MAX_SEQ or (name in declared and declared.key(name).sensitive)
        }
        self._paths = [jsontext.member_path("$.messages[0].state", name) for name in self._keys]

    def hides(self, one: Divergence) -> bool:
        """Whether its two sides are masked. A message or a result may quote a value: then all of them are."""
        if not self._keys:
            return False
        if one.key is not None:
            return one.key in self._keys
        if one.path.startswith("$.messages[0].state"):
            return one.path == "$.messages[0].state" or any(map(one.path.startswith, self._paths))
        return one.kind in ("answer", "tool", "message", "handoff") or one.path.startswith("$.messages")


def _members(found: Rerun, hiding: _Hiding) -> dict[str, Any]:
    members = found.to_json()
    for one, made in zip(_all(found), [members["divergence"], *members["consequences"]], strict=False):
        if made is not None and hiding.hides(one):
            made |= {side: MASK for side in ("recorded", "replayed") if side in made}
    return members


def _all(found: Rerun) -> Iterable[Divergence]:
    return [] if found.divergence is None else [found.divergence, *found.consequences]


# --- told for people -----------------------------------------------------------------------------


def _tell(found: Rerun, hiding: _Hiding, *, quiet: bool) -> None:
    for note in found.notes:
        output.note(note)
    if found.divergence is None:
        if not quiet:
            output.say(safe(f"{found.run}: the same, byte for byte, and nothing live was called"))
            output.facts(_counts(found))
        return
    one = found.divergence
    output.say(safe(f"{found.run}: seq {one.seq}: {one.message}"))
    output.facts(_sides(one, hiding))
    for other in found.consequences[:FOLLOWING]:
        output.say(safe(f"then seq {other.seq}: {other.message}"))
    more = len(found.consequences) - FOLLOWING + found.more
    if more > 0:
        output.say(f"and {plural(more, 'more difference')} behind it")
    if found.stopped is not None:
        output.say(f"the two do different things from here on: nothing behind seq {found.stopped} was compared")
    if not quiet:
        output.facts(_counts(found))


def _sides(one: Divergence, hiding: _Hiding) -> list[tuple[str, str]]:
    from refold_replay.diff import MISSING

    if hiding.hides(one):
        return [("recorded", MASK), ("replayed", MASK)]
    texts = [None if side is MISSING else output.compact(side) for side in (one.recorded, one.replayed)]
    then, now = (text or "" for text in texts)
    same = next((at for at, pair in enumerate(zip(then, now, strict=False)) if pair[0] != pair[1]), 0)
    start = max(0, same - SHOWN // 3)
    cut = ["nothing" if text is None else _cut(text, start) for text in texts]
    return [("recorded", cut[0]), ("replayed", cut[1])]


def _cut(text: str, start: int) -> str:
    part = text[start : start + SHOWN]
    return f"{'…' if start else ''}{part}{'…' if start + SHOWN < len(text) else ''}"


def _counts(found: Rerun) -> list[tuple[str, str]]:
    did = [plural(found.turns, "turn"), plural(found.routes, "route"), plural(found.stops, "stop")]
    compared = [
        plural(found.requests, "request"), plural(found.tool_calls, "tool call"), plural(found.writes, "write"),
        plural(found.refusals, "refusal"),
    ]  # fmt: skip
    inputs = plural(found.inputs, "event")
    if found.inputs_in_turns:
        inputs += f", {found.inputs_in_turns} of them within a turn, where its readers saw them"
    facts = [("ran", ", ".join(did)), ("compared", ", ".join(compared)), ("outside", inputs)]
    if found.attempts_dropped:
        facts.append(("left out", f"{plural(found.attempts_dropped, 'attempt')} that did not commit"))
    if found.unfinished is not None:
        facts.append(("open", f"turn {found.unfinished} has no end on record and is not compared"))
    if found.erased:
        facts.append(("erased", f"seq {', '.join(map(str, found.erased[:10]))}: could not be applied again"))
    return [(label, safe(text)) for label, text in facts]
