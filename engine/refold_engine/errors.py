"""The errors of the engine, below the store's one base class.

RefoldError
├── ModelFailed            a model gave no answer: says why, and whether a repeat may help
│   ├── RateLimited        the provider wants a pause; says how long, if it knows
│   ├── BadAnswer          the model answered what cannot be used; carries what that cost
│   ├── ScriptMismatch     a script has no answer for this request: a mistake in the script or in the agents
│   └── ModelsExhausted    every try failed, the fallback model's too; lists them
├── NotRecorded            a replay asked what the record does not hold; names the first difference
├── ToolFailed             a tool gave no result
└── EngineStopped          a limit was reached; the run goes on when it is raised
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from refold_store.errors import RefoldError

if TYPE_CHECKING:
    from refold_engine.ports import Usage

Why = Literal["timeout", "connection", "rate_limit", "overloaded", "refused", "bad_request", "auth", "bad_answer"]

REPEATABLE: frozenset[Why] = frozenset({"timeout", "connection", "rate_limit", "overloaded", "bad_answer"})
"""Failures after which the same request may succeed, if nothing else is known."""


class ModelFailed(RefoldError):
    """A model gave no answer. `repeatable`: the same request may succeed later."""

    def __init__(self, message: str, *, model: str, why: Why, repeatable: bool) -> None:
        super().__init__(message)
        self.model, self.why, self.repeatable = model, why, repeatable


class RateLimited(ModelFailed):
    """The provider takes no more requests for now. `retry_after_s`: the pause it asked for, None if it said nothing."""

    def __init__(self, message: str, *, model: str, retry_after_s: float | None = None) -> None:
        super().__init__(message, model=model, why="rate_limit", repeatable=True)
        self.retry_after_s = retry_after_s


class BadAnswer(ModelFailed):
    """The model answered, and the answer cannot be used. `usage`: what it cost all the same."""

    def __init__(self, message: str, *, model: str, usage: Usage, repeatable: bool = True) -> None:
        super().__init__(message, model=model, why="bad_answer", repeatable=repeatable)
        self.usage = usage


class ScriptMismatch(ModelFailed):
    """A scripted model was asked what its script does not have. `entry` is the place in the script, None if no entry
    is for such a request; `arrived` and `expected` say the difference. Never repeated, never handed to a fallback."""

    def __init__(self, message: str, *, model: str, entry: str | None, arrived: str, expected: str) -> None:
        super().__init__(message, model=model, why="bad_answer", repeatable=False)
        self.entry, self.arrived, self.expected = entry, arrived, expected


class ModelsExhausted(ModelFailed):
    """Every try failed. `tries`: model and reason of each, in order; the other attributes are those of the last."""

    def __init__(
        self, message: str, *, model: str, why: Why, repeatable: bool, tries: Sequence[tuple[str, Why]]
    ) -> None:
        super().__init__(message, model=model, why=why, repeatable=repeatable)
        self.tries = tuple(tries)


class NotRecorded(RefoldError):
    """A replay asked a model what the record does not hold. `digest` is the request's, `nearest` that of the recorded
    request most like it (None if there is none), `path` where the two first differ (`messages[2]`), `role` the role
    of the message there."""

    def __init__(
        self, message: str, *, digest: str, model: str, nearest: str | None, path: str | None, role: str | None
    ) -> None:
        super().__init__(message)
        self.digest, self.model, self.nearest, self.path, self.role = digest, model, nearest, path, role


class ToolFailed(RefoldError):
    """A tool gave no result. `unknown`: whether it had its effect cannot be told."""

    def __init__(self, message: str, *, tool: str, unknown: bool = False) -> None:
        super().__init__(message)
        self.tool, self.unknown = tool, unknown


class EngineStopped(RefoldError):
    """A limit was reached: `limit` names it, `value` is what was counted, `most` what is allowed."""

    def __init__(self, message: str, *, limit: str, value: float, most: float) -> None:
        super().__init__(message)
        self.limit, self.value, self.most = limit, value, most
