"""Corners of the contract: the short way of a lone write, what each check covers, what is kept. On both backends."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any

import pytest
from claims import QUEBEC, ClaimState, Routing, Ruleset
from pydantic import BaseModel

from refold import (
    BasisRequired,
    Conflict,
    InvalidValue,
    InvariantBroken,
    NameInvalid,
    NotExact,
    NotOwner,
    Owner,
    ReducerError,
    Refused,
    RequestReused,
    Run,
    StateSchema,
    Store,
    TooLarge,
    append,
    open_store,
)

Open = Callable[..., Store]


@pytest.fixture
def run(open_new: Open) -> Run:
    """A run of the claims team that is not open yet."""
    return open_new(ClaimState).run("clm-77401", tenant="acme")


def refusals(run: Run) -> list[tuple[str | None, str | None, str]]:
    """(writer, key, reason) of each refusal on the record."""
    return [(e.actor, e.key, e.body["reason"]) for e in run.events(kinds=["state.refused"])]


def test_a_broken_invariant_blames_the_member_who_wrote(open_new: Open) -> None:
    """S4, S20: the refusal of a group's write names the member, in the error and on the record, not the group."""
    schema = {
        "keys": {"low": {"owner": "desk", "type": "integer"}, "high": {"owner": "desk", "type": "integer"}},
        "groups": {"desk": ["ann", "bob"]},
        "invariants": {"band": "low <= high"},
    }
    run = open_new(schema).run("r")
    run.write_state("high", 1, writer="ann")
    with pytest.raises(InvariantBroken) as caught:
        run.write_state("low", 2, writer="bob")
    assert (caught.value.key, caught.value.writer) == ("low", "bob")
    assert refusals(run) == [("bob", "low", "invariant")]
    assert [e.owner for e in run.events(kinds=["state.refused"])] == ["desk"]


def test_a_reversed_band_is_read_nowhere(run: Run) -> None:
    """S4: after its refusal the value is in no read, state, history, moment or fold, also in a new process."""
    run.write_state("reserve_band", (5000, 25000), writer="reserve_agent")
    with pytest.raises(InvariantBroken):
        run.write_state("reserve_band", (25000, 5000), writer="reserve_agent")
    with pytest.raises(InvariantBroken), run.transaction() as tx:
        tx.write_state("reserve_band", (25000, 5000), writer="reserve_agent")
    kept = [5000, 25000]
    assert run.read_state("reserve_band", reader="x").json == kept
    assert [v.json for v in run.history("reserve_band")] == [kept]
    assert run.state().json() == run.fold() == run.at("end").state().json() == {"reserve_band": kept}
    assert [e.key for e in run.events(kinds=["state.written"])] == ["reserve_band"]
    assert [key for _writer, key, _reason in refusals(run)] == ["reserve_band"] * 2


def test_every_kind_of_write_keeps_what_it_rests_on(run: Run) -> None:
    """S5: based_on and basis stay with an append, a delete, an awaited write and each write of a transaction."""
    rests = run.write_state("routing", QUEBEC, writer="triage_agent")
    run.write_state("reports", "a", writer="photo_agent", basis="b1", based_on=[rests])
    run.write_state("spent", 1, writer="billing", basis="b2", based_on=[rests])
    run.write_state("note", 1, writer="triage_agent")
    run.delete_state("note", writer="triage_agent", basis="b3", based_on=[rests])
    with run.transaction() as tx:
        tx.write_state("order/1", {}, writer="sales_agent", basis="b4", based_on=[rests])
        tx.write_state("facts", {"a": 1}, writer="photo_agent", basis="b5", based_on=[rests])
    for key, basis in (("reports", "b1"), ("spent", "b2"), ("note", "b3"), ("order/1", "b4"), ("facts", "b5")):
        last = run.history(key)[-1]
        assert (last.basis, last.based_on) == (basis, [("routing", 1)]), key


class Part(BaseModel):
    """A model inside a value."""

    when: datetime
    amount: Decimal
    tags: frozenset[str] = frozenset()
    pair: tuple[int, str] = (1, "x")


