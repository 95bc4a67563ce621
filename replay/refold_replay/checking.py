"""Check: an imported store against the right answers that come beside the recorded runs.

Rules of this module
- The store alone is asked, by the calls any caller has; the event files are not needed. Seqs of the answers are the
  source's, found by `refs.source_seq`.
- Every answer is compared; a mismatch is named with run, place, what was expected and what was found.
- Members of the answers that nobody here compares are listed, not passed over in silence.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from refold_replay.hashing import document_hash, text_hash
from refold_replay.sources import Progress, read_lines, read_object
from refold_store.errors import ConfigError, NameInvalid, NoSuchMoment, NotExact, UnknownKey
from refold_store.events import Event
from refold_store.moments import Moment
from refold_store.names import check_name
from refold_store.reads import Read
from refold_store.run import Run
from refold_store.store import Store, open_store

MISMATCHES_MAX = 10_000
"""Mismatches kept one by one; the counts go on."""

_COMPARED = {"run", "asof", "final", "final_versions", "expected", "wrong_keys", "events", "rejected_writes"}
_ELSEWHERE = {
    *("db_ok", "db_ok_recorded", "gt_db_sha256_recorded", "reward", "annotated"),
    *("keys_with_several_writers", "undeclared"),
}
"""Members of recorded answers that say something else than what the store holds."""
_SHAPES: dict[str, tuple[type, str]] = {
    "asof": (list, "a list of steps"),
    "final": (dict, "an object of keys"),
    "final_versions": (dict, "an object of keys"),
    "expected": (dict, "an object of keys"),
    "wrong_keys": (list, "a list of keys"),
    "events": (int, "a number"),
    "rejected_writes": (int, "a number"),
}


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer that was compared."""

    run: str
    what: str
    place: str
    expected: object
    got: object

    @property
    def ok(self) -> bool:
        """Whether the store says the same."""
        return self.expected == self.got

    def __str__(self) -> str:
        return f"{self.run}: {self.what} at {self.place}: expected {self.expected}, got {self.got}"


@dataclass(slots=True)
class CheckReport:
    """What a check found. `counts` is what was compared: (matching, of)."""

    runs: int = 0
    counts: dict[str, tuple[int, int]] = field(default_factory=dict)
    mismatches: list[Answer] = field(default_factory=list)
    two_owner_transactions: int = 0
    refusals: int = 0
    """Refused writes of the source that are on the record."""
    not_checked: list[str] = field(default_factory=list)
    """Members of the answers that nobody compares."""

    @property
    def unknown(self) -> list[str]:
        """Those of them that are not known to be about something else: misspelt, perhaps."""
        return [name for name in self.not_checked if name not in _ELSEWHERE]

    @property
    def ok(self) -> bool:
        """Whether there was something to compare, all of it matches, and no member is unknown."""
        return bool(self.counts) and not self.unknown and all(good == of for good, of in self.counts.values())

    def add(self, answer: Answer) -> None:
        """Count an answer, and keep it if it does not match."""
        good, of = self.counts.get(answer.what, (0, 0))
        self.counts[answer.what] = (good + answer.ok, of + 1)
        if not answer.ok and len(self.mismatches) < MISMATCHES_MAX:
            self.mismatches.append(answer)


@dataclass(slots=True)
class _Log:
    """What one pass over a run's log gives."""

    seq_of: dict[int, int] = field(default_factory=dict)
    """Source seq to seq."""
    reads: list[Event] = field(default_factory=list)
    """Full reads."""
    refusals: int = 0
    owners: defaultdict[int, set[str]] = field(default_factory=lambda: defaultdict(set))
    """Owners that wrote in each transaction of the source."""

    def seq(self, source: object) -> int | None:
        """The seq of an event of the source."""
        return self.seq_of.get(source) if type(source) is int else None


def check(
    store: str | os.PathLike[str] | Store,
    answers: str | Path,
    *,
    tenant: str = "default",
    progress: Progress | None = None,
) -> CheckReport:
    """Compare a filled store with an answers file. Raises ConfigError if the file cannot be read."""
    if not isinstance(store, Store):
        with open_store(store, read_only=True, create=False) as opened:
            return check(opened, answers, tenant=tenant, progress=progress)
    listed = list(read_answers(answers)) if progress is not None else read_answers(answers)
    total = len(listed) if isinstance(listed, list) else 0
    report, unknown = CheckReport(), set()
    for given in listed:
        report.runs += 1
        unknown |= given.keys() - _COMPARED
        _check_run(report, store.run(given["run"], tenant), given)
        if progress is not None:
            progress(report.runs, total, given["run"])
    report.not_checked = sorted(unknown)
    return report


def read_answers(path: str | Path) -> Iterator[dict[str, Any]]:
    number = 0
    for number, raw in read_lines(path):
        try:
            given = read_object(raw)
            if (wrong := _misshapen(given)) is not None:
                raise ConfigError(wrong, where=f"{path}:{number}")
            check_name("run", given["run"])
        except (NotExact, NameInvalid) as error:
            raise ConfigError(str(error), where=f"{path}:{number}") from error
        yield given
    if not number:
        raise ConfigError("no answers in the file", where=str(path))


