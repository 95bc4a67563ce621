"""The command `refold`: its commands by name, and how they end.

Rules of this module
- A command's module is imported when it is called, or when its own help is asked for: `refold --help` imports none.
- A user's mistake is one line on standard error and an exit code (exits.py), never a traceback.
"""

from __future__ import annotations

import difflib
import errno
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NamedTuple, NoReturn

import click

from refold import exits
from refold.output import safe
from refold_store.errors import RefoldError


class Entry(NamedTuple):
    """A command: the module it stands in, and its line in `refold --help`."""

    module: str
    line: str


SECTIONS: dict[str, dict[str, Entry]] = {
    "Start": {
        "demo": Entry("demo", "Play the claims case and show what an on-call person would ask."),
        "init": Entry("setup", "Make an empty store in a SQLite file."),
        "migrate": Entry("setup", "Bring the store's tables up to date; give PostgreSQL roles their rights."),
        "completion": Entry("setup", "Print the script that completes commands, runs and keys in a shell."),
    },
    "Look": {
        "get": Entry("get", "One key: value, version, writer, basis, who read it, who saw an older one."),
        "state": Entry("state", "Every key of a run, now or at a moment."),
        "keys": Entry("state", "The keys a run has written."),
        "runs": Entry("runs", "The runs of a tenant."),
        "history": Entry("history", "Every version of a key."),
        "readers": Entry("history", "Who read a key, which version, and was it stale."),
        "events": Entry("events", "The log of a run."),
        "tail": Entry("events", "The log of a run as it grows."),
        "diff": Entry("diff", "What changed between two moments of a run, or of two runs."),
    },
    "Explain": {
        "log": Entry("story", "A run as a readable story."),
        "blame": Entry("blame", "Which version set each part of a value, and who wrote it."),
        "find": Entry("find", "The moments at which a condition became true."),
        "explain": Entry("lineage", "What a reader read of a key, was it current or stale, and what it wrote on it."),
        "impact": Entry("lineage", "What rests on a version: its readers, their writes, and on."),
        "why": Entry("lineage", "What a version rests on, back to the first causes."),
        "lint": Entry("lint", "Shared state that smells: one reader, no reader, decisions on old versions."),
    },
    "Try": {
        "replay": Entry("replay", "Run agents' work again from the record, and compare."),
        "whatif": Entry("whatif", "Replay a run with a change, without a model: what would differ."),
        "fork": Entry("fork", "A new run that goes on from a moment of another."),
    },
    "Write": {
        "write": Entry("write", "Write a key."),
        "delete": Entry("write", "Delete a key: a new version without a value."),
    },
    "Run agents": {
        "engine": Entry("engine", "Let agents work on a run; check their configuration, draw their routes."),
    },
    "Bring in": {
        "import": Entry("imports", "Import recorded runs from event files."),
        "check": Entry("imports", "Compare imported runs with the right answers."),
        "schema": Entry("schemas", "Show, check, compare and infer state schemas."),
    },
    "Keep": {
        "verify": Entry("verify", "Check that the log holds: digests, order, owners, types, reads."),
        "anchor": Entry("anchor", "The newest digest of every run, signed, to be kept elsewhere."),
        "keygen": Entry("anchor", "Make a key that signs anchors and bundles."),
        "export": Entry("bundles", "A run as one file that verifies by itself."),
        "erase": Entry("keeping", "Erase values for good; the log still verifies."),
        "prune": Entry("keeping", "Roll up old reads."),
        "archive": Entry("keeping", "Move old runs out into bundles."),
        "doctor": Entry("doctor", "Check the store's surroundings and say what to do."),
    },
}

COMMANDS: dict[str, Entry] = {name: entry for section in SECTIONS.values() for name, entry in section.items()}

_OUTPUT_FAILS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)

