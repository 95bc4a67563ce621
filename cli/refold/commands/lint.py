"""`refold lint`: shared state that smells."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from refold import exits, output
from refold.output import plural, safe
from refold.site import COUNT, Site, check_tenant, common, complete_runs

if TYPE_CHECKING:
    from refold_replay.lint import Lint
    from refold_store.store import Store

KEYS_MAX = 7
CODES = ("one-reader", "never-read", "reads-too-much", "unread-write", "read-before-write", "superseded")
SEQS = 5
"""Places one line names; --json has all."""


@click.command("lint")
@click.argument("run_name", metavar="[RUN]", required=False, shell_complete=complete_runs)
@click.option(
    "--max-keys",
    "keys_max",
    type=COUNT,
    default=KEYS_MAX,
    show_default=True,
    metavar="N",
    help="Keys one agent may read.",
)
@click.option("--only", multiple=True, type=click.Choice(CODES), metavar="CODE", help="Only this; may be repeated.")
@common
def lint_command(site: Site, run_name: str | None, keys_max: int, only: Sequence[str]) -> None:
    """Look for shared state that smells, in RUN or in every run of the tenant. Exit code 1 if there is any.

    one-reader: a key only one agent reads, a handoff field. never-read: written, and nobody read it. reads-too-much:
    an agent that reads more keys than --max-keys. unread-write: versions replaced before anybody read them.
    read-before-write: reads of a key that was not there. superseded: writes that rest on a version which another
    agent had replaced.
    """
    found: list[Lint] = []
    with site.store() as store:
        names, skipped = _names(site, store, run_name)
        for name in names:
            found += _lint(site, store, name, keys_max, only)
    if site.as_json:
        output.document(
            {"tenant": site.tenant, "runs": names, "archived": skipped, "max_keys": keys_max, "only": list(only),
             "findings": [_members(one) for one in found]}
        )  # fmt: skip
    else:
        _tell(names, skipped, found)
    if found:
        raise click.exceptions.Exit(exits.FOUND)


def _names(site: Site, store: Store, run_name: str | None) -> tuple[list[str], list[str]]:
    """The runs to look at, and those whose events lie in a bundle."""
    from refold_store.erased import check_archived
    from refold_store.errors import RunArchived

    if run_name is not None:
        return [run_name], []
    check_tenant(store, site.tenant)
    names: list[str] = []
    skipped: list[str] = []
    for info in store.runs(site.tenant):
        try:
            check_archived(store.run(info.name, site.tenant))
            names.append(info.name)
        except RunArchived:
            skipped.append(info.name)
    return names, skipped


def _lint(site: Site, store: Store, name: str, keys_max: int, only: Sequence[str]) -> list[Lint]:
    from refold_replay.lint import lint

    return lint(store.run(name, site.tenant), keys_max=keys_max, only=only)


def _members(one: Lint) -> dict[str, Any]:
    return {
        "code": one.code,
        "run": one.run,
        "key": one.key,
        "agent": one.agent,
        "message": one.message,
        "seqs": one.seqs,
    }


def _tell(names: list[str], skipped: list[str], found: list[Lint]) -> None:
    by_run: dict[str, list[Lint]] = {}
    for one in found:
        by_run.setdefault(one.run, []).append(one)
    width = max((len(one.code) for one in found), default=0)
    for run, lints in by_run.items():
        output.say(f"{safe(run)}: {plural(len(lints), 'finding')}")
        for one in lints:
            output.say(f"  {one.code.ljust(width)}  {safe(one.message)} ({_places(one.seqs)})")
    clean = len(names) - len(by_run)
    if clean:
        output.say(f"{plural(clean, 'run')}{' more' if by_run else ''} without findings")
    elif not names:
        output.say("no runs")
    if skipped:
        output.note(f"note: archived and not looked at: {', '.join(skipped)}")


def _places(seqs: list[int]) -> str:
    more = f" and {len(seqs) - SEQS:,} more" if len(seqs) > SEQS else ""
    return f"seq {', '.join(map(str, seqs[:SEQS]))}{more}"
