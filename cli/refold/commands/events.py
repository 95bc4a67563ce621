"""`refold events` and `refold tail`: the log itself, as it is and as it grows. JSON comes as one event a line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from refold import output, records
from refold.site import COUNT, Site, common, run_argument, sensitive_option
from refold_store.events import KIND_ID

if TYPE_CHECKING:
    from refold_store.events import Event

COLUMNS = ("seq", "when", "kind", "actor", "key", "version", "what")
LAST = 10
"""Events `tail` shows of the past."""


def _kind_option(function: Any) -> Any:
    return click.option(
        "--kind", "kinds", multiple=True, metavar="KIND", type=click.Choice(list(KIND_ID)),
        help="Only this kind, like state.refused; may be repeated.",
    )(function)  # fmt: skip


@click.command("events")
@run_argument
@_kind_option
@click.option("--after", type=COUNT, default=0, metavar="SEQ", help="Only events after this one.")
@click.option("--limit", type=COUNT, metavar="N", help="At most so many.")
@sensitive_option
@common
def events_command(
    site: Site, run_name: str, kinds: tuple[str, ...], after: int, limit: int | None, show_sensitive: bool
) -> None:
    """Show the log of RUN in its order."""
    with site.run(run_name) as run:
        shown = records.Events(run, show_sensitive)
        found = run.events(kinds or None, after=after, limit=limit)
        if site.as_json:
            for event in found:
                output.document(shown.members(event))
        else:
            output.table(COLUMNS, (shown.line(event) for event in found), empty="no events")


@click.command("tail")
@run_argument
@_kind_option
@click.option("--after", type=COUNT, metavar="SEQ", help=f"Begin after this one; else {LAST} back.")
@sensitive_option
@common
def tail_command(site: Site, run_name: str, kinds: tuple[str, ...], after: int | None, show_sensitive: bool) -> None:
    """Show the log of RUN as it grows, until Ctrl-C. No event is skipped."""
    with site.run(run_name) as run:
        shown = records.Events(run, show_sensitive)
        begin = max(run.head_seq() - LAST, 0) if after is None else after
        for event in _of_kinds(run.follow(after=begin), kinds):
            if site.as_json:
                output.document(shown.members(event))
            else:
                output.say(_line(shown.line(event)))


def _of_kinds(events: Iterator[Event], kinds: tuple[str, ...]) -> Iterator[Event]:
    return events if not kinds else (event for event in events if event.kind in kinds)


def _line(cells: tuple[Any, ...]) -> str:
    """One event on one line, each field in its place as long as it fits."""
    widths = (6, 27, 16, 20, 20, 4, 0)
    texts = ("" if cell is None else output.safe(str(cell)) for cell in cells)
    return " ".join(text.ljust(width) for text, width in zip(texts, widths, strict=True)).rstrip()
