"""Live models through litellm: the only module that imports it.

Rules of this module
- litellm is loaded at the first question, not before (seconds, and about 200 MB of memory), and told first to stay
  offline and quiet: no price map fetched, no `.env` file read, no callbacks, no repeats, no prompts in its messages.
  If the program had imported litellm before, what it has set there stays.
- One call is one try, ended after `timeout_s` whatever the connection does. Repeats and fallback are `asking`'s.
- An answer comes back whole or not at all: cut off, empty, or with a tool call that cannot be read, it is a BadAnswer.
- Which failure is which is told by the class names of the error, so that it can be tested without litellm.
"""

from __future__ import annotations

import contextvars
import importlib
import importlib.util
import math
import os
import queue
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

from refold_engine.errors import REPEATABLE, BadAnswer, ModelFailed, RateLimited, Why
from refold_engine.ports import Json, Message, ModelAnswer, ModelRequest, ToolCall, ToolSpec, Usage
from refold_store import jsontext
from refold_store.errors import ConfigError, NotExact

MAX_IN_FLIGHT = 64
"""Calls at once, those given up but not yet ended included: more threads would only wait for the provider."""

MAX_MESSAGE = 400
"""Longest part of a provider's message that is kept, in characters."""

_ENVIRONMENT = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_MODE": "PRODUCTION"}
"""The first keeps litellm from fetching its price map, the second from loading a `.env` file into the process."""

_SETTINGS: Mapping[str, Any] = {
    "telemetry": False,
    "suppress_debug_info": True,
    "redact_messages_in_exceptions": True,
    "callbacks": [],
    "input_callback": [],
    "success_callback": [],
    "failure_callback": [],
    "service_callback": [],
}

_WHY: Mapping[str, Why] = {
    "Timeout": "timeout",
    "APITimeoutError": "timeout",
    "RateLimitError": "rate_limit",
    "ServiceUnavailableError": "overloaded",
    "InternalServerError": "overloaded",
    "BadGatewayError": "overloaded",
    "APIConnectionError": "connection",
    "AuthenticationError": "auth",
    "PermissionDeniedError": "auth",
    "PaymentRequiredError": "auth",
    "BudgetExceededError": "auth",
    "ContentPolicyViolationError": "refused",
    "RejectedRequestError": "refused",
    "GuardrailRaisedException": "refused",
    "BlockedPiiEntityError": "refused",
    "APIResponseValidationError": "bad_answer",
    "BadRequestError": "bad_request",
    "NotFoundError": "bad_request",
    "UnprocessableEntityError": "bad_request",
}
"""Class names of litellm's errors and of the OpenAI client's below them; the nearest in the class tree counts."""

_ADVICE: Mapping[Why, str] = {
    "timeout": "raise the time-out, or ask for less",
    "connection": "see whether the provider can be reached from here",
    "rate_limit": "wait, or raise the provider's limit",
    "overloaded": "try again later, or name a fallback",
    "refused": "the provider's policy forbids it: change the prompt, or the model",
    "bad_request": "see that the model exists, and takes this many messages and these settings",
    "auth": "see that the provider's key is in the environment, valid, and paid for",
    "bad_answer": "try again, or name a fallback",
}


class LiteLLMModel:
    """A Model for every name litellm knows (`openai/gpt-4o-mini`). Keys come from the environment, as litellm reads
    them. Safe for several threads."""

    def __init__(self) -> None:
        """Raises ConfigError if litellm is not installed."""
        if "litellm" not in sys.modules and importlib.util.find_spec("litellm") is None:
            raise ConfigError("live models need the package litellm: pip install 'refold[llm]'")
        self._in_flight = threading.BoundedSemaphore(MAX_IN_FLIGHT)

    def answer(self, request: ModelRequest, *, timeout_s: float) -> ModelAnswer:
        """Ask once. Raises ModelFailed, as RateLimited or BadAnswer where it is that."""
        litellm = load()
        asked = arguments(request)
        if not self._in_flight.acquire(timeout=timeout_s):
            raise ModelFailed(
                f"{request.model!r} was not asked: {MAX_IN_FLIGHT} calls are under way, and none ended within "
                f"{timeout_s:g} s; let fewer agents run at once",
                model=request.model,
                why="overloaded",
                repeatable=True,
            )

        def call() -> Any:
            return litellm.completion(**asked, timeout=timeout_s, num_retries=0, max_retries=0)

        try:
            response = _within(call, timeout_s, self._in_flight.release)
        except Exception as error:
            raise failure(error, request.model) from error
        return answer_of(response, request)


