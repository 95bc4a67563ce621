"""The router graph of a configuration: who can come after whom, whether its routes can go round for ever, drawings.

Rules of this module
- Pure: a configuration in, facts out. No route is taken and no function of the user's runs.
- An edge says how it is taken: *always* (its condition is true whatever the state), *never* (false whatever the
  state, or behind a router that always fires), else *maybe*.
- Routers are tried before the model, and nothing is written between one route and the next. So a way round that was
  gone once is gone again, for ever, in that very state: the way out must be in the conditions. A cycle of routers has
  an exit if in every state some router on the way does not fire, or leads elsewhere. `loops` decides this: a state
  that goes round is shown; if there is provably none, the cycle is excluded; else it is *unproven* and only the
  limit `max_handoffs_per_turn` stops it.
- Handoffs, delegations and `auto_route` are a model's choice: edges, but no part of the proof.
- An agent is reachable if a path of edges leads to it from the default agent or from an agent of a workflow.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from refold_engine.config import Config, Router
from refold_store.errors import ConditionFailed

Kind = Literal["router", "handoff", "delegation", "auto_route"]
Taken = Literal["always", "maybe", "never"]

ARROWS: Mapping[Kind, str] = {"router": "==>", "handoff": "-->", "delegation": "-.->", "auto_route": "~~>"}
"""How text output draws an edge; Mermaid has no wave and draws `auto_route` as a handoff with a label."""
LABEL_MAX = 60
"""Characters of a condition that a drawing shows."""


@dataclass(frozen=True, slots=True)
class Edge:
    """A way from one agent to another. `path` is its place in the file, `label` what decides it."""

    source: str
    target: str
    kind: Kind
    taken: Taken = "maybe"
    label: str = ""
    path: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Graph:
    """The agents, where a run may start, and the ways between."""

    nodes: tuple[str, ...]
    start: str
    entries: tuple[str, ...]
    """Agents that workflows start."""
    edges: tuple[Edge, ...]

    def unreachable(self) -> tuple[str, ...]:
        """The agents no path leads to."""
        seen = {self.start, *self.entries}
        todo = list(seen)
        onward: dict[str, list[str]] = {}
        for edge in self.edges:
            if edge.taken != "never":
                onward.setdefault(edge.source, []).append(edge.target)
        while todo:
            for target in onward.get(todo.pop(), ()):
                if target not in seen:
                    seen.add(target)
                    todo.append(target)
        return tuple(node for node in self.nodes if node not in seen)

    def cycles(self) -> tuple[tuple[str, ...], ...]:
        """Sets of agents that routers connect in a circle, each in the order of declaration; no loops of one."""
        onward: dict[str, set[str]] = {node: set() for node in self.nodes}
        for edge in self.edges:
            if edge.kind == "router" and edge.taken != "never" and edge.target != edge.source:
                onward[edge.source].add(edge.target)
        order = {node: position for position, node in enumerate(self.nodes)}
        found = (tuple(sorted(part, key=order.__getitem__)) for part in _strongly_connected(onward))
        return tuple(sorted((part for part in found if len(part) > 1), key=lambda part: order[part[0]]))


def graph_of(config: Config) -> Graph:
    """The graph of a configuration."""
    entries = dict.fromkeys(agent for one in config.workflows.values() for agent in one.agents())
    edges = [edge for name in config.agents for edge in _edges_from(config, name)]
    return Graph(tuple(config.agents), config.default_agent, tuple(entries), tuple(edges))


def _edges_from(config: Config, name: str) -> Iterable[Edge]:
    agent = config.agents[name]
    shadowed = False
    for router in config.routers_of(name):
        taken: Taken = "never" if shadowed else taken_of(router)
        for target in router.targets:
            yield Edge(name, target, "router", taken, router.label, tuple(router.name.split(".")))
        shadowed = shadowed or taken == "always"
    for handoff in agent.handoffs:
        yield Edge(name, handoff.target, "handoff")
    for target in agent.delegations:
        yield Edge(name, target, "delegation")
    for target in agent.auto_route:
        if agent.handoff(target) is None:
            yield Edge(name, target, "auto_route")


def taken_of(router: Router) -> Taken:
    """How a router is taken, by itself: a condition without keys and functions has one answer."""
    condition = router.condition
    if condition is None or condition.names or condition.functions:
        return "maybe"
    try:
        return "always" if condition({}) else "never"
    except ConditionFailed:
        return "never"


def _strongly_connected(onward: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """The parts in which each node reaches each other (Kosaraju, without recursion)."""
    back: dict[str, list[str]] = {node: [] for node in onward}
    for node, targets in onward.items():
        for target in targets:
            back[target].append(node)
    done: list[str] = []
    seen: set[str] = set()
    for root in onward:
        stack = [(root, iter(onward[root]))] if root not in seen else []
        seen.add(root)
        while stack:
            node, targets = stack[-1]
            fresh = next((one for one in targets if one not in seen), None)
            if fresh is None:
                done.append(node)
                stack.pop()
            else:
                seen.add(fresh)
                stack.append((fresh, iter(onward[fresh])))
    parts: list[list[str]] = []
    placed: set[str] = set()
    for root in reversed(done):
        if root in placed:
            continue
        placed.add(root)
        part, todo = [], [root]
        while todo:
            node = todo.pop()
            part.append(node)
            fresh_ones = [one for one in back[node] if one not in placed]
            placed.update(fresh_ones)
            todo += fresh_ones
        parts.append(part)
    return parts


# -- drawings --------------------------------------------------------------------------------------------------------


def as_text(graph: Graph) -> str:
    """The graph as lines: each agent, below it its ways on."""
    lines = []
    for node in graph.nodes:
        marks = [
            *(["default agent"] if node == graph.start else []),
            *(["in a workflow"] if node in graph.entries else []),
        ]
        lines.append(node + (f"  ({', '.join(marks)})" if marks else ""))
        lines += [f"  {ARROWS[edge.kind]} {edge.target}{_said(edge)}" for edge in graph.edges if edge.source == node]
    return "\n".join(lines)


def _said(edge: Edge) -> str:
    if edge.kind != "router":
        return f"  ({edge.kind.replace('_', ' ')})"
    return {"always": "  always", "never": f"  never: {_short(edge.label)}", "maybe": f"  when {_short(edge.label)}"}[
        edge.taken
    ]


def _short(label: str) -> str:
    return label if len(label) <= LABEL_MAX else f"{label[: LABEL_MAX - 1]}…"


def as_mermaid(graph: Graph) -> str:
    """The graph as a Mermaid flowchart. Agents are numbered, so that any name will do."""
    ids = {node: f"a{position}" for position, node in enumerate(graph.nodes)}
    lines = ["flowchart TD"]
    for node in graph.nodes:
        shape = ("([", "])") if node == graph.start else ("[", "]")
        lines.append(f"  {ids[node]}{shape[0]}{_quoted(node)}{shape[1]}")
    for edge in graph.edges:
        if edge.taken != "never":
            lines.append(f"  {ids[edge.source]} {_arrow(edge)} {ids[edge.target]}")
    return "\n".join(lines)


def _arrow(edge: Edge) -> str:
    label = {"router": "always" if edge.taken == "always" else _short(edge.label), "handoff": "",
             "delegation": "delegates", "auto_route": "auto route"}[edge.kind]  # fmt: skip
    arrow = {"router": "==>", "handoff": "-->", "delegation": "-.->", "auto_route": "-->"}[edge.kind]
    return f"{arrow}|{_quoted(label)}|" if label else arrow


def _quoted(text: str) -> str:
    """A text in Mermaid's quotes: marks that mean something there as numbered entities."""
    shown = html.escape(" ".join(text.split()), quote=True).replace("&", "#").replace("`", "#96;")
    return f'"{shown.replace("##x27;", "#39;").replace("#x27;", "#39;")}"'