ABOUT = """Shared state of AI agents: owned, versioned, read on the record.

A RUN is one job; a KEY is one fact in it, written by its one owner. A MOMENT is a point in a run: 42 (a seq),
routing@2 or key:NAME@2 (a version), 2026-11-30T02:00:00Z (a time with a zone), -20m, turn:7, or end. A last
@digits is a version, all digits are a seq.

Commands on a store take --store URL (or REFOLD_STORE), --tenant and --json, after their name."""


class Root(click.Group):
    """The group of all commands. Loads one when it is needed, and turns errors into a line and a code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        command: click.Command = getattr(import_module(f"refold.commands.{entry.module}"), f"{cmd_name}_command")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS and not name.startswith("-") and not ctx.resilient_parsing:
            near = difflib.get_close_matches(name, COMMANDS, 2, 0.6)
            hint = f"did you mean {' or '.join(near)}?" if near else "`refold --help` lists them"
            raise click.UsageError(f"no command {name!r}: {hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, COMMANDS))
        for title, section in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), entry.line) for name, entry in section.items()])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code), meaning) for code, meaning in exits.HELP])

    def invoke(self, ctx: click.Context) -> Any:
        if any(name.startswith("OTEL_") for name in os.environ):
            _set_up_sdk()
        with _output_errors():
            result = super().invoke(ctx)
            sys.stdout.flush()
        return result

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        with _output_errors():  # `--help` and `--version` print here
            return super().make_context(info_name, args, parent, **extra)

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run a command line. In standalone mode: exit with its code."""
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        try:
            code = super().main(args, prog_name or "refold", complete_var, standalone_mode=False, **extra)
        except click.UsageError as error:
            _end(_with_hint(error), error.exit_code)
        except click.ClickException as error:
            _end(error.format_message(), error.exit_code)
        except click.Abort:
            _end("interrupted", exits.INTERRUPTED)
        except RefoldError as error:
            _end(str(error), exits.code_of(error))
        sys.exit(code if isinstance(code, int) else exits.DONE)


@contextmanager
def _output_errors() -> Iterator[None]:
    """What to do when standard output takes nothing more: be quiet if nobody listens, say so if it is full."""
    try:
        yield
    except BrokenPipeError:
        _drop_output()
        raise click.exceptions.Exit(exits.PIPE_CLOSED) from None
    except OSError as error:
        if error.errno not in _OUTPUT_FAILS or error.filename is not None:
            raise
        _drop_output()
        raise _OutputFull(f"cannot write standard output: {error.strerror}") from None


class _OutputFull(click.ClickException):
    """Standard output takes nothing more."""

    exit_code = exits.UNAVAILABLE


def _drop_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else the flush at exit fails again


def _with_hint(error: click.UsageError) -> str:
    """A usage error as one line that says where to read on."""
    path = "refold" if error.ctx is None else error.ctx.command_path
    text = error.format_message().rstrip(".")
    if isinstance(error, click.NoSuchOption) and path == "refold":
        return f"{text} here: options stand after the command, as in `refold runs {error.option_name} ...`"
    return text if path == "refold" or "--help" in text or text.endswith("?") else f"{text} (see `{path} --help`)"


def _set_up_sdk() -> None:
    from refold import sdk

    if any(os.environ.get(name) for name in sdk.PROVIDERS):
        sdk.check_providers()
    if any(os.environ.get(name) for name in sdk.VARIABLES):
        sdk.configure_sdk()


def _end(message: str, code: int) -> NoReturn:
    click.echo(f"refold: {safe(' '.join(message.split()))}", err=True)
    sys.exit(code)


def _version(ctx: click.Context, param: click.Parameter, asked: bool) -> None:
    if asked and not ctx.resilient_parsing:
        from importlib.metadata import version

        click.echo(f"refold {version('refold')}")
        ctx.exit()


@click.group(cls=Root, help=ABOUT, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option("--version", is_flag=True, expose_value=False, is_eager=True, callback=_version, help="Show the version.")
def root() -> None:
    pass
