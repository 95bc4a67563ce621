"""Explain: what did a reader read of a key, was each read current, and what did it write on the strength of it?

Rules of this module
- `seen_seq` decides what was current, not where the read event stands in the log: it may land there later.
- So stale and wrong are told apart: a current read of a wrong value points to the value's writer.
- A key of another scope has its versions in another log: whether one came before a use is not known here.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from datetime import datetime

from refold_replay.grounds import GroundKind, Grounds
from refold_replay.lineage import Address, Item, home_of, home_versions, passing, scopes
from refold_replay.sketch import Pieces, look_up
from refold_replay.trace import Status
from refold_store.erased import check_archived
from refold_store.events import DELETED, READ, WRITTEN
from refold_store.looking import key_for_reading
from refold_store.names import check_name
from refold_store.reads import as_time
from refold_store.run import Run


@dataclass(frozen=True, slots=True)
class Newer:
    """The version that made another one old."""

    version: int
    seq: int
    writer: str


@dataclass(frozen=True, slots=True)
class Use:
    """A write that rests on a read."""

    seq: int
    key: str
    version: int
    deleted: bool
    turn: int | None
    kind: GroundKind
    """`stated`, `direct` or `carried`."""
    superseded_by: Newer | None
    """The newest version of the key that was read, if it came after the read and before this write."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One read of the key by the reader, and the writes that rest on it."""

    seq: int
    """Of pruned reads the first one's; `count` of them, up to `last_seq`."""
    recorded_at: datetime | None
    version: int
    """0: the key was absent."""
    seen_seq: int
    newest: int
    """The newest version at `seen_seq`."""
    turn: int | None
    status: Status
    newer: Newer | None
    """What made it stale, or superseded it before the first such use."""
    writer: str | None
    """Who wrote the version that was read."""
    written_seq: int | None
    """The seq of that write."""
    verdict: str
    """The status in a sentence."""
    uses: list[Use] = field(default_factory=list)
    count: int = 1
    last_seq: int = 0


@dataclass(frozen=True, slots=True)
class Explanation:
    """Everything one reader had to do with one key."""

    run: str
    tenant: str
    reader: str
    key: str
    scope: str
    """`run`, or the scope whose run holds the key."""
    seq: int
    """The newest seq of the run: the answer is as of it."""
    readings: list[Reading]
    unread: list[Use]
    """Writes that state to rest on a version of the key which the reader is not on record as having read."""
    verdict: str
    """One sentence about all of it."""


def explain(run: Run, reader: str, key: str) -> Explanation:
    """What a reader read of a key, in the order of the log, and what it wrote on the strength of it.

    No reads are no error: the verdict says so. Raises NoSuchRun, RunArchived, UnknownKey.
    """
    check_name("reader", reader)
    head = run.info().head_seq
    check_archived(run)
    key_for_reading(run, key)  # raises UnknownKey
    scope = scopes(run)(key)
    address: Address = key if scope == "run" else (scope, key)
    told = _Told(run, reader, address)
    for item in passing(run, upto=head):
        told.take(item)
    readings = told.readings()
    verdict = _verdict(reader, key, readings, told.unread)
    return Explanation(run.name, run.tenant, reader, key, scope, head, readings, told.unread, verdict)


@dataclass(slots=True)
class _Seen:
    """A read in the making."""

    item: Item
    newest: int
    uses: list[Use] = field(default_factory=list)


