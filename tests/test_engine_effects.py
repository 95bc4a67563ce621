"""The engine's effects: tools side by side, approvals, what is on record is not done again, spawned agents."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from agents import TEAM, Answers, NoModel, calls, engine, results, team, write

from refold import Store
from refold_engine.errors import ModelFailed, ModelsExhausted
from refold_replay.verify import verify
from refold_store.errors import TransactionInvalid
from refold_store.jsontext import decode
from refold_store.turn_errors import InterruptInvalid

Open = Callable[..., Store]

TOOLS = '''
import threading
from refold_engine.toolcontext import ToolContext

DONE = []
GATE = threading.Event()


def slow(n: int, context: ToolContext) -> int:
    """Waits until fast has run, then writes."""
    assert GATE.wait(20)
    context.write_state("notes", ["slow"])
    return n


def fast(n: int, context: ToolContext) -> int:
    """Writes at once."""
    context.write_state("notes", ["fast"])
    GATE.set()
    return n


def pay(amount: int) -> str:
    """Pays."""
    DONE.append(amount)
    return f"paid {amount}"


def breaks() -> str:
    """Fails."""
    raise RuntimeError("no line")
'''


def with_tools(folder: Path, *tools: dict[str, Any], **changes: Any) -> tuple[Any, Any]:
    """A team whose intake has these tools, and their module."""
    name = f"{folder.name}_tools"
    listed = [{"module": name, **tool} for tool in tools]
    own = changes.pop("own", [tool["name"] for tool in tools])
    agents = {**TEAM["agents"], "intake": {**TEAM["agents"]["intake"], "tools": own}}
    config = team(folder, TOOLS, tools=listed, **{"agents": agents, **changes})
    return config, config.tools[tools[0]["name"]].function.__globals__


def test_calls_side_by_side_apply_in_order(open_new: Open, tmp_path: Path) -> None:
    """Several calls of one answer run at once; what they write counts in the order of the calls."""
    config, _module = with_tools(tmp_path / "side", {"name": "slow"}, {"name": "fast"})
    store = open_new(config.schema)
    model = Answers(intake=[calls(("slow", {"n": 1}), ("fast", {"n": 2}), write("notes", ["own"])), "done"])
    engine(config, store, model).send("r", "go")
    assert store.run("r").state().json() == {"notes": ["slow", "fast", "own"]}
    assert results(store, "r") == ["1", "2", "written"]


@pytest.mark.parametrize(("answer", "paid"), [(True, [5]), ({"approved": True}, [5]), (False, []), ("yes", [])])
def test_a_human_approves(open_new: Open, tmp_path: Path, answer: Any, paid: list[int]) -> None:
    """`requires_approval` commits, asks, and waits across engines; only a clear yes lets the call happen."""
    config, module = with_tools(tmp_path / "pay", {"name": "pay", "requires_approval": True})
    module["DONE"].clear()
    store = open_new(config.schema)
    model = Answers(intake=[calls(write("code", "x"), ("pay", {"amount": 5}))])
    found = engine(config, store, model).send("r", "go")
    assert (found.how, list(found.asked), module["DONE"]) == ("interrupted", ["turn-1-1"], [])
    assert store.run("r").state().json() == {"code": "x"}
    with pytest.raises(TransactionInvalid, match="a person has to answer"):
        engine(config, store, NoModel()).send("r", "more")
    with pytest.raises(InterruptInvalid):
        engine(config, store, NoModel()).resume("r", {"other": True}, by="ada")
    ended = engine(config, store, Answers(intake=["fine"])).resume("r", {"turn-1-1": answer}, by="ada")
    assert (ended.how, ended.text, module["DONE"]) == ("answered", "fine", paid)
    assert ("paid 5" in results(store, "r")[-1]) == bool(paid)
    assert verify(store).findings == []


def test_a_failed_tool_is_told(open_new: Open, tmp_path: Path) -> None:
    """E11: a tool's failure is its result; its third failure in a row trips the breaker, whatever others do."""
    config, _module = with_tools(tmp_path / "bad", {"name": "breaks"}, {"name": "pay"})
    store = open_new(config.schema)
    fail = calls(("breaks", {}))
    found = engine(config, store, Answers(intake=[fail, calls(("pay", {"amount": 1})), fail, fail])).send("r", "go")
    assert (found.how, "max_tool_failures_in_a_row" in found.text) == ("stopped", True)
    assert "no line" in decode(results(store, "r")[0].encode())["error"]
    assert len(results(store, "r")) == 4


