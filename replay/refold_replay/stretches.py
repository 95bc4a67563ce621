"""Stretches of runs: what one worker verifies at once, and how it finds what happened before.

A stretch never begins or ends inside a transaction. What it needs of the past (the digest before it, the versions of
all keys, the schema in force) is asked of the store, where another stretch verifies it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from refold_replay.allowances import SAYING, Allowances
from refold_replay.findings import Finding, Findings
from refold_replay.linking import Chain
from refold_replay.rules import Rules
from refold_replay.scanning import BATCH, SCANS, SEQ
from refold_store.backend import Backend
from refold_store.errors import Damaged, RefoldError
from refold_store.events import RUN_ARCHIVED, WRITTEN, Row, genesis
from refold_store.fold import ABSENT, fold_updates
from refold_store.heads import declared_schemas, fold_from_frame
from refold_store.jsontext import decode, encode
from refold_store.schema import Schema

STRETCH = 25_000
"""Events of one stretch: some seconds of work, so that workers share a long run evenly."""
TRIES_MAX = 3
"""Passes over a stretch while its run is being erased from or pruned."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Events of a run from one seq to another, both included."""

    run: int
    tenant: str
    name: str
    scope: int
    first: int
    last: int
    level: str
    base: int = 0
    """The seq before the first event the run itself holds: of a fork's ancestor, or of what was archived."""
    parent: int | None = None
    """The run that a fork goes on from."""


class Source:
    """A store as a verification reads it: every name and schema fresh from the tables."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.scans = SCANS[backend.name]
        self._names: dict[int, str] = {}
        self._schemas: dict[str, Schema] = {}

    def text_of(self, number: int | None) -> str | None:
        """The name behind an id. Raises Damaged if it is gone."""
        if number is None:
            return None
        found = self._names.get(number)
        if found is None:
            for known, text in self.backend.query(self.backend.sql.names_by_ids, (str([int(number)]),)):
                self._names[known] = text
            found = self._names.get(number)
            if found is None:
                raise Damaged(f"table names does not hold the name with id {number}")
        return found

    def schema_of(self, fingerprint: str) -> Schema:
        """A schema rebuilt from its stored declaration, whose hash must be the fingerprint."""
        found = self._schemas.get(fingerprint)
        if found is None:
            rows = self.backend.query(self.backend.sql.schema_get, (fingerprint,))
            if not rows:
                raise Damaged("table schemas does not hold it")
            text = bytes(rows[0][0])
            if sha256(text).hexdigest() != fingerprint:
                raise Damaged("the declaration does not give its fingerprint")
            found = self._schemas[fingerprint] = Schema.from_declaration(decode(text))
        return found

    def stretches(
        self, run: int, tenant: str, name: str, scope: int, parent: int | None, at: int | None, level: str
    ) -> Iterator[Stretch]:
        """The events a run itself holds, in stretches."""
        head = self.backend.head(run)
        base = self.base(run, at or 0)
        allowed = self.allowed(run)
        first, newest = base + 1, 0 if head is None else head[0]
        while first <= newest:
            last = self._end(run, first + STRETCH - 1, newest, allowed)
            yield Stretch(run, tenant, name, scope, first, last, level, base, parent)
            first = last + 1

    def base(self, run: int, at: int) -> int:
        """Where the events a run itself holds begin: behind a fork's moment, or behind what was archived."""
        rows = self.backend.query(self.scans.first, (run,))
        if rows and rows[0][1] == RUN_ARCHIVED and rows[0][0] > at + 1:
            until = refs_of(rows[0][2]).get("until")
            if until == rows[0][0] - 1:
                return int(until)
        return at

    def allowed(self, run: int) -> Allowances:
        """What the log of a run itself says may be missing. What cannot be read allows nothing."""
        rows = [Row(*row) for kind in SAYING for row in self.backend.query(self.backend.sql.by_kind, (run, kind))]
        found = Allowances()
        for row in rows:
            try:
                found.add(row)
            except (ValueError, TypeError, KeyError, AttributeError, RefoldError):
                continue  # its own digest tells
        return found

    def _end(self, run: int, last: int, newest: int, allowed: Allowances) -> int:
        """The first seq from `last` on after which no transaction and no gap goes on."""
        last = allowed.inside(last) or last
        while last < newest:
            after = self.backend.query(self.scans.txn_at, (run, last + 1))
            if not after or after[0][0] is None or after[0][0] == last + 1:
                return last
            last += 1
        return newest


