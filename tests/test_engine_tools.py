"""Python functions as tools: what a model is told, what it may pass, what comes back, and what must end."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, NamedTuple
from uuid import UUID

import pytest
from pydantic import BaseModel, Field

from refold_engine import tools
from refold_engine.errors import ToolFailed
from refold_engine.toolcontext import ToolContext
from refold_engine.tools import python_tool
from refold_store.errors import ConfigError
from refold_store.fold import ABSENT


class Money(BaseModel):
    """An amount."""

    amount: Decimal
    currency: Literal["CAD", "USD"] = "CAD"


class Line(BaseModel):
    label: str
    parts: list[Line] = []


@dataclass
class Note:
    text: str
    tags: set[str]


class Colour(Enum):
    RED = "red"


class Point(NamedTuple):
    x: int
    y: float


def refund(
    invoice: Annotated[str, "Its number"],
    money: Money,
    day: date,
    context: ToolContext,
    reasons: Annotated[list[str], Field(description="Why", max_length=3)] = [],  # noqa: B006  # as users write it
    urgent: bool = False,
) -> str:
    """Pay an invoice back.

    Asks the bank once.

    Args:
        invoice: overridden by the annotation
        day (date): when it was
            paid
        urgent: jump the queue
    """
    return f"{context.agent} {invoice} {money.amount + 1} {money.currency} {day.year} {reasons} {urgent}"


def context(**more: Any) -> ToolContext:
    """A context made by hand, over a plain dict."""
    state: dict[str, Any] = more.pop("state", {})

    def write_state(key: str, value: object, *, basis: str | None = None) -> None:
        state[key] = (value, basis)

    return ToolContext(
        agent="billing",
        run="clm-1",
        turn=3,
        read_state=lambda key: state.get(key, ABSENT),
        write_state=write_state,
        clock=more.pop("clock", None),
        random=more.pop("random", None),
    )


def failure(tool: tools.PythonTool, **arguments: Any) -> ToolFailed:
    """The error of a call."""
    with pytest.raises(ToolFailed) as caught:
        tool.call(arguments, context())
    assert caught.value.tool == tool.spec.name
    assert "Traceback" not in str(caught.value)
    return caught.value


# -- what a model is told ----------------------------------------------------------------------------------------


def test_a_model_is_told_of_name_text_and_parameters() -> None:
    """Name, docstring, types, descriptions and defaults become the spec; the context is hidden; nothing is a $ref."""
    spec = python_tool(refund).spec
    assert (spec.name, spec.description) == ("refund", "Pay an invoice back.\n\nAsks the bank once.")
    found = dict(spec.parameters["properties"])
    assert list(found) == ["invoice", "money", "day", "reasons", "urgent"]
    assert spec.parameters["required"] == ["invoice", "money", "day"]
    assert spec.parameters["additionalProperties"] is False
    assert found["invoice"] == {"type": "string", "description": "Its number"}
    assert found["day"] == {"type": "string", "format": "date", "description": "when it was paid"}
    assert found["urgent"] == {"type": "boolean", "description": "jump the queue", "default": False}
    assert found["reasons"]["description"] == "Why"
    assert found["money"]["properties"]["currency"]["enum"] == ["CAD", "USD"]
    assert "$ref" not in json.dumps(spec.to_json())


def test_a_type_that_contains_itself_keeps_its_definition() -> None:
    """A recursive type is the one case in which a $ref stays, and it leads somewhere."""

    def show(lines: list[Line]) -> None: ...

    parameters = python_tool(show).spec.parameters
    assert list(parameters["$defs"]) == ["Line"]
    assert parameters["properties"]["lines"]["items"] == {"$ref": "#/$defs/Line"}


def test_definitions_in_place_are_bounded() -> None:
    """Types that double at each step stay under $defs and do not fill the memory."""
    kind: Any = Money
    for _ in range(30):
        kind = type("Pair", (BaseModel,), {"__annotations__": {"a": kind, "b": kind}})

    def show(it: int) -> None: ...

    show.__annotations__["it"] = kind
    assert len(json.dumps(python_tool(show).spec.to_json())) < 50_000


def test_descriptions_in_the_way_of_sphinx() -> None:
    """`:param name: text` describes a parameter too, and is no part of the description."""

    def look(claim: str, depth: int = 1) -> None:
        """Look it up.

        :param claim: its number
        :param int depth: how far,
            in steps
        :returns: nothing
        """

    spec = python_tool(look).spec
    assert spec.description == "Look it up."
    assert spec.parameters["properties"]["claim"]["description"] == "its number"
    assert spec.parameters["properties"]["depth"]["description"] == "how far, in steps"


def test_a_tool_by_dotted_path() -> None:
    """`package.module:function` and `package.module.function` name the same function."""
    for path in ("posixpath:basename", "posixpath.basename"):
        tool = python_tool(path, description="Last part")
        assert tool.call({"p": "/a/b"}, None) == "b"
        assert (tool.spec.name, tool.spec.description) == ("basename", "Last part")


class Desk:
    def __call__(self, n: int) -> int:
        """Called."""
        return n + 1

    def ask(self, n: int) -> int:
        """Asked."""
        return n + 2


def test_partials_methods_and_callable_objects_are_tools() -> None:
    """What can be called with named parameters can be a tool."""
    assert python_tool(functools.partial(refund, urgent=True)).spec.name == "refund"
    assert python_tool(Desk()).call({"n": 1}, None) == 2
    assert python_tool(Desk().ask).call({"n": 1}, None) == 3
    assert python_tool(Desk()).spec.description == "Called."


def _taking(annotation: Any) -> Callable[..., object]:
    def it(value: int) -> None: ...

    it.__annotations__["value"] = annotation
    return it


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("nowhere.at.all", "nowhere"),
        ("json:nothing", "nothing"),
        ("json", "dotted path"),
        ("json:__version__", "no function but of type str"),
        (Money, "no function but a class"),
        (lambda n: n, "no name for a tool"),
        (lambda *args: 1, "lambda"),
        (_taking(threading.Thread), "parameter 'value'"),
        (_taking("Nowhere"), "Nowhere"),
        (_taking("1 +"), "cannot be resolved"),
    ],
)
def test_what_cannot_be_a_tool_is_a_configuration_error(source: Any, says: str) -> None:
    """A path that leads nowhere, a class, a nameless function and types that cannot be checked say what is wrong."""
    with pytest.raises(ConfigError) as caught:
        python_tool(source)
    assert says in str(caught.value)


def test_starred_parameters_and_odd_limits_are_refused() -> None:
    """`*args`, `**rest`, `Field` as a default and limits of nothing are configuration errors."""

    def stars(*args: int) -> None: ...

    def words(**rest: int) -> None: ...

    def field(n: int = Field(1)) -> None: ...

    for source in (stars, words, field):
        with pytest.raises(ConfigError, match=r"name each parameter|Annotated"):
            python_tool(source)
    for limits in ({"timeout_s": 0}, {"timeout_s": float("nan")}, {"timeout_s": float("inf")}, {"max_bytes": 0}):
        with pytest.raises(ConfigError, match="above 0"):
            python_tool(refund, **limits)


# -- arguments ---------------------------------------------------------------------------------------------------


def test_arguments_are_checked_and_converted_before_the_call() -> None:
    """JSON becomes the declared types, defaults are filled in, and the context is the engine's."""
    said = python_tool(refund).call({"invoice": "1", "money": {"amount": "2.50"}, "day": "2024-05-01"}, context())
    assert said == "billing 1 3.50 CAD 2024 [] False"


