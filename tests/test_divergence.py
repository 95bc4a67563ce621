"""Two courses of facts compared: the first pair that differs, what it is called, and where the comparison ends."""

from __future__ import annotations

from typing import Any

import pytest

from refold_replay.diff import MISSING
from refold_replay.divergence import Divergence, Fact, FactKind, Pair, kind_of, pairs, told
from refold_store import jsontext


def fact(kind: FactKind, value: Any, seq: int = 1, *, agent: str = "a", key: str | None = None) -> Fact:
    """A fact of turn 1."""
    return Fact(kind, seq, 1, agent, jsontext.encode([agent, value]), value, key)


def differing(recorded: list[Fact], replayed: list[Fact]) -> list[Divergence]:
    """All differences, told."""

    def explain(one: Fact, other: Fact) -> tuple[str, Any, Any, str]:
        return "$.model", one.value, other.value, "the model"

    return [told("r", pair, explain, after=9, root=at == 0) for at, pair in enumerate(pairs(recorded, replayed))]


REQUEST, END = fact("request", {"digest": "1"}, 2), fact("end", {"outcome": "answered", "pending": []}, 8)
ROUTE = fact("route", {"from": "a", "to": "b"}, 7)
WRITE = fact("write", {"key": "k", "version": 1, "value": {"n": [1, 2]}}, 6, key="k")


def test_equal_courses_have_no_difference() -> None:
    """Seqs may differ: they count attempts that are not repeated."""
    assert list(pairs([REQUEST, WRITE, END], [fact("request", {"digest": "1"}, 20), WRITE, END])) == []


def test_a_value_that_differs_is_told_with_its_path_and_the_rest_is_compared() -> None:
    """Another value ends nothing: what follows is compared, too."""
    other = fact("write", {"key": "k", "version": 1, "value": {"n": [1, 3]}}, 30, key="k")
    found = differing([REQUEST, WRITE, END], [fact("request", {"digest": "2"}), other, END])
    assert [(one.kind, one.seq, one.path, one.recorded, one.replayed, one.root) for one in found] == [
        ("request", 2, "$.model", {"digest": "1"}, {"digest": "2"}, True),
        ("write", 6, "$.value.n[1]", 2, 3, False),
    ]
    assert found[1].key == "k"


def test_equal_json_of_other_bytes_differs() -> None:
    """1 and 1.0 are two values: the bytes count."""
    other = fact("write", {"key": "k", "version": 1, "value": {"n": [1, 2.0]}}, key="k")
    (one,) = differing([WRITE], [other])
    assert (one.path, one.recorded, one.replayed) == ("$.value.n[1]", 2, 2.0)


@pytest.mark.parametrize(
    ("one", "other", "kind"),
    [
        (ROUTE, REQUEST, "route"),
        (REQUEST, ROUTE, "route"),
        (fact("handoff", {"to": "b"}), fact("stop", {"limit": "x"}), "stop"),
        (fact("tool", {"tool": "t"}), fact("refusal", {"key": "k", "reason": "owner"}), "refusal"),
        (WRITE, fact("refusal", {"key": "k", "reason": "owner"}), "refusal"),
        (WRITE, END, "missing"),
        (WRITE, ROUTE, "missing"),
        (END, WRITE, "extra"),
        (END, fact("tool", {"tool": "t"}), "extra"),
        (REQUEST, None, "missing"),
        (None, REQUEST, "extra"),
        (REQUEST, fact("tool", {"tool": "t"}), "missing"),
    ],
)
def test_what_a_difference_is_called(one: Fact | None, other: Fact | None, kind: str) -> None:
    """Decisions name themselves; without a counterpart it is missing or extra."""
    assert kind_of(one, other) == kind


def test_what_ended_the_turn_is_told_and_not_the_writes_before_it() -> None:
    """The record routed on and the replay asks its model: the route differs, though writes stand before it."""
    (one,) = differing([REQUEST, WRITE, ROUTE, END], [REQUEST, fact("request", {"digest": "2"})])
    assert (one.kind, one.seq) == ("route", 7)
    assert one.message == "'a' in turn 1: on record a route to 'b', now a request to the model"
    (one,) = differing([REQUEST, fact("request", {"digest": "2"}, 5)], [REQUEST, WRITE, ROUTE, END])
    assert (one.kind, one.seq) == ("route", 5)


def test_another_target_ends_the_comparison() -> None:
    """Behind another target nothing can be compared."""
    elsewhere = fact("route", {"from": "a", "to": "c"})
    found = list(pairs([ROUTE, END], [elsewhere, fact("end", {"outcome": "goes_on", "pending": []})]))
    assert found == [Pair(ROUTE, elsewhere, breaks=True)]
    reason = fact("handoff", {"to": "b", "reason": "x"}), fact("handoff", {"to": "b", "reason": "y"})
    assert [pair.breaks for pair in pairs([reason[0]], [reason[1]])] == [False]


def test_what_has_no_counterpart_stands_behind_the_last_seq() -> None:
    """An extra fact has no seq on record; a missing one has nothing on the other side, and JSON leaves that out."""
    (one,) = differing([REQUEST], [REQUEST, WRITE])
    assert (one.kind, one.seq, one.recorded) == ("extra", 9, MISSING)
    assert "recorded" not in one.to_json()
    (one,) = differing([REQUEST, WRITE], [REQUEST])
    assert (one.kind, one.seq, one.replayed) == ("missing", 6, MISSING)
    assert one.to_json()["recorded"] == {"write": WRITE.value}
