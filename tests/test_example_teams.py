"""The example teams run offline from their folders, and end in the same state wherever they are killed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from refold import open_store
from refold_engine.checking import check
from refold_replay.verify import verify

ROOT = Path(__file__).resolve().parents[1]
WORKER = Path(__file__).with_name("demo_worker.py")
CLAIMS: dict[str, Any] = {
    "loss": {"province": "QC", "claimed": 18000},
    "evidence": ["police report QC-2231: injury"],
    "routing": {"ruleset": "QC-auto", "authority_limit": 8000, "police_report": True},
    "settlement": {"amount": 7500, "within_limit": 8000},
}
RESEARCH: dict[str, Any] = {
    "findings": ["the dam was built in 1911", "cracks were reported twice", "the keeper saw water in May"],
    "sources": {"archive": 12, "press": 3, "people": 1},
    "cost": 0.75,
    "report": "Built in 1911; cracks; water in May.",
}


def words(name: str, *more: str) -> list[str]:
    """A command line on an example."""
    return [*more, "--model", f"scripted:examples/{name}/script.yaml"]


DEMOS = {
    "claims": [
        words("claims", "engine", "run", "examples/claims/team.yaml", "--run", "r", "--message", "go",
              "--message-id", "m"),
        words("claims", "engine", "resume", "r", "--config", "examples/claims/team.yaml", "--yes"),
    ],
    "research": [words("research", "engine", "workflow", "examples/research/team.yaml", "research", "--run", "r",
                       "--input", "why")],
    "fact_check": [words("fact_check", "engine", "workflow", "examples/fact_check/team.yaml", "check", "--run", "r",
                         "--input", "x")],
}  # fmt: skip
ENDS = {
    "claims": ("Settled and paid: 7,500, within the limit of 8,000.", CLAIMS),
    "research": ("Report: built in 1911; cracks; water in May.", RESEARCH),
    "fact_check": ("Yes", {}),
}


def refold(url: str, kill_at: int, line: list[str]) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    return subprocess.run(
        [sys.executable, str(WORKER), str(kill_at), *line],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "REFOLD_STORE": url},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize("name", DEMOS)
def test_configurations_are_sound(name: str) -> None:
    """`refold engine check` has nothing to say against them."""
    assert check(ROOT / "examples" / name / "team.yaml").errors == ()


@pytest.mark.parametrize(
    ("name", "kill_at"),
    [("claims", n) for n in (2, 7, 12, 20, 27)]
    + [("research", n) for n in (3, 9, 16, 24)]
    + [("fact_check", n) for n in (4, 9)],
)
def test_killed_anywhere(sqlite_url: str, name: str, kill_at: int) -> None:
    """Killed before any append and started again, a demo ends like one that was not."""
    text, state = ENDS[name]
    killed = False
    for line in DEMOS[name]:
        first = refold(sqlite_url, 0 if killed else kill_at, line)
        killed = killed or first.returncode == -9
        if first.returncode == -9:
            first = refold(sqlite_url, 0, line)
        assert first.returncode == 0, first.stderr
    assert killed
    assert first.stdout.strip() == text
    with open_store(sqlite_url) as store:
        assert store.run("r").state().json() == state
        assert verify(store, tenant="default").findings == []
    for line in DEMOS[name]:
        again = refold(sqlite_url, 0, line)
        assert (again.returncode, again.stdout.strip().splitlines()[-1:]) == (0, [text]), again.stderr