def test_each_wrong_argument_is_named_and_nothing_is_called() -> None:
    """Unknown, missing and wrong arguments come in one message, with path and what arrived; the function is not run."""
    called = []

    def pay(amount: int, money: Money, note: str) -> None:
        called.append(amount)

    tool = python_tool(pay)
    error = failure(tool, amuont=1, amount="many", money={"amount": 1, "currency": "EUR"})
    assert str(error).startswith("tool 'pay' was not called: ")
    assert "unknown argument 'amuont' (did you mean 'amount'?)" in str(error)
    assert "argument 'note' is missing" in str(error)
    assert "argument 'amount': Input should be a valid integer" in str(error)
    assert "got 'many'" in str(error)
    assert "argument 'money' at .currency" in str(error)
    assert (called, error.unknown) == ([], False)


def test_a_context_cannot_be_passed_by_a_model() -> None:
    """The hidden parameter is an unknown argument to a model."""
    arguments = {"invoice": "1", "money": {"amount": 1}, "day": "2024-05-01", "context": {"agent": "root"}}
    assert "unknown argument 'context'" in str(failure(python_tool(refund), **arguments))


def test_a_tool_cannot_change_the_record() -> None:
    """What the function does to its arguments does not reach the call that was recorded."""

    def spoil(items: list[Any], rest: dict[str, Any]) -> int:
        items[0]["a"] = 2
        rest.clear()
        return len(items)

    arguments = {"items": [{"a": 1}], "rest": {"b": [1]}}
    assert python_tool(spoil).call(arguments, None) == 1
    assert arguments == {"items": [{"a": 1}], "rest": {"b": [1]}}


