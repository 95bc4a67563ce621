"""From the syntax tree of a condition to closures. What the language means stands in `conditions`.

Rules:

1. The tree is checked and compiled in one walk by an allow-list: a node that no method here accepts is refused.
2. A closure takes the state and gives a value or UNKNOWN. It reads each key it names at most once per mention, and
   with `get` only: errors of the state itself (a store that is gone) pass through unchanged.
3. A node knows whether only its truth matters (`truth`) or its value: this decides what `and` and `or` may answer
   when a part is unknown.
"""

from __future__ import annotations

import ast
import inspect
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final

from refold_store.conditions_hints import ARITHMETIC, FOREIGN_NAMES, REFUSED, near
from refold_store.conditions_values import COMPARISONS, UNKNOWN, Test, kind, take
from refold_store.errors import ConditionError, ConditionFailed

__all__ = ["MAX_CONDITION_DEPTH", "MAX_CONDITION_NODES", "UNKNOWN", "Compiler", "Member", "Run"]

MAX_CONDITION_DEPTH: Final = 32
"""Deepest nesting in levels: each costs a Python frame or two when evaluated, and people cannot read more."""
MAX_CONDITION_NODES: Final = 400
"""Most names, literals and operations in one condition: what they cost is some hundred microseconds at most."""

_RAISED_MAX = 200
"""Characters of a declared function's own error that are passed on."""

Run = Callable[[Mapping[str, object]], object]


@dataclass(frozen=True, slots=True)
class Member:
    """A mention of a member inside a key: how it is spelled, its key, and how to get it."""

    spelling: str
    key: str
    run: Run


