"""`refold demo`: the claims case, on both backends."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from refold import open_store

Cli = Callable[..., Any]


def test_the_story(store_url: str, refold_cli: Cli) -> None:
    """It says where it plays, tells what is refused and why, and ends with three commands and their output."""
    result = refold_cli("demo", "--store", store_url)
    assert result.exit_code == 0
    assert result.stdout.startswith(f"Playing the claims case as run clm-77401 in {store_url}.\n")
    for part in (
        "triage_agent writes routing@1", "settlement_agent reads routing@1",
        "refused: 'evidence_agent' may not write 'routing': its owner is 'triage_agent'",
        "refused: invariant 'band_in_order' would be broken", "triage_agent writes routing@2",
        "outdated when written: version 2 was there since seq 12",
    ):  # fmt: skip
        assert part in result.stdout
    assert re.findall(r"^\$ refold .*$", result.stdout, re.MULTILINE) == [
        "$ refold get clm-77401 routing",
        "$ refold readers clm-77401 routing --version 1",
        "$ refold get clm-77401 settlement",
    ]


def test_what_is_stored_is_what_was_told(claims_url: str) -> None:
    """Three agents read version 1; both refusals are on the record; the settlement rests on the old version."""
    with open_store(claims_url) as store:
        run = store.run("clm-77401")
        assert {one.reader for one in run.readers("routing", version=1)} == {
            "evidence_agent", "liability_agent", "settlement_agent",
        }  # fmt: skip
        refused = [(event.actor, event.key, event.body["reason"]) for event in run.events(["state.refused"])]
        assert refused == [("evidence_agent", "routing", "owner"), ("reserve_agent", "reserve_band", "invariant")]
        assert run.peek("settlement").based_on == [("routing", 1)]
        assert run.peek("routing").version == 2
        assert run.peek("reserve_band").owner == "desk"


def test_a_second_time(store_url: str, refold_cli: Cli) -> None:
    """Played again it takes the next name; the first run's log gains nothing but the looks at it."""
    refold_cli("demo", "--quiet", "--store", store_url)
    second = refold_cli("demo", "--store", store_url).stdout
    assert "as run clm-77401-2 in" in second
    assert "clm-77401 is in this store already" in second
    with open_store(store_url) as store:
        assert [(info.name, info.head_seq) for info in store.runs()] == [("clm-77401", 14), ("clm-77401-2", 16)]


def test_the_store_is_the_given_one_or_a_file_here(
    tmp_path: Path, refold_cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a store it makes refold-demo.db in this folder; REFOLD_STORE and --store come first."""
    monkeypatch.chdir(tmp_path)
    assert "in sqlite:///refold-demo.db.\n" in refold_cli("demo").stdout
    assert (tmp_path / "refold-demo.db").exists()
    assert "in other.db.\n" in refold_cli("demo", env={"REFOLD_STORE": "other.db"}).stdout
    assert (tmp_path / "other.db").exists()
