"""Contract of writing: owners, versions, checks, refusals. Each test runs on SQLite and on PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated

import pytest
from claims import ONTARIO, QUEBEC, ClaimState, Routing, Ruleset

from refold import (
    ABSENT,
    BasisRequired,
    ConfigError,
    Conflict,
    InvalidValue,
    InvariantBroken,
    NoSuchMoment,
    NotExact,
    NotOwner,
    Owner,
    ReducerError,
    RequestReused,
    Run,
    SchemaChanged,
    StateSchema,
    Store,
    TooLarge,
    TransactionInvalid,
    UnknownKey,
    compile_schema,
    fork,
    open_store,
    verify,
)

Open = Callable[..., Store]


@pytest.fixture
def run(open_new: Open) -> Run:
    """A run of the claims team that is not open yet."""
    return open_new(ClaimState).run("clm-77401", tenant="acme")


def refusals(run: Run) -> list[tuple[str | None, str | None, str]]:
    """(writer, key, reason) of each refusal on the record."""
    return [(e.actor, e.key, e.body["reason"]) for e in run.events(kinds=["state.refused"])]


def test_versions_count_per_key_and_run(open_new: Open) -> None:
    """A first write makes version 1, the next 2; other keys and other runs count separately."""
    store = open_new(ClaimState)
    run, other = store.run("clm-77401"), store.run("clm-77402")
    assert run.write_state("routing", QUEBEC, writer="triage_agent").version == 1
    assert run.write_state("routing", ONTARIO, writer="triage_agent").version == 2
    assert run.write_state("status", "open", writer="triage_agent").version == 1
    assert other.write_state("routing", QUEBEC, writer="triage_agent").version == 1


def test_only_the_owner_writes(run: Run) -> None:
    """Another agent's write is refused, named, on the record, and changes nothing."""
    run.write_state("routing", QUEBEC, writer="triage_agent")
    with pytest.raises(NotOwner) as caught:
        run.write_state("routing", ONTARIO, writer="evidence_agent")
    assert (caught.value.writer, caught.value.key, caught.value.owner) == ("evidence_agent", "routing", "triage_agent")
    assert all(word in str(caught.value) for word in ("evidence_agent", "routing", "triage_agent"))
    assert run.peek("routing").json == QUEBEC
    assert run.peek("routing").version == 1
    assert refusals(run) == [("evidence_agent", "routing", "owner")]


def test_a_refused_write_opens_a_run(run: Run) -> None:
    """A refusal is on the record even when it was the run's first call."""
    with pytest.raises(NotOwner):
        run.write_state("routing", ONTARIO, writer="evidence_agent")
    assert [event.kind for event in run.events()] == ["run.opened", "schema.declared", "state.refused"]
    assert run.peek("routing").absent


def test_unknown_keys_are_typed_errors(run: Run) -> None:
    """An unknown key names near ones, is recorded when written, and is never a KeyError."""
    with pytest.raises(UnknownKey) as caught:
        run.write_state("routin", QUEBEC, writer="triage_agent")
    assert "routing" in caught.value.near
    assert not isinstance(caught.value, KeyError)
    assert refusals(run) == [("triage_agent", "routin", "unknown_key")]
    with pytest.raises(UnknownKey, match="routing"):
        run.read_state("routin", reader="triage_agent")


def test_a_reversed_band_is_refused(run: Run) -> None:
    """A value that breaks its rule can never be read; a right one is accepted."""
    with pytest.raises(InvariantBroken) as caught:
        run.write_state("reserve_band", (25000, 5000), writer="reserve_agent")
    assert (caught.value.key, caught.value.writer) == ("reserve_band", "reserve_agent")
    assert run.peek("reserve_band").absent
    run.write_state("reserve_band", (5000, 25000), writer="reserve_agent")
    assert run.peek("reserve_band").value == (5000, 25000)
    with pytest.raises(InvalidValue, match=r"\$\[1\]"):
        run.write_state("reserve_band", (1, "x"), writer="reserve_agent")


def test_the_owner_is_checked_before_the_value(run: Run) -> None:
    """A stranger learns nothing about the type: the owner check comes first."""
    with pytest.raises(NotOwner):
        run.write_state("reserve_band", "nonsense", writer="evidence_agent")


