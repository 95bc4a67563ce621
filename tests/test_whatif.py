"""What-if by the rules: skips, edits, owners, reducers, schemas and conditions, and what cannot be judged."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Any

import pytest
from claims import ONTARIO, QUEBEC, ClaimState

from refold import Conflict, NotOwner, Owner, Refused, Run, Schema, StateSchema, Store, UnknownKey, add
from refold_replay.changing import Changes
from refold_replay.refolding import Refolding
from refold_replay.whatif import KEEP, SKIP, WhatIf, whatif
from refold_store.errors import ConfigError, InvariantBroken, NoSuchMoment, NoSuchVersion
from refold_store.events import PRUNED, READ, REFUSED, Draft, Event
from refold_store.forking import fork
from refold_store.jsontext import encode
from refold_store.requests import Request

Open = Callable[..., Store]


def told(found: WhatIf) -> list[tuple[int, str]]:
    """(seq, what) in the order told."""
    return [(one.seq, one.what) for one in found.differences]


@pytest.fixture
def run(open_new: Open) -> Run:
    """A run of the claims schema: two versions of routing, one read of each, a decision on the first."""
    store = open_new(ClaimState)
    run = store.run("r")
    run.write_state("routing", QUEBEC, writer="triage_agent")  # 3
    read = run.read_state("routing", reader="settlement_agent")  # 4
    run.write_state("routing", ONTARIO, writer="triage_agent", expected_version=1)  # 5
    run.read_state("routing", reader="billing")  # 6
    run.write_state("decision", "pay", writer="settlement_agent", basis="limit", based_on=[read])  # 7
    run.write_state("spent", 5, writer="billing")  # 8
    store.flush()
    return run


def test_a_write_left_out(run: Run) -> None:
    """Its readers would see the version before; writes on it, and on reads of it, would have to be decided again."""
    found = whatif(run, skip=["routing@1"])
    assert told(found) == [
        (3, "removed"),
        (4, "saw another value"),
        (5, "depends"),
        (7, "depends"),
        (8, "depends"),
    ]
    by_seq = {one.seq: one for one in found.differences}
    assert by_seq[4].sees == "nothing"
    assert by_seq[5].message == "expected version 1, which is gone"
    assert [(one.key, one.version, one.kind) for one in by_seq[7].rests_on] == [("routing", 1, "stated")]
    assert [(one.key, one.version, one.kind, one.read_seq) for one in by_seq[8].rests_on] == [
        ("routing", 2, "direct", 6)
    ]
    assert [one.seq for one in found.direct] == [3, 4]
    assert found.final == []
    assert found.at_seq == 8


def test_the_newest_write_left_out(run: Run) -> None:
    """The state at the end differs, path by path; a decision on the version before stays untouched."""
    found = whatif(run, skip=[5])
    assert told(found) == [(5, "removed"), (6, "saw another value"), (8, "depends")]
    assert found.differences[1].sees == "routing@1"
    [final] = found.final
    assert (final.key, final.written_at) == ("routing", 3)
    assert [(one.path, one.before, one.after) for one in final.sides.paths] == [
        ("$.desk", "toronto", "montreal"),
        ("$.ruleset", "ON_auto_2026", "QC_auto_2026"),
    ]


def test_an_edit_ripples_through_folds(open_new: Open) -> None:
    """Another update changes each later value of a key that folds, and nothing else."""
    run = open_new(ClaimState).run("r")
    for number in (5, 7, 9):
        run.write_state("spent", number, writer="billing")
    run.write_state("reports", ["a"], writer="photo_agent")
    run.write_state("reports", ["b"], writer="photo_agent")
    found = whatif(run, edit={"spent@1": 6, "reports@1": ["c", "d"]})
    assert told(found) == [
        (3, "edited"),
        (4, "value changed"),
        (5, "value changed"),
        (6, "edited"),
        (7, "value changed"),
    ]
    assert [(one.before, one.after) for one in found.differences[:3]] == [(5, 6), (12, 13), (21, 22)]
    assert (found.differences[4].before, found.differences[4].after) == (["a", "b"], ["c", "d", "b"])
    assert {one.key: one.sides.after for one in found.final} == {"spent": 22, "reports": ["c", "d", "b"]}


def test_an_edit_that_changes_nothing(run: Run) -> None:
    """An edit to the recorded value is named and has no effects."""
    found = whatif(run, edit={"spent@1": 5})
    assert told(found) == [(8, "edited")]
    assert found.differences[0].paths == ()
    assert found.final == []


def test_an_edit_that_would_be_refused(run: Run) -> None:
    """An edited value is checked like any; the refusal has the store's reason and message."""
    found = whatif(run, edit={3: {"ruleset": "none"}})
    assert told(found)[0] == (3, "refused")
    assert found.differences[0].reason == "invalid"
    assert "ruleset" in (found.differences[0].message or "")
    assert [one.seq for one in found.dependents] == [5, 7, 8]


