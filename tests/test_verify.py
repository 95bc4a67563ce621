"""Verification finds and names every way in which a store can contradict itself; each is broken here on purpose."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from forge import COLUMNS, forging
from sound import SCHEMA, fill, found, where

from refold import Run, erase, fork, impact, open_store, story
from refold_replay.findings import FINDINGS_MAX
from refold_replay.verify import verify
from refold_store.errors import ConfigError, Damaged, NoSuchRun
from refold_store.events import commit, header, pack_names, pack_numbers, pack_rest

WRITTEN, READ, TXN, LATE = "routing@2", "read", "txn", "late"


NEW = {
    "request_id": "x",
    "refs": "{}",
    "salt": b"x",
    "body": b"{}",
    "commitment": b"x" * 32,
    "trace_id": b"t" * 16,
    "span_id": b"s" * 8,
}
"""What a column gets that held nothing."""


@pytest.fixture
def url(store_url: str) -> str:
    """A filled, sound store."""
    with open_store(store_url, SCHEMA) as store:
        fill(store)
    assert verify(store_url).findings == []
    return store_url


def seq_of(url: str, what: str) -> int:
    """The seq of a row the tests damage."""
    with forging(url) as forge:
        rows = forge.rows()
    if what == WRITTEN:
        return int(next(row["seq"] for row in rows if row["request_id"] == "q"))
    if what == READ:
        return int(where(rows, 3)["seq"])
    if what == TXN:
        return int(next(row["seq"] for row in rows if row["txn"] and row["txn"] != row["seq"]))
    return int(rows[-1]["seq"])


def flipped(value: Any, column: str) -> Any:
    """Another value: one byte of it changed, or something where there was nothing."""
    if isinstance(value, bytes):
        return bytes((value[0] ^ 1,)) + value[1:]
    if isinstance(value, str):
        return value[:-1] + chr(ord(value[-1]) ^ 1)
    if isinstance(value, int):
        return value + 1
    return NEW.get(column, 1)


@pytest.mark.parametrize("level", ["digest", "full"])
@pytest.mark.parametrize("what", [WRITTEN, READ, TXN])
def test_one_changed_byte_in_any_column_is_found(url: str, what: str, level: str) -> None:
    """Each column of a write, a read and a transaction's write is changed in turn, and the row is named."""
    seq = seq_of(url, what)
    for column in COLUMNS:
        if column in ("run", "seq"):
            continue
        with forging(url) as forge:
            [value] = [row[column] for row in forge.rows() if row["seq"] == seq]
            forge.set(seq, column, flipped(value, column))
            report = verify(url, level=level)
            assert seq in [finding.seq for finding in report.findings], f"{column} of seq {seq} at level {level}"
            forge.set(seq, column, value)
    assert verify(url, level=level).ok


@pytest.mark.parametrize("level", ["digest", "full"])
def test_removed_inserted_and_swapped_events_are_found(url: str, level: str) -> None:
    """A missing event, one too many, and two that changed places are named."""
    with forging(url) as forge:
        rows = forge.rows()
        forge.remove(7)
        assert (7, "density") in found(url, level=level)
        forge.put([*rows, {**rows[-1], "seq": len(rows) + 1}])
        assert (len(rows) + 1, "digest") in found(url, level=level)
        swapped = [dict(row) for row in rows]
        swapped[4], swapped[5] = {**rows[5], "seq": 5}, {**rows[4], "seq": 6}
        forge.put(swapped)
        assert (5, "digest") in found(url, level=level)
        forge.put([{**row, "seq": row["seq"] + 1} for row in rows])
        assert (1, "density") in found(url, level=level)
        forge.put([{**row, "run": 9} for row in rows])
        assert (None, "orphan") in found(url, level=level)


def test_changed_names_and_runs_are_found(url: str) -> None:
    """A name that reads otherwise, one that is gone, a renamed run and a run without its row are named."""
    with forging(url) as forge:
        forge.run("UPDATE names SET name = 'trial' WHERE name = 'triage'")
        assert "digest" in [damage for _seq, damage in found(url)]
        forge.run("UPDATE names SET name = 'triage' WHERE name = 'trial'")
        forge.run("UPDATE runs SET name = 's' WHERE name = 'r'")
        assert found(url, level="digest") == [(1, "digest")]
        forge.run("UPDATE runs SET name = 'r', tenant = 'acme' WHERE name = 's'")
        assert found(url, level="digest") == [(1, "digest")]
        forge.run("UPDATE runs SET tenant = 'default' WHERE name = 'r'")
        number = forge.name("bob")
        forge.run("DELETE FROM names WHERE name = 'bob'")
        assert "name" in [damage for _seq, damage in found(url)]
        forge.run("INSERT INTO names (id, name) VALUES (?, 'bob')", number)
        assert verify(url).ok
        forge.run("DELETE FROM runs WHERE name = 'r'")
        assert found(url) == [(None, "orphan")]


