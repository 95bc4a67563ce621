"""A recorded run goes through the engine again from the record: no live call, the same bytes, or the difference."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import engine_worker
import pytest
from agents import TEAM, Answers, calls, engine, team, to, write

from refold import Store
from refold_engine.config import Config
from refold_engine.engine import Engine
from refold_engine.errors import ModelFailed
from refold_engine.ports import Message, ModelAnswer, ModelRequest
from refold_replay.rerun import NoEngineRun, rerun
from refold_replay.rerun_judge import Rerun
from refold_store.erasing import erase

TOOLS = '''
from refold_engine.toolcontext import ToolContext

LIVE = []


def lookup(province: str) -> dict:
    """Looks up."""
    LIVE.append(province)
    return {"limit": 15000, "province": province}


def note(text: str, context: ToolContext) -> str:
    """Writes a note, and reads the limit."""
    LIVE.append(text)
    context.write_state("notes", [text])
    return str(context.read_state("limit"))


def break_down(why: str) -> str:
    """Fails."""
    raise ValueError(why)


def pay(amount: int) -> str:
    """Pays."""
    LIVE.append(amount)
    return f"paid {amount}"
'''
AGENTS: dict[str, dict[str, Any]] = {
    "intake": {
        "description": "takes in",
        "system_prompt": "You take in.",
        "handoffs": ["triage"],
        "tools": [{"name": "break_down"}, {"name": "pay", "requires_approval": True}],
    },
    "triage": {
        "description": "routes",
        "system_prompt": "You route.",
        "tools": [{"name": "lookup"}, {"name": "note"}],
        "routers": [{"condition": "limit > 0", "target": "settle"}],
    },
    "settle": {
        "description": "settles",
        "system_prompt": "You settle.",
        "delegations": ["triage"],
        "handoffs": ["triage"],
        "tools": [{"name": "lookup"}],
        "spawns": {"tool_pool": ["lookup"], "model_pool": ["test/small"], "requires_approval_on_first_action": False},
    },
}
ANSWERS: dict[str, list[ModelAnswer | str | Exception]] = {
    "intake": [
        calls(write("loss", {"a": 1.0}), write("limit", 3), ("break_down", {"why": "no such claim"})),
        calls(("pay", {"amount": 5}), ("pay", {"amount": 6})),
        calls(to("triage", reason="new"), text="over to you"),
    ],
    "triage": [
        calls(("lookup", {"province": "QC"}), ("note", {"text": "seen"})),
        calls(write("limit", 5), write("limit", "five"), write("notes", ["x"])),
        calls(("note", {"text": "again"})),
        "looked again",
    ],
    "settle": [
        calls(("delegate_task", {"target_agent": "triage", "instruction": "look again"}), write("notes", ["y"])),
        calls(("spawn_agent", {"role": "a clerk", "instruction": "file it", "tools": ["lookup"]})),
        "Settled.",
        calls(("read_state", {"key": "limit"}), to("triage")),
        "And again.",
    ],
    "settle.spawn1": [calls(("lookup", {"province": "ON"})), "filed"],
}


def a_team(folder: Path, *, agents: Mapping[str, Mapping[str, Any]] | None = None, **changes: Any) -> Config:
    """The team, with members of some agents and some sections changed."""
    folder.mkdir(parents=True, exist_ok=True)
    module = f"{folder.name}_tools"
    tools = [{"name": name, "type": "python", "function": f"{module}.{name}"}
             for name in ("lookup", "note", "break_down", "pay")]  # fmt: skip
    merged = {name: {**AGENTS[name], **(agents or {}).get(name, {})} for name in AGENTS}
    return team(folder, TOOLS, agents=merged, tools=tools, **changes)


def live_calls(config: Config) -> list[Any]:
    """What the tools of a configuration were called with."""
    function = config.tools["lookup"].function
    assert function is not None
    found: list[Any] = function.__globals__["LIVE"]
    return found


def play(store: Store, config: Config, run: str = "r") -> None:
    """A run with handoffs, routes, a task, a made agent, tools that write and fail, refusals, approvals, outsiders."""
    agents = Answers(**ANSWERS)
    with engine(config, store, agents) as at_work:
        store.run(run).open(opened_by="desk", initial={"code": "c-1"})
        asked = at_work.send(run, "An accident.", message_id="m1").asked
        ids = sorted(asked)
        at_work.resume(run, {ids[0]: True, ids[1]: {"approved": False, "note": "too much"}}, by="ann")
        store.run(run).write_state("limit", 9, writer="triage", basis="by hand", based_on=["loss@1"])
        with store.run(run).transaction() as both:
            both.write_state("code", "c-2", writer="intake")
            both.write_state("notes", ["z"], writer="settle")
        store.run(run).delete_state("loss", writer="intake")
        store.run(run).append("note.added", actor="ann", body={"note": "looks odd"})
        result = at_work.send(run, "And now?")
    assert (result.how, result.text) == ("answered", "And again.")


@pytest.fixture
def played(open_new: Callable[..., Store], tmp_path: Path) -> tuple[Store, Callable[..., Rerun]]:
    """The store with the run `r`, and `again(...)`: the run replayed under the team with changes."""
    first = a_team(tmp_path / "same")
    store = open_new(first.schema)
    play(store, first)
    assert len(live_calls(first)) > 3
    count = 0

    def again(**changes: Any) -> Rerun:
        nonlocal count
        count += 1
        folder = tmp_path / "same" if not changes else tmp_path / f"again{count}"
        config = a_team(folder, **changes)
        found = rerun(store.run("r"), config)
        if changes:
            assert live_calls(config) == []
        return found

    return store, again


def at(found: Rerun) -> tuple[str, str, str]:
    """Kind, agent and path of the first difference."""
    one = found.divergence
    assert one is not None
    return one.kind, one.agent, one.path


def event_of(store: Store, kind: str, agent: str, nth: int = 0) -> int:
    """The seq of an agent's nth event of a kind."""
    return [event.seq for event in store.run("r").events((kind,)) if event.actor == agent][nth]


