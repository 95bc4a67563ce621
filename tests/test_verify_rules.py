"""Verification beyond digests: a rule broken by a writer that signs well is found and named."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from forge import Cells, Forge, forging
from sound import SCHEMA, fill, found, where

from refold import open_store
from refold_replay.verify import verify


@pytest.fixture
def url(store_url: str) -> str:
    """A filled, sound store."""
    with open_store(store_url, SCHEMA) as store:
        fill(store)
    assert verify(store_url).findings == []
    return store_url


def _owner(rows: list[Cells], forge: Forge) -> Cells:
    row = where(rows, 1, key=forge.name("routing"))
    row["owner"] = forge.name("claims")
    return row


def _actor(rows: list[Cells], forge: Forge) -> Cells:
    row = where(rows, 1, key=forge.name("routing"))
    row["actor"] = forge.name("eve")
    return row


def _late_initial(rows: list[Cells], forge: Forge) -> Cells:
    row = where(rows, 1, key=forge.name("high"))
    row["actor"], row["refs"] = forge.name("desk"), '{"initial":true}'
    return row


def _undeclared(rows: list[Cells], forge: Forge) -> Cells:
    row = where(rows, 1, key=forge.name("routing"))
    row["key"], row["version"] = forge.name("rooting"), 1
    where(rows, 1, request_id="q")["version"] = 1
    return row


def _type(rows: list[Cells], forge: Forge) -> Cells:
    row = where(rows, 1, key=forge.name("high"))
    row["body"] = b'{"value":"nine"}'
    return row


def _too_large(rows: list[Cells], forge: Forge) -> Cells:
    row = where(rows, 1, key=forge.name("routing"))
    row["body"] = b'{"value":{"rules":"' + b"x" * 100 + b'"}}'
    return row


def _update_type(rows: list[Cells], forge: Forge) -> Cells:
    row = where(rows, 1, key=forge.name("notes"))
    row["body"] = b'{"update":{"a":1}}'
    return row


def _invariant(rows: list[Cells], forge: Forge) -> Cells:
    row = where(rows, 1, key=forge.name("high"))
    row["body"] = b'{"value":1}'
    return row


def _version(rows: list[Cells], forge: Forge) -> Cells:
    row = where(rows, 1, request_id="q")
    row["version"] = 3
    return row


def _time(rows: list[Cells], forge: Forge) -> Cells:
    rows[8]["recorded_at"] = rows[7]["recorded_at"]
    return rows[8]


def _clock(rows: list[Cells], forge: Forge) -> Cells:
    row = where(rows, 15)
    row["clock"] = row["recorded_at"] + 5
    return row


def _torn(rows: list[Cells], forge: Forge) -> Cells:
    row = next(row for row in rows if row["txn"] and row["txn"] != row["seq"])
    rows[rows.index(row) - 1]["txn"] = None
    return row


def _twice(rows: list[Cells], forge: Forge) -> Cells:
    row = next(row for row in rows if row["txn"] and row["txn"] != row["seq"])
    low = rows[rows.index(row) - 1]
    row |= {"key": low["key"], "version": 3, "body": b'{"value":2}'}
    return row


def _read_ahead(rows: list[Cells], forge: Forge) -> Cells:
    row = where(rows, 3, key=forge.name("routing"))
    row["version"] = 2
    return row


def _read_never(rows: list[Cells], forge: Forge) -> Cells:
    row = where(rows, 3, key=None)
    row["refs"] = json.dumps({"keys": [["notes", 1], ["routing", 1]]}, separators=(",", ":"))
    return row


def _read_future(rows: list[Cells], forge: Forge) -> Cells:
    row = where(rows, 3, key=forge.name("routing"))
    row["seen_seq"] = row["seq"] + 3
    return row


def _opened_twice(rows: list[Cells], forge: Forge) -> Cells:
    row = where(rows, 15)
    row["kind"] = 5
    return row


def _no_request(rows: list[Cells], forge: Forge) -> Cells:
    row = where(rows, 1, request_id="q")
    row["refs"] = '{"expected":1}'
    return row


def _no_body(rows: list[Cells], forge: Forge) -> Cells:
    row = where(rows, 1, request_id="q")
    row["body"] = None
    return row


def _not_json(rows: list[Cells], forge: Forge) -> Cells:
    row = where(rows, 15)
    row["body"] = b"{"
    return row


def _no_schema(rows: list[Cells], forge: Forge) -> Cells:
    row = where(rows, 7)
    row["body"] = b'{"fingerprint":"abc"}'
    return row


RULES = [
    (_owner, "owner"), (_actor, "owner"), (_late_initial, "owner"), (_undeclared, "owner"), (_type, "type"),
    (_too_large, "type"),
    (_update_type, "type"), (_invariant, "invariant"), (_version, "version"), (_time, "time"), (_clock, "time"),
    (_torn, "transaction"), (_twice, "transaction"), (_read_ahead, "read"), (_read_never, "read"),
    (_read_future, "read"), (_opened_twice, "opening"), (_no_request, "request"), (_no_body, "body"),
    (_not_json, "body"), (_no_schema, "schema"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "damage"), RULES, ids=[change.__name__ for change, _damage in RULES])
def test_a_rule_broken_under_good_digests_is_found(
    url: str, change: Callable[[list[Cells], Forge], Cells], damage: str
) -> None:
    """A writer that breaks a rule and signs it well is named with seq and kind of damage."""
    with forging(url) as forge:
        rows = forge.rows()
        row = change(rows, forge)
        forge.put(rows, forge=True)
    assert (row["seq"], damage) in found(url)


def test_several_processes_find_the_same(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Split into short stretches over two processes, the findings are the same, and so is a sound store."""
    monkeypatch.setattr("refold_replay.stretches.STRETCH", 4)
    whole = verify(url)
    apart = verify(url, workers=2)
    assert (apart.events, apart.findings) == (whole.events, []) == (whole.events, whole.findings)
    with forging(url) as forge:
        rows = forge.rows()
        for change in (_read_ahead, _type, _owner):
            change(rows, forge)
        forge.put(rows, forge=True)
        forge.set(len(rows), "turn", 9)
    monkeypatch.setattr("refold_replay.stretches.STRETCH", 25_000)
    expected = verify(url).findings
    assert len(expected) >= 4
    monkeypatch.setattr("refold_replay.stretches.STRETCH", 4)
    assert verify(url, workers=2).findings == expected == verify(url, workers=1).findings
