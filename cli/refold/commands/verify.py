"""`refold verify`: does the log hold?"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from refold import exits, output
from refold.progress import bar
from refold.site import Site, common, complete_runs
from refold_store import jsontext
from refold_store.backend import MAX_SEQ
from refold_store.errors import InvalidValue

if TYPE_CHECKING:
    from refold_replay.findings import Finding, VerifyReport

_DIGEST = re.compile("[0-9a-f]{64}")


@click.command("verify")
@click.argument("run_name", metavar="[RUN]", required=False, shell_complete=complete_runs)
@click.option("--all-tenants", is_flag=True, help="The whole store.")
@click.option(
    "--level",
    type=click.Choice(["full", "digest"]),
    default="full",
    show_default=True,
    help="digest: only digests, order and versions; faster.",
)
@click.option(
    "--expect", type=click.Path(dir_okay=False), metavar="FILE", help="Heads kept outside: notices a cut end."
)
@click.option("--save-heads", type=click.Path(dir_okay=False), metavar="FILE", help="Write the heads for --expect.")
@common
def verify_command(
    site: Site,
    run_name: str | None,
    all_tenants: bool,
    level: Literal["full", "digest"],
    expect: str | None,
    save_heads: str | None,
) -> None:
    """Check RUN, or every run of the tenant: digests, order, versions, owners, types, reads, keyframes.

    Exit code 1 if anything is damaged; the first bad place of each run is named.
    """
    from refold_replay.verify import verify

    heads = None if expect is None else _load_heads(expect)
    with site.store() as store:
        if run_name is not None:
            store.run(run_name, site.tenant).info()
        with bar("verifying") as progress:
            report = verify(
                store,
                None if run_name is None else [(site.tenant, run_name)],
                tenant=None if all_tenants else site.tenant,
                level=level,
                expect=heads,
                progress=progress,
            )
        if save_heads is not None and report.ok:
            _save_heads(store, save_heads)
    if not report.runs and not all_tenants:
        report.notes.append(f"no runs in tenant {site.tenant!r}")
    _tell(site, report)
    if not report.ok:
        raise click.exceptions.Exit(exits.FOUND)


def _tell(site: Site, report: VerifyReport) -> None:
    if site.as_json:
        output.document(
            {"ok": report.ok, "runs": report.runs, "events": report.events, "level": report.level,
             "findings": [_members(one) for one in report.findings], "notes": list(report.notes)}
        )  # fmt: skip
        return
    for one in report.findings:
        output.say(output.safe(str(one)))
    for remark in report.notes:
        output.note(f"note: {remark}")
    verdict = "ok" if report.ok else output.plural(len(report.findings), "finding")
    runs, events = output.plural(report.runs, "run"), output.plural(report.events, "event")
    output.say(f"{verdict}: {runs}, {events}, level {report.level}")


def _members(finding: Finding) -> dict[str, Any]:
    return {
        "tenant": finding.tenant,
        "run": finding.run,
        "seq": finding.seq,
        "damage": finding.damage,
        "message": finding.message,
    }


# --- heads kept outside --------------------------------------------------------------------------


def _save_heads(store: Any, path: str) -> None:
    from refold_replay.verify import heads

    found = [[tenant, run, seq, digest] for (tenant, run), (seq, digest) in sorted(heads(store).items())]
    output.write_file(path, jsontext.encode({"heads": found}) + b"\n")


def _head(listed: Any) -> tuple[str, str, int, str]:
    """One head as --save-heads writes it. Raises ValueError."""
    tenant, run, seq, digest = listed
    if not (isinstance(tenant, str) and isinstance(run, str) and type(seq) is int and isinstance(digest, str)):
        raise ValueError("a head is tenant, run, seq and digest")
    if not (0 <= seq <= MAX_SEQ and _DIGEST.fullmatch(digest)):
        raise ValueError("no such seq or digest")
    return tenant, run, seq, digest


def _load_heads(path: str) -> dict[tuple[str, str], tuple[int, str]]:
    try:
        document = jsontext.parse(Path(path).read_bytes())
        return {(tenant, run): (seq, digest) for tenant, run, seq, digest in map(_head, document["heads"])}
    except OSError as error:
        raise click.UsageError(f"cannot read {path!r}: {error.strerror}") from None
    except (InvalidValue, KeyError, TypeError, ValueError):
        raise click.UsageError(f"{path!r} is no file that --save-heads wrote") from None
