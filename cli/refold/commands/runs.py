"""`refold runs`: what there is."""

from __future__ import annotations

import click

from refold import output, records
from refold.site import COUNT, Site, common


@click.command("runs")
@click.option("--where", metavar="CONDITION", help='Only runs whose state fulfils it now: status == "open".')
@click.option("--limit", type=COUNT, metavar="N", help="At most so many.")
@click.option("--all-tenants", is_flag=True, help="The runs of every tenant.")
@common
def runs_command(site: Site, where: str | None, limit: int | None, all_tenants: bool) -> None:
    """List the runs of the tenant, in the order they were opened."""
    from refold_replay.descent import archived_runs

    with site.store() as store:
        infos = store.runs(None if all_tenants else site.tenant, where=where, limit=limit)
        away = {tenant: set(archived_runs(store.run("", tenant))) for tenant in {info.tenant for info in infos}}
        found = [records.run_members(info, archived=info.name in away[info.tenant]) for info in infos]
    if site.as_json:
        output.document({"runs": found})
        return
    columns = (["tenant"] if all_tenants else []) + ["run", "events", "opened", "last event"]
    members = (["tenant"] if all_tenants else []) + ["run", "head_seq", "opened_at", "last_at"]
    if any(one["forked_from"] is not None for one in found):
        columns.append("goes on from")
        members.append("forked")
    if any(one["archived"] for one in found):
        columns.append("")
        members.append("where")
    shown = [
        one
        | {"forked": _forked(one["forked_from"], one["forked_at"]), "where": "archived" if one["archived"] else None}
        for one in found
    ]
    empty = "no runs" if all_tenants else f"no runs in tenant {site.tenant!r}; --all-tenants looks in all"
    output.table(columns, [[one[name] for name in members] for one in shown], empty=empty)


def _forked(run: str | None, seq: int | None) -> str | None:
    return None if run is None else f"{run}, seq {seq}"
