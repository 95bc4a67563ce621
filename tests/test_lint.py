"""Lint: what each code finds and what it leaves alone, on each backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from refold import ConfigError, NoSuchRun, Run, Store
from refold_replay import lint as linting
from refold_replay.lint import CODES, Lint, lint
from refold_store.forking import fork
from refold_store.pruning import prune

OpenNew = Callable[..., Store]

KEYS: dict[str, Any] = {
    "keys": {
        **{name: {"owner": "team", "type": "any"} for name in ("fact", "plan", "offer", *(f"k{n}" for n in range(9)))},
        "order/{id}": {"owner": "team", "type": "any"},
        "log": {"owner": "team", "type": "array", "reducer": "append"},
        "rate": {"owner": "team", "type": "any", "scope": "tenant"},
        "tax": {"owner": "team", "type": "any", "scope": "tenant"},
    },
    "groups": {"team": ["ann", "bob", "cid"]},
}


@pytest.fixture
def run(open_new: OpenNew) -> Run:
    """A run three agents share; a read is on the record as soon as it is made."""
    return open_new(KEYS, strict_reads=True).run("r")


def write(run: Run, agent: str, key: str, **options: Any) -> int:
    """A write; its seq."""
    return run.write_state(key, options.pop("value", 1), writer=agent, **options).seq


def read(run: Run, agent: str, key: str) -> int:
    """A read; its seq."""
    run.read_state(key, reader=agent)
    return run.head_seq()


def only(run: Run, code: str, **options: Any) -> list[Lint]:
    """The findings of one code."""
    return lint(run, only=[code], **options)


def test_one_reader(run: Run) -> None:
    """A key only one agent reads is a handoff field, with every read; a second reader ends that."""
    write(run, "ann", "fact")
    seqs = [read(run, "bob", "fact"), read(run, "bob", "fact")]
    assert only(run, "one-reader") == [
        Lint("one-reader", "r", "fact", "bob", "only bob reads fact: a handoff field", seqs)
    ]
    read(run, "cid", "fact")
    assert only(run, "one-reader") == []


def test_own_key_is_not_shared(run: Run) -> None:
    """A key that its only writer reads alone is told as not shared."""
    write(run, "ann", "fact")
    read(run, "ann", "fact")
    assert only(run, "one-reader")[0].message == "only ann reads fact, and only ann writes it: it is not shared"


def test_never_read(run: Run) -> None:
    """A key that was written and never read, with its writes; one that a write states to rest on was read."""
    seqs = [write(run, "ann", "fact"), write(run, "bob", "fact")]
    write(run, "ann", "plan")
    write(run, "bob", "offer", based_on=[("plan", 1)])
    read(run, "cid", "offer")
    assert only(run, "never-read") == [
        Lint("never-read", "r", "fact", None, "fact was written 2 times by ann, bob and never read", seqs)
    ]
    assert only(run, "unread-write") == []


def test_a_family_is_one_field(run: Run) -> None:
    """Members of a family are judged together: one finding, and a second reader of any member ends it."""
    seqs = [write(run, "ann", f"order/{number}") for number in (1, 2)]
    message = "order/{id} (2 keys) was written 2 times by ann and never read"
    assert lint(run) == [Lint("never-read", "r", "order/{id}", None, message, seqs)]
    read(run, "bob", "order/1")
    message = "only bob reads order/{id} (2 keys): a handoff field"
    assert lint(run) == [Lint("one-reader", "r", "order/{id}", "bob", message, [run.head_seq()])]
    read(run, "cid", "order/2")
    assert lint(run) == []


def test_reads_too_much(run: Run) -> None:
    """An agent that reads more keys than it may, each counted once; the bound can be moved."""
    write(run, "cid", "fact")
    seqs = [read(run, "ann", f"k{n}") for n in range(8)]
    read(run, "ann", "k0")
    for n in range(7):
        read(run, "bob", f"k{n}")
    assert only(run, "reads-too-much") == [
        Lint("reads-too-much", "r", None, "ann", "ann reads 8 keys, more than 7", seqs)
    ]
    assert [one.agent for one in only(run, "reads-too-much", keys_max=6)] == ["ann", "bob"]
    assert only(run, "reads-too-much", keys_max=8) == []


def test_keys_of_another_scope_count_among_those_read(run: Run) -> None:
    """Of a tenant's key only its read counts: others may read it elsewhere."""
    write(run, "ann", "rate")
    write(run, "ann", "plan", based_on=[("rate", 1)])
    read(run, "bob", "rate")
    read(run, "bob", "tax")
    assert [(one.code, one.key) for one in lint(run, keys_max=0)] == [("never-read", "plan"), ("reads-too-much", None)]


