"""Every Model keeps the port's contract: scripted, recorded, and the real litellm with an offline provider."""

from __future__ import annotations

import importlib.util
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from refold_engine import models
from refold_engine.errors import REPEATABLE, BadAnswer, ModelFailed, RateLimited, Why
from refold_engine.models import LiteLLMModel
from refold_engine.ports import Message, Model, ModelAnswer, ModelRequest, ToolCall, ToolSpec, Usage, digest_of
from refold_engine.recorded import RecordedModel
from refold_engine.scripted import ScriptedModel
from refold_store import jsontext
from refold_store.errors import ConfigError

CALLED = ToolCall("c1", "f", {"n": 1, "x": 1.0, "wide": 2**70, "text": "é\n", "deep": [{"a": None}]})
REQUEST = ModelRequest(
    "offline/m",
    (
        Message("system", "You help."),
        Message("user", "hi"),
        Message("assistant", "", (CALLED,)),
        Message("tool", "done", tool_call_id="c1"),
    ),
    (ToolSpec("f", "does it", {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}),),
    0.5,
    {"type": "object"},
)

Outcome = ModelAnswer | ModelFailed
Make = Callable[[Sequence[Outcome]], Model]


def failed(why: Why) -> ModelFailed:
    """A failure as a model raises it."""
    return ModelFailed("x", model=REQUEST.model, why=why, repeatable=why in REPEATABLE)


def scripted(outcomes: Sequence[Outcome]) -> Model:
    """A script of them."""
    entries: list[dict[str, Any]] = []
    for one in outcomes:
        if isinstance(one, ModelFailed):
            entries.append({"fail": one.why})
        else:
            calls = [call.to_json() for call in one.tool_calls]
            entries.append({"content": one.content, "tool_calls": calls, "usage": one.usage.to_json()})
    return ScriptedModel(entries)


def recorded(outcomes: Sequence[Outcome]) -> Model:
    """A record of them."""
    return RecordedModel({digest_of(REQUEST.to_json()): list(outcomes)}, [REQUEST])


# -- the real litellm, with a provider of its own ----------------------------------------------------------------


class Offline:
    """What the handler got and is to answer: the next outcome, or what `respond` makes of litellm's response."""

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []
        self.respond: Callable[[Any], Any] | None = None
        self.got: list[dict[str, Any]] = []
        self.lock = threading.Lock()

    def completion(self, got: dict[str, Any], litellm: Any) -> Any:
        with self.lock:
            self.got.append(got)
            outcome = self.outcomes.pop(0) if self.outcomes else None
        response = got["model_response"]
        if outcome is None:
            assert self.respond is not None
            return self.respond(response)
        if isinstance(outcome, ModelFailed):
            raise raised(litellm, outcome.why)
        calls = [models._call(call) for call in outcome.tool_calls]
        response.choices[0].message = litellm.Message(content=outcome.content or None, tool_calls=calls)
        response.usage = litellm.Usage(
            prompt_tokens=outcome.usage.input_tokens, completion_tokens=outcome.usage.output_tokens
        )
        return response


def raised(litellm: Any, why: Why) -> Exception:
    """litellm's own error of this kind."""
    about = {"message": "told", "model": "m", "llm_provider": "offline"}
    found: dict[Why, Exception] = {
        "timeout": litellm.Timeout(**about),
        "rate_limit": litellm.RateLimitError(**about),
        "overloaded": litellm.ServiceUnavailableError(**about),
        "connection": litellm.APIConnectionError(**about),
        "auth": litellm.AuthenticationError(**about),
        "refused": litellm.ContentPolicyViolationError(**about),
        "bad_request": litellm.BadRequestError(**about),
        "bad_answer": litellm.APIResponseValidationError(**about),
    }
    return found[why]


@pytest.fixture(scope="module")
def provider() -> Iterator[Offline]:
    """litellm loaded as the engine loads it, with a provider `offline`; nothing can reach the network."""
    offline = Offline()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", _no_network)
        patch.setattr(socket, "getaddrinfo", _no_network)
        litellm = models.load()

        class Handler(litellm.CustomLLM):  # type: ignore[misc]
            def completion(self, *args: Any, **got: Any) -> Any:
                return offline.completion(got, litellm)

        patch.setattr(litellm, "custom_provider_map", [{"provider": "offline", "custom_handler": Handler()}])
        yield offline


