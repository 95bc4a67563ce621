"""What a model calls the tools of an agent: each name stands for one tool.

Rules of this module
- Pure. A Python tool has its declared name. A server's tool has the server's name for it where nothing else of the
  agent's has that name, else `SERVER_TOOL`: of two that clash neither wins.
- What cannot be told apart even so is a ConfigError that names both.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from refold_engine.config import OWN_TOOLS, AgentConfig, AgentTool
from refold_engine.ports import Json, Tool, ToolSpec
from refold_store.errors import ConfigError

MAX_NAME = 64
"""Longest name of a tool that models take, in characters."""

_NO_NAME = re.compile(r"[^a-zA-Z0-9_-]")


class Renamed:
    """A tool under another name."""

    __slots__ = ("_spec", "_tool")

    def __init__(self, tool: Tool, name: str) -> None:
        self._tool, self._spec = tool, replace(tool.spec, name=name)

    @property
    def spec(self) -> ToolSpec:
        """How a model is told of it."""
        return self._spec

    def call(self, arguments: Mapping[str, Json], context: object) -> Json:
        """Call the tool itself. Raises ToolFailed."""
        return self._tool.call(arguments, context)


def tools_of(agent: AgentConfig, tools: Mapping[str, Tool]) -> dict[str, tuple[AgentTool, Tool]]:
    """Every tool an agent has, by the name a model calls it, in the order of the file. Raises ConfigError.

    `tools`: as in a Toolbox, those of a server under `SERVER.TOOL`.
    """
    behind = [(one, place, tools[place]) for one in agent.tools for place in _places(one, tools)]
    plain = [one.name if one.tool.kind == "python" else tool.spec.name for one, _place, tool in behind]
    times = Counter([*plain, *OWN_TOOLS])
    found: dict[str, tuple[AgentTool, Tool]] = {}
    taken: dict[str, str] = {}
    for (one, place, tool), name in zip(behind, plain, strict=True):
        if one.tool.kind != "python" and times[name] > 1:
            name = _NO_NAME.sub("_", f"{one.name}_{name}")[:MAX_NAME]
        if name in found:
            raise ConfigError(
                f"agent {agent.name!r} has two tools that a model would call {name!r}: {taken[name]!r} and {place!r}; "
                "give a tool or a server another name",
                where=agent.name,
            )
        taken[name] = place
        found[name] = (one, tool if tool.spec.name == name else Renamed(tool, name))
    return found


def _places(one: AgentTool, tools: Mapping[str, Tool]) -> list[str]:
    """Where the tools behind a configured one stand: itself, or all that its server offers."""
    if one.tool.kind == "python":
        return [one.name]
    return [place for place in tools if place.rpartition(".")[0] == one.name]
