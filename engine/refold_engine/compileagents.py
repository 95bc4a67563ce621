"""Compiling agents: their routers, prompts, handoffs and spawns.

Rules of this module
- A prompt is taken as written: what looks like a template in it is told, not run.
- An agent can give away only tools it has, and have only keys written that it may write.
- The fingerprint stands for what the file says, with its prompts and types; code is not in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from refold_engine.compiletools import Work, agent_tools
from refold_engine.config import AgentConfig, Handoff, Router, SpawnsConfig, StateWrite
from refold_engine.configfile import LEFT_OUT
from refold_engine.configparts import AgentPart, RootRouterPart, RouterPart, SpawnsPart, StateWritePart
from refold_engine.findings import Path, did_you_mean
from refold_store.errors import ConfigError, NameInvalid, NotExact, Refused, UnknownKey
from refold_store.jsontext import encode
from refold_store.schema import Schema
from refold_store.yamltext import Document

PROMPT_MAX_BYTES = 1 << 20
"""Longest prompt file in bytes: a MiB is more than models read."""
ROUTE = "route"
"""Name of the function in a router's module."""


# -- agents ----------------------------------------------------------------------------------------------------------


def compile_agents(work: Work) -> dict[str, AgentConfig]:
    """The agents by name, in the file's order."""
    templates: list[str] = []
    agents: dict[str, AgentConfig] = {}
    for name, part in work.file.agents.items():
        path = ("agents", name)
        prompt = _prompt(work, path, name, part)
        if "{{" in prompt or "{%" in prompt:
            templates.append(name)
        agents[name] = _agent(work, path, name, part, prompt)
    if templates:
        work.findings.warning((), f"prompts are sent as written, templates in them are not run: {', '.join(templates)}")
    return agents


def _agent(work: Work, path: Path, name: str, part: AgentPart, prompt: str) -> AgentConfig:
    tools = agent_tools(work, path, part)
    handoffs = _handoffs(work, (*path, "handoffs"), part)
    delegations = [
        one
        for position, one in enumerate(part.delegations)
        if work.known_agent((*path, "delegations", str(position)), one, "the delegate")
    ]
    others = tuple(one.target for one in handoffs) or tuple(one for one in work.file.agents if one != name)
    if part.auto_route and not others:
        work.findings.warning((*path, "auto_route"), "there is no other agent to route to")
    routers = [_router(work, (*path, "routers", str(at)), name, one) for at, one in enumerate(part.routers)]
    return AgentConfig(
        name=name,
        prompt=prompt,
        description=part.description or "",
        model=part.model_override,
        tools=tools,
        handoffs=handoffs,
        delegations=tuple(dict.fromkeys(delegations)),
        routers=tuple(one for one in routers if one is not None),
        auto_route=others if part.auto_route else (),
        spawns=None if part.spawns is None else _spawns(work, (*path, "spawns"), name, part, part.spawns),
        response=work.data_type((*path, "response_schema"), part.response_schema),
    )


def _handoffs(work: Work, path: Path, part: AgentPart) -> tuple[Handoff, ...]:
    found: dict[str, Handoff] = {}
    for position, one in enumerate(part.handoffs):
        place = (*path, str(position))
        payload = work.data_type((*place, "payload"), one.payload)
        if work.known_agent(place, one.agent, "the handoff's target"):
            found.setdefault(one.agent, Handoff(one.agent, payload))
    return tuple(found.values())


