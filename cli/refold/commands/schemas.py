"""`refold schema`: show, check, compare and infer state schemas."""

from __future__ import annotations

import sys
from collections import Counter
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from refold import exits, output
from refold.progress import bar
from refold.site import Site, common, complete_runs
from refold_store.errors import NoSuchRun, RefoldError

if TYPE_CHECKING:
    from refold_store.keys import Key
    from refold_store.schema import Schema


@click.group("schema")
def schema_command() -> None:
    """Show, check, compare and infer state schemas."""


@schema_command.command("show")
@click.argument("run_name", metavar="[RUN]", required=False, shell_complete=complete_runs)
@common
def show_command(site: Site, run_name: str | None) -> None:
    """Show the schema in force for RUN; without RUN, which schemas the tenant's runs are under."""
    if run_name is None:
        _show_all(site)
        return
    with site.run(run_name) as run:
        schema = run.schema()
    if site.as_json:
        output.document({"fingerprint": schema.fingerprint, "declaration": schema.declaration()})
    else:
        _show(schema)


def _show_all(site: Site) -> None:
    with site.store() as store:
        found = Counter(store.run(info.name, site.tenant).schema() for info in store.runs(site.tenant))
    if site.as_json:
        output.document(
            {
                "schemas": [
                    {"fingerprint": one.fingerprint, "keys": len(one.keys), "runs": n} for one, n in found.items()
                ]
            }
        )
        return
    output.table(
        ("fingerprint", "runs", "keys"),
        [(one.fingerprint[:12], n, ", ".join(one)) for one, n in found.items()],
        empty=f"no runs in tenant {site.tenant!r}",
    )


@schema_command.command("check")
@click.argument("file", type=click.Path(dir_okay=False))
@common
def check_command(site: Site, file: str) -> None:
    """Check a schema FILE (YAML): owners, types, reducers, families, invariants."""
    try:
        schema = _from_file(file)
    except RefoldError as error:
        if site.as_json:
            output.document({"ok": False, "where": getattr(error, "where", None), "message": str(error)})
        else:
            output.note(f"refold: {error}")
        raise click.exceptions.Exit(exits.FOUND) from None
    if site.as_json:
        output.document({"ok": True, "fingerprint": schema.fingerprint, "keys": len(schema.keys)})
    else:
        _show(schema)


@schema_command.command("diff")
@click.argument("older", metavar="FILE|RUN")
@click.argument("newer", metavar="FILE|RUN")
@common
def diff_command(site: Site, older: str, newer: str) -> None:
    """Compare two schemas: files, or the ones in force for two runs."""
    from refold_store.compare import compare

    found = compare(_either(site, older), _either(site, newer))
    if site.as_json:
        output.document({"differences": [one._asdict() for one in found]})
        return
    for one in found:
        output.say(output.safe(str(one)))
    if not found:
        output.say("the same schema")


@schema_command.command("infer")
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path(dir_okay=False))
@click.option("--seed", type=click.Path(dir_okay=False), metavar="FILE", help="The keys that exist before a run.")
@click.option(
    "-o", "target", type=click.Path(dir_okay=False), metavar="FILE", help="Where to write it; else to the terminal."
)
@common
def infer_command(site: Site, files: tuple[str, ...], seed: str | None, target: str | None) -> None:
    """Draw up a schema from event files. Each guess is marked by a comment: read it before use."""
    from refold_replay.infer import infer_schema
    from refold_store.schemafile import is_schema

    with bar("reading") as progress:
        found = infer_schema([Path(file) for file in files], seed=seed, progress=progress)
    if target is not None:
        output.write_file(target, found.text.encode(), kind=is_schema, word="schema file")
    if site.as_json:
        output.document(
            {"fingerprint": found.schema.fingerprint, "lines": found.lines, "guesses": found.guesses,
             "document": found.document, "file": target}
        )  # fmt: skip
    elif target is None:
        output.say(output.safe_json(found.text.rstrip("\n")))
    else:
        keys, lines = output.plural(len(found.schema.keys), "key"), output.plural(found.lines, "line")
        output.say(f"{output.safe(target)}: {keys} from {lines}; guesses to check: {found.guesses}")


def _either(site: Site, name: str) -> Schema:
    """A schema by file, or by the run it is in force for."""
    if Path(name).is_file():
        return _from_file(name)
    if not site.url:
        raise click.UsageError(f"{name!r} is no file; to mean a run, give --store or set REFOLD_STORE")
    try:
        with site.run(name) as run:
            return run.schema()
    except NoSuchRun as error:
        raise click.UsageError(f"{name!r} is neither a file nor a run: {error}") from None


def _from_file(path: str) -> Schema:
    from refold_store.declare import compile_schema

    if not Path(path).is_file():
        raise click.UsageError(f"no file {path!r}")
    with redirect_stdout(sys.stderr):  # it imports the modules a schema names, and they may print
        return compile_schema(path)


def _show(schema: Schema) -> None:
    output.say(f"schema {schema.fingerprint[:12]}: {output.plural(len(schema.keys), 'key')}")
    output.table(
        ("key", "owner", "type", "reducer", "options"),
        [(key.name, key.owner, _type(key), key.reducer.name, _options(key)) for key in schema.keys],
        empty="no keys",
    )
    for group, members in schema.groups.items():
        output.say(f"group {output.safe(group)}: {', '.join(map(output.safe, members))}")
    for invariant in schema.invariants:
        output.say(f"invariant {output.safe(invariant.name)}: {output.safe(invariant.expression)}")


def _type(key: Key) -> str:
    """A type in a word or two; `--json` has it whole."""
    declared: Any = key.schema.get("type")
    if isinstance(declared, list):
        return " or ".join(map(str, declared))
    if declared is not None:
        return str(declared)
    return next((name for name in ("enum", "const", "anyOf", "oneOf", "allOf", "$ref") if name in key.schema), "any")


def _options(key: Key) -> str:
    found = ["family"] if key.family is not None else []
    found += ["basis required"] if key.basis_required else []
    found += ["sensitive"] if key.sensitive else []
    found += [f"scope {key.scope}"] if key.scope != "run" else []
    found += [f"readers {', '.join(key.readers)}"] if key.readers is not None else []
    return "; ".join(found)
