"""Impact and why: the damage a version did, forwards, and what a version rests on, backwards.

    impact(run, "routing", 1)      its readers, their later writes, the readers of those ..., in forks, too
    why(run, "settlement")         the write, its grounds, the reads behind them, the writes they saw ...

Rules of this module
- What a write rests on is decided by grounds.py: what it states, else what its actor had read before.
- Nothing is written, no value is loaded; one pass over the run (and over each fork that inherits the version).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from refold_replay.branched import came_from, went_to
from refold_replay.descent import Child, ancestors, archived_runs, children_of, copied_forks
from refold_replay.grounding import Backwards, Memory
from refold_replay.lineage import Address, Versions, home_of, home_versions, passing
from refold_replay.sketch import Draft, Pieces, RunNames, Sketch, identity, read_draft
from refold_replay.spreading import GROUNDS_MAX, Reached, Spread, identity_of
from refold_replay.steps import Declarations
from refold_replay.stretches import refs_of
from refold_replay.trace import Trace
from refold_store.backend import MAX_SEQ, Found
from refold_store.erased import check_archived
from refold_store.errors import NoSuchMoment, NoSuchVersion, UnknownKey
from refold_store.events import READ
from refold_store.looking import key_for_reading
from refold_store.run import Run

NODES_MAX = 10_000
"""Nodes of a trace, unless more are asked for."""
NAMES_MAX = 10
"""Readers or runs named in a note."""


@dataclass(slots=True)
class Impact:
    """What rests on one version. The counts are of everything reached, also beyond the nodes of the trace."""

    key: str
    version: int
    trace: Trace
    reads: int = 0
    """Reads of it or of what rests on it (pruned ones counted one by one)."""
    writes: int = 0
    """Writes and deletes that rest on it; the version itself is not counted."""
    agents: list[str] = field(default_factory=list)
    """Who read or wrote these, in byte order."""
    runs: list[str] = field(default_factory=list)
    """Runs in which these lie: the run first, then forks as they were reached."""
    forks: list[str] = field(default_factory=list)
    """All forks that inherit the version, also those in which nothing rests on it."""
    notes: list[str] = field(default_factory=list)
    """What to know about the answer, one sentence each."""


@dataclass(frozen=True, slots=True)
class Reader:
    """Somebody who read a key: how often, and between which seqs."""

    name: str
    reads: int
    first_seq: int
    last_seq: int


@dataclass(slots=True)
class Why:
    """What one version rests on. A key nobody wrote has version 0, and its trace holds those who read it as absent."""

    key: str
    version: int
    trace: Trace
    written: bool
    """Whether somebody wrote this version: false of a key never written, and of an initial value."""
    initial: bool = False
    """Whether it is an initial value, set when the run was opened or imported."""
    readers: list[Reader] = field(default_factory=list)
    """Where nobody wrote it: who read it, in byte order."""
    reads: int = 0
    """Reads among the nodes, the root's own not meant."""
    writes: int = 0
    """Writes among the nodes besides the root."""
    effects: int = 0
    agents: list[str] = field(default_factory=list)
    """Who read, wrote or called, in byte order."""
    notes: list[str] = field(default_factory=list)


def impact(run: Run, key: str, version: int, *, limit: int | None = NODES_MAX) -> Impact:
    """Everything that rests on a version of a key, in the order of the log, in this run and in forks that inherit it.

    `limit` bounds the nodes; None: all. Raises NoSuchRun, UnknownKey, NoSuchMoment (never written), NoSuchVersion.
    """
    head = _open(run)
    address = _address(run, key)
    home, home_id, found = _made(run, address, version)
    reached = Reached(Sketch(run, limit))
    actor = run._backend.text_of(found.actor) or ""
    scope = "run" if isinstance(address, str) else address[0]
    holder = Pieces(home).holder(found.seq) if scope == "run" else home_id
    root = Draft("write", holder, scope, found.seq, found.kind, actor, 0, key, version)
    spread = Spread(reached, Versions(run))
    spread.begin(address, version, reached.sketch.node(identity(holder, found.seq), root))
    after = found.seq if scope == "run" else 0
    if isinstance(address, str):
        root.turn = next((one.turn for one in list(passing(run, after=found.seq - 1, upto=found.seq))), None)
        spread.know(address, version, found.seq)
    forks = _spread(run, spread, after, head)
    answer = Impact(key, version, reached.sketch.trace(run, head, rooted=True), reached.reads, reached.writes)
    answer.agents = sorted(reached.agents, key=str.encode)
    names = RunNames(run)
    own = run._run_id()
    reaching = sorted(reached.runs, key=lambda number: number != own)
    answer.runs = [names[number] for number in reaching]
    answer.forks = forks
    answer.notes = _impact_notes(run, key, scope, holder, names)
    if scope == "run":
        answer.notes += went_to(run, key, version)
    return answer