def test_values_are_copies(run: Run) -> None:
    """Changing what was passed in or handed out never changes a later read."""
    value = {"a": [1]}
    run.write_state("order/1", value, writer="sales_agent")
    value["a"].append(2)
    got = run.read_state("order/1", reader="x")
    got.value["a"].append(3)
    assert got.value == {"a": [1]}
    assert run.read_state("order/1", reader="x").value == {"a": [1]}


def test_writes_state_what_they_rest_on(run: Run) -> None:
    """`based_on` takes reads, results of writes and pairs, and is kept beside the write."""
    first = run.write_state("routing", QUEBEC, writer="triage_agent")
    got = run.read_state("routing", reader="settlement_agent")
    run.write_state("decision", "pay", writer="settlement_agent", basis="ok", based_on=[first, got, ("routing", 1)])
    assert run.history("decision")[0].based_on == [("routing", 1)] * 3


def test_declared_types_come_back(run: Run, open_new: Open) -> None:
    """Model, enum, tuple, set, Literal, datetime and Decimal read back equal and typed, after a restart too."""
    when = datetime(2026, 11, 30, 2, 40, 0, 123456, tzinfo=UTC)
    values = {
        "routing": (Routing(ruleset=Ruleset.QUEBEC), "triage_agent"),
        "reserve_band": ((1, 2), "reserve_agent"),
        "status": ("open", "triage_agent"),
        "opened": (when, "triage_agent"),
        "amount": (Decimal("10.10"), "billing"),
        "tags": ({"b", "a"}, "photo_agent"),
    }
    for key, (value, writer) in values.items():
        run.write_state(key, value, writer=writer)
    run.store.close()
    again = open_new(ClaimState).run("clm-77401", tenant="acme")
    for key, (value, _writer) in values.items():
        back = again.read_state(key, reader="x").value
        assert back == value
        assert type(back) is type(value)


def test_a_basis_can_be_required(run: Run) -> None:
    """A key with `basis_required` refuses a write without one."""
    with pytest.raises(BasisRequired):
        run.write_state("decision", "pay", writer="settlement_agent")
    run.write_state("decision", "pay", writer="settlement_agent", basis="three photos agree")
    assert run.peek("decision").basis == "three photos agree"
    with pytest.raises(InvalidValue, match="basis"):
        run.write_state("decision", "pay", writer="settlement_agent", basis="\ud800")


def test_conflicts_carry_both_versions(run: Run) -> None:
    """An outdated `expected_version` stores nothing and names expected, actual and the other writer."""
    run.write_state("reports", "a", writer="evidence_agent", expected_version=0)
    run.write_state("reports", "b", writer="photo_agent", expected_version=1)
    with pytest.raises(Conflict) as caught:
        run.write_state("reports", "c", writer="evidence_agent", expected_version=1)
    error = caught.value
    assert (error.expected, error.actual, error.actual_writer) == (1, 2, "photo_agent")
    assert run.peek("reports").value == ["a", "b"]
    assert refusals(run) == [("evidence_agent", "reports", "conflict")]


def test_conflicts_see_other_stores(run: Run, open_new: Open) -> None:
    """A head remembered by one store never hides what another wrote: no false conflict, no missed one."""
    other = open_new(ClaimState).run("clm-77401", tenant="acme")
    run.write_state("counter", 1, writer="counter")
    other.write_state("counter", 2, writer="counter", expected_version=1)
    assert run.write_state("counter", 3, writer="counter", expected_version=2).version == 3
    with pytest.raises(Conflict):
        other.write_state("counter", 4, writer="counter", expected_version=2)
    assert other.write_state("counter", 4, writer="counter").version == 4


def test_deletes_are_versions(run: Run) -> None:
    """A delete takes a version, keeps the history, reads as absent; the next write goes on from there."""
    run.write_state("note", "x", writer="triage_agent")
    assert run.delete_state("note", writer="triage_agent").version == 2
    got = run.read_state("note", reader="x")
    assert got.absent
    assert got.deleted
    assert got.version == 2
    assert got.value is ABSENT
    assert run.write_state("note", "y", writer="triage_agent").version == 3
    assert [(v.version, v.deleted) for v in run.history("note")] == [(1, False), (2, True), (3, False)]
    with pytest.raises(NotOwner):
        run.delete_state("note", writer="billing")


def test_a_delete_empties_what_accumulates(run: Run) -> None:
    """After a delete an accumulating key starts from nothing."""
    run.write_state("reports", ["a", "b"], writer="photo_agent")
    run.delete_state("reports", writer="photo_agent")
    run.write_state("reports", "c", writer="photo_agent")
    assert run.peek("reports").value == ["c"]
    assert run.history("reports")[0].value == ["a", "b"]


