"""Bundles: a run as one file, into any store and back, with equal answers and bytes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import pytest
from bundles import OpenNew, by_hand, facts, fill, read_lines, write_lines
from claims import QUEBEC, ClaimState

from refold import (
    Owner,
    Run,
    RunArchived,
    StateSchema,
    Store,
    blame,
    erase,
    fork,
    open_store,
    prune,
    sensitive,
    verify,
)
from refold_replay import bundle_import
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
    first_at = facts(store.run(name))[0][0][9]
    assert round(other.run(name).info().opened_at.timestamp() * 1e6) == first_at
    assert verify(other).findings == []
    again = tmp_path / "again.refold"
    export(other.run(name), again)
    assert again.read_bytes() == path.read_bytes()
    assert by_hand(path).stdout.startswith(f"ok: {name}: {report.events} events up to seq {report.until}")


def test_roll_ups_of_every_kind_go_over(store: Store, other: Store, tmp_path: Path) -> None:
    """Pruned reads of a tenant's key, and a fork made inside a line of the roll-up, import and verify."""
    run = store.run("clm-2")
    run.write_state("routing", QUEBEC, writer="triage_agent")
    run.write_state("house_rule", "always ask", writer="triage_agent")
    for number in range(2):
        for _time in range(2):
            run.read_state("routing", reader="liability_agent")
            run.read_state("house_rule", reader="liability_agent")
        run.write_state("note", number, writer="triage_agent")
    store.flush()
    prune(run, before="end", by="ops")
    fork(run, "clm-2-b", at="note@1", by="ada")
    for name in ("clm-2", "clm-2-b"):
        path = tmp_path / f"{name}.refold"
        export(store.run(name), path)
        assert import_bundle(other, path).outcome == "imported"
        assert other.run(name).readers("routing") == store.run(name).readers("routing")
    assert verify(other).findings == []


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


def test_a_bundle_from_before_a_prune_is_unchanged(open_new: OpenNew, tmp_path: Path) -> None:
    """The same log, whose last reads were rolled up since; inside a roll-up nothing tells, and the message says so."""
    run = open_new(ClaimState, strict_reads=True).run("r")
    run.write_state("note", "x", writer="triage_agent")
    for name in ("inside", "end"):
        run.read_state("note", reader="x")
        export(run, tmp_path / f"{name}.refold")
    prune(run, before="end", by="ops")
    assert import_bundle(run.store, tmp_path / "end.refold").outcome == "unchanged"
    with pytest.raises(TransactionInvalid, match="without the reads around seq 4, pruned since: nothing tells"):
        import_bundle(run.store, tmp_path / "inside.refold")
    export(run, tmp_path / "pruned.refold")
    run.write_state("note", "y", writer="triage_agent")
    assert import_bundle(run.store, tmp_path / "end.refold").outcome == "unchanged"


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


def test_redaction_leaves_commitments(open_new: OpenNew, other: Store, tmp_path: Path, refold_cli: Any) -> None:
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
    assert (import_bundle(other, path).outcome, import_bundle(other, path).lacking) == ("unchanged", 0)
    export(run, tmp_path / "whole.refold")
    erase(other, "p", key="name", version=1, by="dpo", reason="x")
    assert [import_bundle(one, tmp_path / "whole.refold").lacking for one in (store, other)] == [0, 2]
    assert got.state()["name"].erased
    said = refold_cli("import", str(tmp_path / "whole.refold"), "--store", other.url)
    assert "p: 2 events of it in this store came in redacted and stay without bodies" in said.stderr
    again = tmp_path / "again.refold"
    export(got, again)
    assert check_bundle(again).redacted


def test_a_redacted_run_comes_back_from_its_archive(open_new: OpenNew, other: Store, tmp_path: Path) -> None:
    """A run that was imported without sensitive values is archived and restored; a bundle that lacks more is not."""
    run = open_new(Person).run("p")
    run.write_state("name", "Jane Doe-Secret", writer="intake")
    export(run, tmp_path / "p.refold", redact=True)
    import_bundle(other, tmp_path / "p.refold")
    got = other.run("p")
    got.write_state("name", "Joan", writer="intake")
    before = facts(got)
    export(got, tmp_path / "less.refold", redact=True)
    archive(got, tmp_path, by="ops")
    file = tmp_path / f"p-{got.head_seq() - 1}.refold"
    with pytest.raises(
        TransactionInvalid, match=f"may have had .* import the file that `archive` wrote: '{file.name}'"
    ):
        import_bundle(other, tmp_path / "less.refold")
    assert import_bundle(other, file).outcome == "restored"
    assert facts(got)[0][:-1] == before[0]
    assert (got.peek("name").json, verify(other).findings) == ("Joan", [])


