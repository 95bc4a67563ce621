"""MCP servers by command: their tools as tools of ours. The only module that knows the `mcp` package (extra `mcp`).

Rules of this module
- A server is a process of its own, spoken to over its standard input and output, and ended at `close`, also after a
  start that failed. It gets the few environment variables the package deems safe, and those given.
- The package is async: its loop runs in one thread for each server. Calls from any thread wait with a time limit.
- Whatever goes wrong is a ToolFailed. When a call was on its way and no answer came, the outcome is unknown.
- A server that has ended stays so: later calls say so, with its last words on standard error, until it is opened anew.
"""

from __future__ import annotations

import asyncio
import re
import tempfile
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import AsyncExitStack
from types import TracebackType
from typing import IO, Any, NoReturn

from refold_engine.errors import ToolFailed
from refold_engine.ports import Json, ToolSpec
from refold_engine.toolresults import Over, as_json, limited
from refold_engine.tools import MAX_RESULT_BYTES, TIMEOUT_S, told
from refold_store.errors import ConfigError, NotExact

START_TIMEOUT_S = 30.0
"""How long a server may take to start, greet and list its tools, in seconds: `npx` may have to fetch it first."""

CLOSE_TIMEOUT_S = 15.0
"""How long an ending may take, in seconds: the package asks, terminates and kills within 7."""

MAX_TOOLS = 1_000
"""Most tools of one server: a listing that never ends is none."""

MAX_LAST_WORDS = 1_000
"""How much of a server's standard error is shown, in bytes from its end."""

_NO_NAME = re.compile(r"[^a-zA-Z0-9_-]")