class Whole(BaseModel):
    """A model that holds models."""

    ruleset: Ruleset
    parts: tuple[Part, ...]


class NestedState(StateSchema):
    """Nested types, as a whole value and as elements."""

    whole: Annotated[Whole, Owner("w")]
    parts: Annotated[list[Part], Owner("w"), append]


def test_nested_types_come_back_everywhere(open_new: Open) -> None:
    """S6: nested models, zones, Decimals, enums, sets, tuples are typed in reads, states, moments and histories."""
    zone = timezone(timedelta(hours=-5))
    part = Part(when=datetime(2026, 11, 30, 2, 40, tzinfo=zone), amount=Decimal("1.10"), tags=frozenset({"b", "a"}))
    whole = Whole(ruleset=Ruleset.QUEBEC, parts=(part, part))
    with open_new(NestedState) as first:
        first.run("r").write_state("whole", whole, writer="w")
        first.run("r").write_state("parts", [part], writer="w")
    run = open_new(NestedState).run("r")
    for key, expected in (("whole", whole), ("parts", [part])):
        many = run.read_many([key], reader="x")[key]
        ways = (run.read_state(key, reader="x"), run.peek(key), run.state()[key], many, run.history(key)[0])
        for read in (*ways, run.at("end").read_state(key), run.at("end").state()[key]):
            assert read.value == expected
            assert type(read.value) is type(expected)
    assert run.peek("whole").value.parts[0].when.utcoffset() == timedelta(hours=-5)


def test_a_basis_is_required_of_every_kind_of_write(run: Run) -> None:
    """S7: deletes and writes of a transaction need the basis, too, and what is refused is on the record."""
    with pytest.raises(BasisRequired), run.transaction() as tx:
        tx.write_state("decision", "pay", writer="settlement_agent")
    run.write_state("decision", "pay", writer="settlement_agent", basis="photos")
    with pytest.raises(BasisRequired):
        run.delete_state("decision", writer="settlement_agent")
    assert run.peek("decision").value == "pay"
    assert refusals(run) == [("settlement_agent", "decision", "basis_required")] * 2
    assert [e.owner for e in run.events(kinds=["state.refused"])] == ["settlement_agent"] * 2


def test_reads_of_a_moment_and_of_deleted_keys_are_recorded(run: Run) -> None:
    """S8: a read at a moment has that version and seq; a deleted key's read has the version of its delete."""
    run.write_state("note", 1, writer="triage_agent")
    run.delete_state("note", writer="triage_agent")
    run.at("note@1").read_state("note", reader="a")
    run.read_state("note", reader="b")
    run.read_many(["note", "status"], reader="c")
    recorded = [(e.actor, e.version, e.seen_seq, e.refs) for e in run.events(kinds=["state.read"])]
    assert recorded[:2] == [("a", 1, 3, {}), ("b", 2, 4, {})]
    assert recorded[2][0] == "c"
    assert recorded[2][3] == {"keys": [["note", 2], ["status", 0]]}


def test_a_conflict_names_the_writer_after_a_restart(run: Run, open_new: Open) -> None:
    """S10: a process that knew nothing of the key names the writer of the version in the way; deletes conflict too."""
    run.write_state("reports", "a", writer="evidence_agent")
    run.write_state("reports", "b", writer="photo_agent")
    run.store.close()
    run = open_new(ClaimState).run("clm-77401", tenant="acme")
    with pytest.raises(Conflict) as caught:
        run.delete_state("reports", writer="evidence_agent", expected_version=1)
    assert (caught.value.expected, caught.value.actual, caught.value.actual_writer) == (1, 2, "photo_agent")
    with pytest.raises(Conflict):
        run.write_state("reports", "c", writer="evidence_agent", expected_version=0)
    run.store.close()
    run = open_new(ClaimState).run("clm-77401", tenant="acme")
    assert run.peek("reports").value == ["a", "b"]
    assert refusals(run) == [("evidence_agent", "reports", "conflict")] * 2