def test_unavailable_tools(open_new: Open, tmp_path: Path) -> None:
    """E7: a key that is not set hides the tool silently, a broken condition says so, execution checks again."""
    own = [{"name": "pay", "available_when": "limit > 3"}, {"name": "fast", "available_when": "code > 3"}]
    config, module = with_tools(tmp_path / "gate", {"name": "pay"}, {"name": "fast"}, own=own)
    module["DONE"].clear()
    store = open_new(config.schema)
    model = Answers(intake=[calls(("pay", {"amount": 1})), calls(write("code", "a")), "done"])
    engine(config, store, model).send("r", "go")
    assert [{spec.name for spec in request.tools} & {"pay", "fast"} for request in model.asked] == [set(), set(), set()]
    assert "there is no tool 'pay' here" in results(store, "r")[0]
    [told] = store.run("r").events(("failure.raised",))
    assert "'fast' is hidden" in told.body["message"]
    store.run("r").write_state("limit", 9, writer="triage")
    model = Answers(intake=[calls(("pay", {"amount": 2})), "done"])
    engine(config, store, model).send("r", "again")
    assert module["DONE"] == [2]


def test_a_failed_model_leaves_the_run_where_it_was(open_new: Open, tmp_path: Path) -> None:
    """The turn rolls back, every try is on record; going on begins the turn again and repeats no finished effect."""
    config, module = with_tools(tmp_path / "retry", {"name": "pay"})
    module["DONE"].clear()
    store = open_new(config.schema)
    down = ModelFailed("down", model="m", why="overloaded", repeatable=True)
    first = Answers(intake=[calls(write("code", "x"), ("pay", {"amount": 7})), down, down])
    with pytest.raises(ModelsExhausted):
        engine(config, store, first).send("r", "go")
    assert store.run("r").state().json() == {}
    assert [event.body["model"] for event in store.run("r").events(("failure.raised",))] == ["test/large", "test/small"]
    again = Answers(intake=["done"])
    found = engine(config, store, again).go_on("r")
    assert (found.text, len(again.asked), module["DONE"]) == ("done", 1, [7])
    assert store.run("r").state().json() == {"code": "x"}
    assert [event.turn for event in store.run("r").events(("turn.started",))] == [1, 1]
    assert engine(config, store, NoModel()).go_on("r").text == "done"


def test_a_message_id_is_sent_once(open_new: Open, tmp_path: Path) -> None:
    """The same message under the same id is answered from the record."""
    config = team(tmp_path / "once")
    store = open_new(config.schema)
    assert engine(config, store, Answers(intake=["one"])).send("r", "go", message_id="m").text == "one"
    assert engine(config, store, NoModel()).send("r", "go", message_id="m").text == "one"
    assert engine(config, store, Answers(intake=["two"])).send("r", "go", message_id="n").text == "two"


def test_spawn(open_new: Open, tmp_path: Path) -> None:
    """E10: a made agent gets tools and a model of the pools; what `on_complete` says is written after success."""
    spawns = {
        "tool_pool": ["pay"],
        "model_pool": ["test/tiny"],
        "max_creations_per_session": 1,
        "requires_approval_on_first_action": False,
        "on_complete": [{"key": "code", "value": "made"}],
    }
    agents = {**TEAM["agents"], "intake": {**TEAM["agents"]["intake"], "tools": ["pay", "fast"], "spawns": spawns}}
    tools = [{"name": name, "module": "spawn_tools"} for name in ("pay", "fast")]
    config = team(tmp_path / "spawn", TOOLS, agents=agents, tools=tools)
    module = config.tools["pay"].function.__globals__
    store = open_new(config.schema)
    asked = {"role": "a clerk", "instruction": "pay 3", "tools": ["pay"], "model": "test/tiny"}
    strange = {**asked, "tools": ["fast"]}
    model = Answers(
        intake=[calls(("spawn_agent", strange)), calls(("spawn_agent", asked)), calls(("spawn_agent", asked))],
        **{"intake.spawn1": [calls(("pay", {"amount": 3})), "paid"]},
    )
    found = engine(config, store, model).send("r", "go")
    assert "not allowed" in results(store, "r")[0] or "do not fit" in results(store, "r")[0]
    assert (module["DONE"][-1], results(store, "r")[-1]) == (3, "paid")
    assert [request.model for request in model.asked if request.agent == "intake.spawn1"] == ["test/tiny"] * 2
    assert (found.how, "max_creations_per_session" in found.text) == ("stopped", True)
    assert store.run("r").history("code")[0].json == "made"


def test_threads_use_one_engine(open_new: Open, tmp_path: Path) -> None:
    """One engine serves many runs at once; each has its own turns and its own answer."""
    config = team(tmp_path / "many")
    store = open_new(config.schema)

    class Echo:
        def answer(self, request: Any, *, timeout_s: float) -> Any:
            from refold_engine.ports import ModelAnswer

            return ModelAnswer(f"to {request.messages[-1].content}")

    made = engine(config, store, Echo())
    found: dict[int, str] = {}
    threads = [
        threading.Thread(target=lambda n=n: found.update({n: made.send(f"r{n}", f"{n}").text})) for n in range(12)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {n: f"to {n}" for n in range(12)}
    assert verify(store).findings == []
