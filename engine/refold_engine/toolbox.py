"""The tools of a configuration, opened: Python functions, and what MCP servers offer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from refold_engine.config import Config, ToolConfig
from refold_engine.ports import Tool
from refold_engine.tools import TIMEOUT_S, python_tool
from refold_store.errors import ConfigError

if TYPE_CHECKING:
    from refold_engine.mcp_tools import McpServer

UNLIMITED = 1 << 30
"""Bytes of a result where the configuration sets no limit: the store's own limits stop it long before."""


class Toolbox:
    """Open tools by name; a server's stand under `server.tool`. Close it to end the servers."""

    def __init__(self) -> None:
        self.tools: dict[str, Tool] = {}
        self._servers: list[McpServer] = []

    def close(self) -> None:
        """End the servers."""
        for server in self._servers:
            server.close()
        self._servers = []


def open_tools(config: Config, given: Mapping[str, Tool]) -> Toolbox:
    """The tools of a configuration; `given` ones take the place of those of the same name. Raises ConfigError."""
    box = Toolbox()
    try:
        for one in config.tools.values():
            if one.name in given:
                box.tools[one.name] = given[one.name]
            elif one.kind == "python":
                box.tools[one.name] = _python(one, config)
            else:
                _open_server(box, one, config)
    except BaseException:
        box.close()
        raise
    return box


def _python(one: ToolConfig, config: Config) -> Tool:
    if one.function is None:
        raise ConfigError(f"tool {one.name!r} has no function: its path {one.path!r} was not imported", where=one.name)
    return python_tool(
        one.function,
        name=one.name,
        description=one.description,
        timeout_s=one.timeout_s or TIMEOUT_S,
        max_bytes=_most(config),
    )


def _most(config: Config) -> int:
    """Largest result of a tool, in bytes."""
    return config.breakers.max_tool_result_chars or UNLIMITED


def _open_server(box: Toolbox, one: ToolConfig, config: Config) -> None:
    from refold_engine.mcp_tools import McpServer  # an extra

    server = McpServer(
        one.name,
        one.command,
        one.args,
        env=one.env or None,
        cwd=config.folder or None,
        timeout_s=one.timeout_s or TIMEOUT_S,
        max_bytes=_most(config),
    )
    box._servers.append(server)
    for tool in server.tools:
        box.tools[f"{one.name}.{tool.spec.name}"] = tool
