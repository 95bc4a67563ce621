"""The claims case: a fact five agents share, a refused overwrite, a correction, and one agent that acted too early.

Rules of this module
- The story is played through the public interface, on whatever store it is given; what is printed comes from the store.
- A run that is there already is never touched: the case is played again under the next free name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BaseModel

from refold_store.declare import Owner, StateSchema, basis_required
from refold_store.errors import Refused
from refold_store.reducers import append

if TYPE_CHECKING:
    from refold_store.reads import Read
    from refold_store.requests import Written
    from refold_store.run import Run
    from refold_store.store import Store

RUN = "clm-77401"
NAMES_MAX = 1000
"""Free names looked for: clm-77401-2, -3 ..."""

Say = Callable[[str], None]


class Routing(BaseModel):
    """Which rules a claim is handled under."""

    ruleset: Literal["QC-auto", "ON-auto"]
    authority_limit: int
    police_report: bool = False


class ClaimState(StateSchema):
    """What the agents of one claim share. `desk` is a group: either of its members may write for it."""

    loss: Annotated[dict[str, Any], Owner("intake_agent")]
    routing: Annotated[Routing, Owner("triage_agent"), basis_required]
    reserve_band: Annotated[tuple[int, int], Owner("desk")]
    evidence: Annotated[list[str], Owner("evidence_agent"), append]
    settlement: Annotated[dict[str, Any], Owner("settlement_agent")]

    groups: ClassVar = {"desk": ["reserve_agent", "liability_agent"]}
    invariants: ClassVar = {"band_in_order": "reserve_band[0] <= reserve_band[1]"}


def free_run(store: Store, tenant: str) -> Run:
    """The demo's run, under a name the store does not know yet."""
    for number in range(1, NAMES_MAX):
        run = store.run(RUN if number == 1 else f"{RUN}-{number}", tenant)
        if not run.head_seq():
            return run
    raise Refused(f"{NAMES_MAX - 1} demo runs are in this store already; give an empty one")


def play(run: Run, say: Say) -> None:
    """Play the case in a new run."""
    _Story(run, say).tell()


class _Story:
    def __init__(self, run: Run, say: Say) -> None:
        self.run = run
        self.say = say

    def tell(self) -> None:
        """All of it, in order."""
        routing = self._open()
        seen = self._three_read()
        self._refusals()
        self._correct(routing)
        self._act_on_old(seen)

    def _open(self) -> Written:
        self._step("1. A loss comes in; triage decides which rules it is handled under.")
        loss = {"claimed": 18000, "country": "CA", "province": "QC"}
        self._write("loss", loss, "intake_agent", basis="first notice of loss, by phone")
        routing = Routing(ruleset="QC-auto", authority_limit=15000)
        return self._write(
            "routing",
            routing,
            "triage_agent",
            basis="fnol: loss location QC, stated by claimant",
            based_on=[("loss", 1)],
        )

    def _three_read(self) -> Read:
        self._step("2. Three agents read routing. Each read is on the record, with the version it saw.")
        reads = [self._read("routing", reader) for reader in ("evidence_agent", "liability_agent", "settlement_agent")]
        self._write("reserve_band", (5000, 25000), "reserve_agent", based_on=[("loss", 1)])
        return reads[-1]

    def _refusals(self) -> None:
        self._step("3. Two writes are refused. Nobody will ever read them; both are on the record.")
        ontario = Routing(ruleset="ON-auto", authority_limit=25000)
        self._refused("routing", ontario, "evidence_agent", basis="police report mentions Ottawa")
        self._refused("reserve_band", (25000, 5000), "reserve_agent")

    def _correct(self, first: Written) -> None:
        self._step("4. A police report arrives. Triage, the owner, corrects routing.")
        self._write("evidence", "police report QC-2231", "evidence_agent")
        corrected = Routing(ruleset="QC-auto", authority_limit=8000, police_report=True)
        basis = "injury reported: authority limit lowered"
        self._write(
            "routing",
            corrected,
            "triage_agent",
            basis=basis,
            based_on=[("evidence", 1)],
            expected_version=first.version,
        )
        self._read("routing", "liability_agent")

    def _act_on_old(self, seen: Read) -> None:
        self._step("5. The settlement agent did not look again. It acts on the version it saw.")
        limit = seen.value.authority_limit
        offer = {"amount": 12000, "within_limit": limit}
        self._write("settlement", offer, "settlement_agent", basis=f"authority limit is {limit}", based_on=[seen])
        self.say(f"   It offered 12,000 under a limit of {limit:,}, which has been 8,000 since routing@2.")
        self.say("   Nothing failed, and no message tells. The store knows:")

    # --- one step each -----------------------------------------------------------------------

    def _step(self, text: str) -> None:
        self.say(f"\n{text}")

    def _write(self, key: str, value: Any, writer: str, **options: Any) -> Written:
        written = self.run.write_state(key, value, writer=writer, **options)
        self.say(f"   seq {written.seq:>2}  {writer} writes {key}@{written.version}  {_text(value)}")
        return written

    def _read(self, key: str, reader: str) -> Read:
        read = self.run.read_state(key, reader=reader)
        self.run.store.flush()
        self.say(f"   seq {self.run.head_seq():>2}  {reader} reads {key}@{read.version}")
        return read

    def _refused(self, key: str, value: Any, writer: str, **options: Any) -> None:
        try:
            self.run.write_state(key, value, writer=writer, **options)
        except Refused as error:
            self.run.store.flush()
            self.say(f"   seq {self.run.head_seq():>2}  {writer} writes {key}  {_text(value)}")
            self.say(f"           refused: {error}")
        else:
            raise AssertionError(f"{writer} may not write {key}")


def _text(value: Any) -> str:
    from refold.output import compact

    return compact(
        value.model_dump() if isinstance(value, BaseModel) else list(value) if isinstance(value, tuple) else value
    )
