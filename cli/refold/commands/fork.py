"""`refold fork`: a new run that goes on from a moment of another."""

from __future__ import annotations

import click

from refold import output
from refold.site import NAME, Site, at_option, common, login_name, person_option, run_argument


@click.command("fork")
@run_argument
@click.argument("name", type=NAME, metavar="NEW_RUN")
@at_option
@person_option("Who forks")
@click.option("--note", metavar="TEXT", help="Why; kept with the fork.")
@common
def fork_command(site: Site, run_name: str, name: str, moment: str, person: str | None, note: str | None) -> None:
    """Make NEW_RUN, which goes on from a moment of RUN.

    RUN never changes. The fork shares its past: what lies before the moment is not copied, so that it costs the same
    for ten events and for a million.
    """
    from refold_store.forking import fork

    with site.run(run_name, read_only=False) as run:
        made = fork(run, name, at=moment, by=person or login_name(), note=note)
        info = made.info()
        at_seq = info.head_seq - 1
    if site.as_json:
        output.document(
            {"run": name, "tenant": site.tenant, "forked_from": info.forked_from or run_name, "at_seq": at_seq,
             "head_seq": info.head_seq}
        )  # fmt: skip
        return
    output.say(f"{output.safe(name)} goes on from seq {at_seq} of {output.safe(info.forked_from or run_name)}")
