"""Asking with time-outs, repeats and a fallback; every try on the record."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from refold_engine.asking import AskConfig, TryRecord, ask
from refold_engine.errors import BadAnswer, ModelFailed, ModelsExhausted, ScriptMismatch
from refold_engine.ports import Message, Model, ModelAnswer, ModelRequest, Usage
from refold_engine.scripted import FunctionModel, ScriptedModel
from refold_store import jsontext
from refold_store.errors import ConfigError

REQUEST = ModelRequest("first", (Message("user", "hi"),))


class FakeClock:
    """Time that passes only in sleep."""

    def __init__(self) -> None:
        self.now = 1_000_000
        self.slept: list[float] = []

    def now_us(self) -> int:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(round(seconds, 6))
        self.now += round(seconds * 1e6)


class SameBytes:
    """No chance at all."""

    def __init__(self, byte: int) -> None:
        self.byte = byte

    def bytes(self, size: int) -> bytes:
        return bytes([self.byte]) * size


@dataclass
class World:
    """The ports, and what was reported."""

    model: Model
    clock: FakeClock = field(default_factory=FakeClock)
    random: SameBytes = field(default_factory=lambda: SameBytes(0xFF))
    tries: list[TryRecord] = field(default_factory=list)

    def ask(self, **config: Any) -> ModelAnswer:
        return ask(AskConfig(**config), REQUEST, self, self.tries.append)


def scripted(*answers: Any) -> World:
    """A world with a script whose delays pass on its clock."""
    clock = FakeClock()
    return World(ScriptedModel(answers, sleep=lambda seconds: clock.sleep(seconds)), clock)


def told(world: World) -> list[tuple[str, int, str | None]]:
    """Model, number and failure of each try."""
    return [(one.model, one.number, one.why) for one in world.tries]


def test_first_answer_is_one_try() -> None:
    """An answer at once is one try with its usage, without any pause."""
    world = scripted({"content": "yes", "usage": {"input_tokens": 3, "cost": 0.1}})
    assert world.ask().content == "yes"
    assert world.tries == [TryRecord("first", 1, "answered", usage=Usage(3, 0, 0.1))]
    assert world.clock.slept == []


def test_repeats_with_doubling_pauses() -> None:
    """What a repeat may mend is asked again after pauses that double, up to the longest, then the answer counts."""
    world = scripted(*[{"fail": why} for why in ("timeout", "connection", "overloaded", "bad_answer")], "yes")
    assert world.ask(tries=5, first_pause_s=1, longest_pause_s=3).content == "yes"
    whys = ["timeout", "connection", "overloaded", "bad_answer", None]
    assert told(world) == [("first", number, why) for number, why in enumerate(whys, 1)]
    assert world.clock.slept == [1, 2, 3, 3]


@pytest.mark.parametrize(("byte", "pause"), [(0, 2.0), (0x80, 3.003922), (0xFF, 4.0)])
def test_chance_spreads_the_pause(byte: int, pause: float) -> None:
    """A pause lasts half of its length to all of it, as the random port says."""
    world = scripted({"fail": "timeout"}, "yes")
    world.random = SameBytes(byte)
    world.ask(first_pause_s=4)
    assert world.clock.slept == [pytest.approx(pause, abs=1e-3)]


@pytest.mark.parametrize("why", ["auth", "bad_request", "refused"])
def test_what_no_repeat_mends_goes_to_the_fallback(why: str) -> None:
    """A failure that stays is not repeated; the fallback is asked at once, with the same messages."""
    world = scripted({"model": "first", "fail": why}, {"model": "second", "expect": {"last": "hi"}, "content": "yes"})
    assert world.ask(fallback="second").model == "second"
    assert told(world) == [("first", 1, why), ("second", 2, None)]
    assert world.clock.slept == []


def test_fallback_has_the_same_loop_and_its_end() -> None:
    """When the fallback has failed as often, the error lists every try, and no third model is asked."""
    world = scripted({"fail": "timeout", "times": 2}, {"fail": "overloaded", "times": 2}, "too late")
    with pytest.raises(ModelsExhausted, match=r"'first' \(timeout, timeout\), nor from 'second' \(over") as caught:
        world.ask(tries=2, fallback="second")
    error = caught.value
    assert error.tries == (("first", "timeout"),) * 2 + (("second", "overloaded"),) * 2
    assert (error.model, error.why, error.repeatable) == ("second", "overloaded", True)
    assert isinstance(error.__cause__, ModelFailed)
    assert [one.number for one in world.tries] == [1, 2, 3, 4]


@pytest.mark.parametrize("fallback", [None, "first"])
def test_no_fallback_or_the_same(fallback: str | None) -> None:
    """Without a fallback, or with the same name, one model is asked."""
    world = scripted({"fail": "auth", "times": "any"})
    with pytest.raises(ModelsExhausted):
        world.ask(fallback=fallback)
    assert told(world) == [("first", 1, "auth")]


def test_each_try_has_the_time_that_is_left() -> None:
    """A try gets its own time-out, the last one what is left of the whole; then nothing is asked any more."""
    given: list[float] = []
    world = scripted()

    class Slow:
        def answer(self, request: ModelRequest, *, timeout_s: float) -> ModelAnswer:
            given.append(round(timeout_s, 6))
            world.clock.sleep(timeout_s)
            raise ModelFailed("late", model=request.model, why="timeout", repeatable=True)

    world.model = Slow()
    with pytest.raises(ModelsExhausted, match=r"within total_s=25"):
        world.ask(timeout_s=10, tries=5, total_s=25, first_pause_s=1, fallback="second")
    assert given == [10, 10, 2]
    assert world.clock.now == 26_000_000


def test_pause_over_the_end_is_not_begun() -> None:
    """Where a pause would outlast the whole, the fallback is asked instead, at once."""
    world = scripted({"model": "first", "fail": "timeout"}, {"model": "second", "content": "yes"})
    assert world.ask(first_pause_s=20, total_s=5, fallback="second").content == "yes"
    assert world.clock.slept == []


@pytest.mark.parametrize(("after", "slept", "model"), [(7, [7], "first"), (0.1, [0.5], "first"), (31, [], "second")])
def test_pause_the_provider_asks_for(after: float, slept: list[float], model: str) -> None:
    """The longer of our pause and the provider's is waited; one over our longest gives the model up."""
    limited = {"model": "first", "fail": {"why": "rate_limit", "retry_after_s": after}}
    world = scripted(limited, {"model": "first", "content": "x"}, {"model": "second", "content": "x"})
    assert world.ask(fallback="second").model == model
    assert world.clock.slept == slept


