"""Recorded airline bookings, interleaved: which of two sessions wins a key, on both backends.

The file's `store` is the run, its `run` a session. Every write names the version it expects.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from refold import Store
from refold_replay.hashing import document_hash
from refold_store.errors import Conflict

OPEN = {"type": "object"}
SCHEMA: dict[str, Any] = {
    "keys": {
        "reservation/{id}": {"owner": "reservations_service", "type": OPEN},
        "user/{id}": {"owner": "accounts_service", "type": OPEN},
        "flight/{id*}": {"owner": "flights_service", "type": OPEN},
    },
    "groups": {
        "reservations_service": ["airline"],
        "accounts_service": ["airline"],
        "flights_service": ["airline"],
    },
}


def lines(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a JSON Lines file."""
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        yield from map(json.loads, file)


def play(store: Store, folder: Path) -> list[tuple[str, int, str, str]]:
    """Play every operation in order; returns (store, n, expected verdict, verdict) of each write."""
    seed = {line["key"]: line["value"] for line in lines(folder / "seed.jsonl.gz")}
    operations = list(lines(folder / "ops.jsonl.gz"))
    touched: dict[str, set[str]] = {}
    for op in operations:
        touched.setdefault(op["store"], set()).add(op["key"])
    for name, keys in touched.items():
        store.run(name).open(opened_by="airline", initial={key: seed[key] for key in sorted(keys & seed.keys())})
    verdicts = []
    for op in operations:
        run = store.run(op["store"])
        if op["op"] == "read":
            read = run.read_state(op["key"], reader=op["run"])
            assert (read.version, document_hash(read.json)) == (op["version"], op["sha256"])
            continue
        try:
            written = run.write_state(op["key"], op["value"], writer="airline", expected_version=op["expected_version"])
            verdict, version = "ok", written.version
        except Conflict as error:
            verdict, version = "conflict", error.actual
        assert version == op["version_after"]
        verdicts.append((op["store"], op["n"], op["expect"], verdict))
    return verdicts


@pytest.fixture
def played(
    open_new: Callable[..., Store], shared_data: Callable[[str], Path]
) -> tuple[Store, Path, list[tuple[str, int, str, str]]]:
    """A store into which everything was played."""
    folder = shared_data("contention/dev")
    store = open_new(SCHEMA)
    return store, folder, play(store, folder)


def test_each_write_is_accepted_or_refused_as_expected(
    played: tuple[Store, Path, list[tuple[str, int, str, str]]],
) -> None:
    """39 writes are accepted and 61 conflict, each where the record says, in 23 runs."""
    store, _folder, verdicts = played
    assert [verdict for verdict in verdicts if verdict[2] != verdict[3]] == []
    assert sum(verdict[3] == "ok" for verdict in verdicts) == 39
    assert sum(verdict[3] == "conflict" for verdict in verdicts) == 61
    assert len(store.runs()) == 23


def test_the_end_state_is_the_recorded_one(played: tuple[Store, Path, list[tuple[str, int, str, str]]]) -> None:
    """76 documents have the recorded version and content at the end."""
    store, folder, _verdicts = played
    final = list(lines(folder / "final.jsonl"))
    got = []
    for line in final:
        read = store.run(line["store"]).peek(line["key"])
        got.append({**line, "version": read.version, "sha256": document_hash(read.json)})
    assert got == final
    assert len(final) == 76


def test_every_conflict_is_on_the_record(played: tuple[Store, Path, list[tuple[str, int, str, str]]]) -> None:
    """Each refused write left a state.refused event that says conflict."""
    store, _folder, _verdicts = played
    refused = [
        event.body["reason"] for info in store.runs() for event in store.run(info.name).events(kinds=["state.refused"])
    ]
    assert refused == ["conflict"] * 61