def refs_of(text: str | None) -> dict[str, Any]:
    """Refs as stored; nothing where they cannot be read."""
    try:
        found = decode(text.encode()) if text else {}
    except (ValueError, AttributeError):
        found = {}
    return found if isinstance(found, dict) else {}


class _Before:
    """The past of a stretch, asked of the store when needed."""

    def __init__(self, source: Source, stretch: Stretch, findings: Findings) -> None:
        self.backend = source.backend
        self._source = source
        self._run, self._upto = stretch.run, stretch.first - 1
        self._findings = findings
        self.versions: dict[int, int] = {}
        self._numbers: dict[str, int] = {}
        self._newest: dict[int, tuple[int, int]] = {}
        if self._upto:
            for row in self.backend.state(self._run, self._upto):
                self.versions[row.key] = row.version
                self._newest[row.key] = row.version, row.seq

    def digest(self, stretch: Stretch, allowed: Allowances) -> bytes | None:
        if not self._upto:
            return genesis(stretch.tenant, self.first_name(stretch), stretch.scope)
        place = self.backend.at_seq(self._run, self._upto)
        if place is not None and place.seq == self._upto:
            return bytes(place.digest)
        gap = next((gap for gap in allowed.gaps.values() if gap.last == self._upto), None)
        if gap is not None:
            return gap.digest
        first = self.backend.query(self._source.scans.first, (self._run,))
        if self._upto == stretch.base and first and first[0][1] == RUN_ARCHIVED:
            return bytes.fromhex(refs_of(first[0][2])["digest"])
        return None

    def first_name(self, stretch: Stretch) -> str:
        """The name a log began under: of the run that its first fork was made from, if it holds the copy of one."""
        rows = self.backend.query(self._source.scans.named, (self._run,))
        return str(refs_of(rows[0][0])["parent"]) if rows and not stretch.base else stretch.name

    def recorded_at(self) -> int:
        place = self.backend.at_seq(self._run, self._upto) if self._upto else None
        return 0 if place is None else place.recorded_at

    def schema(self) -> Schema | None:
        prints = [fingerprint for seq, fingerprint in declared_schemas(self.backend, self._run) if seq <= self._upto]
        try:
            return self._source.schema_of(prints[-1]) if prints else None
        except RefoldError:
            return None  # named where it was declared

    def _number(self, key: str) -> int | None:
        if key not in self._numbers:
            rows = self.backend.query(self.backend.sql.names_by_text, (key,))
            if not rows:
                return None
            self._numbers[key] = rows[0][0]
        return self._numbers[key]

    def seq_of(self, key: str, version: int) -> int | None:
        number = self._number(key) if self._upto else None
        if number is None:
            return None
        newest = self._newest.get(number)
        if newest is not None and newest[0] == version:
            return newest[1]
        found = self.backend.version(self._run, number, version)
        return found.seq if found is not None and found.seq <= self._upto else None

    def value(self, key: str) -> Any:
        number = self._number(key) if self._upto else None
        found = None if number is None else self.backend.newest(self._run, number, self._upto)
        if found is None or found.kind != WRITTEN or found.body is None or number is None:
            raise KeyError(key)
        document = decode(found.body)
        if "value" in document:
            return document["value"]
        schema = self.schema()
        if schema is None:
            raise KeyError(key)
        return fold_from_frame(self.backend, self._run, number, schema.key(key), self._upto)


def verify_stretch(source: Source, stretch: Stretch) -> tuple[int, list[Finding]]:
    """Check the events of a stretch. Returns how many there are, and what is wrong.

    If something is, and the log explains more by now (a value was erased, reads were pruned meanwhile), then again.
    """
    count = 0
    found: list[Finding] = []
    for _try in range(TRIES_MAX):
        before = _explained(source, stretch)
        count, found = _verify(source, stretch)
        if not found or _explained(source, stretch) == before:
            break
    return count, found


