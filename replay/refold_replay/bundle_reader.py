"""Reading a bundle without trust.

Rules of this module
- Nothing read is believed: a line has a length, each member a type and a range, and a name is never a path.
- Memory is bounded by the longest line, whatever the file unpacks to; what is wrong is named with its line.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from refold_replay.allowances import Allowances, Erasure, Gap
from refold_replay.bundle import FORM, HEX, End, Line, Manifest, Members
from refold_store.backend import MAX_SEQ
from refold_store.errors import BundleInvalid, RefoldError
from refold_store.events import KIND_ID
from refold_store.jsontext import encode, parse
from refold_store.names import check_name
from refold_store.sealer import CLOCK_END_US

LINE_MAX: Final = 64 * 1024 * 1024
"""Longest line that is read, in bytes: twice what a value may be unless its key allows more."""
READ_BYTES: Final = 1 << 20
"""Bytes unpacked at once."""
PACKED_BYTES: Final = 1 << 14
"""Bytes of the file unpacked from at once: few, as each end of a gzip member copies what is left of them."""
PARTS_MAX: Final = 4_000_000
"""Members of the lists and objects of one line, in all, for LINE_MAX bytes: each may take 72 bytes of memory (a colon
counts, as the key takes its own), and a value of the default size that holds more has members as short as `[1]`."""
ENTRIES_MAX: Final = 500_000
"""Erasures and gaps of one manifest: each takes 400 bytes of memory."""
SUFFIX: Final = ".refold"
"""How the name of a bundle ends."""
_INT_MAX: Final = (1 << 63) - 1
SCHEMAS_MAX: Final = 10_000
"""Schemas of one bundle: a run declares one whenever its program changes it."""
SCHEMAS_BYTES: Final = 16 * 1024 * 1024
"""All schemas of one bundle, in bytes: they are held while it is read; one of a thousand keys takes a hundredth."""
_MANIFEST: Final = (
    "refold", "form", "tenant", "run", "scope", "genesis", "until", "digest", "redacted", "erased", "pruned",
)  # fmt: skip
_NUMBERS: Final = {
    "seq": (1, MAX_SEQ),
    "txn": (1, MAX_SEQ),
    "turn": (0, _INT_MAX),
    "version": (0, _INT_MAX),
    "seen_seq": (0, _INT_MAX),
    "recorded_at": (0, CLOCK_END_US - 1),
    "clock": (0, CLOCK_END_US - 1),
    "trace_flags": (0, 255),
}


_SIGN: Final = re.compile(rb'"[^"]*(?:"|\Z)|[,:\[{]')
"""A text without escapes, or a sign that stands before a member."""


def is_bundle(path: Path) -> bool:
    """Whether a file means to be a bundle: by its first line, or by its name if that cannot be read."""
    try:
        with path.open("rb") as file:
            start = zlib.decompressobj(31).decompress(file.read(READ_BYTES), READ_BYTES)
    except (OSError, zlib.error):
        return path.suffix == SUFFIX and path.exists()
    return b'"refold":"bundle"' in start.split(b"\n", 1)[0] or path.suffix == SUFFIX


class BundleReader:
    """Reads a bundle once, from its first line to its last. Raises BundleInvalid with the line."""

    def __init__(self, path: Path, *, line_max: int = LINE_MAX) -> None:
        self.path = path
        self.number = 0
        """The line that was read last, from 1."""
        self.end: End | None = None
        self._hash = sha256()
        self._parts_max = PARTS_MAX * line_max // LINE_MAX
        self._lines = self._unpacked(line_max)
        self.manifest = self._manifest(self._next())
        self.schemas: dict[str, bytes] = {}
        self._first: Members | None = None
        self._schemas()

    def fail(self, message: str, cause: BaseException | None = None, *, line: int | None = None) -> BundleInvalid:
        """An error that names the file and the line: the one that was read last, or `line`."""
        number = line or max(self.number, 1)
        error = BundleInvalid(f"{self.path}, line {number}: {message}", line=number)
        error.__cause__ = cause
        return error

    def events(self) -> Iterator[Line]:
        """The events, in the order of the file; their form is checked, and the end's count and hash."""
        count, members = 0, self._first
        while members is not None and "end" not in members:
            count += 1
            yield self._event(members)
            members = self._next()
        if members is None:
            raise self.fail("the bundle ends before its last line; it was cut off")
        before = self._before_end
        self.end = self._end(members, count, before)
        if next(self._lines, None) is not None:
            raise self.fail("something stands behind the last line")

    # --- lines ---------------------------------------------------------------------------------

    def _unpacked(self, line_max: int) -> Iterator[bytes]:
        """The lines of the file, unpacked piece by piece; every gzip member is checked to its end."""
        begun = bytearray()  # of the line that is not whole yet
        with self.path.open("rb") as file:
            for piece in _inflated(file, self.fail):
                *lines, rest = piece.split(b"\n")
                if lines:
                    lines[0] = bytes(begun) + lines[0]
                    begun.clear()
                for line in lines:
                    self._check_size(line, line_max)
                    yield line
                begun += rest
                if len(begun) > line_max:
                    self._check_size(begun, line_max)
        if begun:
            self.number += 1
            raise self.fail("the last line has no end; the bundle was cut off")

    def _check_size(self, line: bytes | bytearray, line_max: int) -> None:
        """What is not even parsed: a line so long, or of so many parts, that its value would fill the memory."""
        if len(line) > line_max:
            self.number += 1
            raise self.fail(f"a line of over {line_max} bytes; `line_max` of the Python API lets longer ones in")
        if _has_more_parts(line, self._parts_max):
            self.number += 1
            raise self._too_many_parts()

    def _too_many_parts(self) -> BundleInvalid:
        return self.fail(f"over {self._parts_max} parts of lists and objects; a larger `line_max` lets more in")

    def _next(self) -> Members | None:
        line = next(self._lines, None)
        if line is None:
            return None
        self.number += 1
        self._before_end = self._hash.digest()
        self._hash.update(line)
        self._hash.update(b"\n")
        try:
            members = parse(line)
        except RefoldError as error:
            raise self.fail(f"no JSON object: {error}", error) from error
        if not isinstance(members, dict):
            raise self.fail(f"a JSON object is expected, not {type(members).__name__}")
        return members

    def _schemas(self) -> None:
        size = 0
        while (members := self._next()) is not None and "schema" in members:
            self._only(members, ("schema", "declaration"))
            fingerprint, text = self._text(members, "schema"), self._text(members, "declaration").encode()
            if sha256(text).hexdigest() != fingerprint:
                raise self.fail("the declaration does not give its fingerprint")
            if _has_more_parts(text, self._parts_max):
                raise self._too_many_parts()
            size += len(text)
            if fingerprint in self.schemas or len(self.schemas) >= SCHEMAS_MAX or size > SCHEMAS_BYTES:
                raise self.fail(
                    f"a schema stands twice, or there are over {SCHEMAS_MAX} of them, or over {SCHEMAS_BYTES} bytes"
                )
            self.schemas[fingerprint] = text
        self._first = members

    # --- members -------------------------------------------------------------------------------

    def _manifest(self, members: Members | None) -> Manifest:
        if members is None or members.get("refold") != "bundle":
            raise self.fail("this is no refold bundle")
        if members.get("form") != FORM:
            raise self.fail(f"the bundle has form {members.get('form')!r}, this refold reads {FORM}")
        self._only(members, _MANIFEST)
        missing = [name for name in _MANIFEST if name not in members]
        if missing:
            raise self.fail(f"the manifest lacks {missing[0]!r}")
        tenant, run, genesis = (self._name(members, name) for name in ("tenant", "run", "genesis"))
        redacted = members.get("redacted")
        if not isinstance(redacted, bool):
            raise self.fail("redacted is true or false")
        until = self._number(members, "until", 1, MAX_SEQ)
        digest = self._bytes(members, "digest", 32)
        assert tenant is not None and run is not None and genesis is not None and until is not None  # noqa: PT018
        assert digest is not None
        allowed = self._allowed(members, until)
        allowed.redacted = until if redacted else 0
        return Manifest(
            tenant, run, self._number(members, "scope", 0, 2) or 0, genesis, until, digest, redacted, allowed
        )

    def _allowed(self, members: Members, newest: int) -> Allowances:
        """What the manifest tells of erasures and gaps: in order, none beyond the newest event."""
        found, before_it = Allowances(), 0
        if sum(isinstance(members[name], list) and len(members[name]) for name in ("erased", "pruned")) > ENTRIES_MAX:
            raise self.fail(f"over {ENTRIES_MAX} erasures and gaps")
        try:
            for seq, until, key, version in _rows(members["erased"], 4):
                for number in (seq, until, *(() if version is None else (version,))):
                    _whole(number)
                before_it = _rising(before_it, seq, newest)
                found.erase(Erasure(seq, until, None if key is None else check_name("key", key), version))
            before_it = 0
            for first, last, before, digest, said in _rows(members["pruned"], 5):
                before_it = _rising(_rising(before_it, _whole(first), newest) - 1, _whole(last), newest)
                if not last < _whole(said) <= newest:
                    raise ValueError("reads are pruned by a later event")
                found.gaps[first] = Gap(last, _hex(before, 32), _hex(digest, 32), said)
        except (RefoldError, ValueError, TypeError, KeyError) as error:
            raise self.fail(f"what was erased or pruned is not told well: {error}", error) from error
        return found

    def _event(self, members: Members) -> Line:
        self._only(members, Line._fields)
        kind = KIND_ID.get(self._text(members, "kind"))
        if kind is None:
            raise self.fail(f"there is no kind of event {members['kind']!r}")
        numbers = {name: self._number(members, name, *span) for name, span in _NUMBERS.items()}
        names = {name: self._name(members, name, optional=True) for name in ("actor", "owner", "key", "request_id")}
        raw = {name: self._bytes(members, name, size, optional=True) for name, size in HEX.items()}
        body, refs = self._json(members, "body"), self._json(members, "refs")
        if numbers["seq"] is None or numbers["recorded_at"] is None or raw["digest"] is None:
            raise self.fail("an event has seq, recorded_at and digest")
        if (raw["salt"] is None) is (raw["commitment"] is None) or (body is not None and raw["salt"] is None):
            raise self.fail("an event has a salt, or a commitment in the place of salt and body")
        found: Members = {**numbers, **names, **raw, "kind": kind, "body": body}
        return Line(**found, refs=None if refs is None else refs.decode())

    def _end(self, members: Members, count: int, before: bytes) -> End:
        self._only(members, ("end", "sha256", "public_key", "signature"))
        if self._number(members, "end", 0, MAX_SEQ) != count:
            raise self.fail(f"the end counts {members['end']!r} events, the bundle holds {count}")
        digest = self._bytes(members, "sha256", 32)
        if digest != before:
            raise self.fail("the lines do not give the hash of the end: something was changed, removed or added")
        key, signature = self._bytes(members, "public_key", 32, True), self._bytes(members, "signature", 64, True)
        if (key is None) is not (signature is None):
            raise self.fail("a signature and its public key stand together")
        return End(count, before, key, signature)

    def _only(self, members: Members, known: tuple[str, ...]) -> None:
        unknown = sorted(set(members) - set(known))
        if unknown:
            raise self.fail(f"unknown member {unknown[0]!r}")

    def _text(self, members: Members, name: str) -> str:
        found = members.get(name)
        if not isinstance(found, str):
            raise self.fail(f"{name} is text, not {type(found).__name__}")
        return found

    def _name(self, members: Members, name: str, *, optional: bool = False) -> str | None:
        if optional and name not in members:
            return None
        try:
            return check_name(name, self._text(members, name))
        except RefoldError as error:
            raise error if isinstance(error, BundleInvalid) else self.fail(str(error), error) from error

    def _number(self, members: Members, name: str, low: int, high: int) -> int | None:
        if name not in members:
            return None
        found = members[name]
        if type(found) is not int or not low <= found <= high:
            raise self.fail(f"{name} is a whole number from {low} to {high}")
        return found

    def _bytes(self, members: Members, name: str, size: int, optional: bool = False) -> bytes | None:
        if optional and name not in members:
            return None
        try:
            return _hex(members.get(name), size)
        except ValueError as error:
            raise self.fail(f"{name} is {size} bytes in hex", error) from error

    def _json(self, members: Members, name: str) -> bytes | None:
        """The exact text of a JSON object, in the one spelling the log has."""
        if name not in members:
            return None
        text = self._text(members, name).encode()
        if _has_more_parts(text, self._parts_max):
            raise self._too_many_parts()
        try:
            value = parse(text)
            if isinstance(value, dict) and encode(value) == text:
                return text
        except RefoldError as error:
            raise self.fail(f"{name}: {error}", error) from error
        raise self.fail(f"{name} is a JSON object in its canonical spelling")


