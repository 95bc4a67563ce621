"""A run as a story: one record an event, in plain words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import refold_replay.story
from refold import NotOwner, Run, Store
from refold_replay.diff import MISSING
from refold_replay.story import Ground, Told, story
from refold_replay.telling import WORDS, plain
from refold_store.erasing import erase
from refold_store.events import KINDS, READ, Draft, Event, Row
from refold_store.forking import fork
from refold_store.pruning import prune
from refold_store.requests import Request

Open = Callable[..., Store]
KEYS: dict[str, Any] = {
    "a": {"owner": "w", "type": "any"},
    "b": {"owner": "team", "type": "any"},
    "list": {"owner": "w", "type": "array", "reducer": "append"},
    "iban": {"owner": "w", "type": "any", "sensitive": True},
    "house": {"owner": "w", "type": "any", "scope": "tenant"},
}
SCHEMA: dict[str, Any] = {"keys": KEYS, "groups": {"team": ["t1", "t2"]}}


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 1_700_000_000_000_000

    def __call__(self) -> int:
        return self.now


def words(told: Any) -> list[str]:
    """What is said, without the opening."""
    return [one.words for one in told if not one.event.kind.startswith(("run.o", "schema."))]


def note(run: Run, reader: str, key: str, version: int, seen: int) -> None:
    """A read event that lands in the log now, of what was seen earlier."""
    run._committer.submit(Request(run._head, run.schema(), (Draft(READ, reader, None, key, version, seen),)))


def test_who_did_what(open_new: Open) -> None:
    """Writes, updates, deletes, reads and refusals in words; value, basis and grounds beside them."""
    store = open_new(SCHEMA)
    run = store.run("r")
    run.open(opened_by="boss", initial={"a": 0})
    seen = run.read_state("a", reader="t1")
    run.write_state("b", {"x": 1}, writer="t1", basis="because", based_on=[seen])
    run.write_state("list", ["x"], writer="w")
    run.delete_state("a", writer="w", basis="wrong")
    run.read_many(["a", "b", "iban"], reader="w")
    with pytest.raises(NotOwner):
        run.write_state("a", 5, writer="t1")
    store.flush()
    told = list(story(run))
    assert words(told) == [
        "boss set, as initial value, a@1 for w",
        "t1 read a@1",
        "t1 wrote b@1 for team",
        "w added to list@1",
        "w deleted a (version 2)",
        "w read a@2, b@1, iban (absent)",
        "t1 was refused a (owner)",
    ]
    wrote = told[4]
    assert (wrote.value, wrote.basis, wrote.based_on) == ({"x": 1}, "because", [Ground("a", 1, 1)])
    assert (told[5].value, told[6].value, told[6].basis) == (["x"], MISSING, "wrong")
    assert told[8].value == 5
    assert "may not write" in (told[8].detail or "")
    assert [one.event.seq for one in told] == list(range(1, run.head_seq() + 1))


def test_stale_is_what_was_not_newest_when_it_was_seen(open_new: Open) -> None:
    """`seen_seq` decides, not the place in the log; a write on an old version is stale; a scope's key is not judged."""
    run = open_new(SCHEMA).run("r")
    first = run.write_state("a", 1, writer="w")
    second = run.write_state("a", 2, writer="w")
    run.write_state("a", 3, writer="w")
    note(run, "late", "a", 1, first.seq)
    note(run, "old", "a", 1, second.seq)
    note(run, "blind", "a", 0, second.seq)
    run.write_state("b", 1, writer="t1", based_on=[("a", 1)])
    run.write_state("house", 1, writer="w")
    run.read_state("house", reader="t1")
    run.store.flush()
    told = list(story(run))
    assert words(told)[3:] == [
        "late read a@1",
        "old read a@1 (stale: 2 was current)",
        "blind read a (as absent: 2 was current)",
        "t1 wrote b@1 for team",
        "t1 read house@1 of scope tenant",
    ]
    assert [one.stale for one in told[5:]] == [False, True, True, True, False]
    assert told[8].based_on == [Ground("a", 1, 3)]


