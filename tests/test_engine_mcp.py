"""MCP servers as real processes: listing, calling, failing, dying, and never staying behind."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from refold_engine import mcp_tools
from refold_engine.errors import ToolFailed
from refold_engine.mcp_tools import McpServer
from refold_store.errors import ConfigError

SERVER = '''
import os, sys, time
from mcp.server import MCPServer

app = MCPServer("desk")

@app.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b

@app.tool(name="files/list.all", structured_output=False)
def listing(count: int) -> list[str]:
    """List some files."""
    return [f"file {n}" for n in range(count)]

@app.tool(structured_output=False)
def whoami() -> str:
    return f"{os.getpid()} {os.environ.get('DESK_KEY')} {os.environ.get('DESK_SECRET')}"

@app.tool()
def die() -> str:
    print("out of paper", file=sys.stderr, flush=True)
    os._exit(3)

@app.tool()
def slow(seconds: float) -> str:
    time.sleep(seconds)
    return "done"

app.run()
'''
START_S = 60.0


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A tiny MCP server, to be started as a process."""
    path = tmp_path / "desk.py"
    path.write_text(SERVER)
    return path


def opened(script: Path, **options: Any) -> McpServer:
    env = {"DESK_KEY": "k"} | {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
    return McpServer("desk", sys.executable, [str(script)], env=env, start_timeout_s=START_S, **options)


@pytest.fixture
def server(script: Path) -> Iterator[McpServer]:
    """The server, running."""
    with opened(script, timeout_s=30) as found:
        yield found


def pid_of(server: McpServer) -> int:
    return int(server.call("whoami", {}).split()[0])


def ended(pid: int) -> bool:
    """Whether no such process is left, after a moment to end."""
    for _ in range(200):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


def test_the_tools_of_a_server_are_tools_of_ours(server: McpServer) -> None:
    """Names a model can take, descriptions and schemas are the server's; calls go to the server's own names."""
    found = {tool.spec.name: tool for tool in server.tools}
    assert list(found) == ["add", "files_list_all", "whoami", "die", "slow"]
    assert found["add"].spec.description == "Add two numbers."
    assert found["add"].spec.parameters["required"] == ["a", "b"]
    assert found["add"].call({"a": 1, "b": 2}, None) == {"result": 3}
    assert found["files_list_all"].call({"count": 2}, None) == "file 0\nfile 1"


def test_failures_of_a_server_are_failures_of_the_tool(server: McpServer) -> None:
    """Wrong arguments and unknown tools come back as the server words them; the outcome is known."""
    for tool, arguments, says in (("add", {"a": "x", "b": 1}, "integer"), ("nothing", {}, "nothing")):
        with pytest.raises(ToolFailed, match=says) as caught:
            server.call(tool, arguments)
        assert (caught.value.tool, caught.value.unknown) == (tool, False)
    assert server.call("add", {"a": 1, "b": 2}) == {"result": 3}


def test_a_server_gets_no_environment_but_its_own(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the process has in its environment stays there unless it is given."""
    monkeypatch.setenv("DESK_SECRET", "s3cret")
    with opened(script) as server:
        assert server.call("whoami", {}).split()[1:] == ["k", "None"]


def test_a_closed_server_has_ended(script: Path) -> None:
    """After `close` the process is gone, calls say so, and a second `close` does nothing."""
    server = opened(script)
    pid = pid_of(server)
    server.close()
    server.close()
    assert ended(pid)
    with pytest.raises(ToolFailed, match="was not called") as caught:
        server.call("add", {"a": 1, "b": 2})
    assert not caught.value.unknown


def test_a_server_that_dies_in_a_call_leaves_the_outcome_unknown(script: Path) -> None:
    """The call fails with the server's last words and an unknown outcome; later calls are not made; closing works."""
    with opened(script) as server:
        with pytest.raises(ToolFailed, match="out of paper") as caught:
            server.call("die", {})
        assert caught.value.unknown
        with pytest.raises(ToolFailed, match="has ended") as caught:
            server.call("add", {"a": 1, "b": 2})
        assert not caught.value.unknown


def test_a_server_that_was_killed_is_noticed(script: Path) -> None:
    """A kill from outside fails the next call, and nothing is left behind after closing."""
    with opened(script) as server:
        pid = pid_of(server)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(ToolFailed, match="ended"):
            server.call("add", {"a": 1, "b": 2})
    assert ended(pid)


def test_a_call_has_a_time_limit(script: Path) -> None:
    """A call over its time fails with an unknown outcome, and the server is ended at closing though it is busy."""
    with opened(script, timeout_s=5) as server:
        pid = pid_of(server)
        server.timeout_s = 0.2
        with pytest.raises(ToolFailed, match=r"no answer within 0\.2 s") as caught:
            server.call("slow", {"seconds": 3})
        assert caught.value.unknown
    assert ended(pid)


def test_calls_from_several_threads_are_answered_apart(server: McpServer) -> None:
    """Each thread gets the answer to its own call."""
    found: dict[int, Any] = {}

    def ask(n: int) -> None:
        found[n] = server.call("add", {"a": n, "b": n})

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {n: {"result": 2 * n} for n in range(8)}


def test_a_large_result_is_cut_or_refused(script: Path) -> None:
    """The limit in bytes holds for a server's results too."""
    with opened(script, max_bytes=20) as server:
        assert server.call("files/list.all", {"count": 50}).startswith("file 0\nfile 1\nfile 2\n[cut: ")
        server.over = "refuse"
        with pytest.raises(ToolFailed, match="ran, but its result has"):
            server.call("files/list.all", {"count": 50})


@pytest.mark.parametrize(
    ("command", "args", "limit_s", "says"),
    [
        ("/nowhere/at/all", [], START_S, "did not start: FileNotFoundError"),
        (sys.executable, ["-c", "import sys; sys.exit('no licence')"], START_S, "last words: no licence"),
        (sys.executable, ["-c", "import time; time.sleep(60)"], 0.5, "it took too long"),
    ],
)
def test_a_server_that_does_not_start_says_why(command: str, args: list[str], limit_s: float, says: str) -> None:
    """No such command, an early end and a silent server are told apart, and no thread stays."""
    with pytest.raises(ToolFailed, match=says):
        McpServer("desk", command, args, start_timeout_s=limit_s)
    assert not [thread for thread in threading.enumerate() if thread.name == "mcp desk"]


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without `mcp` the error says what to install, and no process is started."""
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(ConfigError, match=r"refold\[mcp\]"):
        McpServer("desk", sys.executable)


def test_the_bounds_are_named() -> None:
    """An end of a server is waited for longer than the package takes to kill it."""
    assert mcp_tools.CLOSE_TIMEOUT_S > 2 + 2 + 2 + 0.5