def test_versions_go_on_after_a_delete_and_a_restart(run: Run, open_new: Open) -> None:
    """S12: a new process gives a deleted key the next version; an accumulating key starts from nothing there."""
    run.write_state("note", "x", writer="triage_agent")
    run.delete_state("note", writer="triage_agent")
    run.write_state("reports", "a", writer="photo_agent")
    run.delete_state("reports", writer="photo_agent")
    run.write_state("tree", {"old": 1}, writer="photo_agent")
    run.delete_state("tree", writer="photo_agent")
    run.store.close()
    run = open_new(ClaimState).run("clm-77401", tenant="acme")
    assert run.write_state("note", "y", writer="triage_agent", expected_version=2).version == 3
    assert run.write_state("reports", "b", writer="photo_agent").version == 3
    assert run.peek("reports").value == ["b"]
    assert run.write_state("tree", {"new": 1}, writer="photo_agent").version == 3
    assert run.peek("tree").json == {"new": 1}
    assert [event.version for event in run.events() if event.key == "note"] == [1, 2, 3]


def test_a_transaction_refused_late_leaves_nothing(run: Run) -> None:
    """S13: one conflict among three owners: no key changes, no seq is taken but the refusal's, the unit is gone."""
    run.write_state("spent", 1, writer="billing")
    before = run.head_seq()
    with pytest.raises(Conflict), run.transaction() as tx:
        tx.write_state("order/1", {"n": 1}, writer="sales_agent")
        tx.write_state("spent", 5, writer="billing", expected_version=0)
        tx.write_state("routing", QUEBEC, writer="triage_agent")
    assert tx.written == []
    assert [(e.kind, e.actor, e.key) for e in run.events(after=before)] == [("state.refused", "billing", "spent")]
    assert run.state().json() == {"spent": 1}


@pytest.mark.parametrize("what", ["update", "writer", "key", "expected", "delete", "transaction"])
def test_each_part_of_a_payload_binds_its_request_id(run: Run, what: str) -> None:
    """S14: another update, writer, key, expectation, operation or unit under a used id is refused and recorded."""
    first = run.write_state("reports", "a", writer="photo_agent", request_id="q", expected_version=0)
    changed: dict[str, Any] = {"writer": "photo_agent", "request_id": "q", "expected_version": 0}
    changed |= {"writer": {"writer": "evidence_agent"}, "expected": {"expected_version": None}}.get(what, {})
    key, value = ("tags", ["a"]) if what == "key" else ("reports", "b" if what == "update" else "a")
    with pytest.raises(RequestReused):
        if what == "delete":
            run.delete_state("reports", **changed)
        elif what == "transaction":
            with run.transaction(request_id="q") as tx:
                tx.write_state("reports", "a", writer="photo_agent", expected_version=0)
                tx.write_state("facts", {}, writer="photo_agent")
        else:
            run.write_state(key, value, **changed)
    assert run.write_state("reports", "a", writer="photo_agent", request_id="q", expected_version=0) == first
    assert run.peek("reports").value == ["a"]
    assert [reason for _writer, _key, reason in refusals(run)] == ["request_reused"]


@pytest.mark.parametrize("bad", ["a\0b", "\ud800", "x" * 1025])
def test_bad_names_of_keys_are_typed_errors(open_new: Open, bad: str) -> None:
    """S16: every call that takes a key refuses one that no name can be, and nothing is stored."""
    run = open_new({"keys": {"{any*}": {"owner": "w", "type": {}}}}).run("r")
    run.write_state("k", 1, writer="w")
    calls: list[Callable[[], object]] = [
        lambda: run.write_state(bad, 1, writer="w"),
        lambda: run.delete_state(bad, writer="w"),
        lambda: run.read_state(bad, reader="w"),
        lambda: run.read_many(["k", bad], reader="w"),
        lambda: run.write_state("k", 2, writer="w", based_on=[(bad, 1)]),
        lambda: run.write_state("k", 2, writer="w", request_id=bad),
        lambda: run.append("note.added", actor=bad),
    ]
    for call in calls:
        with pytest.raises(NameInvalid):
            call()
    assert run.state().json() == {"k": 1}
    assert run.head_seq() == 3


