"""What is wrong with a configuration, or worth knowing about it, each with its place.

Rules of this module
- A finding is one line: `file:line: path: message`. Errors stop a load or fail a check, warnings do not.
- Findings are collected, not raised, so that one run tells them all; they come out by line.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from refold_store.yamltext import Document

Severity = Literal["error", "warning"]
Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing found. `line` counts from 1, 0 where it speaks of the whole file; `path` is the place in the file."""

    file: str
    line: int
    path: str
    message: str
    severity: Severity = "error"

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        kind = "warning: " if self.severity == "warning" else ""
        return f"{place}: {self.path}: {kind}{self.message}" if self.path else f"{place}: {kind}{self.message}"


class Findings:
    """Collects the findings on one document."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._found: dict[Finding, None] = {}

    def error(self, path: Path, message: str) -> None:
        """A mistake at this path of the document."""
        self._add(path, message, "error")

    def warning(self, path: Path, message: str) -> None:
        """Something worth knowing at this path of the document."""
        self._add(path, message, "warning")

    def has(self, path: Path) -> bool:
        """Whether the document has something at this path."""
        return path in self._document.lines

    def _add(self, path: Path, message: str, severity: Severity) -> None:
        line = line_of(self._document, path)
        self._found[Finding(self._document.source, line, ".".join(path), message, severity)] = None

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The mistakes, by line."""
        return tuple(one for one in self.all if one.severity == "error")

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """The warnings, by line."""
        return tuple(one for one in self.all if one.severity == "warning")

    @property
    def all(self) -> tuple[Finding, ...]:
        """Everything found, by line."""
        return tuple(sorted(self._found, key=lambda one: one.line))


def line_of(document: Document, path: Path) -> int:
    """The line of a path, or of the nearest one above it that has a line; 0 for the file as a whole."""
    while path and path not in document.lines:
        path = path[:-1]
    return document.lines.get(path, 0) if path else 0


def did_you_mean(name: str, names: Iterable[str], *, otherwise: str = "") -> str:
    """`; did you mean 'x'?` for the names like this one, else what to say otherwise."""
    near = difflib.get_close_matches(name[:200], sorted(set(names)), n=3)
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else otherwise
