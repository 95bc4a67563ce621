"""The circuit breakers: what a run may do before the engine stops, each with a clear message."""

from __future__ import annotations

from typing import Any

from refold_engine.config import Breakers
from refold_engine.errors import EngineStopped
from refold_engine.progress import Progress


def stopped(limit: str, value: float, most: float, why: str) -> EngineStopped:
    """The error of a limit that was reached."""
    message = f"{why}; raise circuit_breakers.{limit} (now {most:g}) to allow more"
    return EngineStopped(message, limit=limit, value=value, most=most)


def told(error: EngineStopped) -> dict[str, Any]:
    """As members of a failure.raised event."""
    return {"limit": error.limit, "value": error.value, "most": error.most, "message": str(error)}


def check_hop(breakers: Breakers, progress: Progress) -> None:
    """Before one more handoff or route."""
    if progress.hops >= breakers.max_handoffs_per_turn:
        raise stopped(
            "max_handoffs_per_turn",
            progress.hops,
            breakers.max_handoffs_per_turn,
            f"{progress.hops} handoffs and routes since the last message",
        )
    most = breakers.max_handoffs_per_session
    if most is not None and progress.handoffs >= most:
        raise stopped("max_handoffs_per_session", progress.handoffs, most, f"{progress.handoffs} handoffs in this run")


def check_turn(breakers: Breakers, progress: Progress) -> None:
    """Before one more turn."""
    most = breakers.max_turns_per_session
    if most is not None and progress.turns >= most:
        raise stopped("max_turns_per_session", progress.turns, most, f"{progress.turns} turns in this run")


def check_cost(breakers: Breakers, progress: Progress) -> None:
    """Before one more model call."""
    most = breakers.max_usd_cost_per_session
    cost = progress.cost + progress.live.cost
    if most is not None and cost >= most:
        raise stopped("max_usd_cost_per_session", cost, most, f"models cost ${cost:.4f} so far")


def check_failures(breakers: Breakers, progress: Progress, tool: str) -> None:
    """After a tool has failed."""
    most = breakers.max_tool_failures_in_a_row
    if most is not None and progress.live.failures.get(tool, 0) >= most:
        count = progress.live.failures[tool]
        raise stopped("max_tool_failures_in_a_row", count, most, f"tool {tool!r} failed {count} times in a row")


def check_depth(breakers: Breakers, depth: int) -> None:
    """Before a task is given on."""
    if depth >= breakers.max_delegation_depth:
        raise stopped("max_delegation_depth", depth, breakers.max_delegation_depth, f"tasks {depth} deep")
