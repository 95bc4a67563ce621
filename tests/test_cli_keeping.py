"""`refold erase` and `refold prune` on both backends: what they say, what they ask, what the other commands show."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from kept import holds, walk

from refold import open_store

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


def test_erase_says_what_it_does(cli: Cli, claims_url: str) -> None:
    """A version is erased with --yes; get, history and state show by whom; the log holds."""
    done = cli("erase", RUN, "routing@1", "--reason", "wrong person", "--yes", "--as", "dpo")
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert lines[0] == f"1 event (1 write) of routing@1 in {RUN} erased by dpo: wrong person"
    assert f"may still hold it: settlement@1 of {RUN}, seq 14: rests on routing@1" in lines
    assert "evidence_agent, liability_agent, settlement_agent" in done.stdout
    assert "--vacuum does it" in lines[-1]
    shown = cli("get", RUN, "routing", "--at", "routing@1", "--no-record")
    assert "(erased by dpo at 2" in shown.stdout
    assert "basis       erased" in shown.stdout
    assert "(erased by dpo at 2" in cli("history", RUN, "routing").stdout
    state = json.loads(cli("state", RUN, "--at", "routing@1", "--json").stdout)
    assert [state["keys"]["routing"][name] for name in ("value", "erased")] == [None, True]
    with open_store(claims_url, read_only=True) as store:
        assert walk(store.run(RUN)) == []


def test_an_erased_update_shows_in_get(cli: Cli) -> None:
    """A value that lacks an erased update says so, with who and when, in text and JSON."""
    for text in ("two", "three"):
        assert cli("write", RUN, "evidence", f'["{text}"]', "--writer", "evidence_agent", "--json").exit_code == 0
    assert cli("erase", RUN, "evidence@2", "--reason", "hearsay", "--yes", "--as", "dpo").exit_code == 0
    shown = cli("get", RUN, "evidence", "--no-record").stdout
    assert '"three"' in shown
    assert '"two"' not in shown
    assert "without     version 2, erased by dpo at 2" in shown
    assert "Z: hearsay" in shown
    found = json.loads(cli("get", RUN, "evidence", "--no-record", "--json").stdout)
    assert [(gap["version"], gap["erased_by"], gap["reason"]) for gap in found["without"]] == [(2, "dpo", "hearsay")]
    assert (found["erased"], found["erased_by"]) == (False, None)
    second = [json.loads(line) for line in cli("history", RUN, "evidence", "--json").stdout.splitlines()][1]
    assert (second["erased_by"], second["value"]) == ("dpo", ["police report QC-2231"])


def test_nothing_is_erased_without_a_yes(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script without --yes is refused and told what would go; on a terminal the person is asked."""
    refused = cli("erase", RUN, "routing", "--reason", "x")
    assert refused.exit_code == 2
    assert "3 events (2 writes) of routing in clm-77401 would be erased" in refused.stderr
    assert "give --yes" in refused.stderr
    dry = json.loads(cli("erase", RUN, "routing", "--reason", "x", "--dry-run", "--json").stdout)
    assert (dry["dry_run"], dry["events"], dry["keys"]) == (True, 3, {"routing": 3})
    assert dry["logs"][0]["seq"] is None
    monkeypatch.setattr("refold.commands.keeping.asks", lambda: True)
    said_no = cli("erase", RUN, "routing", "--reason", "x", input="n\n")
    assert said_no.exit_code == 130
    assert json.loads(cli("erase", RUN, "routing", "--reason", "x", "--dry-run", "--json").stdout)["events"] == 3
    assert cli("erase", RUN, "routing", "--reason", "x", input="y\n").exit_code == 0
    assert "nothing to erase of routing" in cli("erase", RUN, "routing", "--reason", "x").stdout


