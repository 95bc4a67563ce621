"""Conditions under hostile text: nothing else runs, only ConditionError comes up, time and memory stay small."""

from __future__ import annotations

import json
import random
import sys
import threading
import time
import tracemalloc
import unicodedata  # loaded beforehand: Python's parser loads it for names that are not ASCII
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

from refold_store.conditions import Condition, compile_condition
from refold_store.errors import ConditionError, ConditionFailed

HOSTILE = [
    "__import__('os').system('touch pwned')",
    "().__class__.__base__.__subclasses__()",
    "eval('1')",
    "exec(compile('x', 'y', 'exec'))",
    "open('/etc/passwd').read()",
    "trap()",
    "trap.secret",
    "trap.__class__.__init__.__globals__",
    "trap['x']",
    "trap == trap",
    "trap < 1",
    "trap in [trap]",
    "f'{trap!r}'",
    "[t for t in trap]",
    "(lambda: trap())()",
    "(x := trap)",
    "9**9**9",
    "'a' * 9**9",
    "1 << 9**9",
    "[0] * 9**9",
    "0x" + "f" * 1900,
    "9" * 1900,
    "1e999999",
    "'%s' % trap",
    "'{0.__class__}'.format(trap)",
    "await trap",
    "(yield trap)",
    "*trap",
    "print",
    "__builtins__",
    "__builtins__['eval']",
    "state",
    "state['trap']",
    "state.keys()",
    "seen(trap)",
    "seen.__globals__",
    "seen(*trap)",
    "seen(**trap)",
    "seen(seen)(trap)",
    "import os",
    "a: int = 1",
    "a\0b",
    "'\\N{BULLET}'",
    "'\\ud800'",
    "# coding: utf-16\na",
    "\ufeffa",
    "ｅｖａｌ(1)",
    "a if trap else b",
    "-trap",
    "not trap",
    "1_0.0_1e-1_0",
]
CHARACTERS = "abtrap_0123456789.'\"()[]{}<>=!+-*/%&|^~@:;,#\\ \t\n\r\0é𝒂ﬁ中\u202e\u2028\ud800\U0001f600"


def _valid(draw: random.Random, depth: int) -> str:
    if depth <= 0 or draw.random() < 0.2:
        return draw.choice(
            ["a", "b", "c", "state['k/1']", "trap", "1", "-2.5", "'x'", "None", "True", "c['x']", "b[-1]"]
        )
    some = [_valid(draw, depth - 1) for _ in range(draw.randint(1, 3))]
    other = _valid(draw, depth - 1)
    comparison = draw.choice([" == ", " != ", " < ", " >= ", " in ", " not in "])
    return draw.choice(
        [
            f"({comparison.join([*some, other])})",
            f"({' and '.join([*some, other])})",
            f"({' or '.join([*some, other])})",
            f"(not {other})",
            f"[{', '.join(some)}]",
            f"({other},)",
            f"{{{', '.join(some)}}}",
            f"seen({other})",
            f"{other}[{draw.choice(['0', '-1', repr('x')])}]",
        ]
    )


def _fuzzed(draw: random.Random) -> str:
    kind = draw.randrange(6)
    if kind == 0:
        return _valid(draw, draw.randint(0, 4))
    if kind == 1:
        text = draw.choice(HOSTILE)
        return (
            text
            if draw.random() < 0.5
            else draw.choice(["({})", "a and {}", "[{}]", "seen({})", "a == {}"]).format(text)
        )
    if kind == 2:
        return "".join(draw.choices(CHARACTERS, k=draw.randint(1, 40)))
    if kind == 3 and draw.random() < 0.1:
        return (draw.choice(["(", "[", "{", "not ", "-", "a[", "seen(", "a<(", "f'{"]) * 2_000)[
            : draw.randint(1, 2_100)
        ]
    marks = list(_valid(draw, 3) if kind < 5 else draw.choice(HOSTILE)[:200])
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(marks) + 1)
        marks[at : at + draw.randint(0, 2)] = draw.choice([*CHARACTERS, " is ", "__class__", "()", "lambda:", "**", ""])
    return "".join(marks)


