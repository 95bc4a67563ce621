"""Archiving: events move out, the run says where they are, and everything is as before once they are back."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from claims import ONTARIO, QUEBEC, ClaimState
from kept import Clock, walk

from refold import NoSuchRun, ReadOnlyStore, Run, Store, StoreUnavailable, TransactionInvalid, prune, whatif
from refold_replay.archiving import archive, archive_old
from refold_store.archiving import move_out
from refold_store.erasing import erase
from refold_store.errors import RunArchived
from refold_store.events import Row
from refold_store.forking import fork
from refold_store.migrate import postgres_roles

OpenNew = Callable[..., Store]


@pytest.fixture
def run(open_new: OpenNew, clock: Clock) -> Run:
    """A run with writes, a read, and keyframes."""
    run = open_new(ClaimState, strict_reads=True, clock=clock).run("clm-1")
    run.write_state("routing", QUEBEC, writer="triage_agent")
    for number in range(40):
        run.write_state("reports", f"{number} {'x' * 200}", writer="evidence_agent")
    run.read_state("routing", reader="liability_agent")
    run.write_state("routing", ONTARIO, writer="triage_agent")
    return run


def pack(run: Run, path: Path) -> None:
    """A bundle for tests: the rows as they are."""
    run_id = run._run_id()
    assert run_id is not None
    sql = run._backend.sql.events
    path.write_bytes(pickle.dumps([tuple(row) for row in run._backend.streaming(sql, run_id, (0,), 1 << 31, 100)]))


def unpack(store: Store, run: Run, path: str) -> int:
    """The rows of a bundle put back."""
    run_id = run._run_id()
    assert run_id is not None
    rows = [Row(*row) for row in pickle.loads(Path(path).read_bytes())]
    return store._backend.restore_rows(run_id, [rows[:10], rows[10:]])


def answers(run: Run) -> list[Any]:
    """What a run says about itself."""
    events = [(e.seq, e.kind, bytes(e.digest)) for e in run.events(until=45)]
    return [events, run.state().json(), run.fold(), [r.json for r in run.history("routing")], run.readers("routing")]


def test_out_and_back(run: Run, open_new: OpenNew, tmp_path: Path) -> None:
    """After archiving one event is left, which names the file; once the rows are back nothing has changed."""
    before, head = answers(run), run.head_seq()
    digest = list(run.events())[-1].digest.hex()
    done = archive(run, tmp_path / "out", pack=pack, by="ops", reason="over")
    assert (done.events, done.until, done.seq) == (head, head, head + 1)
    (event,) = run.events()
    assert (event.kind, event.actor, event.body) == ("run.archived", "ops", {"reason": "over"})
    assert event.refs == {"bundle": "clm-1-45.refold", "sha256": done.sha256, "until": head, "digest": digest}
    assert run._backend.query("SELECT count(*) FROM keyframes", ())[0][0] == 0
    assert [info.name for info in run.store.runs()] == ["clm-1"]
    assert unpack(run.store, run, done.path) == head
    for one in (run, open_new(ClaimState, strict_reads=True).run("clm-1")):
        assert answers(one) == before
        assert walk(one) == []
    assert run.write_state("routing", QUEBEC, writer="triage_agent").version == 3
    again = archive(run, tmp_path / "out", pack=pack, by="ops")
    assert (Path(again.path).name, again.events) == ("clm-1-47.refold", 47)


@pytest.mark.parametrize("schema", [ClaimState, None])
@pytest.mark.parametrize("warm", [True, False])
def test_an_archived_run_says_so(run: Run, open_new: OpenNew, tmp_path: Path, schema: Any, warm: bool) -> None:
    """Reads, writes, states, histories and moments raise RunArchived with bundle, who and when; nothing is written."""
    asked = open_new(schema, strict_reads=True).run("clm-1")
    if warm:
        asked.peek("routing")
        asked.write_state("routing", QUEBEC, writer="triage_agent")
    archive(run, tmp_path, pack=pack, by="ops")
    calls: list[Callable[[], Any]] = [
        lambda: asked.read_state("routing", reader="x"),
        lambda: asked.read_many(["routing", "reports"], reader="x"),
        lambda: asked.peek("reports"),
        lambda: asked.state(),
        lambda: asked.fold(),
        lambda: asked.at(3).state(),
        lambda: asked.at("routing@1"),
        lambda: asked.history("routing"),
        lambda: asked.history("note"),
        lambda: asked.at("turn:1"),
        lambda: asked.keys(),
        lambda: whatif(asked),
        lambda: prune(asked, before="end", by="x"),
        lambda: asked.readers("routing"),
        lambda: asked.write_state("routing", QUEBEC, writer="triage_agent"),
        lambda: asked.write_state("reports", "x", writer="photo_agent"),
        lambda: asked.delete_state("routing", writer="triage_agent"),
        lambda: asked.append("note.added", actor="x"),
        lambda: fork(asked, "f", by="x"),
        lambda: erase(asked.store, "clm-1", by="x", reason="y"),
        lambda: archive(asked, tmp_path, pack=pack, by="ops"),
    ]
    for call in calls:
        with pytest.raises(
            RunArchived, match=r"'clm-1' was archived by 'ops' at 2.*Z; `refold import` of the file 'clm-1-4.*refold'"
        ):
            call()
    assert [event.kind for event in asked.events()] == ["run.archived"]
    assert asked.store.runs(where="counter == 1") == []


def test_a_run_that_goes_on_is_packed_anew(run: Run, tmp_path: Path) -> None:
    """What was written while the bundle was made is in the next one; nothing is lost."""
    packed: list[str] = []

    def slow(one: Run, path: Path) -> None:
        pack(one, path)
        if not packed:
            one.write_state("counter", 1, writer="counter")
        packed.append(path.name)

    done = archive(run, tmp_path, pack=slow, by="ops")
    assert packed == ["clm-1-45.refold", "clm-1-46.refold"]
    assert (done.until, [path.name for path in tmp_path.iterdir() if path.suffix == ".refold"]) == (46, packed[1:])
    assert move_out_again(run) is None


def move_out_again(run: Run) -> object:
    """A move that does not fit the run any more."""
    other = run.store.run("clm-2")
    other.write_state("counter", 1, writer="counter")
    return move_out(other, until=2, bundle="b", sha256="s", by="ops")


def test_a_bundle_that_fails_leaves_the_run(run: Run, tmp_path: Path) -> None:
    """If the bundle cannot be written or read back, the run stays as it is."""

    def broken(_run: Run, _path: Path) -> None:
        raise OSError("disk full")

    before = answers(run)
    with pytest.raises(OSError, match="disk full"):
        archive(run, tmp_path, pack=broken, by="ops")
    assert answers(run) == before


def test_forks_keep_what_they_share(run: Run, tmp_path: Path) -> None:
    """A run with forks is not archived, unless they get their own copy first; a fork archives whole."""
    child = fork(run, "child", by="ada")
    before = child.state().json()
    with pytest.raises(TransactionInvalid, match=r"has forks that share its events: 'child'; .*--with-forks"):
        archive(run, tmp_path, pack=pack, by="ops")
    archive(run, tmp_path, pack=pack, by="ops", with_forks=True)
    assert child.state().json() == before
    assert walk(child) == []
    grandchild = fork(child, "grandchild", by="ada")
    done = archive(grandchild, tmp_path, pack=pack, by="ops")
    assert done.events == done.until == 47
    unpack(run.store, grandchild, done.path)
    assert (grandchild.state().json(), walk(grandchild)) == (before, [])


def test_retention(run: Run, clock: Clock, tmp_path: Path) -> None:
    """All runs of a tenant whose last event is old are archived, once; runs with younger forks are left and named."""
    store = run.store
    old, parent = store.run("old/1"), store.run("parent")
    for one in (old, parent, store.run("other", "acme")):
        one.write_state("counter", 1, writer="counter")
    clock.now += 400 * 86_400_000_000
    fork(parent, "young", by="ada")
    run.read_state("routing", reader="x")
    dry = archive_old(store, tmp_path / "none", pack=pack, older_than="365d", by="ops", dry_run=True)
    assert [(one.run, one.seq) for one in dry.archived] == [("old/1", None)]
    assert not (tmp_path / "none").exists()
    report = archive_old(store, tmp_path, pack=pack, older_than="365d", by="ops")
    assert [(one.run, Path(one.path).name) for one in report.archived] == [("old/1", "old%2F1-3.refold")]
    assert list(report.skipped) == ["parent"]
    assert archive_old(store, tmp_path, pack=pack, older_than="365d", by="ops").archived == []
    assert erase(store, everything_of_tenant=True, by="dpo", reason="x").archived == ["old/1"]
    named = archive(store.run("other", "acme"), tmp_path, pack=pack, by="ops")
    assert Path(named.path).name == "acme%2Fother-3.refold"


def test_names_fit_a_file_system(run: Run, tmp_path: Path) -> None:
    """A name of a thousand bytes, of dots, or with a path in it gives a plain file name inside the folder."""
    for name in ("n" * 1024, "..", "", "../../etc/x", "ü" * 300):
        one = run.store.run(name)
        one.write_state("counter", 1, writer="counter")
        done = archive(one, tmp_path, pack=pack, by="ops")
        assert Path(done.path).parent == tmp_path
        assert Path(done.path).exists()


def test_a_folder_that_cannot_be_made(run: Run, tmp_path: Path) -> None:
    """A file where the folder should be: a typed error, and neither the run nor its forks are touched."""
    made = fork(run, "child", by="ada")
    (tmp_path / "file").write_text("")
    for place in ("file", "file/below"):
        with pytest.raises(StoreUnavailable, match="cannot make the folder"):
            archive(run, tmp_path / place, by="ops", with_forks=True)
    assert made.info().forked_from == run.name
    assert run.state().json()


def test_mistakes_are_told(run: Run, open_new: OpenNew, tmp_path: Path) -> None:
    """A run that is not there, a scope's run, a read-only store."""
    with pytest.raises(NoSuchRun):
        archive(run.store.run("nope"), tmp_path, pack=pack, by="ops")
    run.write_state("house_rule", "x", writer="triage_agent")
    with pytest.raises(TransactionInvalid, match="run of a scope"):
        archive(run._home(run.declared("house_rule")), tmp_path, pack=pack, by="ops")
    with pytest.raises(ReadOnlyStore):
        archive(open_new(read_only=True).run("clm-1"), tmp_path, pack=pack, by="ops")


