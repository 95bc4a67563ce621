"""What a verification finds, and how it adds up."""

from __future__ import annotations

from dataclasses import dataclass, field

FINDINGS_MAX = 20
"""Findings kept of one run: the first places tell what happened, and one cause may show in every later event."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One place where the store contradicts itself.

    `damage` is one word: digest, density, version, transaction, time, owner, type, invariant, schema, read, request,
    keyframe, orphan, body, erasure, pruning, fork, archive, column, name, opening, file, unreadable; against an
    anchor: truncated, rewritten, vanished, anchor.
    """

    tenant: str
    run: str
    seq: int | None
    damage: str
    message: str

    def __str__(self) -> str:
        if self.damage == "anchor":
            return f"anchor: {self.message}"
        place = "the store" if not self.tenant and not self.run and self.seq is None else f"run {self.run!r}"
        tenant = f" of tenant {self.tenant!r}" if self.tenant not in ("", "default") else ""
        seq = "" if self.seq is None else f" at seq {self.seq}"
        return f"{place}{tenant}{seq}: {self.damage}: {self.message}"


@dataclass(slots=True)
class Findings:
    """Collects the findings of one run, each kind of damage at its first place."""

    tenant: str
    run: str
    found: list[Finding] = field(default_factory=list)

    def add(self, seq: int | None, damage: str, message: str) -> None:
        """Note one."""
        if len(self.found) < FINDINGS_MAX:
            self.found.append(Finding(self.tenant, self.run, seq, damage, message))

    @property
    def full(self) -> bool:
        """Whether more would not be kept."""
        return len(self.found) >= FINDINGS_MAX


@dataclass(slots=True)
class VerifyReport:
    """What a verification found."""

    level: str
    runs: int = 0
    events: int = 0
    findings: list[Finding] = field(default_factory=list)
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)
    anchored: int | None = None
    """Runs held against an anchor; None without one."""

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings
