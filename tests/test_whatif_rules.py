"""What-if against a naive re-fold of the test's own, on random histories: every write left out in turn."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from refold_naively import GONE, Change, Laws, differences, end, fold, lines_of

from refold import Refused, Run, Store
from refold_replay.whatif import whatif

SCHEMA: dict[str, Any] = {
    "keys": {
        "doc": {"owner": "ann", "type": "object"},
        "low": {"owner": "desk", "type": "integer"},
        "high": {"owner": "desk", "type": "integer"},
        "notes": {"owner": "desk", "type": "array", "reducer": "append"},
        "facts": {"owner": "desk", "type": "object", "reducer": "merge"},
        "total": {"owner": "desk", "type": {"type": "integer", "maximum": 30}, "reducer": "add"},
    },
    "groups": {"desk": ["ann", "bob", "cat"]},
    "invariants": {"band": "low <= high"},
}
PEOPLE = ("ann", "bob", "cat", "eve")


def _total(before: Any, update: Any) -> Any:
    made = (0 if before is GONE else before) + update
    if made > 30:
        raise ValueError(made)
    return made


LAWS = Laws(
    owners={key: ("ann",) if key == "doc" else ("ann", "bob", "cat") for key in SCHEMA["keys"]},
    reduce={
        "notes": lambda before, update: ([] if before is GONE else before) + update,
        "facts": lambda before, update: ({} if before is GONE else before) | update,
        "total": _total,
    },
    holds=lambda state: not ("low" in state and "high" in state) or state["low"] <= state["high"],
)


class Player:
    """Plays a random history in a run; refusals are part of it."""

    def __init__(self, run: Run, seed: int) -> None:
        self.run = run
        self.draw = random.Random(seed)
        self.keys = list(SCHEMA["keys"])

    def play(self, steps: int) -> None:
        """Some steps."""
        self.run.open(opened_by="boss", initial={"low": 3, "doc": {"n": 0}})
        for _step in range(steps):
            self.draw.choice((self._write, self._write, self._write, self._read, self._read, self._many, self._txn))()
        self.run.store.flush()

    def _update(self, key: str) -> Any:
        number = self.draw.randrange(12)
        return {
            "doc": {"n": number}, "low": number, "high": number + 3, "notes": [number],
            "facts": {self.draw.choice("abc"): number}, "total": number,
        }[key]  # fmt: skip

    def _write(self) -> None:
        key, who = self.draw.choice(self.keys), self.draw.choice(PEOPLE)
        options: dict[str, Any] = {"writer": who, "turn": self.draw.choice((None, 1, 2))}
        newest = self.run.peek(key).version
        if self.draw.random() < 0.3:
            options["expected_version"] = max(0, newest - (self.draw.random() < 0.2))
        if self.draw.random() < 0.25:
            other = self.draw.choice(self.keys)
            options["based_on"] = [(other, self.draw.randint(0, self.run.peek(other).version))]
        try:
            if self.draw.random() < 0.12:
                self.run.delete_state(key, **options)
            else:
                self.run.write_state(key, self._update(key), **options)
        except Refused:
            pass

    def _read(self) -> None:
        key, who = self.draw.choice(self.keys), self.draw.choice(PEOPLE)
        if self.draw.random() < 0.3:
            self.run.at(self.draw.randint(1, self.run.head_seq())).read_state(key, reader=who)
        else:
            self.run.read_state(key, reader=who)

    def _many(self) -> None:
        self.run.read_many(self.draw.sample(self.keys, 2), reader=self.draw.choice(PEOPLE))

    def _txn(self) -> None:
        low = self.draw.randrange(9)
        with self.run.transaction() as tx:
            tx.write_state("low", low, writer="bob")
            tx.write_state("high", low + self.draw.randrange(4), writer="cat")
            if self.draw.random() < 0.5:
                tx.write_state("notes", [low], writer="ann")


def _store(open_new: Callable[..., Store]) -> Store:
    return open_new(SCHEMA)


def _history(store: Store, seed: int, steps: int) -> Run:
    run = store.run(f"r{seed}")
    Player(run, seed).play(steps)
    return run


def _as_naive(run: Run, seq: int) -> None:
    """Leaving out one write gives what the naive re-fold gives."""
    lines = lines_of(run)
    found = whatif(run, skip=[seq])
    assert {(one.seq, one.what) for one in found.differences} == differences(lines, LAWS, Change({seq})), f"skip {seq}"
    assert {one.key for one in found.final} == end(lines, LAWS, Change({seq}))


def _writes(run: Run) -> list[int]:
    return [event.seq for event in run.events(("state.written", "state.deleted"))]


@pytest.mark.parametrize("seed", range(6))
def test_each_write_left_out(open_new: Callable[..., Store], seed: int) -> None:
    """On a random history, leaving out each write in turn changes exactly what a naive re-fold says."""
    run = _history(_store(open_new), seed, 60)
    for seq in _writes(run):
        _as_naive(run, seq)


@pytest.mark.soak
def test_each_write_left_out_of_many_histories(open_new: Callable[..., Store]) -> None:
    """The same on many longer histories."""
    store = _store(open_new)
    for seed in range(100, 160):
        run = _history(store, seed, 120)
        for seq in _writes(run):
            _as_naive(run, seq)


@pytest.mark.parametrize("seed", range(10, 14))
def test_without_a_change_nothing_differs(open_new: Callable[..., Store], seed: int) -> None:
    """On random histories of hundreds of events a what-if without a change is empty, and the naive fold agrees."""
    run = _history(_store(open_new), seed, 250)
    lines = lines_of(run)
    assert not whatif(run)
    assert not whatif(run, schema=SCHEMA)
    assert not whatif(run, change=lambda _event: _keep())
    assert differences(lines, LAWS, Change()) == set()
    state = {key: world[-1][2] for key, world in fold(lines, LAWS).log.items() if world[-1][2] is not GONE}
    assert state == run.state().json()


CHANGES: dict[str, tuple[Laws, dict[str, Any]]] = {
    "none": (LAWS, {}),
    "owner": (
        replace(LAWS, owners={**(LAWS.owners or {}), "doc": ("eve",), "low": ("ann",)}),
        {"owners": {"doc": "eve", "low": "ann"}},
    ),
    "free": (replace(LAWS, holds=lambda _state: True), {"conditions": {"band": None}}),
    "strict": (
        replace(LAWS, holds=lambda state: state.get("total", 0) < 20),
        {"conditions": {"band": "total < 20"}},
    ),
    "last": (
        replace(LAWS, reduce={key: reduce for key, reduce in LAWS.reduce.items() if key != "facts"}),
        {"reducers": {"facts": "last"}},
    ),
}


@pytest.mark.parametrize("rules", CHANGES)
@pytest.mark.parametrize("seed", range(30, 33))
def test_several_changes_at_once(open_new: Callable[..., Store], seed: int, rules: str) -> None:
    """Edits of writes, deletes and refusals, skips and other rules, all together, as a naive re-fold has them."""
    player = Player(_store(open_new).run("r"), seed)
    player.play(70)
    lines, run = lines_of(player.run), player.run
    laws, options = CHANGES[rules]
    events = [line for line in lines if line.kind in ("state.written", "state.deleted", "state.refused")]
    for _time in range(8):
        chosen = player.draw.sample(events, 4)
        edit = {line.seq: player._update(line.key or "") for line in chosen[:2]}
        change = Change({line.seq for line in chosen[2:] if line.kind != "state.refused"}, edit, laws)
        found = whatif(run, skip=change.skip, edit=edit, **options)
        told = {(one.seq, one.what) for one in found.differences if one.what != "cannot be judged"}
        assert told == differences(lines, LAWS, change), change
        assert all(one.message == "the refused update was not kept" for one in found.of("cannot be judged"))
        assert {one.key for one in found.final} == end(lines, LAWS, change)


def _keep() -> Any:
    from refold_replay.whatif import KEEP

    return KEEP


def test_every_event_judged_again_stands(open_new: Callable[..., Store], monkeypatch: pytest.MonkeyPatch) -> None:
    """Even when each event is judged again by the rules of a live write, each comes out as recorded."""
    from refold_replay.refolding import Refolding

    run = _history(_store(open_new), 20, 250)
    judged = []
    monkeypatch.setattr(Refolding, "_is_affected", lambda _self, unit: judged.append(unit[0].seq) or not unit[0].fixed)
    found = whatif(run)
    assert len(judged) > 100
    assert not found, found.differences


def test_histories_hold_what_they_should(open_new: Callable[..., Store]) -> None:
    """The random histories hold conflicts, broken invariants, refused owners and refused results."""
    run = _history(_store(open_new), 3, 250)
    reasons = {event.body["reason"] for event in run.events(("state.refused",))}
    assert reasons == {"owner", "conflict", "invariant", "invalid"}