def test_redaction_keeps_what_explains_the_rest(open_new: OpenNew, other: Store, tmp_path: Path) -> None:
    """A sensitive key with an erased value and pruned reads: what says so keeps its body, and it imports."""
    store = open_new(Person, strict_reads=True)
    run, path = store.run("p"), tmp_path / "p.refold"
    for number in range(3):
        run.write_state("name", f"Jane {number}", writer="intake")
        run.read_state("name", reader="desk")
    erase(store, "p", key="name", version=1, by="dpo", reason="asked for")
    prune(run, before="end", by="ops")
    report = export(run, path, redact=True)
    assert report.redacted == 2
    assert by_hand(path).returncode == 0
    import_bundle(other, path)
    assert verify(other).findings == []
    assert [e.body["reason"] for e in other.run("p").events(["value.erased"])] == ["asked for"]
    path.rename(tmp_path / "p.refold.part")
    assert export(run, path, redact=True) == replace(report, resumed=True)


def test_what_digests_cover_cannot_be_left_out(open_new: OpenNew, tmp_path: Path) -> None:
    """A sensitive value kept in refs makes a redacted export fail, and leaves no file."""
    run = open_new(Person).run("p")
    run.write_state("name", "Jane", writer="intake")
    run.append("note.added", actor="intake", key="name", refs={"source": {"value": "Jane"}})
    with pytest.raises(ConfigError, match=r"event 4 keeps what is sensitive in refs\.source"):
        export(run, tmp_path / "p.refold", redact=True)
    assert not (tmp_path / "p.refold").exists()


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


@pytest.mark.parametrize("change", [{"actor": "mallory"}, {"recorded_at": 5}, {"turn": 7}])
def test_a_file_changed_after_its_check_imports_nothing(
    store: Store, other: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    """A file that changes between its check and its import, its end made to fit, leaves the store as it was."""
    path = tmp_path / "run.refold"
    export(store.run("clm-1"), path)
    monkeypatch.setattr(bundle_import, "BATCH", 5)
    plain = bundle_import._bring_in

    def swapped(target: Store, _reader: Any, *rest: Any) -> None:
        lines = read_lines(path)
        lines[20] |= change
        write_lines(path, lines)
        plain(target, bundle_import._opened(path, 1 << 20), *rest)

    monkeypatch.setattr(bundle_import, "_bring_in", swapped)
    with pytest.raises(BundleInvalid, match="changed while it was imported"):
        import_bundle(other, path)
    assert other.runs() == []
    monkeypatch.undo()
    export(store.run("clm-1"), path)
    assert import_bundle(other, path).outcome == "imported"


def test_a_store_that_is_behind_stays(store: Store, other: Store, tmp_path: Path) -> None:
    """A bundle of a later state of a run is refused, and the message says how far the store's copy goes."""
    run, path = store.run("clm-1"), tmp_path / "run.refold"
    export(run, path)
    import_bundle(other, path)
    until = run.head_seq()
    run.write_state("routing", QUEBEC, writer="triage_agent")
    export(run, path)
    with pytest.raises(TransactionInvalid, match=f"up to seq {until}, and the bundle goes on to seq {until + 1}"):
        import_bundle(other, path)
    assert other.run("clm-1").head_seq() == until


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


def test_a_key_of_a_scope_stays_behind(open_new: OpenNew, other: Store, tmp_path: Path, refold_cli: Any) -> None:
    """A bundle does not hold what a scope holds: where it was imported, such a key is absent, and `get` says why."""
    run = open_new(ClaimState, strict_reads=True).run("r")
    run.write_state("note", "x", writer="triage_agent")
    run.write_state("house_rule", "y", writer="triage_agent")
    run.read_state("house_rule", reader="x")
    export(run, tmp_path / "r.refold")
    import_bundle(other, tmp_path / "r.refold")
    with open_store(other.url) as bare:
        got = bare.run("r")
        assert [got.peek("house_rule").absent, got.read_state("house_rule", reader="x").absent] == [True, True]
        assert (got.history("house_rule"), [one.version for one in got.readers("house_rule")][:1]) == ([], [1])
        with pytest.raises(ConfigError, match="what the runs of tenant 'default' share has no log in this store"):
            blame(got, "house_rule")
    said = refold_cli("get", "r", "house_rule", "--no-record", "--store", other.url)
    assert (said.exit_code, "scope       tenant: its log is not in this store" in said.stdout) == (0, True)
