"""`refold replay run`: what it prints, and its exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from agents import TEAM, Answers, calls, engine, team, to, write

from refold import open_store
from refold_engine.config import Config

Cli = Callable[..., Any]
SECRET = """
from typing import Annotated
from pydantic import StringConstraints
from refold import Owner, StateSchema, sensitive

class State(StateSchema):
    loss: Annotated[dict, Owner("intake")]
    code: Annotated[str, Owner("intake"), sensitive]
    limit: Annotated[int, Owner("triage")]
"""


def a_run(url: str, folder: Path, **changes: Any) -> Config:
    """A run `r` of two agents."""
    config = team(folder, **changes)
    agents = Answers(
        intake=[calls(write("loss", {"n": 1}), write("code", "c-77")), calls(to("triage"))],
        triage=[calls(write("limit", 5)), "All done."],
    )
    with open_store(url, config.schema) as store, engine(config, store, agents) as at_work:
        assert at_work.send("r", "hello").text == "All done."
    return config


def test_a_run_that_reproduces(refold_cli: Cli, store_url: str, tmp_path: Path) -> None:
    """Exit code 0; what was compared is counted; `--quiet` says nothing."""
    config = a_run(store_url, tmp_path / "team")
    words = ("replay", "run", "r", "--config", config.source, "--store", store_url)
    done = refold_cli(*words)
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "r: the same, byte for byte, and nothing live was called",
        "ran         2 turns, 0 routes, 0 stops",
        "compared    4 requests, 4 tool calls, 3 writes, 0 refusals",
        "outside     2 events",
    ]
    done = refold_cli(*words, "--quiet")
    assert (done.exit_code, done.stdout) == (0, "")


def test_a_difference_in_a_few_lines(refold_cli: Cli, store_url: str, tmp_path: Path) -> None:
    """Exit code 1: seq, turn, agent, path, both sides, and what follows."""
    a_run(store_url, tmp_path / "team")
    triage = {**TEAM["agents"]["triage"], "system_prompt": "You route with care."}
    changed = team(tmp_path / "changed", agents={**TEAM["agents"], "triage": triage})
    done = refold_cli("replay", "run", "r", "--config", changed.source, "--store", store_url, "--quiet")
    assert done.exit_code == 1
    lines = done.stdout.splitlines()
    assert lines[0].endswith("'triage' in turn 2: another request, first at $.messages[0].prompt (the prompt)")
    assert lines[1:3] == ['recorded    "You route."', 'replayed    "You route with care."']
    assert lines[3].startswith("then seq ")
    assert len(lines) == 4


def test_as_json(refold_cli: Cli, store_url: str, tmp_path: Path) -> None:
    """The whole report as one document, with the exit code of the text."""
    a_run(store_url, tmp_path / "team")
    changed = team(tmp_path / "changed", model={**TEAM["model"], "temperature": 1})
    done = refold_cli("replay", "run", "r", "--config", changed.source, "--store", store_url, "--json")
    found = json.loads(done.stdout)
    assert (done.exit_code, found["ok"], found["turns"], len(found["consequences"])) == (1, False, 2, 3)
    one = found["divergence"]
    assert (one["kind"], one["path"], one["recorded"], one["replayed"]) == ("request", "$.temperature", 0.0, 1.0)


def test_exit_codes_of_mistakes(refold_cli: Cli, store_url: str, tmp_path: Path) -> None:
    """3 for no such run; 2 for a wrong configuration, for none, and for a run that no engine made."""
    config = a_run(store_url, tmp_path / "team")
    with open_store(store_url, config.schema) as store:
        store.run("by-hand").write_state("limit", 1, writer="triage")
    words = ("replay", "run", "r", "--store", store_url, "--config")
    assert refold_cli("replay", "run", "none", "--config", config.source, "--store", store_url).exit_code == 3
    assert refold_cli(*words, str(tmp_path / "none.yaml")).exit_code == 2
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("default_agent: nobody\n")
    assert refold_cli(*words, str(wrong)).exit_code == 2
    done = refold_cli("replay", "run", "by-hand", "--config", config.source, "--store", store_url)
    assert done.exit_code == 2
    assert "was not made by an engine" in done.stderr


@pytest.mark.parametrize("option", [(), ("--show-sensitive",)])
def test_values_of_sensitive_keys_are_masked(
    refold_cli: Cli, store_url: str, tmp_path: Path, option: tuple[str, ...]
) -> None:
    """A difference in a sensitive value is told, its sides are not; --show-sensitive shows them."""
    own: dict[str, Any] = {"owners": {}, "reducers": {}}
    a_run(store_url, tmp_path / "team", code=SECRET, state_schema="team_tools.State", **own)
    short = SECRET.replace("[str,", "[Annotated[str, StringConstraints(max_length=3)],")
    changed = team(tmp_path / "changed", code=short, state_schema="changed_tools.State", **own)
    words = ("replay", "run", "r", "--config", changed.source, "--store", store_url, "--json", *option)
    one = json.loads(refold_cli(*words).stdout)["divergence"]
    assert (one["kind"], one["key"]) == ("refusal", "code")
    assert (one["replayed"] == "***") is not bool(option)
    assert ("c-77" in json.dumps(one)) is bool(option)
