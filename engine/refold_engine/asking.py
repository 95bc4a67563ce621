"""Asks a model until it answers: time-out, bounded repeats, the fallback model; each try is reported.

Rules of this module
- A try is made once and reported before anything else happens: what the report raises ends the asking.
- The same model is asked again only after a failure that a repeat may mend, after a pause that doubles each time.
  A pause the provider asks for counts, if it is not longer than the longest pause here: else the model is given up.
- Then the fallback model is asked through the same loop, whatever the failure was: a key that is refused, or a
  conversation that is too long for one model, may suit the other.
- A script that does not fit is the author's mistake, no failure of a model: it ends the asking at once.
- Time is the clock port's, chance the random port's. Tries, pauses and the whole are bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from refold_engine.errors import BadAnswer, ModelFailed, ModelsExhausted, RateLimited, ScriptMismatch, Why
from refold_engine.ports import Clock, Json, Model, ModelAnswer, ModelRequest, Random, Usage
from refold_store.errors import ConfigError

MAX_TRIES = 11
"""Tries of one model, ten of them repeats: more only delay the fallback."""

MAX_TOTAL_S = 3600.0
"""Longest time for one question, in seconds: an hour, beyond any answer."""

MAX_DETAIL = 500
"""Longest reason kept of a failed try, in characters: a log line, not a page."""

_RANDOM_BYTES = 7
_RANDOM_RANGE = float(1 << (8 * _RANDOM_BYTES))


@dataclass(frozen=True, slots=True)
class AskConfig:
    """How long and how often to ask. Times in seconds. Raises ConfigError for what makes no sense."""

    fallback: str | None = None
    """The model asked when the first one has failed; None or the same name: none."""
    timeout_s: float = 60.0
    """For one try."""
    tries: int = 3
    """Of each model."""
    first_pause_s: float = 0.5
    """Before the second try; doubled before each further one. A random half to all of it is waited."""
    longest_pause_s: float = 30.0
    total_s: float = 600.0
    """For everything: both models, all tries and pauses."""

    def __post_init__(self) -> None:
        if not 1 <= self.tries <= MAX_TRIES:
            raise ConfigError(f"tries is {self.tries}: a model is asked 1 to {MAX_TRIES} times", where="model")
        for name, value in (("timeout_s", self.timeout_s), ("total_s", self.total_s)):
            if not 0 < value <= MAX_TOTAL_S:
                raise ConfigError(f"{name} is {value}: give seconds, over 0 and up to {MAX_TOTAL_S:g}", where="model")
        if not 0 <= self.first_pause_s <= self.longest_pause_s <= MAX_TOTAL_S:
            raise ConfigError(
                f"first_pause_s is {self.first_pause_s} and longest_pause_s is {self.longest_pause_s}: "
                f"give seconds, 0 or more, the first not over the longest, up to {MAX_TOTAL_S:g}",
                where="model",
            )


@dataclass(frozen=True, slots=True)
class TryRecord:
    """One try: of which model, which number within its question (from 1), and how it ended."""

    model: str
    number: int
    outcome: Literal["answered", "failed"]
    why: Why | None = None
    detail: str = ""
    """The failure in words; empty for an answer."""
    usage: Usage = field(default_factory=Usage)
    """An answer that could not be used costs, too."""

    def to_json(self) -> dict[str, Json]:
        """As JSON."""
        return {
            "model": self.model,
            "number": self.number,
            "outcome": self.outcome,
            "why": self.why,
            "detail": self.detail,
            "usage": self.usage.to_json(),
        }

    @staticmethod
    def from_json(found: Mapping[str, Json]) -> TryRecord:
        """From JSON."""
        return TryRecord(**{**found, "usage": Usage(**found["usage"])})


class AskPorts(Protocol):
    """What asking needs of the world."""

    @property
    def model(self) -> Model:
        """Answers for every model name."""

    @property
    def clock(self) -> Clock:
        """Measures the whole and waits the pauses."""

    @property
    def random(self) -> Random:
        """Spreads the pauses."""


def ask(config: AskConfig, request: ModelRequest, ports: AskPorts, on_try: Callable[[TryRecord], None]) -> ModelAnswer:
    """The answer of `request.model`, or else of the fallback. Raises ModelsExhausted, or at once ScriptMismatch."""
    asking = _Asking(config, ports, on_try)
    answer = asking.ask_one(request)
    if answer is None and config.fallback not in (None, request.model):
        answer = asking.ask_one(replace(request, model=config.fallback))
    if answer is None:
        raise asking.exhausted(request.model) from asking.last
    return answer


class _Asking:
    """One question on its way."""

    def __init__(self, config: AskConfig, ports: AskPorts, on_try: Callable[[TryRecord], None]) -> None:
        self.config, self.ports, self.on_try = config, ports, on_try
        self.ends_us = ports.clock.now_us() + round(config.total_s * 1e6)
        self.tries: list[tuple[str, Why]] = []
        self.last: ModelFailed | None = None

    def ask_one(self, request: ModelRequest) -> ModelAnswer | None:
        """The answer of one model, None if it was given up."""
        for earlier in range(self.config.tries):
            left_s = self.left_s() if self.tries else self.config.total_s
            if left_s <= 0:
                return None
            found = self.one_try(request, min(self.config.timeout_s, left_s))
            if isinstance(found, ModelAnswer):
                return found
            if not found.repeatable or earlier + 1 == self.config.tries:
                return None
            pause_s = self.pause_s(earlier, found)
            if pause_s is None or pause_s >= self.left_s():
                return None
            self.ports.clock.sleep(pause_s)
        return None

    def one_try(self, request: ModelRequest, timeout_s: float) -> ModelAnswer | ModelFailed:
        number = len(self.tries) + 1
        try:
            answer = self.ports.model.answer(request, timeout_s=timeout_s)
        except ModelFailed as error:
            self.tries.append((request.model, error.why))
            self.last = error
            usage = error.usage if isinstance(error, BadAnswer) else Usage()
            self.on_try(TryRecord(request.model, number, "failed", error.why, str(error)[:MAX_DETAIL], usage))
            if isinstance(error, ScriptMismatch):
                raise
            return error
        self.on_try(TryRecord(request.model, number, "answered", usage=answer.usage))
        return answer

    def pause_s(self, earlier: int, error: ModelFailed) -> float | None:
        """How long to wait before the next try; None if the provider wants longer than we wait."""
        longest_s = self.config.longest_pause_s
        part = int.from_bytes(self.ports.random.bytes(_RANDOM_BYTES), "big") / _RANDOM_RANGE
        ours_s = min(self.config.first_pause_s * 2.0**earlier, longest_s) * (0.5 + part / 2)
        theirs_s = error.retry_after_s if isinstance(error, RateLimited) and error.retry_after_s is not None else 0.0
        return None if theirs_s > longest_s else max(ours_s, theirs_s)

    def left_s(self) -> float:
        return (self.ends_us - self.ports.clock.now_us()) / 1e6

    def exhausted(self, model: str) -> ModelsExhausted:
        assert self.last is not None, "the first try is always made"
        tried: dict[str, list[str]] = {}
        for name, why in self.tries:
            tried.setdefault(name, []).append(why)
        told = ", nor from ".join(f"{name!r} ({', '.join(reasons)})" for name, reasons in tried.items())
        late = f" within total_s={self.config.total_s:g}" if self.left_s() <= 0 else ""
        return ModelsExhausted(
            f"no answer from {told}{late}; the last failure: {self.last}",
            model=self.last.model or model,
            why=self.last.why,
            repeatable=self.last.repeatable,
            tries=self.tries,
        )
