"""A checker of recorded concurrent histories of one key. Pure: it knows operations, no store.

Rules it checks
- Versions: each accepted write has its own, and they are dense from 1. A write whose caller was never told (killed,
  connection lost) may have taken a version or not.
- Real time: a write that returned before another began has the smaller version.
- Reads: a read is never older than a write that returned before the read began, nor older than a read that returned
  before it began; and it never sees a write that began after the read returned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Operation:
    """One call on the key. Times are of one monotonic clock; `end` None: the caller was never told."""

    kind: str
    """`write` or `read`."""
    who: str
    start: int
    end: int | None
    version: int | None
    """The version made or seen; None only for a write whose caller was never told."""

    def before(self, other: Operation) -> bool:
        """Whether this one returned before the other began."""
        return self.end is not None and self.end < other.start


def faults(history: Sequence[Operation], newest: int) -> list[str]:
    """What is wrong with a history that left the key at version `newest`; empty if nothing is."""
    writes = [one for one in history if one.kind == "write" and one.version is not None]
    unknown = [one for one in history if one.kind == "write" and one.version is None]
    reads = [one for one in history if one.kind == "read"]
    return [*_versions(writes, unknown, newest), *_real_time(writes), *_reads(writes, unknown, reads, newest)]


def _versions(writes: list[Operation], unknown: list[Operation], newest: int) -> list[str]:
    made = sorted(one.version or 0 for one in writes)
    found = [f"version {version} was given twice" for version in {one for one in made if made.count(one) > 1}]
    if made and not 1 <= made[0] <= made[-1] <= newest:
        found.append(f"versions {made[0]} to {made[-1]} were given, but the key is at {newest}")
    missing = set(range(1, newest + 1)) - set(made)
    if len(missing) > len(unknown):
        found.append(f"versions {sorted(missing)} were given to nobody")
    return found


def _real_time(writes: list[Operation]) -> list[str]:
    return [
        f"version {late.version} by {late.who} began after version {early.version} by {early.who} had returned"
        for early in writes
        for late in writes
        if early.before(late) and (late.version or 0) < (early.version or 0)
    ]


def _reads(writes: list[Operation], unknown: list[Operation], reads: list[Operation], newest: int) -> list[str]:
    began = {one.version: one.start for one in writes}
    found = []
    for read in reads:
        version = read.version or 0
        for early in (*writes, *reads):
            if early.before(read) and version < (early.version or 0):
                found.append(f"{read.who} read version {version} after {early.kind} of {early.version} had returned")
        if version > newest:
            found.append(f"{read.who} read version {version}, but the key is at {newest}")
        elif version and read.end is not None:
            start = began.get(version, min((one.start for one in unknown), default=read.end + 1))
            if start > read.end:
                found.append(f"{read.who} read version {version} before its write began")
    return found
