"""One benchmark in a process of its own, started under the preloaded helper: `python -m bench.worker NAME SETTINGS`.

A process each keeps one benchmark's heap, threads and telemetry out of the next one's times.
"""

from __future__ import annotations

import importlib
import json
import sqlite3
import sys
from dataclasses import asdict
from pathlib import Path

from bench.board import Board
from bench.lab import Lab, Options, connect_traced
from bench.registry import BENCHMARKS

MODULES = (
    "writes",
    "transactions",
    "concurrency",
    "reads",
    "moments",
    "replay",
    "storage",
    "appends",
    "verify",
    "audit",
    "engine",
    "engineparts",
)


def load_all() -> None:
    """Imports every module of benchmarks, in the order of the table."""
    for name in MODULES:
        importlib.import_module(f"bench.{name}")


def main(name: str, settings_text: str) -> None:
    """Measures one benchmark and writes what it found as JSON lines into the file that the settings name."""
    settings = json.loads(settings_text)
    options = settings["options"]
    options["places"], options["backends"] = tuple(options["places"]), tuple(options["backends"])
    sqlite3.connect = connect_traced  # type: ignore[assignment]  # the same call, remembered
    load_all()
    folder = Path(settings["folder"])
    boards = Board(Path(settings["client_board"])), Board(Path(settings["server_board"]))
    lab = Lab(folder, settings["postgres"], *boards, Options(**options))
    with lab.closing, Path(settings["result"]).open("w", encoding="utf-8") as result:
        for line in BENCHMARKS[name].measure(lab):
            result.write(json.dumps(asdict(line)) + "\n")
            result.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