def test_an_edited_delete_becomes_a_write(open_new: Open) -> None:
    """A delete that gets a value would have been a write."""
    run = open_new(ClaimState).run("r")
    run.write_state("note", "a", writer="triage_agent")
    run.delete_state("note", writer="triage_agent")
    found = whatif(run, edit={4: "b"})
    assert told(found) == [(4, "edited")]
    assert found.differences[0].after == "b"
    assert found.final[0].sides.after == "b"


def test_a_transaction_stands_or_falls_whole(open_new: Open) -> None:
    """A write that no longer fits an invariant takes the others of its transaction with it."""
    run = open_new(ClaimState).run("r")
    run.write_state("reserve_band", (1, 9), writer="reserve_agent")
    run.write_state("reserve_cap", 100, writer="reserve_agent")
    with run.transaction() as tx:
        tx.write_state("spent", 50, writer="billing")
        tx.write_state("amount", "12.50", writer="billing")
    run.write_state("spent", 1, writer="billing")
    found = whatif(run, edit={"reserve_cap@1": 10})
    assert told(found) == [(4, "edited"), (5, "refused"), (6, "refused"), (7, "value changed")]
    assert [one.reason for one in found.of("refused")] == ["invariant", "invariant"]
    assert found.differences[3].after == 1


def test_one_write_of_a_transaction_left_out(open_new: Open) -> None:
    """The others of its transaction are judged without it."""
    run = open_new(ClaimState).run("r")
    run.write_state("reserve_cap", 10, writer="reserve_agent")
    with run.transaction() as tx:
        tx.write_state("reserve_cap", 100, writer="reserve_agent")
        tx.write_state("spent", 50, writer="billing")
        tx.write_state("note", "x", writer="triage_agent")
    found = whatif(run, skip=[4])
    assert told(found) == [(4, "removed"), (5, "refused"), (6, "refused")]
    assert told(whatif(run, skip=[6])) == [(6, "removed")]


def test_a_conflict_that_would_not_be(open_new: Open) -> None:
    """Without the write it ran into, a refused write would be accepted, and later ones run into that."""
    run = open_new(ClaimState).run("r")
    run.write_state("note", "a", writer="triage_agent")  # 3
    run.write_state("note", "b", writer="triage_agent")  # 4
    with pytest.raises(Conflict):
        run.write_state("note", "c", writer="triage_agent", expected_version=1)  # 5
    run.store.flush()
    run.read_state("note", reader="billing")  # 6
    run.write_state("note", "d", writer="triage_agent", expected_version=2)  # 7
    found = whatif(run, skip=[4])
    assert told(found) == [(4, "removed"), (5, "accepted instead"), (6, "saw another value"), (7, "depends")]
    assert found.differences[1].after == "c"
    assert found.differences[2].sees == "the value of seq 5"
    assert found.final == []


def test_a_conflict_that_would_be(open_new: Open) -> None:
    """A refused write accepted instead is newer than the version a later writer expected."""
    run = open_new(ClaimState).run("r")
    run.write_state("note", "a", writer="triage_agent")  # 3
    with pytest.raises(NotOwner):
        run.write_state("note", "b", writer="billing")  # 4
    run.write_state("note", "c", writer="triage_agent", expected_version=1)  # 5
    run.write_state("note", "d", writer="triage_agent")  # 6
    everybody = whatif(run, schema=_declared(note={"owner": "all"}, groups={"all": ["triage_agent", "billing"]}))
    assert told(everybody) == [(4, "accepted instead"), (5, "refused")]
    assert everybody.differences[1].reason == "conflict"
    assert everybody.final == []