def test_a_context_may_be_optional() -> None:
    """A function that also works without a context gets it, hidden, where the annotation allows None."""

    def who(context: ToolContext | None = None) -> str:
        return "nobody" if context is None else context.agent

    tool = python_tool(who)
    assert tool.call({}, context()) == "billing"
    assert tool.spec.parameters["properties"] == {}


def test_arguments_that_are_no_json_are_named() -> None:
    """NaN and huge nesting in an argument are failures of the call, not of the engine."""

    def take(n: Any) -> None: ...

    assert "argument 'n' is no JSON: $ is nan" in str(failure(python_tool(take), n=float("nan")))
    with pytest.raises(ToolFailed, match="arguments are an object, not list"):
        python_tool(take).call([1], None)  # type: ignore[arg-type]  # what a model may answer


def test_a_context_works_alone() -> None:
    """A tool reads and writes the state through its context; absent is told apart from None."""

    def move(context: ToolContext, key: str) -> bool:
        seen = context.read_state(key) is ABSENT
        context.write_state(key, [context.run, context.turn], basis="told so")
        return seen

    state: dict[str, Any] = {"old": None}
    tool = python_tool(move)
    assert tool.call({"key": "new"}, context(state=state)) is True
    assert tool.call({"key": "old"}, context(state=state)) is False
    assert state["new"] == (["clm-1", 3], "told so")


# -- results -----------------------------------------------------------------------------------------------------


def returning(value: object, **options: Any) -> tools.PythonTool:
    """A tool that returns this."""
    return python_tool(lambda: value, name="give", **options)


def test_results_become_exact_json() -> None:
    """Models, dataclasses, enums, tuples, sets, dates, decimals and ids have one text; whole-number names too."""
    value = {
        "money": Money(amount=Decimal("1.10")),
        "note": Note("n", {"b", "a", "c"}),
        "colour": Colour.RED,
        "point": Point(1, 2.0),
        "when": datetime(2024, 5, 1, 12, tzinfo=UTC),
        "took": timedelta(seconds=90),
        "id": UUID(int=1),
        "path": PurePosixPath("/a"),
        "by_year": {2024: 1},
        Colour.RED: None,
        "big": 2**70,
        "same": {1, 1.5},
    }
    assert returning(value).call({}, None) == {
        "money": {"amount": "1.10", "currency": "CAD"},
        "note": {"text": "n", "tags": ["a", "b", "c"]},
        "colour": "red",
        "point": [1, 2.0],
        "when": "2024-05-01T12:00:00Z",
        "took": "PT1M30S",
        "id": "00000000-0000-0000-0000-000000000001",
        "path": "/a",
        "by_year": {"2024": 1},
        "red": None,
        "big": 2**70,
        "same": [1, 1.5],
    }


