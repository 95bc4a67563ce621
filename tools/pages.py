"""Runs what the documents show: the blocks of one page, in order, in a folder of its own.

- ```` ```python ````: executed; the blocks of a page share a namespace. A ```` ```text ```` block right after it is
  what it prints.
- ```` ```yaml FILE ````, likewise json, jsonl and python with a file's name: written to FILE, not executed.
- ```` ```console ````: lines `$ refold ...`, `$ python ...`, `$ cat ...` and `$ ls ...` are run, and what follows is
  their output, standard error included; `$ export NAME=VALUE` sets a variable. Other `$` lines are left alone. A
  command may end with a status other than 0 only if a line `[exit status N]` follows its output.

Times, digests, durations and sizes are compared by their shape, blanks and line breaks as one. A line `...` in
expected output stands for anything.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

FENCE = re.compile(r"^(?P<fence>```+)(?P<info>[^\n`]*)\n(?P<body>.*?)^(?P=fence)[ \t]*$", re.MULTILINE | re.DOTALL)
RUN = ("refold", "python", "cat", "ls")
TIMEOUT_S = 60
MODULE = "documents_page"
SERVER = re.compile(r"postgresql://[\w.@:-]*db\.example/refold\w*")
"""The server of the documents, which stands for the one of the tests."""

_SHAPES = (
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00| UTC)?"), "<time>"),
    (re.compile(r"\b\d\d:\d\d:\d\d(\.\d+)?\b"), "<time>"),
    (re.compile(r"\b[0-9a-f]{32,64}\b"), "<digest>"),
    (re.compile(r"\b(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{12}\b"), "<digest>"),
    (re.compile(r"\b\d+(\.\d+)? ?[a-z]+ ago\b|\bjust now\b"), "<ago>"),
    (re.compile(r"\b\d+(\.\d+)? ?(µs|ms|s|min)\b"), "<duration>"),
    (re.compile(r"\d+(\.\d+)? ?([KMG]i?B|bytes)\b"), "<size>"),
    (re.compile(r"[─━═│┃┏┓┗┛┡┩╇╈┳┻╋┼├┤┬┴╭╮╰╯-]{3,}"), "<rule>"),
    (re.compile(r"\s+"), " "),
)


@dataclass(frozen=True)
class Block:
    """One fenced block: its language, the file it names, its text, and the line it begins on."""

    language: str
    file: str
    text: str
    line: int


@dataclass
class Page:
    """A page being run: where, in which environment, with which names bound."""

    folder: Path
    env: dict[str, str]
    server: str | None = None
    module: ModuleType = field(default_factory=lambda: ModuleType(MODULE))
    """Holds what the page's Python blocks define; classes find each other's annotations through it."""

    def localised(self, text: str) -> str:
        """The text with the documents' server replaced by the tests' one."""
        return SERVER.sub(lambda _: self.server or "", text) if self.server else text


def blocks(text: str) -> Iterator[Block]:
    """The fenced blocks of a page, in order."""
    for found in FENCE.finditer(text):
        language, _, file = found["info"].strip().partition(" ")
        yield Block(language, file.strip(), found["body"], text.count("\n", 0, found.start()) + 1)


def shape(text: str) -> str:
    """Output as it is compared."""
    for pattern, stand_in in _SHAPES:
        text = pattern.sub(stand_in, text)
    return text.strip()


def same(shown: str, printed: str) -> bool:
    """Whether printed output is what the page shows; `...` on a line of its own stands for anything."""
    parts = [shape(part) for part in re.split(r"^[ \t]*\.\.\.[ \t]*$", shown, flags=re.MULTILINE)]
    pattern = ".*".join(re.escape(part) for part in parts)
    return re.fullmatch(rf"\s*{pattern}\s*", shape(printed)) is not None


def run_page(path: Path, page: Page) -> list[str]:
    """Run the blocks of a page; findings by line."""
    findings: list[str] = []
    shown = list(blocks(path.read_text(encoding="utf-8")))
    printed: str | None = None
    for block in shown:
        where = f"{path.name}:{block.line}"
        if block.file and block.language in ("yaml", "json", "python", "jsonl"):
            (page.folder / block.file).write_text(page.localised(block.text), encoding="utf-8")
            printed = None
        elif block.language == "python":
            printed = _run_python(block, page, path)
        elif block.language == "text" and printed is not None:
            if not same(block.text, printed):
                findings.append(f"{where}: the block before prints\n{printed}")
            printed = None
        elif block.language == "console":
            findings += [f"{where}: {finding}" for finding in _run_console(block, page)]
            printed = None
        else:
            printed = None
    return findings


def _run_python(block: Block, page: Page, path: Path) -> str:
    source = "\n" * block.line + page.localised(block.text)
    out = io.StringIO()
    sys.modules[MODULE] = page.module
    with contextlib.redirect_stdout(out), contextlib.chdir(page.folder):
        exec(compile(source, str(path), "exec", dont_inherit=True), vars(page.module))
    return out.getvalue()


def commands(text: str) -> Iterator[tuple[str, str]]:
    """(command, shown output) of a console block."""
    command: str | None = None
    output: list[str] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            if command is not None:
                yield command, "\n".join(output)
            command, output = line[2:], []
        elif command is not None and command.endswith("\\"):
            command = command[:-1].rstrip() + " " + line.lstrip("> ")
        else:
            output.append(line)
    if command is not None:
        yield command, "\n".join(output)


def _run_console(block: Block, page: Page) -> Iterator[str]:
    for command, expected in commands(block.text):
        if command.startswith("export "):
            name, _, value = command.removeprefix("export ").partition("=")
            page.env[name] = page.localised(value)
            continue
        if command.partition(" ")[0] not in RUN:
            continue
        status = 0
        if (found := re.search(r"^\[exit status (\d+)\]\s*\Z", expected, re.MULTILINE)) is not None:
            status, expected = int(found[1]), expected[: found.start()]
        done = subprocess.run(
            _argv(page.localised(command)),
            cwd=page.folder,
            env=page.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            timeout=TIMEOUT_S,
            check=False,
        )
        printed = done.stdout.decode()
        if done.returncode != status:
            yield f"$ {command}\nended with {done.returncode}, not {status}:\n{printed}"
        elif not same(expected, printed):
            yield f"$ {command}\nprints\n{printed}"


def _argv(command: str) -> list[str]:
    words = shlex.split(command, comments=True)
    if words[0] == "refold":
        return [sys.executable, "-m", "refold", *words[1:]]
    return [sys.executable if words[0] == "python" else words[0], *words[1:]]


def environment() -> dict[str, str]:
    """The environment of commands: a plain terminal of 120 columns, no settings from outside."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("REFOLD_", "OTEL_"))}
    return env | {"COLUMNS": "120", "NO_COLOR": "1", "TERM": "dumb", "USER": "dana", "LOGNAME": "dana", "TZ": "UTC"}
