"""What differs between two moments, of one run or of two.

Rules of this module
- In one run a key at the same version is the same, and one at another version is listed even if its value came back.
- In two runs values are compared, not version numbers: two runs count their versions each for themselves.
- Values are decoded one key at a time; what is equal is told by its stored text alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from refold_replay.diff import MISSING, Change, diff
from refold_store import jsontext
from refold_store.errors import ValueErased
from refold_store.moments import Moment
from refold_store.reads import Read


@dataclass(frozen=True, slots=True)
class KeyChange:
    """One key that differs. A side is None where the key held no value."""

    key: str
    before: Read | None
    after: Read | None
    changes: list[Change]
    """Path by path; empty if the value came back, or if a side was erased (`erased`)."""
    erased: bool

    @property
    def sensitive(self) -> bool:
        """Whether either side is sensitive: show the changes only when asked to."""
        return any(read is not None and read.sensitive for read in (self.before, self.after))


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two moments and the keys that differ, in byte order."""

    before: Moment
    after: Moment
    keys: list[KeyChange]

    @property
    def one_run(self) -> bool:
        """Whether both moments lie in one run."""
        return _one_run(self.before, self.after)

    def __iter__(self) -> Iterator[KeyChange]:
        return iter(self.keys)

    def __len__(self) -> int:
        return len(self.keys)


def compare(before: Moment, after: Moment) -> Comparison:
    """What differs between two moments, of one run (`run.at(12)`, `run.at("end")`) or of two."""
    old, new = before.state(), after.state()
    one_run = _one_run(before, after)
    found = []
    for key in sorted({*old, *new}):
        change = _change(key, old.get(key), new.get(key), one_run)
        if change is not None:
            found.append(change)
    return Comparison(before, after, found)


def _one_run(before: Moment, after: Moment) -> bool:
    one, other = before.run, after.run
    same = (one.tenant, one.scope, one.name) == (other.tenant, other.scope, other.name)
    return same and one.store is other.store


def _change(key: str, before: Read | None, after: Read | None, one_run: bool) -> KeyChange | None:
    if one_run and before is not None and after is not None and before.version == after.version:
        return None
    try:
        old, new = _text(before), _text(after)
    except ValueErased:
        return KeyChange(key, before, after, [], True)
    if old == new:
        return KeyChange(key, before, after, [], False) if one_run else None
    return KeyChange(key, before, after, diff(_document(old), _document(new)), False)


def _text(read: Read | None) -> bytes | None:
    return None if read is None else read.text


def _document(text: bytes | None) -> Any:
    return MISSING if text is None else jsontext.decode(text)