def _misshapen(given: Mapping[str, Any]) -> str | None:
    """What is wrong with the form of an answer."""
    if not isinstance(given.get("run"), str):
        return 'an answer names its "run"'
    for word, (kind, wanted) in _SHAPES.items():
        if word in given and type(given[word]) is not kind:
            return f'"{word}" is {wanted}, not {given[word]!r:.60}'
    for word, kind, wanted in (("asof", dict, "an object"), ("wrong_keys", str, "a key")):
        for one in given.get(word, ()):
            if type(one) is not kind:
                return f'an entry of "{word}" is {wanted}, not {one!r:.60}'
    for key, final in given.get("final", {}).items():
        if type(final) is not dict:
            return f'"final" of {key!r} is an object, not {final!r:.60}'
    return None


def _check_run(report: CheckReport, run: Run, given: Mapping[str, Any]) -> None:
    head = run.head_seq()
    report.add(Answer(run.name, "run", "the store", "there", "there" if head else "missing"))
    if not head:
        return
    log = _read_log(run)
    report.two_owner_transactions += sum(len(owners) > 1 for owners in log.owners.values())
    report.refusals += log.refusals
    for read in log.reads:
        report.add(_full_read(run, read))
    for step in given.get("asof", ()):
        report.add(_step(run, log, step))
    _check_end(report, run, log, given)
    if "rejected_writes" in given:
        report.add(Answer(run.name, "refusals", "the end", given["rejected_writes"], log.refusals))
    if "events" in given:
        report.add(Answer(run.name, "events", "the end", given["events"], len(log.seq_of)))


def _read_log(run: Run) -> _Log:
    log = _Log()
    for event in run.events():
        source = event.refs.get("source_seq")
        if source is None:
            continue
        log.seq_of[source] = event.seq
        if event.kind == "state.read" and "shown" in event.refs:
            log.reads.append(event)
        elif event.kind == "state.refused":
            log.refusals += 1
        elif event.txn is not None and event.owner is not None:
            log.owners[event.txn].add(event.owner)
    return log


def _full_read(run: Run, event: Event) -> Answer:
    """What a reader was shown, against the state at that moment."""
    assert event.key is not None
    shown = event.refs["shown"]
    place = f"{event.key}, source seq {event.refs['source_seq']} (seq {event.seq})"
    if isinstance(read := _read(run.at(event.seq), event.key), str):
        return Answer(run.name, "full reads", place, f"version {event.version} {shown}", read)
    got = text_hash(b"null") if read.absent and event.version == read.version else text_hash(read.text)
    return Answer(run.name, "full reads", place, f"version {event.version} {shown}", f"version {read.version} {got}")


def _step(run: Run, log: _Log, step: Mapping[str, Any]) -> Answer:
    """The whole state after a step."""
    source = step.get("after_seq")
    seq = log.seq(source)
    place = f"turn {step.get('turn')}, source seq {source}"
    if seq is None:
        return Answer(run.name, "states", place, step.get("state_sha256"), "no event of this source seq")
    state = run.at(seq).state().json()
    got: object = document_hash(state)
    expected: object = step.get("state_sha256")
    keys = sorted(state)
    if got != expected and "keys" in step and step["keys"] != keys:
        expected, got = f"{expected} keys {step['keys']}", f"{got} keys {keys}"
    return Answer(run.name, "states", f"{place} (seq {seq})", expected, got)


def _check_end(report: CheckReport, run: Run, log: _Log, given: Mapping[str, Any]) -> None:
    """Documents and versions at the run's end."""
    end = run.at("end")
    for key, final in given.get("final", {}).items():
        if isinstance(read := _read(end, key), str):
            report.add(Answer(run.name, "final documents", key, "a document", read))
            continue
        got = [read.version, None if read.absent else document_hash(read.json), read.seq]
        expected = [final.get("version"), final.get("sha256"), log.seq(final.get("last_write_seq"))]
        report.add(Answer(run.name, "final documents", key, expected, got))
    for key, version in given.get("final_versions", {}).items():
        read = _read(end, key)
        report.add(Answer(run.name, "final versions", key, version, read if isinstance(read, str) else read.version))
    if "expected" in given:
        expected = given["expected"]
        wrong = sorted(key for key, digest in expected.items() if _end_hash(end, key) != digest)
        report.add(
            Answer(run.name, "wrong keys", "the end", sorted(set(given.get("wrong_keys", ())) & set(expected)), wrong)
        )


def _end_hash(end: Moment, key: str) -> str | None:
    read = _read(end, key)
    return read if isinstance(read, str) else None if read.absent else document_hash(read.json)


def _read(moment: Moment, key: str) -> Read | str:
    """A key at a moment, or why it cannot be read there."""
    try:
        return moment.read_state(key)
    except UnknownKey:
        return "not declared"
    except (NameInvalid, NoSuchMoment) as error:
        return str(error)