def test_a_transaction_is_all_or_none(run: Run) -> None:
    """Several keys and owners commit together, each with its own version, or not at all."""
    with run.transaction() as tx:
        tx.write_state("order/1", {"n": 1}, writer="sales_agent")
        tx.write_state("spent", 5, writer="billing")
    assert [(w.key, w.version) for w in tx.written] == [("order/1", 1), ("spent", 1)]
    events = [e for e in run.events() if e.kind == "state.written"]
    assert {e.txn for e in events} == {events[0].seq}
    with pytest.raises(Conflict), run.transaction() as tx:
        tx.write_state("order/1", {"n": 2}, writer="sales_agent")
        tx.write_state("spent", 5, writer="billing", expected_version=7)
    assert run.peek("order/1").version == 1
    assert run.peek("spent").value == 5


def test_a_transaction_that_raises_writes_nothing(run: Run) -> None:
    """An exception in the block, or a refused key, leaves the state as it was."""
    with pytest.raises(ZeroDivisionError), run.transaction() as tx:
        tx.write_state("spent", 5, writer="billing")
        _ = 1 / 0
    with pytest.raises(NotOwner), run.transaction() as tx:
        tx.write_state("spent", 5, writer="billing")
        tx.write_state("order/1", {}, writer="billing")
    assert run.peek("spent").absent


def test_a_transaction_names_a_key_once(run: Run) -> None:
    """A second write of a key, and a write after the end, are typed errors."""
    with run.transaction() as tx:
        tx.write_state("spent", 5, writer="billing")
        with pytest.raises(TransactionInvalid, match="once"):
            tx.write_state("spent", 6, writer="billing")
    with pytest.raises(TransactionInvalid, match="ended"):
        tx.write_state("order/1", {}, writer="sales_agent")


def test_invariants_hold_at_the_end_of_a_transaction(run: Run) -> None:
    """A rule across keys is checked once, on what the transaction leaves; missing keys leave it open."""
    run.write_state("spent", 5, writer="billing")
    with pytest.raises(InvariantBroken, match="cap"):
        run.write_state("reserve_cap", 4, writer="reserve_agent")
    run.write_state("reserve_cap", 10, writer="reserve_agent")
    with pytest.raises(InvariantBroken):
        run.write_state("spent", 6, writer="billing")
    with run.transaction() as tx:
        tx.write_state("spent", 6, writer="billing")
        tx.write_state("reserve_cap", 20, writer="reserve_agent")
    assert run.state().json() == {"spent": 11, "reserve_cap": 20}


def test_request_ids_are_bound_once(run: Run, open_new: Open) -> None:
    """The same payload returns the first result, also after a restart and after a conflict; another is refused."""
    first = run.write_state("counter", 1, writer="counter", request_id="a1", expected_version=0)
    assert run.write_state("counter", 1, writer="counter", request_id="a1", expected_version=0) == first
    run.store.close()
    run = open_new(ClaimState).run("clm-77401", tenant="acme")
    assert run.write_state("counter", 1, writer="counter", request_id="a1", expected_version=0) == first
    with pytest.raises(RequestReused):
        run.write_state("counter", 2, writer="counter", request_id="a1", expected_version=0)
    assert run.peek("counter").version == 1


def test_request_ids_bind_transactions_and_only_accepted_ones(run: Run) -> None:
    """A repeated transaction returns its versions; a refused request leaves its id free."""
    with pytest.raises(InvariantBroken):
        run.write_state("reserve_band", (2, 1), writer="reserve_agent", request_id="b")
    run.write_state("reserve_band", (1, 2), writer="reserve_agent", request_id="b")
    results = []
    for _ in range(2):
        with run.transaction(request_id="t") as tx:
            tx.write_state("order/1", {"n": 1}, writer="sales_agent")
            tx.write_state("spent", 5, writer="billing")
        results.append(tx.written)
    assert results[0] == results[1]
    assert run.peek("spent").value == 5


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (float("nan"), "$"),
        ({"a": [1, float("inf")]}, "$.a[1]"),
        ({"a": {"b": -float("inf")}}, "$.a.b"),
        ("\ud800", "$"),
        ({"a": b"x"}, "$.a"),
        ({1: "a", "1": "b"}, "$"),
        ({"a": object()}, "$.a"),
        ({"a": (1, 2)}, "$.a"),
    ],
)
def test_what_has_no_exact_form_is_refused(run: Run, value: object, path: str) -> None:
    """Values that JSON would change are refused with their path before the log."""
    with pytest.raises(NotExact) as caught:
        run.write_state("any", value, writer="triage_agent")
    assert str(caught.value.path).startswith(path)
    assert refusals(run) == [("triage_agent", "any", "not_exact")]


