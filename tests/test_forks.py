"""Forks of runs: a shared past, an untouched original, the same answers as a run that was written alone."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from claims import ONTARIO, QUEBEC, ClaimState

from refold import NoSuchMoment, NoSuchRun, ReadOnlyStore, Run, Store, TransactionInvalid
from refold_replay.bundle_import import import_bundle
from refold_replay.exporting import export
from refold_replay.tracing import impact
from refold_replay.verify import verify
from refold_store.events import KIND_ID, chain, commit, header
from refold_store.forking import FORKS_MAX, fork, make_self_contained
from refold_store.heads import RunHead

OpenNew = Callable[..., Store]


@pytest.fixture
def run(open_new: OpenNew) -> Iterator[Run]:
    """A run with nine events: two keys, an accumulating key, a transaction, a read, a refusal."""
    store = open_new(ClaimState, strict_reads=True)
    run = store.run("clm-1")
    run.write_state("routing", QUEBEC, writer="triage_agent")  # seq 3, after run.opened and schema.declared
    run.write_state("reports", "one", writer="evidence_agent")
    run.read_state("routing", reader="liability_agent")
    with run.transaction() as tx:
        tx.write_state("reserve_cap", 9, writer="reserve_agent")
        tx.write_state("spent", 1, writer="billing")
    run.write_state("routing", ONTARIO, writer="triage_agent")
    run.write_state("reports", "two", writer="photo_agent")
    yield run
    assert verify(run.store).findings == []


def log(run: Run) -> list[tuple[Any, ...]]:
    """What a run's log says, digests included."""
    return [(e.seq, e.kind, e.actor, e.key, e.version, e.text, bytes(e.digest)) for e in run.events()]


def test_a_fork_shares_the_past_and_goes_on(run: Run) -> None:
    """State, versions, seqs, history and readers of a fork go on from the moment."""
    made = fork(run, "clm-1-b", at="routing@1", by="ada", note="what if Quebec had held")
    assert made.state().json() == run.at("routing@1").state().json()
    event = list(made.events())[-1]
    assert (event.seq, event.kind, event.actor) == (4, "run.forked", "ada")
    assert event.refs == {"at": 3, "parent": "clm-1", "run": "clm-1-b"}
    assert event.body == {"note": "what if Quebec had held"}
    written = made.write_state("routing", ONTARIO, writer="triage_agent", expected_version=1)
    assert (written.version, written.seq) == (2, 5)
    assert [read.version for read in made.history("routing")] == [1, 2]
    assert made.at("routing@1").seq == 3
    assert made.keys() == ["routing"]
    assert made.at("2.5h".replace("2.5h", "-1ms")).seq <= 5


def test_the_original_never_changes(run: Run) -> None:
    """Forking and writing in the fork leave the original's log and answers as they were."""
    before, state = log(run), run.state().json()
    made = fork(run, "b", at=5, by="ada")
    made.write_state("reports", "other", writer="evidence_agent")
    made.delete_state("routing", writer="triage_agent")
    assert log(run) == before
    assert run.state().json() == state
    assert made.state().json() == {"reports": ["one", "other"]}
    assert made.fold() == made.state().json()


@pytest.mark.parametrize("cold", [False, True])
def test_a_fork_answers_like_a_run_of_its_own(run: Run, open_new: OpenNew, cold: bool) -> None:
    """Every question about a fork gives what it gives after the fork was made self-contained."""
    made = fork(run, "b", at="end", by="ada")
    made.write_state("reports", "three", writer="evidence_agent")
    made.read_state("reports", reader="x")
    made.write_state("spent", 5, writer="billing")

    def answers(one: Run) -> list[Any]:
        head = one.head_seq()
        keys = one.keys()
        asked: list[Any] = [log(one), keys, one.fold(), one.state().json(), head]
        asked += [one.at(seq).state().json() for seq in range(1, head + 1)]
        asked += [[(r.version, r.seq, r.json) for r in one.history(key)] for key in keys]
        asked += [[(r.seq, r.version, r.stale) for r in one.readers(key)] for key in keys]
        asked += [one.at(f"reports@{version}").seq for version in (1, 2, 3)]
        return asked

    before = answers(made)
    copied = make_self_contained(run.store, "b")
    assert copied == 9
    assert make_self_contained(run.store, "b") == 0
    again = open_new(ClaimState).run("b") if cold else made
    assert answers(again) == before
    assert again.write_state("spent", 1, writer="billing").version == 3


