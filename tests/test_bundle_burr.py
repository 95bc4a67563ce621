"""Every recorded Burr run goes over to the other backend and back in a bundle, with equal states and digests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from bundles import by_hand, facts

from refold import open_store, verify
from refold_replay.bundle_import import import_bundle
from refold_replay.checking import check
from refold_replay.exporting import export
from refold_replay.importing import import_files


def test_burr_runs_move(sqlite_url: str, pg_url: str, shared_data: Callable[[str], Path], tmp_path: Path) -> None:
    """From SQLite to PostgreSQL and from PostgreSQL to SQLite: the answers beside the runs hold for what arrives."""
    folder = shared_data("burr/dev")
    back_url = f"sqlite:///{tmp_path / 'back.db'}"
    assert import_files(sqlite_url, [folder / "events.jsonl.gz"]).ok
    with open_store(sqlite_url) as first, open_store(pg_url) as second, open_store(back_url) as third:
        names = [info.name for info in first.runs()]
        assert names
        for number, name in enumerate(names):
            over, back = tmp_path / f"{number}.refold", tmp_path / f"{number}-back.refold"
            export(first.run(name), over)
            assert import_bundle(second, over).outcome == "imported"
            export(second.run(name), back)
            assert import_bundle(third, back).outcome == "imported"
            assert back.read_bytes() == over.read_bytes()
            assert facts(first.run(name))[:3] == facts(second.run(name))[:3] == facts(third.run(name))[:3]
        assert by_hand(tmp_path / "0.refold").returncode == 0
        for store in (second, third):
            assert verify(store).findings == []
            report = check(store, folder / "answers.jsonl")
            assert report.counts["states"] == (89, 89)