def load() -> Any:
    """The module litellm, told to stay offline and quiet."""
    fresh = "litellm" not in sys.modules
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    litellm = importlib.import_module("litellm")
    if fresh:
        for name, value in _SETTINGS.items():
            setattr(litellm, name, list(value) if isinstance(value, list) else value)
    return litellm


def _within(call: Callable[[], Any], timeout_s: float, done: Callable[[], None]) -> Any:
    """What the call returns or raises; TimeoutError after `timeout_s`. litellm's own time-out is for each read from
    the connection, so a trickle would never end. The call given up ends in its thread, then `done` is called."""
    ended: queue.SimpleQueue[tuple[Any, Exception | None]] = queue.SimpleQueue()

    def work() -> None:
        try:
            ended.put((call(), None))
        except Exception as error:
            ended.put((None, error))
        finally:
            done()

    context = contextvars.copy_context()
    threading.Thread(target=context.run, args=(work,), name="refold-model", daemon=True).start()
    try:
        found, error = ended.get(timeout=timeout_s)
    except queue.Empty:
        raise TimeoutError(f"no answer within {timeout_s:g} s") from None
    if error is not None:
        raise error
    return found


# -- requests ----------------------------------------------------------------------------------------------------


def arguments(request: ModelRequest) -> dict[str, Json]:
    """The request as litellm takes it: without what was not asked for."""
    asked: dict[str, Json] = {"model": request.model, "messages": [_message(one) for one in request.messages]}
    if request.tools:
        asked["tools"] = [_tool(one) for one in request.tools]
    if request.temperature is not None:
        asked["temperature"] = request.temperature
    if request.response_schema is not None:
        schema = {"name": "answer", "schema": dict(request.response_schema), "strict": False}
        asked["response_format"] = {"type": "json_schema", "json_schema": schema}
    return asked


def _message(message: Message) -> dict[str, Json]:
    found: dict[str, Json] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        found["content"] = message.content or None  # some providers refuse an empty text beside tool calls
        found["tool_calls"] = [_call(one) for one in message.tool_calls]
    if message.tool_call_id is not None:
        found["tool_call_id"] = message.tool_call_id
    return found


def _call(call: ToolCall) -> dict[str, Json]:
    text = jsontext.encode(dict(call.arguments)).decode()
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": text}}


def _tool(spec: ToolSpec) -> dict[str, Json]:
    return {"type": "function", "function": spec.to_json()}


# -- answers -----------------------------------------------------------------------------------------------------


def answer_of(response: Any, request: ModelRequest) -> ModelAnswer:
    """The answer in litellm's response. Raises BadAnswer, or ModelFailed if the provider withheld it."""
    usage = _usage(response)
    choice = next(iter(getattr(response, "choices", None) or ()), None)
    message = getattr(choice, "message", None)
    if message is None:
        raise _bad("holds no message", request, usage)
    reason = getattr(choice, "finish_reason", None)
    if reason == "content_filter":
        raise ModelFailed(
            f"{request.model!r} withheld its answer (content filter); {_ADVICE['refused']}",
            model=request.model,
            why="refused",
            repeatable=False,
        )
    if reason == "length":
        raise _bad("was cut off at the model's token limit: ask for less, or name another model", request, usage, False)
    calls = _calls(getattr(message, "tool_calls", None) or (), request, usage)
    content = getattr(message, "content", None) or ""
    if not content and not calls:
        raise _bad("is empty: neither text nor tool calls", request, usage)
    answer = ModelAnswer(content, calls, usage, request.model)
    if (fault := jsontext.find_fault(answer.to_json())) is not None:
        raise _bad(f"cannot be stored: {fault[0]} {fault[1]}", request, usage)
    return answer