def test_owners_and_writers_hold_any_text(open_new: Open) -> None:
    """S16, S20: members and groups with hostile names write what is theirs, and come back equal and apart."""
    names = ["it's", "50%", "a_b", "A", "a", "x') OR 1=1 --", "é", "e\u0301", "line\nbreak", "x" * 1024]
    schema = {
        "keys": {f"k{n}": {"owner": f"g {name}"[:1024], "type": {}} for n, name in enumerate(names)},
        "groups": {f"g {name}"[:1024]: [name] for name in names},
    }
    run = open_new(schema).run("r")
    for n, name in enumerate(names):
        with pytest.raises(NotOwner):
            run.write_state(f"k{n}", 0, writer=names[n - 1])
        run.write_state(f"k{n}", n, writer=name)
    run.store.close()
    run = open_new(schema).run("r")
    for n, name in enumerate(names):
        [version] = run.history(f"k{n}")
        assert (version.written_by, version.owner, version.json) == (name, f"g {name}"[:1024], n)


def test_each_reducer_error_names_key_and_writer(run: Run) -> None:
    """R3: what add, deep_merge and union cannot combine names key, writer and the type, in the error and its text."""
    run.write_state("tree", {"a": {"x": 1}}, writer="photo_agent")
    for key, update, writer, kind in (
        ("spent", None, "billing", "NoneType"),
        ("tree", {"a": "text"}, "photo_agent", "str"),
    ):
        with pytest.raises(ReducerError) as caught:
            run.write_state(key, update, writer=writer)
        assert (caught.value.key, caught.value.writer) == (key, writer)
        assert all(word in str(caught.value) for word in (key, writer, kind))
    assert [reason for _writer, _key, reason in refusals(run)] == ["reducer", "reducer"]


@pytest.mark.parametrize(
    ("reducer", "update"),
    [("append", "x"), ("union", ["x"]), ("merge", {"a": 1}), ("add", 5), ("deep_merge", {"a": 1})],
)
def test_a_text_is_never_taken_apart_by_a_new_reducer(open_new: Open, reducer: str, update: object) -> None:
    """R2: a key that held text gets an accumulating reducer: a typed error, and the text stays."""
    open_new({"keys": {"k": {"owner": "w", "type": "string"}}}).run("r").write_state("k", "hi", writer="w")
    run = open_new({"keys": {"k": {"owner": "w", "type": {}, "reducer": reducer}}}).run("r")
    for _again in range(2):
        with pytest.raises(ReducerError, match="str"):
            run.write_state("k", update, writer="w")
    assert run.peek("k").json == "hi"
    assert run.fold() == {"k": "hi"}


def test_initial_values_go_through_the_reducers(run: Run) -> None:
    """R9: an initial value that its reducer refuses is refused; a good one is combined as any update."""
    for initial in ({"spent": None}, {"tags": [[1]]}, {"tree": "text"}, {"nowhere": 1}):
        other = run.store.run(f"bad {sorted(initial)}")
        with pytest.raises(Refused):
            other.open(opened_by="intake", initial=initial)
        assert len(other.state()) == 0
        assert [(actor, key) for actor, key, _reason in refusals(other)] == [("intake", *initial)]
    run.open(opened_by="intake", initial={"reports": "a", "tags": ["b", "a"], "facts": {"x": 1}})
    assert run.state().json() == {"reports": ["a"], "tags": ["a", "b"], "facts": {"x": 1}}


def test_names_are_told_apart_by_a_new_process(open_new: Open) -> None:
    """S16: names that differ in case, form or a wildcard stay apart where nothing is remembered yet."""
    schema = {"keys": {"{any*}": {"owner": "w", "type": {}}}}
    names = ["A", "a", "a%", "a_", "ab", "é", "e\u0301", "E", " a", "a ", "\u00c9"]
    with open_new(schema) as store:
        for name in names:
            store.run(name, name).write_state(name, name, writer="w")
    for name in names:
        store = open_new(schema)
        run = store.run(name, name)
        assert (run.keys(), run.peek(name).json) == ([name], name)
        assert run.write_state(name, name, writer="w", expected_version=1).version == 2
        assert [(info.tenant, info.name) for info in store.runs(tenant=name)] == [(name, name)]
        assert [other for other in names if not run.peek(other).absent] == [name]
        store.close()


