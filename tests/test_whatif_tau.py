"""What-if on recorded runs against a naive re-fold: nothing without a change, and each write left out in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from refold_naively import Change, Laws, differences, end, lines_of

from refold import Run, open_store
from refold_replay.importing import import_files
from refold_replay.whatif import whatif

Data = Callable[[str], Path]
LAWS = Laws(refusals=False)
"""Imported keys are under `last`, each line was accepted, and a refusal keeps no update."""


def _load(url: str, shared_data: Data) -> None:
    tau, burr = shared_data("tau-retail/dev"), shared_data("burr/dev")
    assert import_files(url, [tau / "events.jsonl.gz"], seed=tau / "seed.jsonl.gz").ok
    assert import_files(url, [burr / "events.jsonl.gz"]).ok


def _runs(url: str) -> Iterator[Run]:
    with open_store(url, read_only=True) as store:
        for info in store.runs():
            yield store.run(info.name, info.tenant)


def _compare(run: Run) -> tuple[int, int]:
    """Leave out each write in turn. Returns how many there were, and how often a refusal could not be judged."""
    lines = lines_of(run)
    writes = [line.seq for line in lines if line.kind in ("state.written", "state.deleted")]
    refusals = 0
    for seq in writes:
        found = whatif(run, skip=[seq])
        told = {(one.seq, one.what) for one in found.differences if one.what != "cannot be judged"}
        assert told == differences(lines, LAWS, Change({seq})), f"{run.name}, skip {seq}"
        assert {one.key for one in found.final} == end(lines, LAWS, Change({seq}))
        unjudged = [one for one in found.differences if one.what == "cannot be judged"]
        assert all(one.kind == "state.refused" and one.message for one in unjudged)
        refusals += len(unjudged)
    return len(writes), refusals


def test_recorded_runs(store_url: str, shared_data: Data) -> None:
    """Without a change nothing differs in any recorded run; leaving out each write changes what rests on it."""
    _load(store_url, shared_data)
    seen = [whatif(run) for run in _runs(store_url)]
    assert len(seen) == 45
    assert not any(seen)
    counts = [_compare(run) for run in _runs(store_url)]
    assert sum(writes for writes, _refusals in counts) == 328
    assert any(refusals for _writes, refusals in counts)