def _no_network(*arguments: object) -> None:
    raise AssertionError(f"a test reached for the network: {arguments}")


@pytest.fixture(params=["scripted", "recorded", "litellm"])
def make(request: pytest.FixtureRequest) -> Make:
    """Makes a model of one kind that answers as told."""
    if request.param != "litellm":
        return {"scripted": scripted, "recorded": recorded}[request.param]
    offline: Offline = request.getfixturevalue("provider")

    def live(outcomes: Sequence[Outcome]) -> Model:
        offline.outcomes, offline.got, offline.respond = list(outcomes), [], None
        return LiteLLMModel()

    return live


# -- the contract ------------------------------------------------------------------------------------------------


def test_answers_come_back_exactly(make: Make) -> None:
    """Text, tool calls and usage come back as they were given, in order, in the name of the model asked."""
    outcomes = [
        ModelAnswer("hello\n", (), Usage(3, 2), REQUEST.model),
        ModelAnswer("", (CALLED, ToolCall("c2", "f", {"n": -5})), Usage(1, 1), REQUEST.model),
        ModelAnswer("both", (CALLED,), Usage(), REQUEST.model),
    ]
    model = make(outcomes)
    found = [model.answer(REQUEST, timeout_s=20) for _ in outcomes]
    assert found == outcomes
    assert [jsontext.encode(one.to_json()) for one in found] == [jsontext.encode(one.to_json()) for one in outcomes]


@pytest.mark.parametrize(
    "why", ["timeout", "connection", "rate_limit", "overloaded", "refused", "bad_request", "auth", "bad_answer"]
)
def test_failures_say_why(make: Make, why: Why) -> None:
    """A failure names its model and its reason, says whether a repeat may help, and the next question is answered."""
    model = make([failed(why), ModelAnswer("then", model=REQUEST.model)])
    with pytest.raises(ModelFailed) as caught:
        model.answer(REQUEST, timeout_s=20)
    assert (caught.value.model, caught.value.why, caught.value.repeatable) == (REQUEST.model, why, why in REPEATABLE)
    assert model.answer(REQUEST, timeout_s=20).content == "then"


def test_threads_may_ask_at_once(make: Make) -> None:
    """Several threads ask one model, and each answer is given once."""
    model = make([ModelAnswer(str(n), model=REQUEST.model) for n in range(12)])
    with ThreadPoolExecutor(4) as pool:
        said = pool.map(lambda _: model.answer(REQUEST, timeout_s=20).content, range(12))
    assert sorted(said, key=int) == [str(n) for n in range(12)]


# -- what litellm is told and what is made of its answers --------------------------------------------------------


def test_provider_gets_the_request(provider: Offline) -> None:
    """The provider gets messages, tools, schema and time-out as asked, and no repeats of litellm's own."""
    provider.outcomes, provider.got = [ModelAnswer("x")], []
    LiteLLMModel().answer(REQUEST, timeout_s=17)
    (got,) = provider.got
    call = {"name": "f", "arguments": jsontext.encode(dict(CALLED.arguments)).decode()}
    assert got["messages"] == [
        {"role": "system", "content": "You help."},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "tool_calls": [{"id": "c1", "type": "function", "function": call}]},
        {"role": "tool", "content": "done", "tool_call_id": "c1"},
    ]
    assert got["optional_params"]["tools"] == [{"type": "function", "function": REQUEST.tools[0].to_json()}]
    assert got["optional_params"]["response_format"]["json_schema"]["schema"] == {"type": "object"}
    assert (got["optional_params"]["temperature"], got["optional_params"]["max_retries"], got["timeout"]) == (
        0.5,
        0,
        17,
    )


def test_cost_is_counted_from_the_price_map(provider: Offline) -> None:
    """The cost of an answer is litellm's, from its price map and the tokens used; None for a model it does not know."""
    price = {"input_cost_per_token": 0.5, "output_cost_per_token": 2.0, "litellm_provider": "offline", "mode": "chat"}
    models.load().register_model({"offline/priced": price})
    provider.outcomes = [ModelAnswer("x", usage=Usage(4, 3))] * 2
    asked = ModelRequest("offline/priced", REQUEST.messages)
    assert LiteLLMModel().answer(asked, timeout_s=20).usage == Usage(4, 3, 8.0)
    assert LiteLLMModel().answer(REQUEST, timeout_s=20).usage == Usage(4, 3, None)