def test_max_bytes_bounds_what_accumulates(open_new: Open) -> None:
    """S15: many small updates cannot grow a value over `max_bytes`, in this process or the next."""
    for reducer, kind in (("append", "array"), ("union", "array"), ("merge", "object"), ("deep_merge", "object")):
        schema = {"keys": {"k": {"owner": "w", "type": kind, "reducer": reducer, "max_bytes": 400}}}
        updates: list[Any] = [{f"n{n}": "x" * 100} if kind == "object" else [f"{n}" + "x" * 100] for n in range(4)]
        for update in updates[:3]:
            with open_new(schema) as store:
                store.run(reducer).write_state("k", update, writer="w")
        run = open_new(schema).run(reducer)
        for too_much in (updates[3], {"x": "x" * 1000} if kind == "object" else ["x" * 1000]):
            with pytest.raises(TooLarge) as caught:
                run.write_state("k", too_much, writer="w")
            assert (caught.value.key, caught.value.writer, caught.value.path) == ("k", "w", "$")
        assert run.peek("k").version == 3


def keep(previous: object, update: object) -> object:
    """A reducer that refold does not bring along."""
    return update


def test_a_transaction_writes_what_it_was_given(open_new: Open) -> None:
    """S5: changing an object between a transaction's write and its end changes nothing, whatever the reducer."""
    reducers = ("last", "append", "merge", "deep_merge", keep)
    keys = {f"k{n}": {"owner": "w", "type": {}, "reducer": reducer} for n, reducer in enumerate(reducers)}
    run = open_new({"keys": keys}).run("r")
    value: dict[str, Any] = {"a": {"b": [1]}}
    with run.transaction() as tx:
        for key in keys:
            tx.write_state(key, value, writer="w")
        value["a"]["b"].append(2)
    given = {"a": {"b": [1]}}
    assert run.state().json() == {"k0": given, "k1": [given], "k2": given, "k3": given, "k4": given}


PLAIN: dict[str, Any] = {
    "keys": {
        "a": {"owner": "desk", "type": {}},
        "r": {"owner": "desk", "type": {}, "basis_required": True},
    },
    "groups": {"desk": ["ann", "bob"]},
}
"""No invariants: lone writes of a warm run take the committer's short way (`Appender.write_one`), which ClaimState's
invariants switch off in every test that uses it."""


@pytest.fixture
def warm(open_new: Open) -> Run:
    """A run whose key has two versions, by two members, and of which nothing waits."""
    run = open_new(PLAIN).run("r")
    run.write_state("a", 1, writer="ann")
    run.write_state("a", 2, writer="bob")
    return run


def test_the_short_way_checks_what_is_expected(warm: Run) -> None:
    """S10: an outdated or future expectation on a warm run is a conflict that names the newest writer."""
    warm.write_state("a", 3, writer="ann", expected_version=2)
    for wrong in (0, 2, 4):
        with pytest.raises(Conflict) as caught:
            warm.write_state("a", 9, writer="bob", expected_version=wrong)
        assert (caught.value.expected, caught.value.actual, caught.value.actual_writer) == (wrong, 3, "ann")
    assert [v.json for v in warm.history("a")] == [1, 2, 3]
    assert refusals(warm) == [("bob", "a", "conflict")] * 3


def test_the_short_way_writes_the_same_event(warm: Run) -> None:
    """S1, S5, S7, S20: owner, basis, based_on, expectation, turn and version are those of any other write."""
    with warm.transaction() as tx:
        tx.write_state("r", 0, writer="ann", basis="x")
    with pytest.raises(BasisRequired):
        warm.write_state("r", 1, writer="ann")
    warm.store.flush()
    warm.write_state("r", 1, writer="bob", basis="why", based_on=[("a", 2)], expected_version=1, turn=7)
    event = list(warm.events())[-1]
    assert (event.actor, event.owner, event.key, event.version, event.turn) == ("bob", "desk", "r", 2, 7)
    assert event.body == {"basis": "why", "value": 1}
    assert event.refs == {"based_on": [["a", 2]], "expected": 1}


