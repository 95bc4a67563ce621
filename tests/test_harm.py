"""Harm done on purpose, everywhere at once: each is noticed, none crashes, and each finding says what and where.

`test_verify` and its neighbours break one rule at a time; here every place of a log is hurt in turn.
"""

from __future__ import annotations

import itertools
import random
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from claims import ONTARIO, QUEBEC, ClaimState
from forge import COLUMNS, Cells, Forge, forging
from sound import SCHEMA, fill

from refold import Store, open_store
from refold_replay.allowances import Allowances
from refold_replay.anchoring import Anchor, anchor
from refold_replay.findings import Finding
from refold_replay.stretches import Source, Stretch
from refold_replay.verify import verify
from refold_store.archiving import move_out
from refold_store.erasing import erase
from refold_store.errors import RefoldError
from refold_store.events import ERASED, PRUNED, RUN_ARCHIVED, RUN_FORKED
from refold_store.forking import fork, make_self_contained
from refold_store.pruning import prune

OpenNew = Callable[..., Store]
NEW = {
    "request_id": "x", "refs": "{}", "salt": b"x", "body": b"{}", "commitment": b"x" * 32, "trace_id": b"t" * 16,
    "span_id": b"s" * 8,
}  # fmt: skip
"""What a cell gets that held nothing."""
FLIPS = 250
"""Bytes of a file flipped, one at a time."""


@pytest.fixture
def url(store_url: str) -> str:
    """A sound store with a run of every kind of event, and a second one."""
    with open_store(store_url, SCHEMA) as store:
        fill(store)
    return store_url


@pytest.fixture
def kept_url(store_url: str) -> str:
    """A sound store with an erased value, pruned reads, a fork and an archived run."""
    with open_store(store_url, ClaimState, strict_reads=True) as store:
        run = store.run("clm-1")
        run.write_state("routing", QUEBEC, writer="triage_agent")
        for reader in ("liability_agent", "settlement_agent"):
            run.read_state("routing", reader=reader)
        run.write_state("routing", ONTARIO, writer="triage_agent", based_on=["routing@1"])
        run.write_state("reports", "first", writer="evidence_agent")
        fork(run, "clm-1-b", by="ada").write_state("note", "theirs", writer="triage_agent")
        erase(store, "clm-1", key="reports", by="dpo", reason="asked for")
        prune(run, before="end", by="ops")
        old = store.run("clm-0")
        old.write_state("routing", QUEBEC, writer="triage_agent")
        head = old.head_seq()
        assert move_out(old, until=head, bundle="clm-0.refold", sha256="00" * 32, by="ops", reason=None) is not None
    assert verify(store_url).findings == []
    return store_url


def anchored(url: str) -> Anchor:
    """An anchor of a store as it is now."""
    with open_store(url, read_only=True, create=False) as store:
        return anchor(store)


def places(url: str, level: str = "digest", made: Anchor | None = None) -> set[int | None]:
    """The seqs named by findings; each finding is one line that names its run and its damage."""
    found = verify(url, level=level, anchor=made).findings  # type: ignore[arg-type]
    for one in found:
        assert one.message
        assert "\n" not in str(one)
        assert one.seq is None or f" at seq {one.seq}: {one.damage}: " in str(one)
        assert one.seq is None or str(one).startswith(f"run {one.run!r}")
    return {one.seq for one in found}


def flipped(value: Any, column: str) -> Any:
    """A cell with one bit or character changed; something where nothing was."""
    if isinstance(value, bytes):
        return value[:-1] + bytes((value[-1] ^ 1,))
    if isinstance(value, str):
        return value[:-1] + chr(ord(value[-1]) ^ 1)
    return NEW.get(column, 1) if value is None else value ^ 1


def test_each_row_removed_in_turn(url: str) -> None:
    """Whatever event is missing, its place is named; the last one's by an anchor."""
    made = anchored(url)
    with forging(url) as forge:
        for row in forge.rows():
            forge.remove(row["seq"])
            assert row["seq"] in places(url, made=made), f"seq {row['seq']}"
            forge.add(row)
    assert verify(url, anchor=made).ok


