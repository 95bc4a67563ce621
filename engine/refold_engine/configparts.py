"""The parts of a configuration file, as Pydantic models: tools, agents, workflows. The whole file is in configfile.py.

Rules of this module
- A model says what may stand in the file and nothing about what it means: names are looked up in `compiling`.
- Nothing is converted: a text is no number, a number no text. An unknown field is an error.
- A field of the wider format that refold does not use is declared `OutOfScope`: it loads, and one warning names it.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

BREAKER_MAX = 1_000_000
"""Largest count a limit may be set to: beyond it a limit is none."""
RETRIES_MAX = 10
"""Most repeats of one model call or one branch."""
DEBATE_ROUNDS_MAX = 5
"""Most rounds of one vote: each costs a turn of every branch."""
NOT_USED = "Belongs to the wider format; refold does not use it and names it in a warning."


class Unused:
    """Marks a field that refold reads and does not use."""


OutOfScope = Annotated[Any, Unused(), Field(default=None, description=NOT_USED)]


class Part(BaseModel):
    """Base of all parts: strict, closed, immutable."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


def _named(field: str, part: type[Part]) -> BeforeValidator:
    """Lets a bare name stand for a part that gives nothing but this field."""
    return BeforeValidator(
        lambda given: {field: given} if isinstance(given, str) else given, json_schema_input_type=str | part
    )


def _all_of_them(given: Any) -> Any:
    return ["*"] if given == "*" else given


class ToolPart(Part):
    """A tool: a Python function, an MCP server, or the name of one declared at the root."""

    name: str = Field(description="What a model calls it; for a reference, a tool declared at the root.")
    type: Literal["python", "mcp", "openapi", "sandbox"] | None = Field(
        default=None, description="`mcp` for a server; openapi and sandbox are named in a warning and left out."
    )
    module: str | None = Field(default=None, description="The Python module that holds a function of this name.")
    function: str | None = Field(default=None, description="Dotted path of the function, if it has another name.")
    command: str | None = Field(default=None, description="MCP: the program to start; it talks over stdio.")
    args: list[str] = Field(default_factory=list, description="MCP: the program's arguments.")
    env: dict[str, str] = Field(default_factory=dict, description="MCP: variables added to its environment.")
    description: str | None = Field(default=None, description="What a model is told; else the function's docstring.")
    requires_approval: bool = Field(default=False, description="A person must approve each call first.")
    available_when: str | None = Field(default=None, description="A condition: offered and allowed only while true.")
    idempotent: bool = Field(default=False, description="Doing it twice is as good as once: a lost call is repeated.")
    untrusted_output: bool | None = Field(
        default=None, description="Its result comes from outside; true by default for MCP servers, else false."
    )
    timeout: float | None = Field(default=None, gt=0, description="Seconds one call may take.")
    required_approvals: OutOfScope
    required_approvers: OutOfScope
    max_task_wait_seconds: OutOfScope
    url: OutOfScope
    auth_env: OutOfScope
    backend: OutOfScope
    e2b_template: OutOfScope
    language: OutOfScope
    timeout_seconds: OutOfScope
    max_memory_mb: OutOfScope


class RouterPart(Part):
    """A deterministic route: where to go when a condition is true, before any model is asked."""

    condition: str | None = Field(default=None, description="A condition over the state.")
    custom_module: str | None = Field(
        default=None, description="A module with `route(state)`: returns the target, or nothing to stay."
    )
    target: str = Field(description="The agent to go to.")
    description: str | None = Field(default=None, description="What it decides, for people.")


class RootRouterPart(Part):
    """A router at the root: for the agent it is named after, else for every agent."""

    description: str | None = Field(default=None, description="What it decides, for people.")
    module: str | None = Field(default=None, description="A module with `route(state)`: returns a target or nothing.")
    possible_targets: list[str] = Field(default_factory=list, description="The targets the module may return.")
    condition: str | None = Field(default=None, description="A condition over the state.")
    target: str | None = Field(default=None, description="The agent to go to when the condition is true.")
    agent: str | None = Field(default=None, description="The agent it holds for, if not the one it is named after.")


class HandoffPart(Part):
    """An agent that may be handed over to, and what must come along."""

    agent: str = Field(description="The agent to hand over to.")
    payload: str | dict[str, Any] | None = Field(
        default=None, description="Type of the payload: dotted path of a Pydantic model, or JSON Schema."
    )


