"""Turns across processes: an attempt that lost its turn cannot go on, numbers are dense, kill -9 leaves no trace."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from rawlog import ram_folder
from turn_cases import SCHEMA, Peer, brief, in_threads, refused, told

from refold import Conflict, Run, Store, open_store
from refold_replay.verify import verify
from refold_store.turn_errors import TurnFenced

Open = Callable[..., Store]
PROCESSES = 4


@pytest.fixture
def sqlite_url() -> Iterator[str]:
    """A file on a RAM disk: more happens at once."""
    with ram_folder() as folder:
        yield f"sqlite:///{folder / 'refold.db'}"


@pytest.fixture
def peers() -> Iterator[Callable[..., Peer]]:
    """`peers(job, url, argument)` starts a process; all are ended after the test."""
    begun: list[Peer] = []

    def start(job: str, url: str, argument: object = "") -> Peer:
        begun.append(Peer(job, url, argument))
        return begun[-1]

    yield start
    for peer in begun:
        if peer.process.returncode is None:
            peer.kill()


def together(peers: Callable[..., Peer], job: str, url: str, argument: object) -> list[Any]:
    """What some processes made of a job that they began together."""
    begun = [peers(job, url, argument) for _ in range(PROCESSES)]
    assert {peer.hear() for peer in begun} == {"ready"}
    for peer in begun:
        peer.process.stdin.write("\n")
        peer.process.stdin.flush()
    return [peer.hear() for peer in begun]


def test_a_lost_attempt_cannot_go_on(open_new: Open, store_url: str, peers: Callable[..., Peer]) -> None:
    """An attempt in another process that lost its turn cannot append, interrupt or commit; the newest one can."""
    peer = peers("drafts", store_url)
    number, attempt = peer.hear()
    run = open_new(SCHEMA).run("r")
    with run.turn("ann", number=number) as turn:
        assert (turn.attempt, attempt) == (2, 1)
        assert peer.go() == ["TurnFenced"] * 3
        turn.write_state("count", 1)
    assert run.state().json() == {"count": 1}
    assert run.interrupts() == {}
    assert [kind for kind, _ in brief(run) if kind.startswith("turn.")] == [
        "turn.started", "turn.rolled_back", "turn.started", "turn.committed",
    ]  # fmt: skip
    assert told(run, "turn.rolled_back")[0].body == {"reason": "abandoned"}
    assert not told(run, "note.added")
    assert verify(run.store).findings == []


def test_exactly_one_of_many_takes_a_turn_over(store_url: str, peers: Callable[..., Peer]) -> None:
    """Processes that all begin one turn again and commit it: it is committed once, whoever that was."""
    with open_store(store_url, SCHEMA) as store:
        store.run("r").turn("ann").begin()
    assert sum(together(peers, "races", store_url, 1)) == 1
    with open_store(store_url, SCHEMA) as store:
        run = store.run("r")
        assert brief(run, "turn.committed") == [("turn.committed", 1)]
        assert len(run.peek("log").json) == 1
        attempts = [event.refs["attempt"] for event in told(run, "turn.started")]
        assert attempts == list(range(1, len(attempts) + 1))
        assert verify(store).findings == []


def test_numbers_of_threads(open_new: Open) -> None:
    """8 threads take 12 turns each: the numbers are dense and nobody's twice."""
    run = open_new(SCHEMA).run("r")

    def work(_number: int) -> list[int]:
        made = []
        for _ in range(12):
            with run.turn("ann") as turn:
                turn.write_state("log", [turn.number])
            made.append(turn.number)
        return made

    made = [number for one in in_threads(work, 8) for number in one]
    assert sorted(made) == sorted(run.peek("log").json) == list(range(1, 97))
    assert verify(run.store).findings == []


def test_numbers_of_processes(store_url: str, peers: Callable[..., Peer]) -> None:
    """4 processes take 25 turns each: the same."""
    made = [number for one in together(peers, "numbers", store_url, 25) for number in one]
    with open_store(store_url, SCHEMA) as store:
        assert sorted(made) == sorted(store.run("r").peek("log").json) == list(range(1, 101))
        assert verify(store).findings == []


def test_increments_of_processes(store_url: str, peers: Callable[..., Peer]) -> None:
    """4 processes count up in turns that read and write: no count is lost, whatever conflicted."""
    made = [version for one in together(peers, "increments", store_url, 15) for version in one]
    with open_store(store_url, SCHEMA) as store:
        run = store.run("r")
        assert sorted(made) == list(range(1, 61))
        assert run.peek("count").json == 60
        assert [event.body["value"] for event in told(run, "state.written")] == list(range(1, 61))
        assert verify(store).findings == []


