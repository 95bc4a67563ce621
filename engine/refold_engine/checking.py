"""What `refold engine check` tells of a file: all that keeps it from loading, and all that the graph shows.

Rules of this module
- Everything is told in one run, by line. Errors fail the check; warnings do so only when asked for.
- The deterministic routes are proven free of endless loops, or the loop is shown with a state that goes round.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from refold_engine.config import Config
from refold_engine.findings import Finding, Findings
from refold_engine.graph import Graph, graph_of
from refold_engine.loading import Loaded, read
from refold_engine.loops import Verdict, judge
from refold_store.jsontext import encode

STATE_SHOWN_MAX = 200
"""Characters of a state that a finding shows."""


@dataclass(frozen=True, slots=True)
class Report:
    """The findings on a file by line; if it loads, the configuration, its graph and the verdict on each circle."""

    findings: tuple[Finding, ...]
    config: Config | None = None
    graph: Graph | None = None
    verdicts: tuple[Verdict, ...] = ()

    @property
    def errors(self) -> tuple[Finding, ...]:
        """What fails the check."""
        return tuple(one for one in self.findings if one.severity == "error")

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """What is worth knowing."""
        return tuple(one for one in self.findings if one.severity == "warning")

    @property
    def proof(self) -> str:
        """What is known of the routes, in a sentence; empty if the file does not load."""
        if self.graph is None:
            return ""
        routes = sum(edge.kind == "router" for edge in self.graph.edges)
        if any(edge.kind == "router" and edge.source == edge.target for edge in self.graph.edges):
            return "a router leads to its own agent"
        if not self.verdicts:
            return f"the router graph has no cycle (agents: {len(self.graph.nodes)}, routes: {routes})"
        if any(one.loops for one in self.verdicts):
            return "the router graph has cycles that can go round for ever"
        if all(one.proven for one in self.verdicts):
            return "the router graph has cycles, and in no state does one go round: each has an exit"
        return "the router graph has cycles of which it is not proven that each has an exit"


def check(path: str | os.PathLike[str]) -> Report:
    """Check a configuration file. Raises nothing for what is wrong in it."""
    loaded = read(path)
    if loaded.config is None or loaded.document is None:
        return Report(loaded.findings)
    config, graph = loaded.config, graph_of(loaded.config)
    verdicts = tuple(judge(config, circle) for circle in graph.cycles())
    more = Findings(loaded.document)
    _self_loops(graph, more)
    _dead_routers(graph, more)
    for verdict in verdicts:
        _cycle(config, verdict, more)
    _readers(config, more)
    if any(one.severity == "error" for one in loaded.findings):
        return Report(_by_line(loaded, more))  # who is reachable, and the proof, hold for the whole graph only
    for name in graph.unreachable():
        more.error(("agents", name), f"no route, handoff, delegation or workflow leads to the agent {name!r}")
    return Report(_by_line(loaded, more), config, graph, verdicts)


def _by_line(loaded: Loaded, more: Findings) -> tuple[Finding, ...]:
    return tuple(sorted((*loaded.findings, *more.all), key=lambda one: one.line))


def _self_loops(graph: Graph, findings: Findings) -> None:
    for edge in graph.edges:
        if edge.source != edge.target:
            continue
        if edge.kind == "router":
            findings.error(edge.path, f"the router leads from {edge.source!r} to itself")
        elif edge.kind == "handoff":
            findings.error(("agents", edge.source, "handoffs"), f"{edge.source!r} hands over to itself")
        else:
            findings.warning(
                ("agents", edge.source, "delegations"),
                f"{edge.source!r} delegates to itself: only max_delegation_depth ends it",
            )


def _dead_routers(graph: Graph, findings: Findings) -> None:
    told: set[tuple[str, ...]] = set()
    alive = {edge.path for edge in graph.edges if edge.kind == "router" and edge.taken != "never"}
    for edge in graph.edges:
        if edge.kind == "router" and edge.taken == "never" and edge.path not in alive | told:
            told.add(edge.path)
            findings.warning(
                edge.path, "the router never fires: it is false in every state, or one before it always does"
            )


def _cycle(config: Config, verdict: Verdict, findings: Findings) -> None:
    for loop in verdict.loops:
        way = " -> ".join((*loop.agents, loop.agents[0]))
        place = _place(config, loop.agents)
        if loop.certain:
            findings.error(place, f"the routers go round for ever, {way}, {_when(dict(loop.state))}: give one of them "
                           "a condition that leaves")  # fmt: skip
        else:
            findings.warning(place, f"the routers may go round, {way}, if their functions say so; "
                             "max_handoffs_per_turn would stop it")  # fmt: skip
    if not verdict.loops and not verdict.proven:
        around = ", ".join(verdict.agents)
        findings.warning(
            _place(config, verdict.agents),
            f"the routers of {around} form a cycle, and it is not proven that they never go round; "
            "max_handoffs_per_turn would stop it",
        )


def _place(config: Config, agents: tuple[str, ...]) -> tuple[str, ...]:
    """The router that leads on from the first of these agents to another."""
    found = (one for one in config.routers_of(agents[0]) if any(target in agents[1:] for target in one.targets))
    router = next(found, None)
    return ("agents", agents[0]) if router is None else tuple(router.name.split("."))


def _when(state: dict[str, object]) -> str:
    if not state:
        return "in every state"
    text = encode(state).decode()
    return f"in the state {text if len(text) <= STATE_SHOWN_MAX else text[: STATE_SHOWN_MAX - 1] + '…'}"


def _readers(config: Config, findings: Findings) -> None:
    for key in config.schema.keys:
        for name in key.readers or ():
            if name not in config.agents and name not in config.schema.groups:
                findings.error(("state_schema", key.name), f"the reader {name!r} of {key.name!r} is no agent or group")