def test_a_changed_schema_is_found(url: str) -> None:
    """A declaration that does not give its fingerprint is named, in the store and where it is declared."""
    with forging(url) as forge:
        [(text,)] = forge.run("SELECT declaration FROM schemas")
        forge.run("UPDATE schemas SET declaration = ?", bytes(text).replace(b'"ann"', b'"eve"'))
    assert (None, "schema") in found(url, level="digest")
    assert (2, "schema") in found(url)


def test_wrong_and_loose_keyframes_are_found(url: str) -> None:
    """A keyframe that is not the fold of its events, and one beside no event, are named; none missing is missed."""
    with forging(url) as forge:
        frames = forge.run("SELECT seq, body FROM keyframes ORDER BY seq")
        assert frames
        seq, body = frames[0]
        forge.run("UPDATE keyframes SET body = ? WHERE seq = ?", bytes(body).replace(b"0", b"1", 1), seq)
        assert (seq, "keyframe") in found(url)
        forge.run("UPDATE keyframes SET seq = 3 WHERE seq = ?", seq)
        assert (3, "keyframe") in found(url)
        forge.run("DELETE FROM keyframes")
    assert verify(url).ok


def test_a_request_id_bound_twice_is_found(url: str) -> None:
    """With the unique index gone, two events of one request id are named."""
    with forging(url) as forge:
        forge.run("DROP INDEX events_request")
        rows = forge.rows()
        other = where(rows, 1, key=forge.name("high"))
        other["request_id"], other["refs"] = "q", '{"request":"00"}'
        forge.put(rows, forge=True)
    assert "request" in [damage for _seq, damage in found(url)]


def test_an_erased_body_needs_its_event(url: str) -> None:
    """A body that gave way to its commitment keeps the digests whole, and is named unless an event says so."""
    with forging(url) as forge:
        row = where(forge.rows(), 1, request_id="q")
        forge.set(row["seq"], "commitment", commit(row["salt"], row["body"]))
        forge.set(row["seq"], "salt", None)
        forge.set(row["seq"], "body", None)
    assert found(url) == [(row["seq"], "body")]


def test_a_broken_file_is_named_and_not_raised(sqlite_url: str) -> None:
    """Pages overwritten with noise give findings, not an exception."""
    with open_store(sqlite_url, SCHEMA) as store:
        fill(store)
    path = Path(sqlite_url.removeprefix("sqlite:///"))
    data = bytearray(path.read_bytes())
    at = data.index(b"loss in QC") // 4096 * 4096
    data[at : at + 40] = b"\xff" * 40
    path.write_bytes(data)
    assert not verify(sqlite_url).ok


@pytest.mark.parametrize("part", [0.1, 0.5, 0.95])
def test_a_file_cut_off_is_a_finding(sqlite_url: str, part: float, refold_cli: Callable[..., Any]) -> None:
    """A file that does not even open is a finding, in Python, in the text and in JSON; no level is still a mistake."""
    with open_store(sqlite_url, SCHEMA) as store:
        fill(store)
    path = sqlite_url.removeprefix("sqlite:///")
    os.truncate(path, int(os.path.getsize(path) * part))
    report = verify(sqlite_url)
    assert [(one.damage, one.run, report.ok) for one in report.findings] == [("unreadable", "", False)]
    said = refold_cli("verify", "--store", sqlite_url)
    assert (said.exit_code, said.stdout.startswith("the store: unreadable: "), said.stderr) == (1, True, "")
    found = json.loads(refold_cli("verify", "r", "--json", "--store", sqlite_url).stdout)
    assert (found["ok"], [one["damage"] for one in found["findings"]]) == (False, ["unreadable"])
    with pytest.raises(ConfigError):
        verify(sqlite_url, level="none")  # type: ignore[arg-type]


def test_chosen_runs_only(url: str) -> None:
    """Verification of some runs leaves the others alone; an unknown run is an error."""
    with forging(url) as forge:
        forge.set(3, "turn", 5)
    assert verify(url, ["other"]).ok
    assert not verify(url, [("default", "r")]).ok
    assert verify(url, tenant="acme").runs == 0
    with pytest.raises(NoSuchRun, match="nobody"):
        verify(url, ["nobody"])


