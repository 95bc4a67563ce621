"""A transaction: several keys, several owners, all or none.

It holds no lock before its end, does not see its own writes, and names a key once.
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

from refold_store.errors import Refused, TransactionInvalid
from refold_store.names import check_turn
from refold_store.requests import Op, Request, Unit, Written, awaited
from refold_store.writing import DELETE, BasedOn, checked_op, request_of

if TYPE_CHECKING:
    from refold_store.run import Run


class Transaction:
    """Collects writes; commits them when the block ends without an exception. Then `written` lists the versions."""

    def __init__(self, run: Run, request_id: str | None, turn: int | None) -> None:
        self._run = run
        self._schema = run.schema()
        self._request_id = request_id
        self._turn = check_turn(turn)
        self._ops: dict[str, Op] = {}
        self._done = False
        self._refused: Refused | None = None
        self._unless_live = False
        self.written: list[Written] = []

    def write_state(
        self,
        key: str,
        value: object,
        *,
        writer: str,
        basis: str | None = None,
        expected_version: int | None = None,
        based_on: BasedOn | None = None,
    ) -> None:
        """Add a write. Owner and type are checked now, the rest when the transaction commits."""
        self._add(key, value, writer, basis, expected_version, based_on)

    def delete_state(
        self,
        key: str,
        *,
        writer: str,
        basis: str | None = None,
        expected_version: int | None = None,
        based_on: BasedOn | None = None,
    ) -> None:
        """Add a delete."""
        self._add(key, DELETE, writer, basis, expected_version, based_on)

    def _add(
        self,
        key: str,
        value: object,
        writer: str,
        basis: str | None,
        expected: int | None,
        based_on: BasedOn | None,
    ) -> None:
        if self._done:
            raise TransactionInvalid("this transaction has ended; begin a new one")
        if key in self._ops:
            raise TransactionInvalid(
                f"key {key!r} is already written in this transaction; a transaction names a key once"
            )
        try:
            op = checked_op(self._run, self._schema, key, value, writer, basis, expected, based_on)
        except Refused as error:
            self._refused = error
            raise
        if op.key.scope != "run" and self._run.scope == 0:
            raise TransactionInvalid(
                f"key {key!r} has scope {op.key.scope!r} and lives in another run; a transaction lies in one run"
            )
        self._ops[key] = op

    def _request(self) -> Request | None:
        if self._done:
            raise TransactionInvalid("this transaction has ended; begin a new one")
        self._done = True
        if self._refused is not None:
            raise TransactionInvalid(
                f"a write of this transaction was refused, so none is made: {self._refused}"
            ) from self._refused
        if not self._ops:
            return None
        ops = list(self._ops.values())
        request = request_of(self._run, self._schema, ops, self._request_id, self._turn, whole=True)
        if self._unless_live:
            for unit in request.items:
                assert isinstance(unit, Unit)
                unit.unless_live = True
        return request

    def __enter__(self) -> Transaction:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and (request := self._request()) is not None:
            self.written = self._run._committer.submit(request)[0]
        self._done = True

    async def __aenter__(self) -> Transaction:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and (request := self._request()) is not None:
            future = self._run._committer.submit_later(request)
            self.written = (await awaited(future))[0]
        self._done = True
