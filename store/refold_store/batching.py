"""How requests share a transaction, and which names they bring. Pure."""

from __future__ import annotations

from refold_store.events import Draft
from refold_store.requests import Request, Unit


def groups_of(requests: list[Request]) -> list[tuple[list[Request], bool]]:
    """Calm runs together; a contended run, and a request of many items, in a transaction of its own."""
    if len(requests) == 1:
        return [(requests, requests[0].head.contended > 0)]
    calm: list[Request] = []
    alone: list[tuple[list[Request], bool]] = []
    contended: dict[int, list[Request]] = {}
    for request in requests:
        if request.head.contended:
            contended.setdefault(id(request.head), []).append(request)
        elif len(request.items) > 1:
            alone.append(([request], False))
        else:
            calm.append(request)
    calm.sort(key=lambda request: request.head.id or 0)
    return ([(calm, False)] if calm else []) + alone + [(group, True) for group in contended.values()]


def repeats(request: Request, seen: set[tuple[int, str]]) -> bool:
    """Whether a request id of this request is already in the transaction being built."""
    for item in request.items:
        if isinstance(item, Unit) and item.request_id is not None:
            mark = (id(request.head), item.request_id)
            if mark in seen:
                return True
            seen.add(mark)
    return False


def names_of(request: Request) -> list[str]:
    """Every name that a request's events will need."""
    names = [request.opener] if request.opener is not None else []
    for item in (*request.items, *request.opening, *request.carried):
        if isinstance(item, Unit):
            for op in item.ops:
                names += (op.writer, op.name, op.key.owner)
            for draft in item.tail:
                names += _names(draft)
        else:
            names += _names(item)
    return names


def _names(draft: Draft) -> list[str]:
    return [name for name in (draft.actor, draft.owner, draft.key) if name is not None]


def known(draft: Draft, ids: dict[str, int]) -> bool:
    """Whether every name of a draft is interned."""
    return (
        (draft.actor is None or draft.actor in ids)
        and (draft.owner is None or draft.owner in ids)
        and (draft.key is None or draft.key in ids)
    )
