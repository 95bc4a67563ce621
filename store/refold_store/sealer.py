"""The sealer gives a draft its place: seq, time, salt and digest. Time and randomness come from ports."""

from __future__ import annotations

import time
from collections.abc import Callable
from hashlib import sha256

from refold_store.backend import MAX_SEQ, Backend
from refold_store.errors import ConfigError, TransactionInvalid
from refold_store.events import SEEN_NOW, Draft, Row, header, new_row
from refold_store.heads import RunHead

SALT_POOL = 256
"""Salts drawn from the random port at once."""
CLOCK_EVERY_S = 60.0
"""How often the database server's clock is compared."""
CLOCK_END_US = 253_370_764_800_000_000
"""The first moment of 9999, µs since the epoch. Clocks stay below: times that follow by 1 µs each must have a date."""


class Sealer:
    """Seals drafts on run heads. Used under the committer's lock."""

    def __init__(self, backend: Backend, clock: Callable[[], int] | None, random: Callable[[int], bytes]) -> None:
        self.backend = backend
        self._ids = backend.ids
        self._port = clock
        self._random = random
        self._salts: list[bytes] = []
        self._offset_us = 0
        self._offset_due = 0.0

    def after_fork(self) -> None:
        """A child must not use the parent's salts."""
        self._salts = []

    def seal(self, head: RunHead, draft: Draft, txn: int | None, now: int, rows: list[Row]) -> None:
        """Give a draft its place: seq, time, salt, digest. Raises TransactionInvalid if the log has no seq left."""
        seq = head.seq + 1
        if seq > MAX_SEQ:
            raise TransactionInvalid(f"run {head.name!r} is full at seq {head.seq}; go on in a new run")
        clock: int | None = now if draft.clock is None else draft.clock
        recorded_at = head.recorded_at + 1
        if clock >= recorded_at:  # type: ignore[operator]  # set one line above
            recorded_at, clock = clock, None  # type: ignore[assignment]
        seen_seq = head.seq if draft.seen_seq == SEEN_NOW else draft.seen_seq
        salt = self._salts.pop() if self._salts else self._draw()
        trace_id, span_id, trace_flags = draft.trace
        top = header(
            seq, draft.kind, draft.actor, draft.owner, txn, draft.turn, draft.key, draft.version, seen_seq, recorded_at,
            clock, draft.request_id, draft.refs, trace_id, span_id, trace_flags,
        )  # fmt: skip
        body = draft.body
        digest = sha256(head.digest + top + sha256(salt if body is None else salt + body).digest()).digest()
        ids = self._ids
        rows.append(
            new_row(
                Row,
                (
                    head.id,
                    seq,
                    draft.kind,
                    None if draft.actor is None else ids[draft.actor],
                    None if draft.owner is None else ids[draft.owner],
                    txn,
                    draft.turn,
                    None if draft.key is None else ids[draft.key],
                    draft.version,
                    seen_seq,
                    recorded_at,
                    clock,
                    draft.request_id,
                    draft.refs,
                    salt,
                    body,
                    None,
                    digest,
                    trace_id,
                    span_id,
                    trace_flags,
                ),
            )
        )
        head.seq, head.digest, head.recorded_at = seq, digest, recorded_at

    def _draw(self) -> bytes:
        pool = self._random(16 * SALT_POOL)
        self._salts = [pool[at : at + 16] for at in range(len(pool) - 16, -1, -16)]
        return self._salts.pop()

    def now(self, clock: int | None) -> int:
        """µs since the epoch: the given clock, else the port's, else the process's moved to the server's.

        Raises ConfigError if the port gives what is no time from 1970 to 9998.
        """
        if clock is not None:
            return clock
        if self._port is not None:
            now = self._port()
            if type(now) is not int or not 0 <= now < CLOCK_END_US:
                raise ConfigError(
                    f"the store's clock gives {now!r}: it gives whole µs since 1970, at most to the end of 9998"
                )
            return now
        if self.backend.name != "sqlite" and time.monotonic() > self._offset_due:
            self._offset_us = self.backend.clock_offset_us()
            self._offset_due = time.monotonic() + CLOCK_EVERY_S
        return time.time_ns() // 1000 + self._offset_us
