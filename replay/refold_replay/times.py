"""Times of recorded events: ISO text to µs since the epoch, UTC unless it names a zone."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import lru_cache

from refold_store.sealer import CLOCK_END_US

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FINER = re.compile(r"\.\d{7,}")


def clock_of(ts: object) -> int:
    """µs since the epoch. Raises ValueError for what is no time, is finer than a µs, lies before 1970 or after 9998."""
    if not isinstance(ts, str):
        raise ValueError(f'"ts" is a time as text, not {ts!r}')
    return _clock_of(ts)


@lru_cache(maxsize=256)
def _clock_of(ts: str) -> int:
    try:
        when = datetime.fromisoformat(ts)
    except ValueError:
        raise ValueError(f'"ts" is {ts!r}, which is no ISO time like 2026-11-30T02:00:00.000001') from None
    if _FINER.search(ts):
        raise ValueError(f'"ts" is {ts!r}: finer than a microsecond, which would be cut off')
    delta = (when if when.tzinfo is not None else when.replace(tzinfo=UTC)) - _EPOCH
    micros = (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds
    if micros < 0:
        raise ValueError(f'"ts" is {ts!r}, before 1970')
    if micros >= CLOCK_END_US:
        raise ValueError(f'"ts" is {ts!r}, after the year 9998')
    return micros
