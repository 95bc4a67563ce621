"""Drawings of a trace: the tree, DOT and Mermaid, with any names, read back by small strict parsers."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold_replay.drawing import DEEP, dot, mermaid, printable, tree, within, words_of
from refold_replay.trace import Edge, Node, Trace

HOSTILE = [
    'say "hi"', "a\nb", "x]", "x[", "{x}", "(x)", "<b>bold</b>", "a;b", "a|b", "a\\", "\\", '\\"', "\\n", "\\N", "end",
    "#35;", "&quot;", "&", "a --> b", "%% gone", "`x`", "style a:b#c;", "🦊", "e\u0301", "\u202eright", "\x1b[31m",
    "\0", "", " ", "]];",
]  # fmt: skip
names = st.text(max_size=12) | st.sampled_from(HOSTILE)


def node(at: int, kind: Any = "write", **given: Any) -> Node:
    """A node of run r; its seq is its number."""
    members: dict[str, Any] = {
        "run": "r", "scope": "run", "seq": at, "actor": "ann", "depth": 0, "event": "state.written", "key": "fact",
        "version": at,
    }  # fmt: skip
    return Node(f"n{at}", kind, **members | given)


def trace(nodes: Iterable[Node], edges: Iterable[tuple[int, int, Any]], *, rooted: bool = True, left: int = 0) -> Trace:
    """A trace of run r; edges by the nodes' numbers."""
    found = {one.id: one for one in nodes}
    joined = [Edge(f"n{source}", f"n{target}", kind) for source, target, kind in edges]
    return Trace("r", "default", 99, next(iter(found)) if rooted else None, found, joined, left)


def chain(length: int) -> Trace:
    """Writes, each resting on the one before."""
    nodes = [node(at, depth=at - 1) for at in range(1, length + 1)]
    return trace(nodes, [(at, at + 1, "folded") for at in range(1, length)])


def lines(found: Trace, **options: Any) -> list[str]:
    """The lines of a tree, of which each node says its seq."""
    return [line.text(lambda one: str(one.seq)) for line in tree(found, **options)]


DIAMOND = trace(
    [node(1), node(2, "read", depth=1), node(3, "read", depth=1), node(4, depth=2), node(5, depth=2)],
    [(1, 2, "read"), (1, 3, "read"), (2, 4, "direct"), (3, 4, "stated"), (3, 5, "carried")],
)


def test_tree() -> None:
    """Each node stands below what it rests on, by the kind of its edge; one met twice is told once."""
    assert lines(DIAMOND) == [
        "1", "├─ 2", "│  └─ direct: 4", "└─ 3", "   ├─ stated: 4  (told elsewhere)", "   └─ carried: 5",
    ]  # fmt: skip


def test_tree_backwards() -> None:
    """Backwards the same edges are walked the other way, from the write to its causes."""
    nodes = [node(4), node(2, "read", depth=1), node(3, "read", depth=1), node(1, depth=2)]
    found = trace(nodes, [(1, 2, "read"), (1, 3, "read"), (2, 4, "direct"), (3, 4, "stated")])
    assert lines(found, backwards=True) == [
        "4", "├─ direct: 2", "│  └─ 1", "└─ stated: 3", "   └─ 1  (told elsewhere)",
    ]  # fmt: skip


def test_a_node_is_told_nearest_to_the_root() -> None:
    """A node that lies deep on one way and near on another is told in full at the near one."""
    found = trace(
        [node(at) for at in range(1, 6)], [(1, 2, "stated"), (2, 3, "stated"), (1, 3, "stated"), (3, 4, "stated")]
    )
    told = [line for line in lines(found) if line.endswith("3") or "3 " in line]
    assert told == ["│  └─ stated, no read on record: 3  (told elsewhere)", "└─ stated, no read on record: 3"]


def test_several_edges_between_two_nodes_are_one_line() -> None:
    """A write that rests on another in two ways stands once, with both kinds."""
    found = trace([node(1), node(2)], [(1, 2, "stated"), (1, 2, "folded"), (1, 2, "folded")])
    assert lines(found) == ["1", "└─ stated, folded, no read on record: 2"]


def test_no_read_on_record() -> None:
    """What is stated without a read is told so, forwards and backwards; a read behind it ends that."""
    assert lines(trace([node(1), node(2)], [(1, 2, "stated")])) == ["1", "└─ stated, no read on record: 2"]
    found = trace([node(2), node(1), node(3, "read")], [(1, 2, "stated"), (3, 2, "stated")])
    assert lines(found, backwards=True) == ["2", "├─ stated, no read on record: 1", "└─ stated: 3"]


