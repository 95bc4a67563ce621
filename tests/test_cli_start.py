"""The command line as a process: what it imports, how it ends, how it completes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from refold import open_store
from refold.app import COMMANDS, SECTIONS, root
from refold.demo import ClaimState, free_run, play

HEAVY = (
    "alembic", "asyncio", "jsonschema_rs", "litellm", "opentelemetry.sdk", "psycopg", "pydantic", "rich", "sqlalchemy",
    "structlog", "yaml",
)  # fmt: skip

LOOKUPS = (
    ["--help"],
    ["--version"],
    ["get", "--help"],
    ["get", "clm-77401", "routing", "--as", "alice"],
    ["get", "clm-77401", "evidence", "--no-record", "--json"],
    ["state", "clm-77401", "--at", "routing@1"],
    ["runs"],
    ["keys", "clm-77401"],
    ["history", "clm-77401", "routing"],
    ["readers", "clm-77401", "routing", "--version", "1"],
    ["events", "clm-77401", "--json"],
    ["diff", "clm-77401", "routing@1", "end"],
)

REPORT = """
import sys
from refold.__main__ import main
try:
    main()
except SystemExit as end:
    code = end.code
print("LOADED", code, *sorted(sys.modules), file=sys.stderr)
"""


@pytest.fixture(scope="module")
def demo_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite store with the claims case."""
    path = tmp_path_factory.mktemp("demo") / "claims.db"
    with open_store(path, ClaimState) as store:
        play(free_run(store, "default"), lambda _line: None)
    return path