def _has_more_parts(text: bytes | bytearray, most: int) -> bool:
    """Whether a JSON text has more members, outside its texts, than may be held. Looked at closely only if it may."""
    if len(text) <= most or sum(map(text.count, (b",", b":", b"[", b"{"))) <= most:
        return False
    count, inside, begin = 0, b"", 0
    while begin < len(text) and count <= most:
        end = begin + READ_BYTES
        while text[end - 1 : end] == b"\\":
            end += 1  # no escape is cut in two
        bare = inside + text[begin:end].replace(rb"\\", b"").replace(rb"\"", b"")
        count += sum(not found[0].startswith(b'"') for found in _SIGN.finditer(bare))
        inside, begin = b'"' * (bare.count(b'"') % 2), end
    return count > most


def _inflated(file: Any, fail: Any) -> Iterator[bytes]:
    """The content of all gzip members of a file, at most READ_BYTES at once."""
    unpack, waiting, begun = zlib.decompressobj(31), b"", False
    while True:
        if not waiting:
            waiting = file.read(PACKED_BYTES)
            if not waiting:
                break
        if unpack.eof:
            unpack = zlib.decompressobj(31)
        begun = True
        try:
            piece = unpack.decompress(waiting, READ_BYTES)
        except zlib.error as error:
            raise fail(f"no gzip data: {error}", error) from error
        waiting = unpack.unused_data if unpack.eof else unpack.unconsumed_tail
        if piece:
            yield piece
    if not begun or not unpack.eof:
        raise fail("the file is cut off, or empty")


def _rows(found: Any, size: int) -> Iterator[list[Any]]:
    if not isinstance(found, list):
        raise TypeError("a list is expected")
    for one in found:
        if not isinstance(one, list) or len(one) != size:
            raise TypeError(f"a list of {size} is expected")
        yield one


def _whole(number: Any) -> int:
    if type(number) is not int or not 0 <= number <= _INT_MAX:
        raise ValueError("a whole number is expected")
    return number


def _rising(before: int, number: int, most: int) -> int:
    """A seq that follows another one in a list."""
    if not before < number <= most:
        raise ValueError(f"seq {number} is out of order, or beyond the newest event")
    return number


def _hex(text: Any, size: int) -> bytes:
    if not isinstance(text, str) or len(text) != 2 * size or text != text.lower():
        raise ValueError("hex is expected")
    return bytes.fromhex(text)