def _spread(run: Run, spread: Spread, after: int, head: int) -> list[str]:
    """Through the log of a run up to its head, then through those of its forks.

    Returns the forks that inherit what spreads.
    """
    copies = {} if run.scope else copied_forks(run)
    forks: list[str] = []
    met = {run._run_id()}
    waiting = [(run, spread, after)]
    while waiting:
        one, spread, after = waiting.pop()
        children = [child for child in children_of(one, copies) if child.at >= after and child.number not in met]
        met.update(child.number for child in children)
        if one is not run:
            forks.append(one.name)
        parted = _through(one, spread, after, head if one is run else MAX_SEQ, children)
        waiting += [(run.store.run(child.name, run.tenant), reached, child.at) for child, reached in reversed(parted)]
    return forks


def _through(run: Run, before: Spread, after: int, upto: int, children: list[Child]) -> list[tuple[Child, Spread]]:
    """Through one log. Returns what is reached at each fork's place; forks of one place share it."""
    spread = before.copy()
    waiting = sorted(children, reverse=True)
    parted: list[tuple[Child, Spread]] = []
    pieces, folds = Pieces(run), _folds(run)
    for item in passing(run, after=after, upto=upto):
        if waiting and waiting[-1].at < item.seq:
            reached = spread.copy()
            while waiting and waiting[-1].at < item.seq:
                parted.append((waiting.pop(), reached))
        spread.take(item, pieces, folds)
    return parted + [(child, spread) for child in reversed(waiting)]


def why(run: Run, key: str, version: int | None = None, *, limit: int | None = NODES_MAX) -> Why:
    """Everything a version of a key rests on, nearest first. `version` None: the newest.

    A key that was never written is no error unless a version is asked for: the answer names who read it as absent.
    `limit` bounds the nodes; None: all. Raises NoSuchRun, UnknownKey, NoSuchMoment (never written), NoSuchVersion.
    """
    head = _open(run)
    address = _address(run, key)
    if version is None:
        version = len(home_versions(run, address))
        if not version:
            return _unwritten(run, key, address, head, limit)
    _home, _home_id, found = _made(run, address, version)
    if not isinstance(address, str):
        walk = Backwards(run, Memory(run, ()), _folds(run), limit)
        walk.alone(address, version)
        note = f"key {key!r} has scope {address[0]!r}: what its writer had read is not in the log of run {run.name!r}"
        return _why(walk.sketch, run, key, version, head, [note])
    memory = Memory(run, passing(run, upto=found.seq))
    walk = Backwards(run, memory, _folds(run), limit)
    walk.walk(memory.writes[found.seq])
    answer = _why(walk.sketch, run, key, version, head, [])
    if refs_of(found.refs).get("initial") is True:
        by = run._backend.text_of(found.actor)
        _nobody(answer, run, f"nobody wrote {key!r}: version {version} is an initial value, set by {by!r}")
    answer.notes += came_from(refs_of(found.refs), key)
    return answer


def _why(sketch: Sketch, run: Run, key: str, version: int, head: int, notes: list[str]) -> Why:
    trace = sketch.trace(run, head, rooted=version > 0)
    answer = Why(key, version, trace, version > 0, notes=notes)
    others = [node for node in trace.nodes.values() if node.id != trace.root]
    answer.reads = sum(node.count for node in others if node.kind == "read")
    answer.writes = sum(node.kind == "write" for node in others)
    answer.effects = sum(node.kind == "effect" for node in others)
    answer.agents = sorted({node.actor for node in trace.nodes.values()}, key=str.encode)
    if any(node.more for node in others) or (trace.root is not None and trace.nodes[trace.root].more):
        notes.append(f"of a write that states no grounds, the nearest {GROUNDS_MAX} are told; `more` counts the others")
    return answer


