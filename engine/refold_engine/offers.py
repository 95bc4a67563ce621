"""What an agent is offered to call: the engine's own tools, and the user's, as the state allows just now.

Rules of this module
- Pure but for what it is given to look with. An offer is made anew for every model call, and asked again at the call.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from refold_engine import gating
from refold_engine import state_tools as own
from refold_engine.config import AgentConfig, AgentTool, Config
from refold_engine.ports import Tool, ToolSpec
from refold_engine.prompting import may_read
from refold_engine.routing import Peeked
from refold_engine.toolnames import tools_of
from refold_store.keys import Key


@dataclass(frozen=True, slots=True)
class Offer:
    """What may be called, by name; and what was wrong with the conditions of tools that are hidden."""

    own: Mapping[str, ToolSpec] = field(default_factory=dict)
    tools: Mapping[str, tuple[AgentTool, Tool]] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """What the model is told, the engine's own first, the user's in the order of the file."""
        return (*self.own.values(), *(tool.spec for _config, tool in self.tools.values()))


def offer(config: Config, agent: AgentConfig, tools: Mapping[str, Tool], state: Peeked, *, delegated: bool) -> Offer:
    """The offer for an agent. A delegated one hands nothing over: it returns to who asked it."""
    found: dict[str, tuple[AgentTool, Tool]] = {}
    problems: dict[str, str] = {}
    answers: dict[str, gating.Answer] = {}
    for one in agent.tools:
        answer = answers[one.name] = is_open(one, state)
        if answer.problem is not None:
            problems[one.name] = answer.problem
    for name, (one, tool) in tools_of(agent, tools).items():
        if answers[one.name].open:
            found[name] = (one, tool)
    return Offer(own_tools(config, agent, delegated=delegated), found, problems)


def is_open(tool: AgentTool, state: Peeked) -> gating.Answer:
    """Whether all conditions of a tool are true of this state."""
    for condition in tool.available_when:
        answer = gating.ask(gating.Gate(tool.name, condition), state)
        if not answer.open:
            return answer
    return gating.Answer(True)


def own_tools(config: Config, agent: AgentConfig, *, delegated: bool) -> dict[str, ToolSpec]:
    """The engine's own tools as this agent may use them, by name."""
    keys = config.schema.keys
    handoffs = [] if delegated else targets_of(config, agent)
    delegates = [own.Target(name, config.agents[name].description) for name in agent.delegations]
    specs = [
        own.read_state_spec([_told(key) for key in keys if may_read(agent.name, key)]),
        own.write_state_spec([_told(key) for key in keys if agent.name in key.actors]),
        own.transfer_agent_spec(handoffs),
        own.delegate_task_spec(delegates),
        own.delegate_to_many_spec(delegates, most=config.breakers.max_parallel_fan_out),
    ]
    if agent.spawns is not None:
        pool = agent.spawns.model_pool or ()
        specs.append(own.spawn_agent_spec(tool_pool=agent.spawns.tool_pool, model_pool=pool))
    return {spec.name: spec for spec in specs if spec is not None}


def targets_of(config: Config, agent: AgentConfig) -> list[own.Target]:
    """The declared handoffs, as a model is told of them."""
    return [
        own.Target(
            one.target, config.agents[one.target].description, None if one.payload is None else one.payload.schema
        )
        for one in agent.handoffs
    ]


def _told(key: Key) -> own.StateKey:
    kind = key.schema.get("type")
    return own.StateKey(
        key.name,
        kind if isinstance(kind, str) else "",
        family=key.family is not None,
        basis_required=key.basis_required,
    )
