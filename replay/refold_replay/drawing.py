"""A trace as a text tree, as Graphviz DOT and as Mermaid. Pure: a trace in, text out.

    tree(trace, backwards=True, words=...)     lines for people; `words` says what stands at a node
    dot(trace), mermaid(trace)                 for tools that draw

Rules of this module
- Names come from models and may hold anything: what is not printable is shown escaped, and what a language reads as its
  own is written so that it does not.
- In a tree each node is told once, at the place nearest to the root; elsewhere a line points to it.
- A walk may be long: nothing recurses, and no line grows with depth beyond DEEP steps.
- No value and no basis stands in a drawing: only what `words` adds to a tree.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from refold_replay.trace import Edge, Node, Trace

DEEP = 30
"""Steps a tree is indented by; deeper lines say how many steps they lie below the root."""
_MERMAID_OWN: Final = frozenset("\"'#&<>`\\[]{}|;:%*$")
_SHAPES: Final = {
    "write": ("box", '["', '"]'),
    "read": ("ellipse", '(["', '"])'),
    "effect": ("hexagon", '{{"', '"}}'),
}


def printable(text: str) -> str:
    """A text on one line, with everything that is not printable escaped as in Python."""
    if text.isprintable():
        return text
    return "".join(
        one if one.isprintable() and one != "\\" else r"\\" if one == "\\" else one.encode("unicode_escape").decode()
        for one in text
    )


def within(trace: Trace, depth: int | None) -> Trace:
    """The part of a trace that lies at most so many steps from its root; `left` counts the rest, too."""
    if depth is None:
        return trace
    nodes = {id: node for id, node in trace.nodes.items() if node.depth <= depth}
    edges = [edge for edge in trace.edges if edge.source in nodes and edge.target in nodes]
    return replace(trace, nodes=nodes, edges=edges, left=trace.left + len(trace.nodes) - len(nodes))


def where(trace: Trace, node: Node) -> str:
    """The place of a node: its seqs, and its run or scope if that is not the run of the trace."""
    seq = f"seq {node.seq}" if node.last_seq <= node.seq else f"seq {node.seq} to {node.last_seq}"
    if node.kind == "write" and node.scope != "run" and node.run != trace.run:
        return f"{seq} of scope {node.scope}"
    return seq if node.run in ("", trace.run) else f"{seq} of {printable(node.run)}"


def words_of(trace: Trace, node: Node) -> tuple[str, str]:
    """What a drawing says at a node: what happened, and where."""
    actor, name = printable(node.actor or "nobody named"), printable(node.name)
    place = where(trace, node)
    if node.turn is not None:
        place += f", turn {node.turn}"
    erased = " (erased)" if node.erased else ""
    if node.kind == "effect":
        return f"{_answer(node)} to {actor}{erased}", place
    if node.kind == "write":
        return f"{actor} {'deletes' if node.deleted else 'writes'} {name}{erased}", place
    reads = "reads" if node.count < 2 else f"reads {node.count:,} times"
    seen = f"{name}, absent" if not node.version else name
    status = "" if node.status in (None, "current") else f" ({node.status})"
    return f"{actor} {reads} {seen}{status}", place


def _answer(node: Node) -> str:
    who = {"tool.returned": "tool", "model.answered": "model"}.get(node.event, "effect")
    return f"{who} {printable(node.tool)} answers" if node.tool else f"a {who} answers"


# --- the tree ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a tree."""

    branch: str
    """What leads to it: bars and blanks."""
    kinds: tuple[str, ...]
    """How the node is bound to the one above it; empty for a root. Several if several edges join the two."""
    node: Node
    again: bool
    """Whether the node is told in full at another line."""
    unread: bool
    """Whether the one that rests states to rest on a version that its actor is not on record as having read."""
    hidden: int
    """How many nodes next to it are not in the trace."""

    def text(self, words: Callable[[Node], str]) -> str:
        """The line as people read it."""
        kinds = ", ".join(kind for kind in self.kinds if kind not in ("read", "effect"))  # the node says it
        kinds += ", no read on record" if self.unread else ""
        said = f"{self.branch}{kinds + ': ' if kinds else ''}{words(self.node)}"
        if self.again:
            return f"{said}  (told elsewhere)"
        return f"{said}  (+{self.hidden:,} below)" if self.hidden else said