def test_cycles_and_large_values_are_refused(run: Run) -> None:
    """A cycle and a value over `max_bytes` are typed errors."""
    loop: list[object] = []
    loop.append(loop)
    with pytest.raises(NotExact):
        run.write_state("any", loop, writer="triage_agent")
    with pytest.raises(TooLarge):
        run.write_state("small", "x" * 30, writer="triage_agent")


@pytest.mark.parametrize(
    "value",
    [
        *(1e22, 1e100, -0.0, 1.0, 2**63, 2**64, -(2**64), 10**400, True, 1, None),
        *("", "a\0b", "🦊é", "x" * 1_000_000),
        *([], {}, [1, 1.0], {"z": 1, "a": {"é": 2}}, {"a\0b": 1}),
    ],
)
def test_what_is_exact_is_kept(run: Run, value: object) -> None:
    """Floats stay floats, integers stay whole, text stays text; the stored text is canonical."""
    run.write_state("any", value, writer="triage_agent")
    got = run.read_state("any", reader="x")
    assert repr(got.value) == repr(value) or got.value == value
    assert type(got.value) is type(value)
    assert not got.absent


def test_nesting_100_deep_is_kept(run: Run) -> None:
    """Deep nesting comes back equal."""
    value: object = 1
    for _ in range(100):
        value = [value]
    run.write_state("any", value, writer="triage_agent")
    assert run.peek("any").value == value


def test_groups_write_as_their_members(run: Run) -> None:
    """Any member writes a group's key, nobody else does; the record names member and group."""
    run.write_state("reports", "a", writer="photo_agent")
    run.write_state("reports", "b", writer="evidence_agent")
    for stranger in ("research", "triage_agent"):
        with pytest.raises(NotOwner):
            run.write_state("reports", "c", writer=stranger)
    assert [(v.written_by, v.owner) for v in run.history("reports")] == [
        ("photo_agent", "research"),
        ("evidence_agent", "research"),
    ]


def test_a_key_has_one_owner() -> None:
    """Two declared owners are a configuration error."""
    with pytest.raises(ConfigError):
        compile_schema({"keys": {"a": {"owner": ["x", "y"], "type": "string"}}})


def test_reducers_run_on_typed_values(run: Run) -> None:
    """Each accumulating key combines updates by its reducer; a wrong update names key, writer and types."""
    run.write_state("spent", 2, writer="billing")
    run.write_state("spent", 3, writer="billing")
    run.write_state("tags", {"b"}, writer="photo_agent")
    run.write_state("tags", ["a", "b"], writer="photo_agent")
    run.write_state("facts", {"a": 1, "b": 1}, writer="photo_agent")
    run.write_state("facts", {"b": 2}, writer="photo_agent")
    run.write_state("tree", {"a": {"x": 1}, "b": 1}, writer="photo_agent")
    run.write_state("tree", {"a": {"y": 2}}, writer="photo_agent")
    assert run.state().json() == {
        "spent": 5,
        "tags": ["a", "b"],
        "facts": {"a": 1, "b": 2},
        "tree": {"a": {"x": 1, "y": 2}, "b": 1},
    }
    assert run.peek("tags").value == {"a", "b"}
    for key, update, writer in (("spent", None, "billing"), ("tree", {"a": "text"}, "photo_agent")):
        with pytest.raises((ReducerError, InvalidValue)) as caught:
            run.write_state(key, update, writer=writer)
        assert (caught.value.key, caught.value.writer) == (key, writer)


def test_initial_values_are_the_first_events(run: Run) -> None:
    """They pass schema and reducers, stand in the owner's name, and only open a run."""
    run.open(opened_by="intake", initial={"routing": QUEBEC, "spent": 5})
    kinds = [(e.kind, e.actor, e.owner, e.key) for e in run.events()]
    assert kinds == [
        ("run.opened", "intake", None, None),
        ("schema.declared", "intake", None, None),
        ("state.written", "intake", "triage_agent", "routing"),
        ("state.written", "intake", "billing", "spent"),
    ]
    run.write_state("spent", 5, writer="billing")
    assert run.peek("spent").value == 10
    with pytest.raises(TransactionInvalid, match="open"):
        run.open(opened_by="intake", initial={"status": "open"})


