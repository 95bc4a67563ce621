"""Branches of a run: what they begin with, who knows of whom, and opening them again after a crash."""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread

import pytest

from refold import Store, compile_schema
from refold_replay.verify import verify
from refold_store.branching import branches_of, open_branch, parent_of
from refold_store.errors import ReadOnlyStore, TransactionInvalid, UnknownKey
from refold_store.requests import Request

Open = Callable[..., Store]

SCHEMA = compile_schema(
    {
        "keys": {
            "notes": {"owner": "team", "type": "array", "reducer": "append"},
            "tags": {"owner": "team", "type": "array", "reducer": "union"},
            "spent": {"owner": "team", "type": "number", "reducer": "add"},
            "doc": {"owner": "team", "type": "object", "reducer": "deep_merge"},
            "best": {"owner": "team"},
            "why": {"owner": "team", "basis_required": True},
            "wide": {"owner": "team", "scope": "tenant"},
        },
        "groups": {"team": ["lead", "a", "b"]},
    }
)
VALUES = {"notes": ["n"], "tags": ["t", "u"], "spent": 2.5, "doc": {"x": {"y": 1}}, "best": None}


def test_a_branch_begins_with_nothing(open_new: Open) -> None:
    """P1: a branch has empty state; it sees no write of its parent or a sibling, and they see none of its."""
    run = open_new(SCHEMA).run("job")
    run.write_state("best", "parent", writer="lead")
    one, two = open_branch(run, "job/1", by="engine"), open_branch(run, "job/2", by="engine")
    assert dict(one.state()) == {}
    one.write_state("best", "one", writer="a")
    assert two.read_state("best", reader="b").absent
    assert run.read_state("best", reader="lead").json == "parent"
    assert verify(run.store).ok


@pytest.mark.parametrize("key", list(VALUES))
def test_shared_keys_are_copied(open_new: Open, key: str) -> None:
    """P1: a shared key begins as the parent's value, whatever its reducer, and says of which version it is a copy."""
    run = open_new(SCHEMA).run("job")
    run.write_state(key, VALUES[key], writer="lead")
    run.write_state(key, VALUES[key], writer="lead")
    branch = open_branch(run, "job/1", by="engine", keys_shared=[key, "why"])
    [written] = branch.events(("state.written",))
    assert branch.state().json() == {key: run.peek(key).json} == branch.fold()
    assert {"initial": True, "parent": "job", "version": 2}.items() <= written.refs.items()
    assert verify(run.store).ok


def test_what_is_copied_is_as_of_the_opening(open_new: Open) -> None:
    """P1: what the parent writes after `branch.opened` is not in the branch, also if its run is made later."""
    run = open_new(SCHEMA).run("job")
    run.write_state("notes", ["before"], writer="lead")
    submit, calls = run._committer.submit, 0

    def dying(request: Request) -> object:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise KeyboardInterrupt
        return submit(request)

    run._committer.submit = dying  # type: ignore[assignment]  # a process that ends between the two logs
    with pytest.raises(KeyboardInterrupt):
        open_branch(run, "job/1", by="engine", keys_shared=["notes"])
    run._committer.submit = submit  # type: ignore[method-assign]
    run.write_state("notes", ["after"], writer="lead")
    assert open_branch(run, "job/1", by="engine", keys_shared=["notes"]).state().json() == {"notes": ["before"]}
    assert len(list(run.events(("branch.opened",)))) == 1


def test_both_logs_know_of_each_other(open_new: Open) -> None:
    """P6: the parent's log names the branch before it works, the branch's first events name the parent."""
    store = open_new(SCHEMA)
    run = store.run("job")
    run.write_state("best", 1, writer="lead")
    branch = open_branch(run, "job/1", by="engine", refs={"step": "s"})
    [opened] = run.events(("branch.opened",))
    assert opened.refs == {"branch": "job/1", "base": 3, "shared": [], "step": "s"}
    assert [event.kind for event in branch.events()] == ["run.opened", "schema.declared", "branch.opened"]
    assert parent_of(branch) == "job"
    assert parent_of(run) is None
    assert branches_of(run)["job/1"].seq == opened.seq
    with open_new(SCHEMA).run("job").store as again:
        assert open_branch(again.run("job"), "job/1", by="engine").head_seq() == 3
        assert len(list(again.run("job").events(("branch.opened",)))) == 1


def test_a_branch_of_a_run_that_is_not_open(open_new: Open) -> None:
    """A run that begins with branches is opened by them."""
    run = open_new(SCHEMA).run("job")
    assert open_branch(run, "job/1", by="engine", keys_shared=["notes"]).head_seq() == 3
    assert run.head_seq() == 3


def test_a_name_that_is_taken(open_new: Open) -> None:
    """A run that is no branch of this one is never taken for one."""
    store = open_new(SCHEMA)
    run, other = store.run("job"), store.run("other")
    for one in (run, other, store.run("job/1")):
        one.write_state("best", 1, writer="lead")
    with pytest.raises(TransactionInvalid, match="no branch of 'job'"):
        open_branch(run, "job/1", by="engine")
    open_branch(run, "job/2", by="engine")
    with pytest.raises(TransactionInvalid, match="no branch of 'other'"):
        open_branch(other, "job/2", by="engine")
    assert not list(other.events(("branch.opened",)))
    other.append("branch.opened", actor="engine", refs={"branch": "job/2", "base": 3, "shared": []})
    with pytest.raises(TransactionInvalid, match="no branch of 'other'"):
        open_branch(other, "job/2", by="engine")


def test_tenants_branches_do_not_meet(open_new: Open) -> None:
    """A branch belongs to its parent's tenant."""
    store = open_new(SCHEMA)
    one, two = (open_branch(store.run("job", tenant), "job/1", by="engine") for tenant in ("t", "u"))
    one.write_state("best", "t", writer="a")
    assert two.read_state("best", reader="b").absent


def test_what_has_no_branches(open_new: Open) -> None:
    """A read-only store, the run of a scope, an unknown shared key: each is told; keys of a scope are left alone."""
    store = open_new(SCHEMA)
    run = store.run("job")
    run.write_state("wide", 1, writer="lead")
    run.write_state("best", 1, writer="lead")
    with pytest.raises(UnknownKey):
        open_branch(run, "job/1", by="engine", keys_shared=["nothing"])
    assert dict(open_branch(run, "job/1", by="engine", keys_shared=["wide"]).state()) == {}
    with pytest.raises(TransactionInvalid, match="scope"):
        open_branch(run._home(SCHEMA.key("wide")), "x", by="engine")
    with pytest.raises(ReadOnlyStore):
        open_branch(open_new(SCHEMA, read_only=True).run("job"), "job/2", by="engine")


def test_fifty_branches_in_threads(open_new: Open) -> None:
    """P1: fifty branches written by threads at once hold each its own writes, and no other's."""
    run = open_new(SCHEMA).run("job")
    made = [open_branch(run, f"job/{number}", by="engine") for number in range(50)]

    def work(number: int) -> None:
        for value in range(5):
            made[number].write_state("notes", [f"{number}.{value}"], writer="a")

    threads = [Thread(target=work, args=(number,)) for number in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, branch in enumerate(made):
        assert branch.state().json() == {"notes": [f"{number}.{value}" for value in range(5)]}
    assert run.head_seq() == 52
    assert verify(run.store).ok
