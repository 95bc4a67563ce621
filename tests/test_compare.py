"""Comparing two moments, of one run or of two."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from refold import Store
from refold_replay.comparing import compare
from refold_replay.diff import MISSING, Change
from refold_store.erasing import erase
from refold_store.forking import fork

Open = Callable[..., Store]
KEYS: dict[str, Any] = {
    **{name: {"owner": "w", "type": "any"} for name in ("a", "b", "c", "d")},
    "list": {"owner": "w", "type": "array", "reducer": "append"},
    "iban": {"owner": "w", "type": "any", "sensitive": True},
}


def test_two_moments_of_one_run(open_new: Open) -> None:
    """Keys that came, went or changed are told path by path, in byte order; a key at the same version is not."""
    run = open_new({"keys": KEYS}).run("r")
    run.write_state("a", {"x": 1, "y": [1]}, writer="w")
    run.write_state("b", 1, writer="w")
    before = run.write_state("d", 1, writer="w").seq
    run.write_state("a", {"x": 1.0, "y": [1, 2]}, writer="w")
    run.delete_state("b", writer="w")
    run.write_state("c", None, writer="w")
    found = compare(run.at(before), run.at("end"))
    assert [(one.key, one.changes) for one in found] == [
        ("a", [Change("replace", "$.x", 1, 1.0), Change("add", "$.y[1]", MISSING, 2)]),
        ("b", [Change("remove", "$", 1, MISSING)]),
        ("c", [Change("add", "$", MISSING, None)]),
    ]
    assert (found.before.seq, found.after.seq, found.one_run) == (before, run.head_seq(), True)
    assert not compare(run.at("end"), run.at("end")).keys


def test_a_value_that_came_back_is_listed_without_changes(open_new: Open) -> None:
    """Within a run another version is another, even if its value is the same."""
    run = open_new({"keys": KEYS}).run("r")
    run.write_state("a", 1, writer="w")
    run.write_state("a", 2, writer="w")
    run.write_state("a", 1, writer="w")
    (one,) = compare(run.at("a@1"), run.at("end"))
    assert (one.changes, one.before and one.before.version, one.after and one.after.version) == ([], 1, 3)


def test_two_runs_are_compared_by_value(open_new: Open) -> None:
    """Equal values are equal whatever their versions, and different ones differ though their versions are equal."""
    store = open_new({"keys": KEYS})
    one, other = store.run("one"), store.run("other")
    for run, first, second in ((one, 1, 1), (other, 0, 1)):
        run.write_state("a", first, writer="w")
        run.write_state("a", second, writer="w")
    one.write_state("b", 5, writer="w")
    other.write_state("b", 6, writer="w")
    one.write_state("a", 1, writer="w")
    other.write_state("list", ["x"], writer="w")
    other.write_state("list", ["y"], writer="w")
    found = compare(one.at("end"), other.at("end"))
    assert [(change.key, change.changes) for change in found] == [
        ("b", [Change("replace", "$", 5, 6)]),
        ("list", [Change("add", "$", MISSING, ["x", "y"])]),
    ]
    assert found.one_run is False


def test_a_fork_and_its_origin_are_two_runs(open_new: Open) -> None:
    """Both wrote a version 2 of their own: they differ by value."""
    run = open_new({"keys": KEYS}).run("r")
    run.write_state("a", 1, writer="w")
    run.write_state("b", 1, writer="w")
    other = fork(run, "f", by="dana")
    run.write_state("a", 2, writer="w")
    other.write_state("a", 3, writer="w")
    assert [(one.key, one.changes) for one in compare(run.at("end"), other.at("end"))] == [
        ("a", [Change("replace", "$", 2, 3)])
    ]


def test_erased_and_sensitive_sides_say_so(open_new: Open) -> None:
    """An erased side has no changes and says why; a sensitive key is marked."""
    run = open_new({"keys": KEYS}).run("r")
    lost = run.write_state("a", 1, writer="w")
    run.write_state("a", 2, writer="w")
    run.write_state("iban", "DE02", writer="w")
    erase(run.store, "r", key="a", version=1, by="dpo", reason="asked for")
    first, second = compare(run.at(lost.seq), run.at("end"))
    assert (first.key, first.changes, first.erased, first.sensitive) == ("a", [], True, False)
    assert (second.key, second.sensitive) == ("iban", True)