def test_bad_initial_values_open_nothing_silently(run: Run) -> None:
    """An initial value that does not fit is refused and no value is stored."""
    with pytest.raises(InvalidValue):
        run.open(opened_by="intake", initial={"spent": 1, "reserve_band": "x"})
    assert len(run.state()) == 0


def test_a_run_only_moves_forward(open_new: Open) -> None:
    """A process that holds a schema the run has left gets SchemaChanged; the newer one goes on."""
    old = {"keys": {"a": {"owner": "x", "type": {"type": "string"}}}}
    new = {"keys": {"a": {"owner": "x", "type": {"type": ["string", "integer"]}}}}
    first, second = open_new(old).run("r"), open_new(new).run("r")
    first.write_state("a", "1", writer="x")
    second.write_state("a", 2, writer="x")
    with pytest.raises(SchemaChanged):
        first.write_state("a", "3", writer="x")
    assert second.write_state("a", 4, writer="x").version == 3
    assert [e.kind for e in second.events(kinds=["schema.declared"])] == ["schema.declared"] * 2


def test_a_changed_reducer_keeps_the_past(open_new: Open) -> None:
    """Values from before a change of reducer read as they were; the first write after it carries the whole value."""
    old = {"keys": {"a": {"owner": "x", "type": {"type": "array"}, "reducer": "append"}}}
    new = {"keys": {"a": {"owner": "x", "type": {"type": "array"}, "reducer": "union"}}}
    first = open_new(old).run("r")
    first.write_state("a", [2, 1], writer="x")
    first.write_state("a", [1], writer="x")
    second = open_new(new).run("r")
    second.write_state("a", [3, 1], writer="x")
    assert [v.value for v in second.history("a")] == [[2, 1], [2, 1, 1], [1, 2, 3]]
    assert second.at("a@2").read_state("a").value == [2, 1, 1]
    assert open_new().run("r").peek("a").value == [1, 2, 3]


def test_scoped_keys_live_in_runs_of_their_own(open_new: Open) -> None:
    """A tenant's key is shared by its runs, a global one by all; the read is recorded in the reader's run."""
    store = open_new(ClaimState)
    one, two, other = store.run("a", "acme"), store.run("b", "acme"), store.run("a", "acme-corp")
    one.write_state("status", "open", writer="triage_agent")
    one.write_state("house_rule", "h", writer="triage_agent")
    one.write_state("world_rule", "w", writer="triage_agent")
    assert two.peek("house_rule").value == "h"
    assert other.peek("house_rule").absent
    assert other.peek("world_rule").value == "w"
    assert one.read_state("house_rule", reader="z").value == "h"
    reads = list(one.events(kinds=["state.read"]))
    assert [(e.actor, e.key, e.version, e.refs) for e in reads] == [("z", "house_rule", 1, {"scope": "tenant"})]
    with pytest.raises(TransactionInvalid), one.transaction() as tx:
        tx.write_state("house_rule", "x", writer="triage_agent")
    assert [v.value for v in two.history("house_rule")] == ["h"]
    with pytest.raises(NoSuchMoment, match="scope"):
        one.at("end").read_state("house_rule")


def test_invariants_compare_decimals_and_times_as_what_they_are(open_new: Open) -> None:
    """A limit of 50.00 stops 100 and lets 8 pass, with Python types and with the log's declaration alone."""

    class Shop(StateSchema):
        limit: Annotated[Decimal, Owner("billing")]
        charged: Annotated[Decimal, Owner("billing")]
        opens: Annotated[datetime, Owner("desk")]
        closes: Annotated[datetime, Owner("desk")]
        invariants = {"credit": "charged <= limit", "hours": "opens <= closes"}  # noqa: RUF012

    run = open_new(Shop).run("r")
    run.write_state("limit", Decimal("50.00"), writer="billing")
    with pytest.raises(InvariantBroken, match="credit"):
        run.write_state("charged", Decimal("100"), writer="billing")
    run.write_state("charged", Decimal("8"), writer="billing")
    run.write_state("opens", datetime.fromisoformat("2026-01-01T12:00:00+00:00"), writer="desk")
    run.write_state("closes", datetime.fromisoformat("2026-01-01T11:30:00-02:00"), writer="desk")
    plain = open_new().run("r")
    with pytest.raises(InvariantBroken, match="credit"):
        plain.write_state("charged", "1E+2", writer="billing")
    plain.write_state("charged", "9.5", writer="billing")
    with pytest.raises(InvalidValue):
        plain.write_state("limit", "abc", writer="billing")
    assert run.peek("charged").value == Decimal("9.5")


