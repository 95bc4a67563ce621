"""From a configuration file's models to the compiled configuration.

Rules of this module
- Every mistake becomes a finding; what is wrong is left out, so that the rest is checked, too.
- What only the whole graph shows (cycles, agents nobody reaches) is no matter here: it does not keep a run from
  starting, and `checking` tells it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path as FilePath
from types import MappingProxyType
from typing import Any

from refold_engine.compileagents import compile_agents, compile_root_routers, fingerprint_of
from refold_engine.compiletools import Work, compile_tools
from refold_engine.config import Breakers, Config, MemoryConfig, ModelConfig, Task, VoteConfig, Workflow
from refold_engine.configfile import ConfigFile, unused
from refold_engine.configparts import TaskPart
from refold_engine.findings import Findings, Path, did_you_mean
from refold_engine.importing import import_object
from refold_engine.stateconfig import KnownKeys, compile_state
from refold_store.errors import ConfigError, NameInvalid, NotExact
from refold_store.jsontext import encode
from refold_store.names import check_name
from refold_store.yamltext import Document


def compile_file(document: Document, file: ConfigFile, folder: FilePath, findings: Findings) -> Config | None:
    """The compiled configuration. With errors among the findings: what is right in it, or None; not to be run."""
    _check_exact(document, findings)
    _check_names(file, findings)
    schema = compile_state(file, findings)
    functions = _condition_functions(file, findings)
    work = Work(file, folder, findings, schema, KnownKeys(schema), functions)
    compile_tools(work)
    agents = compile_agents(work)
    routers = compile_root_routers(work)
    workflows = {name: _workflow(work, name, tasks) for name, tasks in file.workflows.items()}
    default = _default_agent(file, findings)
    if left_out := unused(file):
        findings.warning((), f"not part of refold, and not used: {', '.join(left_out)}")
    if any(one.endswith((".required_approvals", ".required_approvers")) for one in left_out):
        findings.warning((), "required_approvals and required_approvers are not used: one person's approval is enough")
    if schema is None or default is None:
        return None
    return Config(
        schema=schema,
        agents=MappingProxyType(agents),
        default_agent=default,
        model=_model(file),
        name=file.name,
        routers=routers,
        workflows=MappingProxyType(workflows),
        breakers=_breakers(file),
        tools=MappingProxyType(dict(work.tools)),
        condition_functions=MappingProxyType(functions),
        memory=MemoryConfig(file.memory.shared_scope),
        warnings=tuple(map(str, findings.warnings)),
        fingerprint="" if findings.errors else fingerprint_of(document, schema, agents),
        source=document.source,
        folder=str(folder),
    )


def _check_exact(document: Document, findings: Findings) -> None:
    try:
        encode(document.value)
    except NotExact as error:
        findings.error((), f"{error}: put it in quotes")


def _check_names(file: ConfigFile, findings: Findings) -> None:
    for section, names in (("agents", file.agents), ("workflows", file.workflows)):
        for name in names:
            try:
                check_name("agent", name)
            except NameInvalid as error:
                findings.error((section, name), str(error))
            if not name.strip():
                findings.error((section, name), f"{name!r} is no name")


def _model(file: ConfigFile) -> ModelConfig:
    part = file.model
    return ModelConfig(part.primary, part.fallback, part.temperature, part.timeout, part.retries)


def _breakers(file: ConfigFile) -> Breakers:
    given = {name: getattr(file.circuit_breakers, name) for name in Breakers.__dataclass_fields__}
    costs = [one for one in (given["max_usd_cost_per_session"], file.max_session_budget_usd) if one is not None]
    return Breakers(**{**given, "max_usd_cost_per_session": min(costs, default=None)})


def _default_agent(file: ConfigFile, findings: Findings) -> str | None:
    if not file.agents:
        findings.error(("agents",), "no agents are declared")
        return None
    if file.default_agent is None:
        if len(file.agents) == 1:
            return next(iter(file.agents))
        findings.error((), "'default_agent' is missing: say which agent gets a run's first message")
        return None
    if file.default_agent not in file.agents:
        hint = did_you_mean(file.default_agent, file.agents)
        findings.error(("default_agent",), f"the default agent {file.default_agent!r} is no agent{hint}")
        return None
    return file.default_agent


# -- condition functions ---------------------------------------------------------------------------------------------


def _condition_functions(file: ConfigFile, findings: Findings) -> dict[str, Callable[..., object]]:
    """Function by name. One that cannot be loaded is told, and stands in for itself in what is checked next."""
    found: dict[str, Callable[..., object]] = {}
    for path, name, dotted in _named_functions(file.condition_functions, findings):
        if name in found:
            findings.error(path, f"the condition function {name!r} is declared twice")
            continue
        found[name] = lambda *_arguments: None
        if not name.isidentifier() or name == "state":
            findings.error(path, f"{name!r} is no name a condition could call")
            continue
        try:
            function = import_object(dotted)
            if not callable(function):
                raise ConfigError(f"{dotted!r} is {type(function).__name__}, not a function")
            found[name] = function
        except ConfigError as error:
            findings.error(path, f"condition function {name!r}: {error}")
    return found


def _named_functions(given: list[Any] | dict[str, str], findings: Findings) -> list[tuple[Path, str, str]]:
    section = "condition_functions"
    if isinstance(given, dict):
        return [((section, name), name, dotted) for name, dotted in given.items()]
    found: list[tuple[Path, str, str]] = []
    for position, one in enumerate(given):
        path = (section, str(position))
        if (
            isinstance(one, Mapping)
            and set(one) == {"name", "module"}
            and all(isinstance(x, str) for x in one.values())
        ):
            found.append((path, one["name"], f"{one['module']}:{one['name']}"))
        else:
            findings.error(path, f"a condition function is given as {{name, module}}, not {one!r}")
    return found


# -- workflows -------------------------------------------------------------------------------------------------------


def _workflow(work: Work, name: str, tasks: list[TaskPart]) -> Workflow:
    path = ("workflows", name)
    if not tasks:
        work.findings.error(path, "the workflow has no tasks")
    return Workflow(name, _tasks(work, path, tasks))


def _tasks(work: Work, path: Path, parts: list[TaskPart]) -> tuple[Task, ...]:
    seen: set[str] = set()
    for position, part in enumerate(parts):
        if part.name in seen:
            work.findings.error((*path, str(position), "name"), f"two tasks beside each other are named {part.name!r}")
        seen.add(part.name)
    return tuple(_task(work, (*path, str(position)), part) for position, part in enumerate(parts))


def _task(work: Work, path: Path, part: TaskPart) -> Task:
    findings, inside = work.findings, part.tasks or []
    if part.type != "sequential" and not inside:
        findings.error(path, f"a {part.type} task wants `tasks`: its branches")
    elif inside and part.agent is not None:
        findings.error((*path, "agent"), "a task has either an `agent` or `tasks`, not both")
    elif not inside and part.agent is None:
        findings.error(path, f"the task {part.name!r} has neither an `agent` nor `tasks`")
    if part.agent is not None:
        work.known_agent((*path, "agent"), part.agent, "the task's agent")
    if part.agent is not None and part.instruction is None:
        findings.warning(
            path, f"the task {part.name!r} has no instruction: its agent gets the workflow's message alone"
        )
    if part.vote is not None and part.type != "vote":
        findings.warning((*path, "vote"), f"`vote` has no effect on a {part.type} task")
    vote = VoteConfig() if part.vote is None else VoteConfig(
        part.vote.strategy, part.vote.min_agreement, part.vote.debate_rounds)  # fmt: skip
    return Task(
        name=part.name,
        kind=part.type,
        agent=part.agent,
        instruction=part.instruction or "",
        tasks=_tasks(work, (*path, "tasks"), inside),
        vote=vote,
        on_failure=part.on_failure,
        retries=part.retries,
    )