def test_each_row_doubled_in_turn(url: str) -> None:
    """An event that stands twice, the rest moved up by one or not, is named where the second one stands."""
    with forging(url) as forge:
        rows = forge.rows()
        for at, row in enumerate(rows):
            double = {**row, "seq": row["seq"] + 1}
            moved = [{**later, "seq": later["seq"] + 1} for later in rows[at + 1 :]]
            forge.run("DROP INDEX IF EXISTS events_request")
            forge.put([*rows[: at + 1], double, *moved])
            assert double["seq"] in places(url), f"seq {row['seq']} doubled, the rest moved"
            forge.put([*rows[: at + 1], double, *rows[at + 2 :]])
            assert double["seq"] in places(url), f"seq {row['seq']} doubled in place of the next"
        forge.put(rows)
    assert verify(url).findings == []


def test_each_pair_swapped_in_turn(url: str) -> None:
    """Two neighbours in each other's place, digests and all, are named."""
    with forging(url) as forge:
        rows = forge.rows()
        for at, (one, other) in enumerate(itertools.pairwise(rows)):
            forge.put([*rows[:at], {**other, "seq": one["seq"]}, {**one, "seq": other["seq"]}, *rows[at + 2 :]])
            assert one["seq"] in places(url), f"seq {one['seq']} swapped with the next"
        forge.put(rows)
    assert verify(url).ok


def test_a_log_cut_at_each_place(url: str) -> None:
    """However much is cut off, an anchor names the first event that is gone."""
    made = anchored(url)
    with forging(url) as forge:
        forge.run("DELETE FROM keyframes")
        for row in forge.rows()[:2:-1]:
            forge.remove(row["seq"])
            assert verify(url).ok
            assert row["seq"] in places(url, made=made)


@pytest.mark.parametrize("kind", [RUN_FORKED, ERASED, PRUNED, RUN_ARCHIVED])
def test_events_that_allow_something_are_protected(kept_url: str, kind: int) -> None:
    """One changed byte in any column of an event that explains what is missing is found, and so is its removal."""
    with forging(kept_url) as forge:
        [(run, seq), *_rest] = forge.run("SELECT run, seq FROM events WHERE kind = ? ORDER BY run, seq", kind)
        [row] = [row for row in forge.rows(run) if row["seq"] == seq]
        for column in COLUMNS:
            if column in ("run", "seq"):
                continue
            forge.set(seq, column, flipped(row[column], column), run)
            assert verify(kept_url).findings, f"{column} at seq {seq}"
            assert verify(kept_url, level="digest").findings, f"{column} at seq {seq}, level digest"
            forge.set(seq, column, row[column], run)
        assert verify(kept_url).ok
        made = anchored(kept_url)
        forge.remove(seq, run)
        assert verify(kept_url, anchor=made).findings


def test_a_body_put_in_place_of_an_erased_one(kept_url: str) -> None:
    """A forged value in the place of an erased one does not give the digest."""
    with forging(kept_url) as forge:
        [row] = [row for row in forge.rows() if row["commitment"] is not None]
        forge.set(row["seq"], "commitment", None)
        forge.set(row["seq"], "salt", b"s" * 16)
        forge.set(row["seq"], "body", b'{"update":"forged"}')
    assert row["seq"] in places(kept_url)


