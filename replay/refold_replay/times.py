"""Times of recorded events: ISO text to µs since the epoch, UTC unless it names a zone."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import lru_cache

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FINER = re.compile(r"\.\d{7,}")


@lru_cache(maxsize=256)
def clock_of(ts: object) -> int:
    """µs since the epoch. Raises ValueError for what is no time, is finer than a µs, or lies before 1970."""
    if not isinstance(ts, str):
        raise ValueError(f'"ts" is a time as text, not {ts!r}')
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
    return micros