def _declared(groups: dict[str, Any] | None = None, **keys: Any) -> dict[str, Any]:
    return {"keys": {name: {"type": {}, **entry} for name, entry in keys.items()}, "groups": groups or {}}


def test_another_owner(run: Run) -> None:
    """Writes of the old owner would be refused; reads see what is left."""
    found = whatif(run, owners={"spent": "settlement_agent"})
    assert told(found) == [(8, "refused")]
    assert found.differences[0].reason == "owner"
    assert found.final[0].sides.paths[0].op == "remove"
    assert not whatif(run, owners={"spent": "billing"})


def test_initial_values_are_the_openers_right(open_new: Open) -> None:
    """The opener writes initial values in any owner's name, whoever that is."""
    run = open_new(ClaimState).run("r")
    run.open(opened_by="desk", initial={"note": "a"})
    assert not whatif(run, owners={"note": "somebody"})
    assert told(whatif(run, edit={"note@1": "b"})) == [(3, "edited")]


def test_a_key_that_is_gone_and_a_narrower_type(run: Run) -> None:
    """Under another schema each event that would be refused is listed, with its reason."""
    schema = _declared(
        routing={"owner": "triage_agent", "type": {"properties": {"desk": {"const": "toronto"}}}},
        decision={"owner": "settlement_agent"},
    )
    found = whatif(run, schema=schema)
    assert [(one.seq, one.reason) for one in found.of("refused")] == [(3, "invalid"), (8, "unknown_key")]
    assert told(found)[1:3] == [(4, "saw another value"), (5, "depends")]


def test_a_schema_says_what_must_have_a_basis(run: Run) -> None:
    """A basis that is required now refuses writes that gave none."""
    schema = _declared(spent={"owner": "billing", "basis_required": True}, decision={"owner": "settlement_agent"})
    found = whatif(run, schema=schema)
    assert [(one.seq, one.reason) for one in found.of("refused")] == [
        (3, "unknown_key"),
        (5, "unknown_key"),
        (8, "basis_required"),
    ]


def test_another_reducer(open_new: Open) -> None:
    """All updates of a key fold anew; a key under `last` has its values as updates."""
    run = open_new(ClaimState).run("r")
    run.write_state("any", [1], writer="triage_agent")
    run.write_state("any", [2], writer="triage_agent")
    run.write_state("reports", ["a"], writer="photo_agent")
    run.write_state("reports", ["b"], writer="photo_agent")
    assert {one.key: one.sides.after for one in whatif(run, reducers={"any": "append"}).final} == {"any": [1, 2]}
    assert {one.key: one.sides.after for one in whatif(run, reducers={"reports": "last"}).final} == {"reports": ["b"]}
    longest = whatif(run, reducers={"any": lambda before, update: [*(before or ()), *update, 0]})
    assert longest.final[0].sides.after == [1, 0, 2, 0]
    assert not whatif(run, reducers={"reports": "append"})


def test_a_family_changes_as_one(open_new: Open) -> None:
    """A change of rules names a family, and holds for all its members."""
    run = open_new(ClaimState).run("r")
    run.write_state("order/1", {"a": 1}, writer="sales_agent")
    run.write_state("order/1", {"b": 1}, writer="sales_agent")
    run.write_state("order/2", {"c": 1}, writer="sales_agent")
    found = whatif(run, reducers={"order/{order_id}": "merge"})
    assert told(found) == [(4, "value changed")]
    assert found.final[0].sides.after == {"a": 1, "b": 1}
    assert [one.seq for one in whatif(run, owners={"order/{order_id}": "x"}).of("refused")] == [3, 4, 5]


def test_the_open_schema(open_new: Open) -> None:
    """Where anybody may write, a change gives one key rules of its own."""
    run = open_new(Schema.open()).run("r")
    run.write_state("x", 1, writer="ann")
    run.write_state("x", 2, writer="bob")
    run.write_state("y", 2, writer="bob")
    assert told(whatif(run, owners={"x": "ann"})) == [(4, "refused")]
    assert whatif(run, reducers={"x": "add"}).final[0].sides.after == 3
    assert told(whatif(run, conditions={"small": "x < 2"})) == [(4, "refused")]


