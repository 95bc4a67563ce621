"""Models for tests and demos that answer from a script, without any network.

    answers:
      - {agent: triage_agent, tool_calls: [{name: transfer_agent, arguments: {target: billing_agent}}]}
      - {agent: billing_agent, when: invoice, content: "It is paid.", usage: {input_tokens: 12, output_tokens: 4}}
      - {agent: billing_agent, fail: timeout}

Rules of this module
- `agent`, `model`, `system` and `when` say which requests an entry is for; entries that say the same form a *lane*
  and are used in the order of the script. A request goes to the lane that fits and says most (of equals, to the first
  in the script), and to no other, even when that one is used up.
- So what a request gets depends on the requests of its own lane alone: agents that ask at the same time, each with a
  lane of its own, get the same answers in whatever order they come.
- `expect` does not choose: it is checked. What does not fit is a ScriptMismatch, and uses no entry up.
- Nothing is random, and nothing but `delay_s` takes time.
"""

from __future__ import annotations

import difflib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from refold_engine.errors import REPEATABLE, ModelFailed, RateLimited, ScriptMismatch, Why
from refold_engine.ports import Json, Message, ModelAnswer, ModelRequest, ToolCall, Usage
from refold_store import jsontext
from refold_store.errors import ConfigError
from refold_store.yamltext import Document, read_yaml

MAX_DELAY_S = 3600.0
"""Longest delay of a scripted answer, in seconds: no time-out is longer."""

MAX_SHOWN = 160
"""Longest part of a request shown in a mismatch, in characters."""