class Odd(BaseModel):
    model_config = {"arbitrary_types_allowed": True}
    it: Any


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({"a": [1, float("nan")]}, "$.a[1] is nan"),
        ({"a": [Decimal("Infinity")]}, "$.a[0] is Infinity"),
        ({"a": b"x"}, "$.a is of type bytes"),
        ({"a": [threading.Lock]}, "$.a[0] is of type"),
        ({"a": {1: "x", "1": "y"}}, "$.a has two members that become '1'"),
        ({"a": {(1, 2): "x"}}, "$.a has the name (1, 2) of type tuple"),
        ({"a": {None: 1}}, "$.a has the name None"),
        ({"a": {True: 1}}, "$.a has the name True"),
        ({"a": Odd(it=threading.Lock())}, "$.a is of type Odd and cannot be written"),
        ((n for n in (1, 2)), "return a list of what it yields"),
        ("\ud800", "lone surrogate"),
    ],
)
def test_a_result_without_json_is_refused_with_its_path(value: object, says: str) -> None:
    """What has no exact text is a failure that names the path, and says that the tool did run."""
    error = failure(returning(value))
    assert says in str(error)
    assert str(error).startswith("tool 'give' ran, but its result has no JSON: ")


def test_a_cycle_ends() -> None:
    """A result that contains itself is refused, as is one that is nested too deep."""
    loop: list[Any] = []
    loop.append((loop,))
    assert "contains itself" in str(failure(returning(loop)))