def test_slow_call_ends_in_time(provider: Offline) -> None:
    """A provider that ignores the time-out is left after it, and the model answers on."""
    going_on = threading.Event()
    provider.outcomes, provider.respond = [], lambda response: going_on.wait(30)
    model = LiteLLMModel()
    started = time.monotonic()
    with pytest.raises(ModelFailed, match=r"no answer within 0.2 s") as caught:
        model.answer(REQUEST, timeout_s=0.2)
    assert (caught.value.why, caught.value.repeatable) == ("timeout", True)
    assert time.monotonic() - started < 10
    going_on.set()
    provider.outcomes = [ModelAnswer("on")]
    assert model.answer(REQUEST, timeout_s=20).content == "on"


def test_calls_at_once_are_bounded(provider: Offline, monkeypatch: pytest.MonkeyPatch) -> None:
    """When as many calls are under way as may be, those given up included, the next one says so."""
    monkeypatch.setattr(models, "MAX_IN_FLIGHT", 1)
    going_on = threading.Event()
    provider.outcomes, provider.respond = [], lambda response: going_on.wait(30)
    model = LiteLLMModel()
    for why in ("timeout", "overloaded"):
        with pytest.raises(ModelFailed) as caught:
            model.answer(REQUEST, timeout_s=0.1)
        assert caught.value.why == why
    going_on.set()


