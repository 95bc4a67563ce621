"""`refold find`: the moments at which a condition over the state became true."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import click

from refold import exits, output, records
from refold.output import safe
from refold.site import Site, at_option, common, exclude_each_other, run_argument, sensitive_option

if TYPE_CHECKING:
    from refold_replay.finding import Found, Search
    from refold_store.run import Run


@click.command("find")
@run_argument
@click.option("--when", "condition", required=True, metavar="CONDITION", help="Like: reserve_band[0] > 5000.")
@click.option("--first", is_flag=True, help="The first moment; the default.")
@click.option("--last", is_flag=True, help="The last one.")
@click.option("--all", "everything", is_flag=True, help="All of them.")
@at_option
@sensitive_option
@common
def find_command(
    site: Site,
    run_name: str,
    condition: str,
    first: bool,
    last: bool,
    everything: bool,
    moment: str,
    show_sensitive: bool,
) -> None:
    """Show when CONDITION became true in RUN, up to --at, who wrote what made it so, and when it ended.

    A condition is made of keys, literals, and or not, comparisons, in, subscripts by a constant, and
    date() datetime() decimal() duration() len(). A key that is not there makes it unknown, which is not true. A
    transaction is one step. Exit code 1: it never became true.
    """
    from refold_replay.finding import find

    exclude_each_other(first=first, last=last, all=everything)
    which: Literal["first", "last", "all"] = "last" if last else "all" if everything else "first"
    with site.run(run_name) as run:
        search = find(run, condition, which=which, at=moment)
        found = [_members(run, one, show_sensitive) for one in search]
    if site.as_json:
        output.document(
            {"run": run_name, "tenant": site.tenant, "condition": condition, "which": which,
             "keys": search.keys, "at_seq": search.at_seq, "unjudged": search.unjudged,
             "unjudged_first": _unjudged(search), "found": found}
        )  # fmt: skip
    else:
        _show(run_name, search, found)
    if not found:
        raise click.exceptions.Exit(exits.NO)


def _unjudged(search: Search) -> dict[str, Any] | None:
    if search.unjudged_first is None:
        return None
    seq, why = search.unjudged_first
    return {"seq": seq, "why": why}


def _members(run: Run, one: Found, show_sensitive: bool) -> dict[str, Any]:
    """One stretch as a record."""
    named = {*one.values, *(wrote.key for wrote in one.writes)}
    masked = {key for key in named if not show_sensitive and run._sensitive_since(key) <= one.seq}
    return {
        "seq": one.seq,
        "recorded_at": records.time_of(one.recorded_at),
        "ended_seq": one.ended_seq,
        "writes": [
            {
                "seq": wrote.seq,
                "key": wrote.key,
                "version": wrote.version,
                "written_by": wrote.writer,
                "deleted": wrote.deleted,
                "basis": None if wrote.key in masked else wrote.basis,
            }
            for wrote in one.writes
        ],
        "values": {key: None if key in masked else value for key, value in one.values.items()},
        "masked": sorted(masked),
    }


def _show(run_name: str, search: Search, found: list[dict[str, Any]]) -> None:
    if not found:
        output.say(f"never in {safe(run_name)}, up to seq {search.at_seq}")
    for one in found:
        held = f"until seq {one['ended_seq']}" if one["ended_seq"] is not None else f"to seq {search.at_seq}, the end"
        begun = f"seq {one['seq']}, {one['recorded_at']}" if one["writes"] else "from the beginning"
        output.say(f"{begun}: true, {held}")
        for wrote in one["writes"]:
            verb = "deleted" if wrote["deleted"] else "wrote"
            basis = f"; basis: {safe(wrote['basis'])}" if wrote["basis"] is not None else ""
            what = f"{safe(wrote['key'])}@{wrote['version']} at seq {wrote['seq']}"
            output.say(f"  {safe(wrote['written_by'])} {verb} {what}{basis}")
        for key in sorted(one["values"]):
            value = output.MASK if key in one["masked"] else records.short(one["values"][key])
            output.say(f"  {safe(key)} = {value}")
    if search.unjudged_first is not None:
        seq, why = search.unjudged_first
        steps = output.plural(search.unjudged, "step")
        output.note(f"warning: cannot be judged at {steps}, first at seq {seq}: {safe(why)}")
