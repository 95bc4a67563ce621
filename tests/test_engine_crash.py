"""The engine killed with `kill -9` at any commit, and started again: the same end, and nothing finished done twice."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from refold import open_store
from refold_replay.verify import verify

WORKER = Path(__file__).with_name("engine_worker.py")
END = {"code": "x", "limit": 7, "loss": {"n": 1}, "notes": ["in", "end"]}


def work(url: str, folder: Path, kill_at: int) -> subprocess.CompletedProcess[str]:
    """One process."""
    path = os.pathsep.join([str(WORKER.parent), *sys.path])
    return subprocess.run(
        [sys.executable, str(WORKER), url, str(folder), str(kill_at)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "PYTHONPATH": path},
    )


@pytest.mark.parametrize("kill_at", [2, 6, 9, 13, 17, -4, -8, -11, -15, -20])
def test_killed_and_started_again(store_url: str, tmp_path: Path, kill_at: int) -> None:
    """E13: whatever the moment, a second start ends in the same state; no effect happens twice, no finished one again.

    A payment that was announced and not answered is not made again: its outcome is unknown, and the agent is told.
    """
    folder = tmp_path / "crash"
    first = work(store_url, folder, kill_at)
    assert first.returncode == -9, first.stderr
    second = work(store_url, folder, 0)
    assert second.returncode == 0, second.stderr
    assert second.stdout.endswith("All settled.\n")
    paid = (folder / "paid.txt").read_text().split() if (folder / "paid.txt").exists() else []
    with open_store(store_url) as store:
        run = store.run("r")
        events = list(run.events())
        assert run.state().json() == END
        assert verify(store).findings == []
    requests = [event.refs["request"] for event in events if event.kind == "model.answered"]
    assert len(requests) == len(set(requests))
    announced = [event for event in events if event.kind == "tool.called"]
    unknown = [event for event in events if event.kind == "tool.returned" and "not known" in str(event.body)]
    assert len(announced) == 1
    assert (len(paid), len(unknown)) in ((1, 0), (0, 1), (1, 1))
    third = work(store_url, folder, 0)
    assert third.stdout.split()[:2] == ["0", "0"], third.stderr
