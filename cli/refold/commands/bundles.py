"""`refold export`, and the part of `refold import` that takes bundles: runs as files that verify by themselves."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from refold import exits, output
from refold.progress import bar
from refold.site import Site, check_tenant, common, complete_runs, login_name
from refold_store.errors import RefoldError, StoreUnavailable

if TYPE_CHECKING:
    from refold_replay.bundle_import import BundleReport
    from refold_replay.exporting import ExportReport
    from refold_store.store import Store

DRY = {"checked": "sound", "imported": "would be imported", "restored": "would be restored"}
"""What a dry run says of an outcome."""


@click.command("export")
@click.argument("run_name", metavar="[RUN]", required=False, shell_complete=complete_runs)
@click.option("-o", "--output", "target", required=True, metavar="FILE|DIR", help="The bundle; with --all a folder.")
@click.option("--all", "all_runs", is_flag=True, help="Every run of the tenant; bundles that are up to date stay.")
@click.option("--redact", is_flag=True, help="Without the bodies of sensitive keys; the bundle still verifies.")
@click.option("--key", "key_file", type=click.Path(dir_okay=False), metavar="FILE", help="Sign with this private key.")
@common
def export_command(
    site: Site, run_name: str | None, target: str, all_runs: bool, redact: bool, key_file: str | None
) -> None:
    """Write RUN into one file: events, digests, schemas. It verifies anywhere, without this store.

    An interrupted export goes on where it stopped. `refold import` brings the file into any store.
    """
    from refold_replay.exporting import export, file_name, up_to_date

    if (run_name is None) is not all_runs:
        raise click.UsageError("name one RUN, or give --all")
    key = None
    if key_file is not None:
        from refold_replay import signing

        key = signing.load_private(key_file)
    with site.store() as store:
        if run_name is not None:
            store.run(run_name, site.tenant).info()
        if all_runs:
            check_tenant(store, site.tenant)
            _make_folder(target)
        names = [run_name] if run_name is not None else [info.name for info in store.runs(site.tenant)]
        found: list[ExportReport] = []
        left: dict[str, str] = {}
        for name in names:
            path = Path(target) if run_name is not None else Path(target) / file_name(name)
            run = store.run(name, site.tenant)
            if run_name is None and up_to_date(run, path, redact=redact, key=key):
                left[name] = "up to date"
                continue
            try:
                with bar("exporting") as progress:
                    found.append(export(run, path, redact=redact, key=key, progress=progress))
            except RefoldError as error:
                if run_name is not None:
                    raise
                left[name] = str(error)
    _tell_export(site, found, left)
    if any(why != "up to date" for why in left.values()):
        raise click.exceptions.Exit(exits.FOUND)


def _make_folder(target: str) -> None:
    try:
        Path(target).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreUnavailable(f"cannot make the folder {target!r}: {error.strerror}") from None


def _tell_export(site: Site, found: list[ExportReport], left: dict[str, str]) -> None:
    if site.as_json:
        members = [
            {name: getattr(one, name) for name in one.__dataclass_fields__} | {"tenant": site.tenant} for one in found
        ]
        output.document({"bundles": members, "left": left})
        return
    for one in found:
        redacted = f", {output.plural(one.redacted, 'body')} left out" if one.redacted else ""
        signed = ", signed" if one.public_key else ""
        output.say(
            f"{output.safe(one.run)}: {output.plural(one.events, 'event')} up to seq {one.until} in "
            f"{output.safe(one.path)} ({one.size:,} bytes{redacted}{signed})"
        )
        output.say(f"  digest of seq {one.until}: {one.digest}")
    for name, why in left.items():
        output.note(f"{output.safe(name)}: {output.safe(why)}")


# --- import --------------------------------------------------------------------------------------


def import_bundles(site: Site, files: list[str], *, public_key: str | None, person: str | None, dry_run: bool) -> None:
    """Bring bundles into the store; each whole or not at all."""
    from refold_replay.bundle_import import check_bundle, import_bundle

    key = None
    if public_key is not None:
        from refold_replay import signing

        key = signing.load_public(public_key)
    found: list[BundleReport] = []
    errors: list[dict[str, Any]] = []
    with ExitStack() as opened:
        store = _store(site, opened, dry_run)
        for file in files:
            try:
                with bar("importing") as progress:
                    if store is None:
                        done = check_bundle(file, public_key=key, progress=progress)
                    else:
                        done = import_bundle(
                            store, file, by=person or login_name(), public_key=key, dry_run=dry_run, progress=progress
                        )
                    found.append(done)
            except RefoldError as error:
                if len(files) == 1 and not site.as_json:
                    raise
                errors.append({"file": file, "line": getattr(error, "line", None), "message": str(error)})
    if site.as_json:
        output.document({"ok": not errors, "dry_run": dry_run, "bundles": [_members(one) for one in found],
                         "errors": errors})  # fmt: skip
    else:
        for one in found:
            output.say(_line(one, dry_run))
            if one.lacking:
                lost = output.plural(one.lacking, "event")
                output.note(
                    f"{output.safe(one.run)}: {lost} of it in this store came in redacted and stay without bodies; "
                    "import this bundle into another store to have them"
                )
        for wrong in errors:
            output.note(output.safe(wrong["message"]))
    if errors:
        raise click.exceptions.Exit(exits.FOUND)


def _store(site: Site, opened: ExitStack, dry_run: bool) -> Store | None:
    """The store to import into; None for a dry run without one: then the bundles alone are checked."""
    try:
        return opened.enter_context(site.store(read_only=dry_run, create=not dry_run))
    except (StoreUnavailable, click.UsageError):
        if not dry_run:
            raise
        return None


def _members(report: BundleReport) -> dict[str, Any]:
    return {name: getattr(report, name) for name in report.__dataclass_fields__}


def _line(report: BundleReport, dry_run: bool) -> str:
    did = {"checked": "sound", "imported": "would be imported", "restored": "would be restored"}.get(
        report.outcome, report.outcome
    )
    outcome = did if dry_run else report.outcome
    tenant = f" of tenant {output.safe(report.tenant)}" if report.tenant != "default" else ""
    signed = f", signed by {report.public_key}" if report.public_key else ", not signed"
    redacted = ", without its sensitive bodies" if report.redacted else ""
    return (
        f"{output.safe(report.run)}{tenant}: {outcome}; {output.plural(report.events, 'event')} up to seq "
        f"{report.until}, all digests hold{redacted}{signed}"
    )
