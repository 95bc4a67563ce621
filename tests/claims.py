"""The claims team's state schema, as the contract tests use it."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, JsonValue

from refold import (
    Owner,
    StateSchema,
    add,
    append,
    basis_required,
    deep_merge,
    family,
    max_bytes,
    merge,
    scope,
    union,
)


class Ruleset(Enum):
    QUEBEC = "QC_auto_2026"
    ONTARIO = "ON_auto_2026"


class Routing(BaseModel):
    ruleset: Ruleset
    desk: str = "montreal"


class ClaimState(StateSchema):
    """One job's facts."""

    groups = {"research": ["evidence_agent", "photo_agent"]}  # noqa: RUF012  # read by StateSchema
    invariants = {"band": "reserve_band[0] <= reserve_band[1]", "cap": "spent <= reserve_cap"}  # noqa: RUF012

    routing: Annotated[Routing, Owner("triage_agent")]
    note: Annotated[JsonValue | None, Owner("triage_agent")]
    any: Annotated[Any, Owner("triage_agent")]
    decision: Annotated[str, Owner("settlement_agent"), basis_required]
    reserve_band: Annotated[tuple[int, int], Owner("reserve_agent")]
    reserve_cap: Annotated[int, Owner("reserve_agent")]
    spent: Annotated[int, Owner("billing"), add]
    reports: Annotated[list[str], Owner("research"), append]
    tags: Annotated[set[str], Owner("research"), union]
    facts: Annotated[dict[str, int], Owner("research"), merge]
    tree: Annotated[dict[str, Any], Owner("research"), deep_merge]
    order: Annotated[dict[str, Any], Owner("sales_agent"), family("order/{order_id}")]
    small: Annotated[str, Owner("triage_agent"), max_bytes(20)]
    status: Annotated[Literal["open", "closed"], Owner("triage_agent")]
    opened: Annotated[datetime, Owner("triage_agent")]
    amount: Annotated[Decimal, Owner("billing")]
    counter: Annotated[int, Owner("counter")]
    house_rule: Annotated[str, Owner("triage_agent"), scope("tenant")]
    world_rule: Annotated[str, Owner("triage_agent"), scope("global")]


QUEBEC = {"ruleset": "QC_auto_2026", "desk": "montreal"}
ONTARIO = {"ruleset": "ON_auto_2026", "desk": "toronto"}
