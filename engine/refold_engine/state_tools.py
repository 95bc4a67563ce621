"""The engine's own tools: state, handoff, delegation, spawning. What a model is told, and what it asked for.

Rules of this module
- Pure. Each offer is a ToolSpec whose enums hold what this agent may do and nothing else; None where that is nothing.
- `asked` checks a call against the very spec that was offered, so that what was not offered is refused at execution
  too, and gives a typed command.
- Argument names are those of the YAML format that configurations are written in.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from refold_engine.errors import ToolFailed
from refold_engine.ports import Json, ToolCall, ToolSpec
from refold_store import jsontext
from refold_store.codecs import JsonCodec
from refold_store.errors import InvalidValue

MAX_FANOUT = 50
"""Most instructions in one `delegate_to_many`, where the configuration does not say."""

CODECS_MAX = 256
"""Compiled schemas of tools that are kept."""

MAX_TEXT_CHARS = 20_000
"""Longest instruction or reason, in characters: what is longer belongs into the state."""

NAMES = ("read_state", "write_state", "transfer_agent", "delegate_task", "delegate_to_many", "spawn_agent")
"""Names that no tool of the user's may have."""


@dataclass(frozen=True, slots=True)
class StateKey:
    """A key as an agent is told of it. A family (`order/{id}`) stands for many keys."""

    name: str
    type: str = ""
    """Its type in a word or two, or empty."""
    description: str = ""
    family: bool = False
    basis_required: bool = False


@dataclass(frozen=True, slots=True)
class Target:
    """An agent that may be handed to or given work. `payload` is the JSON Schema of what is handed over, if any."""

    agent: str
    description: str = ""
    payload: Mapping[str, Json] | None = None


@dataclass(frozen=True, slots=True)
class ReadState:
    """Read one key."""

    key: str


@dataclass(frozen=True, slots=True)
class WriteState:
    """Write one key. What the value means is the schema's to say."""

    key: str
    value: Json
    basis: str | None


@dataclass(frozen=True, slots=True)
class Transfer:
    """Hand the conversation to another agent. `payload` satisfies the target's schema; None where it has none."""

    agent: str
    reason: str
    payload: Json


@dataclass(frozen=True, slots=True)
class Delegate:
    """Give one agent a task for each instruction. `many`: asked for as a fan-out, though it may be of one."""

    agent: str
    instructions: tuple[str, ...]
    many: bool


@dataclass(frozen=True, slots=True)
class Spawn:
    """Make a new agent with a part of the tool pool. `model` None: the creator's."""

    role: str
    instruction: str
    tools: tuple[str, ...]
    model: str | None


Command = ReadState | WriteState | Transfer | Delegate | Spawn


# -- what is offered -------------------------------------------------------------------------------------------------


def read_state_spec(keys: Sequence[StateKey]) -> ToolSpec | None:
    """Reading, for an agent that may read these keys."""
    if not keys:
        return None
    text = "Read one value of the shared state, as JSON."
    return _spec("read_state", text, {"key": _key(keys)}, ["key"])


def write_state_spec(keys: Sequence[StateKey]) -> ToolSpec | None:
    """Writing, for an agent that owns these keys, alone or in a group. A basis is asked for if any key wants one."""
    if not keys:
        return None
    properties: dict[str, Json] = {
        "key": _key(keys),
        "value": {"description": "The value, or what is added to it where the key accumulates; of the key's type."},
        "basis": _text("Why this value: what it rests on, in a few words." + _wanted(keys)),
    }
    required = ["key", "value"]
    if all(key.basis_required for key in keys):
        required.append("basis")
    text = "Write one value of the shared state. A refusal says what was wrong."
    return _spec("write_state", text, properties, required)


def transfer_agent_spec(targets: Sequence[Target]) -> ToolSpec | None:
    """Handing over, to exactly these agents."""
    if not targets:
        return None
    properties: dict[str, Json] = {
        "target_agent": _agent("The agent that takes over.", targets),
        "reason": _text("Why, for the agent that takes over."),
    }
    required = ["target_agent"]
    payloads = [target for target in targets if target.payload is not None]
    if payloads:
        properties["payload"] = _payload(payloads)
        if len(payloads) == len(targets):
            required.append("payload")
    return _spec("transfer_agent", "Hand the conversation over to another agent.", properties, required)


def delegate_task_spec(targets: Sequence[Target]) -> ToolSpec | None:
    """One task for one of these agents."""
    if not targets:
        return None
    properties = {
        "target_agent": _agent("The agent that does the task.", targets),
        "instruction": _text("What to do, complete in itself.", least=1),
    }
    text = "Give another agent a task, wait for it, and get its result."
    return _spec("delegate_task", text, properties, ["target_agent", "instruction"])


def delegate_to_many_spec(targets: Sequence[Target], *, most: int = MAX_FANOUT) -> ToolSpec | None:
    """One of these agents several times at once, at most `most` times."""
    if not targets:
        return None
    properties = {
        "target_agent": _agent("The agent that does each task.", targets),
        "instructions": {
            "type": "array",
            "items": _text("What to do, complete in itself.", least=1),
            "minItems": 1,
            "maxItems": most,
            "description": "One instruction for each task; they run at the same time.",
        },
    }
    text = "Give one agent several tasks at once, wait for all, and get the results together."
    return _spec("delegate_to_many", text, properties, ["target_agent", "instructions"])