def test_effects() -> None:
    """What a tool answered stands below the write of its turn; the line itself says what it is."""
    found = trace([node(2), node(1, "effect", key=None, tool="look")], [(1, 2, "effect")])
    assert lines(found, backwards=True) == ["2", "└─ 1"]


def test_depth() -> None:
    """Nodes beyond the depth are left out and counted where they hang; `within` counts them all."""
    assert lines(DIAMOND, depth=1) == ["1", "├─ 2  (+1 below)", "└─ 3  (+2 below)"]
    assert lines(DIAMOND, depth=0) == ["1  (+2 below)"]
    part = within(DIAMOND, 1)
    assert (list(part.nodes), len(part.edges), part.left) == (["n1", "n2", "n3"], 2, 2)
    assert within(DIAMOND, None) is DIAMOND
    assert within(trace([node(1), node(2, depth=1)], [], left=5), 0).left == 6


def test_without_a_root_each_node_is_one() -> None:
    """The reads of a key that nobody wrote stand side by side."""
    assert lines(trace([node(5, "read"), node(7, "read")], [], rooted=False)) == ["5", "7"]


def test_a_long_chain_is_drawn() -> None:
    """A chain of ten thousand neither overflows nor grows wider than its numbers."""
    found = lines(chain(10_000))
    assert len(found) == 10_000
    assert max(map(len, found)) < 3 * DEEP + 60
    assert found[DEEP].strip() == f"└─ folded: {DEEP + 1}"
    assert found[-1].endswith("└─ [9999 steps] folded: 10000")


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (node(4), ("ann writes fact@4", "seq 4")),
        (node(4, deleted=True, turn=7), ("ann deletes fact@4", "seq 4, turn 7")),
        (node(4, run="other"), ("ann writes fact@4", "seq 4 of other")),
        (node(4, run="", scope="tenant"), ("ann writes fact@4", "seq 4 of scope tenant")),
        (node(4, "read", status="current", count=1), ("ann reads fact@4", "seq 4")),
        (node(4, "read", status="stale", count=1), ("ann reads fact@4 (stale)", "seq 4")),
        (node(4, "read", version=0, count=1), ("ann reads fact, absent", "seq 4")),
        (node(4, "read", count=1200, last_seq=9), ("ann reads 1,200 times fact@4", "seq 4 to 9")),
        (node(4, "read", scope="tenant", count=1), ("ann reads fact@4", "seq 4")),
        (node(4, "effect", key=None, event="tool.returned", tool="lookup"), ("tool lookup answers to ann", "seq 4")),
        (node(4, "effect", key=None, event="tool.returned"), ("a tool answers to ann", "seq 4")),
        (node(4, "effect", key=None, event="model.answered"), ("a model answers to ann", "seq 4")),
        (node(4, actor="a\nb"), ("a\\nb writes fact@4", "seq 4")),
    ],
)
def test_words(one: Node, expected: tuple[str, str]) -> None:
    """What happened and where, in plain words."""
    assert words_of(trace([one], []), one) == expected


# --- DOT and Mermaid, read back --------------------------------------------------------------------

DOT_TOKEN = re.compile(r'\s*(?:(?P<word>\w+)|(?P<arrow>->)|(?P<text>"(?:[^"\\\n]|\\.)*")|(?P<sign>[{}\[\];=,]))')


def tokens(text: str) -> Iterator[str]:
    """The tokens of a DOT text; anything else in it is an error."""
    at = 0
    while at < len(text):
        found = DOT_TOKEN.match(text, at)
        assert found, f"no DOT at {text[at : at + 40]!r}"
        at = found.end()
        yield found[0].strip()


def read_dot(text: str) -> tuple[dict[str, dict[str, str]], list[tuple[str, str, str]]]:
    """Nodes with their attributes, and edges with their labels."""
    words = list(tokens(text))
    assert words[:3] == ["digraph", "lineage", "{"]
    assert words[-1] == "}"
    nodes: dict[str, dict[str, str]] = {}
    edges = []
    statement: list[str] = []
    for word in words[3:-1]:
        if word != ";":
            statement.append(word)
            continue
        begin = statement.index("[") if "[" in statement else len(statement)
        head, inner = statement[:begin], statement[begin + 1 : -1]
        given = {inner[at]: inner[at + 2] for at in range(0, len(inner), 4)}
        if len(head) == 3 and head[1] == "->":
            edges.append((head[0], head[2], given["label"].strip('"')))
        elif len(head) == 1 and head[0] not in ("node", "edge"):
            nodes[head[0]] = given
        statement = []
    assert not statement
    return nodes, edges