def test_the_chain_goes_on_from_the_ancestor(run: Run) -> None:
    """The first digest of a fork is made from the ancestor's at the moment."""
    made = fork(run, "b", at=4, by="ada")
    shared, own = list(made.events())[-2:]
    top = header(
        own.seq, KIND_ID["run.forked"], "ada", None, None, None, None, None, None, own.recorded_at, own.clock, None,
        own.row.refs, None, None, None,
    )  # fmt: skip
    assert own.digest == chain(bytes(shared.digest), top, commit(bytes(own.row.salt or b""), own.text))


def test_a_fork_of_a_fork_that_reaches_back_hangs_on_the_first(run: Run) -> None:
    """A moment before the fork's own events is the ancestor's: the new fork goes on from there."""
    second = fork(fork(run, "b", at=5, by="ada"), "c", at=3, by="ada")
    assert second.info().forked_from == "clm-1"
    assert second.info().forked_at == 3


def test_deep_forks_are_copied(run: Run) -> None:
    """Behind the most ancestors a fork gets its own copy, with the same answers."""
    at = run
    for number in range(FORKS_MAX + 2):
        at = fork(at, f"f{number}", by="ada")
        at.write_state("reports", f"{number}", writer="evidence_agent")
    pieces = [len(run._backend.pieces(run.store.run(f"f{number}")._run_id() or 0)) for number in range(FORKS_MAX + 2)]
    assert pieces == [*range(2, FORKS_MAX + 2), 1, 2]
    assert at.state().json()["reports"] == ["one", "two", *map(str, range(FORKS_MAX + 2))]
    assert at.fold() == at.state().json()


def test_a_request_id_of_the_shared_past_is_known(open_new: OpenNew) -> None:
    """A request bound before the fork gives its first result in the fork, too; one bound later does not."""
    run = open_new(ClaimState).run("a")
    first = run.write_state("counter", 1, writer="counter", request_id="r1")
    made = fork(run, "b", by="ada")
    run.write_state("counter", 2, writer="counter", request_id="r2")
    assert made.write_state("counter", 1, writer="counter", request_id="r1").seq == first.seq
    assert made.write_state("counter", 3, writer="counter", request_id="r2").version == 2


def test_moments_that_are_no_place_to_fork(run: Run, open_new: OpenNew) -> None:
    """Inside a transaction, before the first event, an unknown run, a taken name, a read-only store: typed errors."""
    with pytest.raises(NoSuchMoment, match=r"inside the transaction of seq 6 to 7; fork at 5 or at 7"):
        fork(run, "b", at=6, by="ada")
    with pytest.raises(NoSuchMoment, match="before the first event"):
        fork(run, "b", at=0, by="ada")
    with pytest.raises(NoSuchRun):
        fork(run.store.run("nope"), "b", by="ada")
    fork(run, "b", at=7, by="ada")
    with pytest.raises(TransactionInvalid, match="exists already"):
        fork(run, "b", by="ada")
    with pytest.raises(ReadOnlyStore):
        fork(open_new(read_only=True).run("clm-1"), "c", by="ada")
    assert [info.name for info in run.store.runs()] == ["clm-1", "b"]


