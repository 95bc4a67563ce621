"""What a walk through the lineage of a run finds: nodes, edges, and how far it went. Plain data; pure.

Rules of this module
- A node stands once, however many ways lead to it. Ids (`n1`, `n2` ...) count in the order the walk met them: they are
  plain, and the same for the same log.
- An edge leads from a cause to what rests on it, whichever way the walk went.
- No value of a key stands here. A basis may quote one: `sensitive` says whether the node's key is sensitive.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

NodeKind = Literal["write", "read", "effect"]
"""`write`: a version was made (a delete, too); `read`: a version was seen; `effect`: a tool or a model answered."""
EdgeKind = Literal["read", "stated", "direct", "carried", "folded", "effect"]
"""`read`: from a version to who read it. Into a write: `stated` it says so itself, `direct` its actor had read it in
the same turn, `carried` in an earlier one, `folded` it is the version before and the reducer builds on it, `effect` a
tool or a model had answered in the same turn."""
Status = Literal["current", "stale", "superseded before use"]
"""Of a read. `stale`: a newer version existed in the snapshot that served it. `superseded before use`: a newer one
appeared afterwards, before a write of the trace that rests on the read."""


@dataclass(frozen=True, slots=True)
class Node:
    """One write, read or effect. Members that do not fit its kind are None (counts: 0, flags: false)."""

    id: str
    kind: NodeKind
    run: str
    """The run that holds the event: of what a fork inherits, the ancestor. Empty for the run of a scope."""
    scope: str
    """`run`, or `tenant` or `global` where the key belongs to that scope's run."""
    seq: int
    """The seq in `run`; of pruned reads the first one's. A read of a scope's key is an event of its reader's run."""
    actor: str
    """Writer, reader, or who called."""
    depth: int
    """Steps from the root by the shortest way; edges of kind `read` count."""
    event: str
    """The event's kind, e.g. `state.written`, `tool.returned`."""
    recorded_at: datetime | None = None
    key: str | None = None
    version: int | None = None
    """Made or seen; 0: the key was absent."""
    turn: int | None = None
    owner: str | None = None
    """Of a write: for whom its actor acted."""
    basis: str | None = None
    """Of a write: the reason it states. May quote a value."""
    deleted: bool = False
    """Whether the write is a delete."""
    erased: bool = False
    """Whether what it held was erased for good, its basis included."""
    seen_seq: int | None = None
    """Of a read: the newest seq in the snapshot that served it."""
    status: Status | None = None
    """Of a read."""
    newest: int | None = None
    """Of a read: the version that was newest in its snapshot."""
    count: int = 0
    """Of a read: 1; of pruned reads how many stand here."""
    last_seq: int = 0
    """Of a read: its seq; of pruned reads the last one's."""
    tool: str | None = None
    """Of an effect: the tool's name, if the event says it."""
    sensitive: bool = False
    """Whether its key is declared sensitive: show the basis only when asked to."""
    more: int = 0
    """How many more grounds the write has that are not among the edges."""

    @property
    def name(self) -> str:
        """`routing@2`; the bare key where it was absent; of an effect the tool, or the event's kind."""
        if self.key is None:
            return self.tool or self.event
        return f"{self.key}@{self.version}" if self.version else self.key


@dataclass(frozen=True, slots=True)
class Edge:
    """`target` rests on `source`; both are ids of nodes."""

    source: str
    target: str
    kind: EdgeKind


@dataclass(slots=True)
class Trace:
    """What a walk found. Nodes are in the order the walk met them; the root is the first, if there is one."""

    run: str
    tenant: str
    seq: int
    """The newest seq of the run: the answer is as of it."""
    root: str | None
    nodes: dict[str, Node] = field(default_factory=dict)
    edges: list[Edge] = field(default_factory=list)
    left: int = 0
    """How many more nodes the walk met and left out; of `why` at least so many."""

    def causes(self, id: str) -> Iterator[Edge]:
        """The edges into a node."""
        return (edge for edge in self.edges if edge.target == id)

    def results(self, id: str) -> Iterator[Edge]:
        """The edges out of a node."""
        return (edge for edge in self.edges if edge.source == id)
