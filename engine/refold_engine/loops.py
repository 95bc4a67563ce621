"""Whether the routers of a circle of agents can go round for ever: a search for a state in which they do.

Rules of this module
- The walk is the engine's: at each agent its routers in order, the first that is true wins, nothing changes between.
- States are made from what the conditions compare keys with: each constant, a value between and beyond, another text,
  true, false, nothing, and the key's absence. Where conditions compare keys with constants and no more, these stand
  for all states (`complete`), and finding none is a proof.
- Functions of the user's are not run. What they answer is assumed both ways; a loop that rests on it is *possible*.
- The search is bounded; beyond the bound it is not complete.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from refold_engine.config import Config, Router
from refold_store.errors import ConditionFailed, NotExact, Refused, UnknownKey
from refold_store.jsontext import encode

STEPS_MAX = 100_000
"""Most agents visited in all the states tried for one circle: some tenths of a second."""
VALUES_MAX = 40
"""Most values tried for one key."""
SUBSETS_MAX = 3
"""Most constants looked for in one list (`"x" in tags`) that are tried in all combinations."""
OTHER = "another value"
"""A text that stands for those no condition names."""

State = dict[str, Any]
_Absent: Any = object()
_ORDER = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)


@dataclass(frozen=True, slots=True)
class Loop:
    """A way round: its agents in order, a state in which it is gone, and whether that rests on a guess."""

    agents: tuple[str, ...]
    state: Mapping[str, Any]
    certain: bool


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is known of one circle: the loops found; without any, whether there is provably none."""

    agents: tuple[str, ...]
    loops: tuple[Loop, ...]
    proven: bool


def judge(config: Config, circle: Sequence[str]) -> Verdict:
    """Look for loops among the agents of one circle."""
    routers = {agent: config.routers_of(agent) for agent in circle}
    values = _Values(config)
    guesses: dict[str, tuple[Any, ...]] = {}
    for router in itertools.chain.from_iterable(routers.values()):
        if router.condition is None:
            guesses[router.name] = (*router.targets, None)
        elif router.condition.functions:
            guesses[router.name] = (True, False)
        else:
            values.learn(router.condition.expression)
    found: dict[tuple[str, ...], Loop] = {}
    for tried, (state, guessed) in enumerate(_cases(values.of_keys(), guesses)):
        if tried * len(circle) >= STEPS_MAX and tried:
            values.complete = False
            break
        for loop in _loops_in(routers, circle, state, guessed):
            if loop.agents not in found or (loop.certain and not found[loop.agents].certain):
                found[loop.agents] = loop
    return Verdict(tuple(circle), tuple(found.values()), proven=not found and values.complete)


def _cases(
    values: Mapping[str, Sequence[Any]], guesses: Mapping[str, Sequence[Any]]
) -> Iterator[tuple[State, dict[str, Any]]]:
    names = list(values)
    for chosen in itertools.product(*values.values()):
        state = {name: value for name, value in zip(names, chosen, strict=True) if value is not _Absent}
        for answers in itertools.product(*guesses.values()):
            yield state, dict(zip(guesses, answers, strict=True))


def _loops_in(
    routers: Mapping[str, Sequence[Router]], circle: Sequence[str], state: State, guessed: Mapping[str, Any]
) -> Iterator[Loop]:
    """The ways round in one state: from each agent follow the routes until they end or come back."""
    seen: set[str] = set()
    for start in circle:
        way: list[str] = []
        certain: list[bool] = []
        here: str | None = start
        while here is not None and here in routers and here not in seen:
            seen.add(here)
            way.append(here)
            here, sure = _next(routers[here], state, guessed)
            certain.append(sure)
        at = way.index(here) if here is not None and here in way else len(way)
        if len(way) - at > 1:  # a loop of one is told by itself
            yield Loop(_turned(way[at:]), dict(state), all(certain[at:]))


def _next(routers: Sequence[Router], state: State, guessed: Mapping[str, Any]) -> tuple[str | None, bool]:
    """Where the first router that fires leads, and whether that is sure."""
    sure = True
    for router in routers:
        if router.name in guessed:
            answer = guessed[router.name]
            sure = False
        else:
            answer = _fires(router, state)
        if answer:
            return (answer if isinstance(answer, str) else router.targets[0]), sure
    return None, sure


def _fires(router: Router, state: State) -> bool:
    assert router.condition is not None  # the others are guessed
    try:
        return router.condition(state) is True
    except ConditionFailed:
        return False


def _turned(way: Sequence[str]) -> tuple[str, ...]:
    """The same way round, begun at its first agent by name: one spelling for each loop."""
    at = way.index(min(way))
    return (*way[at:], *way[:at])


# -- values worth trying ---------------------------------------------------------------------------------------------


