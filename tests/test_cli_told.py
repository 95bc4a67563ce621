"""What the command line says when it is asked for two things at once, for what is not there, or with another's file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from refold import open_store
from refold_replay.archiving import archive
from refold_store.forking import fork

if TYPE_CHECKING:
    from click.testing import Result

Cli = Callable[..., "Result"]
RUN = "clm-77401"


@pytest.fixture
def cli(refold_cli: Cli, claims_url: str) -> Cli:
    """The command line on the claims case."""

    def call(*words: str, **options: Any) -> Result:
        return refold_cli(*words, "--store", claims_url, **options)

    return call


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("find", RUN, "--when", "settlement", "--first", "--all"), "--first and --all exclude each other"),
        (("find", RUN, "--when", "settlement", "--first", "--last", "--all"), "--first, --last and --all exclude each"),
        (("why", RUN, "settlement", "--dot", "--mermaid"), "--dot and --mermaid exclude each other"),
        (("impact", RUN, "routing@1", "--depth", "0", "--all"), "--depth and --all exclude each other"),
    ],
)
def test_options_that_contradict_each_other(cli: Cli, words: tuple[str, ...], message: str) -> None:
    """Neither wins silently: a usage error names them."""
    done = cli(*words)
    assert (done.exit_code, message in done.stderr) == (2, True)


def test_runs_mark_what_is_archived(cli: Cli, claims_url: str, tmp_path: Path) -> None:
    """An archived run is listed as such, in text and JSON, until it is back."""
    with open_store(claims_url) as store:
        fork(store.run(RUN), "later", by="ann")
        archive(store.run(RUN), tmp_path, by="ops", with_forks=True)
    lines = cli("runs").stdout.splitlines()
    assert [line.rstrip().endswith("archived") for line in lines] == [False, True, False]
    listed = json.loads(cli("runs", "--json").stdout)["runs"]
    assert {one["run"]: one["archived"] for one in listed} == {RUN: True, "later": False}
    assert cli("import", str(tmp_path / f"{RUN}-14.refold")).exit_code == 0
    assert "archived" not in cli("runs").stdout


def test_an_archived_parent_is_no_fork(cli: Cli, claims_url: str, tmp_path: Path) -> None:
    """The impact in a fork does not suspect the run it goes on from to be a fork of it; others it still does."""
    with open_store(claims_url) as store:
        fork(store.run(RUN), "later", by="ann")
        fork(store.run("later"), "last", by="ann")
        archive(store.run(RUN), tmp_path, by="ops", with_forks=True)
    for name in ("later", "last"):
        assert "may be among them" not in cli("impact", name, "routing@1").stdout
    with open_store(claims_url) as store:
        archive(store.run("last"), tmp_path, by="ops")
    assert "forks of 'later' may be among them: last" in cli("impact", "later", "routing@1").stdout


def test_an_edited_event_counts_as_changed(cli: Cli) -> None:
    """The first line of `whatif --edit` counts what its table lists."""
    shown = cli("whatif", RUN, "--edit", '4={"ruleset":"QC-auto","authority_limit":8000}').stdout
    assert ": 1 event would change" in shown
    assert "edited" in shown


def test_a_moment_that_is_wrong_or_ahead(cli: Cli) -> None:
    """The hint knows turns; a time that lies ahead gives what is there now, with a warning."""
    assert "a turn (turn:7), or end" in cli("get", RUN, "routing", "--at", "soon").stderr
    done = cli("get", RUN, "routing", "--at", "2130-01-01T00:00:00Z", "--no-record")
    assert (done.exit_code, "warning: 2130-01-01T00:00:00Z lies ahead: this is as of now, seq 14" in done.stderr) == (
        0, True,
    )  # fmt: skip
    assert cli("get", RUN, "routing", "--at", "-1s", "--no-record").stderr == ""


def test_grounds_that_are_no_keys(cli: Cli) -> None:
    """A write that rests on a key nobody declared is told so, with near names."""
    done = cli("write", RUN, "settlement", "{}", "--writer", "settlement_agent", "--based-on", "routng@1")
    assert done.exit_code == 4
    assert "routng@1 does not exist; unknown key 'routng': did you mean 'routing'?" in done.stderr


def test_the_other_document(cli: Cli, tmp_path: Path) -> None:
    """A proof in the place of an anchor, and the other way round, names the right option."""
    anchor, proof = str(tmp_path / "a.json"), str(tmp_path / "p.json")
    assert cli("anchor", "-o", anchor).exit_code == 0
    assert cli("anchor", "--prove", RUN, "--from", anchor, "-o", proof).exit_code == 0
    for words, hint in (("--anchor", proof), "it is a proof: use --proof"), (("--proof", anchor), "use --anchor"):
        done = cli("verify", *words)
        assert (done.exit_code, hint in done.stderr) == (2, True)


@pytest.mark.parametrize("text", ["keys:\n  a: {owner: w}\n", "# a remark\n\n", "%PDF-1.7\n\x00\n", "a,b\n1,2\n"])
def test_a_file_of_another_kind_is_one_line(refold_cli: Cli, tmp_path: Path, text: str) -> None:
    """What is neither a bundle nor JSON Lines is told once, and no store is made for it."""
    (tmp_path / "file").write_text(text)
    done = refold_cli("import", str(tmp_path / "file"), "--store", f"sqlite:///{tmp_path / 'new.db'}")
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.strip().endswith("file:1: neither a bundle nor JSON Lines")
    assert not (tmp_path / "new.db").exists()


def test_what_cannot_be_imported_makes_no_store(refold_cli: Cli, tmp_path: Path) -> None:
    """A seed or a schema that cannot be read is told before a store is made."""
    (tmp_path / "events.jsonl").write_text('{"run": "a", "kind": "write", "writer": "w", "key": "k", "value": 1}\n')
    for option in ("--seed", "--schema"):
        done = refold_cli(
            "import", str(tmp_path / "events.jsonl"), option, str(tmp_path / "none"),
            "--store", f"sqlite:///{tmp_path / 'new.db'}",
        )  # fmt: skip
        assert done.exit_code == 2
        assert not (tmp_path / "new.db").exists()