def test_the_same_config_gives_the_same_bytes(played: tuple[Store, Callable[..., Rerun]]) -> None:
    """X1: all of it reproduces, no tool is called, no model is there to be asked, and nothing is written."""
    store, again = played
    head = store.run("r").head_seq()
    found = again()
    assert (found.ok, found.divergence, found.stopped, found.notes) == (True, None, None, [])
    kinds = [event.kind for event in store.run("r").events()]
    assert found.requests == kinds.count("model.answered") == 14
    assert found.tool_calls == kinds.count("tool.returned")
    assert found.writes == kinds.count("state.written") + kinds.count("state.deleted")
    assert (found.refusals, found.routes) == (1, 1)
    assert store.run("r").head_seq() == head


@pytest.mark.parametrize(
    ("changes", "kind", "agent", "path"),
    [
        ({"agents": {"settle": {"system_prompt": "Be kind."}}}, "request", "settle", "$.messages[0].prompt"),
        ({"model": {**TEAM["model"], "primary": "test/huge"}}, "request", "intake", "$.model"),
        ({"model": {**TEAM["model"], "temperature": 0.5}}, "request", "intake", "$.temperature"),
        ({"agents": {"triage": {"tools": [{"name": "lookup"}]}}}, "request", "triage", "$.tools[3]"),
        ({"agents": {"triage": {"routers": [{"condition": "limit > 6", "target": "settle"}]}}}, "route", "triage", "$"),
        ({"circuit_breakers": {"max_model_calls_per_turn": 2}}, "stop", "triage", "$"),
        ({"circuit_breakers": {"max_tool_failures_in_a_row": 1}}, "stop", "intake", "$"),
        ({"owners": {**TEAM["owners"], "code": "settle"}}, "request", "intake",
         "$.tools[1].parameters.properties.key.description"),
        ({"reducers": {}}, "write", "triage", "$.update"),
        ({"state_schema": {**TEAM["state_schema"], "limit": {"type": "integer", "maximum": 4}}}, "refusal", "triage",
         "$"),
        ({"agents": {"settle": {"handoffs": []}}}, "request", "settle", "$.tools"),
    ],
)  # fmt: skip
def test_one_change_gives_its_divergence(
    played: tuple[Store, Callable[..., Rerun]], changes: dict[str, Any], kind: str, agent: str, path: str
) -> None:
    """X2: a changed prompt, model, tool list, router, breaker, owner, reducer, type: kind, agent and path of it."""
    _store, again = played
    found = again(**changes)
    assert at(found)[:2] == (kind, agent)
    assert at(found)[2].startswith(path)


