"""What a caller hands to the committer, and what it gets back.

A request belongs to one run and is a list of items, applied in order and committed together:
`Unit` (one write, or a transaction of several), or `Draft` (an event that changes no state).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from refold_store.events import NO_TRACE, Draft, Trace
from refold_store.keys import Key, Prepared

if TYPE_CHECKING:
    from refold_store.heads import RunHead
    from refold_store.schema import Schema


@dataclass(slots=True)
class Op:
    """One write or delete. `prepared` is None for a delete."""

    name: str
    key: Key
    writer: str
    prepared: Prepared | None
    basis: str | None = None
    expected: int | None = None
    based_on: tuple[tuple[str, int], ...] | None = None
    refs: dict[str, Any] | None = None
    elsewhere: frozenset[str] = frozenset()
    """Keys named in `based_on` that live in the run of a scope."""
    guess: tuple[int, bytes | None] | None = None
    """(version the caller saw, value text it reduced to): valid if the key is still at that version."""
    turn: int | None = None
    """The turn it was drafted in; None: its unit's."""


@dataclass(slots=True)
class Unit:
    """Writes that are accepted together or not at all."""

    ops: Sequence[Op]
    request_id: str | None = None
    payload: str | None = None
    turn: int | None = None
    clock: int | None = None
    trace: Trace = NO_TRACE
    whole: bool = False
    """Whether it is a transaction: then its events carry `txn` even if there is only one."""
    fence: Sequence[tuple[int, int]] = ()
    """(turn, attempt) that must be open, and the newest of their turn."""
    tail: Sequence[Draft] = ()
    """Events that follow the writes in the same transaction."""
    tail_seqs: list[int] = field(default_factory=list)
    """Where they came to stand."""
    unless_live: bool = False
    """Whether it waits for no live turn: refused while one is open."""
    blamed: Op | None = None
    """The write that was refused, once one was."""


@dataclass(slots=True)
class TurnStart(Draft):
    """A turn that begins, or begins again (`turn` is given). The committer fills in what it became."""

    parent: int | None = None
    fence: Sequence[tuple[int, int]] = ()
    """(turn, attempt) it begins in, that must be open."""
    live: bool = False
    """Whether `set_state` is locked while it is open."""
    number: int = 0
    attempt: int = 0


@dataclass(slots=True)
class Resume(Draft):
    """Answers to all open interrupts of a run, by id; None: they are dismissed."""

    answers: dict[str, Any] | None = None


class Written(NamedTuple):
    """An accepted write: the version it made and the seq of its event."""

    key: str
    version: int
    seq: int
    run: str


@dataclass(slots=True)
class Request:
    """One call's work on one run."""

    head: RunHead
    schema: Schema
    items: Sequence[Unit | Draft]
    """In order. A Draft may be a TurnStart or a Resume."""
    opener: str | None = None
    """Who opens the run if it is new; None: the run must exist already, else nothing is recorded."""
    record_refusals: bool = False
    """Refused units become `state.refused` events and the rest goes on (imports)."""
    opening: Sequence[Draft] = ()
    """Events that follow `run.opened` and `schema.declared`, if this request opens the run."""
    new_run: bool = False
    """The run must not exist yet, and gets all items or none (imports): the first refused unit drops the request,
    unrecorded; `len(results)` is then its number among the units."""
    clock: int | None = None
    durable: bool = True
    """Whether its caller may only go on once it is on the disk."""
    opens: bool = False
    """The run must not be open yet: its opener writes initial values in their owners' names."""
    carried: list[Draft] = field(default_factory=list)
    """Reads and refusals of this run that waited for its next commit."""
    results: list[list[Written]] = field(default_factory=list)
    future: Future[list[list[Written]]] | None = None
    error: BaseException | None = None


async def awaited(future: Future[list[list[Written]]]) -> list[list[Written]]:
    """A request's results, for async callers."""
    import asyncio  # an async caller has it loaded; the command line starts a fifth faster without

    return await asyncio.wrap_future(future)


def in_event_loop() -> bool:
    """Whether the caller is a task of a running event loop, which must not be made to wait for the database."""
    asyncio = sys.modules.get("asyncio")
    return asyncio is not None and asyncio._get_running_loop() is not None
