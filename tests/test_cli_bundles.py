"""`refold export` and `refold import` of bundles: what they print, their codes, and what they refuse."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bundles import read_lines, write_lines

from refold_replay.signing import new_key

Cli = Callable[..., Any]
RUN = "clm-77401"


@pytest.fixture
def bundle(refold_cli: Cli, claims_url: str, tmp_path: Path) -> Path:
    """The claims case as a bundle."""
    path = tmp_path / "run.refold"
    done = refold_cli("export", RUN, "-o", str(path), "--store", claims_url)
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{RUN}: 14 events up to seq 14 in {path} (")
    return path


def test_import_says_what_it_did(refold_cli: Cli, bundle: Path, tmp_path: Path) -> None:
    """Imported, then unchanged; a dry run without a store checks the file alone."""
    store = f"sqlite:///{tmp_path / 'new.db'}"
    dry = refold_cli("import", str(bundle), "--dry-run", "--store", store)
    assert dry.stdout == f"{RUN}: sound; 14 events up to seq 14, all digests hold, not signed\n"
    assert not (tmp_path / "new.db").exists()
    assert refold_cli("import", str(bundle), "--store", store).stdout.startswith(f"{RUN}: imported; 14 events")
    assert refold_cli("import", str(bundle), "--store", store).stdout.startswith(f"{RUN}: unchanged; 14 events")
    assert refold_cli("get", RUN, "routing", "--store", store).exit_code == 0


def test_json_has_every_fact(refold_cli: Cli, claims_url: str, bundle: Path, tmp_path: Path) -> None:
    """Both commands give their reports as JSON."""
    done = json.loads(refold_cli("export", RUN, "-o", str(bundle), "--json", "--store", claims_url).stdout)
    (one,) = done["bundles"]
    assert (one["run"], one["events"], one["until"], one["redacted"], one["public_key"]) == (RUN, 14, 14, 0, None)
    found = json.loads(refold_cli("import", str(bundle), "--json", "--store", f"sqlite:///{tmp_path / 'b.db'}").stdout)
    assert found["ok"] is True
    assert found["bundles"][0]["outcome"] == "imported"
    assert found["bundles"][0]["digest"] == one["digest"]


def test_a_damaged_bundle_is_one_line(refold_cli: Cli, bundle: Path, tmp_path: Path) -> None:
    """File, line and what is wrong, and the exit code of a wrong file; with --json as a member."""
    lines = read_lines(bundle)
    lines[5]["actor"] = "mallory"
    bad = write_lines(tmp_path / "bad.refold", lines)
    store = f"sqlite:///{tmp_path / 'b.db'}"
    done = refold_cli("import", str(bad), "--store", store)
    assert done.exit_code == 2
    assert done.stderr.startswith(f"refold: {bad}, line 6: digest: ")
    found = refold_cli("import", str(bad), str(bundle), "--json", "--store", store)
    assert found.exit_code == 1
    told = json.loads(found.stdout)
    assert [one["line"] for one in told["errors"]] == [6]
    assert [one["outcome"] for one in told["bundles"]] == ["imported"]


def test_all_runs_into_a_folder(refold_cli: Cli, claims_url: str, tmp_path: Path) -> None:
    """Each run gets a file; a second export leaves what is up to date and writes what moved."""
    out = tmp_path / "out"
    refold_cli("fork", RUN, "a/b", "--at", "4", "--store", claims_url)
    first = refold_cli("export", "--all", "-o", str(out), "--store", claims_url)
    assert sorted(one.name for one in out.iterdir()) == ["a%2Fb.refold", f"{RUN}.refold"]
    assert first.exit_code == 0
    again = refold_cli("export", "--all", "-o", str(out), "--json", "--store", claims_url)
    assert json.loads(again.stdout) == {"bundles": [], "left": {RUN: "up to date", "a/b": "up to date"}}


def test_signed_bundles(refold_cli: Cli, claims_url: str, tmp_path: Path) -> None:
    """A key signs, its public part accepts, another refuses; a wrong key file is told."""
    path, store = tmp_path / "run.refold", f"sqlite:///{tmp_path / 'b.db'}"
    mine = new_key(tmp_path / "mine")
    new_key(tmp_path / "theirs")
    done = refold_cli("export", RUN, "-o", str(path), "--key", str(tmp_path / "mine"), "--store", claims_url)
    assert "signed" in done.stdout
    refused = refold_cli("import", str(path), "--public-key", str(tmp_path / "theirs.pub"), "--store", store)
    assert (refused.exit_code, "signed with another key" in refused.stderr) == (2, True)
    taken = refold_cli("import", str(path), "--public-key", str(tmp_path / "mine.pub"), "--store", store)
    assert f"signed by {mine.hex()}" in taken.stdout
    assert refold_cli("export", RUN, "-o", str(path), "--key", str(path), "--store", claims_url).exit_code == 2


def test_what_does_not_go_together(refold_cli: Cli, claims_url: str, bundle: Path, tmp_path: Path) -> None:
    """Bundles beside event files, their options mixed, a run and --all, no run: usage errors that say what to do."""
    events = tmp_path / "events.jsonl"
    events.write_text('{"run":"r","seq":1,"kind":"turn","agent":"a","ts":null}\n')
    for words, message in (
        (["import", str(bundle), str(events)], "one after the other"),
        (["import", str(bundle), "--seed", str(events)], "--seed is for event files"),
        (["import", str(events), "--public-key", str(events)], "are for bundles"),
        (["export", RUN, "--all", "-o", "x"], "name one RUN, or give --all"),
        (["export", "-o", "x"], "name one RUN, or give --all"),
    ):
        done = refold_cli(*words, "--store", claims_url)
        assert (done.exit_code, message in done.stderr) == (2, True), done.stderr
    missing = refold_cli("export", "clm-7740", "-o", str(tmp_path / "x"), "--store", claims_url)
    assert (missing.exit_code, RUN in missing.stderr) == (3, True)
    nowhere = refold_cli("export", RUN, "-o", str(tmp_path / "no" / "x"), "--store", claims_url)
    assert (nowhere.exit_code, "cannot write" in nowhere.stderr) == (5, True)
    taken = refold_cli("export", "--all", "-o", str(bundle), "--store", claims_url)
    assert (taken.exit_code, "cannot make the folder" in taken.stderr) == (5, True)
