"""`refold write` and `refold delete`: people may write, too, by the same rules as agents."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from refold import output
from refold.site import (
    COUNT,
    NAME,
    Dashed,
    Missing,
    Site,
    common,
    complete_keys,
    complete_runs,
    key_argument,
    run_argument,
)
from refold_store import jsontext
from refold_store.errors import InvalidValue, NoSuchRun

if TYPE_CHECKING:
    from refold_store.requests import Written
    from refold_store.run import Run
    from refold_store.store import Store


def _write_options(function: Any) -> Any:
    options: tuple[Any, ...] = (
        click.option("--request-id", metavar="ID", help="Makes repeating the command safe."),
        click.option("--schema", type=click.Path(), metavar="FILE", help="State schema of a new run, YAML."),
        click.option("--based-on", multiple=True, metavar="KEY@N", help="A version it rests on; may be repeated."),
        click.option("--expected-version", type=COUNT, metavar="N", help="Refuse if the key has moved."),
        click.option("--basis", metavar="TEXT", help="The stated reason."),
        click.option("--writer", type=NAME, required=True, metavar="NAME", help="Who writes."),
    )
    for option in options:
        function = option(function)
    return function


@click.command("write", cls=Dashed)
@click.argument("run_name", type=NAME, metavar="RUN", shell_complete=complete_runs)
@click.argument("key", type=NAME, metavar="KEY", shell_complete=complete_keys)
@click.argument("value", metavar="VALUE|@FILE|-")
@_write_options
@click.option("--text", is_flag=True, help="The value is plain text, not JSON.")
@common
def write_command(site: Site, run_name: str, key: str, value: str, text: bool, **options: Any) -> None:
    """Write KEY of RUN. VALUE is JSON, or @FILE or - (standard input) that holds it."""
    update = _value(value, text)
    _write(site, run_name, lambda run, rest: run.write_state(key, update, **rest), options)


@click.command("delete")
@run_argument
@key_argument
@_write_options
@common
def delete_command(site: Site, run_name: str, key: str, **options: Any) -> None:
    """Delete KEY of RUN: a new version without a value. The history stays."""
    _write(site, run_name, lambda run, rest: run.delete_state(key, **rest), options)


def _write(site: Site, run_name: str, action: Any, options: dict[str, Any]) -> None:
    schema = options.pop("schema")
    pairs = [_pair(one) for one in options.pop("based_on")]
    with site.store(schema, read_only=False, create=schema is not None) as store:
        run = store.run(run_name, site.tenant)
        if schema is None:
            _must_exist(store, run)
        written: Written = action(run, options | {"based_on": pairs or None})
    if site.as_json:
        output.document(
            {"run": run_name, "tenant": site.tenant, "key": written.key, "version": written.version, "seq": written.seq}
        )
    else:
        output.say(f"{output.safe(written.key)} is at version {written.version}, seq {written.seq}")


def _must_exist(store: Store, run: Run) -> None:
    """A write opens its run only with a schema: else a typing mistake would make a run."""
    try:
        run.info()
    except NoSuchRun as error:
        raise Missing(f"{error}; a new run needs --schema FILE") from None


def _value(given: str, text: bool) -> Any:
    if given == "-":
        raw, where = sys.stdin.buffer.read(), "standard input"
    elif given.startswith("@"):
        where = given[1:]
        try:
            raw = Path(where).read_bytes()
        except OSError as error:
            raise click.UsageError(f"cannot read {where!r}: {error.strerror}") from None
    else:
        raw, where = given.encode("utf-8", "surrogateescape"), "VALUE"
    if text:
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise click.UsageError(f"{where} is not UTF-8 text (byte {error.start})") from None
    try:
        return jsontext.parse(raw)
    except InvalidValue as error:
        hint = "; for plain text add --text" if where == "VALUE" else ""
        raise click.UsageError(f"{where} is not JSON: {error}{hint}") from None


def _pair(text: str) -> tuple[str, int]:
    key, mark, version = text.rpartition("@")
    if not mark or not version.isdecimal():
        raise click.UsageError(f"--based-on {text!r}: write KEY@VERSION, like routing@2")
    return key, int(version)
