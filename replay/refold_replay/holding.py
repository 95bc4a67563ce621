"""What the keys of a run hold while its log is gone through: as recorded, and as it would be with a change.

Rules of this module
- Nothing is looked up. One value for each key, not its history: of a key that stores updates, its last sum and the
  updates since.
- The virtual side holds only the keys that differ from the recorded one.
- Both sides answer as planning asks for a newest end (`plan.Newest`), so that what-if applies the rules of a live
  write and none of its own.
- A version keeps its recorded number, whatever happened to the versions before it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from refold_store import jsontext
from refold_store.errors import Damaged
from refold_store.events import document as decoded
from refold_store.fold import WHOLE, value_text
from refold_store.heads import KeyHead, RunHead
from refold_store.keys import Key

PENDING_MIN = 4096
"""Bytes of updates kept unfolded beside a smaller value; beyond the value's own size they are folded in."""


@dataclass(slots=True)
class Held:
    """What one key holds. `text` is the last whole value, `updates` what came since."""

    version: int = 0
    seq: int = 0
    writer: str | None = None
    absent: bool = True
    erased: bool = False
    """The value is not readable any more."""
    instead: bool = False
    """Made by a write that was refused when it was recorded: it has no version of its own."""
    text: bytes | None = None
    key: Key | None = None
    """The declaration that the updates fold by."""
    updates: tuple[bytes, ...] | list[bytes] = ()
    pending: int = 0
    """Bytes in `updates`."""

    def whole(self) -> bytes | None:
        """The value text; None if the key is absent, or its value was erased."""
        if self.updates:
            assert self.key is not None
            before = None if self.text is None else jsontext.decode(self.text)
            folded = self.key.fold_many(before, [jsontext.decode(update) for update in self.updates])
            self.text, self.updates, self.pending = jsontext.encode(folded), (), 0
        return self.text

    def moved(self, seq: int, writer: str | None, version: int) -> Held:
        """A copy, at another version. Updates are folded first, so that none are shared."""
        self.whole()
        return replace(self, seq=seq, writer=writer, version=version, instead=False)

    def equals(self, other: Held) -> bool:
        """Whether both hold the same value."""
        if self.absent or other.absent:
            return self.absent == other.absent
        return self.erased == other.erased and self.whole() == other.whole()


NOTHING = Held()
"""A key that was never written."""


class Recorded:
    """What each key holds by the record."""

    def __init__(self) -> None:
        self.keys: dict[str, Held] = {}

    def held(self, name: str) -> Held:
        """What a key holds."""
        return self.keys.get(name, NOTHING)

    def key(self, _head: RunHead, name: str) -> KeyHead:
        """A key's newest version, for planning."""
        return _as_head(self.held(name))

    def text(self, _head: RunHead, name: str, _key: Key) -> bytes | None:
        """A key's value text, for planning. An erased value counts as none."""
        return self.held(name).whole()

    def count_updates(self, _head: RunHead, _name: str, _at: KeyHead) -> None:
        """Nothing to count: `key` did."""

    def write(self, name: str, declared: Key | None, seq: int, writer: str | None, version: int, body: bytes) -> None:
        """Take in a `state.written`."""
        if type(body) is bytes and body.startswith(WHOLE):
            self.keys[name] = Held(version, seq, writer, absent=False, text=body[len(WHOLE) : -1])
            return
        found = decoded(body)
        if "value" in found:
            self.keys[name] = Held(version, seq, writer, absent=False, text=value_text(body))
            return
        if "update" not in found:
            raise Damaged(f"the write of {name!r} at seq {seq} holds neither value nor update", seq=seq)
        held = self.keys.get(name)
        if held is None or held.absent:
            held = self.keys[name] = Held()
        held.version, held.seq, held.writer, held.absent, held.key = version, seq, writer, False, declared
        update = jsontext.encode(found["update"])
        if not isinstance(held.updates, list):
            held.updates = []
        held.updates.append(update)
        held.pending += len(update)
        if held.pending > max(PENDING_MIN, len(held.text or b"")):
            held.whole()

    def delete(self, name: str, seq: int, writer: str | None, version: int) -> None:
        """Take in a `state.deleted`."""
        self.keys[name] = Held(version, seq, writer)

    def erase(self, name: str, declared: Key | None, seq: int, writer: str | None, version: int) -> None:
        """Take in a write whose body was erased: an update then counts as none, a whole value as unreadable."""
        held = self.keys.get(name)
        if declared is not None and declared.stores == "update":
            before = Held() if held is None else held
            self.keys[name] = before.moved(seq, writer, version)
        else:
            self.keys[name] = Held(version, seq, writer, absent=False, erased=True)


class Virtual:
    """What each key would hold: `differing` where that is not the record."""

    def __init__(self, recorded: Recorded) -> None:
        self.recorded = recorded
        self.differing: dict[str, Held] = {}

    def held(self, name: str) -> Held:
        """What a key would hold."""
        found = self.differing.get(name)
        return self.recorded.held(name) if found is None else found

    def key(self, _head: RunHead, name: str) -> KeyHead:
        """A key's newest version, for planning."""
        return _as_head(self.held(name))

    def text(self, _head: RunHead, name: str, _key: Key) -> bytes | None:
        """A key's value text, for planning. An erased value counts as none."""
        return self.held(name).whole()

    def count_updates(self, _head: RunHead, _name: str, _at: KeyHead) -> None:
        """Nothing to count: `key` did."""

    def settle(self, name: str, held: Held) -> bool:
        """Set what a key would hold, after the record took in its own event. Whether that is not the record."""
        real = self.recorded.held(name)
        if held.version == real.version and not held.instead and held.equals(real):
            self.differing.pop(name, None)
            return False
        self.differing[name] = held
        return True


def _as_head(held: Held) -> KeyHead:
    size = len(held.text or b"") + held.pending
    return KeyHead(held.version, held.seq, held.absent, held.writer, None, frame_bytes=size, since_bytes=0)


def document(held: Held, missing: Any) -> Any:
    """The value as JSON; `missing` if there is none to read."""
    text = held.whole()
    return missing if text is None else jsontext.decode(text)
