"""`refold engine check`, `graph` and `schema`: text, JSON, exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]

TEAM = """\
model: {primary: m}
default_agent: a
state_schema: {go: boolean}
owners: {go: a}
agents:
  a: {routers: [{condition: go, target: b}]}
  b: {handoffs: [a]}
"""


@pytest.fixture
def team(tmp_path: Path) -> Path:
    """A good file."""
    path = tmp_path / "team.yaml"
    path.write_text(TEAM)
    return path


def test_check_says_what_it_found_and_fails(refold_cli: Cli, team: Path) -> None:
    """A good file is ok with exit code 0; a mistake is one line `file:line: path: message`, exit code 1."""
    done = refold_cli("engine", "check", str(team))
    assert done.exit_code == 0
    assert done.stdout.endswith("the router graph has no cycle (agents: 2, routes: 1)\nok\n")
    team.write_text(TEAM.replace("target: b", "target: c"))
    done = refold_cli("engine", "check", str(team))
    assert done.exit_code == 1
    assert done.stdout.splitlines()[0] == f"{team}:6: agents.a.routers.0.target: the router's target 'c' is no agent"
    assert done.stdout.splitlines()[-1] == "1 error, 0 warnings"


def test_warnings_fail_only_when_strict(refold_cli: Cli, team: Path) -> None:
    """Without owners there is a warning: exit code 0, with --strict 1."""
    team.write_text(TEAM.replace("owners: {go: a}\n", ""))
    assert refold_cli("engine", "check", str(team)).exit_code == 0
    assert refold_cli("engine", "check", str(team), "--strict").exit_code == 1


def test_check_as_json(refold_cli: Cli, team: Path) -> None:
    """Findings are data: file, line, path, message, severity."""
    found = json.loads(refold_cli("engine", "check", str(team), "--json").stdout)
    assert (found["ok"], found["findings"], len(found["fingerprint"])) == (True, [], 64)
    team.write_text(TEAM.replace("condition: go", "condition: go == true"))
    found = json.loads(refold_cli("engine", "check", str(team), "--json").stdout)
    (one,) = found["findings"]
    assert (found["ok"], one["line"], one["path"], one["severity"]) == (
        False,
        6,
        "agents.a.routers.0.condition",
        "error",
    )


def test_graph_in_three_forms(refold_cli: Cli, team: Path) -> None:
    """Text, Mermaid and JSON show the same ways."""
    text = refold_cli("engine", "graph", str(team)).stdout
    assert text.splitlines()[:4] == ["a  (default agent)", "  ==> b  when go", "b", "  --> a  (handoff)"]
    assert 'a0 ==>|"go"| a1' in refold_cli("engine", "graph", str(team), "--mermaid").stdout
    found = json.loads(refold_cli("engine", "graph", str(team), "--json").stdout)
    assert [(one["from"], one["to"], one["kind"]) for one in found["edges"]] == [
        ("a", "b", "router"),
        ("b", "a", "handoff"),
    ]


def test_graph_of_a_broken_file_tells_its_mistakes(refold_cli: Cli, team: Path) -> None:
    """There is nothing to draw: the mistakes on standard error, exit code 1."""
    team.write_text(TEAM.replace("default_agent: a", "default_agent: z"))
    done = refold_cli("engine", "graph", str(team))
    assert (done.exit_code, done.stdout) == (1, "")
    assert "the default agent 'z' is no agent" in done.stderr


def test_schema_is_json_schema(refold_cli: Cli) -> None:
    """The exported schema is JSON and closed."""
    found = json.loads(refold_cli("engine", "schema").stdout)
    assert found["additionalProperties"] is False
    assert {"agents", "routers", "workflows", "owners"} <= set(found["properties"])


def test_a_file_that_is_not_there_is_a_usage_error(refold_cli: Cli, tmp_path: Path) -> None:
    """One line and exit code 2."""
    done = refold_cli("engine", "check", str(tmp_path / "none.yaml"))
    assert done.exit_code == 2
    assert "no file" in done.stderr


def test_what_modules_print_stays_out_of_the_answer(refold_cli: Cli, team: Path) -> None:
    """A module that prints when imported does not spoil the JSON."""
    (team.parent / "loud_module.py").write_text("print('hello')\ndef f(go):\n    return go\n")
    team.write_text(TEAM + "condition_functions: {f: loud_module.f}\n")
    done = refold_cli("engine", "check", str(team), "--json")
    assert json.loads(done.stdout)["ok"]
    assert "hello" in done.stderr


def test_hostile_names_are_shown_escaped(refold_cli: Cli, team: Path) -> None:
    """An escape sequence in a name reaches no terminal."""
    team.write_text(TEAM.replace("default_agent: a", 'default_agent: "x\\e[31m"'))
    assert "\x1b" not in refold_cli("engine", "check", str(team)).stdout
