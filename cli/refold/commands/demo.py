"""`refold demo`: the claims case, told while it is played, and what a person on call would ask about it."""

from __future__ import annotations

import shlex

import click

from refold import output
from refold.site import Site, common, shown_url

FILE = "refold-demo.db"


@click.command("demo")
@click.option("--quiet", is_flag=True, help="Play without telling.")
@common
def demo_command(site: Site, quiet: bool) -> None:
    """Play the claims case: who may write, who read what, and who acted on an old value.

    The store is --store, else REFOLD_STORE, else refold-demo.db in this folder. Run it again: the case is played once
    more under the next name.
    """
    from refold.demo import RUN, ClaimState, free_run, play
    from refold_store.store import open_store

    site = Site(site.url or f"sqlite:///{FILE}", site.tenant, site.as_json)
    say = (lambda _text: None) if quiet or site.as_json else output.say
    with open_store(site.store_url, ClaimState) as store:
        run = free_run(store, site.tenant)
        say(f"Playing the claims case as run {output.safe(run.name)} in {output.safe(shown_url(site.store_url))}.")
        if run.name != RUN:
            say(f"({RUN} is in this store already, and a log is never played over.)")
        play(run, say)
        events = run.head_seq()
    if site.as_json:
        output.document({"store": shown_url(site.store_url), "tenant": site.tenant, "run": run.name, "events": events})
        return
    if not quiet:
        _ask(site, run.name)


def _ask(site: Site, run: str) -> None:
    """The commands of a person on call, with their output."""
    from refold.app import root

    rest = [] if site.tenant == "default" else ["--tenant", site.tenant]
    output.say(f"\n$ export REFOLD_STORE={shlex.quote(shown_url(site.store_url))}")
    for words in (["get", run, "routing"], ["readers", run, "routing", "--version", "1"], ["get", run, "settlement"]):
        output.say(f"\n$ refold {shlex.join([*words, *rest])}")
        root.main([*words, *rest, "--store", site.store_url], prog_name="refold", standalone_mode=False)