def test_what_is_erased_meanwhile_is_no_harm(kept_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values erased and reads pruned while a verification runs are explained by events it had not seen at first."""
    calls, real = itertools.count(), Source.allowed

    def late(self: Source, run: int) -> Allowances:
        return real(self, run) if next(calls) > 2 else Allowances()

    monkeypatch.setattr(Source, "allowed", late)
    assert verify(kept_url, ["clm-1"], level="digest").findings == []
    assert next(calls) > 3


# --- what is disposable --------------------------------------------------------------------------


def answers(store: Store) -> list[Any]:
    """Everything a store says of its runs: state at every moment, history, readers, digests."""
    told: list[Any] = []
    for info in store.runs("default"):
        run = store.run(info.name)
        told += [(info.name, seq, run.at(seq).state().json()) for seq in range(1, run.head_seq() + 1)]
        told.append([(event.seq, event.kind, event.digest) for event in run.events()])
        for key in sorted(run.keys()):
            told.append([(read.version, None if read.absent else read.json) for read in run.history(key)])
            told.append([(one.seq, one.version, one.reader) for one in run.readers(key)])
    return told


def test_without_keyframes_nothing_changes_but_time(url: str) -> None:
    """Keyframes deleted, of forks too, in a process with heads and in a new one: same answers, same next write."""
    with open_store(url, SCHEMA) as store:
        fork(store.run("r"), "r-2", at=14, by="ada")
        for number in range(4):
            store.run("r-2").write_state("notes", ["é" * 3000, number], writer="ann")
        before = answers(store)
        with forging(url) as forge:
            assert forge.run("SELECT count(*) FROM keyframes")[0][0] > 1
            forge.run("DELETE FROM keyframes")
        assert answers(store) == before
    assert verify(url).ok
    with open_store(url, SCHEMA) as store:
        assert answers(store) == before
        for name in ("r", "r-2"):
            run = store.run(name)
            value, version = run.peek("notes").json, run.peek("notes").version
            run.write_state("notes", ["next"], writer="ann", expected_version=version)
            assert (run.peek("notes").json, run.peek("notes").version) == ([*value, "next"], version + 1)
    assert verify(url).ok


# --- two stores --------------------------------------------------------------------------------


@pytest.fixture
def other_rows(tmp_path: Path) -> list[Cells]:
    """The rows of a run of the same name, in a second store whose case went another way."""
    second = f"sqlite:///{tmp_path / 'second.db'}"
    with open_store(second, SCHEMA) as store:
        fill(store)
        store.run("r").write_state("low", 1, writer="bob")
    with forging(second) as forge:
        return forge.rows()


def _as_a_new_run(forge: Forge, mine: list[Cells], theirs: list[Cells]) -> int:
    forge.run("INSERT INTO runs (id, tenant, scope, name, opened_at) VALUES (77, 'default', 0, 'r-2', 1)")
    for row in theirs:
        forge.add({**row, "run": 77, "request_id": None if row["request_id"] is None else "other"})
    return 1


def _tail(forge: Forge, mine: list[Cells], theirs: list[Cells]) -> int:
    forge.put([*mine[:8], *theirs[8:]])
    return 9


def _appended(forge: Forge, mine: list[Cells], theirs: list[Cells]) -> int:
    forge.put([*mine, theirs[-1] | {"seq": mine[-1]["seq"] + 1}])
    return int(mine[-1]["seq"]) + 1


def _one_row(forge: Forge, mine: list[Cells], theirs: list[Cells]) -> int:
    forge.put([*mine[:5], theirs[5], *mine[6:]])
    return 6


def _into_another_run(forge: Forge, mine: list[Cells], theirs: list[Cells]) -> int:
    [(number,)] = forge.run("SELECT id FROM runs WHERE name = 'other'")
    forge.run("DELETE FROM events WHERE run = ?", number)
    for row in mine:
        forge.add({**row, "run": number})
    return 1


@pytest.mark.parametrize("merge", [_as_a_new_run, _tail, _appended, _one_row, _into_another_run])
def test_two_stores_merged(url: str, other_rows: list[Cells], merge: Callable[..., int]) -> None:
    """Rows of another store, or of another run, fit in nowhere: each place where they begin is named."""
    with forging(url) as forge:
        seq = merge(forge, forge.rows(), other_rows)
    assert seq in places(url)


def test_a_run_of_another_scope_or_tenant(open_new: OpenNew, store_url: str) -> None:
    """A run that is passed off as the tenant's shared one, or as another tenant's, does not chain from its name."""
    store = open_new(SCHEMA)
    store.run("").write_state("low", 1, writer="ann")
    store.close()
    for column, value in (("scope", 1), ("tenant", "acme"), ("name", "r")):
        with forging(store_url) as forge:
            [(before,)] = forge.run(f"SELECT {column} FROM runs")
            forge.run(f"UPDATE runs SET {column} = ?", value)
            assert 1 in places(store_url), column
            forge.run(f"UPDATE runs SET {column} = ?", before)
    assert verify(store_url).ok


@pytest.mark.parametrize("level", ["digest", "full"])
@pytest.mark.parametrize("copied", [False, True])
def test_a_fork_passed_off_as_another_run(kept_url: str, level: str, copied: bool) -> None:
    """A fork's log names the fork: under another name, or as its ancestor, it is noticed, with or without a copy."""
    if copied:
        with open_store(kept_url, ClaimState) as store:
            make_self_contained(store, "clm-1-b")
    with forging(kept_url) as forge:
        [(seq,)] = forge.run("SELECT seq FROM events WHERE kind = ?", RUN_FORKED)
        forge.run("UPDATE runs SET name = 'clm-9' WHERE name = 'clm-1-b'")
        assert seq in places(kept_url, level)
        forge.run("UPDATE runs SET name = 'clm-8' WHERE name = 'clm-1'")
        forge.run("UPDATE runs SET name = 'clm-1' WHERE name = 'clm-9'")
        assert seq in places(kept_url, level)


# --- a file, byte by byte ------------------------------------------------------------------------


def _statements(path: Path) -> list[str]:
    """Statements for all stored cells, indexes aside, but for when a run was opened, which no digest covers."""
    with closing(sqlite3.connect(path)) as plain:
        found = []
        for (name,) in plain.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            columns = [row[1] for row in plain.execute(f"PRAGMA table_info({name})") if row[1] != "opened_at"]
            found.append(f"SELECT {', '.join(columns)} FROM {name} NOT INDEXED")
        return found


def _cells(path: Path, statements: list[str]) -> list[Any] | None:
    """What a file holds; None if SQLite cannot read it."""
    with closing(sqlite3.connect(path)) as plain:
        try:
            return [plain.execute(statement).fetchall() for statement in statements]
        except sqlite3.Error:
            return None


@pytest.fixture
def bare_file(sqlite_url: str) -> Path:
    """A filled store in one file, without a WAL beside it."""
    with open_store(sqlite_url, SCHEMA) as store:
        fill(store)
    path = Path(sqlite_url.removeprefix("sqlite:///"))
    with closing(sqlite3.connect(path)) as plain:
        for step in ("PRAGMA wal_checkpoint(TRUNCATE)", "VACUUM", "PRAGMA wal_checkpoint(TRUNCATE)"):
            plain.execute(step)
    return path


def test_one_bit_anywhere_in_the_file(bare_file: Path, tmp_path: Path) -> None:
    """A bit flipped anywhere is found, or stands where nothing is stored; an error is refold's own, never a crash."""
    data, statements = bare_file.read_bytes(), _statements(bare_file)
    cells = _cells(bare_file, statements)
    noticed = 0
    draw = random.Random(7)
    for number in range(FLIPS):
        at, bit = draw.randrange(len(data)), 1 << draw.randrange(8)
        hurt = tmp_path / f"hurt-{number}.db"
        hurt.write_bytes(data[:at] + bytes((data[at] ^ bit,)) + data[at + 1 :])
        try:
            ok = verify(f"sqlite:///{hurt}").ok
        except RefoldError:
            ok = False
        assert not ok or _cells(hurt, statements) == cells, f"bit {bit} of byte {at}"
        noticed += not ok
    assert noticed > FLIPS / 10


def test_a_schema_passed_off_under_another_fingerprint(bare_file: Path, tmp_path: Path) -> None:
    """A fingerprint changed in the table, in its index, or in the event that declares it: each place is noticed."""
    with closing(sqlite3.connect(bare_file)) as plain:
        [(fingerprint,)] = plain.execute("SELECT fingerprint FROM schemas").fetchall()
    data, mark = bare_file.read_bytes(), fingerprint.encode()
    at, found = -1, 0
    while (at := data.find(mark, at + 1)) >= 0:
        hurt = tmp_path / f"hurt-{at}.db"
        hurt.write_bytes(data[:at] + b"0" * len(mark) + data[at + len(mark) :])
        assert not verify(f"sqlite:///{hurt}").ok, f"byte {at}"
        if data[at + len(mark) :].startswith(b"{"):  # the row itself, beside its declaration
            assert "schema" in {one.damage for one in verify(f"sqlite:///{hurt}", level="digest").findings}
        found += 1
    assert found >= 3


def test_whatever_damage_raises_is_a_finding(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error nobody thought of, while one run is checked, is named with the run; the others are checked as well."""

    def boom(_source: Source, stretch: Stretch) -> list[Finding]:
        if stretch.name == "r":
            raise ZeroDivisionError("so")
        return [Finding(None, None, 1, "name", "a row without names")]  # type: ignore[arg-type]

    monkeypatch.setattr("refold_replay.verify.verify_frames", boom)
    found = [(one.run, one.damage) for one in verify(url).findings]
    assert sorted(found, key=str) == [("r", "unreadable"), (None, "name")]


def test_an_index_that_hides_a_version(bare_file: Path) -> None:
    """An index edited so that reads are served an old version, the log left whole, is found by the file's own check."""
    with closing(sqlite3.connect(bare_file)) as plain:
        [(name, sql)] = plain.execute(
            "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql LIKE '%version%'"
        ).fetchall()[:1]
        plain.execute("PRAGMA writable_schema = ON")
        hiding = sql + (" AND " if " WHERE " in sql else " WHERE ") + "version < 2"
        plain.execute(f"DROP INDEX {name}")
        plain.execute(hiding)
        plain.execute("UPDATE sqlite_master SET sql = ? WHERE name = ?", (sql, name))
        plain.commit()
    findings = verify(f"sqlite:///{bare_file}").findings
    assert "file" in {one.damage for one in findings}
