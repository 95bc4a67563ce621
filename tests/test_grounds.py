"""What a write rests on: stated, direct, carried and folded grounds."""

from __future__ import annotations

from refold_replay.grounds import Ground, Grounds


def test_only_the_newest_version_read_counts() -> None:
    """Of each key the newest version counts, at the last read of it; an older one read later does not."""
    grounds: Grounds[str, str] = Grounds()
    assert grounds.read("ann", "k", 1, seq=3)
    assert grounds.read("ann", "k", 2, seq=5)
    assert not grounds.read("ann", "k", 1, seq=6)
    assert grounds.read("ann", "k", 2, seq=7)
    grounds.read("bob", "other", 1, seq=8)
    assert grounds.of("ann", "out", 1) == [Ground("k", 2, "direct", 7)]
    assert grounds.of("eve", "out", 1) == []


def test_a_read_is_direct_in_its_turn_and_carried_after_it() -> None:
    """The turn of the read and of the write tell direct from carried; no turn is a turn like any other."""
    grounds: Grounds[str, str] = Grounds()
    grounds.read("ann", "a", 1, seq=3, turn=1)
    grounds.read("ann", "b", 0, seq=4, turn=2)
    found = grounds.of("ann", "out", 1, turn=2)
    assert found == [Ground("a", 1, "carried", 3), Ground("b", 0, "direct", 4)]
    assert [one.kind for one in grounds.of("ann", "out", 1)] == ["carried", "carried"]


def test_what_is_stated_stands_in_place_of_what_was_read() -> None:
    """Stated grounds replace the read ones, with the read behind each; stating nothing is resting on nothing."""
    grounds: Grounds[str, str] = Grounds()
    grounds.read("ann", "a", 2, seq=3)
    grounds.read("ann", "b", 1, seq=4)
    assert grounds.of("ann", "out", 1, stated=[("a", 2), ("b", 7)]) == [
        Ground("a", 2, "stated", 3),
        Ground("b", 7, "stated", None),
    ]
    assert grounds.of("ann", "out", 1, stated=[]) == []


def test_a_fold_rests_on_the_version_before() -> None:
    """A write to a key that folds rests on the version before it, from the second one on."""
    grounds: Grounds[str, str] = Grounds()
    assert grounds.of("ann", "log", 1, folds=True) == []
    assert grounds.of("ann", "log", 4, folds=True) == [Ground("log", 3, "folded", None)]


def test_grounds_among_some_keys() -> None:
    """A caller may ask about a few keys, so that a write costs those and not all an actor ever read."""
    grounds: Grounds[str, str] = Grounds()
    for number in range(5):
        grounds.read("ann", f"k{number}", 1, seq=number + 1)
    assert [one.key for one in grounds.of("ann", "out", 1, among={"k3", "k9"})] == ["k3"]