def test_an_invariant_that_cannot_be_judged_refuses(open_new: Open) -> None:
    """A comparison without a meaning is a recorded refusal, not an accepted write."""
    schema = {
        "keys": {"a": {"owner": "x", "type": {}}, "b": {"owner": "x", "type": {}}},
        "invariants": {"order": "a <= b"},
    }
    run = open_new(schema).run("r")
    run.write_state("a", 1, writer="x")
    with pytest.raises(InvariantBroken, match="cannot be judged"):
        run.write_state("b", "text", writer="x")
    assert refusals(run) == [("x", "b", "invariant")]


def test_grounds_must_exist(run: Run) -> None:
    """A write cannot rest on a version that was never made; one of its own transaction and an absence are fine."""
    run.write_state("routing", QUEBEC, writer="triage_agent")
    with pytest.raises(InvalidValue, match="routing@9"):
        run.write_state("status", "open", writer="triage_agent", based_on="routing@9")
    run.write_state("status", "open", writer="triage_agent", based_on=["routing@1", ("note", 0)])
    with run.transaction() as tx:
        tx.write_state("order/1", {}, writer="sales_agent")
        tx.write_state("spent", 1, writer="billing", based_on=[("order/1", 1)])
    assert run.history("spent")[0].based_on == [("order/1", 1)]
    with pytest.raises(InvalidValue, match="KEY@N"):
        run.write_state("status", "open", writer="triage_agent", based_on=["routing"])


def test_another_programs_schema_cannot_take_a_run(run: Run, open_new: Open) -> None:
    """A schema that does not know the run's keys is refused, so that a mistyped run name locks nobody out."""
    run.write_state("routing", QUEBEC, writer="triage_agent")
    stranger = open_new({"keys": {"log": {"owner": "x", "type": "string"}}}).run("clm-77401", tenant="acme")
    with pytest.raises(SchemaChanged, match="routing"):
        stranger.write_state("log", "hello", writer="x")
    assert run.write_state("routing", ONTARIO, writer="triage_agent").version == 2


def test_a_familys_name_is_no_key(run: Run) -> None:
    """Braces that were forgotten to be filled in are a typed error, and a missing member names its family."""
    with pytest.raises(UnknownKey, match="braces"):
        run.write_state("order/{order_id}", {}, writer="sales_agent")
    with pytest.raises(UnknownKey, match=r"order/\{order_id\}"):
        run.write_state("order", {}, writer="sales_agent")


@pytest.mark.parametrize("url", ["", "  ", "sqlite:///"])
def test_an_empty_url_is_no_store(url: str) -> None:
    """An unset variable is a clear error, not a store that forgets."""
    with pytest.raises(ConfigError, match="empty"):
        open_store(url)


def test_a_full_log_takes_nothing_more(open_new: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the largest seq a run can have, a write, a read and a fork fail; the run next to it goes on."""
    store = open_new(ClaimState, strict_reads=True)
    run, other = store.run("clm-1"), store.run("clm-2")
    other.write_state("status", "open", writer="triage_agent")
    run.write_state("status", "open", writer="triage_agent")
    monkeypatch.setattr("refold_store.sealer.MAX_SEQ", run.head_seq() + 1)
    run.write_state("status", "closed", writer="triage_agent")
    with pytest.raises(TransactionInvalid, match="is full"):
        run.write_state("status", "open", writer="triage_agent")
    with pytest.raises(TransactionInvalid, match="is full"), run.transaction() as tx:
        tx.write_state("status", "open", writer="triage_agent")
    with pytest.raises(TransactionInvalid, match="is full"):
        run.read_state("status", reader="triage_agent")
    with pytest.raises(TransactionInvalid, match="is full"):
        fork(run, "clm-1-b", by="ada")
    assert [info.name for info in store.runs()] == ["clm-2", "clm-1"]
    assert other.write_state("status", "closed", writer="triage_agent").version == 2
    assert verify(store).ok
