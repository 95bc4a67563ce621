"""Python functions as tools, sync and async.

Rules of this module
- A call is: arguments checked and converted, the function run, its result turned to exact JSON. Whatever goes wrong is
  a ToolFailed with one line for the model, and never a traceback.
- The time limit is kept by a thread of the call's own. A function cannot be stopped from outside: when its time is
  over it is abandoned, and the outcome is unknown. Few may lie abandoned at once; then the tool refuses calls.
- A result that cannot be stored comes after the effect: the message says that the tool did run.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import re
import threading
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from refold_engine.errors import ToolFailed
from refold_engine.importing import import_object
from refold_engine.ports import Json, ToolSpec
from refold_engine.toolresults import Over, as_json, limited
from refold_engine.toolspec import Parameters, described
from refold_store.errors import ConfigError, NotExact

TIMEOUT_S = 60.0
"""How long a call may take, in seconds, where its declaration does not say."""

MAX_RESULT_BYTES = 64 * 1024
"""Largest result in bytes of JSON, where its declaration does not say: some 16,000 tokens of a model's attention."""

MAX_ABANDONED = 8
"""Most calls of one tool that may have outlived their time and still run: each holds a thread."""

GRACE_S = 1.0
"""How much longer than its time a cancelled coroutine may take to clean up before it is abandoned, in seconds."""

MAX_ERROR_CHARS = 2_000
"""Longest message of an exception passed on to a model, in characters."""

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


class PythonTool:
    """A function that a model may call. Threads may share it."""

    __slots__ = ("_abandoned", "_function", "_lock", "_max_bytes", "_over", "_parameters", "_spec", "_timeout_s")

    def __init__(
        self,
        function: Callable[..., object],
        *,
        name: str,
        description: str,
        parameters: Parameters,
        timeout_s: float,
        max_bytes: int,
        over: Over,
    ) -> None:
        self._function = function
        self._parameters = parameters
        self._spec = ToolSpec(name, description, parameters.schema)
        self._timeout_s, self._max_bytes, self._over = timeout_s, max_bytes, over
        self._lock = threading.Lock()
        self._abandoned: list[threading.Thread] = []

    @property
    def spec(self) -> ToolSpec:
        """How a model is told of it."""
        return self._spec

    def call(self, arguments: Mapping[str, Json], context: object) -> Json:
        """Call the function and return its result as JSON. Raises ToolFailed; `unknown` after the time limit only."""
        name = self._spec.name
        bound = self._parameters.bind(name, arguments, context)
        value = self._in_time(bound)
        try:
            text, found = as_json(value)
        except NotExact as error:
            raise ToolFailed(f"tool {name!r} ran, but its result has no JSON: {error}", tool=name) from error
        shown, note = limited(text, found, max_bytes=self._max_bytes, over=self._over)
        if note is not None and self._over == "refuse":
            raise ToolFailed(f"tool {name!r} ran, but {note}", tool=name)
        return shown

    def _in_time(self, bound: inspect.BoundArguments) -> object:
        name = self._spec.name
        run = _Run(self._function, bound, self._timeout_s)
        context = contextvars.copy_context()
        # A daemon: a call that never ends must not keep the process.
        thread = threading.Thread(target=context.run, args=(run,), name=f"tool {name}", daemon=True)
        self._admit()
        thread.start()
        thread.join(self._timeout_s)
        if run.cancellable:
            thread.join(GRACE_S)
        if run.expired or not run.ended:
            with self._lock:
                self._abandoned.append(thread)
            raise ToolFailed(
                f"tool {name!r} did not end within {self._timeout_s:g} s: whether it had its effect is unknown",
                tool=name,
                unknown=True,
            )
        if run.error is None:
            return run.value
        if isinstance(run.error, ToolFailed):
            raise run.error
        raise ToolFailed(f"tool {name!r} failed: {told(run.error)}", tool=name) from run.error

    def _admit(self) -> None:
        with self._lock:
            self._abandoned = [thread for thread in self._abandoned if thread.is_alive()]
            if len(self._abandoned) >= MAX_ABANDONED:
                raise ToolFailed(
                    f"tool {self._spec.name!r} was not called: {MAX_ABANDONED} earlier calls outlived their time "
                    "and still run; wait for them, or start the process anew",
                    tool=self._spec.name,
                )


