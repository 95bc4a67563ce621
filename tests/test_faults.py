"""Faults from outside: killed PostgreSQL sessions and servers, full disks, broken statements.

Each time: no acknowledged write is lost or stored twice, the error is clear, the store is usable afterwards.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from process_worker import SCHEMA
from rawlog import check_log, ram_folder, rows_of

from refold import RefoldError, Run, Store, StoreUnavailable, open_store
from refold_store import postgres
from refold_store.events import Row
from refold_store.migrate import migrate_postgres
from scratch_postgres import ScratchPostgres

WORKER = Path(__file__).with_name("fault_worker.py")
SHARED = ("default", 0, "shared")
Open = Callable[..., Store]


@pytest.fixture
def run(pg_url: str) -> Iterator[Run]:
    """An open run on PostgreSQL, with one version of a."""
    with open_store(pg_url, SCHEMA) as store:
        run = store.run("shared")
        run.write_state("a", 0, writer="w0")
        yield run


def kill_sessions(url: str) -> None:
    """End every other session of the database."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


def values(url: str) -> list[Any]:
    """The values of the shared run's writes, after all checks of the log."""
    return [event.value for event in check_log(url)[SHARED] if event.kind == "state.written"]


def test_killed_idle_sessions(run: Run, pg_url: str) -> None:
    """Between calls all sessions are killed: each call reconnects, and each event is there once."""
    run.read_state("a", reader="r")
    run.store.flush()
    for number in range(1, 4):
        kill_sessions(pg_url)
        assert run.write_state("a", number, writer="w0").version == number + 1
        kill_sessions(pg_url)
        assert run.read_state("a", reader="r").value == number
        kill_sessions(pg_url)
        run.store.flush()
        kill_sessions(pg_url)
        with run.transaction() as tx:
            tx.write_state("b", number, writer="w0")
            tx.write_state("count", number, writer="w0")
        kill_sessions(pg_url)
        assert len(list(run.events(kinds=["state.read"]))) == number + 1
    assert values(pg_url) == [0, 1, 1, 1, 2, 2, 2, 3, 3, 3]