def spawn_agent_spec(*, tool_pool: Sequence[str], model_pool: Sequence[str] = ()) -> ToolSpec:
    """A new agent, with tools out of this pool and a model out of that one, if there is a choice."""
    tools: dict[str, Json] = {"type": "array", "uniqueItems": True, "description": "The tools it gets, no more."}
    tools |= {"items": {"type": "string", "enum": list(tool_pool)}} if tool_pool else {"maxItems": 0}
    properties: dict[str, Json] = {
        "role": _text("What the new agent is, in a few words.", least=1),
        "instruction": _text("Its task, complete in itself.", least=1),
        "tools": tools,
    }
    if model_pool:
        properties["model"] = {"type": "string", "enum": list(model_pool), "description": "Its model."}
    text = "Make a new agent for one narrow task, wait for it, and get its result."
    return _spec("spawn_agent", text, properties, ["role", "instruction", "tools"])


def _spec(name: str, description: str, properties: Mapping[str, Json], required: Sequence[str]) -> ToolSpec:
    parameters = {
        "type": "object",
        "properties": dict(properties),
        "required": list(required),
        "additionalProperties": False,
    }
    return ToolSpec(name, description, parameters)


def _text(description: str, *, least: int = 0) -> dict[str, Json]:
    found: dict[str, Json] = {"type": "string", "maxLength": MAX_TEXT_CHARS, "description": description}
    return {**found, "minLength": least} if least else found


def _agent(description: str, targets: Sequence[Target]) -> dict[str, Json]:
    told = [f"{target.agent}: {target.description}" for target in targets if target.description]
    return {
        "type": "string",
        "enum": [target.agent for target in targets],
        "description": "\n".join([description, *told]),
    }


def _key(keys: Sequence[StateKey]) -> dict[str, Json]:
    """Exactly these keys; with a family among them any text, since the store knows its members and not this spec."""
    found: dict[str, Json] = {"type": "string"}
    if not any(key.family for key in keys):
        found["enum"] = [key.name for key in keys]
    told = [_told(key) for key in keys if key.type or key.description or key.family]
    families = ["A part in braces stands for a text of your choice."] if "enum" not in found else []
    return {**found, "description": "\n".join(["The key.", *told, *families])}


def _told(key: StateKey) -> str:
    kind = f" ({key.type})" if key.type else ""
    return f"{key.name}{kind}: {key.description}" if key.description else f"{key.name}{kind}"


def _wanted(keys: Sequence[StateKey]) -> str:
    wanting = [key.name for key in keys if key.basis_required]
    return f" Required for {', '.join(wanting)}." if wanting and len(wanting) < len(keys) else ""


def _payload(targets: Sequence[Target]) -> Json:
    if len(targets) == 1:
        return dict(targets[0].payload or {})
    told = "What is handed over, as the target wants it: " + ", ".join(target.agent for target in targets) + "."
    return {"anyOf": [dict(target.payload or {}) for target in targets], "description": told}


# -- what was asked --------------------------------------------------------------------------------------------------


def asked(call: ToolCall, spec: ToolSpec, targets: Sequence[Target] = ()) -> Command:
    """The command in a model's call of one of these tools, as `spec` offered it.

    `targets` are those of the spec: a transfer's payload is checked against its target's own schema. Raises ToolFailed.
    """
    if call.name != spec.name or call.name not in NAMES:
        raise ToolFailed(f"{call.name!r} is not what was offered ({spec.name!r})", tool=call.name)
    given = _checked(call, spec)
    match call.name:
        case "read_state":
            return ReadState(given["key"])
        case "write_state":
            return WriteState(given["key"], given["value"], given.get("basis"))
        case "transfer_agent":
            payload = _handed(call.name, given, targets)
            return Transfer(given["target_agent"], given.get("reason", ""), payload)
        case "delegate_task":
            return Delegate(given["target_agent"], (given["instruction"],), many=False)
        case "delegate_to_many":
            return Delegate(given["target_agent"], tuple(given["instructions"]), many=True)
    return Spawn(given["role"], given["instruction"], tuple(given["tools"]), given.get("model"))


def _checked(call: ToolCall, spec: ToolSpec) -> dict[str, Json]:
    _check_choices(call, spec)
    found: dict[str, Json] = _valid(call.name, dict(call.arguments), spec.parameters, "its arguments")
    return found


def _check_choices(call: ToolCall, spec: ToolSpec) -> None:
    """Refuse what is not among the choices, in words that name them."""
    for name, schema in spec.parameters["properties"].items():
        choices, given = schema.get("enum"), call.arguments.get(name)
        if choices is None or name not in call.arguments or given in choices:
            continue
        near = difflib.get_close_matches(str(given), choices, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"it is one of {', '.join(map(repr, choices))}"
        raise ToolFailed(f"{call.name}: {name} {str(given)[:80]!r} is not allowed here; {hint}", tool=call.name)


def _handed(tool: str, given: Mapping[str, Json], targets: Sequence[Target]) -> Json:
    """The payload, checked against the schema of the very target."""
    target = next((one for one in targets if one.agent == given["target_agent"]), None)
    if target is None:
        raise ToolFailed(f"{tool}: {given['target_agent']!r} is no declared handoff", tool=tool)
    if target.payload is None:
        if given.get("payload") is not None:
            raise ToolFailed(f"{tool}: {target.agent!r} takes no payload; leave it out", tool=tool)
        return None
    if "payload" not in given:
        raise ToolFailed(f"{tool}: {target.agent!r} wants a payload", tool=tool)
    return _valid(tool, given["payload"], target.payload, f"the payload for {target.agent!r}")


@lru_cache(maxsize=CODECS_MAX)
def _codec(schema: bytes) -> JsonCodec:
    """The validator of a schema, given as its canonical text: the same tools are called again and again."""
    return JsonCodec(jsontext.decode(schema))


def _valid(tool: str, value: Json, schema: Mapping[str, Json], what: str) -> Json:
    try:
        return _codec(jsontext.encode(dict(schema))).check(value)[0]
    except InvalidValue as error:
        raise ToolFailed(f"{tool}: {what} do not fit: {error}", tool=tool) from error
