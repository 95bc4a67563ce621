"""The compiled configuration: what the engine runs on. Immutable, and free of the file it came from.

Rules of this module
- Every name in it has been looked up, every condition compiled, every dotted path imported.
- Order is the file's: routers are tried in it, agents and tools are offered in it.
- It holds code (tools, condition functions, routers of modules) and so is not stored: `fingerprint` stands for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from refold_store import jsontext
from refold_store.conditions import Condition
from refold_store.keys import Key
from refold_store.schema import Schema

Json = Any

UNTRUSTED = "_untrusted_content_ingested"
"""A name conditions may use beside the keys: whether a tool with `untrusted_output` has returned in this run."""
ENGINE_NAMES = (UNTRUSTED,)
"""Names the engine gives to conditions; no key may have one."""
OWN_TOOLS = ("read_state", "write_state", "transfer_agent", "delegate_task", "delegate_to_many", "spawn_agent",
             "return_to_creator")  # fmt: skip
"""Names of the engine's own tools; no other tool may have one."""


@dataclass(frozen=True, slots=True)
class DataType:
    """A type that data from a model must satisfy: an answer, a result, a payload."""

    name: str
    key: Key = field(repr=False)
    """A key of this type: the store's checks, borrowed."""

    @property
    def schema(self) -> Mapping[str, Json]:
        """The type as JSON Schema."""
        return self.key.schema

    def check(self, data: Json) -> Json:
        """The data as JSON of this type. Raises InvalidValue with the path in it."""
        return jsontext.decode(self.key.prepare(data).text)


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Which models are asked, and how patiently."""

    primary: str
    fallback: str | None = None
    temperature: float | None = 0.2
    timeout_s: float = 60.0
    retries: int = 2

    @property
    def cheap(self) -> str:
        """The model that judges votes and picks routes: the fallback, else the primary."""
        return self.fallback or self.primary


@dataclass(frozen=True, slots=True)
class MemoryConfig:
    """What outlives a run."""

    shared_scope: Literal["session", "tenant", "global"] = "session"


@dataclass(frozen=True, slots=True)
class Breakers:
    """Limits on what a run may do. None: no limit."""

    max_handoffs_per_session: int | None = 25
    max_handoffs_per_turn: int = 10
    max_turns_per_session: int | None = None
    max_model_calls_per_turn: int = 10
    max_tool_failures_in_a_row: int | None = 3
    max_usd_cost_per_session: float | None = None
    max_delegation_depth: int = 3
    max_delegation_turns: int = 15
    max_parallel_fan_out: int = 10
    max_parallel_tool_calls_per_turn: int = 10
    max_tool_result_chars: int | None = 20_000


@dataclass(frozen=True, slots=True)
class ToolConfig:
    """A tool by what does its work: a Python function, or an MCP server that offers tools of its own."""

    name: str
    kind: Literal["python", "mcp"]
    path: str = ""
    """`package.module:function`; empty for a server."""
    function: Callable[..., Any] | None = None
    command: str = ""
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    description: str | None = None
    idempotent: bool = False
    untrusted_output: bool = False
    timeout_s: float | None = None


@dataclass(frozen=True, slots=True)
class AgentTool:
    """A tool as one agent has it. `available_when`: conditions that must all be true."""

    tool: ToolConfig
    available_when: tuple[Condition, ...] = ()
    requires_approval: bool = False

    @property
    def name(self) -> str:
        """The tool's name."""
        return self.tool.name


@dataclass(frozen=True, slots=True)
class Router:
    """A deterministic route, tried before the model: by a condition, or by a function of the state.

    `name` is its path in the file. A condition that is True leads to `targets[0]`. A function gets the state as a
    mapping and returns one of `targets`; True stands for the only one; anything false means: stay.
    """

    name: str
    targets: tuple[str, ...]
    condition: Condition | None = None
    function: Callable[[Mapping[str, Json]], object] | None = None
    path: str = ""
    agent: str | None = None
    """The agent it holds for; None: every agent but its target."""

    @property
    def label(self) -> str:
        """What decides it, for people."""
        return self.condition.expression.strip() if self.condition is not None else f"{self.path}()"


