"""The value that every benchmark writes: 300 bytes of JSON in the shape of a routing decision, different each time."""

from __future__ import annotations

import orjson
from pydantic import BaseModel

VALUE_BYTES = 300
OWNER = "triage_agent"
READER = "liability_agent"


class Deadline(BaseModel):
    """A due task of a fact."""

    days: int
    task: str


class Fact(BaseModel):
    """A fact of a run, as agents share them: texts, numbers, a list, a nested object."""

    amount: float
    deadlines: list[Deadline]
    no: int
    note: str
    ruleset: str
    sure: bool


def document(number: int) -> dict[str, object]:
    """The JSON document of the given number: always VALUE_BYTES long as canonical text."""
    note = f"loss location stated by the claimant, revision {number % 10**9:09d}, checked against the first notice"
    made: dict[str, object] = {
        "amount": 25000.5,
        "deadlines": [{"days": 30, "task": "acknowledge the claim"}, {"days": 60, "task": "decide on coverage"}],
        "no": 10**9 + number % 10**9,
        "note": note + ".",
        "ruleset": "QC-2026-direct-compensation",
        "sure": True,
    }
    missing = VALUE_BYTES - len(orjson.dumps(made))
    made["note"] = note + "." * (missing + 1)
    return made


DOCUMENTS: list[dict[str, object]] = [document(number) for number in range(512)]
TEXTS: list[bytes] = [orjson.dumps(made, option=orjson.OPT_SORT_KEYS) for made in DOCUMENTS]
FACTS: list[Fact] = [Fact.model_validate(made) for made in DOCUMENTS]

assert {len(text) for text in TEXTS} == {VALUE_BYTES}


def key_names(count: int) -> list[str]:
    """The keys of a benchmark, one family of them."""
    return [f"fact/{number:04d}" for number in range(count)]