class _Told:
    """One reader and one key as the log goes by."""

    def __init__(self, run: Run, reader: str, address: Address) -> None:
        self._run = run
        self._reader = reader
        self._address = address
        self._grounds: Grounds[str, Address] = Grounds()
        self._seen: dict[int, _Seen] = {}
        """By the seq of the read; a line of pruned reads by its first and by its last."""
        self._last: dict[int, _Seen] = {}
        """By version: the last read of it."""
        self._seqs = home_versions(run, address)
        self._writers: dict[int, str] = {}
        self.unread: list[Use] = []

    def take(self, item: Item) -> None:
        """The next item of the log."""
        if item.actor != self._reader:
            return
        if item.kind == READ and item.address == self._address:
            self._read(item)
        elif item.kind in (WRITTEN, DELETED):
            self._write(item)

    def _read(self, item: Item) -> None:
        if item.reads:
            newest = bisect_right(self._seqs, item.seen_seq) if item.newest is None else item.newest
            seen = _Seen(item, max(newest, item.version))
        else:
            firsts = [one for one in self._seen.values() if one.item.last_seq == item.seq]
            seen = next((one for one in firsts if one.item.version == item.version), _Seen(item, item.version))
        self._seen[item.seq] = self._last[item.version] = seen
        self._grounds.read(item.actor, self._address, item.version, seq=item.seq, turn=item.turn)

    def _write(self, item: Item) -> None:
        if item.stated is not None:
            versions = [version for address, version in item.stated if address == self._address]
            for version in versions:
                seen = self._last.get(version)
                (self.unread if seen is None else seen.uses).append(self._use(item, "stated", version))
            return
        for ground in self._grounds.of(item.actor, item.key, item.version, turn=item.turn):
            if ground.read_seq is not None:
                self._seen[ground.read_seq].uses.append(self._use(item, ground.kind, ground.version))

    def _use(self, item: Item, kind: GroundKind, version: int) -> Use:
        newest = bisect_left(self._seqs, item.unit) if isinstance(self._address, str) else 0
        newer = self._newer(newest) if newest > version else None
        return Use(item.seq, item.key, item.version, item.kind == DELETED, item.turn, kind, newer)

    def _newer(self, version: int) -> Newer | None:
        writer = self._writer(version)
        return None if writer is None else Newer(version, self._seqs[version - 1], writer)

    def _writer(self, version: int) -> str | None:
        """Who made a version of the key."""
        if not 0 < version <= len(self._seqs):
            return None
        if version not in self._writers:
            home, name = home_of(self._run, self._address)
            backend, home_id, number = home._backend, home._run_id(), home._backend.id_of(name)
            found = None if home_id is None or number is None else backend.version(home_id, number, version)
            self._writers[version] = "" if found is None else backend.text_of(found.actor) or ""
        return self._writers[version]

    def readings(self) -> list[Reading]:
        """Every read, with its status."""
        name = home_of(self._run, self._address)[1]
        whens: dict[int, int] = {}
        for holder, seqs in Pieces(self._run).parted(self._seen).items():
            whens |= {seq: detail.recorded_at for seq, detail in look_up(self._run, holder, seqs)}
        found = {id(seen): self._reading(name, seen, whens.get(seen.item.seq)) for seen in self._seen.values()}
        return list(found.values())

    def _reading(self, key: str, seen: _Seen, when: int | None) -> Reading:
        item = seen.item
        newer: Newer | None = None
        status: Status = "current"
        if seen.newest > item.version:
            status, newer = "stale", self._newer(seen.newest)
        else:
            newer = next((use.superseded_by for use in seen.uses if use.superseded_by is not None), None)
            status = "current" if newer is None else "superseded before use"
        writer = self._writer(item.version)
        written_seq = None if writer is None else self._seqs[item.version - 1]
        verdict = _sentence(key, seen, status, newer, writer, written_seq)
        return Reading(
            item.seq, None if when is None else as_time(when), item.version, item.seen_seq, seen.newest, item.turn,
            status, newer, writer, written_seq, verdict, seen.uses, item.reads, item.last_seq,
        )  # fmt: skip


def _sentence(
    key: str, seen: _Seen, status: Status, newer: Newer | None, writer: str | None, written_seq: int | None
) -> str:
    """The status of one read in a sentence."""
    version = seen.item.version
    what = f"{key}@{version}" if version else f"{key} (absent)"
    after = "" if newer is None else f"{key}@{newer.version} (seq {newer.seq}, by {newer.writer})"
    if status == "stale":
        return f"stale: read {what} when {after or f'{key}@{seen.newest}'} was current"
    if status == "superseded before use":
        use = next(use for use in seen.uses if use.superseded_by is not None)
        return f"superseded before use: {after} came after this read of {what} and before {_made(use)}"
    if not version:
        return f"current at the time: {key} was absent"
    where = f"the writer of {what} is where to look: {writer}, seq {written_seq}"
    return f"current at the time: if the value was wrong, {where}"


def _made(use: Use) -> str:
    return f"{use.key}@{use.version} (seq {use.seq})"


def _verdict(reader: str, key: str, readings: list[Reading], unread: list[Use]) -> str:
    """All of it in one sentence."""
    if not readings:
        stated = f", though {_made(unread[0])} states to rest on it" if unread else ""
        return f"{reader} is not on record as having read {key}{stated}"
    total = sum(one.count for one in readings)
    reads = f"{reader} read {key} {'once' if total == 1 else f'{total} times'}"
    bad = [one for one in readings if one.status != "current"]
    if not bad:
        last = readings[-1].verdict
        return f"{reads}: {last}" if len(readings) == 1 else f"{reads}, each time what was current; the last: {last}"
    used = [one for one in bad if one.uses]
    worst = (used or bad)[0]
    if len(readings) == 1:
        return f"{reads}: {worst.verdict}"
    count = sum(one.count for one in bad)
    return f"{reads}, {count} of them stale or superseded before use; seq {worst.seq}: {worst.verdict}"
