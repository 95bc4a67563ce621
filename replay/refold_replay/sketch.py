"""A trace in the making: nodes and edges as a walk meets them, then filled in from the log.

Rules of this module
- At most `limit` nodes are kept; the others are counted.
- What a walk does not need (times, bases, tools) is looked up at the end, for the nodes that are kept, DETAILS rows at
  a time; of a body only the basis or the tool's name stays.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from refold_replay.lineage import TOOL_RETURNED, Address, Item
from refold_replay.stretches import refs_of
from refold_replay.trace import Edge, EdgeKind, Node, NodeKind, Status, Trace
from refold_store import jsontext
from refold_store.errors import UnknownKey
from refold_store.events import DELETED, KINDS, READ
from refold_store.fold import basis_of
from refold_store.looking import sensitive_since
from refold_store.reads import as_time
from refold_store.run import Run

DETAILS = 500
"""Rows looked up at once."""

_COLUMNS = "recorded_at, kind, owner, refs, commitment IS NOT NULL, "
_COLUMNS += f"CASE WHEN kind <= {DELETED} OR kind = {TOOL_RETURNED} THEN body END"
_SQL: Final = {
    "sqlite": (
        f"SELECT pos & 4294967295, {_COLUMNS} FROM events WHERE pos IN (SELECT ?1 << 32 | value FROM json_each(?2))"
    ),
    "postgresql": (
        f"SELECT seq, {_COLUMNS} FROM events WHERE run = $1 "
        "AND seq = ANY (ARRAY(SELECT x::int8 FROM json_array_elements_text($2::json) j(x)))"
    ),
}
"""Parameters: run, its seqs as JSON."""


@dataclass(slots=True)
class Draft:
    """A node without what is looked up at the end."""

    kind: NodeKind
    holder: int
    """The id of the run that holds the event."""
    scope: str
    seq: int
    event: int
    actor: str
    depth: int
    key: str | None = None
    version: int | None = None
    turn: int | None = None
    seen_seq: int | None = None
    status: Status | None = None
    newest: int | None = None
    count: int = 0
    last_seq: int = 0
    more: int = 0


@dataclass(frozen=True, slots=True)
class Detail:
    """What the log says of an event besides."""

    recorded_at: int
    owner: int | None
    basis: str | None
    tool: str | None
    source_seq: int | None
    cause: int | None
    erased: bool


class Pieces:
    """Which run holds a seq of a log: a fork's past lies in its ancestors."""

    def __init__(self, run: Run) -> None:
        run_id = run._run_id()
        found = [] if run_id is None else run._backend.pieces(run_id)
        self._runs = [piece for piece, _first, _last in found]
        self._firsts = [first for _piece, first, _last in found]

    def holder(self, seq: int) -> int:
        """The id of the run that holds a seq."""
        return self._runs[max(0, bisect_right(self._firsts, seq) - 1)]

    def parted(self, seqs: Iterable[int]) -> dict[int, list[int]]:
        """Seqs by the run that holds them."""
        found: dict[int, list[int]] = {}
        for seq in seqs:
            found.setdefault(self.holder(seq), []).append(seq)
        return found


