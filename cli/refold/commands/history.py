"""`refold history` and `refold readers`: one key through time, and who saw which version of it."""

from __future__ import annotations

import click

from refold import output, records
from refold.site import COUNT, Site, common, declared_key, key_argument, run_argument, sensitive_option


@click.command("history")
@run_argument
@key_argument
@sensitive_option
@common
def history_command(site: Site, run_name: str, key: str, show_sensitive: bool) -> None:
    """Show every version of KEY in RUN, oldest first."""
    with site.run(run_name) as run:
        declared_key(run, key)
        found = [records.read_members(read, show_sensitive) for read in run.history(key)]
    if site.as_json:
        for one in found:
            output.document(one)
        return
    output.table(
        ("version", "seq", "when", "written by", "owner", "basis", "value"),
        [
            (one["version"], one["seq"], one["recorded_at"], one["written_by"], one["owner"], one["basis"],
             records.cell(one))
            for one in found
        ],
        empty=f"{key} was never written in {run_name}",
    )  # fmt: skip


@click.command("readers")
@run_argument
@key_argument
@click.option("--version", type=COUNT, metavar="N", help="Only reads of this version; 0: of no value.")
@common
def readers_command(site: Site, run_name: str, key: str, version: int | None) -> None:
    """Show who read KEY of RUN, which version, and which was the newest then."""
    with site.run(run_name) as run:
        declared_key(run, key)
        found = [records.reader_members(one) for one in run.readers(key, version=version)]
    if site.as_json:
        output.document({"run": run_name, "tenant": site.tenant, "key": key, "reads": found})
        return
    what = key if version is None else f"version {version} of {key}"
    output.table(
        ("seq", "when", "reader", "version", "newest then", ""),
        [
            (one["seq"], one["recorded_at"], one["reader"], one["version"], one["newest"],
             "stale" if one["stale"] else "")
            for one in found
        ],
        empty=f"nobody has read {what} in {run_name}",
    )  # fmt: skip