class _Run:
    """One run of a function in a thread of its own, and how it ended."""

    __slots__ = ("_bound", "_function", "_timeout_s", "cancellable", "ended", "error", "expired", "value")

    def __init__(self, function: Callable[..., object], bound: inspect.BoundArguments, timeout_s: float) -> None:
        self._function, self._bound, self._timeout_s = function, bound, timeout_s
        self.ended = self.expired = self.cancellable = False
        self.value: object = None
        self.error: BaseException | None = None

    def __call__(self) -> None:
        try:
            value = self._function(*self._bound.args, **self._bound.kwargs)
            self.cancellable = inspect.isawaitable(value)
            self.value = asyncio.run(self._awaited(value)) if inspect.isawaitable(value) else value
        except BaseException as error:  # sys.exit() of a tool ends the tool, not the engine
            self.error = error
        self.ended = True

    async def _awaited(self, value: Awaitable[object]) -> object:
        """Its result; cancelled when the time is over, so that it does not go on unseen."""
        try:
            async with asyncio.timeout(self._timeout_s) as limit:
                return await value
        finally:
            self.expired = limit.expired()


def told(error: BaseException) -> str:
    """An exception in one line that can be stored: its type and message."""
    try:
        message = str(error)
    except Exception:  # a message of the user's making
        message = "(its message cannot be had)"
    line = f"{type(error).__name__}: {message}" if message else type(error).__name__
    shown = line if len(line) <= MAX_ERROR_CHARS else line[:MAX_ERROR_CHARS] + " ..."
    return shown.encode(errors="backslashreplace").decode()


def python_tool(
    source: Callable[..., object] | str,
    *,
    name: str | None = None,
    description: str | None = None,
    timeout_s: float = TIMEOUT_S,
    max_bytes: int = MAX_RESULT_BYTES,
    over: Over = "cut",
) -> PythonTool:
    """A tool from a function, or from a dotted path to one. Raises ConfigError if it cannot be a tool.

    Name and description come from the function and its docstring. `over` says what happens to a result of more than
    `max_bytes` of JSON: "cut" to text with a note, or "refuse".
    """
    function: Any = import_object(source) if isinstance(source, str) else source
    where = source if isinstance(source, str) else getattr(function, "__qualname__", repr(function))
    if not callable(function) or isinstance(function, type):
        raise ConfigError(f"{where!r} is no function but {_what(function)}: a tool is a function")
    called = name or _name(function)
    if _NAME.fullmatch(called) is None:
        raise ConfigError(
            f"{called!r} is no name for a tool: letters, digits, '_' and '-', at most 64 of them; pass name="
        )
    if not 0 < timeout_s <= threading.TIMEOUT_MAX or max_bytes < 1:
        raise ConfigError(f"tool {called!r}: timeout_s and max_bytes are above 0, not {timeout_s!r} and {max_bytes!r}")
    return PythonTool(
        function,
        name=called,
        description=described(function)[0] if description is None else description,
        parameters=Parameters(function, f"tool {called!r}"),
        timeout_s=timeout_s,
        max_bytes=max_bytes,
        over=over,
    )


def _what(found: object) -> str:
    return "a class" if isinstance(found, type) else f"of type {type(found).__name__}"


def _name(function: Any) -> str:
    """The function's name; of a partial, that of the function in it; of an object, that of its class."""
    while not hasattr(function, "__name__") and hasattr(function, "func"):
        function = function.func
    return str(getattr(function, "__name__", type(function).__name__))
