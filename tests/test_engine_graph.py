"""The router graph: ways, reachability, endless loops found or excluded, drawings."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from refold_engine.config import Config
from refold_engine.graph import as_mermaid, as_text, graph_of
from refold_engine.loading import load
from refold_engine.loops import judge

Team = Callable[..., Config]

KEYS = "state_schema: {x: integer, y: boolean, s: {enum: [p, q, r]}, tags: array, name: string, deep: object}"
OWNERS = "owners: {x: a, y: a, s: a, tags: a, name: a, deep: a}"


@pytest.fixture
def team(tmp_path: Path) -> Team:
    """`team(a=[("x > 1", "b")], b=[])` makes a configuration of agents with routers (condition, target)."""

    def make(*, more: str = "", **agents: list[tuple[str, str]]) -> Config:
        lines = ["model: {primary: m}", f"default_agent: {next(iter(agents))}", KEYS, OWNERS, "agents:"]
        for name, routers in agents.items():
            lines.append(f"  {name}:\n    routers:" + (" []" if not routers else ""))
            lines += [f"      - {{condition: {condition!r}, target: {target}}}" for condition, target in routers]
        path = tmp_path / "team.yaml"
        path.write_text("\n".join([*lines, more, ""]))
        return load(path)

    return make


def loops(config: Config) -> list[tuple[tuple[str, ...], dict[str, Any], bool]]:
    """The loops of all circles: agents, a state, certain."""
    verdicts = [judge(config, circle) for circle in graph_of(config).cycles()]
    return [(one.agents, dict(one.state), one.certain) for verdict in verdicts for one in verdict.loops]


def proven(config: Config) -> list[bool]:
    """Of each circle, whether it provably cannot go round."""
    return [judge(config, circle).proven for circle in graph_of(config).cycles()]


def test_constant_routers_go_round_in_every_state(team: Team) -> None:
    """Two routers that are always true are a loop in the empty state."""
    config = team(a=[("True", "b")], b=[("1 == 1", "a")])
    assert loops(config) == [(("a", "b"), {}, True)]
    assert [edge.taken for edge in graph_of(config).edges] == ["always", "always"]


def test_a_loop_is_shown_with_a_state_that_goes_round(team: Team) -> None:
    """Conditions that can be true together are a loop, for nothing changes between routes."""
    config = team(a=[("x > 3 and x < 5", "b")], b=[("s == 'p'", "c")], c=[("y", "a")])
    assert loops(config) == [(("a", "b", "c"), {"x": 4, "s": "p", "y": True}, True)]


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("y", "not y"),
        ("y == True", "y == False"),
        ("x > 3", "x <= 3"),
        ("x in (1, 2)", "x not in (1, 2)"),
        ("s == 'p'", "s in ('q', 'r')"),
        ("x == 1 and y", "x != 1 or not y"),
        ("'vip' in tags", "'vip' not in tags"),
        ("0 < x < 10", "x >= 10"),
        ("x > 3 and x < 4", "y"),
        ("state['x'] == 1", "state['x'] == 2"),
        ("name == None", "y"),
    ],
)
def test_conditions_that_exclude_each_other_are_an_exit(team: Team, one: str, two: str) -> None:
    """In no state are both true: the cycle is proven harmless."""
    config = team(a=[(one, "b")], b=[(two, "a")])
    assert graph_of(config).cycles() == (("a", "b"),)
    assert loops(config) == []
    assert proven(config) == [True]


@pytest.mark.parametrize(
    ("one", "two", "state"),
    [
        ("x < 10", "x > 8", {"x": 9}),
        ("s != 'p'", "s != 'q'", {"s": "r"}),
        ("name != 'ann'", "name != 'bob'", {"name": "another value"}),
        ("'vip' in tags", "'old' in tags", {"tags": ["vip", "old"]}),
        ("x > 3 and x < 5", "x == 4", {"x": 4}),
    ],
)
def test_a_state_is_found_between_the_constants(team: Team, one: str, two: str, state: dict[str, Any]) -> None:
    """The state shown is one of the declared types: an integer between, the enum's other value, a list of both."""
    assert loops(team(a=[(one, "b")], b=[(two, "a")])) == [(("a", "b"), state, True)]


def test_the_first_router_that_fires_decides(team: Team) -> None:
    """A router before that leads out whenever the loop's would fire is an exit."""
    assert loops(team(a=[("x > 1", "c"), ("x > 2", "b")], b=[("x > 2", "a")], c=[])) == []
    assert loops(team(a=[("x > 2", "b"), ("x > 1", "c")], b=[("x > 2", "a")], c=[])) != []


def test_a_router_to_its_own_agent_comes_first_too(team: Team) -> None:
    """It keeps the run where it is, so that the circle behind it is not gone; it is told by itself."""
    assert loops(team(a=[("y", "a"), ("y", "b")], b=[("y", "a")])) == []
    assert loops(team(a=[("y", "b"), ("y", "a")], b=[("y", "a")])) == [(("a", "b"), {"y": True}, True)]


