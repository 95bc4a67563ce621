"""Recorded runs in files: JSON Lines, plain or gzip, read run by run.

Rules of this module
- Lines are read as they are asked for; nothing keeps them. gzip is told by content, not by name. Empty lines are
  skipped, and counted.
- A line is parsed strictly. What is wrong with it is kept with file and line, and fails the run it stands in.
- The lines of a run stand together: a run that comes again, in the same file or another, is an error in both places.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO, cast

from refold_store.errors import ConfigError, NotExact
from refold_store.jsontext import parse

LINE_MAX = 64 * 1024 * 1024
"""Longest line, in bytes: four times the largest value a key may hold."""
ERRORS_MAX = 50
"""Errors kept of one run: the first ones tell what is wrong, and a broken file must not fill the memory."""
PROGRESS_EVERY = 500
"""Lines or events between two calls of a progress function."""

Progress = Callable[[int, int, str], None]
"""`progress(done, total, run)`: lines of an import, events of a verification."""

_GZIP = b"\x1f\x8b"
_RUN_FIRST = re.compile(rb'\{"run": ?("(?:[^"\\\x00-\x1f]|\\.)*")')


@dataclass(frozen=True, slots=True)
class LineError:
    """What is wrong at one line of a file."""

    file: str
    line: int
    message: str
    run: str | None = None

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.message}"


@dataclass(slots=True)
class SourceRun:
    """One run of a file, whose lines are read as they are asked for."""

    name: str
    file: str
    line: int
    """The number of its first line."""
    lines: Iterator[tuple[int, dict[str, Any]]] = field(default_factory=lambda: iter(()), repr=False)
    """(number, object) of each line that can be read."""
    errors: list[LineError] = field(default_factory=list)
    count: int = 0
    """Lines read, the faulty ones included."""
    digest: Any = field(default_factory=sha256, repr=False)

    def fault(self, line: int, message: str) -> None:
        """Note what is wrong at a line."""
        if len(self.errors) < ERRORS_MAX:
            self.errors.append(LineError(self.file, line, message, self.name))

    @property
    def sha256(self) -> str:
        """Of the lines read so far as they stand in the file, each with a newline; in hex."""
        return str(self.digest.hexdigest())


@dataclass(frozen=True, slots=True)
class Overview:
    """What a first look at the files finds."""

    lines: int
    repeated: dict[str, list[LineError]]
    """Runs whose lines do not stand together."""


def read_lines(path: str | Path) -> Iterator[tuple[int, bytes]]:
    """(number, text) of each line that is not empty. Raises ConfigError if the file cannot be read to its end."""
    number = 0
    try:
        with open(path, "rb") as plain, _unpacked(plain) as file:
            while raw := file.readline(LINE_MAX + 1):
                number += 1
                if len(raw) > LINE_MAX:
                    raise ConfigError(f"the line is over {LINE_MAX} bytes", where=f"{path}:{number}")
                raw = raw.strip(b" \t\r\n")
                if raw:
                    yield number, raw
    except (OSError, EOFError, zlib.error) as error:
        where = f"{path}:{number + 1}" if number else str(path)
        raise ConfigError(f"cannot be read: {_cause(error)}", where=where) from error


def _unpacked(plain: BinaryIO) -> BinaryIO:
    """The file itself, or what its gzip holds."""
    start = plain.read(len(_GZIP))
    plain.seek(0)
    return cast(BinaryIO, gzip.GzipFile(fileobj=plain)) if start == _GZIP else plain


def _cause(error: BaseException) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else f"the file ends or breaks off: {error}"


def check_start(path: str | Path) -> None:
    """Raises ConfigError if the first line is no JSON: then the file is something else, and no line of it is told."""
    for number, raw in read_lines(path):
        try:
            json.loads(raw, parse_int=str)  # as many digits as there are
        except ValueError as error:
            raise ConfigError("neither a bundle nor JSON Lines", where=f"{path}:{number}") from error
        except RecursionError:
            pass  # JSON it may be; the line itself is told
        return


def read_object(raw: bytes) -> dict[str, Any]:
    """One line as an object. Raises NotExact with path or position."""
    document = parse(raw)
    if not isinstance(document, dict):
        raise NotExact(f"$: a line is an object, not {type(document).__name__}", path="$")
    return document


def look_over(files: Sequence[str | Path]) -> Overview:
    """A quick first pass: how many lines, and which runs do not stand together."""
    total = 0
    current: str | None = None
    first: dict[str, tuple[str, int]] = {}
    repeated: dict[str, list[LineError]] = {}
    token = b""
    for path in files:
        check_start(path)
        current, token = None, b""
        for number, raw in read_lines(path):
            total += 1
            if token and raw.startswith(token):
                continue
            found = _RUN_FIRST.match(raw)
            token = b"" if found is None else found[0]
            name = _run_name(raw, found)
            if name is None or name == current:
                continue
            if name in first:
                file, line = first[name]
                message = f"run {name!r} stands here too, and from {file}:{line} on: the lines of a run stand together"
                repeated.setdefault(name, []).append(LineError(str(path), number, message, name))
            first.setdefault(name, (str(path), number))
            current = name
    return Overview(total, repeated)


def _run_name(raw: bytes, found: re.Match[bytes] | None) -> str | None:
    try:
        name = json.loads(found[1]) if found is not None else read_object(raw).get("run")
    except (NotExact, ValueError):
        return None
    return name if isinstance(name, str) else None


def read_runs(files: Sequence[str | Path]) -> Iterator[SourceRun]:
    """Each run of the files, one after the other. A line that names no run is a fault of the run before it."""
    for path in files:
        grouped = _Grouped(path)
        while (run := grouped.next_run()) is not None:
            yield run
            for _ in run.lines:
                pass


class _Grouped:
    """The lines of a file, with one line of look-ahead."""

    def __init__(self, path: str | Path) -> None:
        self._path = str(path)
        self._lines = read_lines(path)
        self._ahead: tuple[int, bytes, dict[str, Any], str | None] | None = None
        self._step()

    def _step(self) -> None:
        for number, raw in self._lines:
            document, message = _read(raw)
            self._ahead = number, raw, document, message
            return
        self._ahead = None

    def next_run(self) -> SourceRun | None:
        """The run that begins at the next line."""
        if self._ahead is None:
            return None
        number, _raw, document, _message = self._ahead
        run = SourceRun(document.get("run", ""), self._path, number)
        run.lines = self._of(run)
        return run

    def _of(self, run: SourceRun) -> Iterator[tuple[int, dict[str, Any]]]:
        while self._ahead is not None:
            number, raw, document, message = self._ahead
            if message is None and document["run"] != run.name:
                return
            self._step()
            run.count += 1
            run.digest.update(raw + b"\n")
            if message is None:
                yield number, document
            else:
                run.fault(number, message)


def _read(raw: bytes) -> tuple[dict[str, Any], str | None]:
    try:
        document = read_object(raw)
    except NotExact as error:
        return {}, error.detail
    if not isinstance(document.get("run"), str):
        return {}, 'the line has no "run", which is the run\'s name as text'
    return document, None