def test_a_writer_may_not_archive(pg_url: str, open_new: OpenNew, tmp_path: Path) -> None:
    """PostgreSQL lets only the keeper's role move events out; a refused archive leaves the run whole."""
    from psycopg import connect

    with connect(pg_url, autocommit=True) as connection:
        for role in ("archive_writer", "archive_keeper"):
            connection.execute(f"CREATE ROLE {role} LOGIN")  # type: ignore[arg-type]
    try:
        postgres_roles(pg_url, writer="archive_writer", keeper="archive_keeper")
        stores = {
            role: open_new(ClaimState, url=pg_url.replace("//postgres@", f"//{role}@"))
            for role in ("archive_writer", "archive_keeper")
        }
        run = stores["archive_writer"].run("r")
        run.write_state("note", 1, writer="triage_agent")
        fork(run, "f", by="ada")
        with pytest.raises(StoreUnavailable, match="'archive_writer' may not erase, prune or archive"):
            archive(run.store.run("f"), tmp_path, pack=pack, by="ops")
        assert run.head_seq() == 3
        keeper = stores["archive_keeper"].run("r")
        assert archive(keeper, tmp_path, pack=pack, by="ops", with_forks=True).events == 3
    finally:
        with connect(pg_url, autocommit=True) as connection:
            for role in ("archive_writer", "archive_keeper"):
                connection.execute(f"DROP OWNED BY {role}")  # type: ignore[arg-type]
                connection.execute(f"DROP ROLE {role}")  # type: ignore[arg-type]
