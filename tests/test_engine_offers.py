"""What agents are offered and what a call of theirs may do: typed writes, names of tools, outside content, approval."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from agents import TEAM, Answers, NoModel, calls, engine, results, team, write

from refold import Store
from refold_engine.toolnames import tools_of
from refold_replay.verify import verify
from refold_store.errors import ConfigError
from refold_store.jsontext import decode

Open = Callable[..., Store]
INTAKE = TEAM["agents"]["intake"]
TYPES = {
    "typeddict": """
from typing import Annotated, TypedDict
class State(TypedDict):
    invoice_id: KIND
    tags: Annotated[set[str], union]
""",
    "stateschema": """
from typing import Annotated
from refold import Owner, StateSchema
class State(StateSchema):
    invoice_id: Annotated[KIND, Owner("intake")]
    tags: Annotated[set[str], Owner("intake"), union]
""",
}
TOOLS = '''
from refold_engine.toolcontext import ToolContext

DONE = []


def pay(amount: int) -> str:
    """Pays."""
    DONE.append(amount)
    return f"paid {amount}"


def fetch(page: str) -> str:
    """Gets a page."""
    if page == "bad":
        raise RuntimeError("no such page")
    return f"<{page}>"
'''
SERVER = """
import sys
from mcp.server import MCPServer

app = MCPServer("desk")

@app.tool(structured_output=False)
def add(a: int, b: int) -> str:
    "Add two numbers."
    return f"{sys.argv[1]}: {a + b}"

@app.tool(structured_output=False)
def pay(amount: int) -> str:
    return f"{sys.argv[1]} paid {amount}"

@app.tool(structured_output=False)
def read_state(key: str) -> str:
    return f"{sys.argv[1]} has no {key}"

@app.tool(structured_output=False)
def long() -> str:
    return "x" * 5000

app.run()
"""


def with_tools(folder: Path, *tools: dict[str, Any], **changes: Any) -> tuple[Any, list[int]]:
    """A team whose intake has these tools; and what its `pay` has done."""
    name = f"{folder.name}_tools"
    listed = [one if "command" in one else {"module": name, **one} for one in tools]
    own = changes.pop("own", [tool["name"] for tool in tools])
    agents = changes.pop("agents", None) or {**TEAM["agents"], "intake": {**INTAKE, "tools": own}}
    config = team(folder, TOOLS, tools=listed, agents=agents, **changes)
    done = next((one.function.__globals__["DONE"] for one in config.tools.values() if one.function is not None), [])
    done.clear()
    return config, done


# --- typed writes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "value"), [("str", "12345"), ("int", 12345)])
@pytest.mark.parametrize("form", list(TYPES))
def test_the_declared_type_decides(open_new: Open, tmp_path: Path, form: str, kind: str, value: Any) -> None:
    """E1: "12345" is stored as text for a `str`, as a number for an `int`; a refusal is the tool's result."""
    folder = tmp_path / f"types_{form}_{kind}"
    code = "from refold import union\n" + TYPES[form].replace("KIND", kind)
    owners = {"invoice_id": "intake", "tags": "intake"} if form == "typeddict" else None
    more = {} if owners is None else {"owners": owners}
    changes: dict[str, Any] = {"state_schema": f"{folder.name}_tools.State", "reducers": {}, "owners": {}, "groups": {}}
    config = team(folder, code, **{**changes, **more})
    store = open_new(config.schema)
    wrong = write("invoice_id", {"no": 1})
    model = Answers(
        intake=[calls(write("invoice_id", "12345"), wrong, write("tags", ["b", "a"]), ("read_state", {"key": "tags"})),
                "done"]
    )  # fmt: skip
    engine(config, store, model).send("r", "go")
    assert store.run("r").state().json() == {"invoice_id": value, "tags": ["a", "b"]}
    texts = results(store, "r")
    assert "invoice_id" in decode(texts[1].encode())["error"]
    assert texts[3] == '["a","b"]'
    assert [event.key for event in store.run("r").events(("state.refused",))] == ["invoice_id"]


# --- names of tools --------------------------------------------------------------------------------------------------


