"""Blame: which version set each part of a value."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold import NoSuchMoment, Store, UnknownKey
from refold_replay.blame import Blame, blame
from refold_replay.diff import MISSING, same
from refold_replay.importing import import_files
from refold_replay.origins import Traced, carry, fresh, leaves
from refold_store.erasing import erase
from refold_store.errors import NotFound
from refold_store.forking import fork
from refold_store.keys import Key
from refold_store.schema import Schema

Open = Callable[..., Store]
SCALARS = st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from([0.0, -0.0, 1.0]) | st.text("ab", max_size=1)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)
KEYS: dict[str, Any] = {
    "doc": {"owner": "a", "type": "any"},
    "list": {"owner": "a", "type": "array", "reducer": "append"},
    "facts": {"owner": "a", "type": "object", "reducer": "merge"},
    "tags": {"owner": "a", "type": "array", "reducer": "union"},
    "sum": {"owner": "a", "type": "number", "reducer": "add"},
    "tree": {"owner": "a", "type": "any", "reducer": "deep_merge"},
    "house": {"owner": "a", "type": "any", "scope": "tenant"},
    "iban": {"owner": "b", "type": "any", "sensitive": True},
}


def versions(found: Blame) -> dict[str, int]:
    """Path to version."""
    return {line.path: line.version for line in found.lines}


def test_each_part_names_the_version_that_set_it(open_new: Open) -> None:
    """A leaf whose value stays equal keeps version, writer, time and basis; 1, 1.0 and true are three values."""
    run = open_new({"keys": KEYS}).run("r")
    run.write_state("doc", {"a": 1, "b": {"c": [1, 2], "d": {}}}, writer="a", basis="first")
    second = run.write_state("doc", {"a": True, "b": {"c": [1, 3], "d": {}}, "e": []}, writer="a", basis="second")
    run.write_state("doc", {"a": True, "b": {"c": [1, 3], "d": {"x": 1}}, "e": []}, writer="a")
    found = blame(run, "doc")
    assert versions(found) == {"$.a": 2, "$.b.c[0]": 1, "$.b.c[1]": 2, "$.b.d.x": 3, "$.e": 2}
    line = found.lines[0]
    assert (line.value, line.writer, line.owner, line.seq, line.basis) == (True, "a", "a", second.seq, "second")
    assert line.recorded_at == run.history("doc")[1].recorded_at
    assert (found.seq, found.version, found.state) == (run.head_seq(), 3, "value")


def test_it_is_as_of_a_moment(open_new: Open) -> None:
    """An older moment is blamed with what was there then, and the answer names its seq."""
    run = open_new({"keys": KEYS}).run("r")
    first = run.write_state("doc", {"a": 1}, writer="a")
    run.write_state("doc", {"a": 2}, writer="a")
    found = blame(run, "doc", at="doc@1")
    assert (versions(found), found.seq) == ({"$.a": 1}, first.seq)
    assert blame(run, "doc", at=0).state == "absent"


def test_after_a_delete_all_is_new(open_new: Open) -> None:
    """A value written again after a delete is of the later version; the delete itself has no lines."""
    run = open_new({"keys": KEYS}).run("r")
    run.write_state("doc", {"a": 1}, writer="a")
    run.delete_state("doc", writer="a")
    gone = blame(run, "doc")
    assert (gone.state, gone.version, gone.lines) == ("deleted", 2, [])
    run.write_state("doc", {"a": 1}, writer="a")
    assert versions(blame(run, "doc")) == {"$.a": 3}


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ([1, 2], [1, 2, 3], [1, 1, 2]),
        ([1, 2, 3], [2, 3], [1, 1]),
        ([1, 2, 3], [1, 9, 2, 3], [1, 2, 1, 1]),
        ([1, 2, 3], [1, 9, 3], [1, 2, 1]),
        ([{"x": 1}, {"x": 2}], [{"x": 1}, {"x": 3}], [1, 2]),
        ([1, 1], [1, 1, 1], [1, 1, 2]),
        ([], [1], [2]),
        ([[1], [2]], [[0], [1], [2]], [2, 1, 1]),
    ],
)
def test_lists_keep_what_is_before_and_behind_the_change(before: Any, after: Any, expected: list[int]) -> None:
    """Items before and behind what was put in or taken out keep their origins."""
    tree = carry(before, fresh(before, 1), after, 2)
    assert [origin for _path, _value, origin in leaves(after, tree)] == expected


@given(JSON, JSON, JSON)
def test_every_leaf_has_an_origin_that_is_true(first: Any, second: Any, third: Any) -> None:
    """Leaves and origins fit the value, nothing is changed, and a leaf's origin is a version that held its value."""
    documents = {1: first, 2: second, 3: third}
    before = copy.deepcopy(documents)
    tree = carry(second, carry(first, fresh(first, 1), second, 2), third, 3)
    found = list(leaves(third, tree))
    assert same(documents[1], before[1])
    assert same(documents[2], before[2])
    for path, value, origin in found:
        assert origin in documents
        assert any(same(value, other) for _path, other, _ in leaves(documents[origin], fresh(documents[origin], 0)))
        if len(found) > 1:
            assert path != "$"
    if same(second, third):
        assert 3 not in [origin for *_, origin in found]


