"""Merging branches: by reducer, in declared order, with provenance, and naming whatever is replaced."""

from __future__ import annotations

import random
from collections.abc import Callable
from threading import Thread
from typing import Any

import pytest

from refold import Run, Store, compile_schema
from refold_replay.tracing import impact, why
from refold_replay.verify import verify
from refold_store.branching import Merged, merge, merged_in, open_branch
from refold_store.erasing import erase
from refold_store.errors import Conflict, InvariantBroken, NotOwner, ReadOnlyStore, TransactionInvalid
from refold_store.mergeplan import MergePlan

Open = Callable[..., Store]
KEYS: dict[str, Any] = {
    "notes": {"owner": "team", "type": "array", "reducer": "append"},
    "tags": {"owner": "team", "type": "array", "reducer": "union"},
    "spent": {"owner": "team", "type": "number", "reducer": "add"},
    "flat": {"owner": "team", "type": "object", "reducer": "merge"},
    "doc": {"owner": "team", "type": "object", "reducer": "deep_merge"},
    "parts": {"owner": "team", "type": "object", "reducer": {"by_key": {"log": "append", "top": "last"}}},
    "best": {"owner": "team"},
    "low": {"owner": "team", "type": "number"},
    "high": {"owner": "team", "type": "number"},
    "why": {"owner": "team", "basis_required": True},
}
SCHEMA = compile_schema(
    {"keys": KEYS, "groups": {"team": ["lead", "a", "b", "c"]}, "invariants": {"band": "low <= high"}}
)


def branch(run: Run, number: int, *writes: tuple[str, Any], shared: tuple[str, ...] = (), writer: str = "a") -> Run:
    """A branch in which these keys were written in turn."""
    made = open_branch(run, f"{run.name}/{number}", by="engine", keys_shared=shared)
    for key, value in writes:
        made.write_state(key, value, writer=writer)
    return made


def job(store: Store, **values: Any) -> Run:
    """A run that holds these values."""
    run = store.run("job")
    for key, value in values.items():
        run.write_state(key, value, writer="lead")
    return run


def test_each_key_by_its_reducer(open_new: Open) -> None:
    """P2: only changed keys come back, each by its reducer, on what the parent holds now."""
    run = job(open_new(SCHEMA), notes=["p"], spent=1, tags=["p"], flat={"p": 1}, doc={"d": {"p": 1}}, low=1)
    one = branch(run, 1, ("notes", ["x"]), ("spent", 2), ("tags", ["x"]), ("flat", {"x": 1}), ("doc", {"d": {"x": 1}}))
    two = branch(run, 2, ("parts", {"log": [1]}), ("parts", {"log": [2], "top": 1}), ("notes", ["y", "z"]))
    merge(run, [one, two], by="engine")
    assert run.state().json() == {
        "notes": ["p", "x", "y", "z"], "spent": 3, "tags": ["p", "x"], "flat": {"p": 1, "x": 1},
        "doc": {"d": {"p": 1, "x": 1}}, "parts": {"log": [1, 2], "top": 1}, "low": 1,
    }  # fmt: skip
    assert run.fold() == run.state().json()
    assert run.peek("low").version == 1
    assert verify(run.store).ok


def test_updates_are_writes_of_their_own(open_new: Open) -> None:
    """P2: every update that accumulates is a version with its writer; of other keys the last value is one."""
    run = job(open_new(SCHEMA))
    one = branch(run, 1, ("notes", [1]), ("best", 1), ("notes", [2]), ("best", 2), writer="b")
    merge(run, [one], by="engine")
    found = [(event.key, event.version, event.actor, event.refs["version"]) for event in run.events(("state.written",))]
    assert found == [("notes", 1, "b", 1), ("notes", 2, "b", 2), ("best", 1, "b", 2)]


def test_provenance(open_new: Open) -> None:
    """P2: a merged version names branch and version; the whole merge is one transaction that branch.merged closes."""
    run = job(open_new(SCHEMA))
    one = open_branch(run, "job/1", by="engine")
    one.write_state("why", 1, writer="c", basis="said so")
    done = merge(run, [one], by="engine")
    *_, written, closing = run.events()
    assert (written.refs["branch"], written.refs["version"], written.refs["based_on"]) == ("job/1", 1, [])
    assert (written.body["basis"], written.actor, written.owner) == ("said so", "c", "team")
    assert written.txn == closing.txn == written.seq
    assert (closing.kind, closing.seq, closing.refs["branches"]) == ("branch.merged", done.seq, ["job/1"])
    assert closing.body["branches"] == [{"run": "job/1", "upto": one.head_seq(), "writes": 1}]