def test_the_short_way_keeps_request_ids_and_deletes(warm: Run) -> None:
    """S12, S14: on a warm run a request id is bound, and a deleted key comes back with the next version."""
    first = warm.write_state("a", 3, writer="ann", request_id="q")
    assert warm.write_state("a", 3, writer="ann", request_id="q") == first
    with pytest.raises(RequestReused):
        warm.write_state("a", 4, writer="ann", request_id="q")
    warm.store.flush()
    assert warm.delete_state("a", writer="bob").version == 4
    assert warm.write_state("a", 5, writer="ann", expected_version=4).version == 5
    assert warm.read_state("a", reader="x").value == 5
    assert [(v.version, v.deleted) for v in warm.history("a")] == [(n, n == 4) for n in range(1, 6)]


def test_an_awaited_transaction_that_raises_writes_nothing(run: Run) -> None:
    """S13: an exception inside `async with` leaves the state as it was."""

    async def attempt() -> None:
        async with run.transaction() as tx:
            tx.write_state("spent", 5, writer="billing")
            _ = 1 / 0

    with pytest.raises(ZeroDivisionError):
        asyncio.run(attempt())
    assert run.peek("spent").absent
    assert list(run.events(kinds=["state.written"])) == []


# -- limits, names, grounds


class Colour(Enum):
    """An enum, for keys of a dict."""

    RED = "red"


class MapState(StateSchema):
    """Declared mappings."""

    rates: Annotated[dict[str, float], Owner("w")]
    nested: Annotated[dict[str, dict[str, int]], Owner("w")]
    numbered: Annotated[dict[int, str], Owner("w")]
    coloured: Annotated[dict[Colour, int], Owner("w")]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rates", {"\ud800": 1.0}),
        ("rates", dict.fromkeys(["\ud800", "\udc00"], 1.0)),
        ("nested", {"a": {"\ud800": 1}}),
        ("numbered", {1: "a", "1": "b"}),
        ("coloured", {Colour.RED: 1, "red": 2}),
    ],
)
def test_names_in_declared_mappings_are_exact_or_refused(open_new: Open, key: str, value: object) -> None:
    """S15: a lone surrogate in a member name, and two names that become one, are refused with their path."""
    run = open_new(MapState).run("r")
    with pytest.raises((NotExact, InvalidValue)) as caught:
        run.write_state(key, value, writer="w")
    assert str(caught.value.path).startswith("$")
    assert run.peek(key).absent


KILLED = """
import os, signal, sys
from refold import open_store
keys = {"a": {"owner": "w", "type": {}}, "shared": {"owner": "w", "type": {}, "scope": "tenant"}}
store = open_store(sys.argv[1], {"keys": keys})
read_from, other = store.run("one"), store.run("two")
for run in (read_from, other):
    run.write_state("a", 1, writer="w")
read_from.write_state("shared", 1, writer="w")
store.flush()
read_from.read_state("a", reader="bob")
if sys.argv[2] == "run":
    other.write_state("a", 2, writer="w")
else:
    read_from.write_state("shared", 2, writer="w")
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("kind", ["run", "scope"])
def test_reads_come_before_a_write_to_another_run(store_url: str, kind: str) -> None:
    """S19: the write, to another run or to the tenant's, survived a kill: so did the read its process made before."""
    done = subprocess.run([sys.executable, "-c", KILLED, store_url, kind], env=dict(os.environ), check=False)
    assert done.returncode == -signal.SIGKILL
    with open_store(store_url) as store:
        written = store.run("two").peek("a") if kind == "run" else store.run("one").peek("shared")
        assert written.json == 2
        assert [e.actor for e in store.run("one").events(kinds=["state.read"])] == ["bob"]


