"""A TypedDict state as it is written for agent-workflow-sdk is a state schema as it stands, in parallel branches too.

The package (imported as `agentflow`) is no dependency of refold. Where it is not installed, reducers of the same shape
stand in for its own: plain functions (current, update) -> new, and a closure for an object whose fields each have one.
"""

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Annotated, Any, TypedDict

import pytest

from refold import Run, Schema, Store, compile_schema
from refold_replay.verify import verify
from refold_store.branching import merge, open_branch
from refold_store.errors import ReducerError, Refused

Open = Callable[..., Store]
Update = dict[str, Any]


class _State(TypedDict, total=False):
    """The base class of such states."""


def _last(_current: Any, update: Any) -> Any:
    return update


def _append(current: Any, update: Any) -> list[Any]:
    more = list(update) if isinstance(update, (list, tuple)) else [update]
    return [*(current or []), *more]


def _add(current: Any, update: Any) -> Any:
    return update if current is None else current + update


def _merge(current: Any, update: Any) -> dict[str, Any]:
    return {**(current or {}), **(update or {})}


def _union(current: Any, update: Any) -> set[Any]:
    return set(current or ()) | (set(update) if isinstance(update, (set, frozenset, list, tuple)) else {update})


def _by_key(policy: Mapping[str, Callable[[Any, Any], Any]]) -> Callable[[Any, Any], dict[str, Any]]:
    def fold(current: Any, update: Any) -> dict[str, Any]:
        found = dict(current or {})
        for name, value in (update or {}).items():
            if name not in policy:
                raise KeyError(name)
            found[name] = policy[name](found.get(name), value)
        return found

    return fold


def _apply_updates(state: Mapping[str, Any], updates: Sequence[Update], reducers: Mapping[str, Any]) -> Update:
    found = dict(state)
    for update in updates:
        for name, value in update.items():
            found[name] = reducers[name](found.get(name), value)
    return found


def _channels(schema: type) -> dict[str, Any]:
    hints = schema.__annotations__
    return {name: (getattr(hint, "__metadata__", ()) or (_last,))[0] for name, hint in hints.items()}


OURS = SimpleNamespace(
    State=_State, last=_last, append=_append, add=_add, merge=_merge, union=_union, by_key=_by_key,
    apply_updates=_apply_updates, channels_from_schema=_channels,
)  # fmt: skip


@pytest.fixture(params=["the package", "its shape"])
def sdk(request: pytest.FixtureRequest) -> Any:
    """The module with State and the reducers."""
    if request.param == "its shape":
        return OURS
    from agentflow import state

    return state


KEYS = ("messages", "names", "tokens", "best", "meta", "tags", "search", "plain")


def state_class(sdk: Any) -> type:
    """A state, written as for the package."""
    policy = sdk.by_key({"intents": sdk.append, "events": sdk.last, "incumbent": sdk.last})

    class ChatState(sdk.State):  # type: ignore[misc]  # the base is chosen when the test runs
        messages: Annotated[list, sdk.append]
        names: Annotated[list[str], sdk.append]
        tokens: Annotated[int, sdk.add]
        best: Annotated[float, sdk.last]
        meta: Annotated[dict, sdk.merge]
        tags: Annotated[set, sdk.union]
        search: Annotated[dict, policy]
        plain: str

    return ChatState


def schema_of(sdk: Any) -> Schema:
    """The same as a schema: the class unchanged, beside it who may write."""
    return compile_schema(state_class(sdk), owners=dict.fromkeys(KEYS, "nodes"), groups={"nodes": ["a", "b", "c"]})


def plain(value: Any) -> Any:
    """A value as JSON has it."""
    return sorted(value, key=str) if isinstance(value, (set, frozenset)) else value


def written(run: Run, *updates: Update, writer: str = "a") -> Update:
    """The state after these updates, typed."""
    for update in updates:
        for key, value in update.items():
            run.write_state(key, value, writer=writer)
    return {key: run.peek(key).value for key in run.state()}


@pytest.mark.parametrize(
    ("key", "updates", "value"),
    [
        ("best", [1.0, 2.0], 2.0),
        ("messages", [1], [1]),
        ("messages", [[1], [2, 3]], [1, 2, 3]),
        ("messages", [[1], (2,)], [1, 2]),
        ("messages", [[1], {"a": 1}], [1, {"a": 1}]),
        ("messages", [None], [None]),
        ("tokens", [5], 5),
        ("tokens", [2, 3], 5),
        ("meta", [{"a": 1, "b": 1}, {"b": 2}], {"a": 1, "b": 2}),
        ("meta", [{"a": 1}, {}], {"a": 1}),
        ("meta", [{"a": 1}, None], {"a": 1}),
        ("tags", ["s"], {"s"}),
        ("tags", [{1}, [1, 2]], {1, 2}),
        ("tags", [frozenset({2})], {2}),
        ("search", [{"intents": [1], "events": [1]}, {"events": []}], {"intents": [1], "events": []}),
        ("search", [{"intents": [1]}, {}], {"intents": [1]}),
        ("search", [{"intents": [1]}, None], {"intents": [1]}),
        ("plain", ["x", "y"], "y"),
    ],
)
def test_reducers(open_new: Open, sdk: Any, key: str, updates: list[Any], value: Any) -> None:
    """R1 to R8: each reducer of such a state does what it says there, and the value comes back in its declared type."""
    run = open_new(schema_of(sdk)).run("job")
    found = written(run, *({key: update} for update in updates))[key]
    assert (found, type(found)) == (value, type(value))
    assert verify(run.store).ok


