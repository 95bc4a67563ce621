"""`refold import` and `refold check`: recorded runs, and whether they came out right."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from refold import exits, output
from refold.commands.bundles import import_bundles
from refold.progress import bar
from refold.site import Site, common, person_option

if TYPE_CHECKING:
    from refold_replay.checking import CheckReport
    from refold_replay.importing import ImportReport
    from refold_store.store import Store

SHOWN = 50
"""Errors and mismatches shown on the screen; --json has all."""


@click.command("import")
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path(dir_okay=False))
@click.option("--seed", type=click.Path(dir_okay=False), metavar="FILE", help="The keys that exist before a run.")
@click.option("--schema", type=click.Path(dir_okay=False), metavar="FILE", help="State schema, YAML; else inferred.")
@click.option("--check", "answers", type=click.Path(dir_okay=False), metavar="ANSWERS", help="Then compare with these.")
@click.option("--dry-run", is_flag=True, help="Read and check everything, store nothing.")
@click.option(
    "--public-key", type=click.Path(dir_okay=False), metavar="FILE", help="Bundles: they must be signed with its key."
)
@person_option("Bundles: who imports a redacted one")
@common
def import_command(
    site: Site,
    files: tuple[str, ...],
    seed: str | None,
    schema: str | None,
    answers: str | None,
    dry_run: bool,
    public_key: str | None,
    person: str | None,
) -> None:
    """Import runs from FILEs: bundles that `refold export` wrote, or recorded events (JSON Lines, also gzip).

    A run comes whole or not at all. Importing the same file again changes nothing. A bundle keeps its tenant and its
    run's name: its digests begin with them.
    """
    if _are_bundles(files, seed=seed, schema=schema, answers=answers):
        import_bundles(site, list(files), public_key=public_key, person=person, dry_run=dry_run)
        return
    if public_key is not None or person is not None:
        raise click.UsageError("--public-key and --as are for bundles, and these files are none")
    options: dict[str, Any] = {"seed": seed, "schema": schema, "tenant": site.tenant}
    checked = None
    if dry_run and answers is not None:
        raise click.UsageError("--check compares what was stored, and --dry-run stores nothing; leave one of them out")
    if answers is not None:
        _read_through(answers)
    report = _imported(site.store_url, files, dry_run=dry_run, **options)  # it makes no store for files it cannot read
    if answers is not None:
        with site.store() as store:
            checked = _checked(store, site, answers)
    if site.as_json:
        output.document(_import_members(report) | ({} if checked is None else {"check": _check_members(checked)}))
    else:
        _tell_import(report)
        if checked is not None:
            _tell_check(checked)
    if not report.ok or (checked is not None and not checked.ok):
        raise click.exceptions.Exit(exits.FOUND)


@click.command("check")
@click.argument("file", metavar="FILE", type=click.Path(dir_okay=False))
@click.argument("answers", metavar="ANSWERS", type=click.Path(dir_okay=False))
@common
def check_command(site: Site, file: str, answers: str) -> None:
    """Compare the runs imported from FILE with the right ANSWERS.

    Exit code 0 only if the store holds every run of FILE from these very lines, and every answer matches; each
    mismatch is named.
    """
    _read_through(answers)
    with site.store() as store:
        missing = _not_from(store, site, file)
        report = _checked(store, site, answers)
    if site.as_json:
        output.document(_check_members(report) | {"ok": report.ok and not missing, "not_imported": missing})
    else:
        for one in missing[:SHOWN]:
            output.say(output.safe(one))
        _tell_check(report)
    if missing or not report.ok:
        raise click.exceptions.Exit(exits.FOUND)


def _are_bundles(files: tuple[str, ...], **options: str | None) -> bool:
    """Whether the files are bundles, by what they hold. All or none, and without the options of event files."""
    from refold_replay.bundle_reader import is_bundle

    bundles = [file for file in files if is_bundle(Path(file))]
    if not bundles:
        return False
    others = [file for file in files if file not in bundles]
    if others:
        raise click.UsageError(f"{bundles[0]!r} is a bundle, {others[0]!r} is none: import them one after the other")
    given = [f"--{'check' if name == 'answers' else name}" for name, value in options.items() if value is not None]
    if given:
        raise click.UsageError(f"{given[0]} is for event files; a bundle brings its schema and all its events")
    return True


def _read_through(answers: str) -> None:
    """Read the answers to their end before anything is stored or compared: a mistake in them comes first."""
    from refold_replay.checking import read_answers

    deque(read_answers(answers), maxlen=0)


def _not_from(store: Store, site: Site, file: str) -> list[str]:
    """The runs of a file that the store does not hold from these very lines, each with what it holds instead."""
    from refold_replay.sources import read_runs

    found = []
    for source in read_runs([file]):
        deque(source.lines, maxlen=0)  # the digest is known once they are read
        run = store.run(source.name, site.tenant)
        imported = next(run.events(kinds=["run.imported"], limit=1), None)
        if imported is None:
            found.append(f"{source.name}: not imported")
        elif imported.body.get("lines_sha256") != source.sha256:
            found.append(f"{source.name}: imported from other lines")
    return found


def _imported(store: Any, files: tuple[str, ...], **options: Any) -> ImportReport:
    from refold_replay.importing import import_files

    with bar("importing") as progress:
        return import_files(store, [Path(file) for file in files], progress=progress, **options)


def _checked(store: Any, site: Site, answers: str) -> CheckReport:
    from refold_replay.checking import check

    with bar("checking") as progress:
        return check(store, answers, tenant=site.tenant, progress=progress)


# --- telling -------------------------------------------------------------------------------------


def _tell_import(report: ImportReport) -> None:
    if report.inferred and report.schema is not None:
        output.note(
            f"no --schema given: inferred one with {output.plural(len(report.schema.keys), 'key')} "
            f"({report.schema.fingerprint[:12]}), recorded in each run; `refold schema infer` writes it to a file"
        )
    for remark in report.notes:
        output.note(f"note: {remark}")
    for error in report.errors[:SHOWN]:
        output.note(str(error))
    if len(report.errors) > SHOWN:
        output.note(f"and {len(report.errors) - SHOWN:,} more errors; --json lists all")
    done = "would be imported" if report.dry_run else "imported"
    output.say(
        f"{output.plural(len(report.imported), 'run')} {done}, {len(report.unchanged):,} unchanged, "
        f"{len(report.failed):,} failed; "
        f"{output.plural(report.events, 'event')}, {output.plural(report.refusals, 'refusal')}"
    )
    for different in report.reads_different[:SHOWN]:
        output.note(f"warning: {different}")
    output.table(("kind", "events"), sorted(report.kinds.items()), empty="")


def _import_members(report: ImportReport) -> dict[str, Any]:
    return {
        "ok": report.ok,
        "dry_run": report.dry_run,
        "imported": list(report.imported),
        "unchanged": list(report.unchanged),
        "failed": list(report.failed),
        "events": report.events,
        "kinds": dict(report.kinds),
        "refusals": report.refusals,
        "inferred": report.inferred,
        "schema": None if report.schema is None else report.schema.fingerprint,
        "errors": [_error(one) for one in report.errors],
        "reads_compared": report.reads_compared,
        "reads_different": [_error(one) for one in report.reads_different],
        "notes": list(report.notes),
    }


def _error(error: Any) -> dict[str, Any]:
    return {"file": str(error.file), "line": error.line, "run": error.run, "message": error.message}


def _tell_check(report: CheckReport) -> None:
    for one in report.mismatches[:SHOWN]:
        output.say(output.safe(str(one)))
    if len(report.mismatches) > SHOWN:
        output.say(f"and {len(report.mismatches) - SHOWN:,} more; --json lists all")
    for what, (matching, of) in report.counts.items():
        output.say(f"{output.safe(what)}: {matching:,} of {of:,}")
    output.say(f"two-owner transactions: {report.two_owner_transactions:,}")
    if report.not_checked:
        output.note(f"not checked: {', '.join(map(output.safe, report.not_checked))}")
    if report.ok:
        output.say("ok: every answer matches")
    elif report.mismatches or not report.unknown:
        wrong = len(report.mismatches)
        output.say(f"{output.plural(wrong, 'answer')} {'does' if wrong == 1 else 'do'} not match")
    if report.unknown:
        unknown = ", ".join(map(output.safe, report.unknown))
        output.say(f"not ok: members that are not known, so not checked: {unknown}")


def _check_members(report: CheckReport) -> dict[str, Any]:
    return {
        "ok": report.ok,
        "runs": report.runs,
        "counts": {what: {"matching": matching, "of": of} for what, (matching, of) in report.counts.items()},
        "two_owner_transactions": report.two_owner_transactions,
        "mismatches": [
            {"run": one.run, "what": one.what, "place": one.place, "expected": str(one.expected), "got": str(one.got)}
            for one in report.mismatches
        ],
        "not_checked": list(report.not_checked),
    }
