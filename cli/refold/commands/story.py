"""`refold log`: a run as a readable story, one line an event. JSON comes as one record a line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from refold import output, records
from refold.output import at_time, safe
from refold.site import Site, common, complete_keys, declared_key, note_strangers, run_argument, sensitive_option
from refold_store.errors import UnknownKey
from refold_store.reads import as_time

if TYPE_CHECKING:
    from refold_replay.story import Span, Told
    from refold_store.run import Run

GAP_US = 60_000_000
"""A longer silence is marked."""
MARKS = {"": "", "first": "┌ ", "inside": "│ ", "last": "└ "}


@click.command("log")
@run_argument
@click.option("--from", "begin", default="0", metavar="MOMENT", help="Begin with the event of this moment.")
@click.option("--to", "end", default="end", metavar="MOMENT", help="End with the event of this one.")
@click.option(
    "--key",
    "keys",
    multiple=True,
    metavar="KEY",
    shell_complete=complete_keys,
    help="Only what names this key; may be repeated.",
)
@click.option("--agent", "agents", multiple=True, metavar="NAME", help="Only what this agent did, or was handed.")
@sensitive_option
@common
def log_command(
    site: Site,
    run_name: str,
    begin: str,
    end: str,
    keys: tuple[str, ...],
    agents: tuple[str, ...],
    show_sensitive: bool,
) -> None:
    """Tell RUN as a story: who did what, on what basis, and what was stale when it was read.

    Times count from the run's first event. A transaction is a block; a turn has a heading; a silence of over a minute
    is marked.
    """
    from refold_replay.story import span, story

    with site.run(run_name) as run:
        part = span(run, begin, end)
        if part.first_seq > part.last_seq + 1:
            raise click.UsageError(f"--from is seq {part.first_seq}, --to is seq {part.last_seq}: exchange them")
        for warning in part.warnings:
            output.note(f"warning: {warning}")
        _check_keys(run, part, keys)
        told = story(run, begin=part.first_seq, end=part.last_seq, keys=keys, agents=agents)
        count = 0
        for one in told:
            if site.as_json:
                output.document(_members(one, part.last_seq, show_sensitive))
            elif not count:
                start = as_time(one.event.recorded_at - one.since_start_us)
                first = max(part.first_seq, 1)
                output.say(f"{safe(run.name)}, seq {first} to {part.last_seq}; +0 is {at_time(start)}")
            count += 1
            if not site.as_json:
                _show(one, show_sensitive, len(str(part.last_seq)))
        if not count and agents:
            note_strangers(run, agents)
        if not count and not site.as_json:
            output.say(f"nothing to tell of {safe(run_name)}, seq {part.first_seq} to {part.last_seq}")


def _check_keys(run: Run, part: Span, keys: tuple[str, ...]) -> None:
    """Raises UnknownKey for a key that neither the schema declares nor any event names, as a refused write may."""
    from refold_replay.story import story

    for key in keys:
        try:
            declared_key(run, key)
        except UnknownKey:
            if next(story(run, begin=part.first_seq, end=part.last_seq, keys=[key]), None) is None:
                raise


def _members(one: Told, at_seq: int, show_sensitive: bool) -> dict[str, Any]:
    from refold_replay.diff import MISSING

    event, masked = one.event, one.sensitive and not show_sensitive
    return {
        "seq": event.seq,
        "at_seq": at_seq,
        "recorded_at": at_time(as_time(event.recorded_at)),
        "since_start_us": one.since_start_us,
        "gap_us": one.gap_us,
        "kind": event.kind,
        "actor": event.actor,
        "owner": event.owner,
        "key": event.key,
        "version": event.version,
        "turn": event.turn,
        "txn": event.txn,
        "heading": one.heading,
        "block": one.block,
        "words": one.words,
        "detail": None if masked else one.detail,
        "value": None if masked or one.value is MISSING else one.value,
        "has_value": one.value is not MISSING,
        "basis": None if masked else one.basis,
        "based_on": [list(ground) for ground in one.based_on],
        "stale": one.stale,
        "erased": event.erased,
        "masked": masked,
    }


def _show(one: Told, show_sensitive: bool, width: int) -> None:
    from refold_replay.diff import MISSING

    if one.gap_us > GAP_US:
        output.say(f"   ... {_long(one.gap_us)} later")
    if one.heading is not None:
        output.say(f"-- {one.heading}")
    masked = one.sensitive and not show_sensitive
    parts = [safe(one.words)]
    if one.value is not MISSING:
        parts[0] += f": {output.MASK if masked else records.short(one.value)}"
    for label, text in (("", one.detail), ("basis: ", one.basis)):
        if text is not None:
            parts.append(f"{label}{output.MASK if masked else safe(text)}")
    if one.based_on:
        parts.append("rests on " + ", ".join(_ground(*ground) for ground in one.based_on))
    output.say(f"{_since(one.since_start_us)}  {one.event.seq:>{width}}  {MARKS[one.block]}{'; '.join(parts)}")


def _ground(key: str, version: int, newest: int) -> str:
    late = f" (stale: {newest} was current)" if newest > version else ""
    return f"{safe(key)}@{version}{late}"


def _since(micros: int) -> str:
    """A time since the start: +00:00:05.120, with days in front if there are any."""
    seconds, rest = divmod(micros, 1_000_000)
    minutes, hours, days = seconds // 60 % 60, seconds // 3600 % 24, seconds // 86_400
    return f"+{f'{days}d ' if days else ''}{hours:02}:{minutes:02}:{seconds % 60:02}.{rest // 1000:03}"


def _long(micros: int) -> str:
    """A silence in one unit."""
    seconds = micros / 1e6
    for size, unit in ((86_400, "d"), (3_600, "h")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds / 60:.0f} min"
