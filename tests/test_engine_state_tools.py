"""The engine's own tools: they offer what the agent may do, and a call of anything else is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from refold_engine.errors import ToolFailed
from refold_engine.ports import ToolCall, ToolSpec
from refold_engine.state_tools import (
    MAX_FANOUT,
    MAX_TEXT_CHARS,
    NAMES,
    Delegate,
    ReadState,
    Spawn,
    StateKey,
    Target,
    Transfer,
    WriteState,
    asked,
    delegate_task_spec,
    delegate_to_many_spec,
    read_state_spec,
    spawn_agent_spec,
    transfer_agent_spec,
    write_state_spec,
)
from refold_store.codecs import JsonCodec

KEYS = (StateKey("routing", "object", "who does it", basis_required=True), StateKey("reserve"))
FAMILY = StateKey("order/{id}", "object", family=True)
PAYLOAD = {"type": "object", "properties": {"claim": {"type": "integer"}}, "required": ["claim"]}
TARGETS = (Target("billing", "pays"), Target("triage"))


def call(spec: ToolSpec | None, targets: Sequence[Target] = (), **arguments: Any) -> Any:
    """What a call of this tool asks for."""
    assert spec is not None
    return asked(ToolCall("c1", spec.name, arguments), spec, targets)


def refused(spec: ToolSpec | None, targets: Sequence[Target] = (), **arguments: Any) -> str:
    """Why a call of this tool is refused."""
    with pytest.raises(ToolFailed) as caught:
        call(spec, targets, **arguments)
    assert spec is not None
    assert (caught.value.tool, caught.value.unknown) == (spec.name, False)
    return str(caught.value)


def test_every_spec_is_a_json_schema_of_an_object() -> None:
    """Each tool of the engine is told of under its reserved name, with a valid schema that allows nothing more."""
    specs = [
        read_state_spec(KEYS),
        write_state_spec(KEYS),
        transfer_agent_spec(TARGETS),
        delegate_task_spec(TARGETS),
        delegate_to_many_spec(TARGETS),
        spawn_agent_spec(tool_pool=["search"]),
    ]
    assert tuple(spec.name for spec in specs if spec is not None) == NAMES
    for spec in specs:
        assert spec is not None
        assert spec.description
        assert spec.parameters["additionalProperties"] is False
        JsonCodec(spec.parameters).compile()
        assert set(spec.parameters["required"]) <= set(spec.parameters["properties"])


def test_what_an_agent_may_not_do_is_not_offered() -> None:
    """Without keys or targets there is no tool at all."""
    assert read_state_spec([]) is None
    assert write_state_spec([]) is None
    assert transfer_agent_spec([]) is None
    assert delegate_task_spec([]) is None
    assert delegate_to_many_spec([]) is None


def test_transfer_offers_exactly_the_declared_handoffs() -> None:
    """The enum holds the declared agents in order; another target is refused at execution, with a near name."""
    spec = transfer_agent_spec(TARGETS)
    assert spec is not None
    assert spec.parameters["properties"]["target_agent"]["enum"] == ["billing", "triage"]
    assert "billing: pays" in spec.parameters["properties"]["target_agent"]["description"]
    assert call(spec, TARGETS, target_agent="billing", reason="r") == Transfer("billing", "r", None)
    assert call(spec, TARGETS, target_agent="triage") == Transfer("triage", "", None)
    assert "target_agent 'biling' is not allowed here; did you mean 'billing'?" in refused(
        spec, TARGETS, target_agent="biling"
    )
    assert "it is one of 'billing', 'triage'" in refused(spec, TARGETS, target_agent=None)
    assert "no declared handoff" in refused(spec, TARGETS[1:], target_agent="billing")


def test_a_payload_is_checked_against_its_own_targets_schema() -> None:
    """Where a target declares a payload it is asked for and checked; where none is declared there is none."""
    targets = (Target("billing", payload=PAYLOAD), Target("triage"), Target("legal", payload={"type": "string"}))
    spec = transfer_agent_spec(targets)
    assert spec is not None
    assert "payload" not in spec.parameters["required"]
    handed = call(spec, targets, target_agent="billing", payload={"claim": 7})
    assert handed == Transfer("billing", "", {"claim": 7})
    assert "do not fit" in refused(spec, targets, target_agent="billing", payload="seven")
    assert "do not fit" in refused(spec, targets, target_agent="billing", payload={"claim": "7"})
    assert "wants a payload" in refused(spec, targets, target_agent="billing")
    assert "takes no payload" in refused(spec, targets, target_agent="triage", payload={"claim": 7})
    only = transfer_agent_spec(targets[:1])
    assert only is not None
    assert only.parameters["properties"]["payload"] == PAYLOAD
    assert only.parameters["required"] == ["target_agent", "payload"]


def test_reading_and_writing_name_the_keys() -> None:
    """The enum holds the keys the agent may use; a value is taken as it is, for the schema to decide."""
    reading, writing = read_state_spec(KEYS), write_state_spec(KEYS)
    assert reading is not None
    assert reading.parameters["properties"]["key"]["enum"] == ["routing", "reserve"]
    assert "routing (object): who does it" in reading.parameters["properties"]["key"]["description"]
    assert call(reading, key="routing") == ReadState("routing")
    assert "did you mean 'reserve'?" in refused(reading, key="reserv")
    assert call(writing, key="reserve", value="12345") == WriteState("reserve", "12345", None)
    assert call(writing, key="reserve", value=None, basis="b") == WriteState("reserve", None, "b")
    assert "value" in refused(writing, key="reserve")
    assert "do not fit" in refused(writing, key="reserve", value=1, basis=2)


def test_a_basis_is_asked_for_where_a_key_wants_one() -> None:
    """It is required where every key wants one, and named in the text where some do."""
    some, every, none = (write_state_spec(keys) for keys in (KEYS, KEYS[:1], KEYS[1:]))
    assert some is not None
    assert every is not None
    assert none is not None
    assert [spec.parameters["required"] for spec in (some, every, none)] == [
        ["key", "value"],
        ["key", "value", "basis"],
        ["key", "value"],
    ]
    assert "Required for routing." in some.parameters["properties"]["basis"]["description"]
    assert "Required" not in none.parameters["properties"]["basis"]["description"]


def test_a_key_family_lets_the_store_decide() -> None:
    """With a family among the keys the name is free text, and the family is shown."""
    spec = read_state_spec([*KEYS, FAMILY])
    assert spec is not None
    assert "enum" not in spec.parameters["properties"]["key"]
    assert "order/{id} (object)" in spec.parameters["properties"]["key"]["description"]
    assert call(spec, key="order/1") == ReadState("order/1")


def test_delegation_to_one_and_to_many() -> None:
    """One instruction or several, bounded, never empty, and only to the declared agents."""
    one, many = delegate_task_spec(TARGETS), delegate_to_many_spec(TARGETS, most=3)
    assert call(one, target_agent="billing", instruction="do") == Delegate("billing", ("do",), many=False)
    found = call(many, target_agent="billing", instructions=["a", "b"])
    assert found == Delegate("billing", ("a", "b"), many=True)
    for wrong in ([], ["a"] * 4, [""], "abc", ["x" * (MAX_TEXT_CHARS + 1)]):
        assert "do not fit" in refused(many, target_agent="billing", instructions=wrong)
    assert "not allowed here" in refused(one, target_agent="root", instruction="do")
    assert delegate_to_many_spec(TARGETS).parameters["properties"]["instructions"]["maxItems"] == MAX_FANOUT  # type: ignore[union-attr]


def test_spawning_stays_within_its_pools() -> None:
    """Tools and model come from the pools; without a model pool there is no choice of model."""
    spec = spawn_agent_spec(tool_pool=["search", "read"], model_pool=["small"])
    asks = {"role": "r", "instruction": "i", "tools": ["read"]}
    assert call(spec, **asks) == Spawn("r", "i", ("read",), None)
    assert call(spec, **asks, model="small") == Spawn("r", "i", ("read",), "small")
    assert "did you mean 'small'?" in refused(spec, **asks, model="smal")
    assert "do not fit" in refused(spec, **{**asks, "tools": ["shell"]})
    assert "do not fit" in refused(spec, **{**asks, "tools": ["read", "read"]})
    assert "do not fit" in refused(spawn_agent_spec(tool_pool=["read"]), **asks, model="small")
    assert "do not fit" in refused(spawn_agent_spec(tool_pool=[]), **asks)


def test_unknown_arguments_and_other_names_are_refused() -> None:
    """An argument that was not offered, or a call by another name, asks for nothing."""
    reading = read_state_spec(KEYS)
    assert reading is not None
    assert "do not fit" in refused(reading, key="routing", writer="root")
    for name in ("write_state", "other"):
        with pytest.raises(ToolFailed, match="not what was offered"):
            asked(ToolCall("c1", name, {"key": "routing"}), reading)
