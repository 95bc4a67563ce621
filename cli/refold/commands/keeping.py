"""`refold erase`, `refold prune` and `refold archive`: what may leave the log, each on the record.

Rules of this module
- Erasing is for good: what would be erased is shown first, and nothing is erased without a yes, on the terminal or by
  --yes.
- Who did it is the login name or --as; an erasure always says why.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any

import click

from refold import output
from refold.output import plural, safe
from refold.progress import bar
from refold.site import Site, check_tenant, common, complete_keys, complete_runs, login_name, person_option

if TYPE_CHECKING:
    from refold_store.remains import EraseReport
    from refold_store.store import Store

_VERSION = re.compile(r"(.*)@([0-9]{1,18})", re.DOTALL)
VACUUM = "the erased bytes may stand in unused parts of the store's files until they are rewritten: --vacuum does it"

optional_run = click.argument("run_name", metavar="[RUN]", required=False, shell_complete=complete_runs)
dry_option = click.option("--dry-run", is_flag=True, help="Say what would be done; change nothing.")


@click.command("erase")
@optional_run
@click.argument("what", metavar="[KEY[@VERSION]]", required=False, shell_complete=complete_keys)
@click.option("--tenant-data", is_flag=True, help="All runs of the tenant, and what its runs share.")
@click.option("--reason", metavar="TEXT", help="Why; it stays on the record. Needed.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--vacuum", is_flag=True, help="Then rewrite the store's files, so that the bytes are gone from them.")
@dry_option
@person_option("Who does it")
@common
def erase_command(
    site: Site,
    run_name: str | None,
    what: str | None,
    tenant_data: bool,
    reason: str | None,
    yes: bool,
    vacuum: bool,
    dry_run: bool,
    person: str | None,
) -> None:
    """Erase the values of RUN for good: all, those of KEY, or one version of it.

    Their digests stay, so the log still verifies. A read of an erased value says who erased it, when and why. Names,
    versions and times stay, and so does what a write refers to.
    """
    if (run_name is None) is not tenant_data:
        raise click.UsageError("name a RUN, or give --tenant-data for all of the tenant's; one of them")
    if reason is None or not reason.strip():
        raise click.UsageError("say why: --reason TEXT; it stays on the record")
    with site.store() as store:
        if run_name is None:
            check_tenant(store, site.tenant)
        key, version = _key_of(store, site, run_name, what)
        options: dict[str, Any] = {
            "tenant": site.tenant, "key": key, "version": version, "by": login_name() if person is None else person,
            "reason": reason, "everything_of_tenant": tenant_data,
        }  # fmt: skip
        report = _erased(store, run_name, options, dry_run=True)
    if report.events and not dry_run:
        if not yes:
            _ask(site, run_name, report)
        with site.store(read_only=False) as store:
            report = _erased(store, run_name, options, dry_run=False)
    if vacuum and not dry_run:
        with site.store(read_only=False) as store:
            store._backend.vacuum()
    if site.as_json:
        output.document(_erase_members(site, run_name, report) | {"vacuumed": vacuum and not dry_run})
        return
    _tell_erase(site, run_name, report)
    if report.events and not dry_run:
        output.say("the store's files were rewritten" if vacuum else VACUUM)


def _key_of(store: Store, site: Site, run_name: str | None, what: str | None) -> tuple[str | None, int | None]:
    """KEY, KEY@VERSION or key:KEY@VERSION. A key that is written as such is itself."""
    if what is None or run_name is None:
        return what, None
    if what in store.run(run_name, site.tenant).keys():  # noqa: SIM118  # a method of runs, not of a mapping
        return what, None
    found = _VERSION.fullmatch(what.removeprefix("key:"))
    return (what, None) if found is None else (found[1], int(found[2]))


def _erased(store: Store, run_name: str | None, options: dict[str, Any], *, dry_run: bool) -> EraseReport:
    from refold_store.erasing import erase

    with bar("erase") as progress:
        return erase(store, run_name, dry_run=dry_run, progress=progress, **options)


def _ask(site: Site, run_name: str | None, report: EraseReport) -> None:
    """A yes from the person at the terminal; a script says --yes."""
    for line in _erase_lines(site, run_name, report):
        output.note(line)
    if not asks():
        raise click.UsageError("nothing was erased: nobody is there to ask; give --yes")
    click.confirm("Erase it for good?", abort=True, err=True)


def asks() -> bool:
    """Whether somebody is there to be asked."""
    return sys.stdin.isatty()


def _erase_members(site: Site, run_name: str | None, report: EraseReport) -> dict[str, Any]:
    return {
        "run": run_name,
        "tenant": site.tenant,
        "key": report.key,
        "version": report.version,
        "by": report.by,
        "reason": report.reason,
        "dry_run": report.dry_run,
        "events": report.events,
        "values": report.values,
        "keys": report.keys,
        "logs": [
            {"tenant": log.tenant, "run": log.run, "scope": log.scope, "seq": log.seq or None, "until": log.until,
             "events": log.events}
            for log in report.logs
        ],
        "suspects": [
            {"run": one.run, "key": one.key, "version": one.version, "seq": one.seq, "why": one.why}
            for one in report.suspects
        ],
        "suspect_count": report.suspect_count,
        "readers": report.readers,
        "archived_runs": report.archived,
        "elsewhere": [{"run": one.run, "why": one.why, "how": one.how} for one in report.elsewhere],
    }  # fmt: skip


def _erase_lines(site: Site, run_name: str | None, report: EraseReport) -> list[str]:
    """What is erased, or would be, and what may still hold it."""
    what = "" if report.key is None else f" of {report.key}" + (f"@{report.version}" if report.version else "")
    where = f"all runs of tenant {site.tenant}" if run_name is None else run_name
    if not report.events:
        lines = [f"nothing to erase{what} in {where}"]
    else:
        verb = "would be erased" if report.dry_run or not report.logs[0].seq else f"erased by {report.by}"
        count = f"{plural(report.events, 'event')} ({plural(report.values, 'write')})"
        lines = [f"{count}{what} in {where} {verb}: {report.reason}"]
        lines += [f"  {key}: {plural(count, 'event')}" for key, count in sorted(report.keys.items())]
    for log in report.logs:
        name = log.run if log.scope == "run" else f"what the runs of tenant {log.tenant} share"
        name = "what all runs share" if log.scope == "global" else name
        said = f"value.erased at seq {log.seq}, " if log.seq else ""
        lines.append(f"  {name}: {said}up to seq {log.until}")
    for one in report.suspects:
        version = f"{one.key}@{one.version}" if one.version else f"a write of {one.key}"
        lines.append(f"may still hold it: {version} of {one.run}, seq {one.seq}: {one.why}")
    if report.suspect_count > len(report.suspects):
        lines.append(f"and {report.suspect_count - len(report.suspects):,} more")
    lines += [f"may still hold it: {one.run}: {one.why}; {one.how}" for one in report.elsewhere]
    if report.readers:
        lines.append(f"read by {', '.join(report.readers)}: what they wrote later may hold parts of it")
    if report.archived:
        lines.append(f"not erased, since archived: {', '.join(report.archived)}; their bundles hold the values")
    return lines


def _tell_erase(site: Site, run_name: str | None, report: EraseReport) -> None:
    for line in _erase_lines(site, run_name, report):
        output.say(safe(line))


# --- prune ---------------------------------------------------------------------------------------


@click.command("prune")
@optional_run
@click.option("--older-than", metavar="AGE", help="Reads older than 90d, 12h, 30m ...")
@click.option("--before", metavar="MOMENT", help="Reads up to a moment.")
@dry_option
@person_option("Who does it")
@common
def prune_command(
    site: Site, run_name: str | None, older_than: str | None, before: str | None, dry_run: bool, person: str | None
) -> None:
    """Roll up old reads of RUN, or of all runs of the tenant.

    Who read which version, how often, and whether it was stale stay known; each read's own time and trace do not.
    """
    from refold_store.pruning import prune

    if (older_than is None) is (before is None):
        raise click.UsageError("say how far: --older-than AGE or --before MOMENT; one of them")
    with site.store(read_only=dry_run) as store, bar("prune") as progress:
        if run_name is None:
            check_tenant(store, site.tenant)
        target = store if run_name is None else store.run(run_name, site.tenant)
        report = prune(
            target, before=before, older_than=older_than, by=login_name() if person is None else person,
            tenant=site.tenant, dry_run=dry_run, progress=progress,
        )  # fmt: skip
    if site.as_json:
        runs = [
            {"run": one.run, "until": one.until, "reads": one.reads, "records": one.records, "events": one.events}
            for one in report.runs
        ]
        output.document(
            {"tenant": site.tenant, "by": report.by, "dry_run": dry_run, "reads": report.reads, "runs": runs}
        )
        return
    for one in report.runs:
        if not one.reads:
            output.say(f"{safe(one.run)}: no reads up to seq {one.until}")
        elif dry_run:
            output.say(f"{safe(one.run)}: {plural(one.reads, 'read')} up to seq {one.until} would be rolled up")
        else:
            lines = plural(one.records, "line")
            output.say(f"{safe(one.run)}: {plural(one.reads, 'read')} up to seq {one.until} rolled up to {lines}")
    if not report.runs:
        output.say("no reads that old")


# --- archive -------------------------------------------------------------------------------------


@click.command("archive")
@optional_run
@click.option("-o", "--output", "folder", required=True, metavar="DIR", type=click.Path(file_okay=False),
              help="Where the bundles go.")  # fmt: skip
@click.option("--older-than", metavar="AGE", help="All runs of the tenant whose last event is older: 365d, 12h ...")
@click.option("--with-forks", is_flag=True, help="First give forks of the run their own copy of what they share.")
@click.option("--reason", metavar="TEXT", help="Why; it stays on the record.")
@dry_option
@person_option("Who does it")
@common
def archive_command(
    site: Site,
    run_name: str | None,
    folder: str,
    older_than: str | None,
    with_forks: bool,
    reason: str | None,
    dry_run: bool,
    person: str | None,
) -> None:
    """Move the events of RUN out of the store into a bundle, which is read back before they go.

    One event stays and names the file; `refold import FILE` puts everything back.
    """
    from refold_replay.archiving import archive, archive_old

    if (run_name is None) is (older_than is None):
        raise click.UsageError("name a RUN, or give --older-than AGE; one of them")
    by = login_name() if person is None else person
    with site.store(read_only=dry_run) as store, bar("archive") as progress:
        if run_name is not None:
            run = store.run(run_name, site.tenant)
            done = archive(run, folder, by=by, reason=reason, with_forks=with_forks, dry_run=dry_run)
            archived, skipped = [done], {}
        else:
            check_tenant(store, site.tenant)
            report = archive_old(
                store, folder, older_than=older_than or "", tenant=site.tenant, by=by, reason=reason,
                with_forks=with_forks, dry_run=dry_run, progress=progress,
            )  # fmt: skip
            archived, skipped = report.archived, report.skipped
    if site.as_json:
        output.document(
            {"tenant": site.tenant, "by": by, "dry_run": dry_run, "skipped": skipped,
             "archived": [
                 {"run": one.run, "file": one.path, "sha256": one.sha256, "events": one.events, "until": one.until,
                  "seq": one.seq}
                 for one in archived
             ]}
        )  # fmt: skip
        return
    for one in archived:
        verb = "would go to" if dry_run else "moved to"
        output.say(f"{safe(one.run)}: {plural(one.events, 'event')} up to seq {one.until} {verb} {safe(one.path)}")
    for name, why in skipped.items():
        output.say(f"{safe(name)}: left as it is: {safe(why)}")
    if not archived and not skipped:
        output.say("no runs that old")