def test_typed_values(open_new: Open) -> None:
    """With the Python schema an edit may be typed; without it, code that made a value cannot be judged."""

    class Money(StateSchema):
        total: Annotated[Decimal, Owner("ann"), add]
        when: Annotated[datetime, Owner("ann")]

    run = open_new(Money).run("r")
    run.write_state("total", Decimal("1.5"), writer="ann")
    run.write_state("total", Decimal("2.25"), writer="ann")
    run.write_state("when", datetime(2026, 1, 1, tzinfo=UTC), writer="ann")
    found = whatif(run, skip=[3], edit={5: datetime(2027, 1, 1, tzinfo=UTC)})
    assert [one.after for one in found.differences[1:]] == ["2.25", "2027-01-01T00:00:00Z"]
    bare = whatif(open_new(read_only=True).run("r"), skip=[3])
    assert told(bare) == [(3, "removed"), (4, "cannot be judged")]
    assert "give that schema" in (bare.differences[1].message or "")


def test_conditions(run: Run) -> None:
    """An invariant may be replaced, taken away or added."""
    run.write_state("reserve_band", (1, 5), writer="reserve_agent")
    with pytest.raises(InvariantBroken):
        run.write_state("reserve_band", (5, 1), writer="reserve_agent")
    run.store.flush()
    assert told(whatif(run, conditions={"band": None})) == [(10, "accepted instead")]
    assert told(whatif(run, conditions={"band": "reserve_band[0] > 1"})) == [(9, "refused"), (10, "accepted instead")]
    assert told(whatif(run, conditions={"poor": "spent < 5"})) == [(8, "refused")]
    assert not whatif(run, conditions={"rich": "spent < 6"})


def test_a_function_changes(run: Run) -> None:
    """A function may keep, skip or change each write, delete and refusal."""
    asked = []

    def change(event: Event) -> Any:
        asked.append(event.seq)
        return SKIP if event.key == "decision" else 6 if event.key == "spent" else KEEP

    assert told(whatif(run, change=change)) == [(7, "removed"), (8, "edited")]
    assert asked == [3, 5, 7, 8]


def test_the_original_is_untouched(run: Run, open_new: Open) -> None:
    """A read-only store will do, and the log's head is what it was."""
    before = [event.digest for event in run.events()]
    whatif(open_new(read_only=True).run("r"), skip=[3], reducers={"any": "append"})
    assert [event.digest for event in run.events()] == before


def test_a_run_that_changed_its_schema(run: Run, open_new: Open) -> None:
    """Each write is judged by the schema in force at its seq; changed rules hold in all of them."""

    class Newer(ClaimState):
        extra: Annotated[int, Owner("billing"), add]

    newer = open_new(Newer).run("r")
    newer.write_state("extra", 4, writer="billing")
    newer.write_state("spent", 2, writer="billing")
    assert not whatif(newer)
    assert told(whatif(newer, owners={"extra": "x"})) == [(10, "refused")]
    found = whatif(newer, edit={"spent@1": 1}, conditions={"small": "extra < 9"})
    assert told(found) == [(8, "edited"), (11, "value changed")]
    assert found.final[0].sides.after == 3


def test_a_read_that_was_stale(run: Run) -> None:
    """A read of an older version is another only if that version is."""
    stale = Draft(READ, "photo_agent", None, "routing", 1, run.head_seq())
    run._committer.submit(Request(run._head, run.schema(), (stale,)))  # 9
    run.write_state("reports", ["a"], writer="photo_agent")  # 10
    assert (9, "saw another value") not in told(whatif(run, skip=[5]))
    found = whatif(run, skip=[3])
    assert told(found)[-2:] == [(9, "saw another value"), (10, "depends")]


def test_forks_are_gone_through_whole(run: Run) -> None:
    """A what-if on a fork begins with what it shares."""
    made = fork(run, "f", at=6, by="dana")
    made.write_state("note", "x", writer="triage_agent")
    assert not whatif(made)
    assert told(whatif(made, skip=["routing@2"])) == [(5, "removed"), (6, "saw another value")]