def dot_lines(label: str) -> list[str]:
    """The lines a label shows, as Graphviz reads escapes and entities."""
    parts = re.findall(r"\\.|[^\\]", label[1:-1])
    assert not {part for part in parts if part[0] == "\\" and part not in ("\\\\", '\\"', "\\n")}
    shown = "".join({"\\n": "\0", "\\\\": "\\", '\\"': '"'}.get(part, part) for part in parts)
    return html.unescape(shown).split("\0")


MERMAID_NODE = re.compile(r'  (\w+)(?:\["([^"]*)"\]|\(\["([^"]*)"\]\)|\{\{"([^"]*)"\}\})')
MERMAID_EDGE = re.compile(r"  (\w+) (?:-->|-\.->)\|(\w+)\| (\w+)")


def read_mermaid(text: str) -> tuple[dict[str, list[str]], list[tuple[str, str, str]]]:
    """Nodes with the lines they show, and edges with their labels; any other line is an error."""
    first, *rest = text.split("\n")
    assert first == "flowchart LR"
    nodes, edges = {}, []
    for line in rest:
        if found := MERMAID_NODE.fullmatch(line):
            label = next(group for group in found.groups()[1:] if group is not None)
            assert not re.search(r"""[\[\]{}|`\\%]|<(?!br/>)|&|#(?!\d+;)|(?<!\d);""", label)
            parts = label.split("<br/>")
            nodes[found[1]] = [re.sub(r"#(\d+);", lambda code: chr(int(code[1])), part) for part in parts]
        elif found := MERMAID_EDGE.fullmatch(line):
            edges.append((found[1], found[3], found[2]))
        else:
            assert re.fullmatch(r"  (classDef old stroke:#[0-9a-f]{6}|class n\d+(,n\d+)* old)", line), line
    return nodes, edges


def expected_edges(found: Trace) -> list[tuple[str, str, str]]:
    return [(edge.source, edge.target, edge.kind) for edge in found.edges]


@given(st.lists(st.tuples(names, names, names), min_size=1, max_size=4))
def test_any_name_stays_inside_its_label(given: Sequence[tuple[str, str, str]]) -> None:
    """Whatever names hold, both languages read back the same nodes, words and edges."""
    kinds = ("write", "read", "effect")
    nodes = [
        node(at, kinds[at % 3], actor=actor, key=None if at % 3 == 2 else key, tool=key, run=run)
        for at, (actor, key, run) in enumerate(given, 1)
    ]
    found = trace(nodes, [(1, at, "carried") for at in range(2, len(nodes) + 1)])
    said = {one.id: list(words_of(found, one)) for one in nodes}
    drawn, edges = read_dot(dot(found))
    assert {id: dot_lines(attributes["label"]) for id, attributes in drawn.items()} == said
    assert edges == expected_edges(found)
    assert read_mermaid(mermaid(found)) == (said, expected_edges(found))


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names(name: str) -> None:
    """Each name that means something to one of the languages comes back as it is told."""
    found = trace([node(1, actor=name, key=name)], [])
    said = list(words_of(found, found.nodes["n1"]))
    assert dot_lines(read_dot(dot(found))[0]["n1"]["label"]) == said
    assert read_mermaid(mermaid(found))[0] == {"n1": said}
    assert all(part.isprintable() for part in said)


def test_what_a_drawing_marks() -> None:
    """The root is bold, reads of old versions are red, carried edges are dashed, what is left out is told."""
    nodes = [node(1), node(2, "read", status="stale", depth=1), node(3, "read", status="current", depth=1)]
    found = trace(nodes, [(1, 2, "read"), (2, 3, "carried")], left=1200)
    drawn, _edges = read_dot(dot(found))
    assert [attributes.get("penwidth") for attributes in drawn.values()] == ["2", None, None, None]
    assert [attributes.get("color") for attributes in drawn.values()] == [None, "firebrick", None, None]
    assert [one["shape"] for one in drawn.values()] == ["box", "ellipse", "ellipse", "plaintext"]
    assert drawn["left_out"]["label"] == '"1,200 more left out"'
    assert 'n2 -> n3 [label="carried", style=dashed];' in dot(found)
    assert "  n2 -.->|carried| n3" in mermaid(found)
    assert "  class n2 old" in mermaid(found)
    assert read_mermaid(mermaid(found))[0]["left_out"] == ["1,200 more left out"]


def test_printable() -> None:
    """A text that prints stays as it is; in any other what does not print is escaped, and so is the escape's sign."""
    assert printable("a\\b é 🦊") == "a\\b é 🦊"
    assert printable("a\\b\n") == "a\\\\b\\n"
    assert printable("\u202e") == "\\u202e"