def test_a_killed_turn_leaves_nothing_of_its_draft(open_new: Open, store_url: str, peers: Callable[..., Peer]) -> None:
    """A process is killed in its turn: the same turn again is attempt 2, the first is recorded as abandoned.

    What it appended is there, what it drafted is nowhere.
    """
    open_new(SCHEMA).run("r").write_state("count", 1, writer="desk")
    peer = peers("drafts", store_url)
    number, _attempt = peer.hear()
    peer.kill()
    run = open_new(SCHEMA).run("r")
    with run.turn("ann", number=number) as turn:
        assert turn.attempt == 2
        assert turn.read_state("count").json == 1
        turn.write_state("count", 2)
    assert run.state().json() == run.fold() == {"count": 2}
    assert refused(run) == []
    assert [event.body for event in told(run, "turn.rolled_back")] == [{"reason": "abandoned"}]
    assert [event.body for event in told(run, "model.answered")] == [{"text": "99"}]
    assert verify(run.store).findings == []


def test_two_attempts_in_one_process(open_new: Open) -> None:
    """An attempt that is begun again in the same process is over at once."""
    run = open_new(SCHEMA).run("r")
    old = run.turn("ann").begin()
    old.write_state("count", 1)
    new = run.turn("ann", number=old.number).begin()
    for call in (old.commit, lambda: old.read_state("count"), lambda: old.write_state("count", 2)):
        with pytest.raises(TurnFenced):
            call()
    with pytest.raises(TurnFenced), old:
        pass
    new.commit()
    assert run.state().json() == {}


def test_a_fenced_child_does_not_hide_its_parents_end(open_new: Open) -> None:
    """A parent whose child's turn was taken over cannot commit, and is on the record as rolled back."""
    run = open_new(SCHEMA).run("r")
    other: Run = open_new(SCHEMA).run("r")
    turn = run.turn("ann").begin()
    with turn.child("bob") as child:
        child.write_state("count", 1)
    other.turn("bob", number=child.number).begin()
    with pytest.raises(TurnFenced):
        turn.commit()
    assert [(event.turn, event.body.get("error")) for event in told(run, "turn.rolled_back")] == [
        (2, None), (1, "TurnFenced"),
    ]  # fmt: skip
    assert verify(run.store).findings == []


def test_a_commit_that_seemed_to_fail(open_new: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit that was stored although its call failed stays committed; the rollback that follows finds that out."""
    run = open_new(SCHEMA).run("r")
    turn = run.turn("ann").begin()
    turn.write_state("count", 1)
    submit = run._committer.submit

    def lost(request: object) -> object:
        monkeypatch.undo()
        submit(request)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    monkeypatch.setattr(run._committer, "submit", lost)
    with pytest.raises(KeyboardInterrupt):
        turn.commit()
    assert turn._state == "committed"
    assert run.state().json() == {"count": 1}
    assert brief(run, "turn.committed", "turn.rolled_back") == [("turn.committed", 1)]


def test_numbers_follow_a_fork(open_new: Open) -> None:
    """A fork's turns go on from its ancestor's, whose open turns it may begin again; the original gains nothing."""
    from refold import fork

    store = open_new(SCHEMA)
    run = store.run("r")
    with run.turn("ann") as turn:
        turn.write_state("count", 1)
    left = run.turn("bob", live=True).begin()
    child = fork(run, "f", by="ann")
    with child.turn("ann") as turn:
        turn.write_state("count", 2)
    assert turn.number == 3
    child.set_state({"status": "free"}, writer="desk")  # a live turn of the original does not lock its fork
    with child.turn("bob", number=left.number) as again:
        again.write_state("count", 3)
    assert again.attempt == 2
    left.write_state("count", 4)
    left.commit()
    assert (run.state().json(), child.peek("count").json) == ({"count": 4}, 3)
    with run.turn("ann") as turn:
        turn.write_state("status", "on")
    assert turn.number == 3
    assert verify(store).findings == []


def test_a_conflict_between_processes_is_retried(open_new: Open) -> None:
    """`run_turn` begins anew from the committed state when another store got in between."""
    run, other = open_new(SCHEMA).run("r"), open_new(SCHEMA).run("r")
    run.write_state("count", 1, writer="ann")
    tries = []

    def work(turn: object) -> int:
        count = turn.read_state("count").json  # type: ignore[attr-defined]
        tries.append(count)
        if len(tries) < 3:
            other.write_state("count", count + 10, writer="bob")
        turn.write_state("count", count + 1)  # type: ignore[attr-defined]
        return count

    assert run.run_turn("ann", work, retries=2, pause=lambda _s: None) == 21
    assert tries == [1, 11, 21]
    assert run.peek("count").json == 22
    with pytest.raises(Conflict):
        tries.clear()
        run.run_turn("ann", work, retries=1, pause=lambda _s: None)