def test_erase_a_tenant_and_vacuum(cli: Cli, claims_url: str) -> None:
    """--tenant-data takes every run; --vacuum takes the bytes from the files."""
    assert holds(claims_url, b"QC-2231")
    done = cli("erase", "--tenant-data", "--reason", "contract ended", "--yes", "--vacuum", "--json")
    found = json.loads(done.stdout)
    assert (found["run"], found["vacuumed"], found["events"]) == (None, True, 8)
    assert set(found) == {
        "run", "tenant", "key", "version", "by", "reason", "dry_run", "events", "values", "keys", "logs", "suspects",
        "suspect_count", "readers", "archived_runs", "elsewhere", "vacuumed",
    }  # fmt: skip
    assert holds(claims_url, b"QC-2231") == []


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("erase", RUN, "routing"), 2, "say why: --reason TEXT"),
        (("erase", "--reason", "x"), 2, "name a RUN, or give --tenant-data"),
        (("erase", RUN, "--tenant-data", "--reason", "x"), 2, "one of them"),
        (("erase", "clm-77402", "--reason", "x"), 3, "did you mean 'clm-77401'?"),
        (("erase", RUN, "routing@9", "--reason", "x"), 3, "no version 9; its newest is 2"),
        (("erase", RUN, "rooting", "--reason", "x"), 3, "did you mean 'routing'?"),
        (("prune", RUN), 2, "say how far"),
        (("prune", RUN, "--older-than", "90d", "--before", "3"), 2, "one of them"),
        (("prune", RUN, "--older-than", "soon"), 2, "is not an age"),
        (("prune", RUN, "--before", "99"), 3, "seq 99 is not in this run"),
        (("prune", "nope", "--before", "end"), 3, "no run 'nope'"),
    ],
)
def test_mistakes(cli: Cli, words: tuple[str, ...], code: int, message: str) -> None:
    """Each mistake is one line with the way out, and changes nothing."""
    done = cli(*words)
    assert (done.exit_code, message in done.stderr, done.stdout) == (code, True, "")


def test_prune_rolls_up(cli: Cli, claims_url: str) -> None:
    """Reads roll up, readers and get still tell who read what, and a second prune finds nothing."""
    before = cli("readers", RUN, "routing").stdout
    dry = cli("prune", RUN, "--before", "end", "--dry-run").stdout
    assert "would be rolled up" in dry
    done = json.loads(cli("prune", RUN, "--before", "end", "--as", "ops", "--json").stdout)
    assert set(done) == {"tenant", "by", "dry_run", "reads", "runs"}
    assert (done["by"], done["reads"], done["runs"][0]["events"]) == ("ops", done["runs"][0]["reads"], 1)
    assert done["reads"] > 0
    assert cli("readers", RUN, "routing").stdout == before
    assert "no reads up to seq" in cli("prune", RUN, "--before", "end").stdout
    assert cli("prune", "--older-than", "90d").stdout == "no reads that old\n"
    with open_store(claims_url, read_only=True) as store:
        assert walk(store.run(RUN)) == []


def test_archive_moves_a_run_out(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`archive` names the file; afterwards every look at the run does, and `runs` still lists it."""
    monkeypatch.setattr("refold_replay.archiving.bundle", lambda run, path: path.write_bytes(b"x"))
    dry = cli("archive", RUN, "-o", str(tmp_path / "out"), "--dry-run")
    assert dry.stdout == f"{RUN}: 14 events up to seq 14 would go to {tmp_path / 'out' / RUN}-14.refold\n"
    done = json.loads(cli("archive", RUN, "-o", str(tmp_path / "out"), "--as", "ops", "--json").stdout)
    assert set(done) == {"tenant", "by", "dry_run", "skipped", "archived"}
    assert (done["archived"][0]["events"], done["archived"][0]["seq"]) == (14, 15)
    assert RUN in cli("runs").stdout
    for words in (("get", RUN, "routing"), ("state", RUN), ("history", RUN, "routing"), ("readers", RUN, "routing")):
        shown = cli(*words)
        assert (shown.exit_code, shown.stdout) == (3, "")
        assert "was archived by 'ops' at 2" in shown.stderr
        assert (
            f"`refold import` of the file '{RUN}-14.refold', from where it was archived to, puts it back"
            in shown.stderr
        )
    assert cli("archive", "--older-than", "365d", "-o", str(tmp_path)).stdout == "no runs that old\n"
    wrong = cli("archive", "-o", str(tmp_path))
    assert (wrong.exit_code, "name a RUN, or give --older-than" in wrong.stderr) == (2, True)


def test_counts_of_rolled_up_reads(cli: Cli) -> None:
    """Reads of one reader become one line with their count, in `readers --json` and on the screen of `get`."""
    for _time in range(3):
        cli("get", RUN, "loss", "--as", "dana")
    cli("prune", RUN, "--before", "end")
    reads = json.loads(cli("readers", RUN, "loss", "--json").stdout)["reads"]
    mine = next(one for one in reads if one["reader"] == "dana")
    assert (mine["count"], mine["last_seq"] > mine["seq"]) == (3, True)
    assert "(3 reads, rolled up)" in cli("get", RUN, "loss", "--no-record").stdout