def test_findings_are_bounded_and_readable(url: str) -> None:
    """A run damaged everywhere gives the first findings only, each one line with run, seq and damage."""
    with forging(url) as forge:
        forge.run("UPDATE events SET turn = 77")
    report = verify(url)
    assert len([finding for finding in report.findings if finding.run == "r"]) <= FINDINGS_MAX
    assert str(report.findings[-1]).startswith("run 'r' at seq ")
    assert ": digest: " in str(report.findings[-1])


def test_progress_counts_events(url: str) -> None:
    """Progress ends at the number of events."""
    calls: list[tuple[int, int, str]] = []
    report = verify(url, progress=lambda *call: calls.append(call))
    assert calls[-1][:2] == (report.events, report.events)


def test_the_header_parts_are_the_header() -> None:
    """What verification packs in three parts is, byte for byte, the header the log is sealed with."""
    whole = header(7, 1, "ann", "é" * 300, 5, None, "low", 2, None, 99, 98, "q", '{"a":1}', b"t" * 16, b"s" * 8, 3)
    numbers = pack_numbers(7, 5, -1, 2, -1, 99, 98, 3)
    assert whole == numbers + pack_names(1, "ann", "é" * 300, "low") + pack_rest("q", '{"a":1}', b"t" * 16, b"s" * 8)


@pytest.mark.parametrize("column", ["txn", "turn", "version", "seen_seq", "clock", "trace_flags"])
def test_the_number_for_none_is_no_number(url: str, column: str) -> None:
    """Where a column holds nothing the header has -1; a stored -1 gives the same digest, and is named all the same."""
    with forging(url) as forge:
        row = next(row for row in forge.rows() if row[column] is None and row["kind"] > 2)
        forge.set(row["seq"], column, -1)
        assert (row["seq"], "column") in found(url, level="digest")
        rows = forge.rows()
        rows[row["seq"] - 1][column] = -7
        forge.put(rows, forge=True)
    assert (row["seq"], "column") in found(url, level="digest")


@pytest.mark.parametrize("left", [None, b""])
def test_a_body_moved_into_its_salt_is_found(url: str, left: bytes | None) -> None:
    """Salt and body are hashed as one: a salt that took the body in, or a body of no bytes, is named."""
    with forging(url) as forge:
        row = where(forge.rows(), 4)
        forge.set(row["seq"], "salt", row["salt"] + row["body"])
        forge.set(row["seq"], "body", left)
        assert (row["seq"], "column") in found(url, level="digest")
        forge.set(row["seq"], "salt", row["salt"])
        forge.set(row["seq"], "body", row["body"])
        read = where(forge.rows(), 3, key=None)
        assert read["body"] is None
        forge.set(read["seq"], "body", b"")
    assert found(url, level="digest") == [(read["seq"], "column")]


def test_the_event_a_fork_goes_on_from_is_there(url: str) -> None:
    """The parent's end cut off with the very event that a fork hangs on: the fork names it."""
    with open_store(url, SCHEMA) as store:
        made = fork(store.run("r"), "r-b", at="end", by="ada")
        made.write_state("low", 4, writer="ann")
        at = made.info().forked_at
    assert at is not None
    with forging(url) as forge:
        forge.remove(at)
    assert [(at, "density")] == found(url, runs=["r-b"])


def test_ancestors_in_a_circle_are_found(url: str) -> None:
    """A run that is its own ancestor, or its fork's fork: named, and what asks for its past ends, with Damaged."""
    with open_store(url, SCHEMA) as store:
        made = fork(store.run("r"), "r-b", at=9, by="ada")
        made.write_state("low", 2, writer="ann")
    with forging(url) as forge:
        for run, parent in ((3, 3), (1, 3)):
            forge.run("UPDATE runs SET parent = 1, parent_seq = 9 WHERE id = 3")
            forge.run("UPDATE runs SET parent = ?, parent_seq = 9 WHERE id = ?", parent, run)
            assert "fork" in [damage for _seq, damage in found(url)]
            with open_store(url, SCHEMA) as store:
                name = "r-b" if run == 3 else "r"
                for ask in (Run.state, lambda run: list(run.events()), lambda run: run.history("low")):
                    with pytest.raises(Damaged, match="verify"):
                        ask(store.run(name))
                for act in (story, lambda run: impact(run, "low", 1), lambda run: fork(run, "new", by="ada"),
                            lambda run: erase(store, run.name, key="low", by="dpo", reason="asked")):  # fmt: skip
                    with suppress(Damaged):
                        act(store.run(name))
            forge.run("UPDATE runs SET parent = NULL, parent_seq = NULL WHERE id = 1")
        forge.run("UPDATE runs SET parent = 1, parent_seq = NULL WHERE id = 3")
    with open_store(url, SCHEMA) as store, pytest.raises(Damaged, match="verify"):
        store.run("r-b").state()