def naive(key: Key, updates: list[Any]) -> dict[str, int]:
    """Path (or for a set: text) to version, by folding all updates for each version anew."""
    tree: Any = None
    value: Any = MISSING
    for version in range(1, len(updates) + 1):
        folded = key.fold_many(None, copy.deepcopy(updates[:version]))
        if key.reducer.name == "union":
            known = dict(zip(map(repr, value), tree, strict=True)) if value else {}
            tree = [known.get(repr(member), version) for member in folded] or (tree if value == [] else version)
        else:
            tree = carry(value, tree, folded, version)
        value = folded
    return {path: origin for path, _value, origin in leaves(value, tree)}


UPDATES = {
    "list": st.lists(JSON, max_size=3),
    "facts": st.dictionaries(st.sampled_from("abc"), JSON, max_size=3),
    "tags": st.lists(SCALARS, max_size=3),
    "sum": st.integers(-1, 1),
    "tree": st.dictionaries(st.sampled_from("ab"), st.dictionaries(st.sampled_from("ab"), SCALARS, max_size=2)),
}


@pytest.mark.parametrize("name", sorted(UPDATES))
@given(data=st.data())
def test_updates_give_what_whole_values_would(name: str, data: st.DataObject) -> None:
    """For each reducer, update by update gives the value of the fold, and the origins a comparison of values gives."""
    key = SCHEMA.key(name)
    updates = data.draw(st.lists(UPDATES[name], min_size=1, max_size=6))
    updates = [key.reducer.normal(update) for update in updates]
    traced = Traced()
    for version, update in enumerate(copy.deepcopy(updates), 1):
        traced.update(key, update, version)
    assert same(traced.value, key.fold_many(None, updates))
    assert {path: origin for path, _, origin in leaves(traced.value, traced.tree)} == naive(key, updates)


def _schema() -> Schema:
    from refold import compile_schema

    return compile_schema({"keys": KEYS})


SCHEMA = _schema()


def test_keys_that_store_updates(open_new: Open) -> None:
    """Appended items, merged members and members of a set keep the version that brought them."""
    run = open_new({"keys": KEYS}).run("r")
    for update in (["x"], ["y", "z"], ["w"]):
        run.write_state("list", update, writer="a")
    for update in ({"a": 1, "b": 2}, {"b": 3}, {"b": 3, "c": {}}):
        run.write_state("facts", update, writer="a")
    for update in (["m"], ["a"], ["m", "z"]):
        run.write_state("tags", update, writer="a")
    assert versions(blame(run, "list")) == {"$[0]": 1, "$[1]": 2, "$[2]": 2, "$[3]": 3}
    assert versions(blame(run, "facts")) == {"$.a": 1, "$.b": 2, "$.c": 3}
    tags = blame(run, "tags")
    assert [(line.value, line.version) for line in tags.lines] == [("a", 2), ("m", 1), ("z", 3)]


def test_a_change_of_reducer_is_no_break(open_new: Open) -> None:
    """Each version is folded as it was declared then; what stays equal across the change keeps its version."""
    first = open_new({"keys": KEYS}).run("r")
    first.write_state("list", ["x"], writer="a")
    first.write_state("list", ["y"], writer="a")
    run = open_new({"keys": {**KEYS, "list": {"owner": "a", "type": "array"}}}).run("r")
    run.write_state("doc", 1, writer="a")
    assert versions(blame(run, "list")) == {"$[0]": 1, "$[1]": 2}
    run.write_state("list", ["x", "z"], writer="a")
    again = open_new({"keys": {**KEYS, "list": {"owner": "a", "type": "array", "reducer": "append", "max_bytes": 99}}})
    again.run("r").write_state("list", ["v"], writer="a")
    assert versions(blame(again.run("r"), "list")) == {"$[0]": 1, "$[1]": 3, "$[2]": 4}