class McpServer:
    """A running MCP server. `with McpServer("files", "npx", ["..."]) as server: server.tools`."""

    def __init__(
        self,
        name: str,
        command: str,
        args: Sequence[str] = (),
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        start_timeout_s: float = START_TIMEOUT_S,
        timeout_s: float = TIMEOUT_S,
        max_bytes: int = MAX_RESULT_BYTES,
        over: Over = "cut",
    ) -> None:
        """Start it and list its tools. Raises ToolFailed if it does not start, ConfigError without the package."""
        self.name, self.timeout_s, self.max_bytes, self.over = name, timeout_s, max_bytes, over
        self._package = _package()
        self._start_timeout_s = start_timeout_s
        self._parameters = self._package.StdioServerParameters(
            command=command, args=list(args), env=None if env is None else dict(env), cwd=cwd
        )
        self._words: IO[str] = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115  # closed at the end
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._ended = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._client: Any = None
        self.tools: tuple[McpTool, ...] = ()
        """Its tools, as it listed them at the start."""
        self._thread = threading.Thread(target=self._live, name=f"mcp {name}", daemon=True)
        self._thread.start()
        failure = self._started()
        if failure is not None:
            words = self._last_words()
            self.close()
            raise ToolFailed(f"MCP server {name!r} did not start: {_text(failure)}{words}", tool=name) from failure

    def __enter__(self) -> McpServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the process and wait for that. A second time does nothing."""
        self._ended = True
        if self._loop is not None and self._stop is not None and self._thread.is_alive():
            try:
                self._loop.call_soon_threadsafe(self._stop.set)
            except RuntimeError:
                pass  # the loop has ended in between
        self._thread.join(CLOSE_TIMEOUT_S)
        if not self._thread.is_alive():
            self._words.close()

    def _started(self) -> BaseException | None:
        """Wait for the greeting and the list of tools; what went wrong, or None."""
        self._ready.wait()
        return self._failure

    # -- the thread of its loop --------------------------------------------------------------------------------------

    def _live(self) -> None:
        try:
            asyncio.run(self._life())
        except BaseException as error:
            if not self._ready.is_set():
                self._failure = error
        finally:
            self._ended = True
            self._ready.set()

    async def _life(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        async with AsyncExitStack() as open_:
            async with asyncio.timeout(self._start_timeout_s):
                streams = self._package.stdio_client(self._parameters, errlog=self._words)
                client = self._package.Client(streams, cache=None)
                self._client = await open_.enter_async_context(client)
                self.tools = await self._listed()
            self._ready.set()
            await self._stop.wait()

    async def _listed(self) -> tuple[McpTool, ...]:
        found: dict[str, McpTool] = {}
        cursor = None
        while True:
            page = await self._client.list_tools(cursor=cursor)
            for tool in page.tools:
                name = _NO_NAME.sub("_", tool.name)[:64]
                if name in found or len(found) >= MAX_TOOLS:
                    raise ValueError(f"it lists {tool.name!r} twice, or more than {MAX_TOOLS} tools")
                spec = ToolSpec(name, tool.description or "", tool.input_schema)
                found[name] = McpTool(self, tool.name, spec)
            cursor = page.next_cursor
            if cursor is None or not page.tools:
                return tuple(found.values())

    # -- calls -------------------------------------------------------------------------------------------------------

    def call(self, tool: str, arguments: Mapping[str, Json]) -> Json:
        """Call a tool by the server's name for it. Raises ToolFailed."""
        if self._ended or self._loop is None:
            raise ToolFailed(f"MCP server {self.name!r} has ended: {tool!r} was not called; open it anew", tool=tool)
        asking = self._client.call_tool(tool, dict(arguments), read_timeout_seconds=self.timeout_s)
        waiting: Future[Any] = asyncio.run_coroutine_threadsafe(asking, self._loop)
        try:
            result = waiting.result(self.timeout_s + 1)
        except FutureTimeout:
            waiting.cancel()
            self._unknown(tool, f"gave no answer within {self.timeout_s:g} s")
        except self._package.MCPError as error:
            self._refused(tool, error)
        except Exception as error:  # the connection, or the package on an answer that is none
            self._unknown(tool, f"failed on the way: {_text(error)}", error)
        return self._result(tool, result)

    def _refused(self, tool: str, error: Any) -> NoReturn:
        if error.code == self._package.types.CONNECTION_CLOSED:
            self._ended = True
            self._unknown(tool, f"ended before it answered{self._last_words()}", error)
        if error.code == self._package.types.REQUEST_TIMEOUT:
            self._unknown(tool, f"gave no answer within {self.timeout_s:g} s", error)
        raise ToolFailed(f"MCP server {self.name!r} refused {tool!r}: {_clip(error.message)}", tool=tool) from error

    def _unknown(self, tool: str, what: str, cause: BaseException | None = None) -> NoReturn:
        message = f"MCP server {self.name!r} {what}: whether {tool!r} had its effect is unknown"
        raise ToolFailed(message, tool=tool, unknown=True) from cause

    def _result(self, tool: str, result: Any) -> Json:
        found = _content(result)
        if result.is_error:
            said = found if isinstance(found, str) else as_json(found)[0].decode()
            raise ToolFailed(f"tool {tool!r} failed: {_clip(said)}", tool=tool)
        try:
            text, value = as_json(found)
        except NotExact as error:
            raise ToolFailed(f"tool {tool!r} ran, but its result has no JSON: {error}", tool=tool) from error
        shown, note = limited(text, value, max_bytes=self.max_bytes, over=self.over)
        if note is not None and self.over == "refuse":
            raise ToolFailed(f"tool {tool!r} ran, but {note}", tool=tool)
        return shown

    def _last_words(self) -> str:
        """The end of what the server wrote on standard error."""
        if self._words.closed:
            return ""
        self._words.seek(0)
        words = self._words.read()[-MAX_LAST_WORDS:].strip()
        return f"; its last words: {words}" if words else ""


class McpTool:
    """One tool of a server."""

    __slots__ = ("_server", "_spec", "_theirs")

    def __init__(self, server: McpServer, theirs: str, spec: ToolSpec) -> None:
        self._server, self._theirs, self._spec = server, theirs, spec

    @property
    def spec(self) -> ToolSpec:
        """How a model is told of it. Letters that no model takes in a name are '_'."""
        return self._spec

    def call(self, arguments: Mapping[str, Json], context: object) -> Json:
        """Call it. The context stays here: a server knows nothing of the run. Raises ToolFailed."""
        return self._server.call(self._theirs, arguments)


def _package() -> Any:
    try:
        import mcp  # type: ignore[import-not-found,unused-ignore]  # an extra
    except ImportError as error:
        raise ConfigError("MCP servers need the package `mcp`: pip install 'refold[mcp]'") from error
    return mcp


def _content(result: Any) -> Json:
    """What a result says: its structure if it has one, else its text, else its blocks."""
    if result.structured_content is not None and not result.is_error:
        return result.structured_content
    blocks = [block.model_dump(mode="json", by_alias=True, exclude_none=True) for block in result.content]
    texts = [block["text"] for block in blocks if block.get("type") == "text"]
    return "\n".join(texts) if len(texts) == len(blocks) else blocks


def _text(error: BaseException) -> str:
    """An error in one line; of a group, its first."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return "it took too long" if isinstance(error, TimeoutError) else told(error)


def _clip(text: str) -> str:
    return told(RuntimeError(text)).removeprefix("RuntimeError: ")
