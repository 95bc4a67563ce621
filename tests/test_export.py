"""Writing bundles: interrupted, twice at once, overtaken by an erasure; what is left beside and under the name."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from bundles import OpenNew, fill
from claims import QUEBEC, ClaimState

from refold import Store, StoreUnavailable, erase, open_store, prune
from refold_replay import exporting
from refold_replay.bundle import packed
from refold_replay.bundle_import import check_bundle, import_bundle
from refold_replay.exporting import export, up_to_date
from refold_replay.signing import load_private, new_key


@pytest.fixture
def store(store_url: str, open_new: OpenNew) -> Store:
    """A store with a run and a fork of it, on each backend."""
    fill(store_url)
    return open_new(ClaimState)


@pytest.fixture
def other(store_url: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """An empty store on the other backend."""
    sqlite = not store_url.startswith("sqlite")
    url = f"sqlite:///{tmp_path / 'other.db'}" if sqlite else request.getfixturevalue("pg_url")
    with open_store(url) as opened:
        yield opened


@pytest.mark.parametrize("stop", [0, 3, 17])
def test_an_interrupted_export_goes_on(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: int
) -> None:
    """After a crash the next export takes over the complete members, and gives the same bytes as one in one go."""
    monkeypatch.setattr(exporting, "MEMBER", 5)
    run, path = store.run("clm-1-b"), tmp_path / "run.refold"
    export(run, tmp_path / "whole.refold")
    with monkeypatch.context() as patch:
        patch.setattr(exporting, "event_line", _failing(exporting.event_line, stop))
        with pytest.raises(StoreUnavailable, match="no space"):
            export(run, path)
    assert not path.exists()
    with (tmp_path / "run.refold.part").open("ab") as part:
        part.write(b"\x1f\x8b half a member")
    report = export(run, path)
    assert report.resumed
    assert path.read_bytes() == (tmp_path / "whole.refold").read_bytes()
    assert report.sha256 == export(run, tmp_path / "whole.refold").sha256
    assert not (tmp_path / "run.refold.part").exists()


def _failing(plain: Callable[..., bytes], stop: int) -> Callable[..., bytes]:
    left = [stop]

    def line(event: Any) -> bytes:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(28, "no space left on device")
        return plain(event)

    return line


def test_what_is_left_is_compared(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A member of an interrupted export that holds other lines is written anew, with all behind it."""
    monkeypatch.setattr(exporting, "MEMBER", 5)
    run, path, part = store.run("clm-1"), tmp_path / "run.refold", tmp_path / "run.refold.part"
    export(run, path)
    whole, lines = path.read_bytes(), gzip.decompress(path.read_bytes()).splitlines(keepends=True)
    first = next(number for number, line in enumerate(lines) if b'"seq":' in line)
    good = packed(b"".join(lines[:first])) + packed(b"".join(lines[first : first + 5]))
    assert whole.startswith(good)
    next_ones = b"".join(lines[first + 5 : first + 10])
    for odd in (next_ones.replace(b"agent", b"agend"), next_ones + b"\n", next_ones[:-9], b"", b"[]\n"):
        part.write_bytes(good + packed(odd) + whole[len(good) :])
        assert export(run, path).resumed
        assert path.read_bytes() == whole
    part.write_bytes(whole + b"and more")
    report = export(run, path)
    assert (report.resumed, report.size, path.read_bytes()) == (True, len(whole), whole)
    part.write_bytes(packed(b"{}\n") + whole)
    assert not export(run, path).resumed
    assert path.read_bytes() == whole


