"""The lock of the shared live state: who may call `set_state`, from the scheduling of a live turn to its end."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from turn_cases import SCHEMA, Client, Peer, told

from refold import InvalidValue, Run, Store
from refold_store.live import Live
from refold_store.turn_errors import InterruptsOpen, StateLocked
from refold_store.turns import Turn
from refold_store.watching import Watch

Open = Callable[..., Store]


class Stop(Exception):
    """Ends a turn."""


@pytest.fixture
def run(open_new: Open) -> Run:
    return open_new(SCHEMA).run("r")


@pytest.fixture
def client(run: Run) -> Client:
    """An observer of a run that holds count 0."""
    run.write_state("count", 0, writer="desk")
    client = Client()
    run.watch(client)
    return client


def locked(run: Run) -> bool:
    """Whether `set_state` is refused just now."""
    try:
        run.set_state({"status": "set"}, writer="desk")
    except StateLocked:
        return True
    return False


def test_set_state_is_locked_from_scheduling_to_settlement(run: Run, client: Client) -> None:
    """T3: before and after it works; in the debounce, in each attempt, in the backoff, and in an observer it raises."""
    found: dict[str, bool] = {"before": locked(run)}
    run.watch(lambda change: found.update(observer=locked(run)) if change.draft else None)

    def work(turn: Turn) -> str:
        found[f"attempt {turn.attempt}"] = locked(run)
        turn.write_state("count", turn.attempt)
        if turn.attempt == 1:
            raise Stop
        return "done"

    future = run.schedule("ann", work, debounce_s=0.1, retries=1, backoff_s=0.2)
    found["debounce"] = locked(run)
    while "attempt 1" not in found:
        time.sleep(0.01)
    time.sleep(0.05)
    found["backoff"] = locked(run)
    assert future.result(10) == "done"
    found["after"] = locked(run)
    assert found == {
        "before": False, "debounce": True, "attempt 1": True, "observer": True, "backoff": True, "attempt 2": True,
        "after": False,
    }  # fmt: skip
    assert run.state().json() == client.document == {"count": 2, "status": "set"}


def test_other_processes_are_locked_by_the_log(open_new: Open, store_url: str) -> None:
    """T3: another process is refused in the debounce, in an attempt and between two, and let in before and after."""
    run = open_new(SCHEMA).run("r")
    run.write_state("count", 0, writer="ann")
    peer, tries = Peer("sets", store_url), []
    assert [peer.hear(), peer.go()] == ["ready", ["set", None]]

    def work(turn: Turn) -> None:
        tries.append(peer.go())
        if turn.attempt == 1:
            raise Stop

    run.run_turn("ann", work, retries=1, live=True, pause=lambda _s: tries.append(peer.go()))
    assert tries == [["locked", 1]] * 3
    assert peer.go() == ["set", None]
    future = run.schedule("ann", lambda turn: None, debounce_s=0.5)
    assert peer.go() == ["locked", 2]
    future.result(10)
    with pytest.raises(Stop):
        run.run_turn("ann", lambda turn: (_ for _ in ()).throw(Stop()), live=True)
    assert peer.go() == ["set", None]
    peer.end()


def test_a_lock_whose_process_was_killed(open_new: Open, store_url: str) -> None:
    """A live turn lost with its process stays locked; the error says how to end it, and that works."""
    peer = Peer("drafts", store_url, "live")
    number, _attempt = peer.hear()
    peer.kill()
    run = open_new(SCHEMA).run("r")
    with pytest.raises(StateLocked, match=f"number={number}"):
        run.set_state({"status": "set"}, writer="desk")
    run.turn("ann", number=number).begin().roll_back("given up")
    run.set_state({"status": "set"}, writer="desk")
    assert run.state().json() == {"status": "set"}


def test_a_tool_may_set_the_state(run: Run) -> None:
    """T3: while a local tool runs, setting is allowed; the continuation locks again."""
    with run.turn("ann", live=True) as turn:
        with pytest.raises(StateLocked) as failed:
            run.set_state({"status": "set"}, writer="desk")
        assert (failed.value.agent, failed.value.turn) == ("ann", 1)  # known without a look at the log
        with turn.unlocked():
            assert not locked(run)
        assert locked(run)
        assert turn.read_state("status").json == "set"
    assert not locked(run)


def test_an_invalid_value_keeps_the_old_one(run: Run, client: Client) -> None:
    """T3: `set_state` sets all or nothing; what it set is told."""
    run.set_state({"count": 4, "log": ["a"]}, writer="desk", basis="asked")
    with pytest.raises(InvalidValue):
        run.set_state({"count": 5, "status": 1}, writer="desk")
    assert run.state().json() == client.document == {"count": 4, "log": ["a"]}


def test_plain_turns_lock_nothing(run: Run) -> None:
    """A turn that is not live leaves `set_state` alone."""
    with run.turn("ann"):
        assert not locked(run)


def test_a_scheduled_turn_that_is_cancelled(run: Run) -> None:
    """A future cancelled in the debounce: the turn is rolled back as cancelled, and the lock is gone."""
    future = run.schedule("ann", lambda turn: 1, debounce_s=0.2)
    assert future.cancel()
    assert locked(run)
    deadline = time.monotonic() + 10
    while locked(run) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert [event.body for event in told(run, "turn.rolled_back")] == [{"reason": "cancelled"}]
    assert not locked(run)


def test_a_turn_that_cannot_be_scheduled(run: Run) -> None:
    """A turn that may not begin raises when it is scheduled, and locks nothing."""
    with run.turn("ann") as turn:
        turn.interrupt([{"id": "ok?"}])
    with pytest.raises(InterruptsOpen):
        run.schedule("ann", lambda turn: 1)
    assert not locked(run)


def test_live_objects(run: Run) -> None:
    """A run has one live state in a process, whoever asks; a closed watch is forgotten."""
    assert run.live() is run.store.run("r").live()
    assert isinstance(run.live(), Live)
    with run.watch() as watch:
        assert isinstance(watch, Watch)
        assert run.live()._watches == [watch]
    assert run.live()._watches == []
    assert run.live().document() == {}