def test_what_an_erased_version_set_is_not_known(open_new: Open) -> None:
    """After an erased value the next one is named as uncertain; an erased update counts as none."""
    store = open_new({"keys": KEYS})
    run = store.run("r")
    run.write_state("doc", {"a": 1}, writer="a")
    run.write_state("doc", {"a": 1, "b": 2}, writer="a")
    run.write_state("list", ["x"], writer="a")
    run.write_state("list", ["y"], writer="a")
    for key in ("doc", "list"):
        erase(store, "r", key=key, version=2, by="dpo", reason="asked for")
    gone = blame(run, "doc")
    assert (gone.state, gone.erased, gone.lines) == ("erased", [2], [])
    run.write_state("doc", {"a": 1, "b": 3}, writer="a")
    run.write_state("doc", {"a": 1, "b": 4}, writer="a")
    found = blame(run, "doc")
    assert [(line.path, line.version, line.uncertain) for line in found.lines] == [("$.a", 3, True), ("$.b", 4, False)]
    assert found.erased == [2]
    rest = blame(run, "list")
    assert [(line.path, line.version, line.uncertain) for line in rest.lines] == [("$[0]", 1, False)]
    assert rest.erased == [2]
    erase(store, "r", key="list", by="dpo", reason="asked for")
    assert (blame(run, "list").state, blame(run, "list").lines) == ("erased", [])


def test_a_fork_is_blamed_through_its_past(open_new: Open) -> None:
    """What a fork inherits keeps its versions, and what the original did later does not show."""
    run = open_new({"keys": KEYS}).run("r")
    run.write_state("doc", {"a": 1, "b": 1}, writer="a")
    other = fork(run, "f", by="dana")
    run.write_state("doc", {"a": 2, "b": 1}, writer="a")
    other.write_state("doc", {"a": 1, "b": 3}, writer="a")
    assert versions(blame(other, "doc")) == {"$.a": 1, "$.b": 2}
    assert versions(blame(run, "doc")) == {"$.a": 2, "$.b": 1}


def test_one_path_and_what_is_not_there(open_new: Open) -> None:
    """`path` keeps a part and all below; what is not there is an error, a key never written an answer."""
    run = open_new({"keys": KEYS}).run("r")
    run.write_state("doc", {"a": {"x": 1}, "ab": 2, "l": [1, 2]}, writer="a")
    assert list(versions(blame(run, "doc", path="$.a"))) == ["$.a.x"]
    assert list(versions(blame(run, "doc", path="$.l[1]"))) == ["$.l[1]"]
    with pytest.raises(NotFound, match=r"nothing at '\$\.z'; it has \$\.a\.x, \$\.ab"):
        blame(run, "doc", path="$.z")
    with pytest.raises(UnknownKey):
        blame(run, "dok")
    assert (blame(run, "facts").state, blame(run, "facts").version) == ("absent", 0)


def test_keys_of_a_scope(open_new: Open) -> None:
    """A key of the tenant's is blamed in its own run; a moment of this one says nothing about it."""
    run = open_new({"keys": KEYS}).run("r")
    run.write_state("doc", 1, writer="a")
    run.write_state("house", {"rule": 1}, writer="a")
    assert versions(blame(run, "house")) == {"$.rule": 1}
    with pytest.raises(NoSuchMoment, match="has scope 'tenant'"):
        blame(run, "house", at=1)
    assert blame(run, "house").sensitive is False
    run.write_state("iban", "DE02", writer="b")
    assert blame(run, "iban").sensitive is True


def test_it_agrees_with_a_walk_backwards_on_real_runs(open_new: Open, shared_data: Callable[[str], Path]) -> None:
    """On recorded runs a leaf's version is the oldest, back from the newest, that holds its value at its path."""
    folder = shared_data("tau-retail/dev")
    store = open_new()
    import_files(store, [folder / "events.jsonl.gz"], seed=folder / "seed.jsonl.gz")
    seen = 0
    for info in store.runs():
        run = store.run(info.name)
        names = run.keys()
        for key in names:
            documents = [MISSING if read.absent else read.json for read in run.history(key)]
            flat = [{path: value for path, value, _ in leaves(one, fresh(one, 0))} for one in documents]
            for line in blame(run, key).lines:
                first = len(flat)
                while first > 1 and same(flat[first - 2].get(line.path, MISSING), line.value):
                    first -= 1
                assert (line.version, line.value) == (first, flat[-1][line.path])
                seen += line.version > 1
    assert seen > 100
