"""`refold keygen`, `refold anchor` and `refold verify --anchor` on the command line."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from forge import forging

from refold import open_store
from refold.demo import ClaimState

Cli = Callable[..., Any]
RUN = "clm-77401"
DIGEST = "ab" * 32


@pytest.fixture
def kept(claims_url: str, refold_cli: Cli, tmp_path: Path) -> Path:
    """A folder with a key, a signed anchor of the claims store, and a proof of its run."""
    assert refold_cli("keygen", str(tmp_path / "auditor")).exit_code == 0
    words = ("--key", str(tmp_path / "auditor"), "--store", claims_url)
    assert refold_cli("anchor", "-o", str(tmp_path / "anchor.json"), *words).exit_code == 0
    made = refold_cli(
        "anchor", "--prove", RUN, "--from", str(tmp_path / "anchor.json"), "-o", str(tmp_path / "proof.json")
    )
    assert made.exit_code == 0
    return tmp_path


def cut(url: str) -> int:
    """Remove the last event of the run; its seq."""
    with forging(url) as forge:
        last = int(forge.rows()[-1]["seq"])
        forge.remove(last)
    return last


def test_keygen_makes_two_files_once(refold_cli: Cli, tmp_path: Path) -> None:
    """The private part is for its owner alone; nothing is ever overwritten."""
    path = tmp_path / "auditor"
    members = json.loads(refold_cli("keygen", str(path), "--json").stdout)
    assert (members["private"], members["public"]) == (str(path), f"{path}.pub")
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    before = path.read_bytes()
    for file in (path, tmp_path / "none" / "auditor"):
        again = refold_cli("keygen", str(file))
        assert (again.exit_code, again.stderr.count("\n")) == (2, 1)
    (tmp_path / "auditor.pub").unlink()
    assert refold_cli("keygen", str(path)).exit_code == 2
    assert path.read_bytes() == before
    assert not (tmp_path / "auditor.pub").exists()


def test_an_anchor_to_standard_output(claims_url: str, refold_cli: Cli, tmp_path: Path) -> None:
    """Without -o the document is the output, and can be used as it is."""
    shown = refold_cli("anchor", "--store", claims_url).stdout
    document = json.loads(shown)
    assert sorted(document) == ["form", "made_at", "public_key", "root", "runs", "signature"]
    assert [run[:4] for run in document["runs"]] == [["default", RUN, 0, 14]]
    (tmp_path / "anchor.json").write_text(shown)
    result = refold_cli("verify", "--anchor", str(tmp_path / "anchor.json"), "--store", claims_url)
    assert (result.exit_code, result.stdout) == (
        0, "ok: 1 run, 14 events, level full, 1 run held against an anchor\n",
    )  # fmt: skip
    assert "not signed" in result.stderr


def test_an_anchor_of_all_tenants(claims_url: str, refold_cli: Cli) -> None:
    """A tenant's anchor tells of its runs alone, --all-tenants of every run."""
    with open_store(claims_url, ClaimState) as store:
        store.run("clm-1", "acme").open(opened_by="intake_agent")
    names = [[run[:2] for run in json.loads(refold_cli("anchor", *words, "--store", claims_url).stdout)["runs"]]
             for words in ((), ("--tenant", "acme"), ("--all-tenants",))]  # fmt: skip
    assert names == [[["default", RUN]], [["acme", "clm-1"]], [["acme", "clm-1"], ["default", RUN]]]


def test_a_cut_log_against_an_anchor(claims_url: str, refold_cli: Cli, kept: Path) -> None:
    """A cut end is told with its run and seq, exit code 1; without the anchor nothing is wrong."""
    words = ("--anchor", str(kept / "anchor.json"), "--public-key", str(kept / "auditor.pub"), "--store", claims_url)
    assert refold_cli("verify", *words).exit_code == 0
    last = cut(claims_url)
    assert refold_cli("verify", "--store", claims_url).exit_code == 0
    bad = refold_cli("verify", *words)
    assert bad.exit_code == 1
    assert f"run '{RUN}' at seq {last}: truncated: the log ends at seq {last - 1}" in bad.stdout
    document = json.loads(refold_cli("verify", *words, "--json").stdout)
    assert (document["ok"], document["anchored"]) == (False, 1)
    assert [(one["run"], one["seq"], one["damage"]) for one in document["findings"]] == [(RUN, last, "truncated")]


