"""Lint: shared state that smells. One pass over a run's reads and writes, no values.

    one-reader         a key only one agent reads: a handoff field
    never-read         a key that was written and never read
    reads-too-much     an agent that reads more keys than it should
    unread-write       versions nobody read before the next one replaced them
    read-before-write  reads of a key that was not there yet
    superseded         writes that rest on a version which somebody had replaced before

Rules of this module
- A run is judged by itself: a fork with the past it inherits, without what other forks did.
- A write that states to rest on a version counts as a read of it by its actor, recorded or not.
- A key of another scope is read from other runs, too: of it only reads-too-much speaks.
- What an agent replaced itself, it knew: only another agent's version supersedes.
- One finding for each key, agent, or agent and key it wrote, however often it happened; `seqs` has every place.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, Literal

from refold_replay.grounds import GroundKind, Grounds
from refold_replay.lineage import Address, Item, passing
from refold_replay.steps import Declarations
from refold_store.erased import check_archived
from refold_store.errors import ConfigError, UnknownKey
from refold_store.events import DELETED, READ, WRITTEN
from refold_store.run import Run

Code = Literal["one-reader", "never-read", "reads-too-much", "unread-write", "read-before-write", "superseded"]
CODES: Final[tuple[Code, ...]] = (
    "one-reader",
    "never-read",
    "reads-too-much",
    "unread-write",
    "read-before-write",
    "superseded",
)
KEYS_MAX = 7
"""Keys one agent may read, unless more are allowed."""
NAMED = 5
"""Names one message lists."""
REPLACED_MAX = 50
"""Replaced versions looked at to find one that was replaced before a write's own transaction."""


@dataclass(frozen=True, slots=True)
class Lint:
    """One finding."""

    code: Code
    run: str
    key: str | None
    """The key it is about; of `one-reader` and `never-read` as declared (a family is one); of `superseded` the key that
    was written. None for `reads-too-much`."""
    agent: str | None
    """The one reader, or who read too much, or who wrote. None where several are meant, or nobody."""
    message: str
    """One sentence. Names stand in it as they are."""
    seqs: list[int]
    """Where: the reads of `one-reader` and `read-before-write`, the writes of the others, and of `reads-too-much` the
    first read of each key. Of pruned reads the first of each line."""


def lint(run: Run, *, keys_max: int = KEYS_MAX, only: Collection[str] = ()) -> list[Lint]:
    """What smells in a run, by code, in the order of CODES. `only` these codes; none: all.

    Raises NoSuchRun, RunArchived; ConfigError for a code that does not exist.
    """
    unknown = sorted(set(only) - set(CODES))
    if unknown:
        raise ConfigError(f"no lint code {unknown[0]!r}: there are {', '.join(CODES)}")
    run.info()
    check_archived(run)
    watch = _Watch(run)
    for item in passing(run):
        watch.take(item)
    judges = {
        "one-reader": _one_reader,
        "never-read": _never_read,
        "unread-write": _unread_writes,
        "read-before-write": _read_before_write,
        "superseded": _superseded,
    }
    found: list[Lint] = []
    for code in CODES:
        if only and code not in only:
            continue
        found += _reads_too_much(watch, keys_max) if code == "reads-too-much" else judges[code](watch)
    return found


@dataclass(slots=True)
class _Seen:
    """What happened to one key of the run."""

    written: list[int] = field(default_factory=list)
    """The seqs of its versions, 1 first."""
    writers: dict[str, None] = field(default_factory=dict)
    deletes: set[int] = field(default_factory=set)
    """Versions that are deletes."""
    readers: dict[str, list[int]] = field(default_factory=dict)
    """Who read it, and where; or stated to rest on it."""
    versions_read: set[int] = field(default_factory=set)
    absent: dict[str, list[int]] = field(default_factory=dict)
    """Who read it while it was not there, and where."""
    unread: list[int] = field(default_factory=list)
    """Seqs of the versions that were replaced unread."""
    newest_of: dict[str, int] = field(default_factory=dict)
    """By writer: its newest version."""

    def replaced(self, version: int, agent: str) -> tuple[int, str]:
        """The newest version of another agent after one, and that agent; 0 if there is none."""
        found = ((newest, by) for by, newest in self.newest_of.items() if newest > version and by != agent)
        return max(found, default=(0, ""))


@dataclass(slots=True)
class _Late:
    """Writes that rest on a replaced version: the first in full, of the others where."""

    key: str
    version: int
    made: int
    """The version of the first such write."""
    kind: GroundKind
    by: str
    newer: int
    others: int
    """How many more replaced versions that write rests on."""
    seqs: list[int] = field(default_factory=list)


