"""Importing recorded runs: same write path as live, each run whole or not at all, again changes nothing."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from refold import Store
from refold_replay.importing import ImportReport, import_files
from refold_replay.verify import verify
from refold_store.errors import ConfigError

OPEN: dict[str, Any] = {"keys": {"a": {"owner": "svc"}, "b": {"owner": "svc"}}, "groups": {"svc": ["bot"]}}
DECLARED: dict[str, Any] = {**OPEN, "keys": {"a": {"owner": "svc", "type": "integer"}, "b": {"owner": "svc"}}}


class Recording:
    """Builds an event file line by line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: list[str] = []
        self._seq: dict[str, int] = {}
        self._version: dict[tuple[str, str], int] = {}

    def add(self, kind: str, run: str = "r", **fields: Any) -> Recording:
        """One more line; seq counts by itself."""
        self._seq[run] = self._seq.get(run, 0) + 1
        line = {"run": run, "seq": self._seq[run], "ts": None, "kind": kind, "agent": "bot", "turn": 1, **fields}
        return self.raw(json.dumps(line, separators=(",", ":"), ensure_ascii=False))

    def write(self, key: str, value: Any, run: str = "r", **fields: Any) -> Recording:
        """A write with the versions that come next."""
        before = self._version.get((run, key), 0)
        self._version[run, key] = before + 1
        named = {"key": key, "prev_version": before, "version": before + 1, "value": value}
        return self.add("write", run, agent="svc", on_behalf_of="bot", **named | fields)

    def raw(self, line: str) -> Recording:
        """A line as it stands."""
        self.lines.append(line)
        return self

    def save(self) -> Path:
        """Write the file."""
        self.path.write_text("".join(line + "\n" for line in self.lines))
        return self.path


@pytest.fixture
def recording(tmp_path: Path) -> Recording:
    """An empty recording."""
    return Recording(tmp_path / "events.jsonl")


def imported(url: str, recording: Recording, schema: Any = OPEN, **options: Any) -> ImportReport:
    """Save and import a recording."""
    return import_files(url, [recording.save()], schema=schema, **options)


def test_every_kind_of_line_becomes_its_event(
    store_url: str, open_new: Callable[..., Store], recording: Recording
) -> None:
    """turn, message, tool_call, read, write, handoff and failure keep all their fields and their source seq."""
    recording.add("turn", src=0).add("message", text="hi").write("a", 1, cause=2, tool="t")
    recording.add("read", key="a", version=1, value=1).add("tool_call", tool="t", args={"x": 1}, ok=True)
    recording.add("handoff", to="human").add("failure", what="exception", text="boom", detail=None)
    assert imported(store_url, recording).ok
    events = list(open_new().run("r").events())
    assert [event.kind for event in events] == [
        "run.opened", "schema.declared", "run.imported", "turn.started", "message.added", "state.written",
        "state.read", "tool.returned", "handoff.made", "failure.raised",
    ]  # fmt: skip
    assert [event.refs.get("source_seq") for event in events[3:]] == [1, 2, 3, 4, 5, 6, 7]
    assert events[3].turn == 1
    assert [event.body for event in events[7:]] == [
        {"tool": "t", "args": {"x": 1}, "ok": True}, {"to": "human"},
        {"what": "exception", "text": "boom", "detail": None},
    ]  # fmt: skip
    assert events[5].refs["source"] == {"cause": 2, "tool": "t"}
    assert (events[5].actor, events[5].owner) == ("bot", "svc")
    assert (events[6].version, events[6].seen_seq) == (1, 6)


def test_times_of_the_source_work_as_moments(
    store_url: str, open_new: Callable[..., Store], recording: Recording
) -> None:
    """`ts` becomes the clock, UTC unless zoned; lines without one keep the last; run.imported says when it was."""
    recording.add("turn").write("a", 1, ts="2024-08-27T11:57:10.5").write("a", 2)
    recording.write("a", 3, ts="2024-08-27T14:00:00+02:00")
    assert imported(store_url, recording).ok
    run = open_new().run("r")
    assert run.at("2024-08-27T11:58:00Z").read_state("a").value == 2
    assert run.at("2024-08-27T12:00:01Z").read_state("a").value == 3
    assert run.at("2024-08-27T11:57:10.4Z").seq == 0
    [event] = run.events(kinds=["run.imported"])
    assert event.body["imported_at"] > "2026"
    assert event.body["file"] == "events.jsonl"


