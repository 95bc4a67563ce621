"""Models that answer from a script or a record."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from refold_engine.errors import ModelFailed, NotRecorded, RateLimited, ScriptMismatch
from refold_engine.ports import Message, ModelAnswer, ModelRequest, ToolCall, ToolSpec, Usage, digest_of
from refold_engine.recorded import RecordedModel
from refold_engine.scripted import FunctionModel, ScriptedModel
from refold_store.errors import ConfigError

SCRIPT = """\
answers:
  - {agent: triage_agent, expect: {last: invoice}, tool_calls: [{name: transfer_agent, arguments: {to: billing}}]}
  - agent: billing
    system: "You bill"
    content: Paid.
    usage: {input_tokens: 12, output_tokens: 4, cost: 0.5}
  - {agent: billing, system: "You bill", json: {b: 1, a: [2.0]}}
"""


def ask(last: str, agent: str = "", system: str = "", model: str = "m") -> ModelRequest:
    """A request of one agent."""
    return ModelRequest(model, (Message("system", system), Message("user", last)), agent=agent)


def contents(model: ScriptedModel, *requests: ModelRequest) -> list[str]:
    """What the model says to each."""
    return [model.answer(one, timeout_s=1).content for one in requests]


def test_script_file_answers_in_order(tmp_path: Path) -> None:
    """A YAML script gives text, tool calls, structured answers and usage, each to the agent it is for."""
    (tmp_path / "script.yaml").write_text(SCRIPT)
    model = ScriptedModel.from_file(str(tmp_path / "script.yaml"))
    bill = ask("go", "billing", "You bill.")
    assert model.answer(bill, timeout_s=1) == ModelAnswer("Paid.", (), Usage(12, 4, 0.5), "m")
    first = model.answer(ask("an invoice", "triage_agent"), timeout_s=1)
    assert first.tool_calls == (ToolCall("call_1_1_1", "transfer_agent", {"to": "billing"}),)
    assert model.unused() == (f"{tmp_path}/script.yaml:7: answers.2",)
    assert contents(model, bill) == ['{"a":[2.0],"b":1}']
    assert model.unused() == ()


def test_most_specific_lane_answers_and_no_other() -> None:
    """A request gets the entry that says most about it, though others fit; when that is used up, it gets nothing."""
    script = [
        {"content": "any"},
        {"agent": "a", "content": "a"},
        {"agent": "a", "when": "sun", "content": "a sun"},
        {"model": "big", "content": "big"},
        {"when": "rain", "content": "rain"},
    ]
    model = ScriptedModel(script)
    asked = [ask("sun", "a"), ask("x", "a"), ask("x", model="big"), ask("rain"), ask("x")]
    assert contents(model, *asked) == ["a sun", "a", "big", "rain", "any"]
    with pytest.raises(ScriptMismatch, match=r"answers\.2: agent 'a' asked 'm', expected at most 1 requests with"):
        model.answer(ask("sun", "a"), timeout_s=1)
    assert contents(ScriptedModel(script), ask("big rain", model="big")) == ["big"]


def test_any_interleaving_gets_the_same_answers() -> None:
    """Agents with entries of their own get the same answers in whatever order they come."""
    script = [{"agent": agent, "content": f"{agent}{n}"} for n in range(2) for agent in "abc"]
    for order in set(itertools.permutations("aabbcc")):
        seen = [(agent, contents(model, ask("x", agent))[0]) for model in [ScriptedModel(script)] for agent in order]
        assert {agent: [said for who, said in seen if who == agent] for agent in "abc"} == {
            agent: [f"{agent}0", f"{agent}1"] for agent in "abc"
        }


def test_threads_share_one_script() -> None:
    """Many agents that ask at once use each entry once, each in its own order."""
    agents = [f"agent{n}" for n in range(8)]
    model = ScriptedModel([{"agent": agent, "content": str(n)} for n in range(50) for agent in agents])
    with ThreadPoolExecutor(8) as pool:
        said = list(pool.map(lambda agent: contents(model, *[ask("x", agent)] * 50), agents))
    assert said == [[str(n) for n in range(50)]] * 8
    assert model.unused() == ()


def test_unexpected_request_is_named() -> None:
    """What a script does not expect is a mismatch that names entry, arrival and expectation, and uses nothing up."""
    model = ScriptedModel([{"agent": "a", "expect": {"last": "yes", "system": "sys"}, "content": "x"}])
    with pytest.raises(
        ScriptMismatch, match=r"expected 'yes' in the last message, but arrived the last .* 'no'"
    ) as one:
        model.answer(ask("no", "a", "sys"), timeout_s=1)
    assert (one.value.entry, one.value.why, one.value.repeatable) == ("script: answers.0", "bad_answer", False)
    with pytest.raises(ScriptMismatch, match="expected 'sys' in the system prompt"):
        model.answer(ask("yes", "a", "other"), timeout_s=1)
    with pytest.raises(ScriptMismatch, match=r"no entry of the script fits: agent 'b' .* with agent 'a'") as none:
        model.answer(ask("yes", "b"), timeout_s=1)
    assert none.value.entry is None
    assert model.unused() == ("script: answers.0",)
    assert contents(model, ask("yes", "a", "sys")) == ["x"]


def test_empty_script_expects_nothing() -> None:
    """An empty script says so, and a request without messages is told, too."""
    with pytest.raises(ScriptMismatch, match="the script is empty"):
        ScriptedModel([]).answer(ModelRequest("m", ()), timeout_s=1)


def test_entry_serves_several_times() -> None:
    """`times` lets an entry serve several requests, or any number; its tool calls get ids of their own each time."""
    call = {"name": "f"}
    model = ScriptedModel([{"times": 2, "tool_calls": [call, call]}, {"content": "on", "times": "any"}])
    ids = [[one.id for one in model.answer(ask("x"), timeout_s=1).tool_calls] for _ in range(2)]
    assert ids == [["call_1_1_1", "call_1_1_2"], ["call_1_2_1", "call_1_2_2"]]
    assert model.unused() == ("script: answers.1",)
    assert contents(model, *[ask("x")] * 5) == ["on"] * 5
    assert model.unused() == ()
    assert ScriptedModel(["a", {"content": "b", "when": "x", "times": 3}]).unused() == (
        "script: answers.0",
        "script: answers.1",
    )


def test_used_in_part_is_reported() -> None:
    """An entry that served fewer times than it says is reported with both numbers."""
    model = ScriptedModel([{"content": "b", "times": 3}])
    contents(model, ask("x"))
    assert model.unused() == ("script: answers.0 (used 1 of 3 times)",)


@pytest.mark.parametrize(
    ("fail", "kind", "why", "repeatable"),
    [
        ("timeout", ModelFailed, "timeout", True),
        ("auth", ModelFailed, "auth", False),
        ({"why": "overloaded", "repeatable": False}, ModelFailed, "overloaded", False),
        ({"why": "rate_limit", "retry_after_s": 2, "message": "slow"}, RateLimited, "rate_limit", True),
    ],
)
def test_scripted_failure(fail: object, kind: type[ModelFailed], why: str, repeatable: bool) -> None:
    """An entry may fail, in the way it says; the next one answers."""
    model = ScriptedModel([{"fail": fail}, "then"])
    with pytest.raises(kind) as caught:
        model.answer(ask("x"), timeout_s=1)
    assert (caught.value.why, caught.value.repeatable, caught.value.model) == (why, repeatable, "m")
    assert contents(model, ask("x")) == ["then"]


def test_delay_waits_and_runs_into_the_timeout() -> None:
    """A delay waits on the sleep given; one over the time-out waits that long and is a time-out."""
    slept: list[float] = []
    model = ScriptedModel([{"content": "late", "delay_s": 3}] * 2, sleep=slept.append)
    assert model.answer(ask("x"), timeout_s=3).content == "late"
    with pytest.raises(ModelFailed, match="within 2 s") as caught:
        model.answer(ask("x"), timeout_s=2)
    assert (caught.value.why, caught.value.repeatable, slept) == ("timeout", True, [3, 2])


def test_skip_goes_on_where_the_record_ends() -> None:
    """A script made anew goes on behind the requests that are on record, failures among them, in each lane."""
    script = [*({"agent": agent, "content": f"{agent}{n}"} for n in range(3) for agent in "ab"), {"fail": "auth"}]
    model = ScriptedModel(script)
    model.skip([ask("x", "a"), ask("x", "a"), ask("x", "b"), ask("x", "c")])
    assert contents(model, ask("x", "b"), ask("x", "a")) == ["b1", "a2"]
    with pytest.raises(ScriptMismatch):
        model.skip([ask("x", "a")])
    strict = ScriptedModel([{"expect": {"system": "state"}, "content": "1"}, "2"])
    strict.skip([ask("x")])
    assert contents(strict, ask("x")) == ["2"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("- a", r"^s\.yaml:1: a script is a mapping with one member"),
        ("answers: [{contnt: a}]", r"^s\.yaml:1: answers\.0\.contnt: unknown member 'contnt': did you mean 'content'"),
        ("answers: [{content: yes}]", r"answers\.0\.content: Input should be a valid string"),
        ("answers:\n  - a\n  - {agent: b}", r"^s\.yaml:3: answers\.1: give an answer .* or fail, one of them"),
        ("answers: [{content: a, fail: auth}]", "or fail, one of them"),
        ("answers: [{content: a, json: 1}]", "both given"),
        ("answers: [{fail: tired}]", r"answers\.0\.fail: Input should be 'timeout'"),
        ("answers: [{tool_calls: [{arguments: {}}]}]", r"answers\.0\.tool_calls\.0: 'name' is missing"),
        (
            "answers: [{tool_calls: [{name: f, arguments: {day: 2020-01-01}}]}]",
            r"\$\.tool_calls\[0\].* is of type date",
        ),
        ("answers: [{content: a, times: 0}]", r"answers\.0\.times: Input should be greater"),
        ("answers: [{content: a, delay_s: -1}]", r"answers\.0\.delay_s"),
        ("answers: [1]", r"answers\.0: 1 is neither"),
        ("answers: [{content: a, content: b}]", "given twice"),
    ],
)
def test_faulty_script_is_told_with_its_place(
    text: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mistake in a script names file, line and member."""
    monkeypatch.chdir(tmp_path)
    Path("s.yaml").write_text(text)
    with pytest.raises(ConfigError, match=told):
        ScriptedModel.from_file("s.yaml")