@dataclass(frozen=True, slots=True)
class Handoff:
    """An agent that may be handed over to, and the type of what must come along."""

    target: str
    payload: DataType | None = None


@dataclass(frozen=True, slots=True)
class StateWrite:
    """A write of a key."""

    key: str
    value: Json


@dataclass(frozen=True, slots=True)
class SpawnsConfig:
    """What an agent may create at run time."""

    tool_pool: tuple[str, ...]
    model_pool: tuple[str, ...] | None = None
    max_creations_per_session: int = 3
    requires_approval_on_first_action: bool = True
    allow_recursive_spawning: bool = False
    max_spawn_depth: int = 1
    result: DataType | None = None
    on_complete: tuple[StateWrite, ...] = ()


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """An agent. `prompt` is the text as written; `model` its own model, if it has one."""

    name: str
    prompt: str
    description: str = ""
    model: str | None = None
    tools: tuple[AgentTool, ...] = ()
    handoffs: tuple[Handoff, ...] = ()
    delegations: tuple[str, ...] = ()
    routers: tuple[Router, ...] = ()
    auto_route: tuple[str, ...] = ()
    """Agents a model may pick to go on; empty: no model is asked."""
    spawns: SpawnsConfig | None = None
    response: DataType | None = None

    def tool(self, name: str) -> AgentTool | None:
        """Its tool of this name."""
        return next((one for one in self.tools if one.name == name), None)

    def handoff(self, target: str) -> Handoff | None:
        """Its handoff to this agent."""
        return next((one for one in self.handoffs if one.target == target), None)


@dataclass(frozen=True, slots=True)
class VoteConfig:
    """How the answers of a vote become one."""

    strategy: Literal["majority", "llm_judge"] = "majority"
    min_agreement: float = 0.5
    debate_rounds: int = 1


@dataclass(frozen=True, slots=True)
class Task:
    """A step of a workflow: one agent's task (`agent` given), or the tasks inside."""

    name: str
    kind: Literal["sequential", "parallel", "vote"] = "sequential"
    agent: str | None = None
    instruction: str = ""
    tasks: tuple[Task, ...] = ()
    vote: VoteConfig = VoteConfig()
    on_failure: Literal["fail", "partial", "retry"] = "fail"
    retries: int = 1

    def agents(self) -> Iterator[str]:
        """The agents of this task and those inside, in order, as often as they are named."""
        if self.agent is not None:
            yield self.agent
        for one in self.tasks:
            yield from one.agents()


@dataclass(frozen=True, slots=True)
class Workflow:
    """A fixed course of tasks, one after another."""

    name: str
    tasks: tuple[Task, ...]

    def agents(self) -> tuple[str, ...]:
        """Its agents, each once, in order."""
        return tuple(dict.fromkeys(agent for task in self.tasks for agent in task.agents()))


@dataclass(frozen=True, slots=True)
class Config:
    """A compiled configuration. `source` is the file's path, `fingerprint` the SHA-256 of what it says (64 digits)."""

    schema: Schema
    agents: Mapping[str, AgentConfig]
    default_agent: str
    model: ModelConfig
    name: str = ""
    routers: tuple[Router, ...] = ()
    workflows: Mapping[str, Workflow] = field(default_factory=lambda: MappingProxyType({}))
    breakers: Breakers = Breakers()
    tools: Mapping[str, ToolConfig] = field(default_factory=lambda: MappingProxyType({}))
    condition_functions: Mapping[str, Callable[..., object]] = field(default_factory=lambda: MappingProxyType({}))
    memory: MemoryConfig = MemoryConfig()
    warnings: tuple[str, ...] = ()
    fingerprint: str = ""
    source: str = ""
    folder: str = ""
    """The file's folder, absolute: where the programs of MCP servers are started."""

    def routers_of(self, agent: str) -> tuple[Router, ...]:
        """The routers tried when this agent is active, in order: the root's first, then its own."""
        root = tuple(
            one for one in self.routers if one.agent == agent or (one.agent is None and one.targets != (agent,))
        )
        return root + self.agents[agent].routers