def test_members_end_by_bytes_too(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is held before it is written is bounded by bytes, however long the lines are."""
    sizes: list[int] = []
    monkeypatch.setattr(exporting, "MEMBER_BYTES", 2_000)
    monkeypatch.setattr(exporting, "packed", lambda data: (sizes.append(len(data)), packed(data))[1])
    export(store.run("clm-1"), tmp_path / "run.refold")
    longest = max(len(line) for line in gzip.decompress((tmp_path / "run.refold").read_bytes()).splitlines(True))
    assert len(sizes) > 5
    assert max(sizes[1:]) < 2_000 + longest
    assert check_bundle(tmp_path / "run.refold").events > 0


def test_one_export_at_a_time(store: Store, tmp_path: Path) -> None:
    """A second export into a file that is being written is refused, and harms nothing."""
    run, path = store.run("clm-1"), tmp_path / "run.refold"
    refusals: list[str] = []

    def meanwhile(_done: int, _all: int, _name: str) -> None:
        with pytest.raises(StoreUnavailable) as caught:
            export(run, path)
        refusals.append(str(caught.value))

    export(run, path, progress=meanwhile)
    assert refusals
    assert all("another export writes" in one for one in refusals)
    assert check_bundle(path).until == run.head_seq()


@pytest.mark.parametrize("take", ["erase", "prune"])
def test_what_is_taken_out_meanwhile(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, take: str) -> None:
    """An export that an erasure or a pruning overtakes fails and leaves no bundle; the next one is whole."""
    monkeypatch.setattr(exporting, "MEMBER", 1)
    run, path, begun = store.run("clm-1"), tmp_path / "run.refold", []
    run.read_state("routing", reader="late")
    store.flush()

    def meanwhile(_done: int, _all: int, _name: str) -> None:
        if not begun:
            begun.append(1)
            if take == "erase":
                erase(store, "clm-1", key="reports", version=30, by="dpo", reason="asked for")
            else:
                prune(run, before="end", by="ops")

    with pytest.raises(StoreUnavailable, match="changed while it was exported"):
        export(run, path, progress=meanwhile)
    assert not path.exists()
    export(run, path)
    assert check_bundle(path).until == run.head_seq()


def test_no_erased_bytes_in_a_bundle(store: Store, tmp_path: Path) -> None:
    """What was erased is not in the bundle of the run or of its fork, in plain or in hex."""
    for name in ("clm-1", "clm-1-b"):
        export(store.run(name), tmp_path / f"{name}.refold")
        text = gzip.decompress((tmp_path / f"{name}.refold").read_bytes())
        assert b"1 xxx" in text
        assert b'"0 xxx' not in text
        assert b'\\"0 xxx' not in text
        assert b"0 xxx".hex().encode() not in text


@pytest.mark.parametrize("made", ["folder", "pipe", "link"])
def test_only_files_are_replaced(store: Store, tmp_path: Path, made: str) -> None:
    """A folder, a pipe, a link to a device under the name is refused and stays; nothing is left beside it."""
    path = tmp_path / "run.refold"
    if made == "folder":
        path.mkdir()
    elif made == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/full")
    before = path.lstat()
    with pytest.raises(StoreUnavailable, match="is no file"):
        export(store.run("clm-1"), path)
    assert os.path.samestat(before, path.lstat())
    assert not path.with_name("run.refold.part").exists()


def test_which_bundle_is_up_to_date(store: Store, other: Store, tmp_path: Path) -> None:
    """Only one of the same events, redacted or not as asked for, and signed with the key that is given."""
    for name in ("mine", "theirs"):
        new_key(tmp_path / name)
    mine, theirs = (load_private(tmp_path / name) for name in ("mine", "theirs"))
    run, path = store.run("clm-1"), tmp_path / "run.refold"
    assert not up_to_date(run, path)
    export(run, path)
    assert up_to_date(run, path)
    assert not up_to_date(store.run("clm-1-b"), path)
    assert not up_to_date(run, path, redact=True)
    assert not up_to_date(run, path, key=mine)
    export(run, path, redact=True, key=mine)
    assert not up_to_date(run, path)
    assert up_to_date(run, path, redact=True, key=mine)
    assert not up_to_date(run, path, redact=True, key=theirs)
    import_bundle(other, path)
    export(other.run("clm-1"), path)
    assert up_to_date(other.run("clm-1"), path)
    with open_store(other.url, ClaimState) as elsewhere:
        elsewhere.run("twin").write_state("routing", QUEBEC, writer="triage_agent")
        store.run("twin").write_state("routing", QUEBEC, writer="triage_agent")
        export(elsewhere.run("twin"), tmp_path / "twin.refold")
    assert not up_to_date(store.run("twin"), tmp_path / "twin.refold")


def test_a_run_that_went_on_is_exported_anew(store: Store, tmp_path: Path) -> None:
    """Members of an older state of the run are not taken over; an export over an older bundle replaces it."""
    run, path = store.run("clm-1"), tmp_path / "run.refold"
    export(run, path)
    (tmp_path / "run.refold.part").write_bytes(path.read_bytes())
    run.write_state("routing", QUEBEC, writer="triage_agent")
    report = export(run, path)
    assert not report.resumed
    assert check_bundle(path).until == report.until == run.head_seq()
