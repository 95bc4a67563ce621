"""What the tests of erasing, pruning and archiving share: a log walked by hand, a second process's view."""

from __future__ import annotations

from pathlib import Path

import psycopg

from refold import Run
from refold_replay.verify import verify
from refold_store.events import KINDS, chain, commit, genesis, header


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1_700_000_000_000_000

    def __call__(self) -> int:
        self.now += 1
        return self.now


def walk(run: Run) -> list[str]:
    """What is wrong with a log: digests, and gaps or missing bodies that no event of the same log explains.

    First as walked here by hand, then as `verify` finds it in the whole store.
    """
    events = list(run.events())
    wrong = []
    ranges = [one for event in events if event.kind == "reads.pruned" for one in event.body["ranges"]]
    ended = {first: (last, bytes.fromhex(digest)) for first, last, _before, digest in ranges}
    said = [(e.seq, e.refs["until"], e.key, e.version) for e in events if e.kind == "value.erased"]
    named = [event.refs["parent"] for event in events if event.kind == "run.forked"]
    before, digest = 0, genesis(run.tenant, (named or [run.name])[0], run.scope)
    for event in events:
        row = event.row
        while before + 1 in ended and before + 1 != event.seq:
            before, digest = ended[before + 1]
        if event.seq != before + 1:
            wrong.append(f"{before + 1} to {event.seq - 1} are missing")
        top = header(
            event.seq, row.kind, event.actor, event.owner, event.txn, event.turn, event.key, event.version,
            event.seen_seq, event.recorded_at, event.clock, event.request_id, row.refs, event.trace_id, event.span_id,
            event.trace_flags,
        )  # fmt: skip
        held = commit(bytes(row.salt or b""), row.body) if row.commitment is None else bytes(row.commitment)
        if chain(digest, top, held) != bytes(event.digest):
            wrong.append(f"{event.seq}: digest")
        if row.commitment is not None and not any(
            at > event.seq and until >= event.seq and key in (None, event.key) and version in (None, event.version)
            for at, until, key, version in said
        ):
            wrong.append(f"{event.seq}: erased, and nothing says so")
        before, digest = event.seq, bytes(event.digest)
    assert all(event.kind in KINDS for event in events)
    return wrong + [str(finding) for finding in verify(run.store).findings]


def holds(url: str, secret: bytes) -> list[str]:
    """The files of a store in which some bytes stand. On PostgreSQL: those of its tables, after a checkpoint."""
    if url.startswith("sqlite:///"):
        path = Path(url.removeprefix("sqlite:///"))
        files = [path, path.with_name(path.name + "-wal")]
    else:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("CHECKPOINT")
            found = connection.execute(
                "SELECT current_setting('data_directory'), oid FROM pg_database WHERE datname = current_database()"
            ).fetchone()
        assert found is not None
        files = [file for file in (Path(found[0]) / "base" / str(found[1])).iterdir() if file.is_file()]
    return [file.name for file in files if file.exists() and secret in file.read_bytes()]