class Compiler:
    """Compiles one condition; afterwards `keys`, `called` and `members` say what it uses, in order of mention."""

    def __init__(
        self,
        expression: str,
        text: str,
        *,
        start: int,
        functions: Mapping[str, Callable[..., object]],
        known: Collection[str] | None,
    ) -> None:
        self.keys: dict[str, None] = {}
        self.called: dict[str, None] = {}
        self.members: dict[ast.expr, Member] = {}
        self._expression = expression
        self._bytes = text.encode()  # the tree counts columns in UTF-8 bytes
        self._start = start
        self._functions = functions
        self._known = known
        self._nodes = 0
        self._depth = 0

    def compile(self, node: ast.expr, *, truth: bool = False) -> Run:
        """Check `node` with all below it and give its closure. Raises ConditionError."""
        self._nodes += 1
        self._depth += 1
        if self._nodes > MAX_CONDITION_NODES:
            raise self._error(node, f"more than {MAX_CONDITION_NODES} parts", "move some into a declared function")
        if self._depth > MAX_CONDITION_DEPTH:
            raise self._error(node, f"over {MAX_CONDITION_DEPTH} levels deep", "name a part by a declared function")
        run = self._dispatch(node, truth)
        self._depth -= 1
        return run

    def _dispatch(self, node: ast.expr, truth: bool) -> Run:
        match node:
            case ast.Name():
                return self._name(node)
            case ast.Constant():
                return self._constant(node)
            case ast.Compare():
                return self._compare(node)
            case ast.Subscript():
                return self._subscript(node)
            case ast.BoolOp():
                return self._and_or(node, truth)
            case ast.UnaryOp():
                return self._unary(node)
            case ast.List() | ast.Tuple() | ast.Set():
                return self._container(node)
            case ast.Call():
                return self._call(node)
            case ast.Attribute():
                spelled = f'{self._source(node.value)}["{node.attr}"]'
                raise self._error(node, "an attribute is not allowed", f"a member is spelled {spelled}"[:100])
        unnamed = (f"{type(node).__name__} is not allowed", "use only literals, keys and comparisons")
        raise self._error(node, *REFUSED.get(type(node), unnamed))

    # places and errors

    def _column(self, node: ast.expr) -> int:
        return self._start + len(self._bytes[: node.col_offset].decode()) + 1

    def _source(self, node: ast.expr) -> str:
        return self._bytes[node.col_offset : node.end_col_offset].decode()

    def _error(self, place: ast.expr | int, message: str, hint: str) -> ConditionError:
        column = place if isinstance(place, int) else self._column(place)
        return ConditionError(message, expression=self._expression, column=column, hint=hint)

    def _failed(self, column: int, message: str) -> ConditionFailed:
        return ConditionFailed(message, expression=self._expression, column=column)

    # keys, literals

    def _name(self, node: ast.Name) -> Run:
        name = node.id
        if self._source(node) != name:
            raise self._error(node, "Python would read this name in another spelling", "spell the key as state[...]")
        if name == "state":
            hint = 'spell it state["order/1"]; a key named state is state["state"]'
            raise self._error(node, "`state` stands only before a key in brackets", hint)
        meant = FOREIGN_NAMES.get(name.lower())
        if meant is not None and (self._known is None or name not in self._known):
            raise self._error(node, f"unknown variable {name}", f"write {meant}")
        return self._key(node, name)

    def _key(self, node: ast.expr, name: str) -> Run:
        if self._known is not None and name not in self._known:
            hint = near(name, self._known) or "the schema declares no such key"
            raise self._error(node, f"unknown variable {name!r}", hint)
        self.keys[name] = None
        return lambda state: state.get(name, UNKNOWN)

    def _constant(self, node: ast.Constant) -> Run:
        value = self._literal(node)
        return lambda state: value

    def _literal(self, node: ast.Constant) -> str | int | float | None:
        value = node.value
        if isinstance(value, float) and not math.isfinite(value):
            raise self._error(node, "this number is too large", "a state holds no infinity")
        if isinstance(value, str) and not value.isascii() and any("\ud800" <= mark <= "\udfff" for mark in value):
            raise self._error(node, "a lone surrogate is no text", "write the character itself, or \\UXXXXXXXX")
        if value is None or isinstance(value, str | int | float):
            return value
        raise self._error(node, f"a literal of type {type(value).__name__} is not allowed", "use texts and numbers")

    def _container(self, node: ast.List | ast.Tuple | ast.Set) -> Run:
        parts = [self.compile(part) for part in node.elts]
        build = {ast.List: list, ast.Tuple: tuple, ast.Set: set}[type(node)]
        column = self._column(node)

        def run(state: Mapping[str, object]) -> object:
            values = _gather(parts, state)
            if values is None:
                return UNKNOWN
            try:
                return build(values)
            except TypeError as error:
                raise self._failed(column, "a set cannot hold lists, sets or objects") from error

        if _is_literal(node):
            try:
                run({})
            except ConditionFailed:
                raise self._error(node, "a set cannot hold lists or sets", "use a list") from None
        return run

    def _operand(self, node: ast.expr) -> Run:
        """A side of a comparison. Nothing can keep or change it there, so a literal list is built only once."""
        run = self.compile(node)
        if isinstance(node, ast.List | ast.Tuple | ast.Set) and _is_literal(node):
            built = run({})
            return lambda state: built
        return run

    # operations

    def _and_or(self, node: ast.BoolOp, truth: bool) -> Run:
        parts = [self.compile(part, truth=truth) for part in node.values]
        decides = isinstance(node.op, ast.Or)  # the truth that ends it: True for `or`, False for `and`

        def run(state: Mapping[str, object]) -> object:
            result: object = None
            unknown = False
            for part in parts:
                value = part(state)
                if value is UNKNOWN:
                    if not truth:
                        return UNKNOWN
                    unknown = True
                elif bool(value) is decides:
                    return value
                result = value
            return UNKNOWN if unknown else result

        return run

    def _unary(self, node: ast.UnaryOp) -> Run:
        operand = node.operand
        if isinstance(node.op, ast.Not):
            inner = self.compile(operand, truth=True)

            def run(state: Mapping[str, object]) -> object:
                value = inner(state)
                return UNKNOWN if value is UNKNOWN else not value

            return run
        if not isinstance(node.op, ast.USub):
            raise self._error(node, "`+` and `~` are not allowed", "leave `+` out; write `not` for `~`")
        negative = _negated(operand)
        if negative is None:
            raise self._error(node, "`-` stands only before a number", ARITHMETIC)
        self.compile(operand)
        return lambda state: negative

    def _compare(self, node: ast.Compare) -> Run:
        operands = [self._operand(part) for part in (node.left, *node.comparators)]
        places = [node.left, *node.comparators]
        steps = [self._step(op, places[at], places[at + 1]) for at, op in enumerate(node.ops)]
        first, rest = operands[0], list(zip(steps, operands[1:], strict=True))
        if len(rest) == 1:
            (((test, fail), second),) = rest

            def run_one(state: Mapping[str, object]) -> object:
                left = first(state)
                if left is UNKNOWN:
                    return UNKNOWN
                right = second(state)
                if right is UNKNOWN:
                    return UNKNOWN
                try:
                    return test(left, right)
                except Exception as error:  # TypeError; whatever a typed value's own comparison raises
                    raise fail(left, right) from error

            return run_one

        def run_chain(state: Mapping[str, object]) -> object:
            left = first(state)
            unknown = False
            for (test, fail), operand in rest:
                right = operand(state)
                if left is UNKNOWN or right is UNKNOWN:
                    unknown = True
                else:
                    try:
                        if not test(left, right):
                            return False
                    except Exception as error:
                        raise fail(left, right) from error
                left = right
            return UNKNOWN if unknown else True

        return run_chain

    def _step(self, op: ast.cmpop, left: ast.expr, right: ast.expr) -> tuple[Test, Callable[..., ConditionFailed]]:
        """What decides one comparison, and what makes the error when it cannot."""
        if type(op) not in COMPARISONS:
            between = self._bytes[left.end_col_offset : right.col_offset].decode()
            at = self._start + len(self._bytes[: left.end_col_offset].decode()) + between.index("is") + 1
            hint = "write `==`" if isinstance(op, ast.Is) else "write `!=`"
            raise self._error(at, "`is` is not allowed", f"{hint}, for None too")
        spelling, test = COMPARISONS[type(op)]
        column = self._column(left)

        def fail(a: object, b: object) -> ConditionFailed:
            return self._failed(column, f"`{spelling}` has no meaning for {kind(a)} and {kind(b)}")

        return test, fail

    def _subscript(self, node: ast.Subscript) -> Run:
        index = self._index(node.slice)
        if isinstance(node.value, ast.Name) and node.value.id == "state":
            if isinstance(index, str):
                return self._key(node, index)
            raise self._error(node.slice, "a key is a text", 'spell it state["order/1"]')
        base = self.compile(node.value)
        column = self._column(node)

        def run(state: Mapping[str, object]) -> object:
            value = base(state)
            if value is UNKNOWN:
                return UNKNOWN
            try:
                return take(value, index)
            except TypeError as error:
                raise self._failed(column, f"{kind(value)} has no member {index!a}") from error

        self.members.pop(node.value, None)
        key = self._root(node.value)
        if key is not None:
            self.members[node] = Member(self._source(node), key, run)
        return run

    def _root(self, node: ast.expr) -> str | None:
        """The key that a chain of subscripts starts from, if it starts from one."""
        while isinstance(node, ast.Subscript):
            if isinstance(node.value, ast.Name) and node.value.id == "state":
                return str(self._index(node.slice))
            node = node.value
        return node.id if isinstance(node, ast.Name) else None

    def _index(self, node: ast.expr) -> str | int:
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            index: object = _negated(node.operand)
        else:
            index = self._literal(node) if isinstance(node, ast.Constant) else None
        if isinstance(index, str | int) and not isinstance(index, bool):
            return index
        if isinstance(node, ast.Slice):
            raise self._error(node, "a slice is not allowed", "take members one by one, or declare a function")
        raise self._error(node, "a subscript is one constant text or whole number", 'write a[0], a[-1] or a["name"]')

    def _call(self, node: ast.Call) -> Run:
        if not isinstance(node.func, ast.Name) or node.func.id not in self._functions:
            raise self._error(node, "only declared condition functions may be called", self._call_hint(node.func))
        name = node.func.id
        function = self._functions[name]
        if node.keywords:
            raise self._error(node, f"{name} takes its arguments by position", "leave the names out")
        arguments = [self.compile(argument) for argument in node.args]
        self._check_function(node, name, function, len(arguments))
        self.called[name] = None
        column = self._column(node)

        def run(state: Mapping[str, object]) -> object:
            values = _gather(arguments, state)
            if values is None:
                return UNKNOWN
            try:
                return function(*values)
            except Exception as error:
                raised = f"{type(error).__name__}: {error}"[:_RAISED_MAX]
                raise self._failed(column, f"function {name} raised {raised}") from error

        return run

    def _call_hint(self, function: ast.expr) -> str:
        if not self._functions:
            return "none are declared here"
        similar = near(function.id, self._functions) if isinstance(function, ast.Name) else ""
        return similar or f"declared: {', '.join(sorted(self._functions))}"[:200]

    def _check_function(self, node: ast.Call, name: str, function: object, count: int) -> None:
        if not callable(function) or inspect.iscoroutinefunction(function):
            raise self._error(node, f"{name} is declared, but is no plain function", "declare a `def`, not async")
        try:
            signature = inspect.signature(function)
        except (TypeError, ValueError):  # some builtins tell nothing about themselves
            return
        try:
            signature.bind(*[None] * count)
        except TypeError as error:
            raise self._error(node, f"{name}{signature} does not take {count} arguments", str(error)) from None


def _gather(parts: list[Run], state: Mapping[str, object]) -> list[object] | None:
    """The values of all parts, or None when one is unknown."""
    values = []
    for part in parts:
        value = part(state)
        if value is UNKNOWN:
            return None
        values.append(value)
    return values


def _negated(node: ast.expr) -> int | float | None:
    """The number that `-` before this node makes, if it is a number literal."""
    value = node.value if isinstance(node, ast.Constant) else None
    return -value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _is_literal(node: ast.expr) -> bool:
    literal = (ast.Constant, ast.UnaryOp, ast.List, ast.Tuple, ast.Set)
    return all(isinstance(part, literal) for part in ast.walk(node) if isinstance(part, ast.expr))