class Trap:
    """A value that notes whatever is asked of it besides its class."""

    touched: ClassVar[list[str]] = []

    def __getattribute__(self, name: str) -> object:
        if name != "__class__":
            Trap.touched.append(name)
        return object.__getattribute__(self, name)

    def __call__(self) -> None:
        Trap.touched.append("call")

    def __iter__(self) -> Iterator[object]:
        Trap.touched.append("iter")
        return iter(())

    def __getitem__(self, index: object) -> None:
        Trap.touched.append("getitem")


_watching: dict[int, list[str]] = {}
"""Audit events by watched thread; a hook cannot be taken off again, so it looks here first."""


@contextmanager
def watched(declared: object = None) -> Iterator[list[str]]:
    """Collect this thread's audit events, without the parser's and those of looking up `declared`'s signature."""

    looked_up = {"object.__getattr__": declared, "builtins.id": id(declared)}

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        events = _watching.get(threading.get_ident()) if _watching else None
        if events is None or (event == "compile" and arguments[1] == "<unknown>"):
            return
        if event not in looked_up or arguments[0] != looked_up[event]:
            events.append(f"{event}{arguments!r}"[:200])

    sys.addaudithook(hook)
    events = _watching.setdefault(threading.get_ident(), [])
    try:
        yield events
    finally:
        del _watching[threading.get_ident()]


def test_a_hundred_thousand_fuzzed_expressions_run_nothing_else() -> None:
    """Over 100,000 valid and hostile texts only ConditionError comes up, nothing runs, and each is quick."""
    assert unicodedata.name("a")
    trap = Trap()
    state = {"a": 1, "b": [1, "x"], "c": {"x": None}, "k/1": "é", "trap": trap}
    seen: list[object] = []

    def function(value: object) -> bool:
        seen.append(value)
        return True

    draw = random.Random(77401)
    texts = [_fuzzed(draw) for _ in range(100_000)]
    Trap.touched.clear()
    counts = {"refused": 0, "failed": 0, "unknown": 0, "known": 0}
    slowest = 0.0
    with watched(function) as events:
        for text in texts:
            began = time.thread_time()
            counts[_outcome(text, {"seen": function}, state)] += 1
            slowest = max(slowest, time.thread_time() - began)
    assert events == []
    assert Trap.touched == []
    assert seen, "the declared function is the one thing that may run"
    assert min(counts.values()) > 500, counts
    assert slowest < 0.5


def _outcome(text: str, functions: Mapping[str, Callable[..., object]], state: Mapping[str, object]) -> str:
    try:
        condition = compile_condition(text, functions=functions)
    except ConditionError:
        return "refused"
    try:
        answer = condition(state)
    except ConditionFailed:
        return "failed"
    assert answer in (True, False, None)
    return "unknown" if answer is None else "known"


def test_the_watch_sees_what_would_run() -> None:
    """The audit hook of the test above does notice code that runs, so its silence means something."""
    with watched() as events:
        eval("1 + 1")
    assert any(event.startswith("exec") for event in events)


def test_memory_stays_small() -> None:
    """No text makes compiling take more than a few megabytes."""
    texts = [*HOSTILE, *((part * 2_000)[:2_000] for part in ("(", "-", "a<", "1,", "[a,", "a[0]", "not ", "'a' "))]
    tracemalloc.start()
    try:
        for text in texts:
            _outcome(text, {"seen": bool}, {})
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 * 2**20


def test_naughty_strings(shared_data: Callable[[str], Path]) -> None:
    """Each recorded naughty string is refused or compiles, bare and as a literal, and as a literal equals itself."""
    texts = json.loads((shared_data("blns") / "dev" / "strings.json").read_text("utf-8"))
    for text in texts:
        _outcome(text, {}, {})
        try:
            condition: Condition = compile_condition(f"x == {json.dumps(text, ensure_ascii=False)}")
        except ConditionError:
            assert len(text) > 100 or not text.isprintable() or "/" in text
            continue
        assert condition({"x": text}) is True