def refold(*words: str, store: Path | None = None, **options: object) -> subprocess.CompletedProcess[str]:
    """Run `python -m refold` in a process of its own."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("REFOLD_")}
    if store is not None:
        env["REFOLD_STORE"] = f"sqlite:///{store}"
    return subprocess.run(
        [sys.executable, "-m", "refold", *words], env=env, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("words", LOOKUPS, ids=" ".join)
def test_looking_imports_nothing_heavy(words: list[str], demo_file: Path) -> None:
    """Help and lookups on SQLite load no database toolkit, no Pydantic, no rich: they answer in a blink."""
    env = os.environ | {"REFOLD_STORE": str(demo_file)}
    done = subprocess.run(
        [sys.executable, "-c", REPORT, *words], env=env, capture_output=True, text=True, timeout=60, check=True
    )
    report = done.stderr[done.stderr.index("LOADED") :].split()
    assert report[1] == "0"
    assert done.stdout
    assert [name for name in HEAVY if name in report] == []


def test_help_imports_no_command(demo_file: Path) -> None:
    """`refold --help` loads neither the commands nor the store."""
    done = subprocess.run([sys.executable, "-c", REPORT, "--help"], capture_output=True, text=True, check=True)
    loaded = done.stderr.split()
    assert [name for name in loaded if name.startswith("refold.commands.")] == []
    assert "refold_store.store" not in loaded


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["get", "clm-77401", "routing"], 0, ""),
        (["get", "clm-7741", "routing"], 3, "no run 'clm-7741' in tenant 'default'; did you mean 'clm-77401'?"),
        (["get", "clm-77401", "ruting"], 3, "unknown key 'ruting': did you mean 'routing'?"),
        (["get", "clm-77401", "routing", "--at", "99"], 3, "seq 99 is not in this run; its newest is"),
        (["get", "clm-77401", "routing", "--at", "routing@9"], 3, "key 'routing' has no version 9; its newest is 2"),
        (["get", "clm-77401", "routing", "--at", "2026-01-01T00:00:00"], 3, "has no time zone"),
        (["gett", "clm-77401", "routing"], 2, "no command 'gett': did you mean get?"),
        (["runs", "--where", "status =="], 2, "condition 'status =='"),
        (["get", "clm-77401"], 2, "Missing argument 'KEY' (see `refold get --help`)"),
        (["--tenant", "x", "runs"], 2, "options stand after the command"),
        (["write", "clm-77401", "routing", "{}", "--writer", "evidence_agent"], 4, "its owner is 'triage_agent'"),
        (["write", "clm-77401", "loss", "{", "--writer", "intake_agent"], 2, "VALUE is not JSON"),
        (["runs", "--store", "absent.db"], 5, "no store at 'absent.db'"),
        (["runs", "--store", "mysql://x"], 2, "mysql:// is not a store refold knows"),
        (["runs", "--store", "postgresql://[x"], 2, "not a PostgreSQL URL"),
        (["runs", "--store", "postgresql://nobody@127.0.0.1:1/x"], 5, "cannot connect to PostgreSQL"),
        (["runs", "--store", __file__], 2, "this file is not a SQLite database"),
        (["schema", "check", "absent.yaml"], 2, "no file 'absent.yaml'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_mistake_is_one_line_and_a_code(words: list[str], code: int, message: str, demo_file: Path) -> None:
    """Each way to be wrong ends with its exit code and one line on standard error, never a traceback."""
    done = refold(*words, store=demo_file)
    assert done.returncode == code, done.stderr
    assert message in done.stderr
    assert done.stderr.count("\n") == (1 if message else 0)
    assert "Traceback" not in done.stderr


def test_without_a_store_both_ways_are_named() -> None:
    """A command without a store says how to give one."""
    done = refold("runs")
    assert done.returncode == 2
    assert "--store" in done.stderr
    assert "REFOLD_STORE" in done.stderr


def test_a_closed_pipe_is_no_error(demo_file: Path) -> None:
    """`refold events ... | head -1` ends quietly, with the code shells know for it."""
    words = ["events", "clm-77401", "--json", "--store", str(demo_file)]
    with subprocess.Popen(
        [sys.executable, "-m", "refold", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(timeout=60) == 141


def test_help_lists_commands_and_exit_codes(refold_cli: Callable[..., object]) -> None:
    """`refold --help` names every command and what each exit code means."""
    shown = refold("--help").stdout
    for name in COMMANDS:
        assert f"\n  {name} " in shown
    for code in range(6):
        assert f"\n  {code}  " in shown


def test_every_command_exists_and_is_described() -> None:
    """The table of commands names modules that hold them; each has help, and the options of all commands."""
    with root.make_context("refold", [], resilient_parsing=True) as context:
        for name in COMMANDS:
            command = root.get_command(context, name)
            assert command is not None
            assert command.name == name
            assert command.help
            options = {option for param in command.params for option in param.opts}
            assert (
                name in ("completion", "engine", "keygen", "replay", "schema")
                or {"--store", "--tenant", "--json"} <= options
            )
    assert sum(map(len, SECTIONS.values())) == len(COMMANDS)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell: str) -> None:
    """`refold completion SHELL` prints a script that asks refold."""
    done = refold("completion", shell)
    assert done.returncode == 0
    assert "_REFOLD_COMPLETE" in done.stdout


@pytest.mark.parametrize(
    ("words", "at", "expected"),
    [
        (["refold", "ge"], 1, {"get"}),
        (["refold", "get", "clm"], 2, {"clm-77401"}),
        (["refold", "get", "clm-77401", "r"], 3, {"routing", "reserve_band"}),
        (["refold", "get", "clm-77401", "--as"], 3, {"--as"}),
        (["refold", "get", "absent", "r"], 3, set()),
    ],
)
def test_completion_of_commands_runs_and_keys(words: list[str], at: int, expected: set[str], demo_file: Path) -> None:
    """A shell gets the names that begin like the word it completes."""
    env = os.environ | {
        "_REFOLD_COMPLETE": "bash_complete", "COMP_WORDS": " ".join(words), "COMP_CWORD": str(at),
        "REFOLD_STORE": str(demo_file),
    }  # fmt: skip
    done = subprocess.run([sys.executable, "-m", "refold"], env=env, capture_output=True, text=True, check=False)
    assert {line.partition(",")[2] for line in done.stdout.split()} == expected
    assert done.stderr == ""