Selectors = tuple[str | None, str | None, str | None, str | None]
"""agent, model, part of the system prompt, part of the last message."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Call(_Strict):
    name: str
    arguments: dict[str, Any] = {}
    id: str | None = None


class _Usage(_Strict):
    input_tokens: Annotated[int, Field(ge=0)] = 0
    output_tokens: Annotated[int, Field(ge=0)] = 0
    cost: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None


class _Expect(_Strict):
    system: str | None = None
    last: str | None = None


class _Failure(_Strict):
    why: Why
    message: str = "scripted failure"
    repeatable: bool | None = None
    retry_after_s: Annotated[float, Field(ge=0)] | None = None


class Entry(_Strict):
    """One entry of a script, as written. `content` or `json` (a structured answer), `tool_calls`, or `fail`."""

    agent: str | None = None
    model: str | None = None
    system: str | None = None
    """A part of the system prompt of the requests it is for."""
    when: str | None = None
    """A part of their last message."""
    expect: _Expect = _Expect()
    content: str | None = None
    json_content: Annotated[Any, Field(alias="json")] = None
    tool_calls: list[_Call] = []
    usage: _Usage = _Usage()
    fail: Why | _Failure | None = None
    delay_s: Annotated[float, Field(ge=0, le=MAX_DELAY_S)] = 0.0
    times: Annotated[int, Field(ge=1)] | Literal["any"] = 1

    @model_validator(mode="after")
    def _says_one_thing(self) -> Entry:
        said = {"content", "json_content"} & self.model_fields_set
        answers = bool(said) or bool(self.tool_calls)
        if len(said) == 2:
            raise ValueError("content and json are both given: give one")
        if answers == (self.fail is not None):
            raise ValueError("give an answer (content, json or tool_calls) or fail, one of them")
        return self

    @property
    def selectors(self) -> Selectors:
        """Which requests it is for."""
        return (self.agent, self.model, self.system, self.when)


@dataclass(slots=True)
class _Placed:
    """An entry, where it stands, its number in the script from 1, and how often it was used."""

    entry: Entry
    place: str
    number: int
    used: int = 0

    @property
    def spent(self) -> bool:
        return self.entry.times != "any" and self.used >= self.entry.times


class ScriptedModel:
    """A Model that answers from a script: a list of entries (mappings as in the file; a text is its content)."""

    def __init__(
        self,
        answers: Iterable[Mapping[str, Json] | str],
        *,
        source: str = "script",
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Raises ConfigError for an entry that is none."""
        self._start(Document({"answers": list(answers)}, source, {}), sleep)

    @classmethod
    def from_file(cls, path: str, *, sleep: Callable[[float], None] = time.sleep) -> ScriptedModel:
        """The script in a YAML file. Raises ConfigError with file and line."""
        try:
            with open(path, encoding="utf-8") as file:
                text = file.read()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"the script cannot be read: {error}", where=path) from error
        made = cls.__new__(cls)
        made._start(read_yaml(text, path), sleep)
        return made

    def _start(self, document: Document, sleep: Callable[[float], None]) -> None:
        self._source = document.source
        self._entries = _read(document)
        self._sleep = sleep
        self._lock = threading.Lock()
        self._lanes: dict[Selectors, list[_Placed]] = {}
        for placed in self._entries:
            self._lanes.setdefault(placed.entry.selectors, []).append(placed)

    def answer(self, request: ModelRequest, *, timeout_s: float) -> ModelAnswer:
        """The next answer of the lane the request goes to. Raises ModelFailed as scripted, or ScriptMismatch."""
        placed, use = self._take(request)
        entry = placed.entry
        if entry.delay_s:
            self._sleep(min(entry.delay_s, timeout_s))
        if entry.delay_s > timeout_s:
            raise ModelFailed(f"no answer within {timeout_s:g} s", model=request.model, why="timeout", repeatable=True)
        if entry.fail is not None:
            raise _failure(entry.fail, request.model)
        return _answer(placed, use, request.model)

    def skip(self, requests: Iterable[ModelRequest]) -> None:
        """Use up the entries of requests that are on record already, one for each try, in their order: so a script
        goes on where a killed process left it. Of each, agent, model, system prompt and last message are looked at;
        `expect` is not checked. Raises ScriptMismatch."""
        for request in requests:
            self._take(request, checked=False)

    def unused(self) -> tuple[str, ...]:
        """The places of entries that were not used, or fewer times than they say."""
        with self._lock:
            return tuple(
                one.place if not one.used else f"{one.place} (used {one.used} of {one.entry.times} times)"
                for one in self._entries
                if not (one.used if one.entry.times == "any" else one.spent)
            )

    def _take(self, request: ModelRequest, *, checked: bool = True) -> tuple[_Placed, int]:
        with self._lock:
            lane = self._lane(request)
            placed = next((one for one in lane if not one.spent), None)
            if placed is None:
                raise _mismatch(
                    request,
                    lane[-1].place,
                    f"at most {sum(int(one.entry.times) for one in lane)} requests {_selected(lane[0].entry)}",
                    "one more request",
                    "add an entry, or let the last one say `times: any`",
                )
            if checked:
                _check(placed, request)
            placed.used += 1
            return placed, placed.used

    def _lane(self, request: ModelRequest) -> list[_Placed]:
        fitting = [selectors for selectors in self._lanes if _fits(selectors, request)]
        if not fitting:
            known = "; ".join(sorted({_selected(one.entry) for one in self._entries})) or "none, the script is empty"
            raise _mismatch(
                request, None, f"a request {_short(known)}", "one of another kind", f"add it to {self._source}"
            )
        return self._lanes[max(fitting, key=lambda selectors: sum(one is not None for one in selectors))]


class FunctionModel:
    """A Model that a function answers: with a ModelAnswer or a text; it may raise ModelFailed."""

    def __init__(self, function: Callable[[ModelRequest], ModelAnswer | str]) -> None:
        self._function = function

    def answer(self, request: ModelRequest, *, timeout_s: float) -> ModelAnswer:
        """What the function says."""
        found = self._function(request)
        return ModelAnswer(found, model=request.model) if isinstance(found, str) else found


# -- requests ----------------------------------------------------------------------------------------------------


def _system_of(request: ModelRequest) -> str:
    return "\n".join(one.content for one in request.messages if one.role == "system")


def _last_of(request: ModelRequest) -> Message:
    return request.messages[-1] if request.messages else Message("user", "")


def _fits(selectors: Selectors, request: ModelRequest) -> bool:
    agent, model, system, when = selectors
    return (
        agent in (None, request.agent)
        and model in (None, request.model)
        and (system is None or system in _system_of(request))
        and (when is None or when in _last_of(request).content)
    )


def _selected(entry: Entry) -> str:
    names = ("agent", "model", "system", "when")
    said = [f"{name} {value!r}" for name, value in zip(names, entry.selectors, strict=True) if value is not None]
    return f"with {', '.join(said)}" if said else "of any kind"