def test_the_divergence_names_seq_and_both_sides(played: tuple[Store, Callable[..., Rerun]]) -> None:
    """X2: the seq is that of the first request with the changed prompt; later ones follow from it."""
    store, again = played
    found = again(agents={"settle": {"system_prompt": "Be kind."}})
    one = found.divergence
    assert one is not None
    assert (one.seq, one.recorded, one.replayed) == (
        event_of(store, "model.answered", "settle"),
        "You settle.",
        "Be kind.",
    )
    assert [after.seq for after in found.consequences] == [
        event_of(store, "model.answered", "settle", nth) for nth in range(1, 5)
    ]
    assert (one.root, found.consequences[0].root, found.stopped) == (True, False, None)


def test_a_changed_schema_is_said_first(played: tuple[Store, Callable[..., Rerun]]) -> None:
    """The record names its schema; another one is noted even where nothing differs by it."""
    _store, again = played
    found = again(
        state_schema={**TEAM["state_schema"], "unused": {"type": "string"}},
        owners={**TEAM["owners"], "unused": "settle"},
    )
    assert "another state schema" in found.notes[0]


def test_a_write_from_outside_may_be_refused_now(played: tuple[Store, Callable[..., Rerun]]) -> None:
    """X2: writes of people go through the same checks: a type that holds their value no more refuses it."""
    store, again = played
    found = again(state_schema={**TEAM["state_schema"], "limit": {"type": "integer", "maximum": 8}})
    seq = next(event.seq for event in store.run("r").events(("state.written",)) if event.body.get("basis") == "by hand")
    one = found.divergence
    assert one is not None
    assert (one.kind, one.seq, one.agent, one.key) == ("refusal", seq, "triage", "limit")


def test_a_given_tool_is_called_and_its_result_compared(
    played: tuple[Store, Callable[..., Rerun]], tmp_path: Path
) -> None:
    """X2: another result of a tool is a difference of kind `tool` at the path in it, and the next request follows."""
    store, _again = played
    config = a_team(tmp_path / "given")

    class Other:
        def __init__(self) -> None:
            with Engine(config, store, Answers()) as at_rest:
                self.spec = at_rest.tools["lookup"].spec

        def call(self, arguments: Mapping[str, Any], context: object) -> Any:
            return {"limit": 9, **arguments}

    found = rerun(store.run("r"), config, tools={"lookup": Other()})
    assert at(found) == ("tool", "triage", "$.result.limit")
    assert found.divergence is not None
    assert (found.divergence.recorded, found.divergence.replayed) == (15000, 9)
    assert found.consequences[0].kind == "request"


def test_a_run_of_no_engine_is_refused(open_new: Callable[..., Store], tmp_path: Path) -> None:
    """There is nothing to run again in a run that agents of another program wrote."""
    config = a_team(tmp_path / "team")
    store = open_new(config.schema)
    store.run("r").write_state("limit", 1, writer="triage")
    with pytest.raises(NoEngineRun, match="not made by an engine"):
        rerun(store.run("r"), config)


def test_tries_and_attempts_that_failed_are_left_out(open_new: Callable[..., Store], tmp_path: Path) -> None:
    """Failed tries, and an attempt that was rolled back, are left out; what others wrote meanwhile is not."""
    config = team(tmp_path / "team", model={**TEAM["model"], "fallback": None, "retries": 1})
    store = open_new(config.schema)
    down = ModelFailed("down", model="test/large", why="overloaded", repeatable=True)
    agents = Answers(intake=[calls(write("code", "a"), cost=0.5), down, down, down, "done"])
    with engine(config, store, agents) as at_work:
        with pytest.raises(ModelFailed):
            at_work.send("r", "hello")
        store.run("r").write_state("limit", 5, writer="triage")
        assert at_work.go_on("r").text == "done"
    found = rerun(store.run("r"), config)
    assert (found.divergence, found.attempts_dropped, found.requests, found.writes) == (None, 1, 1, 1)