def test_script_that_cannot_be_read() -> None:
    """A script that is not there is a configuration error."""
    with pytest.raises(ConfigError, match=r"^no/such\.yaml: the script cannot be read"):
        ScriptedModel.from_file("no/such.yaml")


def test_answers_do_not_share_arguments() -> None:
    """Changing the arguments of one answer changes no later answer."""
    model = ScriptedModel([{"tool_calls": [{"name": "f", "arguments": {"a": [1]}}], "times": 2}])
    found: Mapping[str, Any] = model.answer(ask("x"), timeout_s=1).tool_calls[0].arguments
    found["a"].append(2)
    assert model.answer(ask("x"), timeout_s=1).tool_calls[0].arguments == {"a": [1]}


def test_function_answers() -> None:
    """A function may stand in for a model, with a text or a whole answer."""
    assert FunctionModel(lambda request: request.messages[-1].content).answer(ask("hi"), timeout_s=1) == ModelAnswer(
        "hi", model="m"
    )
    whole = ModelAnswer("x", model="other")
    assert FunctionModel(lambda request: whole).answer(ask("hi"), timeout_s=1) is whole


# -- recorded ----------------------------------------------------------------------------------------------------

TALK = (Message("system", "sys"), Message("user", "pay 100 to the shop"), Message("assistant", "done"))
REQUEST = ModelRequest("m", TALK, (ToolSpec("f", "d", {"type": "object"}),), 0.5)