def test_sessions_killed_under_load(run: Run, pg_url: str) -> None:
    """Four threads write while all sessions are killed ten times: every write is acknowledged and there once."""
    made: list[tuple[int, list[str | int]]] = []

    def act(who: str) -> None:
        for number in range(60):
            value: list[str | int] = [who, number]
            made.append((run.write_state("a", value, writer=who).version, value))
            run.read_state("a", reader=who)

    threads = [threading.Thread(target=act, args=(f"w{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for _kill in range(10):
        kill_sessions(pg_url)
    for thread in threads:
        thread.join()
    run.store.flush()
    assert values(pg_url) == [0, *(value for _version, value in sorted(made))]


def lose_session(run: Run, monkeypatch: pytest.MonkeyPatch, pg_url: str, *, after: bool) -> None:
    """Kill the sessions at the next insert, before or right after it was carried out."""
    insert = run._backend._insert  # type: ignore[attr-defined]

    def once(link: Any, rows: list[Row]) -> None:
        monkeypatch.setattr(run._backend, "_insert", insert)
        if after:
            insert(link, rows)
        kill_sessions(pg_url)
        if after:
            raise psycopg.OperationalError("server closed the connection unexpectedly")
        insert(link, rows)

    monkeypatch.setattr(run._backend, "_insert", once)


@pytest.mark.parametrize("locked", [False, True], ids=["optimistic", "under the lock"])
@pytest.mark.parametrize("after", [False, True], ids=["before the insert", "after the insert"])
def test_a_session_lost_in_the_middle(
    run: Run, monkeypatch: pytest.MonkeyPatch, pg_url: str, after: bool, locked: bool
) -> None:
    """A write whose answer was lost is looked for, not repeated; with the reads it carried."""
    run.read_state("a", reader="r")
    run._head.contended = 5 if locked else 0
    lose_session(run, monkeypatch, pg_url, after=after)
    assert run.write_state("a", 1, writer="w0").version == 2
    assert run.write_state("a", 2, writer="w0").version == 3
    assert values(pg_url) == [0, 1, 2]
    assert len(list(run.events(kinds=["state.read"]))) == 1


def test_a_lost_answer_to_a_commit(run: Run, monkeypatch: pytest.MonkeyPatch, pg_url: str) -> None:
    """COMMIT was carried out, its answer lost: the write is there once and acknowledged."""
    commit = run._backend._commit  # type: ignore[attr-defined]

    class Lossy:
        """A link whose connection breaks once it has said COMMIT."""

        def __init__(self, link: Any) -> None:
            self.connection = self
            self._link = link

        def execute(self, statement: str) -> None:
            self._link.connection.execute(statement)
            self._link.connection.close()
            raise psycopg.OperationalError("server closed the connection unexpectedly")

    monkeypatch.setattr(run._backend, "_commit", lambda link, rows: commit(Lossy(link), rows))
    run._head.contended = 1
    assert run.write_state("a", 1, writer="w0").version == 2
    monkeypatch.undo()
    assert run.write_state("a", 2, writer="w0").version == 3
    assert values(pg_url) == [0, 1, 2]


def test_a_statement_that_fails_under_the_lock(pg_url: str) -> None:
    """A write that waits too long for the run's lock is refused with a clear error; the next one works."""
    with open_store(f"{pg_url}&options=-c%20statement_timeout%3D200", SCHEMA) as store:
        run = store.run("shared")
        run.write_state("a", 0, writer="w0")
        with psycopg.connect(pg_url) as other:
            other.execute("SELECT pg_advisory_xact_lock(%s::int4, %s::int4)", (postgres.LOCK_RUN, run._run_id()))
            run._head.contended = 5
            with pytest.raises(StoreUnavailable, match="timeout"):
                run.write_state("a", 1, writer="w0")
        assert run.write_state("a", 2, writer="w0").version == 2
    assert values(pg_url) == [0, 2]


def test_iterations_that_end_early(run: Run) -> None:
    """An iteration over events that is given up gives its connection back in order, again and again."""
    for number in range(1, 30):
        next(iter(run.events()))
        assert run.peek("a").version == number
        run.write_state("a", number, writer="w0")
        assert run.read_state("a", reader="r").value == number


@pytest.fixture
def own_url(own_pg_server: ScratchPostgres) -> str:
    """A migrated database on a server of the test's own."""
    url = own_pg_server.create("refold")
    migrate_postgres(url)
    return url


def crash(server: ScratchPostgres) -> None:
    """Stop the server at once, as if its machine had lost power, and start it again."""
    server.stop(signal.SIGQUIT)
    server.start()


def test_a_server_that_crashes_under_load(own_pg_server: ScratchPostgres, own_url: str) -> None:
    """Four threads write while the server crashes three times: nothing acknowledged is lost, nothing is there twice."""
    made: dict[int, object] = {}
    errors: list[BaseException] = []
    stop = threading.Event()
    with open_store(own_url, SCHEMA) as store:
        run = store.run("shared")

        def act(who: str) -> None:
            number = 0
            while not stop.is_set():
                try:
                    made[run.write_state("a", [who, number], writer=who).version] = [who, number]
                    run.read_state("a", reader=who)
                except RefoldError as error:
                    errors.append(error)
                number += 1

        threads = [threading.Thread(target=act, args=(f"w{number}",)) for number in range(4)]
        for thread in threads:
            thread.start()
        for _crash in range(3):
            before = len(made)
            while len(made) < before + 20:
                assert all(thread.is_alive() for thread in threads)
            crash(own_pg_server)
        stop.set()
        for thread in threads:
            thread.join()
        assert run.write_state("b", "after", writer="w0").version == 1
    found = {event.version: event.value for event in check_log(own_url)[SHARED] if event.key == "a" and event.value}
    assert made.items() <= found.items()
    assert len({str(value) for value in found.values()}) == len(found), "a write is there twice"
    assert all(isinstance(error, StoreUnavailable) for error in errors)


def test_reads_that_a_crash_took(own_pg_server: ScratchPostgres, own_url: str) -> None:
    """Reads need no sync, so that a crash may take them, and new names with them: seq stays dense, names stay right."""
    with open_store(own_url, SCHEMA) as store:
        runs = [store.run("shared"), store.run("second")]
        for run in runs:
            run.write_state("a", 0, writer="w0")
        for round_ in range(3):
            for run in runs:
                for number in range(3):
                    run.read_state("a", reader=f"reader {round_} {number}")
            store.flush()
            crash(own_pg_server)
            for run in runs:
                run.read_state("a", reader=f"reader {round_} later")
                assert run.write_state("a", round_, writer="w0").version == round_ + 2
    log = check_log(own_url)
    for name in ("shared", "second"):
        readers = [event.actor for event in log["default", 0, name] if event.kind == "state.read"]
        assert [f"reader {round_} later" for round_ in range(3)] == [one for one in readers if "later" in str(one)]


def test_names_that_a_crash_took(own_pg_server: ScratchPostgres, own_url: str) -> None:
    """A name's number that was lost before any event used it is not used for another name's events."""
    with open_store(own_url, SCHEMA) as store:
        run = store.run("shared")
        run.write_state("a", 0, writer="w0")
        store._backend.intern(["phantom"])
        crash(own_pg_server)
        for reader in ("another", "phantom"):
            run.read_state("a", reader=reader)
        run.write_state("a", 1, writer="w0")
    assert [event.actor for event in check_log(own_url)[SHARED][3:]] == ["another", "phantom", "w0"]


def test_a_server_that_is_away(own_pg_server: ScratchPostgres, own_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every call says so within its time; when the server is back, so is the store, with the reads that waited."""
    monkeypatch.setattr(postgres, "RECONNECT_S", 0.3)
    with open_store(own_url, SCHEMA) as store:
        run = store.run("shared")
        run.write_state("a", 0, writer="w0")
        monkeypatch.setattr("refold_store.committer.FLUSH_S", 3600.0)
        run.read_state("a", reader="r")
        own_pg_server.stop(signal.SIGQUIT)
        for call in (
            lambda: run.write_state("a", 1, writer="w0"),
            lambda: run.peek("a"),
            lambda: run.read_state("a", reader="r"),
            lambda: run.state(),
            lambda: list(run.events()),
            lambda: store.runs(),
            lambda: store.flush(),
            lambda: open_store(own_url, SCHEMA),
        ):
            with pytest.raises(StoreUnavailable, match="PostgreSQL"):
                call()
        own_pg_server.start()
        with suppress(StoreUnavailable):  # a failed flush is told once
            store.flush()
        assert run.write_state("a", 2, writer="w0").version == 2
    assert [event.kind for event in check_log(own_url)[SHARED][2:]] == ["state.written", "state.read", "state.written"]


# --- full disks ------------------------------------------------------------------------------


def fill(url: str, limit: int) -> list[list[str]]:
    """What a process reported that wrote until its disk was full, and then went on."""
    done = subprocess.run(
        [sys.executable, str(WORKER), url, str(limit)], capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 0, done.stderr
    return [line.split(" ", 1) for line in done.stdout.splitlines()]


def check_full(url: str, report: list[list[str]]) -> None:
    """A clear error, everything acknowledged there, the store usable after, in that process and in others."""
    acks = [int(words[1]) for words in report if words[0] == "ack"]
    errors = [words[1] for words in report if words[0] in ("full", "told")]
    assert len(acks) > 10
    assert all(("SQLite" in error and "full" in error) or "I/O" in error for error in errors), errors
    assert report[-1] == ["after", str(acks[-1] + 1)]
    events = [event for event in check_log(url)[SHARED] if event.key == "a" and event.kind == "state.written"]
    assert [event.version for event in events] == [*acks, acks[-1] + 1]
    assert [event.value[0] for event in events[:-1]] == list(range(len(acks)))
    assert rows_of(url, "PRAGMA integrity_check") == [("ok",)]
    with open_store(url, SCHEMA) as store:
        assert store.run("shared").write_state("a", 1, writer="w0").version == acks[-1] + 2


def test_a_file_that_may_not_grow() -> None:
    """The database or its WAL reaches the largest size the process may write."""
    with ram_folder() as folder:
        url = f"sqlite:///{folder / 'refold.db'}"
        check_full(url, fill(url, 400_000))


def test_a_full_file_system() -> None:
    """The file system has no room left; later something else on it is deleted."""
    with ram_folder() as folder:
        size = ["mount", "-t", "tmpfs", "-o", "size=1500k", "refold-test", str(folder)]
        if subprocess.run(size, capture_output=True, check=False).returncode != 0:
            pytest.skip("mounting a small file system is not allowed here; the test above limits the file's size")
        try:
            (folder / "ballast").write_bytes(b"x" * 500_000)
            url = f"sqlite:///{folder / 'refold.db'}"
            check_full(url, fill(url, 0))
        finally:
            subprocess.run(["umount", str(folder)], check=True)