def test_it_does_not_depend_on_what_is_remembered(open_new: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """With no room to remember newest versions, and begun in the middle, the same is told."""
    run = open_new(SCHEMA).run("r")
    for number in range(6):
        run.write_state("a", number, writer="w")
        run.write_state("list", [number], writer="w")
        note(run, "x", "a", number, run.head_seq())
        note(run, "y", "list", number + 1, run.head_seq())
    whole = [(one.words, one.stale) for one in story(run)]
    assert sum(stale for _, stale in whole) == 6
    monkeypatch.setattr(refold_replay.story, "NEWEST_MAX", 1)
    assert [(one.words, one.stale) for one in story(run)] == whole
    assert [(one.words, one.stale) for one in story(run, begin=12)] == whole[11:]


def test_transactions_are_blocks(open_new: Open) -> None:
    """The events of one transaction stand together and say where it begins and ends, also in a part of the story."""
    run = open_new(SCHEMA).run("r")
    run.write_state("a", 0, writer="w")
    for _ in range(2):
        with run.transaction() as tx:
            tx.write_state("a", 1, writer="w")
            tx.write_state("b", 1, writer="t1")
            tx.write_state("list", [1], writer="w")
    assert [one.block for one in story(run)] == ["", "", "", *["first", "inside", "last"] * 2]
    assert [one.block for one in story(run, keys=["a", "b"], begin=4, end=6)] == ["first", "last"]
    assert [one.block for one in story(run, keys=["a"])] == ["", "", ""]


def test_turns_are_headings(open_new: Open) -> None:
    """A turn's first event carries its number; events without one do not end it before its last."""
    run = open_new(SCHEMA).run("r")
    run.append("turn.started", actor="w", turn=7)
    run.write_state("a", 1, writer="w", turn=7)
    run.read_state("a", reader="w")
    run.append("handoff.made", actor="w", turn=7, body={"to": "t1", "text": "yours"})
    run.write_state("b", 1, writer="t1", turn=8)
    told = list(story(run, begin="turn:7"))
    assert [one.heading for one in told] == ["turn 7", None, None, None, "turn 8"]
    assert [told[0].words, told[3].words, told[3].detail] == ["w began turn 7", "w handed over to t1", "yours"]
    assert [one.event.seq for one in story(run, begin="turn:8")] == [run.head_seq()]
    assert [one.event.kind for one in story(run, agents=["t1"])] == ["handoff.made", "state.written"]


def test_times_since_the_start_and_since_the_last(open_new: Open) -> None:
    """Each record says how long after the run's start, and after the record before it, it happened."""
    clock = Clock()
    run = open_new(SCHEMA, clock=clock).run("r")
    run.write_state("a", 1, writer="w")
    clock.now += 19 * 60_000_000
    run.write_state("a", 2, writer="w")
    clock.now += 5
    run.write_state("b", 2, writer="t1")
    told = list(story(run))[-2:]
    assert [one.since_start_us for one in told] == [19 * 60_000_000, 19 * 60_000_000 + 5]
    assert [one.gap_us for one in told] == [19 * 60_000_000 - 2, 5]
    assert [(one.since_start_us, one.gap_us) for one in story(run, keys=["b"])] == [(19 * 60_000_000 + 5, 0)]


def test_a_part_of_the_story(open_new: Open) -> None:
    """Moments bound it, both included; keys are found inside reads of many; sensitive records are marked."""
    run = open_new(SCHEMA).run("r")
    run.write_state("a", 1, writer="w")
    run.write_state("iban", "DE02", writer="w")
    run.read_many(["a", "iban"], reader="t1")
    run.store.flush()
    assert [one.event.seq for one in story(run, begin="a@1", end="iban@1")] == [3, 4]
    found: list[Told] = list(story(run, keys=["iban"]))
    assert [(one.event.seq, one.sensitive) for one in found] == [(4, True), (5, True)]
    assert not list(story(run, agents=["nobody"]))
    assert not [one for one in story(run, keys=["a"], end="a@1") if one.sensitive]


def test_a_fork_tells_its_past(open_new: Open) -> None:
    """The story of a fork begins with what it shares, and names the run it left."""
    run = open_new(SCHEMA).run("r")
    run.write_state("a", 1, writer="w")
    other = fork(run, "f", by="dana", note="try again")
    run.write_state("a", 2, writer="w")
    told = list(story(other))
    assert words(told) == ["w wrote a@1", "dana forked r at seq 3: f goes on from there"]
    assert told[-1].detail == "try again"


def test_erased_and_pruned_parts_say_so(open_new: Open) -> None:
    """An erased value has none to show, rolled-up reads are gone, and the story says who did either."""
    store = open_new(SCHEMA, strict_reads=True)
    run = store.run("r")
    run.write_state("a", "secret", writer="w", basis="secret")
    run.read_state("a", reader="t1")
    run.read_state("a", reader="t2")
    run.write_state("b", 1, writer="t1")
    erase(store, "r", key="a", version=1, by="dpo", reason="asked for")
    prune(run, before="end", by="ada")
    told = list(story(run))
    assert words(told) == [
        "w wrote a@1 (erased)",
        "t1 wrote b@1 for team",
        "dpo erased a@1, up to seq 6",
        "ada rolled up 2 reads, up to seq 5",
    ]
    assert (told[2].value, told[2].basis, told[4].detail) == (MISSING, None, "asked for")


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind])
@pytest.mark.parametrize(
    "body",
    ["{}", '{"to":5,"reads":[1,[2]],"keys":7,"message":[],"what":{},"reason":9}', '{"args":"' + "x" * 999 + '"}'],
)
def test_every_kind_has_words_whatever_its_body(kind: str, body: str) -> None:
    """Each kind of event is told in one line of bounded length, imported bodies of any form included."""
    cells: dict[str, Any] = dict.fromkeys(Row._fields)
    cells |= {"run": 1, "seq": 5, "kind": KINDS.index(kind), "actor": 1, "recorded_at": 0, "body": body.encode()}
    text, detail = WORDS.get(kind, plain)(Event("t", "r", Row(**cells), lambda number: number and "someone"))
    assert text
    assert "\n" not in text + (detail or "")
    assert len(detail or "") <= 300


@pytest.mark.parametrize("given", [5, None, "a@1", [5], [["a"]], [["a", "1"]], {"a": 1}])
def test_refs_of_a_program_may_have_any_form(open_new: Open, given: object) -> None:
    """What a program's own event has under `based_on` is told as grounds if it names versions, else left out."""
    run = open_new(SCHEMA).run("r")
    run.write_state("a", 1, writer="w")
    run.append("note.added", actor="w", refs={"based_on": given})
    run.append("note.added", actor="w", refs={"based_on": [["a", 1]]})
    *_, wrong, well = story(run)
    assert (wrong.based_on, well.based_on) == ([], [Ground("a", 1, 1)])


def test_a_bad_moment_is_an_error_at_once(open_new: Open) -> None:
    """A moment that is not there is told before anything else is."""
    run = open_new(SCHEMA).run("r")
    run.write_state("a", 1, writer="w")
    with pytest.raises(Exception, match="no turn 9"):
        story(run, begin="turn:9")