def test_reads_of_another_scope_are_left_alone(open_new: Open) -> None:
    """A key of a scope lives in another run: what it held is not this run's to change."""
    run = open_new(ClaimState).run("r")
    run.write_state("note", "a", writer="triage_agent")
    run.write_state("house_rule", "x", writer="triage_agent")
    run.read_state("house_rule", reader="billing")
    run.write_state("spent", 1, writer="billing")
    scoped = Draft(READ, "billing", None, "note", 1, run.head_seq(), refs='{"scope":"tenant"}')
    run._committer.submit(Request(run._head, run.schema(), (scoped,)))
    assert told(whatif(run, skip=[3])) == [(3, "removed")]


# --- what cannot be judged -----------------------------------------------------------------------


def highest(before: Any, update: Any) -> Any:
    """A reducer of the user's."""
    return update if before is None or update > before else before


class Scored(StateSchema):
    """A key whose values are made by code."""

    score: Annotated[int, Owner("ann"), highest]
    seen: Annotated[int, Owner("bob")]


def test_code_that_only_the_log_names_is_not_run(open_new: Open) -> None:
    """Without the schema that brings it, a write made by code cannot be judged, and what rests on it is in doubt."""
    run = open_new(Scored).run("r")
    run.write_state("score", 3, writer="ann")  # 3
    run.write_state("score", 2, writer="ann")  # 4
    run.read_state("score", reader="bob")
    run.write_state("seen", 3, writer="bob")
    assert told(whatif(run, skip=[3]))[:2] == [(3, "removed"), (4, "value changed")]
    bare = open_new(read_only=True).run("r")
    assert not whatif(bare)
    found = whatif(bare, skip=[3])
    assert told(found) == [(3, "removed"), (4, "cannot be judged"), (6, "depends")]
    assert "is code" in (found.differences[1].message or "")
    assert told(whatif(bare, skip=[3], schema=Scored))[1] == (4, "value changed")


def test_a_refused_update_that_was_not_kept(open_new: Open) -> None:
    """A refusal without its update is judged by its owner alone; what needs the update cannot be."""
    run = open_new(ClaimState).run("r")
    with pytest.raises(NotOwner):
        run.write_state("any", "x" * 70_000, writer="billing")
    with pytest.raises(Refused):
        run.write_state("note", "y", writer="billing", basis=7)  # type: ignore[arg-type]
    run.store.flush()
    assert not whatif(run, owners={"any": "somebody"})
    found = whatif(run, owners={"any": "billing"})
    assert told(found) == [(3, "cannot be judged")]
    assert found.differences[0].message == "the refused update was not kept"


def test_a_refused_delete_is_judged(open_new: Open) -> None:
    """A refusal says that it was a delete, so that another owner's rules tell what would have become of it."""
    run = open_new(ClaimState).run("r")
    run.write_state("note", "x", writer="triage_agent")
    with pytest.raises(NotOwner):
        run.delete_state("note", writer="billing")
    with pytest.raises(Refused), run.transaction() as tx:
        tx.delete_state("note", writer="triage_agent", expected_version=7)
    run.store.flush()
    assert [event.body["op"] for event in run.events(("state.refused",))] == ["delete", "delete"]
    found = whatif(run, owners={"note": "billing"})
    assert told(found) == [(3, "refused"), (4, "accepted instead")]
    run.write_state("note", "y", writer="triage_agent")
    assert [one.key for one in whatif(run, owners={"note": "billing"}).final] == ["note"]


def _erased(run: Run, seqs: set[int]) -> list[Event]:
    """A run's events, some with their bodies erased."""
    found = []
    for event in run.events():
        if event.seq in seqs:
            row = event.row._replace(salt=None, body=None, commitment=b"\0" * 32)
            event = Event(event.tenant, event.run, row, event._name)
        found.append(event)
    return found


def _gone_through(
    run: Run, events: list[Event], skip: set[int], edit: dict[int, Any] | None = None
) -> list[tuple[int, str]]:
    refolding = Refolding(run, Changes(frozenset(skip), edit or {}))
    for event in events:
        refolding.feed(event)
    refolding.end()
    return [(one.seq, one.what) for one in refolding.found]


