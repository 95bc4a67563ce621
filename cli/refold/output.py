"""What the command line prints: text and tables for people, exact JSON for programs.

Rules of this module
- Names and values come from models and may hold anything: what is not printable (control characters, escape
  sequences, bidi overrides, invisible marks) is shown escaped, inside JSON as JSON escapes, so that a copied value
  stays the same value.
- On a terminal tables are cut with "…" to its width; anywhere else, and with --json, nothing is cut.
- JSON is canonical and exact, one document a line.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from refold_store import jsontext
from refold_store.errors import ConfigError

SHORT = 72
"""Longest compact JSON that stays on one line in `pretty`."""
MASK = "***"
"""Stands for the value of a sensitive key."""
LABEL = 12
"""Columns of the labels in `facts`."""
GAP = 2
"""Columns between the columns of a table."""
NARROW = 8
"""Columns of a terminal a cell keeps in any case."""

_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")


# --- text --------------------------------------------------------------------------------------


def safe(text: str) -> str:
    """A text with everything that is not printable escaped as in Python: `\\x1b`, `\\u202e`."""
    if text.isprintable():
        return text
    return "".join(_escaped(char) for char in text)


def _escaped(char: str) -> str:
    if char.isprintable():
        return "\\\\" if char == "\\" else char
    return char.encode("unicode_escape").decode("ascii")


def safe_json(text: str) -> str:
    """A JSON text with everything that is not printable as JSON escapes; it means the same. Line ends stay."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char == "\n" else json.dumps(char)[1:-1] for char in text)


def compact(value: Any) -> str:
    """A value as one line of JSON."""
    return safe_json(jsontext.encode(value).decode())


def pretty(value: Any, indent: str = "") -> str:
    """A value as JSON over as many lines as it needs."""
    line = compact(value)
    if len(line) + len(indent) <= SHORT or not isinstance(value, (dict, list)):
        return line
    inner = indent + "  "
    if isinstance(value, dict):
        parts = [f"{compact(key)}: {pretty(value[key], inner)}" for key in sorted(value)]
        return "{\n" + ",\n".join(inner + part for part in parts) + f"\n{indent}}}"
    return "[\n" + ",\n".join(inner + pretty(one, inner) for one in value) + f"\n{indent}]"


def at_time(when: datetime) -> str:
    """A time in full, so that it can be used as a moment."""
    return when.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def ago(when: datetime, now_us: int) -> str:
    """How long ago, in one unit."""
    seconds = now_us / 1e6 - when.timestamp()
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit} ago"
    return "just now" if seconds > -1 else "in the future: check the clocks"


def plural(count: int, word: str) -> str:
    """`1 run`, `2 runs`."""
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}s"


# --- files -------------------------------------------------------------------------------------


def write_file(path: str, content: bytes, *, kind: Callable[[bytes], object], word: str) -> None:
    """Write a file whole or leave what was there. Raises a usage error that says why it could not.

    A file that is there is replaced only if it is empty or `kind` reads it, a `word`; else it raises ConfigError.
    """
    from refold_replay.anchoring import DOCUMENT_MAX
    from refold_replay.replacing import check_place

    def same(found: Path) -> bool:
        try:
            with found.open("rb") as file:
                return bool(kind(file.read(DOCUMENT_MAX + 1)))
        except ConfigError:
            return False

    target = os.path.realpath(path)
    try:
        if os.path.exists(target) and not os.path.isfile(target):  # a pipe or a device, like /dev/stdout
            with open(target, "wb") as plain:
                plain.write(content)
            return
        check_place(path, same, word)
        _replace(target, content)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise click.UsageError(f"cannot write {path!r}: {reason}") from None


def _replace(target: str, content: bytes) -> None:
    handle, beside = tempfile.mkstemp(prefix=f".{os.path.basename(target)[:100]}.", dir=os.path.dirname(target))
    try:
        with open(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(beside, _mode_of(target))
        os.replace(beside, target)
    except BaseException:
        os.unlink(beside)
        raise


def _mode_of(target: str) -> int:
    """The rights of the file that is there, or those a new one gets."""
    try:
        return os.stat(target).st_mode & 0o777
    except FileNotFoundError:
        mask = os.umask(0)
        os.umask(mask)
        return 0o666 & ~mask


# --- printing ----------------------------------------------------------------------------------


def terminal() -> bool:
    """Whether standard output is a terminal."""
    return sys.stdout.isatty()


def say(text: str = "") -> None:
    """Print text that is already safe."""
    click.echo(text)


def note(text: str) -> None:
    """A remark on standard error: it never mixes with what programs read."""
    click.echo(safe(text), err=True)


def document(value: Any) -> None:
    """One exact JSON document on one line. On a terminal what is not printable is escaped; it means the same."""
    text = jsontext.encode(value).decode()
    if not _encodable(text):
        text = "".join(char if char.isascii() else json.dumps(char)[1:-1] for char in text)
    click.echo(safe_json(text) if terminal() else text)
    sys.stdout.flush()


def _encodable(text: str) -> bool:
    """Whether standard output's encoding has every character of a text."""
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def facts(pairs: Iterable[tuple[str, str]]) -> None:
    """Label and text, one a line; a text of several lines keeps its place. The texts are already safe."""
    for label, text in pairs:
        first, *rest = text.split("\n")
        click.echo(click.style(label.ljust(LABEL), dim=terminal()) + first)
        for line in rest:
            click.echo(" " * LABEL + line)


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, empty: str) -> None:
    """A table; `empty` is said when there are no rows. None shows as nothing."""
    cells = [["" if cell is None else safe(str(cell)) for cell in row] for row in rows]
    if not cells:
        click.echo(safe(empty))
    elif terminal():
        _rich(columns, cells)
    else:
        _plain(columns, cells)


def _plain(columns: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    lines = [list(columns), *cells]
    widths = [max(len(line[at]) for line in lines) for at in range(len(columns))]
    for line in lines:
        click.echo("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())


def _rich(columns: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    room = shutil.get_terminal_size().columns
    lines = [[_to_the_second(text) for text in line] for line in cells]
    natural = [max(cell_len(line[at]) for line in [columns, *lines]) for at in range(len(columns))]
    shown = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    for column, width in zip(columns, _fitting(natural, room - GAP * len(columns)), strict=True):
        shown.add_column(column, no_wrap=True, overflow="ellipsis", width=width)
    for line in lines:
        shown.add_row(*(Text(text, no_wrap=True, overflow="ellipsis") for text in line))
    Console(file=sys.stdout, width=room, highlight=False, markup=False).print(shown)


def _to_the_second(text: str) -> str:
    """A time without its fraction: on a terminal room is short, and seq is the exact place."""
    return f"{text[:19]}Z" if _TIME.fullmatch(text) else text


def _fitting(natural: Sequence[int], room: int) -> list[int]:
    """Widths of columns that fit: the widest give way first, so that numbers and names stay whole."""
    widths = list(natural)
    while sum(widths) > room and max(widths) > NARROW:
        widths[widths.index(max(widths))] -= 1
    return widths