class Sketch:
    """Nodes and edges so far. Nodes are known by their place in the order they were met."""

    def __init__(self, run: Run, limit: int | None) -> None:
        self._run = run
        self._limit = limit
        self._known: dict[Hashable, int | None] = {}
        self._edges: dict[tuple[int, int, EdgeKind], None] = {}
        self._details: dict[tuple[int, int], Detail] = {}
        self.nodes: list[Draft] = []
        self.left = 0

    def known(self, identity: Hashable) -> bool:
        """Whether a node was met before."""
        return identity in self._known

    @property
    def full(self) -> bool:
        """Whether it keeps no more nodes."""
        return self._limit is not None and len(self.nodes) >= self._limit

    def skip(self, identity: Hashable) -> None:
        """One node too many: counted, not kept."""
        if identity not in self._known:
            self._known[identity] = None
            self.left += 1

    def node(self, identity: Hashable, draft: Draft) -> int | None:
        """The place of a node, put there now if new; None if it is one too many."""
        if identity in self._known:
            return self._known[identity]
        if self.full:
            self.skip(identity)
            return None
        place = self._known[identity] = len(self.nodes)
        self.nodes.append(draft)
        return place

    def edge(self, source: int | None, target: int | None, kind: EdgeKind) -> None:
        """`target` rests on `source`, if both are kept."""
        if source is not None and target is not None:
            self._edges[source, target, kind] = None

    def superseded(self, read: int | None, version: int, newest: int) -> None:
        """A write rests on a read, when `newest` was the newest version."""
        if read is not None and newest > version and self.nodes[read].status == "current":
            self.nodes[read].status = "superseded before use"

    def trace(self, run: Run, seq: int, rooted: bool) -> Trace:
        """All of it, filled in. The root is the first node."""
        details = self.details()
        sensitive, names = _Sensitive(self._run), RunNames(self._run)
        found = Trace(run.name, run.tenant, seq, "n1" if rooted and self.nodes else None, left=self.left)
        for place, draft in enumerate(self.nodes):
            id = f"n{place + 1}"
            detail = details.get((draft.holder, draft.seq))
            found.nodes[id] = self._node(id, draft, detail, names[draft.holder], sensitive)
        found.edges = [Edge(f"n{source + 1}", f"n{target + 1}", kind) for source, target, kind in self._edges]
        return found

    def _node(self, id: str, draft: Draft, detail: Detail | None, run: str, sensitive: _Sensitive) -> Node:
        owner = None if detail is None or draft.kind != "write" else self._run._backend.text_of(detail.owner)
        return Node(
            id,
            draft.kind,
            run,
            draft.scope,
            draft.seq,
            draft.actor,
            draft.depth,
            KINDS[draft.event],
            recorded_at=None if detail is None else as_time(detail.recorded_at),
            key=draft.key,
            version=draft.version,
            turn=draft.turn,
            owner=owner,
            basis=None if detail is None else detail.basis,
            deleted=draft.event == DELETED,
            erased=detail is not None and detail.erased,
            seen_seq=draft.seen_seq,
            status=draft.status,
            newest=draft.newest,
            count=draft.count,
            last_seq=draft.last_seq,
            tool=None if detail is None else detail.tool,
            sensitive=draft.key is not None and sensitive.at(draft.key, draft.seq),
            more=draft.more,
        )

    def details(self) -> dict[tuple[int, int], Detail]:
        """What the log says of the nodes so far, by run id and seq. What was pruned is not there."""
        wanted: dict[int, set[int]] = {}
        for draft in self.nodes:
            if (draft.holder, draft.seq) not in self._details:
                wanted.setdefault(draft.holder, set()).add(draft.seq)
        for holder, seqs in wanted.items():
            for seq, detail in look_up(self._run, holder, sorted(seqs)):
                self._details[holder, seq] = detail
        return self._details


def look_up(run: Run, holder: int, seqs: list[int]) -> Iterator[tuple[int, Detail]]:
    """What the log of a run (by its id) says of some events."""
    backend = run._backend
    for start in range(0, len(seqs), DETAILS):
        rows = backend.query(_SQL[backend.name], (holder, str(seqs[start : start + DETAILS])))
        for seq, recorded_at, kind, owner, refs, erased, body in rows:
            told = refs_of(refs) if refs is not None and kind != READ else {}
            source = told.get("source")
            cause = source.get("cause") if isinstance(source, dict) else None
            named = told.get("tool") if kind == TOOL_RETURNED else None
            tool = named if isinstance(named, str) else _tool(body) if kind == TOOL_RETURNED else None
            basis = basis_of(body) if kind <= DELETED else None
            yield (
                seq,
                Detail(recorded_at, owner, basis, tool, _whole(told.get("source_seq")), _whole(cause), bool(erased)),
            )


def _whole(number: Any) -> int | None:
    return number if type(number) is int else None


def _tool(body: bytes | None) -> str | None:
    """The tool's name, if the body says it."""
    document = None if body is None else jsontext.decode(body)
    if not isinstance(document, dict):
        return None
    return next((document[word] for word in ("tool", "name") if isinstance(document.get(word), str)), None)


def read_draft(item: Item, holder: int, newest: int, depth: int) -> Draft:
    """The node of a read."""
    status: Status = "stale" if newest > item.version else "current"
    return Draft(
        "read", holder, item.scope, item.seq, READ, item.actor, depth, item.key, item.version, item.turn,
        item.seen_seq, status, newest, item.reads, item.last_seq,
    )  # fmt: skip


def write_draft(item: Item, holder: int, depth: int, scope: str = "run") -> Draft:
    """The node of a write."""
    return Draft("write", holder, scope, item.seq, item.kind, item.actor, depth, item.key, item.version, item.turn)


def identity(holder: int, seq: int, key: Address | None = None) -> Hashable:
    """What a node is known by: its event; of a read the key, too."""
    return holder, seq, key


class RunNames(dict[int, str]):
    """Names of runs by their ids."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self._backend = run._backend

    def __missing__(self, number: int) -> str:
        rows = self._backend.query(self._backend.sql.runs_all, (number - 1, 1))
        found = self[number] = str(rows[0][2]) if rows and rows[0][0] == number else ""
        return found


class _Sensitive:
    """From which seq on keys count as sensitive."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._known: dict[str, int] = {}

    def at(self, key: str, seq: int) -> bool:
        """Whether a key counts as sensitive at a seq."""
        since = self._known.get(key)
        if since is None:
            try:
                since = sensitive_since(self._run, key)
            except UnknownKey:
                since = 0
            self._known[key] = since
        return since <= seq
