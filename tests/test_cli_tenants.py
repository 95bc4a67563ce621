"""A tenant without runs, forgotten or misspelt: nothing is never told as if all were well."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from claims import QUEBEC, ClaimState

from refold import open_store

if TYPE_CHECKING:
    from click.testing import Result

Cli = Callable[..., "Result"]


@pytest.fixture
def acme_url(store_url: str) -> str:
    """URL of a store whose one run is of tenant acme."""
    with open_store(store_url, ClaimState) as store:
        store.run("a-1", "acme").write_state("routing", QUEBEC, writer="triage_agent")
    return store_url


@pytest.mark.parametrize(
    "words",
    [
        ("verify",),
        ("anchor",),
        ("lint",),
        ("export", "--all", "-o", "DIR"),
        ("prune", "--older-than", "1d"),
        ("archive", "--older-than", "1d", "-o", "DIR"),
        ("erase", "--tenant-data", "--reason", "x", "--yes"),
    ],
)
def test_a_forgotten_tenant_is_told(acme_url: str, refold_cli: Cli, tmp_path: Path, words: tuple[str, ...]) -> None:
    """What goes over all runs of a tenant that has none ends with 3, and names the tenants there are."""
    words = tuple(word.replace("DIR", str(tmp_path / "out")) for word in words)
    done = refold_cli(*words, "--store", acme_url)
    assert (done.exit_code, done.stdout) == (3, "")
    assert "no runs in tenant 'default'; there are runs in 'acme': say --tenant NAME" in done.stderr
    done = refold_cli(*words, "--store", acme_url, "--tenant", "acmee")
    assert "no runs in tenant 'acmee'; did you mean 'acme'?" in done.stderr
    assert not (tmp_path / "out").exists()


def test_an_empty_store_is_no_mistake(sqlite_url: str, refold_cli: Cli) -> None:
    """Where nobody has runs, verify says so and ends with 0."""
    assert refold_cli("init", "--store", sqlite_url).exit_code == 0
    done = refold_cli("verify", "--store", sqlite_url)
    assert (done.exit_code, done.stdout) == (0, "ok: 0 runs, 0 events, level full\n")
    assert "no runs in tenant 'default'" in done.stderr


def test_an_anchor_of_nothing_vouches_for_nothing(sqlite_url: str, refold_cli: Cli, tmp_path: Path) -> None:
    """An anchor without runs is refused; one whose tenant has lost every run still names what is gone."""
    empty, full = str(tmp_path / "empty.json"), str(tmp_path / "full.json")
    refold_cli("init", "--store", sqlite_url)
    assert refold_cli("anchor", "-o", empty, "--store", sqlite_url).exit_code == 0
    other = f"sqlite:///{tmp_path / 'other.db'}"
    for url, tenant in ((other, "default"), (sqlite_url, "acme")):
        with open_store(url, ClaimState) as store:
            store.run("a-1", tenant).write_state("routing", QUEBEC, writer="triage_agent")
    assert refold_cli("anchor", "-o", full, "--store", other).exit_code == 0
    refused = refold_cli("verify", "--anchor", empty, "--store", other)
    assert (refused.exit_code, "an anchor of no runs: it vouches for nothing" in refused.stderr) == (2, True)
    gone = refold_cli("verify", "--anchor", full, "--store", sqlite_url)
    assert (gone.exit_code, "a-1" in gone.stdout) == (1, True)
    forgot = refold_cli("verify", "--anchor", full, "--tenant", "none", "--store", sqlite_url)
    assert forgot.exit_code == 3
