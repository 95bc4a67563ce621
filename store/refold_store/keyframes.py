"""What follows a stored change: its key's head moves on, and a key whose updates outweigh its last keyframe gets one.

Rules of this module
- Keyframes stand outside the log. Nothing here may fail a write that is stored.
"""

from __future__ import annotations

from refold_store import jsontext
from refold_store.backend import Backend, Frame
from refold_store.errors import RefoldError
from refold_store.heads import VALUE_MAX, RunHead, fold_from_frame
from refold_store.plan import FRAME_MIN, Change
from refold_store.schema import Schema

Changes = list[tuple[RunHead, Change]]


def advance(change: Change, seq: int, schema: Schema) -> None:
    """Move the key's head to the draft that was just sealed at `seq`."""
    at, op = change.at, change.op
    at.version += 1
    at.seq = seq
    at.absent = op.prepared is None
    at.writer = op.writer
    if change.update_bytes:
        at.since_bytes += change.update_bytes
    elif at.since_bytes > 0:
        at.frame_bytes, at.since_bytes = 0, -1
    at.text = None if op.key.reducer.name == "last" and not schema.invariants else change.text


def settle(backend: Backend, changes: Changes) -> None:
    """Keyframes, and large values dropped from memory, once the rows are stored."""
    for head, change in changes:
        at = change.at
        if at.text is not None and len(at.text) > VALUE_MAX:
            at.text = None
        if change.update_bytes:
            try:
                _add_frame(backend, head, change)
            except RefoldError:
                at.since_bytes = -1  # counted anew with the next update, which tries again


def _add_frame(backend: Backend, head: RunHead, change: Change) -> None:
    """Write a keyframe if the key's updates now outweigh its last one."""
    at, name = change.at, change.op.name
    if at.since_bytes <= max(at.frame_bytes, FRAME_MIN):
        return
    assert head.id is not None
    key_id = backend.ids[name]
    value = fold_from_frame(backend, head.id, key_id, change.op.key, at.seq, writer=True)
    text = jsontext.encode(value)
    backend.put_frame(head.id, key_id, Frame(at.seq, at.version, text))
    at.frame_bytes, at.since_bytes = len(text), 0
