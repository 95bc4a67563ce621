"""`refold verify`: does the log hold, and is it still the one that an anchor knows?"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import click

from refold import exits, output
from refold.progress import bar
from refold.proofs import load, load_public, public_key_option
from refold.site import Site, check_tenant, common, complete_runs
from refold_store.errors import Damaged

if TYPE_CHECKING:
    from refold_replay.anchoring import Anchor, Proof
    from refold_replay.findings import Finding, VerifyReport


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
    "--anchor",
    "anchor_files",
    multiple=True,
    metavar="FILE",
    help="Hold the runs against an anchor that was kept elsewhere; may be given several times.",
)
@click.option("--proof", "proof_file", metavar="FILE", help="Check the proof of one run; with a store, the run, too.")
@public_key_option
@common
def verify_command(
    site: Site,
    run_name: str | None,
    all_tenants: bool,
    level: Literal["full", "digest"],
    anchor_files: tuple[str, ...],
    proof_file: str | None,
    public_key: str | None,
) -> None:
    """Check RUN, or every run of the tenant: digests, order, versions, owners, types, reads, keyframes.

    With --anchor also that no log was cut, rolled back or rewritten, and no run is gone. Exit code 1 if anything is
    damaged; the first bad place of each run is named.
    """
    from refold_replay.anchoring import read_anchor, read_proof
    from refold_replay.verify import unreadable, verify

    key = load_public(public_key)
    if key is not None and not anchor_files and proof_file is None:
        raise click.UsageError("--public-key says who signed: it needs --anchor or --proof")
    anchors: list[Anchor | Proof] = [_anchor(path) for path in anchor_files]
    if proof_file is not None:
        if run_name is not None or anchor_files or all_tenants:
            raise click.UsageError("--proof names its run itself; it stands alone")
        proof = load(read_proof, proof_file, "proof", (read_anchor, "it is an anchor: use --anchor"))
        if not site.url:
            _tell_proof(site, proof, key)
            return
        anchors, site = [proof], replace(site, tenant=proof.head.tenant)
        run_name = None if proof.head.scope else proof.head.run
    try:
        with site.store() as store, bar("verifying") as progress:
            if run_name is not None and not anchors:
                store.run(run_name, site.tenant).info()  # tells of near names
            if run_name is None and not all_tenants and not _knows(anchors, site.tenant):
                check_tenant(store, site.tenant)
            report = verify(
                store,
                None if run_name is None else [(site.tenant, run_name)],
                tenant=None if all_tenants else site.tenant,
                level=level,
                anchor=anchors,
                public_key=key,
                progress=progress,
            )
    except Damaged as error:
        report = unreadable(error, level)
    if report.ok and not report.runs and not all_tenants and run_name is None:
        report.notes.append(f"no runs in tenant {site.tenant!r}")
    _tell(site, report)
    if not report.ok:
        raise click.exceptions.Exit(exits.FOUND)


def _anchor(path: str) -> Anchor:
    from refold_replay.anchoring import read_anchor, read_proof

    found = load(read_anchor, path, "anchor", (read_proof, "it is a proof: use --proof"))
    if not found.heads:
        raise click.UsageError(f"{path!r} is an anchor of no runs: it vouches for nothing")
    return found


def _knows(anchors: list[Anchor | Proof], tenant: str) -> bool:
    """Whether anchors know runs of a tenant: that they are gone is a finding."""
    return any(head.tenant == tenant for one in anchors for head in one.heads)


def _tell(site: Site, report: VerifyReport) -> None:
    if site.as_json:
        output.document(
            {"ok": report.ok, "runs": report.runs, "events": report.events, "level": report.level,
             "findings": [_members(one) for one in report.findings], "notes": list(report.notes),
             "anchored": report.anchored}
        )  # fmt: skip
        return
    for one in report.findings:
        output.say(output.safe(str(one)))
    for remark in report.notes:
        output.note(f"note: {remark}")
    verdict = "ok" if report.ok else output.plural(len(report.findings), "finding")
    runs, events = output.plural(report.runs, "run"), output.plural(report.events, "event")
    anchored = "" if report.anchored is None else f", {output.plural(report.anchored, 'run')} held against an anchor"
    output.say(f"{verdict}: {runs}, {events}, level {report.level}{anchored}")


def _tell_proof(site: Site, proof: Proof, key: bytes | None) -> None:
    """What a proof is worth by itself: no store was named."""
    problems = proof.problems(key)
    if site.as_json:
        output.document({"ok": not problems, "problems": problems, "proof": proof.document()})
    else:
        for problem in problems:
            output.say(output.safe(f"proof: {problem}"))
        head = proof.head
        output.say(
            "the proof does not hold" if problems else "the proof holds by itself; no store was named to compare"
        )
        output.facts(
            [
                ("run", output.safe(head.run)),
                ("tenant", output.safe(head.tenant)),
                ("seq", str(head.seq)),
                ("digest", head.digest),
                ("anchored", f"{proof.made_at}, as one of {output.plural(proof.size, 'run')}"),
                ("root", proof.root),
                ("signed by", proof.public_key or "nobody: compare the root with the anchor's"),
            ]
        )
    if problems:
        raise click.exceptions.Exit(exits.FOUND)


def _members(finding: Finding) -> dict[str, Any]:
    return {
        "tenant": finding.tenant,
        "run": finding.run,
        "seq": finding.seq,
        "damage": finding.damage,
        "message": finding.message,
    }