def servers(tmp_path: Path, *names: str) -> list[dict[str, Any]]:
    """Two or more of the same server, each told its name."""
    pytest.importorskip("mcp", reason="the package `mcp` (extra `mcp`) is not installed")
    import os

    script = tmp_path / "desk.py"
    script.write_text(SERVER)
    env = {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    command = {"type": "mcp", "command": sys.executable, "env": env}
    return [{**command, "name": name, "args": [str(script), name]} for name in names]


def test_tools_of_one_name_are_told_apart(open_new: Open, tmp_path: Path) -> None:
    """A server's tool keeps its name where it is the only one; of two that clash neither overwrites the other."""
    one, two = servers(tmp_path, "desk", "desk.two")
    config, done = with_tools(tmp_path / "names", {"name": "pay"}, one, two)
    store = open_new(config.schema)
    asked = [("pay", {"amount": 1}), ("desk_pay", {"amount": 2}), ("desk_two_pay", {"amount": 3}),
             ("desk_add", {"a": 1, "b": 2}), ("desk_two_add", {"a": 1, "b": 2}), ("add", {"a": 1, "b": 2}),
             ("desk_read_state", {"key": "x"}), ("read_state", {"key": "code"})]  # fmt: skip
    model = Answers(intake=[calls(*asked), "done"])
    with engine(config, store, model) as made:
        made.send("r", "go")
    texts = results(store, "r")
    assert texts[:5] == ["paid 1", "desk paid 2", "desk.two paid 3", "desk: 3", "desk.two: 3"]
    assert "there is no tool 'add'" in texts[5]
    assert (texts[6:], done) == (["desk has no x", "null"], [1])
    names = [spec.name for spec in model.asked[0].tools]
    assert len(names) == len(set(names))


def test_one_server_needs_no_prefix(open_new: Open, tmp_path: Path) -> None:
    """With nothing beside it a server's tools have the server's names; a result over the limit is cut; a person
    may be asked about them."""
    [one] = servers(tmp_path, "desk")
    config, _done = with_tools(
        tmp_path / "one", {**one, "requires_approval": True}, circuit_breakers={"max_tool_result_chars": 100}
    )
    store = open_new(config.schema)
    with engine(config, store, Answers(intake=[calls(("add", {"a": 1, "b": 1}), ("long", {}))])) as made:
        assert made.send("r", "go").how == "interrupted"
        yes = dict.fromkeys(("turn-1-1", "turn-1-2"), True)
    with engine(config, store, Answers(intake=["done"])) as made:
        assert made.resume("r", yes, by="ada").text == "done"
    [first, second] = results(store, "r")
    assert first == "desk: 2"
    assert (second[:100], "cut" in second, len(second) < 300) == ("x" * 100, True, True)


def test_names_that_cannot_be_told_apart() -> None:
    """Two tools that a model would call the same are a mistake that names both."""
    from refold_engine.config import AgentConfig, AgentTool, ToolConfig
    from refold_engine.ports import ToolSpec

    class Named:
        def __init__(self, name: str) -> None:
            self.spec = ToolSpec(name, "", {"type": "object"})

        def call(self, arguments: Any, context: object) -> Any:
            return None

    agent = AgentConfig("a", "", tools=tuple(AgentTool(ToolConfig(name, "mcp")) for name in ("x.y", "x_y")))
    tools = {"x.y.go": Named("go"), "x_y.go": Named("go")}
    with pytest.raises(ConfigError, match=r"'x_y_go': 'x\.y\.go' and 'x_y\.go'"):
        tools_of(agent, tools)  # type: ignore[arg-type]  # a Tool by shape


# --- content from outside --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", ["news", "bad"])
def test_content_from_outside_is_known(open_new: Open, tmp_path: Path, page: str) -> None:
    """A tool with `untrusted_output` marks its result, or its failure; from then on conditions of this run say so: in
    the same turn, in a later one, in a router without a turn, and where the result is served from the record."""
    own = ["fetch", {"name": "pay", "available_when": "not _untrusted_content_ingested"}]
    routers = [{"condition": "_untrusted_content_ingested and code == 'q'", "target": "settle"}]
    agents = {**TEAM["agents"], "intake": {**INTAKE, "tools": own, "routers": routers}}
    tools = ({"name": "fetch", "untrusted_output": True}, {"name": "pay"})
    config, done = with_tools(tmp_path / f"outside_{page}", *tools, agents=agents)
    store = open_new(config.schema)
    look = calls(("fetch", {"page": page}), ("pay", {"amount": 1}))
    with pytest.raises(AssertionError, match="asks once more"):
        engine(
            config, store, Answers(intake=[calls(("pay", {"amount": 0})), look, calls(("pay", {"amount": 2}))])
        ).send("r", "go")
    marks = [event.refs.get("untrusted") for event in store.run("r").events(("tool.returned",))]
    assert marks == [None, True, None, None]
    assert "no tool 'pay'" in results(store, "r")[3]
    again = Answers(intake=[calls(("pay", {"amount": 3}), write("code", "x")), "done"])
    engine(config, store, again).go_on("r")
    assert all("pay" not in [spec.name for spec in request.tools] for request in again.asked)
    assert done == [0, 1]
    store.run("r").write_state("code", "q", writer="intake")
    assert engine(config, store, Answers(settle=["here"])).send("r", "more").agent == "settle"
    assert [event.turn for event in store.run("r").events(("route.decided",))] == [None]
    other = Answers(intake=[calls(("pay", {"amount": 4})), "done"])
    engine(config, store, other).send("other", "go")
    assert done == [0, 1, 4]


# --- a person approves -----------------------------------------------------------------------------------------------


def test_a_task_cannot_ask_a_person(open_new: Open, tmp_path: Path) -> None:
    """A tool that needs a person is not run in a task: its agent is told, the task goes on, and after a handover the
    same tool asks."""
    agents = {
        **TEAM["agents"],
        "intake": {**INTAKE, "delegations": ["settle"], "handoffs": ["settle"]},
        "settle": {"system_prompt": "x", "tools": ["pay"]},
    }
    config, done = with_tools(tmp_path / "task", {"name": "pay", "requires_approval": True}, agents=agents)
    store = open_new(config.schema)
    task = ("delegate_task", {"target_agent": "settle", "instruction": "pay 5"})
    pay = calls(("pay", {"amount": 5}))
    model = Answers(
        intake=[calls(task), calls(("transfer_agent", {"target_agent": "settle"}))],
        settle=[pay, "a person has to approve", pay],
    )
    found = engine(config, store, model).send("r", "go")
    assert "a person has to approve" in decode(results(store, "r")[0].encode())["error"]
    assert (found.how, found.agent, done) == ("interrupted", "settle", [])
    ended = engine(config, store, Answers(settle=["paid"])).resume("r", dict.fromkeys(found.asked, True), by="ada")
    assert (ended.text, done) == ("paid", [5])
    assert verify(store).findings == []


SPAWNS = {"tool_pool": ["pay"], "on_complete": [{"key": "code", "value": "made"}]}


def spawning(folder: Path, pay: dict[str, Any] | None = None, **spawns: Any) -> tuple[Any, list[int]]:
    """A team whose intake makes agents."""
    agents = {**TEAM["agents"], "intake": {**INTAKE, "tools": ["pay"], "spawns": {**SPAWNS, **spawns}}}
    return with_tools(folder, {"name": "pay", **(pay or {})}, agents=agents)


ASKED = {"role": "a clerk", "instruction": "pay 3", "tools": ["pay"]}


@pytest.mark.parametrize("answer", [True, False])
def test_a_person_approves_a_made_agent(open_new: Open, tmp_path: Path, answer: bool) -> None:
    """E10: by default a person decides before a made agent may act; refused, nothing is made and the maker is told."""
    config, done = spawning(tmp_path / f"made_{answer}")
    store = open_new(config.schema)
    strange = {**ASKED, "tools": ["fetch"]}
    first = Answers(intake=[calls(("spawn_agent", strange)), calls(("spawn_agent", ASKED))])
    found = engine(config, store, first).send("r", "go")
    assert [call["arguments"] for call in found.asked.values()] == [ASKED]
    later = Answers(intake=["done"], **{"intake.spawn1": [calls(("pay", {"amount": 3})), "paid"]})
    ended = engine(config, store, later).resume("r", dict.fromkeys(found.asked, answer), by="ada")
    assert (ended.text, done) == ("done", [3] if answer else [])
    assert store.run("r").state().json() == ({"code": "made"} if answer else {})
    assert verify(store).findings == []


def test_a_made_agent_without_tools_needs_nobody(open_new: Open, tmp_path: Path) -> None:
    """E10: what cannot act is not asked about."""
    config, _done = spawning(tmp_path / "idle")
    store = open_new(config.schema)
    model = Answers(intake=[calls(("spawn_agent", {**ASKED, "tools": []})), "done"], **{"intake.spawn1": ["thought"]})
    assert engine(config, store, model).send("r", "go").text == "done"


def test_a_made_agent_is_bound_as_its_maker(open_new: Open, tmp_path: Path) -> None:
    """E10: a tool out of the pool keeps the maker's conditions and approval."""
    config, done = spawning(tmp_path / "bound", {"requires_approval": True}, requires_approval_on_first_action=False)
    store = open_new(config.schema)
    made = {"intake.spawn1": [calls(("pay", {"amount": 3})), "I may not"]}
    engine(config, store, Answers(intake=[calls(("spawn_agent", ASKED)), "done"], **made)).send("r", "go")
    assert "a person has to approve" in results(store, "r")[0]
    assert done == []


def test_a_made_agent_is_made_once(open_new: Open, tmp_path: Path) -> None:
    """E10: a turn that failed and is begun again counts its made agents once and repeats none of their calls."""
    config, done = spawning(tmp_path / "once", requires_approval_on_first_action=False, max_creations_per_session=1)
    store = open_new(config.schema)
    made = {"intake.spawn1": [calls(("pay", {"amount": 3})), "paid"]}
    with pytest.raises(AssertionError, match="asks once more"):
        engine(config, store, Answers(intake=[calls(("spawn_agent", ASKED))], **made)).send("r", "go")
    assert engine(config, store, Answers(intake=["done"])).go_on("r").text == "done"
    assert done == [3]
    with pytest.raises(AssertionError, match="a live call"):
        engine(config, store, NoModel()).send("r", "more")
