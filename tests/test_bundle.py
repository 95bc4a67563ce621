"""Bundles: a run as one file, into any store and back, with equal answers and bytes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
from bundles import OpenNew, by_hand, facts, fill, read_lines, write_lines
from claims import QUEBEC, ClaimState

from refold import Owner, Run, RunArchived, StateSchema, Store, StoreUnavailable, open_store, sensitive, verify
from refold_replay import exporting
from refold_replay.archiving import archive
from refold_replay.bundle_import import check_bundle, import_bundle
from refold_replay.exporting import export
from refold_replay.signing import load_private, load_public, new_key
from refold_store.errors import BundleInvalid, ConfigError, ReadOnlyStore, TransactionInvalid


class Person(StateSchema):
    """A key nobody outside may see."""

    name: Annotated[str, Owner("intake"), sensitive]
    city: Annotated[str, Owner("intake")]


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


@pytest.mark.parametrize("name", ["clm-1", "clm-1-b"])
def test_there_and_back(store: Store, other: Store, tmp_path: Path, name: str) -> None:
    """A run, or a fork with the past it shares, is the same on the other backend, to the byte, and exports the same."""
    path = tmp_path / "run.refold"
    report = export(store.run(name), path)
    done = import_bundle(other, path)
    assert (done.outcome, done.events, done.until) == ("imported", report.events, report.until)
    assert facts(other.run(name)) == facts(store.run(name))
    assert verify(other).findings == []
    again = tmp_path / "again.refold"
    export(other.run(name), again)
    assert again.read_bytes() == path.read_bytes()
    assert by_hand(path).stdout.startswith(f"ok: {name}: {report.events} events up to seq {report.until}")


def test_importing_again_changes_nothing(store: Store, other: Store, tmp_path: Path) -> None:
    """The same bundle again, and a store that went on since, are "unchanged"; the run takes writes as before."""
    path = tmp_path / "run.refold"
    export(store.run("clm-1"), path)
    assert import_bundle(store, path).outcome == "unchanged"
    import_bundle(other, path)
    moved = other.run("clm-1")
    assert moved.write_state("routing", QUEBEC, writer="triage_agent").version == 3
    assert import_bundle(other, path).outcome == "unchanged"
    assert [info.name for info in other.runs()] == ["clm-1"]


def test_another_run_of_the_name_stays(store: Store, other: Store, tmp_path: Path) -> None:
    """A store that holds other events under the name refuses the bundle and keeps what it has."""
    path = tmp_path / "run.refold"
    export(store.run("clm-1"), path)
    with open_store(other.url, ClaimState) as mine:
        mine.run("clm-1").write_state("routing", QUEBEC, writer="triage_agent")
    before = facts(other.run("clm-1"))
    with pytest.raises(TransactionInvalid, match="with other events; nothing was imported"):
        import_bundle(other, path)
    assert facts(other.run("clm-1")) == before


def test_a_signature_is_checked(store: Store, other: Store, tmp_path: Path) -> None:
    """A signed bundle imports; another key, no signature, or changed lines under it are refused."""
    for name in ("mine", "theirs"):
        new_key(tmp_path / name)
    mine, theirs = (load_public(tmp_path / f"{name}.pub") for name in ("mine", "theirs"))
    path, plain = tmp_path / "run.refold", tmp_path / "plain.refold"
    export(store.run("clm-1"), path, key=load_private(tmp_path / "mine"))
    export(store.run("clm-1"), plain)
    assert check_bundle(path).public_key == mine.hex()
    for wrong, key, message in ((path, theirs, "signed with another key"), (plain, mine, "not signed")):
        with pytest.raises(BundleInvalid, match=message):
            check_bundle(wrong, public_key=key)
    lines = read_lines(path)
    forged = write_lines(tmp_path / "forged.refold", lines)
    ended = [*read_lines(forged)[:-1], read_lines(forged)[-1] | {n: lines[-1][n] for n in ("public_key", "signature")}]
    ended[-1]["signature"] = "00" * 64
    with pytest.raises(BundleInvalid, match="signature is not one of this bundle"):
        import_bundle(other, write_lines(forged, ended, end=False))
    assert import_bundle(other, path, public_key=mine).outcome == "imported"


def test_redaction_leaves_commitments(open_new: OpenNew, other: Store, tmp_path: Path) -> None:
    """What names a sensitive key goes without its body: the file does not hold it, and everything verifies."""
    store = open_new(Person)
    run = store.run("p")
    run.write_state("name", "Jane Doe-Secret", writer="intake")
    run.write_state("city", "Montréal", writer="intake")
    with pytest.raises(Exception, match="str"):
        run.write_state("name", {"secret": "Doe-Secret"}, writer="intake")
    path = tmp_path / "p.refold"
    assert export(run, path, redact=True).redacted == 2
    assert b"Doe-Secret" not in json.dumps(read_lines(path)).encode()
    assert check_bundle(path).redacted
    assert by_hand(path).returncode == 0
    import_bundle(other, path, by="auditor")
    got = other.run("p")
    assert got.state().json() == {"city": "Montréal"}
    assert got.state()["name"].erased
    last = list(got.events())[-1]
    assert (last.kind, last.actor, last.refs) == ("run.imported", "auditor", {"redacted": got.head_seq() - 1})
    assert [bytes(e.digest) for e in got.events(until=last.seq - 1)] == [bytes(e.digest) for e in run.events()]
    assert verify(other).findings == []
    assert import_bundle(other, path).outcome == "unchanged"
    again = tmp_path / "again.refold"
    export(got, again)
    assert check_bundle(again).redacted


def test_what_digests_cover_cannot_be_left_out(open_new: OpenNew, tmp_path: Path) -> None:
    """A sensitive value kept in refs makes a redacted export fail, and leaves no file."""
    run = open_new(Person).run("p")
    run.write_state("name", "Jane", writer="intake")
    run.append("note.added", actor="intake", key="name", refs={"source": {"value": "Jane"}})
    with pytest.raises(ConfigError, match=r"event 4 keeps what is sensitive in refs\.source"):
        export(run, tmp_path / "p.refold", redact=True)
    assert not (tmp_path / "p.refold").exists()


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


def test_a_run_that_went_on_is_exported_anew(store: Store, tmp_path: Path) -> None:
    """Members of an older state of the run are not taken over; an export over an older bundle replaces it."""
    run, path = store.run("clm-1"), tmp_path / "run.refold"
    export(run, path)
    (tmp_path / "run.refold.part").write_bytes(path.read_bytes())
    run.write_state("routing", QUEBEC, writer="triage_agent")
    report = export(run, path)
    assert not report.resumed
    assert check_bundle(path).until == report.until == run.head_seq()


def test_an_archived_run_comes_back(store: Store, tmp_path: Path) -> None:
    """The bundle of an archive puts the events back; another bundle of the run does not."""
    run = store.run("clm-1-b")
    early = tmp_path / "early.refold"
    export(run, early)
    run.write_state("routing", QUEBEC, writer="triage_agent")
    before = facts(run)
    done = archive(run, tmp_path, by="ops")
    with pytest.raises(RunArchived):
        run.state()
    with pytest.raises(RunArchived):
        export(run, tmp_path / "no.refold")
    with pytest.raises(TransactionInvalid, match="this bundle is another one"):
        import_bundle(store, early)
    assert import_bundle(store, done.path).outcome == "restored"
    assert facts(run)[1:] == before[1:]
    assert facts(run)[0][:-1] == before[0]
    assert verify(store).findings == []
    assert by_hand(Path(done.path)).returncode == 0


def test_a_failure_half_way_imports_nothing(
    store: Store, other: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that changes between its check and its import leaves the store as it was."""
    from refold_replay import bundle_import

    path = tmp_path / "run.refold"
    export(store.run("clm-1"), path)
    monkeypatch.setattr(bundle_import, "BATCH", 5)
    plain = bundle_import._bring_in

    def swapped(target: Store, reader: Any, by: str) -> None:
        lines = read_lines(path)
        lines[20]["actor"] = "mallory"
        write_lines(path, lines, end=False)
        plain(target, bundle_import._opened(path, 1 << 20), by)

    monkeypatch.setattr(bundle_import, "_bring_in", swapped)
    with pytest.raises((BundleInvalid, KeyError)):
        import_bundle(other, path)
    assert other.runs() == []
    monkeypatch.undo()
    export(store.run("clm-1"), path)
    assert import_bundle(other, path).outcome == "imported"


def test_a_read_only_store_takes_none(store: Store, open_new: OpenNew, tmp_path: Path) -> None:
    """Importing into a read-only store is refused; a dry run says what would happen."""
    path = tmp_path / "run.refold"
    export(store.run("clm-1"), path)
    closed = open_new(read_only=True)
    with pytest.raises(ReadOnlyStore):
        import_bundle(closed, path)
    assert import_bundle(closed, path, dry_run=True).outcome == "unchanged"


def test_large_and_odd_values_survive(open_new: OpenNew, other: Store, tmp_path: Path) -> None:
    """A megabyte of text, deep nesting, a NUL, big integers and negative zero come back to the byte."""
    from refold import Schema

    run: Run = open_new(Schema.open()).run('odd "run"\n/../x')
    deep: Any = []
    for _level in range(90):
        deep = [deep]
    for number, value in enumerate(("é" * 1_000_000, deep, {"\u0000": -0.0}, 10**400, 1e22, "")):
        run.write_state(f"k{number}", value, writer="w\u202e")
    export(run, tmp_path / "x.refold")
    import_bundle(other, tmp_path / "x.refold")
    assert facts(other.run(run.name)) == facts(run)