def test_a_run_that_is_gone(claims_url: str, refold_cli: Cli, kept: Path) -> None:
    """A run that the anchor knows and the store does not: a finding, also if the run is asked for by name."""
    with forging(claims_url) as forge:
        for table in ("keyframes", "events", "runs"):
            forge.run(f"DELETE FROM {table}")
    for words in ((), (RUN,)):
        bad = refold_cli("verify", *words, "--anchor", str(kept / "anchor.json"), "--store", claims_url)
        assert bad.exit_code == 1
        assert f"run '{RUN}': vanished: " in bad.stdout
    assert refold_cli("verify", "other", "--anchor", str(kept / "anchor.json"), "--store", claims_url).exit_code == 3


def test_another_key(claims_url: str, refold_cli: Cli, kept: Path) -> None:
    """An anchor signed by somebody else is a finding; a key file that is none is a mistake."""
    refold_cli("keygen", str(kept / "eve"))
    words = ("verify", "--anchor", str(kept / "anchor.json"), "--store", claims_url, "--public-key")
    bad = refold_cli(*words, str(kept / "eve.pub"))
    assert (bad.exit_code, bad.stdout.startswith("anchor: ")) == (1, True)
    assert "another key" in bad.stdout
    for wrong in (kept / "eve", kept / "none", kept / "anchor.json"):
        assert refold_cli(*words, str(wrong)).exit_code == 2
    assert refold_cli("verify", "--store", claims_url, "--public-key", str(kept / "eve.pub")).exit_code == 2


def test_a_proof_of_one_run(claims_url: str, refold_cli: Cli, kept: Path) -> None:
    """A proof is checked by itself, and with a store the run is checked against it."""
    proof = str(kept / "proof.json")
    alone = refold_cli("verify", "--proof", proof, "--public-key", str(kept / "auditor.pub"))
    assert alone.exit_code == 0
    assert "no store was named" in alone.stdout
    assert json.loads(refold_cli("verify", "--proof", proof, "--json").stdout)["ok"] is True
    assert refold_cli("verify", "--proof", proof, "--store", claims_url).exit_code == 0
    cut(claims_url)
    assert refold_cli("verify", "--proof", proof, "--store", claims_url).exit_code == 1
    document = json.loads((kept / "proof.json").read_text())
    document["run"][3] = 3
    (kept / "proof.json").write_text(json.dumps(document))
    bad = refold_cli("verify", "--proof", proof)
    assert bad.exit_code == 1
    assert "does not lead" in bad.stdout


@pytest.mark.parametrize(
    "words",
    [
        ("anchor", "--prove", RUN), ("anchor", "--from", "anchor.json"),
        ("anchor", "--prove", RUN, "--from", "anchor.json", "--all-tenants"),
        ("anchor", "--prove", RUN, "--from", "none.json"), ("anchor", "--prove", RUN, "--from", "proof.json"),
        ("anchor", "--prove", RUN, "--from", "auditor"), ("anchor", "--key", "none"),
        ("anchor", "--key", "auditor.pub"),
        ("verify", "--anchor", "proof.json"), ("verify", "--anchor", "none.json"), ("verify", "--proof", "anchor.json"),
        ("verify", RUN, "--proof", "proof.json"), ("verify", "--proof", "proof.json", "--anchor", "anchor.json"),
        ("anchor", "-o", "none/anchor.json"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_mistakes(claims_url: str, refold_cli: Cli, kept: Path, monkeypatch: pytest.MonkeyPatch, words: Any) -> None:
    """What cannot be meant is one line and exit code 2."""
    monkeypatch.chdir(kept)
    result = refold_cli(*words, "--store", claims_url)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1), result.output
    assert result.stdout == ""


def test_a_changed_anchor_proves_nothing(refold_cli: Cli, kept: Path) -> None:
    """No proof is made from an anchor that was changed, nor of a run it does not know."""
    path = kept / "anchor.json"
    assert refold_cli("anchor", "--prove", "clm-1", "--from", str(path)).exit_code == 3
    document = json.loads(path.read_text())
    document["runs"][0][4] = DIGEST
    path.write_text(json.dumps(document))
    result = refold_cli("anchor", "--prove", RUN, "--from", str(path))
    assert result.exit_code == 2
    assert "changed" in result.stderr