def test_unread_write(run: Run) -> None:
    """Versions replaced before anybody read them are told; the newest and those that were read are not."""
    lost = write(run, "ann", "fact")
    write(run, "ann", "fact")
    read(run, "bob", "fact")
    write(run, "ann", "fact")
    message = "1 of 3 versions of fact was replaced before anybody read them"
    assert only(run, "unread-write") == [Lint("unread-write", "r", "fact", None, message, [lost])]


def test_what_builds_on_the_version_before_loses_nothing(run: Run) -> None:
    """A reducer that makes the next version from the one before has kept it; a delete needs no reader."""
    for _ in range(3):
        write(run, "ann", "log", value=["x"])
    write(run, "ann", "fact")
    read(run, "bob", "fact")
    run.delete_state("fact", writer="ann")
    write(run, "ann", "fact")
    read(run, "bob", "log")
    assert only(run, "unread-write") == []


def test_a_stated_version_was_seen(run: Run) -> None:
    """A version that a write states to rest on counts as read, though its actor is on record with an older one only."""
    write(run, "ann", "fact")
    read(run, "bob", "fact")
    write(run, "ann", "fact")
    write(run, "bob", "plan", based_on=[("fact", 2)])
    write(run, "ann", "fact")
    assert only(run, "unread-write") == []


def test_read_before_write(run: Run) -> None:
    """Reads of an absent key, with their readers and whether it came later; reads after that do not count."""
    write(run, "ann", "offer")
    seqs = [read(run, "bob", "fact"), read(run, "cid", "fact")]
    written = write(run, "ann", "fact")
    read(run, "bob", "fact")
    never = read(run, "bob", "plan")
    assert only(run, "read-before-write") == [
        Lint(
            "read-before-write", "r", "fact", None,
            f"bob, cid read fact when it was absent: it was first written at seq {written}", seqs,
        ),
        Lint("read-before-write", "r", "plan", "bob", "bob read plan when it was absent: nobody wrote it", [never]),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "kind"),
    [({}, "direct"), ({"turn": 4}, "carried"), ({"based_on": [("fact", 1)]}, "stated")],
)
def test_superseded(run: Run, options: dict[str, Any], kind: str) -> None:
    """A write on a version that another agent had replaced, with the kind of its ground; as many as there are."""
    write(run, "ann", "fact")
    read(run, "bob", "fact")
    write(run, "cid", "fact")
    seqs = [write(run, "bob", "plan", **options)]
    message = f"bob wrote plan@1 on fact@1 ({kind}), after cid had written fact@2"
    assert only(run, "superseded") == [Lint("superseded", "r", "plan", "bob", message, seqs)]
    seqs.append(write(run, "bob", "plan", **options))
    assert only(run, "superseded") == [Lint("superseded", "r", "plan", "bob", f"{message}; 1 more like it", seqs)]


@pytest.mark.parametrize("options", [{}, {"based_on": [("k0", 1), ("fact", 1), ("k1", 1)]}])
def test_superseded_by_several(run: Run, options: dict[str, Any]) -> None:
    """A write on several replaced versions is one finding that counts the others."""
    for key in ("fact", "k0", "k1", "k2"):
        write(run, "ann", key)
        read(run, "bob", key)
    for key in ("fact", "k0", "k1", "fact"):
        write(run, "cid", key)
    write(run, "bob", "plan", **options)
    (found,) = only(run, "superseded")
    old, kind, new = ("k0@1", "stated", "k0@2") if options else ("fact@1", "direct", "fact@3")
    assert found.message == (
        f"bob wrote plan@1 on {old} ({kind}), after cid had written {new}, and on 2 more replaced versions"
    )


