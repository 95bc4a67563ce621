"""What a run offers about turns: beginning them, trying them again, watching, interrupts and their answers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

from refold_store.errors import ReadOnlyStore
from refold_store.events import TURN_RESUMED
from refold_store.names import check_name
from refold_store.requests import Request, Resume, Written
from refold_store.turn_errors import TurnInvalid

if TYPE_CHECKING:
    from refold_store.live import Live
    from refold_store.run import Run
    from refold_store.turnheads import Asked
    from refold_store.turns import Turn
    from refold_store.watching import Change, Watch

Result = TypeVar("Result")
RETRIES_MAX = 100
"""Attempts beyond the first: whoever wants more has another problem."""
BACKOFF_MAX_S = 60.0
"""Longest pause between two attempts."""
_MAKING = threading.Lock()


class Turning:
    """The turn part of a run."""

    @property
    def _run(self) -> Run:
        return self  # type: ignore[return-value]  # there is no other kind

    def turn(
        self, agent: str, *, number: int | None = None, live: bool = False, body: Mapping[str, Any] | None = None
    ) -> Turn:
        """One go of `agent`, in a `with` block: its reads are recorded with its number, its writes commit together.

        `number` begins a turn again whose attempt failed or was lost; the older attempt cannot commit any more. `live`
        locks `set_state` while it is open. `body` goes into the event that begins it. Raises InterruptsOpen, TurnEnded,
        TurnUnknown when it begins.
        """
        return _turns()[0](self._run, agent, number=number, live=live, body=body)

    def run_turn(
        self,
        agent: str,
        function: Callable[[Turn], Result],
        *,
        retries: int = 0,
        backoff_s: float = 0.5,
        number: int | None = None,
        live: bool = False,
        pause: Callable[[float], object] | None = None,
    ) -> Result:
        """Call `function` with a turn; if it raises, roll back and try again, each time from the committed state.

        Pauses double from `backoff_s` seconds. Raises what the last attempt raised.
        """
        release = self.live().hold(agent) if live else None
        try:
            turn = self.turn(agent, number=number, live=live)
            return self._tried(turn, function, retries, backoff_s, pause or _pause)
        finally:
            if release is not None:
                release()

    def _tried(
        self,
        turn: Turn,
        function: Callable[[Turn], Result],
        retries: int,
        backoff_s: float,
        pause: Callable[[float], object],
    ) -> Result:
        """Attempts of one turn until one commits, or none is left. The first may have begun."""
        most = min(retries, RETRIES_MAX)
        for retry in range(most + 1):
            turn._again = retry < most
            try:
                with turn:
                    result = function(turn)
                return result
            except TurnInvalid:
                raise
            except Exception:
                if retry >= most or not turn.number:
                    raise
            pause(min(backoff_s * 2**retry, BACKOFF_MAX_S))
            turn = self.turn(turn.agent, number=turn.number, live=turn._is_live)
        raise AssertionError("the last attempt returns or raises")

    def schedule(
        self,
        agent: str,
        function: Callable[[Turn], Result],
        *,
        debounce_s: float = 0.0,
        retries: int = 0,
        backoff_s: float = 0.5,
    ) -> Future[Result]:
        """`run_turn` of a live turn in a thread of its own, after `debounce_s` seconds.

        The turn begins now, so `set_state` is locked at once, in every process; a turn that cannot begin raises here.
        Cancelling the future before the time is up rolls the turn back.
        """
        future: Future[Result] = Future()
        release = self.live().hold(agent)
        try:
            turn = self.turn(agent, live=True).begin()
        except BaseException:
            release()
            raise

        def call() -> None:
            _pause(debounce_s)
            if not future.set_running_or_notify_cancel():
                turn.roll_back("cancelled")
                release()
                return
            try:
                result = self._tried(turn, function, retries, backoff_s, _pause)
            except BaseException as error:
                release()
                future.set_exception(error)
            else:
                release()
                future.set_result(result)

        threading.Thread(target=call, name="refold-turn", daemon=True).start()
        return future

    def live(self) -> Live:
        """The run's shared live state in this process."""
        found: Live | None = self._run._head.live
        if found is None:
            with _MAKING:
                found = self._run._head.live
                if found is None:
                    found = self._run._head.live = _turns()[1](self._run)
        return found

    def watch(self, callback: Callable[[Change], None] | None = None) -> Watch:
        """Follow the live state: a snapshot, then every change, drafts included, each with its base version."""
        return self.live().watch(callback)

    def set_state(self, values: Mapping[str, object], *, writer: str, basis: str | None = None) -> list[Written]:
        """Write keys from outside a turn, all or none. Raises StateLocked while a live turn is scheduled or open."""
        return self.live().set_state(values, writer=writer, basis=basis)

    def interrupts(self) -> dict[str, Asked]:
        """The interrupts that wait for an answer, by id."""
        from refold_store.turnheads import read_interrupts  # as in _turns

        run_id = self._run._run_id()
        return {} if run_id is None else read_interrupts(self._run._backend, run_id)

    def resume(self, answers: Mapping[str, Any], *, by: str) -> None:
        """Answer all open interrupts by id. The same answers again do nothing.

        Raises InterruptInvalid before anything happens if one is missing, unknown, answered or expired.
        """
        self._run._committer.submit(self._resuming(dict(answers), by))

    def dismiss(self, *, by: str) -> None:
        """End all open interrupts without answers, for instance because one has expired."""
        self._run._committer.submit(self._resuming(None, by))

    def _resuming(self, answers: dict[str, Any] | None, by: str) -> Request:
        if self._run.store.read_only:
            raise ReadOnlyStore("the store was opened read-only; open it without read_only=True to resume a run")
        item = Resume(TURN_RESUMED, check_name("actor", by), trace=self._run.store._trace(), answers=answers)
        return Request(self._run._head, self._run.schema(), (item,))


def _pause(seconds: float) -> None:
    threading.Event().wait(seconds)


def _turns() -> tuple[type[Turn], type[Live]]:
    """What turns are made of. It loads with the first one, so that a lookup does not pay for it."""
    from refold_store.live import Live
    from refold_store.turns import Turn

    return Turn, Live
