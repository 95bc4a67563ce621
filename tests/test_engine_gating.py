"""`available_when`: a tool is offered only when its condition is true, and asked for again before it runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from refold_engine.errors import ToolFailed
from refold_engine.gating import ask, check, gate, offered

STATE = {"status": "open", "amount": 5, "order": {"paid": False}}


def test_tools_are_offered_by_the_state() -> None:
    """A tool without a condition is always there; one with a condition only while it is true; order is kept."""
    gates = [gate("b", "amount > 3"), gate("a", None), gate("c", "status == 'closed'"), gate("d", "not order['paid']")]
    assert offered(gates, STATE).tools == ("b", "a", "d")
    assert offered(gates, {**STATE, "amount": 1, "status": "closed"}).tools == ("a", "c", "d")
    assert offered(gates, STATE).problems == {}


def test_a_key_that_is_not_set_hides_the_tool_silently() -> None:
    """A condition on a key or member that is not there yet hides the tool and is no problem."""
    gates = [gate("a", "invoice == 1"), gate("b", "order['total'] > 1"), gate("c", "not invoice"), gate("d", None)]
    offer = offered(gates, STATE)
    assert (offer.tools, offer.problems) == (("d",), {})
    assert ask(gates[0], STATE).waits_for == ("invoice",)


@pytest.mark.parametrize(
    ("condition", "says"),
    [
        ("status ==", "cannot be read as an expression"),
        ("status is None", "column 8"),
        ("open('x')", "column 1"),
        ("status < 3", "no meaning"),
        ("amount in 3", "column"),
        ("broken(status)", "boom"),
    ],
)
def test_a_broken_condition_hides_the_tool_and_says_so(condition: str, says: str) -> None:
    """What does not parse, has no meaning on the values, or calls a failing function closes the gate, with a line."""

    def broken(_value: object) -> bool:
        raise RuntimeError("boom")

    gates = [gate("refund", condition, {"broken": broken}), gate("other", None)]
    offer = offered(gates, STATE)
    assert offer.tools == ("other",)
    assert list(offer.problems) == ["refund"]
    assert says in offer.problems["refund"]
    with pytest.raises(ToolFailed, match="cannot be judged"):
        check(gates[0], STATE)


class Unreadable(Mapping[str, object]):
    """A state whose value was erased, or whose store is gone."""

    def __getitem__(self, key: str) -> object:
        raise ValueError(f"{key} cannot be read")

    def __iter__(self) -> Iterator[str]:
        return iter(("status",))

    def __len__(self) -> int:
        return 1


def test_a_state_that_cannot_be_read_hides_the_tool() -> None:
    """Whatever goes wrong while a condition is judged closes the gate and is told."""
    offer = offered([gate("refund", "status == 'open'"), gate("other", None)], Unreadable())
    assert offer.tools == ("other",)
    assert "ValueError: status cannot be read" in offer.problems["refund"]


def test_execution_asks_again() -> None:
    """A tool offered a moment ago is refused at the call once its condition is no longer true."""
    refund = gate("refund", "status == 'open'")
    check(refund, STATE)
    check(gate("other", None), {})
    with pytest.raises(ToolFailed, match="only when status == 'open'") as caught:
        check(refund, {**STATE, "status": "closed"})
    assert (caught.value.tool, caught.value.unknown) == ("refund", False)
    with pytest.raises(ToolFailed, match="waits for status"):
        check(refund, {})


def test_a_value_that_is_no_boolean_counts_as_in_conditions() -> None:
    """An empty list hides the tool, a filled one shows it."""
    assert not ask(gate("a", "items"), {"items": []}).open
    assert ask(gate("a", "items"), {"items": [0]}).open