@pytest.mark.parametrize("wrong", [("routing", 99), ("routing", -1), ("nowhere", 1), ("routing", 1.7), "a1", "st"])
def test_a_write_rests_only_on_what_exists(run: Run, wrong: object) -> None:
    """S5: based_on that names no version of a key of this run is a typed error, not stored or rounded."""
    run.write_state("routing", QUEBEC, writer="triage_agent")
    with pytest.raises(Refused):
        run.write_state("status", "open", writer="triage_agent", based_on=[wrong])  # type: ignore[list-item]
    assert run.peek("status").absent
    run.store.flush()


@pytest.mark.parametrize("name", ["a\0b", "\ud800"])
def test_listing_a_tenant_that_cannot_be_is_one_typed_error(open_new: Open, name: str) -> None:
    """S16, DESIGN 2.10: both backends refuse the name alike."""
    with pytest.raises(NameInvalid):
        open_new(ClaimState).runs(tenant=name)


@pytest.mark.parametrize("key", [None, 7, ["k"]])
def test_a_key_that_is_no_text_is_a_typed_error(run: Run, key: Any) -> None:
    """S16: writing and reading under what is no text raise NameInvalid, never a TypeError."""
    run.write_state("status", "open", writer="triage_agent")
    for call in (
        lambda: run.write_state(key, 1, writer="w"),
        lambda: run.read_state(key, reader="w"),
        lambda: run.peek(key),
    ):
        with pytest.raises(NameInvalid):
            call()


@pytest.mark.parametrize("basis", ["", "  ", "\n"])
def test_an_empty_basis_is_no_basis(run: Run, basis: str) -> None:
    """S7: a key with `basis_required` refuses a basis that says nothing."""
    with pytest.raises(BasisRequired):
        run.write_state("decision", "pay", writer="settlement_agent", basis=basis)
    assert run.peek("decision").absent


def test_a_run_can_be_opened_after_a_refused_opening(run: Run) -> None:
    """R9: initial values that were refused can be given again, right this time."""
    with pytest.raises(InvalidValue):
        run.open(opened_by="intake", initial={"reserve_band": "x"})
    run.store.flush()
    run.open(opened_by="intake", initial={"reserve_band": (1, 2)})
    assert run.peek("reserve_band").value == (1, 2)


def test_a_refusal_keeps_a_typed_update(run: Run) -> None:
    """DESIGN 1: a refusal is recorded with its update, also where the update is a tuple, a set or a model."""
    with pytest.raises(NotOwner):
        run.write_state("reserve_band", (1, 2), writer="billing")
    with pytest.raises(NotOwner):
        run.write_state("routing", Routing(ruleset=Ruleset.QUEBEC), writer="billing")
    assert [e.body.get("update") for e in run.events(kinds=["state.refused"])] == [[1, 2], QUEBEC]


def test_add_names_both_types(run: Run) -> None:
    """R3: `add(1, None)` through the store names the type of the previous value as well."""
    run.write_state("spent", 1, writer="billing")
    with pytest.raises(ReducerError, match=r"int.*NoneType"):
        run.write_state("spent", None, writer="billing")


@pytest.mark.parametrize(("reducer", "update"), [("merge", {"a": "x" * 20}), ("union", ["x" * 20])])
def test_max_bytes_bounds_the_value_and_not_its_updates(open_new: Open, reducer: str, update: object) -> None:
    """S15: the same member written again and again leaves the value small: nothing is over `max_bytes`."""
    kind = "object" if reducer == "merge" else "array"
    run = open_new({"keys": {"k": {"owner": "w", "type": kind, "reducer": reducer, "max_bytes": 90}}}).run("r")
    for version in range(1, 9):
        assert run.write_state("k", update, writer="w").version == version
        assert len(run.peek("k").text) < 40


def test_max_bytes_is_the_same_in_a_new_process(open_new: Open) -> None:
    """L13, DESIGN 2.3: what a process remembers of a key's size decides nothing: 75 bytes of updates fit into 90."""
    schema = {"keys": {"k": {"owner": "w", "type": "array", "reducer": "append", "max_bytes": 90}}}
    for n in range(3):
        with open_new(schema) as store:  # in one store, all three are accepted
            assert store.run("r").write_state("k", [f"{n}" + "x" * 20], writer="w").version == n + 1
