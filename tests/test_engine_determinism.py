"""The same seed and the same script give the same log, byte for byte, in any process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

WORKER = str(Path(__file__).with_name("determinism_worker.py"))


def played(url: str, folder: Path, hash_seed: str, seed: int = 7) -> list[str]:
    words = [sys.executable, WORKER, url, str(folder), str(seed)]
    done = subprocess.run(
        words, env={**os.environ, "PYTHONHASHSEED": hash_seed}, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture
def urls(store_url: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[list[str]]:
    """Four fresh stores on one backend."""
    if store_url.startswith("sqlite"):
        yield [f"sqlite:///{tmp_path / f'{n}.db'}" for n in range(4)]
        return
    server, template = request.getfixturevalue("pg_server"), request.getfixturevalue("pg_template")
    names = [f"same_{n}" for n in range(4)]
    yield [server.create(name, template=template) for name in names]
    for name in names:
        server.drop(name)


def test_the_same_bytes(urls: list[str], tmp_path: Path) -> None:
    """E12: clock, ids, random and model go through ports: every column of every event is the same in processes with
    other hash seeds, though tools run side by side; another seed draws others."""
    folder = tmp_path / "team"
    first = played(urls[0], folder, "0")
    assert len(first) > 40
    assert sum('"tool.called"' in line for line in first) == 4
    for url, hash_seed in zip(urls[1:3], ("1", "4242"), strict=True):
        assert played(url, folder, hash_seed) == first
    assert played(urls[3], folder, "0", seed=8) != first


def test_the_order_of_the_record(urls: list[str], tmp_path: Path) -> None:
    """E12: of calls side by side the announcements stand first, then what they read, then results, in call order."""
    lines = played(urls[0], tmp_path / "team", "0")
    kinds = [line.split('"')[1] for line in lines]
    start = kinds.index("tool.called")
    assert kinds[start : start + 16] == ["tool.called"] * 4 + ["state.read"] * 8 + ["tool.returned"] * 4
    reads = [json.loads(line)[3] for line in lines[start + 4 : start + 12]]
    assert reads == ["code", "notes", "loss", "notes", "notes", "notes", "code", "notes"]
