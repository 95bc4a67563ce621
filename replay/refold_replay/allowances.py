"""What a log itself says may be missing from it: erased values, pruned reads, bodies left out of a redacted bundle.

Rules of this module
- An event allows only what stands before it in the same log: a value of the key and version it names, reads inside
  the ranges it lists.
- What an event says was taken out, and is still there, is a finding as well: the work was not finished.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from refold_store.events import DELETED, ERASED, KIND_ID, PRUNED, RUN_IMPORTED, Row
from refold_store.jsontext import decode

KEPT_KINDS = frozenset(
    KIND_ID[name]
    for name in (
        "state.read", "run.opened", "run.imported", "schema.declared", "value.erased", "reads.pruned", "run.forked",
        "run.archived",
    )
)  # fmt: skip
"""Kinds that have nothing to erase."""
SAYING = (ERASED, PRUNED, RUN_IMPORTED)
"""Kinds of events that allow something to be missing."""


@dataclass(frozen=True, slots=True)
class Erasure:
    """A `value.erased`: everything up to `until`, or only what bears this key (an id, a name) and version."""

    seq: int
    until: int
    key: int | str | None
    version: int | None

    @property
    def reach(self) -> int:
        """The newest seq it can speak of."""
        return min(self.until, self.seq - 1)

    def covers(self, seq: int, kind: int, key: int | str | None, version: int | None) -> bool:
        """Whether it speaks of an event."""
        return (
            seq <= self.until
            and seq < self.seq
            and kind not in KEPT_KINDS
            and (self.key is None or self.key == key)
            and (self.version is None or (self.version == version and kind <= DELETED))
        )


@dataclass(frozen=True, slots=True)
class Gap:
    """A stretch of reads that were pruned: the digests before it and of its last one, and the event that says so."""

    last: int
    before: bytes
    digest: bytes
    said: int


def _as_it_is(key: int | None) -> int | str | None:
    return key


@dataclass(slots=True)
class Allowances:
    """All that one log allows."""

    erasures: dict[tuple[int | str | None, int | None], list[Erasure]] = field(default_factory=dict)
    """By key and version, None for any."""
    furthest: dict[tuple[int | str | None, int | None], Erasure] = field(default_factory=dict)
    """Of each key and version the erasure that reaches furthest: it covers all that any of them does."""
    gaps: dict[int, Gap] = field(default_factory=dict)
    """First seq to gap."""
    redacted: int = 0
    """Bodies may be missing up to this seq: the log came out of a redacted bundle."""

    def add(self, row: Row, key_of: Callable[[int | None], int | str | None] = _as_it_is) -> None:
        """Take in an event of the log; others than SAYING allow nothing. `key_of` may turn a key's id into a name."""
        refs = decode(row.refs.encode()) if row.refs else {}
        if row.kind == ERASED:
            key = key_of(row.key)
            self.erase(Erasure(row.seq, int(refs["until"]), key, row.version))
        elif row.kind == PRUNED and row.body is not None:
            for first, last, before, digest in decode(bytes(row.body))["ranges"]:
                self.gaps[int(first)] = Gap(int(last), bytes.fromhex(before), bytes.fromhex(digest), row.seq)
        elif row.kind == RUN_IMPORTED and "redacted" in refs:
            self.redacted = max(self.redacted, min(int(refs["redacted"]), row.seq - 1))

    def erase(self, one: Erasure) -> None:
        """Take in an erasure."""
        at = one.key, one.version
        self.erasures.setdefault(at, []).append(one)
        if at not in self.furthest or self.furthest[at].reach < one.reach:
            self.furthest[at] = one

    def erased(self, seq: int, kind: int, key: int | str | None, version: int | None) -> bool:
        """Whether an event's body may be missing."""
        if kind in KEPT_KINDS:
            return False
        return seq <= self.redacted or self.erased_by(seq, kind, key, version) is not None

    def erased_by(self, seq: int, kind: int, key: int | str | None, version: int | None) -> int | None:
        """The seq of the event that says an event's body was erased; None if there is none."""
        for at in {(key, version), (key, None), (None, None)}:
            one = self.furthest.get(at)
            if one is not None and one.covers(seq, kind, key, version):
                return one.seq
        return None

    def across(self, first: int, seq: int, digest: bytes | None) -> Gap | None:
        """The last of the gaps that lead from `first` exactly to `seq` (the next event); None if they do not.

        `digest` is that of the event before `first`, None if it is not known: each gap must begin at the digest it
        names.
        """
        found = None
        while first < seq and (gap := self.gaps.get(first)) is not None and gap.said > gap.last:
            if digest is not None and gap.before != digest:
                return None
            first, found, digest = gap.last + 1, gap, gap.digest
        return found if first == seq else None

    def inside(self, seq: int) -> int | None:
        """The last seq of a gap that a seq and the next one lie in."""
        for first, gap in self.gaps.items():
            if first <= seq < gap.last:
                return gap.last
        return None