class StateWritePart(Part):
    """A write that is made when a spawned agent has completed."""

    key: str = Field(description="The key; its owner must be the agent that spawns, or a group it is in.")
    value: Any = Field(description="The update to write.")


class SpawnsPart(Part):
    """What an agent may create at run time, and how much of it."""

    tool_pool: Annotated[list[str], BeforeValidator(_all_of_them, json_schema_input_type=Literal["*"] | list[str])] = (
        Field(description="Tools a created agent may be given, out of the creator's own; `*` stands for all of them.")
    )
    model_pool: list[str] | None = Field(default=None, description="Models to choose from; else the creator's.")
    max_creations_per_session: int = Field(default=3, ge=1, le=BREAKER_MAX, description="Creations in one run.")
    requires_approval_on_first_action: bool = Field(
        default=True, description="A person approves a created agent's first tool call."
    )
    allow_recursive_spawning: bool = Field(default=False, description="A created agent may create agents.")
    max_spawn_depth: int = Field(default=1, ge=1, le=100, description="Levels of creation, if it may.")
    result_schema: str | dict[str, Any] | None = Field(
        default=None, description="Type of the result: dotted path of a Pydantic model, or JSON Schema."
    )
    on_complete: list[StateWritePart] = Field(
        default_factory=list, description="Writes made after success, through the write path."
    )


class AgentPart(Part):
    """An agent."""

    description: str | None = Field(default=None, description="What it is for; models that choose an agent see it.")
    model_override: str | None = Field(default=None, description="Its model, in place of `model.primary`.")
    system_prompt: str | None = Field(default=None, description="Its prompt, as text.")
    system_prompt_file: str | None = Field(default=None, description="A file with its prompt, beside this one.")
    response_schema: str | dict[str, Any] | None = Field(
        default=None, description="Type of its answer: dotted path of a Pydantic model, or JSON Schema."
    )
    auto_route: bool = Field(
        default=False, description="A model picks who goes on: one of its handoffs, or any agent if it has none."
    )
    tools: list[Annotated[ToolPart, _named("name", ToolPart)]] = Field(
        default_factory=list, description="Tools it may call."
    )
    handoffs: list[Annotated[HandoffPart, _named("agent", HandoffPart)]] = Field(
        default_factory=list, description="Agents it may hand over to."
    )
    delegations: list[str] = Field(default_factory=list, description="Agents it may give a part of its task to.")
    routers: list[RouterPart] = Field(default_factory=list, description="Routes checked before its model, in order.")
    spawns: SpawnsPart | None = Field(default=None, description="What it may create at run time.")
    system_prompt_langfuse: OutOfScope
    system_prompt_module: OutOfScope
    prompt_key: OutOfScope
    required_scopes: OutOfScope
    lazy_load_tools: OutOfScope
    skills: OutOfScope


class VotePart(Part):
    """How the answers of a vote become one."""

    strategy: Literal["majority", "llm_judge"] = Field(default="majority", description="By count, or by a model.")
    min_agreement: float = Field(default=0.5, ge=0.0, le=1.0, description="Share of branches that must agree.")
    debate_rounds: int = Field(
        default=1, ge=1, le=DEBATE_ROUNDS_MAX, description="Rounds in which each branch sees the others' answers."
    )


class TaskPart(Part):
    """A step of a workflow: one agent's task, or several tasks together."""

    name: str = Field(description="Its name, unique among its neighbours.")
    type: Literal["sequential", "parallel", "vote"] = Field(
        default="sequential", description="How its tasks run: one after another, together, or together as a vote."
    )
    agent: str | None = Field(default=None, description="Who does it, if it has no tasks of its own.")
    instruction: str | None = Field(default=None, description="What the agent is told.")
    tasks: list[TaskPart] | None = Field(default=None, description="The tasks inside.")
    vote: VotePart | None = Field(default=None, description="For a vote.")
    on_failure: Literal["fail", "partial", "retry"] = Field(
        default="fail", description="If a branch fails: fail, go on with the others, or try it again."
    )
    retries: int = Field(default=1, ge=1, le=RETRIES_MAX, description="Repeats of a branch, for `retry`.")