def test_a_fork_that_fails_leaves_nothing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run and its first event come together: when the event cannot be stored, there is no run."""
    monkeypatch.setattr(type(run._backend), "append", _refuse)
    with pytest.raises(OSError, match="no"):
        fork(run, "b", by="ada")
    monkeypatch.undo()
    assert [info.name for info in run.store.runs()] == ["clm-1"]
    assert fork(run, "b", by="ada").head_seq() == 10


def _refuse(*_args: object, **_options: object) -> None:
    raise OSError("no")


def test_a_fork_costs_the_same_statements(open_new: OpenNew, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fork of a long run asks the database as often, for as many rows, as one of a short run."""
    store = open_new(ClaimState)
    counts = []
    for name, events in (("short", 3), ("long", 300)):
        run = store.run(name)
        for number in range(events):
            run.write_state("counter", number, writer="counter")
        asked: list[int] = []
        plain = type(store._backend).query
        with monkeypatch.context() as patch:
            patch.setattr(
                type(store._backend), "query", lambda self, sql, args, a=asked, p=plain: _counted(a, p(self, sql, args))
            )
            fork(run, f"{name}-b", by="ada")
        counts.append((len(asked), sum(asked)))
    assert counts[0] == counts[1]


def _counted(asked: list[int], rows: list[Any]) -> list[Any]:
    asked.append(len(rows))
    return rows


def test_another_process_sees_a_fork(run: Run, open_new: OpenNew) -> None:
    """A process that held the name as unknown reads and writes the fork that another made."""
    other = open_new(ClaimState).run("b")
    assert other.head_seq() == 0
    assert other.peek("routing").absent
    fork(run, "b", at=4, by="ada")
    assert other.read_state("routing", reader="x").version == 1
    assert other.write_state("routing", ONTARIO, writer="triage_agent").seq == 7  # behind the read


def test_a_writer_that_lost_the_race_to_a_fork_goes_on_behind_it(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run forked by another process between a writer's look and its insert is no empty run."""
    store = run.store
    target = store.run("b")
    plain, raced = store._heads.load, []

    def load(head: RunHead) -> None:
        plain(head)
        if head.name == "b" and not raced:
            raced.append(os.getpid())
            from refold import open_store

            with open_store(store.url, ClaimState) as other:
                fork(other.run("clm-1"), "b", at=4, by="ada")

    monkeypatch.setattr(store._heads, "load", load)
    assert target.write_state("routing", ONTARIO, writer="triage_agent").version == 2
    assert [event.seq for event in target.events()] == [1, 2, 3, 4, 5, 6]


def test_the_command_forks(refold_cli: Callable[..., Any], claims_url: str) -> None:
    """`refold fork` says where the fork goes on, and `refold runs` shows it."""
    done = refold_cli("fork", "clm-77401", "clm-77401-quiet", "--at", "routing@1", "--as", "ada", "--store", claims_url)
    assert (done.exit_code, done.stdout) == (0, "clm-77401-quiet goes on from seq 4 of clm-77401\n")
    assert "clm-77401, seq 4" in refold_cli("runs", "--store", claims_url).stdout
    taken = refold_cli("fork", "clm-77401", "clm-77401-quiet", "--store", claims_url)
    assert taken.exit_code != 0
    assert "exists already" in taken.stderr


@pytest.mark.parametrize("copied", [False, True])
def test_a_fork_inside_a_copied_past(open_new: OpenNew, tmp_path: Path, copied: bool) -> None:
    """A fork from before a copy's own beginning knows under which name that past was made: verify, bundle, impact."""
    store = open_new(ClaimState)
    run = store.run("r")
    run.write_state("routing", QUEBEC, writer="triage_agent")  # 3
    run.write_state("note", 1, writer="triage_agent")  # 4
    first = fork(run, "f", by="ada")
    first.write_state("note", 2, writer="triage_agent")
    make_self_contained(store, "f")
    second = fork(first, "g", at=3, by="ada")
    second.read_state("routing", reader="late")
    second.write_state("note", 3, writer="triage_agent")
    third = fork(second, "h", at=3, by="ada")
    if copied:
        for name in ("g", "h"):
            assert make_self_contained(store, name)
    assert list(second.events())[3].refs["parent"] == "r"
    assert verify(store).findings == []
    assert "g" in {node.run for node in impact(run, "routing", 1).trace.nodes.values()}
    for one in (second, third):
        path = tmp_path / f"{one.name}.refold"
        export(one, path)
        assert import_bundle(store, path).outcome == "unchanged"
    assert third.state().json() == run.at(3).state().json()