def _prompt(work: Work, path: Path, name: str, part: AgentPart) -> str:
    if part.system_prompt is not None and part.system_prompt_file is not None:
        work.findings.error(path, "an agent has either `system_prompt` or `system_prompt_file`, not both")
    if part.system_prompt is not None:
        return part.system_prompt
    if part.system_prompt_file is None:
        return f"You are {name}."
    place = (*path, "system_prompt_file")
    try:
        raw = (work.folder / part.system_prompt_file).read_bytes()
        if len(raw) > PROMPT_MAX_BYTES:
            work.findings.error(place, f"the prompt is {len(raw)} bytes, at most {PROMPT_MAX_BYTES} are allowed")
        return raw.decode("utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        work.findings.error(place, f"the prompt file {part.system_prompt_file!r} cannot be read: {reason}")
        return ""


def _spawns(work: Work, path: Path, name: str, agent: AgentPart, part: SpawnsPart) -> SpawnsConfig:
    own = [one.name for one in agent.tools]
    pool = own if part.tool_pool == ["*"] else part.tool_pool
    for position, tool in enumerate(pool):
        if tool not in own:
            hint = did_you_mean(tool, own, otherwise=": it can only give away what it has")
            work.findings.error((*path, "tool_pool", str(position)), f"{tool!r} is no tool of {name!r}{hint}")
    out = work.left_out | {one.name for one in agent.tools if one.type in LEFT_OUT}
    writes = [_write(work, (*path, "on_complete", str(at)), name, one) for at, one in enumerate(part.on_complete)]
    return SpawnsConfig(
        tool_pool=tuple(dict.fromkeys(one for one in pool if one not in out)),
        model_pool=None if part.model_pool is None else tuple(part.model_pool),
        max_creations_per_session=part.max_creations_per_session,
        requires_approval_on_first_action=part.requires_approval_on_first_action,
        allow_recursive_spawning=part.allow_recursive_spawning,
        max_spawn_depth=part.max_spawn_depth,
        result=work.data_type((*path, "result_schema"), part.result_schema),
        on_complete=tuple(writes),
    )


def _write(work: Work, path: Path, agent: str, part: StateWritePart) -> StateWrite:
    try:
        key = None if work.schema is None else work.schema.key(part.key)
        if key is not None and agent not in key.actors:
            work.findings.error(path, f"{agent!r} may not write {part.key!r}: its owner is {key.owner!r}")
        elif key is not None:
            key.prepare(part.value)
    except (UnknownKey, NameInvalid) as error:
        work.findings.error(path, str(error))
    except Refused as error:
        work.findings.error(path, f"the value does not fit the key {part.key!r}: {error.detail}")
    return StateWrite(part.key, part.value)


# -- routers ---------------------------------------------------------------------------------------------------------


def _router(work: Work, path: Path, agent: str, part: RouterPart) -> Router | None:
    known = work.known_agent((*path, "target"), part.target, "the router's target")
    if (part.condition is None) == (part.custom_module is None):
        work.findings.error(path, "a router wants either a `condition` or a `custom_module`")
        return None
    return _made(work, path, agent, (part.target,) if known else (), part.condition, part.custom_module)


def compile_root_routers(work: Work) -> tuple[Router, ...]:
    """The routers of the root, in the file's order."""
    found = [_root_router(work, ("routers", name), name, part) for name, part in work.file.routers.items()]
    return tuple(one for one in found if one is not None)


def _root_router(work: Work, path: Path, name: str, part: RootRouterPart) -> Router | None:
    agent = part.agent if part.agent is not None else name if name in work.file.agents else None
    if part.agent is not None:
        work.known_agent((*path, "agent"), part.agent, "the router's agent")
    if (part.condition is None) == (part.module is None):
        work.findings.error(path, "a router wants either a `condition` with a `target`, or a `module`")
        return None
    if part.condition is not None and (part.target is None or part.possible_targets):
        work.findings.error(path, "a router with a `condition` wants a `target`, and no `possible_targets`")
        return None
    if part.module is not None and (part.target is not None or not part.possible_targets):
        work.findings.error(path, "a router with a `module` wants `possible_targets`, and no `target`")
        return None
    targets = [part.target] if part.target is not None else part.possible_targets
    kept = tuple(one for one in targets if work.known_agent(path, one, "the router's target"))
    return _made(work, path, agent, kept, part.condition, part.module)


def _made(
    work: Work, path: Path, agent: str | None, targets: tuple[str, ...], text: str | None, module: str | None
) -> Router | None:
    condition = None if text is None else work.condition((*path, "condition"), text)
    function = None if module is None else work.function(path, f"{module}:{ROUTE}", "router")
    if not targets or (condition is None and function is None):
        return None
    dotted = "" if module is None else f"{module}.{ROUTE}"
    return Router(".".join(path), targets, condition, function, dotted, agent)


# -- what stands for the whole ---------------------------------------------------------------------------------------


def fingerprint_of(document: Document, schema: Schema, agents: Mapping[str, AgentConfig]) -> str:
    """SHA-256 of what a configuration says: the file, its prompts, its schema and its types. Code is not in it."""
    types: dict[str, Any] = {}
    for name, agent in agents.items():
        types[name] = {
            "response": None if agent.response is None else dict(agent.response.schema),
            "result": None if agent.spawns is None or agent.spawns.result is None else dict(agent.spawns.result.schema),
            "payloads": {one.target: dict(one.payload.schema) for one in agent.handoffs if one.payload is not None},
        }
    prompts = {name: agent.prompt for name, agent in agents.items()}
    try:
        return sha256(
            encode({"file": document.value, "prompts": prompts, "schema": schema.fingerprint, "types": types})
        ).hexdigest()
    except NotExact as error:
        raise ConfigError(f"the configuration is no plain JSON: {error}", where=document.source) from error