@pytest.mark.parametrize(("one", "two"), [("deep['n'] == 1", "deep['n'] == 2"), ("name < 'b'", "name > 'c'")])
def test_what_is_not_understood_is_not_proven(team: Team, one: str, two: str) -> None:
    """Members of values and the order of texts are beyond the search: no loop is claimed, and no proof."""
    config = team(a=[(one, "b")], b=[(two, "a")])
    assert loops(config) == []
    assert proven(config) == [False]


def test_functions_are_assumed_both_ways_and_not_run(team: Team, tmp_path: Path) -> None:
    """A loop over a condition function is possible, not certain; a second condition can still exclude it."""
    (tmp_path / "asked.py").write_text("def ask(x):\n    raise RuntimeError('was run')\n")
    more = "condition_functions: {ask: asked.ask}"
    assert loops(team(a=[("ask(x)", "b")], b=[("y", "a")], more=more)) == [(("a", "b"), {"y": True}, False)]
    assert loops(team(a=[("ask(x)", "b")], b=[("False", "a")], more=more)) == []


def test_a_router_of_the_root_holds_at_every_agent(team: Team) -> None:
    """It goes round with a router that leaves its target while its condition is true."""
    more = "routers: [{condition: x > 1, target: a}]"
    assert loops(team(a=[("y", "b")], b=[], more=more)) == [(("a", "b"), {"x": 2, "y": True}, True)]
    assert loops(team(a=[("x < 1", "b")], b=[], more=more)) == []


def test_routers_behind_one_that_always_fires_are_no_ways(team: Team) -> None:
    """They are never taken, and who is only behind them is reached by nobody."""
    config = team(a=[("True", "b"), ("y", "c")], b=[("False", "c")], c=[])
    graph = graph_of(config)
    assert [(edge.target, edge.taken) for edge in graph.edges] == [("b", "always"), ("c", "never"), ("c", "never")]
    assert graph.unreachable() == ("c",)


def test_handoffs_delegations_and_workflows_reach(tmp_path: Path) -> None:
    """Every kind of way counts for being reachable, and none but routers for cycles."""
    path = tmp_path / "t.yaml"
    path.write_text(
        "model: {primary: m}\ndefault_agent: a\nagents:\n  a: {handoffs: [b]}\n  b: {delegations: [c], handoffs: [a]}\n"
        "  c: {}\n  d: {}\n  e: {}\nworkflows: {w: [{name: t, agent: d, instruction: i}]}\n"
    )
    graph = graph_of(load(path))
    assert graph.unreachable() == ("e",)
    assert graph.cycles() == ()
    path.write_text(path.read_text().replace("c: {}", "c: {auto_route: true}"))
    assert graph_of(load(path)).unreachable() == ()


def test_the_search_is_bounded(tmp_path: Path) -> None:
    """Conditions with more values than can be tried end soon, without a proof."""
    many = " and ".join(f"k{n} != {n}" for n in range(12))
    path = tmp_path / "many.yaml"
    path.write_text(
        f"model: {{primary: m}}\ndefault_agent: a\nagents:\n  a: {{routers: [{{condition: {many}, target: b}}]}}\n"
        f"  b: {{routers: [{{condition: {many} and k0 == 0, target: a}}]}}\n"
    )
    begun = time.monotonic()
    config = load(path)
    assert loops(config) == []
    assert proven(config) == [False]
    assert time.monotonic() - begun < 20


def test_long_chains_do_not_recurse(team: Team) -> None:
    """A circle of 1,500 agents is found, and its one loop shown."""
    names = [f"n{position:04}" for position in range(1500)]
    ring = {name: [("y", names[(at + 1) % len(names)])] for at, name in enumerate(names)}
    config = team(**{"a": [("y", names[0])], **ring})
    (circle,) = graph_of(config).cycles()
    assert len(circle) == 1500
    assert graph_of(config).unreachable() == ()


def test_drawings_name_every_way(tmp_path: Path) -> None:
    """Text and Mermaid show agents, routers with conditions, handoffs; odd names and quotes do no harm."""
    path = tmp_path / "t.yaml"
    path.write_text(
        'model: {primary: m}\ndefault_agent: "say \\"hi\\""\nagents:\n  "say \\"hi\\"":\n'
        "    routers: [{condition: \"x == 'a|b'\", target: two}]\n"
        "    handoffs: [two]\n    delegations: [two]\n  two: {}\n"
    )
    graph = graph_of(load(path))
    assert as_text(graph).splitlines() == [
        'say "hi"  (default agent)',
        "  ==> two  when x == 'a|b'",
        "  --> two  (handoff)",
        "  -.-> two  (delegation)",
        "two",
    ]
    assert as_mermaid(graph).splitlines() == [
        "flowchart TD",
        '  a0(["say #quot;hi#quot;"])',
        '  a1["two"]',
        '  a0 ==>|"x == #39;a|b#39;"| a1',
        "  a0 --> a1",
        '  a0 -.->|"delegates"| a1',
    ]