def test_load_keeps_what_a_program_has_set() -> None:
    """litellm is offline and quiet when the engine loads it; what a program set before stays; no prompt is told."""
    script = (
        "import os, sys, socket\n"
        "def no(*a): raise SystemExit(f'network {a}')\n"
        "socket.socket.connect = socket.getaddrinfo = no\n"
        "from refold_engine import models\n"
        "assert 'litellm' not in sys.modules\n"
        "found = models.load()\n"
        "assert (found.redact_messages_in_exceptions, found.suppress_debug_info) == (True, True)\n"
        "assert os.environ['LITELLM_LOCAL_MODEL_COST_MAP'] == 'True'\n"
        "assert os.environ['LITELLM_MODE'] == 'PRODUCTION'\n"
        "found.success_callback = [print]\n"
        "assert models.load().success_callback == [print]\n"
        "print('fine')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=100, check=False)
    assert (done.stdout, done.returncode) == ("fine\n", 0), done.stderr


def test_litellm_missing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without litellm, making the model says what to install."""
    monkeypatch.delitem(sys.modules, "litellm", raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'refold\[llm\]'"):
        LiteLLMModel()


def response(
    content: str | None = None, calls: Sequence[object] = (), reason: str = "stop", cost: Any = None
) -> object:
    """A response as litellm gives it, as far as it is looked at."""
    message = SimpleNamespace(content=content, tool_calls=list(calls) or None)
    return SimpleNamespace(
        choices=[SimpleNamespace(message=message, finish_reason=reason)],
        usage=SimpleNamespace(prompt_tokens=7, completion_tokens=None),
        _hidden_params={"response_cost": cost},
    )


def call(arguments: str | None, name: str | None = "f", id: str | None = "c") -> object:
    """A tool call as litellm gives it."""
    return SimpleNamespace(id=id, function=SimpleNamespace(name=name, arguments=arguments))


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (
            response(calls=[call("{}"), call('{"a": 1', "g")]),
            r"calls the tool 'g' \(tool call 2\) .* no JSON: .*position",
        ),
        (response(calls=[call("[1]")]), r"calls the tool 'f' \(tool call 1\) with a list as arguments"),
        (response(calls=[call("null")]), "with a NoneType as arguments"),
        (response(calls=[call('{"a": 1, "a": 2}')]), r"\$\.a appears twice"),
        (response(calls=[call('{"a": NaN}')]), r"\$\.a is NaN"),
        (response(calls=[call('{"a": 1} and more')]), "no JSON"),
        (response(calls=[call("")]), r"calls the tool 'f' .* no JSON"),
        (response(calls=[call("{}", name=None)]), r"a tool call \(number 1\) that names no function"),
        (response(calls=[SimpleNamespace(id="c", custom="x")]), "names no function"),
        (response(), "is empty"),
        (response(""), "is empty"),
        (SimpleNamespace(choices=[]), "holds no message"),
        (None, "holds no message"),
        (response("\ud800"), r"cannot be stored: \$\.content holds a lone surrogate"),
    ],
)
def test_unusable_answer_is_told(found: object, told: str) -> None:
    """An answer that cannot be read whole says what is wrong with it, and where; it may be asked for again."""
    with pytest.raises(BadAnswer, match=told) as caught:
        models.answer_of(found, REQUEST)
    assert (caught.value.why, caught.value.repeatable) == ("bad_answer", True)


def test_answer_cut_off_or_withheld() -> None:
    """An answer cut off at the limit is not taken for the whole, and costs; one withheld is a refusal."""
    with pytest.raises(BadAnswer, match="cut off") as cut:
        models.answer_of(response("half an ans", reason="length", cost=0.5), REQUEST)
    assert (cut.value.usage, cut.value.repeatable) == (Usage(7, 0, 0.5), False)
    with pytest.raises(ModelFailed, match="content filter") as held:
        models.answer_of(response("", reason="content_filter"), REQUEST)
    assert (held.value.why, held.value.repeatable) == ("refused", False)


@pytest.mark.parametrize(
    ("cost", "told"), [(None, None), (0.25, 0.25), (0, 0.0), (float("nan"), None), (True, None), ("1", None)]
)
def test_cost_is_a_number_or_unknown(cost: object, told: float | None) -> None:
    """The cost is what litellm computed; where it knows none it is None, not 0."""
    assert repr(models.answer_of(response("x", cost=cost), REQUEST).usage) == repr(Usage(7, 0, told))


def test_ids_of_tool_calls_are_made_unique() -> None:
    """Ids that are missing or given twice are replaced by numbered ones; good ones stay."""
    for ids, kept in (
        (("a", "b"), ["a", "b"]),
        (("a", "a"), ["call_1", "call_2"]),
        ((None, "b"), ["call_1", "call_2"]),
    ):
        found = models.answer_of(response(calls=[call("{}", id=one) for one in ids]), REQUEST)
        assert [one.id for one in found.tool_calls] == kept


def test_no_text_is_no_arguments_where_none_are_needed() -> None:
    """A tool without required arguments may be called with an empty text."""
    found = models.answer_of(response(calls=[call("", name="g"), call(None, name="g", id="d")]), REQUEST)
    assert [one.arguments for one in found.tool_calls] == [{}, {}]


def test_failure_tells_the_reason_once_and_shortly() -> None:
    """A failure keeps the first line of the provider's message, without a traceback, cut to a bound."""
    error = models.failure(RuntimeError("why Traceback (most recent call last)\nMessages: `secret`"), "m")
    assert "secret" not in str(error)
    assert "Traceback" not in str(error)
    assert "why; see that the model exists" in str(error)
    assert len(str(models.failure(RuntimeError("x" * 9000), "m"))) < 600
    assert "RuntimeError" in str(models.failure(RuntimeError(), "m"))


def test_failure_of_an_unknown_kind_goes_by_its_status() -> None:
    """An error of a class not known is the server's from status 500 on, else the request's."""

    class APIError(Exception):
        status_code = 503

    assert models.failure(APIError("x"), "m").why == "overloaded"
    APIError.status_code = 418
    assert (models.failure(APIError("x"), "m").why, models.failure(ValueError("x"), "m").repeatable) == (
        "bad_request",
        False,
    )


@pytest.mark.parametrize(
    ("after", "seconds"), [("7", 7.0), ("0.5", 0.5), (None, None), ("Wed, 21 Oct", None), ("-1", None), ("inf", None)]
)
def test_pause_the_provider_wants(after: str | None, seconds: float | None) -> None:
    """A rate limit carries the pause of `retry-after` in seconds, if it has one."""

    class RateLimitError(Exception):
        response = SimpleNamespace(headers={"retry-after": after})

    found = models.failure(RateLimitError("slow down"), "m")
    assert isinstance(found, RateLimited)
    assert (found.retry_after_s, found.repeatable) == (seconds, True)
    used_up = models.failure(RateLimitError("insufficient_quota: pay"), "m")
    assert (used_up.why, used_up.repeatable) == ("rate_limit", False)
