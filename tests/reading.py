"""Read events of any form for tests: of an old version, late, in a turn."""

from __future__ import annotations

import json

from refold import Run
from refold_store.events import READ, Draft
from refold_store.requests import Request


def record_read(
    run: Run, reader: str, key: str, version: int, *, seen_seq: int, turn: int | None = None, scope: str | None = None
) -> None:
    """Append a read event as it is given."""
    refs = None if scope is None else json.dumps({"scope": scope}, separators=(",", ":"))
    draft = Draft(READ, reader, None, key, version, seen_seq, turn=turn, refs=refs)
    run._committer.submit(Request(run._head, run.schema(), (draft,)))