def test_sets_in_models_have_the_same_bytes_for_every_hash_seed() -> None:
    """A set inside a model is written sorted, whatever the order of hashes in the process."""
    code = (
        "from pydantic import BaseModel\nfrom refold_engine.tools import python_tool\n"
        "class T(BaseModel):\n    tags: set[str]\n    more: dict[str, frozenset[str]]\n"
        "def f() -> T: return T(tags=set('abcdefgh'), more={'x': frozenset('stuvw')})\n"
        "print(python_tool(f).call({}, None))"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1
    assert "['a', 'b', 'c', 'd'" in found.pop()


def test_a_result_over_the_limit_is_cut_with_a_note() -> None:
    """Text is cut between characters, structure to the beginning of its JSON; both say how much there was."""
    found = returning("é" * 100, max_bytes=51).call({}, None)
    assert found == "é" * 25 + (
        "\n[cut: the result has 200 bytes, the limit is 51; this is its beginning. Ask for less, or for a part]"
    )
    found = returning({"a": list(range(100))}, max_bytes=20).call({}, None)
    assert found.startswith('{"a":[0,1,2,3,4,5,6,\n[cut: the result has ')
    assert returning("x" * 49, max_bytes=51).call({}, None) == "x" * 49


def test_a_result_over_the_limit_may_be_refused() -> None:
    """With `over="refuse"` the failure says that the tool ran, and both sizes."""
    error = failure(returning("x" * 100, max_bytes=50, over="refuse"))
    assert str(error).startswith("tool 'give' ran, but its result has 100 bytes, the limit is 50")


# -- failures and time -------------------------------------------------------------------------------------------


def test_an_exception_becomes_one_line() -> None:
    """Type and message reach the model, the traceback does not; the cause stays with the error."""

    def fail() -> None:
        raise ValueError("no such invoice\ud800" + "x" * 5000)

    error = failure(python_tool(fail))
    assert str(error).startswith("tool 'fail' failed: ValueError: no such invoice\\ud800")
    assert len(str(error)) < 2_200
    assert isinstance(error.__cause__, ValueError)
    assert not error.unknown


def test_a_tool_that_exits_ends_alone() -> None:
    """`sys.exit` in a tool is a failure of the tool; an exception whose message fails is one, too."""

    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    def leave() -> None:
        sys.exit(3)

    def mute() -> None:
        raise Mute

    assert "SystemExit: 3" in str(failure(python_tool(leave)))
    assert "its message cannot be had" in str(failure(python_tool(mute)))


def test_a_tool_may_say_itself_that_it_failed() -> None:
    """A ToolFailed raised by a tool goes through as it is, unknown outcome included."""

    def pay() -> None:
        raise ToolFailed("the bank did not answer", tool="pay", unknown=True)

    error = failure(python_tool(pay))
    assert (str(error), error.unknown) == ("the bank did not answer", True)


def test_async_functions_are_tools() -> None:
    """A coroutine function runs to its end, also when the caller has a running loop."""

    async def add(a: int, b: int) -> int:
        await asyncio.sleep(0)
        return a + b

    async def outside() -> Any:
        return python_tool(add).call({"a": 1, "b": 2}, None)

    assert asyncio.run(outside()) == 3


where: ContextVar[str] = ContextVar("where", default="nowhere")


def test_a_tool_sees_the_context_variables_of_its_caller() -> None:
    """What a caller set (a trace, a tenant) is there in the tool's thread."""
    where.set("here")
    assert python_tool(lambda: where.get(), name="look").call({}, None) == "here"


def test_a_call_over_its_time_is_abandoned_and_unknown() -> None:
    """After the limit the caller goes on, the outcome unknown; a TimeoutError of the tool's own is known."""
    release = threading.Event()

    def own() -> None:
        raise TimeoutError("the bank")

    started = time.monotonic()
    error = failure(python_tool(release.wait, name="wait", timeout_s=0.05))
    assert time.monotonic() - started < 5
    assert error.unknown
    assert "did not end within 0.05 s" in str(error)
    release.set()
    assert not failure(python_tool(own)).unknown


def test_an_async_call_over_its_time_is_cancelled() -> None:
    """A coroutine is cancelled at the limit, so that it does not go on unseen; the outcome is unknown."""
    cancelled = threading.Event()

    async def wait() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    assert failure(python_tool(wait, timeout_s=0.05)).unknown
    assert cancelled.is_set()


def test_an_abandoned_call_does_not_keep_the_process() -> None:
    """A process ends though a call of a tool never does."""
    code = (
        "import threading\nfrom refold_engine.tools import python_tool\n"
        "def hang() -> None: threading.Event().wait()\n"
        "try: python_tool(hang, timeout_s=0.05).call({}, None)\n"
        "except Exception as error: print(error.unknown)"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=20)
    assert (done.returncode, done.stdout.strip()) == (0, "True")


def test_few_calls_may_lie_abandoned() -> None:
    """A tool that never ends is refused after some calls, and taken again once they have ended."""
    release = threading.Event()
    hanging = True

    def wait() -> str:
        if hanging:
            release.wait()
        return "done"

    tool = python_tool(wait, timeout_s=0.02)
    for _ in range(tools.MAX_ABANDONED):
        assert failure(tool).unknown
    refused = failure(tool)
    assert "was not called" in str(refused)
    assert not refused.unknown
    hanging = False
    release.set()
    for thread in threading.enumerate():
        if thread.name == "tool wait":
            thread.join(5)
    assert python_tool(wait).call({}, None) == "done"
    assert tool.call({}, None) == "done"


def test_threads_share_a_tool() -> None:
    """Calls from many threads do not mix up."""

    def echo(n: int) -> int:
        time.sleep(0.001)
        return n

    tool, found = python_tool(echo), {}

    def ask(n: int) -> None:
        found[n] = tool.call({"n": n}, None)

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {n: n for n in range(20)}


def _mapping() -> Mapping[str, int]:
    """A mapping that is no dict."""
    from types import MappingProxyType

    return MappingProxyType({"a": 1})


def test_a_mapping_that_is_no_dict_is_an_object() -> None:
    """Any mapping with text names becomes an object."""
    assert returning(_mapping()).call({}, None) == {"a": 1}
