"""The checks of a bundle: those of verify, on its lines, without any store.

Rules of this module
- Fed line by line; what is wrong is named with its line, and nothing behind it is looked at.
- What a line makes a check trip over is wrong with the line: no error but BundleInvalid comes out of here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from refold_replay.allowances import Allowances, Erasure
from refold_replay.bundle import Line
from refold_replay.bundle_reader import BundleReader
from refold_replay.findings import Findings
from refold_replay.forms import fault
from refold_replay.linking import Chain
from refold_replay.rules import Rules
from refold_store import jsontext
from refold_store.errors import Damaged, RefoldError
from refold_store.events import KINDS, PRUNED, RUN_ARCHIVED, RUN_FORKED, Row, genesis
from refold_store.schema import Schema


class _Nothing:
    """The past of a log that is read from its first event on."""

    def seq_of(self, key: str, version: int) -> int | None:
        return None

    def value(self, key: str) -> Any:
        raise KeyError(key)


class Checks:
    """The checks of verify, fed with the lines of a bundle. Names stand for their own ids."""

    def __init__(self, reader: BundleReader) -> None:
        self.reader, self.manifest = reader, reader.manifest
        self._found = Findings(self.manifest.tenant, self.manifest.run)
        self._said = Allowances()
        self.names: list[str] = []
        """Every name met, at its id."""
        self._ids: dict[str, int] = {}
        self.sha256 = b""
        """That of all lines, once they were checked."""
        self.opened_at = 0
        """When the first event was recorded."""
        self._last = 0
        self._name = self.manifest.genesis
        self._forks: list[int] = []
        self._schemas = {
            one: self._schema_from(text, line)
            for line, (one, text) in enumerate(reader.schemas.items(), 2)
        }  # fmt: skip
        start = genesis(self.manifest.tenant, self.manifest.genesis, self.manifest.scope)
        self._chain = Chain(
            self._found, self._text_of, seq=0, digest=start, recorded_at=0, versions={},
            allowed=_numbered(self.manifest.allowed, self._id),
        )  # fmt: skip
        self._rules = Rules(
            self._found, _Nothing(), text_of=self._text_of, schema_of=self._schema_of, schema=None, first=1, base=0,
            allowed=self._chain.allowed,
        )  # fmt: skip
        self._rows: deque[Any] = deque()
        self._links = self._chain.links(self._each())

    def take(self, line: Line) -> None:
        """Check one event. Raises BundleInvalid."""
        if line.seq <= self._last:
            raise self.reader.fail(f"event {line.seq} stands behind event {self._last}")
        self._last = line.seq
        self.opened_at = self.opened_at or line.recorded_at
        wrong = fault(line)
        if wrong is not None:
            raise self.reader.fail(f"event {line.seq} is no {KINDS[line.kind]} of refold: {wrong}")
        self._rows.append(self._row(line))
        try:
            self._rules.judge(next(self._links))
        except Exception as error:  # whatever a rule trips over in an event of unknown origin
            raise self.reader.fail(f"event {line.seq} cannot be judged: {error}", error) from error
        if self._chain.erased:
            raise self.reader.fail(f"event {line.seq} has no body, and nothing behind it says why")
        self._complain()
        self._passage(line)

    def end(self) -> None:
        """Check what only the whole shows. Raises BundleInvalid."""
        fail, manifest = self.reader.fail, self.manifest
        self._rules.end(self._last)
        self._rows.append(None)
        next(self._links, None)
        if self._last < manifest.until:
            self._chain.cross(self._last, manifest.until + 1, self._chain.digest)
        self._complain()
        if self._last > manifest.until or (self._last == manifest.until and self._chain.digest != manifest.digest):
            raise fail("the newest event is not the one the manifest names")
        if self._name != manifest.run:
            raise fail(f"the log is of run {self._name!r}, the manifest says {manifest.run!r}")
        assert self.reader.end is not None
        self.sha256 = self.reader.end.sha256
        self._said.redacted = max(self._said.redacted, manifest.until if manifest.redacted else 0)
        if _sorted(self._said) != _sorted(manifest.allowed):
            raise fail("the manifest tells of other erased or pruned events than the log")

    def _complain(self) -> None:
        if self._found.found:
            raise self.reader.fail(f"{self._found.found[0].damage}: {self._found.found[0].message}")

    def _passage(self, line: Line) -> None:
        """Forks give the log its next name; erasures and prunings are what the manifest said."""
        if line.kind == RUN_FORKED:
            refs = jsontext.decode((line.refs or "{}").encode())
            if refs.get("parent") != self._name or refs.get("at") != line.seq - 1:
                raise self.reader.fail(f"event {line.seq} forks {refs.get('parent')!r} at {refs.get('at')!r} here")
            self._name = str(refs.get("run"))
            self._forks.append(line.seq)
        elif line.kind == RUN_ARCHIVED and jsontext.decode((line.refs or "{}").encode())["until"] != line.seq - 1:
            raise self.reader.fail(f"event {line.seq} does not stand right behind what it says was archived")
        elif line.kind == PRUNED:
            self._roll_up(line)
        try:
            self._said.add(as_row(line, 0, lambda name: None if name is None else self._id(name)), self._text_of)
        except (ValueError, TypeError, KeyError, RefoldError) as error:
            raise self.reader.fail(f"event {line.seq} cannot be read: {error}", error) from error

    def _roll_up(self, line: Line) -> None:
        """A roll-up tells of as many reads as were removed, each of a version that was there."""
        said = jsontext.decode(line.body or b"{}")
        removed = sum(last - first + 1 for first, last, *_digests in said["ranges"])
        told = sum(entry[5] for entry in said["reads"])
        inherited = any(first < fork < line.seq for first, *_rest in said["ranges"] for fork in self._forks)
        if told < removed and not inherited:  # a fork made inside a line of the roll-up knows its first read only
            raise self.reader.fail(f"event {line.seq} removed {removed} reads, its roll-up tells of {told}")
        for key, version, *_rest in said["reads"]:
            if version > self._chain.versions.get(self._id(key), 0) and not self._elsewhere(key):
                raise self.reader.fail(f"event {line.seq} tells of reads of {key!r} version {version}, never there")

    def _elsewhere(self, key: str) -> bool:
        """Whether a key lives in the run of a scope."""
        return any(key in one and one.key(key).scope != "run" for one in self._schemas.values())

    def _each(self) -> Iterator[Any]:
        while (row := self._rows.popleft()) is not None:
            yield row

    def _row(self, line: Line) -> tuple[Any, ...]:
        """An event as verify scans it: numbers first, -1 for none."""
        numbers = (line.txn, line.turn, line.version, line.seen_seq)
        actor, owner, key = (None if name is None else self._id(name) for name in (line.actor, line.owner, line.key))
        return (
            line.seq, *(-1 if number is None else number for number in numbers), line.recorded_at,
            -1 if line.clock is None else line.clock, -1 if line.trace_flags is None else line.trace_flags,
            line.kind, actor, owner, key, line.request_id, line.refs, line.trace_id, line.span_id, line.salt,
            line.body, line.commitment, line.digest,
        )  # fmt: skip

    def _id(self, name: str) -> int:
        found = self._ids.get(name)
        if found is None:
            found = self._ids[name] = len(self.names)
            self.names.append(name)
        return found

    def _text_of(self, number: int | None) -> str | None:
        return None if number is None else self.names[number]

    def _schema_from(self, text: bytes, line: int) -> Schema:
        try:
            return Schema.from_declaration(jsontext.parse(text))
        except Exception as error:  # whatever the schema's code trips over in a declaration of unknown origin
            reason = str(error) if isinstance(error, RefoldError) else f"{type(error).__name__}: {error}"
            raise self.reader.fail(f"the schema cannot be read: {reason}", error, line=line) from error

    def _schema_of(self, fingerprint: str) -> Schema:
        found = self._schemas.get(fingerprint)
        if found is None:
            raise Damaged(f"the bundle does not hold schema {fingerprint}")
        return found


def _numbered(allowed: Allowances, number: Callable[[str], int]) -> Allowances:
    """The same with numbers for the names of keys."""
    found = Allowances(gaps=allowed.gaps, redacted=allowed.redacted)
    for (key, _version), erasures in allowed.erasures.items():
        at = number(key) if isinstance(key, str) else None
        for one in erasures:
            found.erase(Erasure(one.seq, one.until, at, one.version))
    return found


def _sorted(allowed: Allowances) -> tuple[Any, ...]:
    erasures = [one for found in allowed.erasures.values() for one in found]
    return sorted(erasures, key=lambda one: one.seq), allowed.gaps, allowed.redacted


def as_row(line: Line, number: int, id_of: Callable[[str | None], int | None]) -> Row:
    """An event of a bundle as a row of the run `number`; `id_of` numbers the names."""
    return Row(
        number, line.seq, line.kind, id_of(line.actor), id_of(line.owner), line.txn, line.turn, id_of(line.key),
        line.version, line.seen_seq, line.recorded_at, line.clock, line.request_id, line.refs, line.salt, line.body,
        line.commitment, line.digest, line.trace_id, line.span_id, line.trace_flags,
    )  # fmt: skip
