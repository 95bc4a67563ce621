"""The verifier of the examples, which uses nothing of refold: it reads what the page of the format says."""

from __future__ import annotations

import copy
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bundles import EXAMPLE, Lines, by_hand, fill, read_lines, rechain, write_lines

from refold import BundleInvalid, check_bundle, erase, export, open_store
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


def at(lines: Lines, seq: int) -> dict[str, Any]:
    """The line of an event."""
    return next(one for one in lines if one.get("seq") == seq)


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
    manifest = {"erased": [[9, 5, "a", 2], [9, 20, "c", None]], "redacted": False}
    assert allows(manifest, event) == ("erased" if allowed else "")


def cut_out(lines: Lines) -> None:
    """Take two writes away, behind a gap that the manifest names and no event does."""
    before, first, last, said = (at(lines, seq) for seq in (36, 37, 38, 42))
    lines[0]["pruned"].append([37, 38, before["digest"], last["digest"], said["seq"]])
    for one in (first, last):
        lines.remove(one)


def said_by_another(lines: Lines) -> None:
    """Let a gap be named by an event that speaks of something else."""
    lines[0]["pruned"][0][-1] = 42


def body_gone(lines: Lines) -> None:
    """Take a value away, by an erasure of another key's value that the manifest tells otherwise."""
    take_body(lines, "state.deleted")
    lines[0]["erased"].append([43, 39, "reserve_cap", None])


def all_erased_and_gone(lines: Lines) -> None:
    """Take a value away, by an erasure that the manifest widens."""
    all_erased(lines)
    take_body(lines, "state.deleted")


def into_the_salt(lines: Lines) -> None:
    """Move a body into its salt: the commitment is the same."""
    one = at(lines, 3)
    one["salt"] += one.pop("body").encode().hex()


def empty_body(lines: Lines) -> None:
    """The same, with a body of no bytes left."""
    into_the_salt(lines)
    at(lines, 3)["body"] = ""


def minus_one(lines: Lines) -> None:
    """Write the number for none where there is none: the header is the same."""
    at(lines, 3)["turn"] = -1


def body_beside(lines: Lines) -> None:
    """Put a body beside the commitment of an erased one: no digest covers it."""
    one = next(one for one in lines if "commitment" in one)
    one["body"] = '{"value":1}'


@pytest.mark.parametrize(
    "lie",
    [cut_out, said_by_another, body_gone, all_erased_and_gone, into_the_salt, empty_body, minus_one, body_beside],
)
def test_what_the_digests_do_not_cover(lines: Lines, tmp_path: Path, lie: Callable[[Lines], None]) -> None:
    """What a manifest or a line claims beside untouched digests is held against the events: no, as `import` says."""
    changed = copy.deepcopy(lines)
    lie(changed)
    path = write_lines(tmp_path / "lie.refold", changed)
    done = by_hand(path)
    assert (done.returncode, "not whole" in done.stderr) == (1, True), done.stdout
    with pytest.raises(BundleInvalid):
        check_bundle(path)


def test_a_read_says_what_it_had_seen(lines: Lines, tmp_path: Path) -> None:
    """A read without `seen_seq` is none, however well all is chained."""
    changed = copy.deepcopy(lines)
    one = at(changed, 8)
    del one["key"], one["version"]
    one["kind"] = "state.read"
    rechain(changed)
    done = by_hand(write_lines(tmp_path / "lie.refold", changed))
    assert (done.returncode, "seen_seq" in done.stderr) == (1, True), done.stdout


def test_files_that_are_no_bundle(tmp_path: Path) -> None:
    """A file that is not there, or is no bundle, is told in one line."""
    for path in (tmp_path / "none.refold", EXAMPLE):
        done = by_hand(path)
        assert (done.returncode, done.stderr.count("\n")) == (1, 1)
        assert done.stderr.startswith(f"{path}: not whole: ")