def test_scripts_mistake_is_told_at_once() -> None:
    """A script that does not fit is reported and raised as it is: no repeat, no fallback hides it."""
    world = scripted({"when": "bye", "content": "x"})
    with pytest.raises(ScriptMismatch):
        world.ask(fallback="second")
    assert told(world) == [("first", 1, "bad_answer")]


def test_what_an_unusable_answer_cost_is_reported() -> None:
    """The usage of an answer that could not be used is on the record of its try."""

    def unusable(request: ModelRequest) -> str:
        raise BadAnswer("no JSON", model="first", usage=Usage(10, 5, 0.25))

    world = World(FunctionModel(unusable))
    with pytest.raises(ModelsExhausted):
        world.ask(tries=1)
    assert world.tries == [TryRecord("first", 1, "failed", "bad_answer", "no JSON", Usage(10, 5, 0.25))]


def test_report_comes_before_anything_else() -> None:
    """A try is reported before the pause and before the answer is used; a report that fails ends the asking."""
    world = scripted({"fail": "timeout"}, "yes")
    seen: list[int] = []

    def report(record: TryRecord) -> None:
        seen.append(len(world.clock.slept))
        if record.outcome == "answered":
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        ask(AskConfig(), REQUEST, world, report)
    assert seen == [0, 1]


def test_mistake_in_a_model_is_no_failure_of_it() -> None:
    """An error that is no ModelFailed goes through: it is a bug, and no repeat hides it."""
    world = World(FunctionModel(lambda request: request.messages[9].content))
    with pytest.raises(IndexError):
        world.ask(fallback="second")
    assert world.tries == []


def test_record_of_a_try_is_json_and_bounded() -> None:
    """A record reads back equal from JSON, and a long reason is cut."""
    world = scripted({"fail": {"why": "timeout", "message": "x" * 9000}}, "yes")
    world.ask()
    for one in world.tries:
        assert TryRecord.from_json(jsontext.decode(jsontext.encode(one.to_json()))) == one
    assert world.tries[0].detail == "x" * 500


@pytest.mark.parametrize(
    "config",
    [
        {"tries": 0},
        {"tries": 12},
        {"timeout_s": 0},
        {"total_s": float("nan")},
        {"total_s": 3601},
        {"first_pause_s": -1},
        {"first_pause_s": 5, "longest_pause_s": 4},
        {"longest_pause_s": float("inf")},
    ],
)
def test_settings_without_sense_are_refused(config: dict[str, Any]) -> None:
    """A number that bounds nothing is a configuration error naming it."""
    with pytest.raises(ConfigError, match=next(iter(config))):
        AskConfig(**config)