@pytest.mark.parametrize(
    ("key", "update"),
    [("tokens", None), ("tags", [[1]]), ("search", {"typo": 1}), ("search", 5), ("plain", 5), ("names", [5])],
)
def test_refusals(open_new: Open, sdk: Any, key: str, update: Any) -> None:
    """R2, R3, R6, R7: what a reducer or the type cannot take is refused with key and writer; the value stays."""
    run = open_new(schema_of(sdk)).run("job")
    before = written(run, {"tokens": 1, "tags": {1}, "search": {"events": [1]}, "plain": "x", "names": ["x"]})
    with pytest.raises(Refused) as refused:
        run.write_state(key, update, writer="a")
    assert (refused.value.key, refused.value.writer) == (key, "a")
    assert {name: run.peek(name).value for name in before} == before
    if (key, update) in (("tokens", None), ("search", {"typo": 1})):
        assert isinstance(refused.value, ReducerError)


def random_update(chance: random.Random) -> Update:
    """An update of one node: some of the keys."""
    choices: dict[str, Callable[[], Any]] = {
        "messages": lambda: [chance.randrange(9) for _ in range(chance.randrange(3))],
        "names": lambda: [chance.choice("xyz")],
        "tokens": lambda: chance.randrange(100),
        "best": lambda: chance.random(),
        "meta": lambda: {chance.choice("abc"): chance.randrange(9)},
        "tags": lambda: {chance.randrange(5) for _ in range(3)},
        "search": lambda: {"intents": [chance.randrange(9)], chance.choice(["events", "incumbent"]): chance.random()},
        "plain": lambda: chance.choice("xyz"),
    }
    return {key: choices[key]() for key in chance.sample(KEYS, 4)}


@pytest.mark.parametrize("seed", range(8))
def test_branches_fold_as_a_step_does(open_new: Open, sdk: Any, seed: int) -> None:
    """P1, P2: nodes side by side, each in a branch, come to what the package folds from the updates in their order."""
    chance = random.Random(seed)
    run = open_new(schema_of(sdk)).run("job")
    before, updates = random_update(chance), [random_update(chance) for _node in range(3)]
    reducers = {name: getattr(found, "reducer", found)
                for name, found in sdk.channels_from_schema(state_class(sdk)).items()}  # fmt: skip
    start = _apply_updates({}, [before], reducers)
    assert written(run, before) == start
    nodes = [open_branch(run, f"job/{name}", by="engine") for name in "abc"]
    for at in chance.sample(range(3), 3):  # whatever finishes first
        assert written(nodes[at], updates[at], writer="abc"[at]) == _apply_updates({}, [updates[at]], reducers)
    merge(run, nodes, by="engine")
    expected = _apply_updates(start, updates, reducers)
    if sdk is not OURS:
        assert sdk.apply_updates(start, updates, sdk.channels_from_schema(state_class(sdk))) == expected
    assert {key: run.peek(key).value for key in run.state()} == expected
    assert run.state().json() == {key: plain(value) for key, value in expected.items()}
    assert verify(run.store).ok


def test_a_step_twice(open_new: Open, sdk: Any) -> None:
    """P1: the same step again adds as much again: what the parent holds is not in the branches and not added twice."""
    run = open_new(schema_of(sdk)).run("job")
    for step, name in itertools.product((1, 2), "ab"):
        branch = open_branch(run, f"job/{step}{name}", by="engine")
        written(branch, {"messages": [name], "tokens": 10}, writer=name)
        if name == "b":
            merge(run, [f"job/{step}a", f"job/{step}b"], by="engine")
    assert run.state().json() == {"messages": ["a", "b", "a", "b"], "tokens": 40}


def test_what_branches_overwrite_is_named(open_new: Open, sdk: Any) -> None:
    """P2: a conflict is seen through such reducers, too: where an update is as if it had never been."""
    run = open_new(schema_of(sdk)).run("job")
    branches = [open_branch(run, f"job/{name}", by="engine") for name in "ab"]
    for name, branch in zip("ab", branches, strict=True):
        written(branch, {"best": float(ord(name)), "messages": [name], "tokens": 1, "meta": {"x": name}}, writer=name)
    conflicts = merge(run, branches, by="engine").conflicts
    assert [one["key"] for one in conflicts] == ["best", "meta"]
    assert {one["kept"] for one in conflicts} == {"job/b"}