def tree(whole: Trace, *, backwards: bool = False, depth: int | None = None) -> Iterator[Line]:
    """The lines of a trace, from its root on: what rests on it, or backwards what it rests on.

    `depth` leaves out what lies deeper. Without a root every node is one.
    """
    trace = within(whole, depth)
    steps = _steps(trace, backwards)
    every = _steps(whole, backwards) if trace is not whole else steps
    roots = [trace.root] if trace.root is not None else list(trace.nodes)
    home = _homes(roots, steps)
    waiting: list[tuple[str, str | None, tuple[str, ...], str, int]] = [
        (root, None, (), "", 0) for root in reversed(roots)
    ]
    while waiting:
        id, parent, kinds, bars, level = waiting.pop()
        again = home[id] != parent
        below = {} if again else steps.get(id, {})
        hidden = 0 if again else len(every.get(id, {})) - len(below)
        node = trace.nodes[id]
        cause = node if backwards or parent is None else trace.nodes[parent]
        unread = "stated" in kinds and cause.kind == "write"
        yield Line(_branch(bars, level), kinds, node, again, unread, hidden)
        last = len(below) - 1
        inner = _inner(bars, level)
        found = [
            (to, id, how, f"{inner}{'└─ ' if at == last else '├─ '}", level + 1)
            for at, (to, how) in enumerate(below.items())
        ]
        waiting += reversed(found)


def _steps(trace: Trace, backwards: bool) -> Mapping[str, Mapping[str, tuple[str, ...]]]:
    """Where each node leads, in order, and by which kinds of edges."""
    steps: dict[str, dict[str, tuple[str, ...]]] = {}
    for edge in trace.edges:
        start, end = (edge.target, edge.source) if backwards else (edge.source, edge.target)
        to = steps.setdefault(start, {})
        if edge.kind not in to.get(end, ()):
            to[end] = (*to.get(end, ()), edge.kind)
    return steps


def _homes(roots: Iterable[str], steps: Mapping[str, Mapping[str, object]]) -> dict[str, str | None]:
    """Under which node each one is told: the one that is nearest to a root."""
    home: dict[str, str | None] = dict.fromkeys(roots)
    waiting = deque(home)
    while waiting:
        id = waiting.popleft()
        for to in steps.get(id, ()):
            if to not in home:
                home[to] = id
                waiting.append(to)
    return home


def _inner(bars: str, level: int) -> str:
    """The bars in front of what lies below a line."""
    if not level:
        return ""
    inner = bars[:-3] + ("   " if bars.endswith("└─ ") else "│  ")
    return inner[-3 * (DEEP - 1) :]


def _branch(bars: str, level: int) -> str:
    return bars if level <= DEEP else f"{bars}[{level} steps] "


# --- for tools that draw -------------------------------------------------------------------------


def dot(trace: Trace) -> str:
    """A trace in the language of Graphviz."""
    lines = ["digraph lineage {", "  rankdir=LR;", "  node [fontname=Helvetica];", "  edge [fontname=Helvetica];"]
    for node in trace.nodes.values():
        label = r"\n".join(map(_quoted, words_of(trace, node)))
        more = ", penwidth=2" if node.id == trace.root else ""
        more += ", color=firebrick" if node.status not in (None, "current") else ""
        lines.append(f'  {node.id} [label="{label}", shape={_SHAPES[node.kind][0]}{more}];')
    for edge in trace.edges:
        style = ", style=dashed" if edge.kind == "carried" else ""
        lines.append(f'  {edge.source} -> {edge.target} [label="{edge.kind}"{style}];')
    if trace.left:
        lines.append(f'  left_out [label="{_left(trace)}", shape=plaintext];')
    return "\n".join([*lines, "}"])


def _quoted(text: str) -> str:
    """A text inside a quoted DOT string. Graphviz reads entities and escapes of its own in it."""
    return text.replace("\\", "\\\\").replace('"', r"\"").replace("&", "&amp;")


def mermaid(trace: Trace) -> str:
    """A trace as a Mermaid flowchart."""
    lines = ["flowchart LR"]
    for node in trace.nodes.values():
        _shape, begin, end = _SHAPES[node.kind]
        label = "<br/>".join(map(_coded, words_of(trace, node)))
        lines.append(f"  {node.id}{begin}{label}{end}")
    lines += [_arrow(edge) for edge in trace.edges]
    if trace.left:
        lines.append(f'  left_out["{_left(trace)}"]')
    old = [node.id for node in trace.nodes.values() if node.status not in (None, "current")]
    if old:
        lines += ["  classDef old stroke:#b22222", f"  class {','.join(old)} old"]
    return "\n".join(lines)


def _arrow(edge: Edge) -> str:
    return f"  {edge.source} {'-.->' if edge.kind == 'carried' else '-->'}|{edge.kind}| {edge.target}"


def _coded(text: str) -> str:
    """A text inside a quoted Mermaid label: whatever could mean something there stands as its number."""
    return "".join(f"#{ord(one)};" if one in _MERMAID_OWN else one for one in text)


def _left(trace: Trace) -> str:
    return f"{trace.left:,} more left out"
