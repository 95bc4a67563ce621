"""The public suite `agent-memory-integrity`: each of its nine edits, on writes and on reads, is reported.

An edit is made behind refold's back. The audit is `refold verify` with an anchor that was taken after the last genuine
event and is kept outside the store, as the suite allows: its attacker holds the store and nothing else.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import pytest
from agmi.adapters.base import MemoryAdapter, Record
from agmi.check import LABELS
from agmi.check import run as run_suite
from forge import Cells, Forge, forging

from refold import open_store
from refold_replay.anchoring import Anchor, anchor
from refold_replay.verify import verify
from refold_store.events import READ, WRITTEN

SCHEMA = {"keys": {"memory": {"owner": "writer", "type": "string"}}}
MINE, OTHER = "mine", "other"


class Adapter(MemoryAdapter):
    """A run's events of one kind as the suite's records; a second run is its second context."""

    detection_point = "audit"
    supports_replay = supports_metadata = supports_snapshot = True
    kind: int
    content: tuple[str, ...]
    """Columns that say what an event says."""
    label: str
    """A column that says who or when, beside the content."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.anchor: Anchor | None = None
        self.verify_detail = None

    # --- the store by its own interface --------------------------------------------------------

    def setup(self) -> None:
        """Empty the store; its tables stay."""
        with open_store(self.url, SCHEMA):
            pass
        with forging(self.url) as forge:
            for table in ("keyframes", "events", "runs", "names"):
                forge.run(f"DELETE FROM {table}")

    def teardown(self) -> None:
        """Nothing is left open."""

    def seed(self, n: int) -> None:
        self._go_on(MINE, n)

    def seed_other(self, n: int) -> None:
        self._go_on(OTHER, n)

    def append_genuine(self) -> None:
        self._go_on(MINE, 1)

    def _go_on(self, name: str, n: int) -> None:
        with open_store(self.url, SCHEMA, strict_reads=True) as store:
            run = store.run(name)
            for number in range(n):
                self.step(run, f"{name} {run.head_seq()} {number}")
            self.anchor = anchor(store)

    @abstractmethod
    def step(self, run: Any, text: str) -> None:
        """Add one record."""

    def reload(self) -> None:
        """Every verification opens the store anew."""

    def verify(self) -> bool:
        report = verify(self.url, anchor=self.anchor)
        self.verify_detail = str(report.findings[0]) if report.findings else None
        return report.ok

    # --- the store behind its back -------------------------------------------------------------

    def _number(self, forge: Forge, name: str) -> int:
        [(number,)] = forge.run("SELECT id FROM runs WHERE name = ?", name)
        return int(number)

    def _records(self, name: str) -> list[Record]:
        with forging(self.url) as forge:
            rows = forge.rows(self._number(forge, name))
        return [Record(row["seq"], row) for row in rows if row["kind"] == self.kind]

    def read_all_raw(self) -> list[Record]:
        return self._records(MINE)

    def read_other_raw(self) -> list[Record]:
        return self._records(OTHER)

    def write_raw(self, record: Record) -> None:
        with forging(self.url) as forge:
            run = self._number(forge, MINE)
            forge.remove(record.seq, run)
            forge.add({**record.fields, "run": run, "seq": record.seq})

    def delete_raw(self, seq: int) -> None:
        with forging(self.url) as forge:
            forge.remove(seq, self._number(forge, MINE))

    def replay_onto(self, victim_seq: int, donor: Record) -> None:
        self.write_raw(Record(victim_seq, dict(donor.fields)))

    def read_meta(self, seq: int) -> dict[str, Any]:
        [row] = [record.fields for record in self.read_all_raw() if record.seq == seq]
        return {self.label: row[self.label]}

    def write_meta(self, seq: int, meta: dict[str, Any]) -> None:
        assert meta.pop("agmi_meta_tampered")
        [record] = [record for record in self.read_all_raw() if record.seq == seq]
        record.fields[self.label] = self.relabelled(meta[self.label])
        self.write_raw(record)

    def snapshot_store(self) -> object:
        with forging(self.url) as forge:
            return forge.rows(self._number(forge, MINE))

    def restore_store(self, token: Any) -> None:
        with forging(self.url) as forge:
            forge.put(token, self._number(forge, MINE))

    # --- what the suite compares ---------------------------------------------------------------

    def identity_of(self, record: Record) -> str:
        return f"{record.fields['run']}:{record.seq}"

    def owner_of(self, record: Record) -> str | None:
        return str(record.fields["run"])

    def payload_of(self, record: Record) -> str:
        return repr([record.fields[column] for column in self.content])

    @abstractmethod
    def changed(self, row: Cells) -> None:
        """Make a row say something else."""

    def relabelled(self, value: int) -> int:
        """Another value for the label, one that could be true."""
        return value + 1

    def mutate_payload(self, record: Record) -> Record:
        self.changed(record.fields)
        return record


class Writes(Adapter):
    """What agents wrote."""

    name = "refold writes"
    kind, content, label = WRITTEN, ("body",), "actor"

    def step(self, run: Any, text: str) -> None:
        run.write_state("memory", text, writer="writer")

    def relabelled(self, value: int) -> int:
        with forging(self.url) as forge:
            return forge.name("somebody else")

    def changed(self, row: Cells) -> None:
        row["body"] = bytes(row["body"]).replace(b'"}', b' [forged]"}')


class Reads(Adapter):
    """What agents read: each read sees the version before it."""

    name = "refold reads"
    kind, content, label = READ, ("actor", "key", "version", "seen_seq"), "recorded_at"

    def step(self, run: Any, text: str) -> None:
        run.write_state("memory", text, writer="writer")
        run.read_state("memory", reader=f"reader of {text}")

    def changed(self, row: Cells) -> None:
        row["version"] -= 1


@pytest.mark.parametrize("adapter", [Writes, Reads])
def test_every_edit_is_reported(store_url: str, adapter: type[Adapter]) -> None:
    """All nine edits land, and verify names each: none is accepted silently, none cannot be judged."""
    rows = run_suite(adapter(store_url))
    assert {row["attack"]: row["verdict"] for row in rows} == dict.fromkeys(LABELS, "REPORTED"), rows
    assert all(f"run '{MINE}'" in row["detail"] for row in rows)


def test_a_store_that_audits_nothing_would_fail(store_url: str) -> None:
    """The suite is no formality: without an anchor it finds the edits that leave a log whole in itself."""

    class Trusting(Writes):
        def verify(self) -> bool:
            return verify(self.url).ok

    verdicts = {row["attack"]: row["verdict"] for row in run_suite(Trusting(store_url))}
    assert {attack for attack, verdict in verdicts.items() if verdict != "REPORTED"} == {
        "truncate",
        "snapshot_rollback",
    }