def test_a_transaction_is_one(store_url: str, open_new: Callable[..., Store], recording: Recording) -> None:
    """Equal txn numbers are one transaction; a write without one stands alone."""
    recording.write("a", 1, txn=7).write("b", 2, txn=7).write("a", 3, txn=None).write("b", 4)
    assert imported(store_url, recording).ok
    writes = list(open_new().run("r").events(kinds=["state.written"]))
    assert [event.txn for event in writes] == [4, 4, None, None]


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ({"key": "b"}, "stand together"),
        ({"key": "a", "between": False}, "a transaction names a key once"),
    ],
)
def test_a_transaction_that_cannot_be_one_is_an_error(
    sqlite_url: str, recording: Recording, second: dict[str, Any], message: str
) -> None:
    """Writes of one txn with other lines between, or of one key, are refused with the line."""
    recording.write("a", 1, txn=7)
    if second.get("between", True):
        recording.add("turn")
    report = imported(sqlite_url, recording.write(second["key"], 2, txn=7))
    assert message in str(report.errors[0])
    assert report.errors[0].line == len(recording.lines)


def test_deletes_are_versions(store_url: str, open_new: Callable[..., Store], recording: Recording) -> None:
    """A delete takes a version; the next write goes on from it."""
    recording.write("a", 1).write("a", None, deleted=True).write("a", None)
    assert imported(store_url, recording).ok
    history = open_new().run("r").history("a")
    assert [(read.version, read.deleted) for read in history] == [(1, False), (2, True), (3, False)]
    assert history[2].value is None


def test_a_refused_write_of_the_source_is_a_refusal(
    store_url: str, open_new: Callable[..., Store], recording: Recording
) -> None:
    """write_rejected becomes state.refused with the source's words and what it looked at; no state changes."""
    recording.write("a", 1)
    recording.add("failure", what="write_rejected", keys=["a"], reads=[["a", 1]], text="Error: no", tool="t")
    report = imported(store_url, recording)
    assert (report.ok, report.refusals) == (True, 1)
    [event] = open_new().run("r").events(kinds=["state.refused"])
    assert (event.key, event.actor, event.owner) == ("a", "bot", "svc")
    assert event.body == {
        "reason": "source", "message": "Error: no", "keys": ["a"], "what": "write_rejected", "tool": "t",
    }  # fmt: skip
    assert event.refs == {"based_on": [["a", 1]], "source_seq": 2}


def test_versions_of_the_source_become_expected_and_based_on(
    store_url: str, open_new: Callable[..., Store], recording: Recording
) -> None:
    """prev_version is the expected version, reads are what the write rests on."""
    assert imported(store_url, recording.write("a", 1).write("b", 2, reads=[["a", 1]])).ok
    read = open_new().run("r").peek("b")
    assert read.based_on == [("a", 1)]
    assert read.refs["expected"] == 0


def test_again_changes_nothing(store_url: str, open_new: Callable[..., Store], recording: Recording) -> None:
    """The same file again leaves the log as it is, with a schema given or inferred."""
    recording.write("a", 1).write("b", 2, run="s")
    assert imported(store_url, recording, None).imported == ["r", "s"]
    before = open_new().run("r").info()
    again = imported(store_url, recording, None)
    assert (again.imported, again.unchanged, again.failed, again.ok) == ([], ["r", "s"], [], True)
    assert imported(store_url, recording, OPEN).unchanged == ["r", "s"]
    assert open_new().run("r").info() == before


def test_a_changed_file_for_an_existing_run_is_an_error(
    store_url: str, open_new: Callable[..., Store], recording: Recording
) -> None:
    """A run that is there from other lines is left alone, and the report says so; new runs go in."""
    assert imported(store_url, recording.write("a", 1)).ok
    before = open_new().run("r").info()
    report = imported(store_url, recording.write("a", 2).write("a", 1, run="s"))
    assert (report.failed, report.imported) == (["r"], ["s"])
    assert "imported before from other lines" in str(report.errors[0])
    assert open_new().run("r").info() == before


def test_a_live_run_is_never_added_to(store_url: str, open_new: Callable[..., Store], recording: Recording) -> None:
    """A run that was not imported is an error."""
    with open_new(OPEN) as store:
        store.run("r").write_state("a", 1, writer="bot")
    report = imported(store_url, recording.write("a", 1))
    assert "exists and was not imported" in str(report.errors[0])


