"""Tasks given to other agents: declared ones, and ones made at run time. Each works in a child turn.

Rules of this module
- The child sees the parent's draft and commits into it: what it wrote is durable with the parent, or gone with it.
- A task that is begun again after a crash goes on under its first number: its finished effects are not repeated.
- A made agent gets a part of its maker's tool pool, a model of the pool, and nothing that lets it reach further.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from refold_engine import limits
from refold_engine.config import AgentConfig, SpawnsConfig
from refold_engine.conversation import Said
from refold_engine.errors import ToolFailed
from refold_engine.ports import Message
from refold_engine.progress import ENGINE
from refold_engine.state_tools import Spawn
from refold_store import jsontext
from refold_store.errors import InvalidValue

if TYPE_CHECKING:
    from refold_engine.agentturn import AgentTurn


def delegate(owner: AgentTurn, target: str, instruction: str) -> str:
    """Let another agent do a task now; its last words are the result."""
    return work(owner, owner.engine.config.agents[target], instruction)


def work(owner: AgentTurn, agent: AgentConfig, instruction: str, *, spawned: bool = False) -> str:
    """Let an agent do a task in a child turn. Raises ToolFailed if it was stopped or its answer does not fit."""
    from refold_engine.agentturn import AgentTurn  # a task is a turn, and a turn may give tasks

    limits.check_depth(owner.engine.config.breakers, owner.depth)
    number = owner.journal.next_child()
    child = owner.turn.child(agent.name, number=number, body={"by": ENGINE, "task": True, "spawned": spawned})
    owner.engine.tell("delegated", {"agent": owner.agent.name, "to": agent.name, "task": instruction})
    with child:
        message = Message("user", instruction)
        seq = child.append("message.added", body={"message": message.to_json()}, refs={"task": True}, durable=False)
        journal = owner.engine.journal_of(child)
        turn = AgentTurn(
            owner.engine,
            child,
            agent,
            owner.progress,
            journal,
            [Said(seq, message)],
            depth=owner.depth + 1,
            above=owner.state,
        )
        outcome = turn.run()
        text = outcome.text
        if agent.response is not None:
            _fits(agent, text)
    owner.state.join(turn.state)
    return text


def _fits(agent: AgentConfig, text: str) -> None:
    assert agent.response is not None
    try:
        agent.response.check(jsontext.parse(text.encode()))
    except InvalidValue as error:
        raise ToolFailed(f"the result of {agent.name!r} does not fit its schema: {error}", tool=agent.name) from error


def needs_approval(owner: AgentTurn, asked: Spawn) -> bool:
    """Whether a person decides before this agent is made: in its task it could ask nobody, and it is given tools."""
    spawns = owner.agent.spawns
    return spawns is not None and spawns.requires_approval_on_first_action and bool(asked.tools)


def spawn(owner: AgentTurn, asked: Spawn) -> str:
    """Make an agent for one task, let it work, and write what its maker declared for the end."""
    spawns = owner.agent.spawns
    assert spawns is not None
    progress, most = owner.progress, spawns.max_creations_per_session
    count = progress.spawned - progress.open_spawned + progress.live.spawned
    if count >= most:
        raise limits.stopped("max_creations_per_session", count, most, f"{count} agents were made in this run")
    made = _made(owner, spawns, asked, count + 1)
    owner.progress.live.spawned += 1
    text = work(owner, made, asked.instruction, spawned=True)
    for write in spawns.on_complete:
        owner.state.write(write.key, write.value, basis=f"{made.name} is done")
    return text


def _made(owner: AgentTurn, spawns: SpawnsConfig, asked: Spawn, number: int) -> AgentConfig:
    strange = [name for name in asked.tools if name not in spawns.tool_pool]
    if strange:
        raise ToolFailed(f"spawn_agent: not in the tool pool: {', '.join(map(repr, strange))}", tool="spawn_agent")
    if asked.model is not None and asked.model not in (spawns.model_pool or ()):
        raise ToolFailed(f"spawn_agent: {asked.model!r} is not in the model pool", tool="spawn_agent")
    own = {one.name: one for one in owner.agent.tools}
    return AgentConfig(
        name=f"{owner.agent.name}.spawn{number}",
        prompt=f"You are {asked.role}. Do the task you are given, and answer with its result.",
        description=asked.role,
        model=asked.model or owner.agent.model,
        tools=tuple(own[name] for name in asked.tools if name in own),
        spawns=spawns if spawns.allow_recursive_spawning and owner.depth + 1 < spawns.max_spawn_depth else None,
        response=spawns.result,
    )