def _unwritten(run: Run, key: str, address: Address, head: int, limit: int | None) -> Why:
    """A key nobody wrote: those who read it as absent."""
    sketch, pieces = Sketch(run, limit), Pieces(run)
    for item in passing(run, upto=head):
        if item.kind == READ and item.address == address and item.reads:
            holder = pieces.holder(item.seq)
            name = (*identity_of(item, holder), item.last_seq, item.version)
            sketch.node(name, read_draft(item, holder, 0, 0))
    answer = _why(sketch, run, key, 0, head, [])
    _nobody(answer, run, f"nobody wrote {key!r} in run {run.name!r}")
    return answer


def _nobody(answer: Why, run: Run, note: str) -> None:
    """Says that a version was written by nobody, and who read it."""
    found: dict[str, Reader] = {}
    for one in run.readers(answer.key, version=answer.version):
        known, last = found.get(one.reader), max(one.seq, one.last_seq)
        if known is None:
            found[one.reader] = Reader(one.reader, one.count, one.seq, last)
        else:
            found[one.reader] = Reader(one.reader, known.reads + one.count, known.first_seq, max(last, known.last_seq))
    answer.written, answer.initial = False, answer.version > 0
    answer.readers = sorted(found.values(), key=lambda one: one.name.encode())
    answer.notes.insert(0, f"{note}; read by {_listed([one.name for one in answer.readers]) or 'nobody'}")


# --- what both need ------------------------------------------------------------------------------


def _open(run: Run) -> int:
    """The newest seq of a run, which is on record and not archived."""
    head = run.info().head_seq
    check_archived(run)
    return head


def _address(run: Run, key: str) -> Address:
    declared = key_for_reading(run, key)
    return key if run.scope or declared.scope == "run" else (declared.scope, key)


def _made(run: Run, address: Address, version: int) -> tuple[Run, int, Found]:
    """The run that holds a version, and the state event that made it."""
    home, name = home_of(run, address)
    backend, run_id, number = run._backend, home._run_id(), run._backend.id_of(name)
    newest = None if run_id is None or number is None else backend.newest(run_id, number)
    if newest is None or run_id is None or number is None:
        raise NoSuchMoment(f"key {name!r} was never written in run {run.name!r}", moment=f"{name}@{version}")
    found = backend.version(run_id, number, version) if 0 < version <= newest.version else None
    if found is None:
        raise NoSuchVersion(key=name, version=version, newest=newest.version)
    return home, run_id, found


def _folds(run: Run) -> Callable[[str, int], bool]:
    """Whether a key built on its version before, when it was written."""
    declarations = Declarations(run)

    def folds(key: str, seq: int) -> bool:
        try:
            return declarations.key(key, seq).depends_on_previous
        except UnknownKey:
            return False

    return folds


def _impact_notes(run: Run, key: str, scope: str, holder: int, names: RunNames) -> list[str]:
    notes = []
    if scope != "run":
        notes.append(f"key {key!r} has scope {scope!r}: this is what it did in run {run.name!r} and its forks only")
    elif holder != run._run_id():
        origin = names[holder]
        notes.append(
            f"{run.name!r} is a fork and inherits this version from {origin!r}: what {origin!r} and its other forks "
            f"made of it is told by the impact of {origin!r}"
        )
    before = ancestors(run)
    if not run.scope and (away := [name for name in archived_runs(run) if name not in before]):
        notes.append(f"archived and not looked at, forks of {run.name!r} may be among them: {_listed(away)}")
    return notes


def _listed(names: list[str]) -> str:
    """Names; of many the first and how many more."""
    left = len(names) - NAMES_MAX
    return ", ".join(names[:NAMES_MAX]) + (f" and {left:,} more" if left > 0 else "")