def test_a_run_with_an_error_is_not_stored_at_all(
    store_url: str, open_new: Callable[..., Store], recording: Recording
) -> None:
    """One bad value keeps its whole run out, names file and line, and leaves the other runs alone."""
    recording.write("a", 1).write("a", "text").add("turn").write("a", 1, run="s")
    report = imported(store_url, recording, DECLARED)
    assert (report.failed, report.imported) == (["r"], ["s"])
    [error] = report.errors
    assert (error.line, error.run) == (2, "r")
    assert str(error).startswith(f"{recording.path}:2: ")
    assert open_new().run("r").head_seq() == 0
    assert verify(store_url).ok


def test_what_only_the_commit_can_refuse_drops_the_run_too(
    store_url: str, open_new: Callable[..., Store], recording: Recording
) -> None:
    """An invariant that breaks in the middle names its line; nothing of the run stays, not even a refusal."""
    schema = {**DECLARED, "invariants": {"small": "a < 10"}}
    report = imported(store_url, recording.write("a", 1).add("turn").write("a", 11).add("turn"), schema)
    assert [error.line for error in report.errors] == [3]
    assert "small" in str(report.errors[0])
    store = open_new()
    store.flush()
    assert (store.run("r").head_seq(), store.runs()) == (0, [])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"run":"r","seq":2,"kind":"turn","agent":"bot","a":1,"a":2}', "twice"),
        ('{"run":"r","seq":2,"kind":"turn","agent":"bot","n":NaN}', "NaN"),
        ('{"run":"r","seq":2,"kind":"turn","agent":"bot"', "not JSON"),
        ("[1]", "a line is an object"),
        ('{"seq":2}', 'has no "run"'),
        ('{"run":"r","seq":4,"kind":"turn","agent":"bot"}', "2 comes next"),
        ('{"run":"r","seq":2,"kind":"dance","agent":"bot"}', "\"kind\" is 'dance'"),
        ('{"run":"r","seq":2,"kind":"turn"}', "agent name must be text"),
        ('{"run":"r","seq":2,"kind":"turn","agent":"bot","ts":"noon"}', "no ISO time"),
        ('{"run":"r","seq":2,"kind":"turn","agent":"bot","ts":"2024-01-01T00:00:00.1234567"}', "finer than"),
        ('{"run":"r","seq":2,"kind":"read","agent":"bot","key":"a","version":2}', "does not exist here"),
        ('{"run":"r","seq":2,"kind":"read","agent":"bot","key":"a"}', 'names the "version"'),
        ('{"run":"r","seq":2,"kind":"write","agent":"svc","key":"a","prev_version":0,"value":1}', "is at version 1"),
        ('{"run":"r","seq":2,"kind":"write","agent":"svc","on_behalf_of":"bot","key":"a","version":3,"value":1}', "2"),
        ('{"run":"r","seq":2,"kind":"write","agent":"bot","key":"zz","value":1}', "unknown key"),
        ('{"run":"r","seq":2,"kind":"write","agent":"eve","key":"a","value":1}', "may not write"),
        ('{"run":"r","seq":2,"kind":"write","agent":"eve","on_behalf_of":"bot","key":"a","value":1}', "may not write"),
        ('{"run":"r","seq":2,"kind":"write","agent":"bot","key":"a","value":1,"reads":[["b",1]]}', "does not exist"),
        ('{"run":"r","seq":2,"kind":"write","agent":"bot","key":"a","value":1,"reads":"b"}', "is a list of"),
        ('{"run":"r","seq":2,"kind":"write","agent":"bot","key":"a","value":1,"deleted":true}', "has the value null"),
    ],
)
def test_a_faulty_line_is_named(sqlite_url: str, recording: Recording, line: str, message: str) -> None:
    """Each fault is told with file and line, and fails its run."""
    report = imported(sqlite_url, recording.write("a", 1).raw(line))
    assert report.failed == ["r"]
    assert report.errors[0].line == 2
    assert re.search(message, report.errors[0].message)


def test_lines_of_a_run_stand_together(sqlite_url: str, recording: Recording) -> None:
    """A run that comes again later is an error; nothing of it is stored."""
    recording.write("a", 1).write("a", 1, run="s").write("a", 2)
    report = imported(sqlite_url, recording)
    assert (report.failed, report.imported) == (["r"], ["s"])
    assert "the lines of a run stand together" in str(report.errors[0])
    assert report.errors[0].line == 3