def test_no_finishing_order_shows(open_new: Open, store_url: str) -> None:
    """P2: 200 shuffled orders in which the branches work and finish give one result, the same events to the byte."""
    store, found = open_new(SCHEMA), set()
    for seed in range(200 if store_url.startswith("sqlite") else 40):
        run = store.run("job", f"tenant {seed}")
        run.write_state("notes", ["p"], writer="lead")
        made = [open_branch(run, f"job/{number}", by="engine", keys_shared=["notes"]) for number in range(3)]
        left = [["notes", "best", "doc"] for _branch in made]
        chance = random.Random(seed)
        while working := [number for number in range(3) if left[number]]:
            number = chance.choice(working)
            key = left[number].pop()
            value = {"notes": [number], "best": number, "doc": {"at": number, f"k{number}": 1}}[key]
            made[number].write_state(key, value, writer="abc"[number % 3])
        merge(run, made, by="engine")
        found.add(str([(e.kind, e.actor, e.txn, e.key, e.version, e.row.refs, e.text) for e in run.events()]))
    assert len(found) == 1


def test_threads_that_finish_in_any_order(open_new: Open) -> None:
    """P2: real threads write their branches at once; the parent's log is the same to the byte each time."""
    run = job(open_new(SCHEMA))
    made = [open_branch(run, f"job/{number}", by="engine") for number in range(8)]

    def work(number: int) -> None:
        for value in range(10):
            made[number].write_state("notes", [[number, value]], writer="a")
        made[number].write_state("best", number, writer="b")

    threads = [Thread(target=work, args=(number,)) for number in random.sample(range(8), 8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    merge(run, made, by="engine")
    assert run.state().json() == {"notes": [[n, v] for n in range(8) for v in range(10)], "best": 7}


OVERLAPS = [
    ("best", 1, 2, ["$"]),
    ("best", 1, 1, None),
    ("notes", [1], [2], None),
    ("tags", [1], [1, 2], None),
    ("spent", 1, 2, None),
    ("flat", {"x": 1, "y": 1}, {"x": 2}, ["$.x"]),
    ("flat", {"x": 1}, {"y": 2}, None),
    ("flat", {"x": 1}, {"x": 1, "y": 2}, None),
    ("doc", {"d": {"x": 1, "y": 1}}, {"d": {"x": 2, "z": 1}}, ["$.d.x"]),
    ("parts", {"log": [1]}, {"log": [2]}, None),
    ("parts", {"log": [1], "top": 1}, {"top": 2}, ["$.top"]),
]


@pytest.mark.parametrize(("key", "first", "second", "paths"), OVERLAPS)
def test_conflicts(open_new: Open, key: str, first: Any, second: Any, paths: list[str] | None) -> None:
    """P2: where two branches replace the same, the later declared wins and the merge names key, paths and branches."""
    run = job(open_new(SCHEMA))
    one, two = branch(run, 1, (key, first)), branch(run, 2, (key, second), writer="b")
    done = merge(run, [two, one], by="engine")
    names = ["job/2", "job/1"]
    expected = [] if paths is None else [{"key": key, "paths": paths, "branches": names, "kept": "job/1"}]
    [closing] = run.events(("branch.merged",))
    assert list(done.conflicts) == closing.body["conflicts"] == expected
    if key == "best":
        assert run.peek(key).json == first


@pytest.mark.parametrize(("key", "first", "second", "paths"), OVERLAPS)
def test_what_the_parent_wrote_meanwhile(
    open_new: Open, key: str, first: Any, second: Any, paths: list[str] | None
) -> None:
    """P3: what the parent wrote after the branch was opened is named if it is replaced, and stays where it adds up."""
    run = job(open_new(SCHEMA), **{key: first})
    one = branch(run, 1, (key, second))
    run.write_state(key, first, writer="lead")
    done = merge(run, [one], by="engine")
    told = {"key": key, "version": 2, "writer": "lead", "paths": paths, "branch": "job/1"}
    assert list(done.overwrote) == ([] if paths is None else [told])
    assert len(run.history(key)) == 3
    if key == "notes":
        assert run.peek(key).json == [1, 1, 2]


def test_meanwhile_begins_with_each_branch(open_new: Open) -> None:
    """P3: what the parent wrote before a branch was opened is no loss of that branch's, whatever its siblings began."""
    run = job(open_new(SCHEMA))
    one = branch(run, 1, ("notes", [1]), ("low", 1))
    run.write_state("best", "between", writer="lead")
    run.write_state("low", 0, writer="lead")
    done = merge(run, [one, branch(run, 2, ("best", 2))], by="engine")
    assert [told["key"] for told in done.overwrote] == ["low"]


def test_somebody_writes_just_then(open_new: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """P3: a write between the look and the merge is seen: the merge is made anew and names it."""
    run = job(open_new(SCHEMA), best=0)
    one = branch(run, 1, ("best", 1), ("notes", [1]))
    made, times = MergePlan.__init__, 0

    def late(self: MergePlan, *args: Any) -> None:
        nonlocal times
        made(self, *args)
        times += 1
        if times < 3:
            run.write_state("best", f"late {times}", writer="lead")
            run.write_state("notes", [f"late {times}"], writer="lead")

    monkeypatch.setattr(MergePlan, "__init__", late)
    done = merge(run, [one], by="engine")
    assert [one["version"] for one in done.overwrote] == [2, 3]
    assert run.state().json() == {"best": 1, "notes": ["late 1", "late 2", 1]}
    assert verify(run.store).ok


def test_a_merge_that_loses_always_says_so(open_new: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """P3: a merge that is overtaken every time gives up with the conflict; nothing is half merged."""
    run = job(open_new(SCHEMA), best=0)
    one = branch(run, 1, ("best", 1), ("notes", [1]))
    made = MergePlan.__init__

    def late(self: MergePlan, *args: Any) -> None:
        made(self, *args)
        run.write_state("best", 0, writer="lead")

    monkeypatch.setattr(MergePlan, "__init__", late)
    with pytest.raises(Conflict):
        merge(run, [one], by="engine")
    assert "notes" not in run.state()
    assert not merged_in(run)


def test_lineage_names_where_it_goes_on(open_new: Open) -> None:
    """L6: impact and why name the branch or the parent in which a version goes on, with its key and version there."""
    run = job(open_new(SCHEMA), best="p", notes=["p"])
    one = branch(run, 1, ("notes", ["x"]), ("best", "x"), shared=("notes",))
    merge(run, [one], by="engine")
    assert "merged from branch 'job/1', where it is best@1" in why(run, "best").notes[-1]
    assert "copy of notes@1 of 'job'" in why(one, "notes", 1).notes[-1]
    assert "'job/1'" in impact(run, "notes", 1).notes[-1]
    assert "merged into 'job' as notes@2" in impact(one, "notes", 2).notes[-1]
    assert impact(run, "best", 1).notes == []
    assert why(run, "best").writes == 0


def test_a_second_merge_does_nothing(open_new: Open) -> None:
    """P6: branches are merged once, also by a process that does not know of it; what is left is merged."""
    run = job(open_new(SCHEMA))
    one, two = branch(run, 1, ("notes", [1])), branch(run, 2, ("notes", [2]))
    first = merge(run, [one], by="engine")
    head = run.head_seq()
    again = merge(open_new(SCHEMA).run("job"), ["job/1"], by="engine")
    assert (again.seq, again.again, first.again, run.head_seq()) == (first.seq, True, False, head)
    merge(run, [one, two], by="engine")
    assert run.state().json() == {"notes": [1, 2]}
    [_, closing] = run.events(("branch.merged",))
    assert closing.refs["branches"] == ["job/2"]


def test_two_processes_merge_at_once(open_new: Open) -> None:
    """P6: of two that merge the same branches at the same moment, one does."""
    run = job(open_new(SCHEMA))
    made = [branch(run, number, ("notes", [number]), ("spent", 1)) for number in range(3)]
    done: list[Merged] = []
    stores = [open_new(SCHEMA) for _ in range(4)]
    threads = [
        Thread(target=lambda s=store: done.append(merge(s.run("job"), [one.name for one in made], by="engine")))
        for store in stores
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({one.seq for one in done}) == 1
    assert run.state().json() == {"notes": [0, 1, 2], "spent": 3}
    assert verify(run.store).ok


def test_initial_values_are_not_merged(open_new: Open) -> None:
    """P1: what was copied into a branch is not counted twice; its own updates are, on what the parent holds now."""
    run = job(open_new(SCHEMA), notes=["p"], spent=5, best="p")
    one = branch(run, 1, ("notes", ["x"]), ("spent", 1), shared=("notes", "spent", "best"))
    assert one.state().json() == {"notes": ["p", "x"], "spent": 6, "best": "p"}
    run.write_state("notes", ["q"], writer="lead")
    merge(run, [one], by="engine")
    assert run.state().json() == {"notes": ["p", "q", "x"], "spent": 6, "best": "p"}
    assert run.peek("best").version == 1


def test_deletes(open_new: Open) -> None:
    """P3: a delete comes back where the branch was given the value; what it made itself it may take back alone."""
    run = job(open_new(SCHEMA), notes=["p"], best="p", spent=1)
    one = branch(run, 1, ("notes", ["x"]), ("spent", 2), ("best", "x"), shared=("spent",))
    for key in ("notes", "spent", "best"):
        one.delete_state(key, writer="a")
    one.write_state("notes", ["y"], writer="a")
    run.write_state("spent", 7, writer="lead")
    done = merge(run, [one], by="engine")
    assert run.state().json() == {"notes": ["p", "y"], "best": "p"}
    assert [(told["key"], told["version"]) for told in done.overwrote] == [("spent", 2)]
    assert verify(run.store).ok


def test_rules_across_keys_hold_at_the_end(open_new: Open) -> None:
    """P2: a merge is validated like any write: an invariant is judged on its end, and refuses all of it."""
    run = job(open_new(SCHEMA))
    one = branch(run, 1, ("low", 5), ("notes", [1]))
    two, three = branch(run, 2, ("high", 1)), branch(run, 3, ("high", 9))
    with pytest.raises(InvariantBroken):
        merge(run, [one, two], by="engine")
    assert dict(run.state()) == {}
    merge(run, [one, two, three], by="engine")
    assert run.state().json() == {"low": 5, "high": 9, "notes": [1]}
    assert verify(run.store).ok


def test_a_writer_that_may_not_write_here(open_new: Open) -> None:
    """P2: an owner that changed since then is respected: the merge is refused, on record, and nothing is written."""
    run = job(open_new(SCHEMA))
    one = branch(run, 1, ("notes", [1]), ("best", 1))
    left = compile_schema({"keys": {**KEYS, "best": {"owner": "lead"}}, "groups": {"team": ["lead", "a", "b", "c"]}})
    later = open_new(left)
    with pytest.raises(NotOwner):
        merge(later.run("job"), [one.name], by="engine")
    assert dict(later.run("job").state()) == {}
    [refused] = later.run("job").events(("state.refused",))
    assert (refused.actor, refused.key) == ("a", "best")


def test_branches_that_wrote_nothing(open_new: Open) -> None:
    """A merge of nothing is on the record, too, and done once."""
    run = job(open_new(SCHEMA), best=1)
    made = [branch(run, number) for number in range(2)]
    first = merge(run, made, by="engine", body={"result": "none"}, refs={"step": "s"})
    assert (first.written, merge(run, made, by="engine").seq) == ((), first.seq)
    [closing] = run.events(("branch.merged",))
    assert (closing.refs["step"], closing.body["result"], closing.txn) == ("s", "none", None)


def test_what_is_no_merge(open_new: Open) -> None:
    """No branches, one twice, a run that is none, a read-only store: each is told and nothing is written."""
    store = open_new(SCHEMA)
    run = job(store, best=1)
    one = branch(run, 1, ("best", 2))
    job(store).store.run("other").write_state("best", 1, writer="lead")
    for names in ([], [one, one], ["other"]):
        with pytest.raises(TransactionInvalid):
            merge(run, names, by="engine")
    with pytest.raises(ReadOnlyStore):
        merge(open_new(SCHEMA, read_only=True).run("job"), [one.name], by="engine")
    assert run.peek("best").version == 1


def test_erased_values_stay_away(open_new: Open) -> None:
    """What was erased in a branch does not come back through its merge."""
    run = job(open_new(SCHEMA))
    one = branch(run, 1, ("notes", ["secret"]), ("notes", ["x"]), ("best", "secret"))
    erase(run.store, one.name, key="notes", version=1, by="ann", reason="asked to")
    merge(run, [one], by="engine")
    assert run.state().json() == {"notes": ["x"], "best": "secret"}