def _explained(source: Source, stretch: Stretch) -> Allowances | None:
    try:
        return source.allowed(stretch.run)
    except Exception:  # unreadable: the verification itself says so
        return None


def _verify(source: Source, stretch: Stretch) -> tuple[int, list[Finding]]:
    findings = Findings(stretch.tenant, stretch.name)
    count = 0
    try:
        source.backend.met(stretch.run, stretch.parent)
        past = _Before(source, stretch, findings)
        allowed = source.allowed(stretch.run)
        chain = Chain(
            findings,
            source.text_of,
            seq=stretch.first - 1,
            digest=past.digest(stretch, allowed),
            recorded_at=past.recorded_at(),
            versions=past.versions,
            allowed=allowed,
        )
        rows = source.backend.stream(source.scans.rows, (stretch.run, stretch.first, stretch.last), BATCH)
        links = chain.links(rows)
        if stretch.level == "full":
            _judged(source, stretch, findings, past, links, allowed)
        else:
            deque(links, maxlen=0)
        count = chain.count
        if chain.seq < stretch.last:
            chain.cross(chain.seq, stretch.last + 1, chain.digest)
        _leftovers(stretch, chain)
    except RefoldError as error:
        findings.add(None, "unreadable", str(error))
    except Exception as error:  # a driver's error on a broken file
        findings.add(None, "unreadable", f"{type(error).__name__}: {error}")
    return count, findings.found


def _judged(
    source: Source, stretch: Stretch, findings: Findings, past: _Before, links: Iterator[Any], allowed: Allowances
) -> None:
    rules = Rules(
        findings,
        past,
        text_of=source.text_of,
        schema_of=source.schema_of,
        schema=past.schema() if stretch.first > 1 else None,
        first=stretch.first,
        base=stretch.base,
        allowed=allowed,
    )
    judge = rules.judge
    for row in links:
        try:
            judge(row)
        except Exception as error:  # what a damaged row may raise has no bound; the row is named
            findings.add(row[SEQ], "column", f"cannot be judged ({type(error).__name__}: {error})")
    rules.end(stretch.last)


def _leftovers(stretch: Stretch, chain: Chain) -> None:
    """What nothing allows to be missing, and what should be missing and is there."""
    findings, allowed = chain.findings, chain.allowed
    for row in chain.erased:
        findings.add(row[SEQ], "body", "was erased, and no value.erased event after it says so")
    for first, gap in allowed.gaps.items():
        if first not in chain.gaps and stretch.first <= first <= stretch.last:
            said = f"reads.pruned at seq {gap.said} lists seq {first} to {gap.last} as removed"
            findings.add(first, "pruning", f"{said}, but they are there: prune again")


def verify_frames(source: Source, stretch: Stretch) -> list[Finding]:
    """Check a run's keyframes: each is the fold of the one before it and the updates between."""
    findings = Findings(stretch.tenant, stretch.name)
    backend = source.backend
    before: dict[int, tuple[int, Any]] = {}
    prints = declared_schemas(backend, stretch.run)
    for key_id, seq, version, body in backend.query(source.scans.frames, (stretch.run,)):
        start_seq, start = before.get(key_id, (0, ABSENT))
        before = {key_id: (seq, ABSENT)}
        try:
            name = source.text_of(key_id) or ""
            in_force = [fingerprint for at, fingerprint in prints if at <= seq]
            key = source.schema_of(in_force[-1]).key(name)
            rows = backend.since(stretch.run, key_id, start_seq, seq)
            value = fold_updates(key, start, rows)
            before = {key_id: (seq, value)}
            if not rows or rows[-1][0] != seq or rows[-1][1] != version or encode(value) != bytes(body):
                findings.add(seq, "keyframe", f"the keyframe of {name!r} is not the fold of its events; delete it")
        except Exception as error:  # whatever the damage raises, this keyframe cannot be trusted
            findings.add(seq, "keyframe", f"a keyframe cannot be checked ({error}); delete it")
    return findings.found
