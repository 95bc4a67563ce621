"""The verifier of the examples, which uses nothing of refold: it reads what the page of the format says."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bundles import EXAMPLE, Lines, by_hand, fill, read_lines, write_lines

from refold import erase, export, open_store
from refold_store.events import KIND_ID, chain, commit, genesis, header

PAGE = Path(__file__).resolve().parents[1] / "docs" / "format.md"


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Lines:
    """The lines of a bundle of a fork, with a value erased and reads pruned."""
    folder = tmp_path_factory.mktemp("example")
    fill(f"sqlite:///{folder / 'a.db'}")
    with open_store(f"sqlite:///{folder / 'a.db'}") as store:
        export(store.run("clm-1-b"), folder / "run.refold")
    return read_lines(folder / "run.refold")


def test_the_worked_example_is_what_refold_hashes() -> None:
    """The digests on the page are those refold gives the same two events."""
    none = dict.fromkeys(("txn", "turn", "seen_seq", "clock", "request_id", "refs", "trace_id", "span_id"))
    at = 1_700_000_000_000_000
    zero = genesis("t", "r", 0)
    opened = header(seq=1, kind=KIND_ID["run.opened"], actor="triage", owner=None, key=None, version=None,
                    recorded_at=at, trace_flags=None, **none)  # fmt: skip
    first = chain(zero, opened, commit(bytes(16), b"{}"))
    written = header(seq=2, kind=KIND_ID["state.written"], actor="triage", owner="triage", key="routing", version=1,
                     recorded_at=at + 1, trace_flags=None, **none)  # fmt: skip
    second = chain(first, written, commit(bytes(range(16)), b'{"value":"QC"}'))
    page = PAGE.read_text(encoding="utf-8")
    shown = re.findall(r"^([0-9a-f]{16}) ([0-9a-f]{16}) ([0-9a-f]{16})$", page, re.MULTILINE)
    assert shown == [(zero.hex()[:16], first.hex()[:16], second.hex()[:16])]


def test_it_needs_the_standard_library_alone() -> None:
    """It imports nothing that Python does not bring, and is short enough to be read by whoever relies on it."""
    text = EXAMPLE.read_text(encoding="utf-8")
    assert set(re.findall(r"^(?:import|from) (\w+)", text, re.MULTILINE)) == {
        "gzip", "hashlib", "json", "struct", "sys", "zlib",
    }  # fmt: skip
    assert len(text.splitlines()) < 150


def run_example(*words: str) -> subprocess.CompletedProcess[str]:
    """The example as a program."""
    return subprocess.run([sys.executable, str(EXAMPLE), *words], capture_output=True, text=True, check=False)


def test_without_a_file_it_says_how_it_is_used() -> None:
    """Nothing was checked, so nothing is ok: a usage line and 2. Help is no mistake."""
    done = run_example()
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "usage: python verify_bundle.py FILE...\n")
    for word in ("--help", "-h"):
        done = run_example(word)
        assert (done.returncode, done.stderr) == (0, "")
        assert "python verify_bundle.py FILE..." in done.stdout


def test_it_counts_what_was_left_out(store_url: str, tmp_path: Path) -> None:
    """Of a redacted bundle it says how many bodies are not in it; erased ones are not among them."""
    with open_store(store_url, secret_schema()) as store:
        run = store.run("r")
        run.write_state("secret", "a", writer="w")
        run.write_state("plain", "b", writer="w")
        run.write_state("plain", "c", writer="w")
        erase(store, "r", key="plain", version=1, by="dpo", reason="asked for")
        done = export(run, tmp_path / "r.refold", redact=True)
    assert done.redacted == 1
    assert ", 1 bodies left out, digest " in run_example(str(tmp_path / "r.refold")).stdout


def secret_schema() -> dict[str, Any]:
    """One sensitive key, and one that is not."""
    return {"keys": {"secret": {"owner": "w", "sensitive": True}, "plain": {"owner": "w"}}}


def take_body(lines: Lines, kind: str) -> None:
    """Put the commitment in the place of salt and body, as an erasure does."""
    one = [line for line in lines if line.get("kind") == kind][-1]
    body = one.pop("body", None)
    one["commitment"] = commit(bytes.fromhex(one.pop("salt")), None if body is None else body.encode()).hex()


def all_erased(lines: Lines) -> None:
    """Claim an erasure of everything, by the event that erased one version."""
    lines[0]["erased"] = [[one[0], one[0] - 1, None, None] for one in lines[0]["erased"]]


def redacted(lines: Lines) -> None:
    """Claim that the bundle is a redacted one."""
    lines[0]["redacted"] = True


@pytest.mark.parametrize("claim", [all_erased, redacted])
@pytest.mark.parametrize("kind", ["run.opened", "schema.declared", "run.forked", "reads.pruned"])
def test_some_kinds_keep_their_body(lines: Lines, tmp_path: Path, claim: Callable[[Lines], None], kind: str) -> None:
    """No erasure and no redaction explains a missing body of an event that holds no value."""
    changed = [dict(one) for one in lines]
    claim(changed)
    whole = by_hand(write_lines(tmp_path / "claimed.refold", changed))
    assert whole.returncode == 0, whole.stderr
    take_body(changed, kind)
    done = by_hand(write_lines(tmp_path / "bad.refold", changed))
    assert (done.returncode, "lacks its body" in done.stderr) == (1, True), done.stdout


@pytest.mark.parametrize(
    ("event", "allowed"),
    [
        ({"seq": 4, "kind": "state.written", "key": "a", "version": 2}, True),
        ({"seq": 4, "kind": "state.deleted", "key": "a", "version": 2}, True),
        ({"seq": 4, "kind": "state.refused", "key": "a", "version": 2}, False),
        ({"seq": 4, "kind": "state.written", "key": "a", "version": 3}, False),
        ({"seq": 4, "kind": "state.written", "key": "b", "version": 2}, False),
        ({"seq": 6, "kind": "state.written", "key": "a", "version": 2}, False),
        ({"seq": 9, "kind": "state.written", "key": "c", "version": 1}, False),
        ({"seq": 8, "kind": "state.written", "key": "c", "version": 1}, True),
    ],
)
def test_what_an_erasure_speaks_of(event: dict[str, object], allowed: bool) -> None:
    """Its key, its version (of writes and deletes only), and what stands before it, up to its `until`."""
    allows = runpy.run_path(str(EXAMPLE))["allows"]
    said: set[int] = set()
    manifest = {"erased": [[9, 5, "a", 2], [9, 20, "c", None]], "redacted": False}
    assert allows(manifest, event, said) == ("erased" if allowed else "")
    assert said == ({9} if allowed else set())


def test_files_that_are_no_bundle(tmp_path: Path) -> None:
    """A file that is not there, or is no bundle, is told in one line."""
    for path in (tmp_path / "none.refold", EXAMPLE):
        done = by_hand(path)
        assert (done.returncode, done.stderr.count("\n")) == (1, 1)
        assert done.stderr.startswith(f"{path}: not whole: ")
