"""State at every seq of random histories equals a naive fold, and nothing rests on keyframes or remembered heads."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import pytest
from forge import forging

from refold import Refused, Run, Store, open_store
from refold_replay.verify import verify

SCHEMA: dict[str, Any] = {
    "keys": {
        "last": {"owner": "all", "type": "any"},
        "list": {"owner": "all", "type": "array", "reducer": "append"},
        "sum": {"owner": "all", "type": "integer", "reducer": "add"},
        "map": {"owner": "all", "type": "object", "reducer": "merge"},
        "deep": {"owner": "all", "type": "object", "reducer": "deep_merge"},
        "case/{id}": {"owner": "all", "type": "any"},
    },
    "groups": {"all": ["ann", "bob"]},
}
EVENTS = 500
KEYS = ("last", "list", "sum", "map", "deep", "case/1", "case/2")


def update_for(key: str, draw: random.Random) -> Any:
    """A random update that fits a key."""
    number = draw.randrange(100)
    text = "x" * draw.choice((1, 10, 400))
    return {
        "list": [number, text],
        "sum": number - 50,
        "map": {draw.choice("abc"): text},
        "deep": {draw.choice("ab"): {draw.choice("xy"): number}},
    }.get(key, draw.choice((None, number, text, [text], {"n": number, "f": 1.5})))


def naive(key: str, before: Any, update: Any) -> Any:
    """The reducers once more, as plainly as can be. `before` is None for absent."""
    if key == "list":
        return [*(before or []), *update]
    if key == "sum":
        return (before or 0) + update
    if key == "map":
        return {**(before or {}), **update}
    if key == "deep":
        merged = copy.deepcopy(before or {})
        for outer, inner in update.items():
            merged[outer] = {**merged.get(outer, {}), **inner}
        return merged
    return update


class History:
    """Plays random calls on a run and keeps, by itself, what the state was after each event."""

    def __init__(self, run: Run, seed: int) -> None:
        self.run = run
        self.draw = random.Random(seed)
        self.states: dict[int, dict[str, Any]] = {0: {}}
        self._now: dict[str, Any] = {}

    def play(self, events: int) -> None:
        """Call until the log has so many events."""
        while (head := max(self.states)) < events:
            self.draw.choice((self._write, self._write, self._write, self._delete, self._transaction, self._other))()
            self.run.store.flush()
            for seq in range(head + 1, self.run.head_seq() + 1):
                self.states.setdefault(seq, dict(self._now))

    def _settle(self, seq: int, key: str, update: Any) -> None:
        """Note a write; events that were appended before it (refusals, reads) showed the state before it."""
        for between in range(max(self.states) + 1, seq):
            self.states[between] = dict(self._now)
        self._now[key] = naive(key, self._now.get(key), update)
        self.states[seq] = dict(self._now)

    def _write(self) -> None:
        key = self.draw.choice(KEYS)
        update = update_for(key, self.draw)
        self._settle(self.run.write_state(key, update, writer="ann").seq, key, update)

    def _delete(self) -> None:
        key = self.draw.choice(KEYS)
        written = self.run.delete_state(key, writer="bob")
        for between in range(max(self.states) + 1, written.seq):
            self.states[between] = dict(self._now)
        self._now.pop(key, None)
        self.states[written.seq] = dict(self._now)

    def _transaction(self) -> None:
        chosen = self.draw.sample(KEYS, 3)
        updates = {key: update_for(key, self.draw) for key in chosen}
        with self.run.transaction() as tx:
            for key, update in updates.items():
                tx.write_state(key, update, writer="bob")
        for written in tx.written:
            self._settle(written.seq, written.key, updates[written.key])

    def _other(self) -> None:
        if self.draw.random() < 0.5:
            self.run.read_state(self.draw.choice(KEYS), reader="eve")
            return
        with pytest.raises(Refused):
            self.run.write_state(self.draw.choice(KEYS), 1, writer="eve")


def assert_same(run: Run, states: dict[int, dict[str, Any]]) -> None:
    """Every state of the past, the one now, and each key by itself, are the naive ones."""
    for seq, expected in states.items():
        assert run.at(seq).state().json() == expected, f"seq {seq}"
    newest = states[max(states)]
    assert run.state().json() == newest
    for key in KEYS:
        read = run.peek(key)
        assert (None if read.absent else read.json) == newest.get(key)


@pytest.mark.parametrize("seed", [1, 2])
def test_state_at_every_seq_is_a_naive_fold(open_new: Callable[..., Store], store_url: str, seed: int) -> None:
    """Of a random history of 500 events, each state ever, and the live one, equals a fold written here."""
    store = open_new(SCHEMA)
    history = History(store.run("r"), seed)
    history.play(EVENTS)
    assert max(history.states) >= EVENTS
    assert_same(store.run("r"), history.states)
    store.close()
    assert verify(store_url).ok


def test_without_keyframes_and_heads_nothing_changes(open_new: Callable[..., Store], store_url: str) -> None:
    """Keyframes deleted and the process new: the same states, and the history goes on from them."""
    store = open_new(SCHEMA)
    history = History(store.run("r"), 3)
    history.play(EVENTS)
    store.close()
    with forging(store_url) as forge:
        assert forge.run("SELECT count(*) FROM keyframes")[0][0] > 0
        forge.run("DELETE FROM keyframes")
    with open_store(store_url) as cold:
        assert_same(cold.run("r"), history.states)
    again = open_new(SCHEMA)
    history.run = again.run("r")
    history.play(EVENTS + 100)
    assert_same(history.run, history.states)
    again.close()
    assert verify(store_url).ok