def recorded(*requests: ModelRequest) -> RecordedModel:
    """A record in which each was answered once, by its number."""
    return RecordedModel({digest_of(one.to_json()): [ModelAnswer(str(n))] for n, one in enumerate(requests)}, requests)


def test_recorded_answers_in_their_order() -> None:
    """Equal requests get their recorded answers in order, a failure among them; one more is not recorded."""
    digest = digest_of(REQUEST.to_json())
    failed = ModelFailed("x", model="m", why="timeout", repeatable=True)
    model = RecordedModel({digest: [ModelAnswer("1"), failed, ModelAnswer("3")]})
    assert model.answer(REQUEST, timeout_s=1).content == "1"
    with pytest.raises(ModelFailed):
        model.answer(REQUEST, timeout_s=1)
    assert model.unused() == {digest: 1}
    assert model.answer(REQUEST, timeout_s=1).content == "3"
    assert model.unused() == {}
    with pytest.raises(NotRecorded, match=r"number 4: it was asked 3 time\(s\) then") as caught:
        model.answer(REQUEST, timeout_s=1)
    assert (caught.value.digest, caught.value.nearest, caught.value.path) == (digest, digest, None)


@pytest.mark.parametrize(
    ("asked", "path", "role", "told"),
    [
        (
            replace(REQUEST, messages=(TALK[0], Message("user", "pay 200 to the shop"), TALK[2])),
            "messages[1]",
            "user",
            "recorded 'pay 100 to the shop', asked 'pay 200 to the shop'",
        ),
        (replace(REQUEST, messages=TALK[:2]), "messages[2]", "assistant", "recorded 'done', asked no message"),
        (replace(REQUEST, messages=(*TALK, Message("user", "more"))), "messages[3]", "user", "recorded no message"),
        (
            replace(REQUEST, messages=(*TALK[:2], Message("user", "done"))),
            "messages[2]",
            "user",
            "recorded role 'assistant', asked role 'user'",
        ),
        (
            replace(REQUEST, messages=(*TALK[:2], replace(TALK[2], tool_calls=(ToolCall("c", "f", {"n": 1}),)))),
            "messages[2]",
            "assistant",
            "tool_calls",
        ),
        (replace(REQUEST, model="n"), "model", None, "recorded '\"m\"', asked '\"n\"'"),
        (replace(REQUEST, tools=()), "tools", None, r"asked '\[\]'"),
        (replace(REQUEST, temperature=0.7), "temperature", None, "recorded '0.5', asked '0.7'"),
        (replace(REQUEST, response_schema={"type": "object"}), "response_schema", None, "recorded 'null'"),
    ],
)
def test_missing_recording_names_the_first_difference(
    asked: ModelRequest, path: str, role: str | None, told: str
) -> None:
    """A request that is not recorded names the nearest one that is, and where they differ first."""
    far = ModelRequest("z", (Message("user", "else"),))
    with pytest.raises(NotRecorded, match=told) as caught:
        recorded(far, REQUEST, far).answer(asked, timeout_s=1)
    error = caught.value
    assert (error.path, error.role, error.model) == (path, role, asked.model)
    assert (error.digest, error.nearest) == (digest_of(asked.to_json()), digest_of(REQUEST.to_json()))