class _Watch:
    """One pass."""

    def __init__(self, run: Run) -> None:
        self.run = run.name
        self.keys: dict[str, _Seen] = {}
        self.first_reads: dict[str, dict[Address, int]] = {}
        """By agent: each key it read, and where it did so first."""
        self.late: dict[tuple[str, str], _Late] = {}
        """By agent and key written."""
        self._replaced: dict[str, dict[str, tuple[int, str]]] = {}
        """By agent: the keys of which another one has replaced what it read last; by which version, and by whom."""
        self._grounds: Grounds[str, str] = Grounds()
        self._declarations = Declarations(run)

    def take(self, item: Item) -> None:
        """The next item of the log."""
        if item.kind == READ:
            self._read(item)
        elif item.kind <= DELETED:
            self._written(item)

    def _seen(self, key: str) -> _Seen:
        seen = self.keys.get(key)
        if seen is None:
            seen = self.keys[key] = _Seen()
        return seen

    def _read(self, item: Item) -> None:
        key, actor = item.address, item.actor
        if item.reads:
            self.first_reads.setdefault(actor, {}).setdefault(key, item.seq)
        if not isinstance(key, str):
            return
        seen = self._seen(key)
        if item.reads:
            self._used(actor, seen, item.version, item.seq)
        if self._grounds.read(actor, key, item.version, seq=item.seq, turn=item.turn):
            newer = seen.replaced(item.version, actor)
            replaced = self._replaced.setdefault(actor, {})
            replaced.pop(key, None)
            if newer[0]:
                replaced[key] = newer

    def _used(self, actor: str, seen: _Seen, version: int, seq: int) -> None:
        seen.readers.setdefault(actor, []).append(seq)
        if version:
            seen.versions_read.add(version)
        else:
            seen.absent.setdefault(actor, []).append(seq)

    def _written(self, item: Item) -> None:
        if item.stated is None:
            self._rests_on_reads(item)
        else:
            self._rests_on_stated(item)
        seen = self._seen(item.key)
        last = len(seen.written)
        if last and last not in seen.versions_read and last not in seen.deletes and not self._folds(item):
            seen.unread.append(seen.written[-1])
        seen.written.append(item.seq)
        seen.writers[item.actor] = None
        seen.newest_of[item.actor] = last + 1
        if item.kind == DELETED:
            seen.deletes.add(last + 1)
        for reader in seen.readers:
            if reader != item.actor and self._grounds.has_read(reader, item.key):
                replaced = self._replaced.setdefault(reader, {})
                replaced.pop(item.key, None)  # the newest goes last
                replaced[item.key] = (last + 1, item.actor)

    def _rests_on_reads(self, item: Item) -> None:
        """What was replaced last is told; the others are counted."""
        replaced = self._replaced.get(item.actor)
        if not replaced:
            return
        for key in islice(reversed(replaced), REPLACED_MAX):
            if self._before(item, key, replaced[key][0]):
                self._tell(item, key, None, replaced[key], len(replaced) - 1)
                return

    def _rests_on_stated(self, item: Item) -> None:
        late: list[tuple[str, int, tuple[int, str]]] = []
        for key, version in item.stated or ():
            if not isinstance(key, str):
                continue
            seen = self._seen(key)
            if version and item.actor not in seen.readers:
                self._used(item.actor, seen, version, item.seq)
            seen.versions_read.add(version)
            newer = seen.replaced(version, item.actor)
            if newer[0] and self._before(item, key, newer[0]):
                late.append((key, version, newer))
        if late:
            key, version, newer = late[0]
            self._tell(item, key, version, newer, len(late) - 1)

    def _before(self, item: Item, key: str, version: int) -> bool:
        """Whether a version was there before the write's own transaction began."""
        return self.keys[key].written[version - 1] < item.unit

    def _tell(self, item: Item, key: str, stated: int | None, newer: tuple[int, str], others: int) -> None:
        late = self.late.get((item.actor, item.key))
        if late is None:
            on = None if stated is None else [(key, stated)]
            [ground] = self._grounds.of(item.actor, item.key, 1, turn=item.turn, stated=on, among=[key])
            late = _Late(key, ground.version, item.version, ground.kind, newer[1], newer[0], others)
            self.late[item.actor, item.key] = late
        late.seqs.append(item.seq)

    def declared(self, key: str, seq: int) -> str:
        """The name under which a key is declared: its own, or that of its family."""
        try:
            return self._declarations.key(key, seq).name
        except UnknownKey:
            return key

    def _folds(self, item: Item) -> bool:
        """Whether the next version was made from the one before."""
        if item.kind != WRITTEN:
            return False
        try:
            return self._declarations.key(item.key, item.seq).depends_on_previous
        except UnknownKey:
            return False