def test_erased_bodies(open_new: Open) -> None:
    """An erased update counts as none; what was made on an erased value cannot be judged; nothing else differs."""
    run = open_new(ClaimState).run("r")
    for text in "abc":
        run.write_state("reports", [text], writer="photo_agent")  # 3, 4, 5
    run.write_state("spent", 5, writer="billing")  # 6
    run.write_state("spent", 6, writer="billing")  # 7
    run.write_state("note", "a", writer="triage_agent")  # 8
    run.write_state("note", "b", writer="triage_agent")  # 9
    events = _erased(run, {4, 6, 8})
    assert _gone_through(run, events, set()) == []
    assert _gone_through(run, events, {3}) == [(3, "removed"), (4, "cannot be judged"), (5, "value changed")]
    assert _gone_through(run, events, {6}) == [(6, "removed"), (7, "cannot be judged")]
    assert _gone_through(run, events, {8}) == [(8, "removed")]
    assert _gone_through(run, events, set(), {7: 1}) == [(7, "cannot be judged")]
    assert _gone_through(run, events, set(), {6: 1}) == [(6, "edited"), (7, "cannot be judged")]


def test_pruned_reads(run: Run) -> None:
    """Reads that were rolled up count at their first and last seq."""
    reads = [["routing", 1, "settlement_agent", 4, 4, 1, 1, 0], ["routing", 2, "billing", 6, 6, 1, 2, 0]]
    body = encode({"ranges": [], "reads": reads})
    draft = Draft(PRUNED, "dana", refs='{"until":6}', body=body)
    run._committer.submit(Request(run._head, run.schema(), (draft,)))
    events = [event for event in run.events() if event.kind != "state.read"]
    assert _gone_through(run, events, set()) == []
    found = _gone_through(run, events, {5})
    assert sorted(found) == [(5, "removed"), (6, "saw another value"), (8, "depends")]
    assert (4, "saw another value") in _gone_through(run, events, {3})


@pytest.mark.parametrize("refs", ['{"based_on":5,"keys":7}', '{"keys":[["note"],["note",1.5],[1,1],"x"]}'])
def test_refs_of_any_form(run: Run, refs: str) -> None:
    """Refs that hold something else than refold writes count as none."""
    for kind in (READ, REFUSED):
        run._committer.submit(Request(run._head, run.schema(), (Draft(kind, "eve", refs=refs, body=b'{"keys":1}'),)))
    assert not whatif(run)
    assert told(whatif(run, skip=[8])) == [(8, "removed")]


# --- mistakes --------------------------------------------------------------------------------------


def test_mistakes_are_named(run: Run) -> None:
    """What is no write, no key, no reducer or no condition is told with what was meant."""
    with pytest.raises(ConfigError, match=r"seq 4 is state.read .* nearest writes are 3 \(routing@1\), 5"):
        whatif(run, skip=[4])
    with pytest.raises(NoSuchMoment):
        whatif(run, skip=[99])
    with pytest.raises(NoSuchMoment):
        whatif(run, skip=[0])
    with pytest.raises(NoSuchVersion):
        whatif(run, skip=["routing@7"])
    with pytest.raises(UnknownKey, match="did you mean 'routing'"):
        whatif(run, owners={"rooting": "x"})
    with pytest.raises(ConfigError, match="did you mean 'append'"):
        whatif(run, reducers={"any": "appendd"})
    with pytest.raises(ConfigError, match="reducer 'add' works on"):
        whatif(run, reducers={"reports": "add"})
    with pytest.raises(ConfigError, match="did you mean 'band'"):
        whatif(run, conditions={"bnd": None})
    with pytest.raises(ConfigError, match="spnt"):
        whatif(run, conditions={"cap": "spnt < 1"})
    with pytest.raises(ConfigError, match="both skipped and edited"):
        whatif(run, skip=[3], edit={"routing@1": QUEBEC})
    with pytest.raises(ConfigError, match="names the family"):
        whatif(run, owners={"order/7": "x"})


def test_a_refusal_cannot_be_skipped(run: Run) -> None:
    """A refused write changed nothing; it may be edited."""
    with pytest.raises(Refused):
        run.write_state("small", 3, writer="triage_agent")
    run.store.flush()
    with pytest.raises(ConfigError, match="nothing to skip"):
        whatif(run, skip=[9])
    assert told(whatif(run, edit={9: "fits"})) == [(9, "accepted instead")]
    found = whatif(run, edit={9: 4})
    assert [(one.seq, one.what, one.reason) for one in found.differences] == [(9, "edited", "invalid")]
