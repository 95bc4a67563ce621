"""Compiling tools, and what compiling any part needs: names, conditions, types and functions looked up with a place.

Rules of this module
- A tool has one meaning in a file: its name stands for one function or one server. How it is gated (conditions,
  approval) is each agent's own, on top of what the root says.
- A tool of a type that is left out is no mistake, wherever it is named.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path as FilePath
from types import MappingProxyType
from typing import Any

from refold_engine.config import OWN_TOOLS, AgentTool, DataType, ToolConfig
from refold_engine.configfile import LEFT_OUT, ConfigFile
from refold_engine.configparts import AgentPart, ToolPart
from refold_engine.findings import Findings, Path, did_you_mean
from refold_engine.importing import import_object
from refold_engine.stateconfig import KnownKeys
from refold_store.conditions import Condition, compile_condition
from refold_store.errors import ConditionError, ConfigError
from refold_store.keys import Options
from refold_store.reducers import last
from refold_store.schema import Schema
from refold_store.typedkeys import typed_key
from refold_store.updates import json_key


@dataclass(slots=True)
class Work:
    """What compiling the parts needs, and the tools found so far."""

    file: ConfigFile
    folder: FilePath
    findings: Findings
    schema: Schema | None
    known: KnownKeys
    functions: Mapping[str, Callable[..., object]]
    tools: dict[str, ToolConfig] = field(default_factory=dict)
    left_out: set[str] = field(default_factory=set)

    def known_agent(self, path: Path, name: str, what: str) -> bool:
        """Whether this is an agent; else a finding."""
        if name in self.file.agents:
            return True
        hint = "; `imports` is not read: put it in this file" if self.file.imports else ""
        self.findings.error(path, f"{what} {name!r} is no agent" + did_you_mean(name, self.file.agents, otherwise=hint))
        return False

    def condition(self, path: Path, text: str) -> Condition | None:
        """A compiled condition; else a finding."""
        try:
            return compile_condition(text, functions=self.functions, known=self.known)
        except ConditionError as error:
            self.findings.error(path, str(error))
            return None

    def data_type(self, path: Path, given: str | dict[str, Any] | None) -> DataType | None:
        """A type by dotted path or as JSON Schema; a wrong one is a finding."""
        if given is None:
            return None
        name = given if isinstance(given, str) else "JSON Schema"
        rest: dict[str, Any] = {"owner": name, "actors": frozenset(), "reducer": last, "options": Options()}
        try:
            if isinstance(given, dict):
                return DataType(name, json_key("$", schema=given, **rest))
            found = import_object(given)
            if not isinstance(found, type):
                raise ConfigError(f"{given!r} is {type(found).__name__}, not a class")
            return DataType(name, typed_key("$", found, **rest))
        except ConfigError as error:
            self.findings.error(path, str(error))
            return None

    def function(self, path: Path, dotted: str, what: str) -> Callable[..., Any] | None:
        """A function by dotted path; else a finding."""
        try:
            found = import_object(dotted)
            if callable(found):
                return found  # type: ignore[no-any-return]  # any callable: it is checked when it is called
            self.findings.error(path, f"{what}: {dotted!r} is {type(found).__name__}, not a function")
        except ConfigError as error:
            self.findings.error(path, f"{what}: {error}")
        return None


# -- tools -----------------------------------------------------------------------------------------------------------


def compile_tools(work: Work) -> None:
    """The tools of the root, and which are left out."""
    seen: set[str] = set()
    for position, part in enumerate(work.file.tools):
        path = ("tools", str(position))
        if part.name in seen:
            work.findings.error(path, f"two tools are named {part.name!r}")
        elif part.type in LEFT_OUT:
            work.left_out.add(part.name)
        elif _is_reference(part):
            work.findings.error(path, f"the tool {part.name!r} wants a `module` (Python) or a `command` (MCP)")
        else:
            _define(work, path, part)
        seen.add(part.name)


def _is_reference(part: ToolPart) -> bool:
    return part.type is None and part.module is None and part.function is None and part.command is None


def _define(work: Work, path: Path, part: ToolPart) -> ToolConfig | None:
    """The tool a part describes, entered under its name."""
    if part.name in OWN_TOOLS:
        work.findings.error(path, f"{part.name!r} is the name of a tool of the engine's: give it another")
        return None
    found = _server(work, path, part) if part.type == "mcp" or part.command is not None else _python(work, path, part)
    known = None if found is None else work.tools.setdefault(part.name, found)
    if found is None or known == found:
        return found
    work.findings.error(path, f"the tool {part.name!r} is already declared as something else ({_what(known)})")
    return None


def _what(tool: ToolConfig | None) -> str:
    return "" if tool is None else tool.path or " ".join((tool.command, *tool.args))


def _server(work: Work, path: Path, part: ToolPart) -> ToolConfig | None:
    if part.command is None or part.module is not None or part.function is not None or part.type == "python":
        work.findings.error(path, f"the MCP server {part.name!r} wants a `command`, and no `module` or `function`")
        return None
    return ToolConfig(
        name=part.name,
        kind="mcp",
        command=part.command,
        args=tuple(part.args),
        env=MappingProxyType(dict(part.env)),
        **_shared(part, untrusted=True),
    )


def _python(work: Work, path: Path, part: ToolPart) -> ToolConfig | None:
    if (part.module is None) == (part.function is None):
        work.findings.error(path, f"the tool {part.name!r} wants either `module` or `function`")
        return None
    dotted = part.function if part.function is not None else f"{part.module}:{part.name}"
    function = work.function(path, dotted, f"tool {part.name!r}")
    if function is None:
        return None
    return ToolConfig(name=part.name, kind="python", path=dotted, function=function, **_shared(part, untrusted=False))


def _shared(part: ToolPart, *, untrusted: bool) -> dict[str, Any]:
    return {
        "description": part.description,
        "idempotent": part.idempotent,
        "untrusted_output": untrusted if part.untrusted_output is None else part.untrusted_output,
        "timeout_s": part.timeout,
    }


def _agent_tool(work: Work, path: Path, part: ToolPart) -> AgentTool | None:
    if part.type in LEFT_OUT or (_is_reference(part) and part.name in work.left_out):
        return None
    gates = [] if part.available_when is None else [work.condition((*path, "available_when"), part.available_when)]
    approval = part.requires_approval
    if not _is_reference(part):
        tool = _define(work, path, part)
    else:
        found = next(((i, one) for i, one in enumerate(work.file.tools) if one.name == part.name), None)
        if found is None:
            names = [one.name for one in work.file.tools]
            work.findings.error(path, f"unknown tool {part.name!r}" + did_you_mean(
                part.name, names, otherwise="; declare it under `tools`, or give it a `module` here"))  # fmt: skip
            return None
        root = found[1]
        approval = approval or root.requires_approval
        if root.available_when is not None:
            gates.insert(0, work.condition(("tools", str(found[0]), "available_when"), root.available_when))
        tool = work.tools.get(part.name)
        if tool is not None:
            tool = replace(
                tool, idempotent=tool.idempotent or part.idempotent, timeout_s=part.timeout or tool.timeout_s
            )
    return None if tool is None else AgentTool(tool, tuple(one for one in gates if one is not None), approval)


def agent_tools(work: Work, path: Path, part: AgentPart) -> tuple[AgentTool, ...]:
    found: dict[str, AgentTool | None] = {}
    for position, one in enumerate(part.tools):
        place = (*path, "tools", str(position))
        if one.name in found:
            work.findings.error(place, f"the agent has two tools named {one.name!r}")
            continue
        found[one.name] = _agent_tool(work, place, one)
    return tuple(one for one in found.values() if one is not None)
