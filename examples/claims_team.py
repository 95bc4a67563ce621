"""A claims team on one SQLite file: owned keys, refused writes, and the question asked afterwards.

Three agents share the facts of claim clm-77401. Triage owns the routing; the others read it. One of them acts on a
version that was corrected meanwhile, and the log tells.

It prints:
refused: evidence_agent may not write routing (owner)
refused: triage_agent may not write reserve_band (invariant)
routing is QC/roy, version 2, by triage_agent: moreau is on leave
liability_agent read version 1
settlement_agent read version 1
payment of settlement_agent rests on [('routing', 1)]
at routing@1 the adjuster was moreau
"""

from __future__ import annotations

import uuid
from typing import Annotated, Any, Literal

from pydantic import BaseModel

from refold import Owner, Refused, StateSchema, append, basis_required, family, open_store


class Routing(BaseModel):
    """Which rules apply, and who handles the claim."""

    ruleset: Literal["QC", "ON"]
    adjuster: str


class ClaimState(StateSchema):
    """The facts of one claim, each with its owner."""

    routing: Annotated[Routing, Owner("triage_agent"), basis_required]
    reserve_band: Annotated[tuple[int, int], Owner("triage_agent")]
    findings: Annotated[list[str], Owner("research"), append]
    payment: Annotated[dict[str, Any], Owner("settlement_agent"), family("payment/{number}")]

    groups = {"research": ["evidence_agent", "liability_agent"]}
    invariants = {"band": "reserve_band[0] <= reserve_band[1]"}


def main() -> None:
    """Play the claim, then ask what happened."""
    with open_store("sqlite:///claims.db", schema=ClaimState) as store:
        run = store.run(f"clm-77401-{uuid.uuid4().hex[:8]}", tenant="acme")
        run.write_state(
            "routing",
            {"ruleset": "QC", "adjuster": "moreau"},
            writer="triage_agent",
            basis="fnol: loss location QC, stated by claimant",
        )
        run.read_state("routing", reader="liability_agent")
        seen = run.read_state("routing", reader="settlement_agent")
        run.write_state("findings", "photo 3 shows the other lane", writer="evidence_agent")

        for key, value, writer in (
            ("routing", {"ruleset": "ON", "adjuster": "moreau"}, "evidence_agent"),
            ("reserve_band", (25000, 5000), "triage_agent"),
        ):
            try:
                run.write_state(key, value, writer=writer)
            except Refused as refusal:
                print(f"refused: {refusal.writer} may not write {refusal.key} ({refusal.reason})")

        run.write_state(
            "routing", {"ruleset": "QC", "adjuster": "roy"}, writer="triage_agent", basis="moreau is on leave"
        )
        paid = run.write_state("payment/1", {"to": "moreau"}, writer="settlement_agent", based_on=[seen])

        now = run.peek("routing")
        routing = now.value
        print(
            f"routing is {routing.ruleset}/{routing.adjuster}, version {now.version}, by {now.written_by}: {now.basis}"
        )
        for read in run.readers("routing"):
            print(f"{read.reader} read version {read.version}")
        print(f"payment of settlement_agent rests on {run.peek(paid.key).based_on}")
        print("at routing@1 the adjuster was", run.at("routing@1").read_state("routing").value.adjuster)


if __name__ == "__main__":
    main()