def test_versions_of_the_same_transaction_do_not_supersede(run: Run) -> None:
    """What a transaction replaces together with the write was not there before it."""
    write(run, "ann", "fact")
    read(run, "bob", "fact")
    with run.transaction() as unit:
        unit.write_state("fact", 2, writer="cid")
        unit.write_state("plan", 1, writer="bob")
        unit.write_state("offer", 1, writer="bob", based_on=[("fact", 1)])
    assert only(run, "superseded") == []
    write(run, "bob", "plan")
    assert len(only(run, "superseded")) == 1


def test_superseded_absence(run: Run) -> None:
    """A write on a key's absence that had ended is one, too."""
    write(run, "ann", "offer")
    read(run, "bob", "fact")
    write(run, "ann", "fact")
    write(run, "bob", "plan")
    assert only(run, "superseded")[0].message == (
        "bob wrote plan@1 on the absence of fact (direct), after ann had written fact@1"
    )


def test_not_superseded(run: Run) -> None:
    """A version read again, one its own reader replaced, and one replaced after the write are no findings."""
    write(run, "ann", "fact")
    read(run, "bob", "fact")
    write(run, "bob", "plan")
    write(run, "ann", "fact")
    read(run, "bob", "fact")
    write(run, "bob", "plan")
    write(run, "bob", "fact")
    write(run, "bob", "offer")
    write(run, "bob", "offer", based_on=[("fact", 2)])
    assert only(run, "superseded") == []


def test_a_read_that_lands_late_was_of_the_old_version(run: Run) -> None:
    """The read event stands after the newer version, and yet the reader acted on the older one."""
    at = write(run, "ann", "fact")
    write(run, "cid", "fact")
    run.at(at).read_state("fact", reader="bob")
    write(run, "bob", "plan")
    assert [one.key for one in only(run, "superseded")] == ["plan"]


def test_a_fork_is_judged_with_its_past(run: Run) -> None:
    """What a fork inherits counts as its own; what it does then counts for it only."""
    write(run, "ann", "fact")
    made = fork(run, "f", by="ann")
    assert [one.run for one in only(made, "never-read")] == ["f"]
    read(made, "bob", "fact")
    assert only(made, "never-read") == []
    assert [one.key for one in only(run, "never-read")] == ["fact"]


def test_pruned_reads_count(run: Run) -> None:
    """Rolled-up reads give the same findings, but for the places of reads."""
    write(run, "ann", "fact")
    first = read(run, "bob", "fact")
    read(run, "bob", "fact")
    read(run, "bob", "offer")
    write(run, "cid", "fact")
    write(run, "bob", "plan")
    before = [(one.code, one.key, one.agent) for one in lint(run)]
    prune(run, before="end", by="ops")
    assert not list(run.events(["state.read"]))
    assert [(one.code, one.key, one.agent) for one in lint(run)] == before
    assert only(run, "one-reader")[0].seqs == [first]
    assert {code for code, _key, _agent in before} == {"one-reader", "never-read", "read-before-write", "superseded"}


def test_what_was_stated_once_is_no_ground_of_the_next_write(run: Run) -> None:
    """A version stated without a read counts for the write that states it: a later write does not rest on it."""
    write(run, "ann", "fact")
    write(run, "bob", "plan", based_on=["fact@1"])
    write(run, "ann", "fact")
    write(run, "bob", "offer")
    assert only(run, "superseded") == []
    read(run, "bob", "fact")
    write(run, "ann", "fact")
    late = write(run, "bob", "offer")
    assert [one.seqs for one in only(run, "superseded")] == [[late]]


def test_what_can_be_asked(run: Run) -> None:
    """Codes come in their order; an unknown one and a run that is not there are errors; names may be anything."""
    write(run, "ann", "fact")
    read(run, "cid", "plan")
    found = [one.code for one in lint(run)]
    assert found == sorted(found, key=CODES.index) == ["never-read", "read-before-write"]
    with pytest.raises(ConfigError, match="no lint code 'no-such': there are one-reader"):
        lint(run, only=["no-such"])
    with pytest.raises(NoSuchRun):
        lint(run.store.run("absent"))


def test_long_lists_are_cut(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    """A message names a few agents and says how many more there are."""
    monkeypatch.setattr(linting, "NAMED", 2)
    for agent in ("ann", "bob", "cid"):
        write(run, agent, "fact")
    assert only(run, "never-read")[0].message == "fact was written 3 times by ann, bob and 1 more and never read"
