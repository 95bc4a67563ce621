"""What a request id is bound to: the same payload again gets the first result, another is refused."""

from __future__ import annotations

from refold_store import jsontext
from refold_store.backend import MAX_SEQ, Backend
from refold_store.errors import RequestReused
from refold_store.events import Row
from refold_store.heads import RunHead
from refold_store.requests import Unit, Written


def earlier(backend: Backend, head: RunHead, unit: Unit) -> list[Written] | None:
    """What an accepted request of this id made, or None if the id is new."""
    if head.id is None:
        return None
    sql = backend.sql
    found = backend.spanning_rows(sql.request, head.id, (unit.request_id,), writer=True)
    if not found:
        return None
    first = Row(*found[0])
    if jsontext.decode((first.refs or "{}").encode()).get("request") != unit.payload:
        op = unit.ops[0]
        raise RequestReused(request_id=unit.request_id or "", seq=first.seq, key=op.name, writer=op.writer)
    last = first.seq
    if first.txn is not None:
        last = backend.writer_query(sql.txn_end, (first.run, first.txn, MAX_SEQ))[0][0]
    return [
        Written(backend.text_of(row.key, writer=True) or "", row.version or 0, row.seq, head.name)
        for row in (Row(*row) for row in backend.writer_query(sql.events, (first.run, first.seq - 1, last)))
    ]
