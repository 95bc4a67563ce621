"""Writes docs/cli.md from the commands themselves, or with --check says whether it is up to date.

usage: make_cli_docs.py [--check]
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from refold import exits
from refold.app import ABOUT, SECTIONS, root

PAGE = Path(__file__).parents[1] / "docs" / "cli.md"
COMMON = {"--store", "--tenant", "--json", "--help"}

HEAD = """# Command line

<!-- Made by tools/make_cli_docs.py from the commands; `make check` compares. Do not edit. -->
"""

COMMON_TEXT = """## Options of all commands

| option | meaning |
|---|---|
| `--store URL` | The store: `sqlite:///FILE`, a file's path, or `postgresql://USER@HOST/DATABASE`. Else \
the environment variable `REFOLD_STORE` |
| `--tenant TEXT` | Whose runs; `default` if not given |
| `--json` | Exact JSON: one document, or for `events`, `tail`, `history` and `log` one a line. Integers in full, \
nothing cut |
| `--help`, `-h` | Help on a command |

They stand after the command's name. `completion` takes none of the first three.

On a terminal tables are cut to its width with `…`; elsewhere they are whole. Characters that are not printable (escape
sequences, bidi overrides, invisible marks) are shown escaped, since names and values come from models. Values of keys
declared `sensitive` are shown as `***` unless `--show-sensitive` is given.
"""


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD, _about(), COMMON_TEXT, _exit_codes(), *_commands()]).rstrip() + "\n"


def _about() -> str:
    return inspect.cleandoc(ABOUT) + "\n"


def _exit_codes() -> str:
    lines = ["## Exit codes", "", "| code | meaning |", "|---|---|"]
    lines += [f"| {code} | {_cell(meaning)} |" for code, meaning in exits.HELP]
    lines += [
        f"| {exits.INTERRUPTED} | interrupted by Ctrl-C |",
        f"| {exits.PIPE_CLOSED} | the reader of a pipe went away |",
    ]
    return "\n".join([*lines, "", "A mistake is one line on standard error.", ""])


def _commands() -> Iterator[str]:
    context = click.Context(root, info_name="refold")
    for title, section in SECTIONS.items():
        yield f"## {title}\n"
        for name in section:
            command = root.get_command(context, name)
            assert command is not None, name
            yield from _command(command, click.Context(command, info_name=name, parent=context))


def _command(command: click.Command, context: click.Context) -> Iterator[str]:
    path = context.command_path
    usage = " ".join([path, *(piece for piece in command.collect_usage_pieces(context))])
    text = re.sub(r"\s*\n\s*\n\s*", "\n\n", inspect.cleandoc(command.help or ""))
    yield f"### {path}\n\n```text\n{usage}\n```\n\n{text}\n"
    rows = [row for param in command.get_params(context) if (row := _option(param, context)) is not None]
    if rows:
        yield "\n".join(["| option | meaning |", "|---|---|", *rows, ""])
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None, name
            yield from _command(inner, click.Context(inner, info_name=name, parent=context))


def _option(param: click.Parameter, context: click.Context) -> str | None:
    record = param.get_help_record(context) if isinstance(param, click.Option) else None
    if record is None or COMMON & set(param.opts):
        return None
    spelled, meaning = record
    return f"| `{_cell(spelled)}` | {_cell(meaning)} |"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def main() -> int:
    """Write the page, or with --check compare it; give the exit code."""
    wanted = page()
    if "--check" not in sys.argv[1:]:
        PAGE.parent.mkdir(exist_ok=True)
        PAGE.write_text(wanted, encoding="utf-8")
        return 0
    found = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    if found == wanted:
        return 0
    print("docs/cli.md is out of date: run tools/make_cli_docs.py")
    return 1


if __name__ == "__main__":
    sys.exit(main())