def test_a_dry_run_stores_nothing_and_finds_the_same(tmp_path: Path, recording: Recording) -> None:
    """A dry run on a store that is not there makes no file, and names the same errors."""
    url = f"sqlite:///{tmp_path / 'dry.db'}"
    recording.write("a", 1).write("a", "text", run="s")
    dry = imported(url, recording, DECLARED, dry_run=True)
    assert not (tmp_path / "dry.db").exists()
    wet = imported(url, recording, DECLARED)
    assert (dry.imported, dry.failed, dry.kinds) == (wet.imported, wet.failed, wet.kinds)
    assert [str(error) for error in dry.errors] == [str(error) for error in wet.errors]
    assert imported(url, recording, DECLARED, dry_run=True).unchanged == ["r"]


def test_gzip_is_told_by_content(sqlite_url: str, recording: Recording, tmp_path: Path) -> None:
    """A packed file under any name is read; one that breaks off is refused before anything is stored."""
    packed = gzip.compress(recording.write("a", 1).save().read_bytes())
    (tmp_path / "packed").write_bytes(packed)
    (tmp_path / "cut").write_bytes(packed[:-10])
    with pytest.raises(ConfigError, match=r"cut.*breaks off"):
        import_files(sqlite_url, [tmp_path / "cut"], schema=OPEN)
    assert import_files(sqlite_url, [tmp_path / "packed"], schema=OPEN).imported == ["r"]


def test_a_seed_gives_version_1_in_each_run_that_touches_it(
    store_url: str, open_new: Callable[..., Store], recording: Recording, tmp_path: Path
) -> None:
    """Seeded keys start at 1 in the owner's name, before the run's events, and only where they are touched."""
    seed = tmp_path / "seed.jsonl"
    seed.write_text('{"key":"a","owner":"svc","version":1,"value":5}\n{"key":"b","owner":"svc","value":6}\n')
    recording.add("read", key="a", version=1, value=5)
    recording.add("write", agent="svc", on_behalf_of="bot", key="a", prev_version=1, version=2, value=7)
    recording.add("read", "s", key="b", version=1, value=6)
    report = imported(store_url, recording, seed=seed)
    assert report.ok
    assert report.reads_different == []
    run = open_new().run("r")
    first, second = run.history("a")
    assert (first.value, first.written_by, first.owner, first.refs["initial"]) == (5, "import", "svc", True)
    assert (second.value, run.peek("b").absent) == (7, True)
    assert verify(store_url).ok
    seed.write_text('{"key":"a","owner":"svc","version":1,"value":6}\n{"key":"b","owner":"svc","value":6}\n')
    again = imported(store_url, recording, seed=seed)
    assert (again.failed, again.unchanged) == (["r"], ["s"])


def test_a_read_that_shows_something_else_is_told(sqlite_url: str, recording: Recording) -> None:
    """A full read with another value than its version holds is kept, and named; a partial one is not compared."""
    recording.write("a", 1).add("read", key="a", version=1, value=2).add(
        "read", key="a", version=1, value=2, partial=True
    )
    report = imported(sqlite_url, recording)
    assert report.ok
    assert [error.line for error in report.reads_different] == [2]
    assert report.reads_compared == 1


def test_values_are_kept_exactly(sqlite_url: str, open_new: Callable[..., Store], recording: Recording) -> None:
    """Floats, wide integers and NULs of the file read back as they stand there."""
    value = [1.0, -0.0, 1e22, 2**64, 10**400, "\0", "é", 60.0]
    assert import_files(sqlite_url, [recording.write("a", value).save()], schema=OPEN).ok
    got = open_new(url=sqlite_url).run("r").peek("a").json
    assert got == value
    assert [type(item) for item in got] == [type(item) for item in value]


def test_whole_values_do_not_go_through_another_reducer(sqlite_url: str, recording: Recording) -> None:
    """A schema under which the file's whole values would be added up is refused."""
    schema = {"keys": {"a": {"owner": "svc", "type": "array", "reducer": "append"}}, "groups": {"svc": ["bot"]}}
    report = imported(sqlite_url, recording.write("a", [1]), schema)
    assert "its reducer is 'append'" in str(report.errors[0])


def test_progress_counts_lines(sqlite_url: str, recording: Recording) -> None:
    """Progress ends at the number of lines."""
    calls: list[tuple[int, int, str]] = []
    imported(sqlite_url, recording.write("a", 1).write("a", 1, run="s"), progress=lambda *call: calls.append(call))
    assert calls == [(1, 2, "r"), (2, 2, "s")]