def test_what_came_from_outside_within_a_turn(open_new: Callable[..., Store], tmp_path: Path) -> None:
    """Each reader sees the version it saw then: before the first look, while a model is asked, before a read, before
    the commit."""
    config = a_team(tmp_path / "team", agents={"triage": {"routers": []}})
    store = open_new(config.schema)
    meddled = 0

    def meddle() -> None:
        nonlocal meddled
        meddled += 1
        store.run("r").write_state("limit", meddled, writer="triage")

    class Meddled(Answers):
        def answer(self, request: ModelRequest, *, timeout_s: float) -> ModelAnswer:
            if len(self.asked) < 3:
                meddle()
                message = Message("user", f"by the way {len(self.asked)}")
                store.run("r").append("message.added", actor="user", body={"message": message.to_json()})
            return super().answer(request, timeout_s=timeout_s)

    def tell(what: str, _facts: dict[str, Any]) -> None:
        if what in ("turn", "said"):
            meddle()

    mine: list[ModelAnswer | str | Exception]
    mine = [calls(write("code", "a"), write("notes", ["mine"])), calls(("read_state", {"key": "limit"})), "done",
            "And that."]  # fmt: skip
    with engine(config, store, Meddled(intake=mine), tell) as at_work:
        assert at_work.send("r", "hello").text == "And that."  # what came in meanwhile wants an answer, too
    found = rerun(store.run("r"), config)
    assert found.divergence is None
    assert found.inputs_in_turns == meddled + 3
    assert found.writes == meddled + 2


@pytest.mark.parametrize("kill_at", [5, 10, 16, -19, -24])
def test_a_run_that_was_killed_and_went_on(
    open_new: Callable[..., Store], store_url: str, tmp_path: Path, kill_at: int
) -> None:
    """An attempt ended by kill -9, and gone on with: what it was served again stands at its place."""
    folder = tmp_path / "crash"
    path = os.pathsep.join([str(Path(engine_worker.__file__).parent), *sys.path])
    for moment in (kill_at, 0):
        command = [sys.executable, engine_worker.__file__, store_url, str(folder), str(moment)]
        done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, check=False)
        assert done.returncode == (0 if moment == 0 else -9), done.stderr
    config = engine_worker.config(folder)
    found = rerun(open_new(config.schema).run("r"), config)
    assert found.divergence is None
    assert (found.turns, found.writes) == (2, 5)
    assert (folder / "paid.txt").read_text().count("5") == 1


def test_an_unfinished_turn_is_named(open_new: Callable[..., Store], tmp_path: Path) -> None:
    """What the record leaves open is not compared, and said."""
    config = team(tmp_path / "team", model={**TEAM["model"], "fallback": None})
    store = open_new(config.schema)
    down = ModelFailed("down", model="test/large", why="auth", repeatable=False)
    with engine(config, store, Answers(intake=["hi", down])) as at_work:
        at_work.send("r", "hello")
        with pytest.raises(ModelFailed):
            at_work.send("r", "again")
    found = rerun(store.run("r"), config)
    assert (found.ok, found.turns, found.unfinished, found.attempts_dropped) == (True, 1, 2, 1)


def test_what_was_erased_is_not_compared(open_new: Callable[..., Store], tmp_path: Path) -> None:
    """An erased value of the agents' is compared by its key; one of others cannot be applied, and is named."""
    config = team(tmp_path / "team")
    store = open_new(config.schema)
    with engine(config, store, Answers(intake=[calls(write("code", "a")), "done", "and done"])) as at_work:
        at_work.send("r", "hello")
        store.run("r").write_state("limit", 5, writer="triage")
    for key in ("code", "limit"):
        erase(store, "r", key=key, by="keeper", reason="asked for")
    found = rerun(store.run("r"), config)
    seq = event_of(store, "state.written", "triage")
    assert (found.divergence, found.erased, found.writes) == (None, [seq], 1)
