"""Telemetry comes on through what a process has set up, and stays out otherwise: programs and the command line."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Annotated, Any, ClassVar

import pytest

from refold import Owner, StateSchema, add, open_store
from refold_store.errors import ConfigError


class ClaimState(StateSchema):
    """A claim's state."""

    total: Annotated[int, Owner("billing"), add]


PROGRAM = """
import sys
from refold import open_store
{setup}
store = open_store("sqlite://", {{"keys": {{"a": {{"owner": "x", "type": {{}}}}}}}}{options})
{later}
run = store.run("r")
run.write_state("a", 1, writer="x")
run.read_state("a", reader="y")
store.flush()
{end}
"""


def run_program(
    setup: str = "", options: str = "", later: str = "", end: str = "", **variables: str
) -> tuple[str, str]:
    """What a program that writes and reads once prints: standard output and standard error."""
    program = PROGRAM.format(setup=setup, options=options, later=later, end=end)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("REFOLD_", "OTEL_"))}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment | variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def test_nothing_is_loaded_where_nothing_is_set_up() -> None:
    """Without SDK, structlog and REFOLD_LOG, neither is imported, and nothing is printed."""
    end = "print(sorted(n for n in sys.modules if n.startswith(('opentelemetry', 'structlog'))), type(run).__name__)"
    assert run_program(end=end) == ("[] Run\n", "")


def test_the_api_alone_makes_no_span() -> None:
    """With the API imported but no SDK, the store has no observer, asks for no span and loads no SDK."""
    setup = """
from opentelemetry import trace
for kind in (trace.NoOpTracer, trace.ProxyTracer):
    kind.start_span = kind.start_as_current_span = lambda *a, **k: sys.exit("a span was asked for")
"""
    end = "print(store.observer, any(n.startswith('opentelemetry.sdk') for n in sys.modules))"
    assert run_program(setup, end=end) == ("None False\n", "")


SDK = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, ConsoleSpanExporter
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(formatter=lambda span: span.name + "\\n")))
trace.set_tracer_provider(provider)
"""


def test_an_sdk_that_is_set_before_opening_is_found() -> None:
    """A process-wide SDK is used without a word; `telemetry=False` keeps it out; OTEL_SDK_DISABLED is obeyed."""
    assert run_program(SDK) == ("refold.write\n", "")
    assert run_program(SDK, options=", telemetry=False") == ("", "")
    assert run_program(SDK, OTEL_SDK_DISABLED="true")[0] == ""


def test_an_sdk_that_is_set_later_is_found_by_instrument() -> None:
    """It is looked for when the store is opened and by `instrument`, not on each write."""
    assert run_program(later=SDK) == ("", "")
    assert run_program(later=SDK + "assert store.instrument()") == ("refold.write\n", "")


def run_command(*arguments: str, **variables: str) -> tuple[str, str]:
    """What `refold` prints: standard output and standard error."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("REFOLD_", "OTEL_"))}
    command = [sys.executable, "-m", "refold", *arguments]
    done = subprocess.run(command, env=environment | variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


@pytest.fixture
def filled(sqlite_url: str) -> str:
    """URL of a store with one run, `clm-1`, of one key, `total`."""
    with open_store(sqlite_url, ClaimState, telemetry=False) as store:
        store.run("clm-1").write_state("total", 3, writer="billing")
    return sqlite_url


class Collector(BaseHTTPRequestHandler):
    """Takes what an OTLP exporter posts."""

    posted: ClassVar[dict[str, bytes]] = {}

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.posted[self.path] = gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


def test_the_command_line_exports_where_the_variables_say(filled: str) -> None:
    """With an OTLP endpoint, a command sends its spans and metrics there, and prints what it prints without."""
    Collector.posted.clear()
    arguments = ("write", "clm-1", "total", "4", "--store", filled, "--writer", "billing")
    with HTTPServer(("127.0.0.1", 0), Collector) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        out, err = run_command(*arguments, OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{server.server_port}")
        server.shutdown()
    assert "total" in out
    assert err == ""
    assert b"refold.write" in Collector.posted["/v1/traces"]
    assert b"refold.write.duration" in Collector.posted["/v1/metrics"]


def test_the_console_exporter_keeps_standard_output_clean(filled: str) -> None:
    """Spans for the console go to standard error; an exporter that is not known is told in a line."""
    arguments = ("write", "clm-1", "total", "4", "--store", filled, "--writer", "billing", "--json")
    out, err = run_command(*arguments, OTEL_TRACES_EXPORTER="console", OTEL_METRICS_EXPORTER="abacus")
    assert json.loads(out)["version"] == 2
    assert '"name": "refold.write"' in err
    assert "refold: OTEL_METRICS_EXPORTER='abacus' is not known here; one of: otlp, console, none" in err


def test_refold_log_gives_json_lines_on_standard_error() -> None:
    """REFOLD_LOG alone switches log lines on, from the level it names; standard output stays the program's."""
    out, err = run_program(REFOLD_LOG="debug")
    assert out == ""
    lines = [json.loads(line) for line in err.splitlines()]
    assert [line["event"] for line in lines] == ["store.opened", "state.written", "store.closed"]
    assert (lines[1]["run"], lines[1]["key"], lines[1]["version"]) == ("r", "a", 1)
    assert run_program(REFOLD_LOG="warning") == ("", "")


def test_a_configured_structlog_is_used() -> None:
    """Who has configured structlog gets the lines there."""
    setup = (
        "import structlog; structlog.configure(processors=[structlog.processors.KeyValueRenderer(key_order=['event'])])"
    )
    out, _err = run_program(setup)
    assert [line.split()[0] for line in out.splitlines()] == [
        "event='store.opened'",
        "event='state.written'",
        "event='store.closed'",
    ]


def test_a_wrong_level_is_a_configuration_error(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """REFOLD_LOG with a word that is no level is refused, with the words that are."""
    monkeypatch.setenv("REFOLD_LOG", "loud")
    with pytest.raises(ConfigError, match=r"REFOLD_LOG: 'loud' .* debug, info, warning, error"):
        open_store(sqlite_url, ClaimState)