# --- what each code means ------------------------------------------------------------------------


def _one_reader(watch: _Watch) -> Iterator[Lint]:
    for name, one in _fields(watch).items():
        if len(one.readers) != 1:
            continue
        [(reader, seqs)] = one.readers.items()
        if set(one.writers) == {reader}:
            message = f"only {reader} reads {one.told}, and only {reader} writes it: it is not shared"
        else:
            message = f"only {reader} reads {one.told}: a handoff field"
        yield Lint("one-reader", watch.run, name, reader, message, sorted(seqs))


def _never_read(watch: _Watch) -> Iterator[Lint]:
    for name, one in _fields(watch).items():
        if not one.readers:
            times = _times(len(one.written))
            message = f"{one.told} was written {times} by {_listed(one.writers)} and never read"
            yield Lint("never-read", watch.run, name, None, message, sorted(one.written))


@dataclass(slots=True)
class _Field:
    """A key as declared: a key, or a family with all its members that were written."""

    name: str
    members: int = 0
    written: list[int] = field(default_factory=list)
    writers: dict[str, None] = field(default_factory=dict)
    readers: dict[str, list[int]] = field(default_factory=dict)

    @property
    def told(self) -> str:
        return self.name if self.members == 1 else f"{self.name} ({self.members:,} keys)"


def _fields(watch: _Watch) -> dict[str, _Field]:
    """The keys that were written, by their declared name."""
    fields: dict[str, _Field] = {}
    for key, seen in watch.keys.items():
        if not seen.written:
            continue
        name = watch.declared(key, seen.written[0])
        found = fields.setdefault(name, _Field(name))
        found.members += 1
        found.written += seen.written
        found.writers |= seen.writers
        for reader, seqs in seen.readers.items():
            found.readers.setdefault(reader, []).extend(seqs)
    return fields


def _reads_too_much(watch: _Watch, keys_max: int) -> Iterator[Lint]:
    for agent, first in watch.first_reads.items():
        if len(first) > keys_max:
            message = f"{agent} reads {len(first):,} keys, more than {keys_max:,}"
            yield Lint("reads-too-much", watch.run, None, agent, message, list(first.values()))


def _unread_writes(watch: _Watch) -> Iterator[Lint]:
    """A key that nobody reads at all is told by `never-read`."""
    for key, seen in watch.keys.items():
        if seen.unread and seen.readers:
            count, versions = len(seen.unread), len(seen.written)
            was = "was" if count == 1 else "were"
            message = f"{count:,} of {versions:,} versions of {key} {was} replaced before anybody read them"
            yield Lint("unread-write", watch.run, key, None, message, seen.unread)


def _read_before_write(watch: _Watch) -> Iterator[Lint]:
    for key, seen in watch.keys.items():
        if not seen.absent:
            continue
        seqs = sorted(seq for places in seen.absent.values() for seq in places)
        when = f"it was first written at seq {seen.written[0]}" if seen.written else "nobody wrote it"
        agent = next(iter(seen.absent)) if len(seen.absent) == 1 else None
        message = f"{_listed(seen.absent)} read {key} when it was absent: {when}"
        yield Lint("read-before-write", watch.run, key, agent, message, seqs)


def _superseded(watch: _Watch) -> Iterator[Lint]:
    for (agent, key), late in watch.late.items():
        old = f"{late.key}@{late.version}" if late.version else f"the absence of {late.key}"
        message = (
            f"{agent} wrote {key}@{late.made} on {old} ({late.kind}), "
            f"after {late.by} had written {late.key}@{late.newer}"
        )
        if late.others:
            message += f", and on {late.others:,} more replaced version{'s' if late.others > 1 else ''}"
        if len(late.seqs) > 1:
            message += f"; {len(late.seqs) - 1:,} more like it"
        yield Lint("superseded", watch.run, key, agent, message, late.seqs)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"


def _listed(names: Iterable[str]) -> str:
    """Names, each once, in order; of many the first and how many more."""
    each = list(dict.fromkeys(names))
    more = f" and {len(each) - NAMED:,} more" if len(each) > NAMED else ""
    return ", ".join(each[:NAMED]) + more