def _check(placed: _Placed, request: ModelRequest) -> None:
    expect = placed.entry.expect
    for what, part, found in (
        ("the last message", expect.last, _last_of(request).content),
        ("the system prompt", expect.system, _system_of(request)),
    ):
        if part is not None and part not in found:
            raise _mismatch(
                request,
                placed.place,
                f"{part!r} in {what}",
                f"{what} {_short(found)!r}",
                "mend the script, or find what led the agent here",
            )


def _mismatch(request: ModelRequest, entry: str | None, expected: str, arrived: str, advice: str) -> ScriptMismatch:
    last = _last_of(request)
    asked = f"{f'agent {request.agent!r}' if request.agent else 'an agent'} asked {request.model!r}"
    shown = f"{arrived}; its last message ({last.role}): {_short(last.content)!r}"
    return ScriptMismatch(
        f"{entry or 'no entry of the script fits'}: {asked}, expected {expected}, but arrived {shown}; {advice}",
        model=request.model,
        entry=entry,
        arrived=shown,
        expected=expected,
    )


def _short(text: str) -> str:
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 3] + "..."


# -- answers -----------------------------------------------------------------------------------------------------


def _answer(placed: _Placed, use: int, model: str) -> ModelAnswer:
    entry = placed.entry
    content = entry.content or ""
    if "json_content" in entry.model_fields_set:
        content = jsontext.encode(entry.json_content).decode()
    calls = tuple(
        ToolCall(call.id or f"call_{placed.number}_{use}_{position}", call.name, _copy(call.arguments))
        for position, call in enumerate(entry.tool_calls, 1)
    )
    return ModelAnswer(content, calls, Usage(**entry.usage.model_dump()), model)


def _copy(arguments: dict[str, Json]) -> dict[str, Json]:
    found: dict[str, Json] = jsontext.snapshot(arguments)[1]
    return found


def _failure(fail: Why | _Failure, model: str) -> ModelFailed:
    said = fail if isinstance(fail, _Failure) else _Failure(why=fail)
    if said.why == "rate_limit":
        return RateLimited(said.message, model=model, retry_after_s=said.retry_after_s)
    repeatable = said.why in REPEATABLE if said.repeatable is None else said.repeatable
    return ModelFailed(said.message, model=model, why=said.why, repeatable=repeatable)


# -- reading a script --------------------------------------------------------------------------------------------


def _read(document: Document) -> list[_Placed]:
    found = document.value
    if not isinstance(found, dict) or set(found) != {"answers"} or not isinstance(found["answers"], list):
        raise ConfigError("a script is a mapping with one member, `answers`: a list", where=document.place(()))
    placed = []
    for position, item in enumerate(found["answers"]):
        path = ("answers", str(position))
        place = document.place(path)
        placed.append(_Placed(_entry(item, document, path), place, position + 1))
    return placed


def _entry(item: object, document: Document, path: tuple[str, ...]) -> Entry:
    if isinstance(item, str):
        return Entry(content=item)
    if not isinstance(item, Mapping):
        raise ConfigError(f"{item!r} is neither a text nor a mapping", where=document.place(path))
    if (fault := jsontext.find_fault(dict(item))) is not None:
        raise ConfigError(f"{fault[0]} {fault[1]}; quote it if it is text", where=document.place(path))
    try:
        return Entry.model_validate(dict(item))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        inside = tuple(str(part) for part in _within(item, first["loc"]))
        told = _told(first["type"], first["msg"], str(first["loc"][-1]) if first["loc"] else "")
        raise ConfigError(told, where=document.place((*path, *inside))) from error


def _within(item: Any, loc: tuple[int | str, ...]) -> Iterator[int | str]:
    """The parts of a place that the entry has: pydantic adds names of its own."""
    for part in loc:
        members = item if isinstance(item, Mapping) else dict(enumerate(item)) if isinstance(item, list) else {}
        if part not in members:
            return
        item = members[part]
        yield part


def _told(kind: str, message: str, name: str) -> str:
    if kind == "missing":
        return f"{name!r} is missing"
    if kind != "extra_forbidden":
        return message.removeprefix("Value error, ")
    known = [field.alias or found for found, field in Entry.model_fields.items()]
    near = difflib.get_close_matches(name, known, n=1)
    return f"unknown member {name!r}" + (f": did you mean {near[0]!r}?" if near else "")