def test_equally_near_recordings_name_the_earliest() -> None:
    """Of recorded requests that are equally near, the earliest is named."""
    first, second = (replace(REQUEST, messages=(Message("user", text),)) for text in ("one", "two"))
    with pytest.raises(NotRecorded, match="recorded 'one', asked 'six'"):
        recorded(first, second).answer(replace(REQUEST, messages=(Message("user", "six"),)), timeout_s=1)


def test_miss_without_anything_near() -> None:
    """A miss without recorded requests says that there is nothing to compare with."""
    with pytest.raises(NotRecorded, match="no other request to compare it with") as caught:
        RecordedModel({}).answer(REQUEST, timeout_s=1)
    assert (caught.value.nearest, caught.value.path) == (None, None)


def test_numbers_that_compare_equal_are_told_apart() -> None:
    """0 and 0.0 are different requests on the record, and the miss shows both."""
    with pytest.raises(NotRecorded, match=r"at temperature: recorded '0', asked '0\.0'"):
        recorded(replace(REQUEST, temperature=0)).answer(replace(REQUEST, temperature=0.0), timeout_s=1)


def test_difference_deep_inside_a_long_text_is_shown() -> None:
    """Of long texts, the part around the first difference is shown."""
    then, now = (
        replace(REQUEST, messages=(Message("user", "x" * 5000 + word + "y" * 5000),)) for word in ("OLD", "NEW")
    )
    with pytest.raises(NotRecorded, match=r"recorded '\.\.\.x{20}OLDy+\.\.\.', asked '\.\.\.x{20}NEWy+\.\.\.'"):
        recorded(then).answer(now, timeout_s=1)