class _Values:
    """The values of each key that make a difference to the conditions learned."""

    def __init__(self, config: Config) -> None:
        self._schema = config.schema
        self._constants: dict[str, list[Any]] = {}
        self._searched: dict[str, list[Any]] = {}
        self.complete = True

    def learn(self, expression: str) -> None:
        """Take in what one condition compares."""
        self._truth(ast.parse(expression.strip(), mode="eval").body)

    def of_keys(self) -> dict[str, tuple[Any, ...]]:
        """The values to try, by key; absence last."""
        return {key: (*self._fitting(key), _Absent) for key in self._constants}

    def _truth(self, node: ast.expr) -> None:
        """A part of which only the truth matters."""
        if isinstance(node, ast.BoolOp):
            for part in node.values:
                self._truth(part)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            self._truth(node.operand)
        elif isinstance(node, ast.Compare):
            operands = [node.left, *node.comparators]
            for at, op in enumerate(node.ops):
                self._compared(operands[at], op, operands[at + 1])
        elif (key := _key(node)) is not None:
            self._add(key, (True, False, 1, 0, "x", ""))
        elif not isinstance(node, ast.Constant):
            self._unclear(node)

    def _compared(self, left: ast.expr, op: ast.cmpop, right: ast.expr) -> None:
        left_key, right_key = _key(left), _key(right)
        left_value, right_value = _literal(left), _literal(right)
        if left_key is not None and right_value is not _Absent:
            inside = (
                list(right_value) if isinstance(op, (ast.In, ast.NotIn)) and _is_list(right_value) else [right_value]
            )
            self._add(left_key, inside)
            self._ordered(op, inside)
        elif right_key is not None and left_value is not _Absent:
            if isinstance(op, (ast.In, ast.NotIn)):
                self._add(right_key, ())
                self._searched.setdefault(right_key, []).append(left_value)
            else:
                self._add(right_key, [left_value])
                self._ordered(op, [left_value])
        elif left_value is _Absent or right_value is _Absent:
            self._unclear(left)
            self._unclear(right)

    def _ordered(self, op: ast.cmpop, constants: Iterable[Any]) -> None:
        if isinstance(op, _ORDER) and not all(isinstance(one, (int, float)) for one in constants):
            self.complete = False

    def _unclear(self, node: ast.expr) -> None:
        """A part not understood: its keys are tried with everything else's values, and nothing is proven."""
        self.complete = False
        for part in ast.walk(node):
            if isinstance(part, ast.expr) and (key := _key(part)) is not None:
                self._add(key, (True, False, 1, 0))

    def _add(self, key: str, values: Iterable[Any]) -> None:
        self._constants.setdefault(key, []).extend(values)

    def _fitting(self, key: str) -> list[Any]:
        constants = [*self._constants[key], *self._listed(key), *self._enumerated(key)]
        kept: list[Any] = []
        for value in [*constants, *_around(constants), OTHER, True, None]:
            if not any(one == value and type(one) is type(value) for one in kept) and self._fits(key, value):
                kept.append(value)
        if len(kept) > VALUES_MAX:
            self.complete = False
        return kept[:VALUES_MAX]

    def _listed(self, key: str) -> Iterator[list[Any]]:
        """Lists that hold each combination of the values looked for."""
        sought = list(dict.fromkeys(self._searched.get(key, ())))
        if len(sought) > SUBSETS_MAX:
            self.complete = False
        for size in range(min(len(sought), SUBSETS_MAX) + 1 if sought else 0):
            yield from (list(one) for one in itertools.combinations(sought, size))

    def _enumerated(self, key: str) -> list[Any]:
        """The values its type lists, if it does."""
        try:
            schema = self._schema.key(key).schema
        except UnknownKey:
            return []
        parts = [schema, *schema.get("anyOf", ())]
        return [value for part in parts if isinstance(part, Mapping) for value in part.get("enum", ())]

    def _fits(self, key: str, value: Any) -> bool:
        try:
            self._schema.key(key).verify(encode(value))
        except UnknownKey:
            return True  # a name of the engine's
        except (Refused, NotExact):
            return False
        return True


def _key(node: ast.expr) -> str | None:
    """The key a name or `state["key"]` means."""
    if isinstance(node, ast.Name) and node.id != "state":
        return node.id
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id == "state":
        value = _literal(node.slice)
        return value if isinstance(value, str) else None
    return None


def _literal(node: ast.expr) -> Any:
    """The value of a literal; `_Absent` for anything else."""
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError):
        return _Absent


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple, set))


def _around(constants: Iterable[Any]) -> Iterator[float]:
    """Numbers between and beyond those given."""
    numbers = sorted({one for one in constants if isinstance(one, (int, float)) and not isinstance(one, bool)})
    if not numbers:
        return
    yield from (numbers[0] - 1, numbers[-1] + 1)
    for low, high in itertools.pairwise(numbers):
        yield from (low + 1, (low + high) / 2) if low + 1 < high else ((low + high) / 2,)