def _calls(found: Any, request: ModelRequest, usage: Usage) -> tuple[ToolCall, ...]:
    """The tool calls. Ids that are missing or not unique are replaced, all of them, by `call_1`, `call_2` ..."""
    read = [_read_call(one, position, request, usage) for position, one in enumerate(found, 1)]
    ids = [call.id for call in read]
    if all(ids) and len(set(ids)) == len(ids):
        return tuple(read)
    return tuple(ToolCall(f"call_{position}", call.name, call.arguments) for position, call in enumerate(read, 1))


def _read_call(found: Any, position: int, request: ModelRequest, usage: Usage) -> ToolCall:
    function = getattr(found, "function", None)
    name = getattr(function, "name", None)
    if not name:
        raise _bad(f"has a tool call (number {position}) that names no function", request, usage)
    where = f"calls the tool {name!r} (tool call {position})"
    text = getattr(function, "arguments", None) or ""
    if not text.strip() and not _requires(name, request):
        return ToolCall(getattr(found, "id", None) or "", name, {})
    try:
        arguments = jsontext.parse(text)
    except NotExact as error:
        raise _bad(f"{where} with arguments that are no JSON: {error.detail}", request, usage) from error
    if not isinstance(arguments, dict):
        kind = type(arguments).__name__
        raise _bad(f"{where} with a {kind} as arguments, not a JSON object", request, usage)
    return ToolCall(getattr(found, "id", None) or "", name, arguments)


def _requires(name: str, request: ModelRequest) -> bool:
    """Whether a tool of this name needs an argument: where none is needed, some models send no text at all."""
    return any(spec.parameters.get("required") for spec in request.tools if spec.name == name)


def _usage(response: Any) -> Usage:
    found = getattr(response, "usage", None)
    hidden = getattr(response, "_hidden_params", None)
    cost: Any = hidden.get("response_cost") if isinstance(hidden, dict) else None
    known = isinstance(cost, (int, float)) and not isinstance(cost, bool) and math.isfinite(cost)
    return Usage(
        getattr(found, "prompt_tokens", None) or 0,
        getattr(found, "completion_tokens", None) or 0,
        float(cost) if known else None,
    )


def _bad(what: str, request: ModelRequest, usage: Usage, repeatable: bool = True) -> BadAnswer:
    return BadAnswer(f"the answer of {request.model!r} {what}", model=request.model, usage=usage, repeatable=repeatable)


# -- failures ----------------------------------------------------------------------------------------------------


def failure(error: Exception, model: str) -> ModelFailed:
    """What an error from litellm, or a TimeoutError, means to us."""
    why = _why(error)
    message = f"{model!r} gave no answer ({why}): {_first_line(error)}; {_ADVICE[why]}"
    if why == "rate_limit" and "insufficient_quota" not in f"{getattr(error, 'code', '')} {error}":
        return RateLimited(message, model=model, retry_after_s=_retry_after_s(error))
    return ModelFailed(message, model=model, why=why, repeatable=why in REPEATABLE and why != "rate_limit")


def _why(error: Exception) -> Why:
    if isinstance(error, TimeoutError):
        return "timeout"
    for kind in type(error).__mro__:
        if kind.__name__ in _WHY:
            return _WHY[kind.__name__]
    status = getattr(error, "status_code", None)
    return "overloaded" if isinstance(status, int) and status >= 500 else "bad_request"


def _first_line(error: Exception) -> str:
    text = str(error).partition("Traceback (most recent call last)")[0].strip()
    line = text.splitlines()[0] if text else type(error).__name__
    return line if len(line) <= MAX_MESSAGE else f"{line[: MAX_MESSAGE - 3]}..."


def _retry_after_s(error: Exception) -> float | None:
    """The pause in the response's `retry-after`, in seconds; None if it has none, or gives a date."""
    headers = getattr(getattr(error, "response", None), "headers", None)
    try:
        seconds = float(headers.get("retry-after")) if headers is not None else math.nan
    except (TypeError, ValueError):
        return None
    return seconds if math.isfinite(seconds) and seconds >= 0 else None
