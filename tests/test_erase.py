"""Erasing: a value gone for good, the log still whole, and everyone told who did it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC
from random import Random
from typing import Annotated, Any

import pytest
from claims import ONTARIO, QUEBEC, ClaimState
from kept import holds, walk

from refold import (
    ConfigError,
    NoSuchRun,
    NoSuchVersion,
    Owner,
    ReadOnlyStore,
    Refused,
    Run,
    StateSchema,
    Store,
    StoreUnavailable,
    UnknownKey,
    add,
    append,
)
from refold_store.erased import without
from refold_store.erasing import erase
from refold_store.errors import ValueErased
from refold_store.forking import fork, make_self_contained
from refold_store.migrate import postgres_roles
from refold_store.pruning import prune

OpenNew = Callable[..., Store]
SECRET = b"Marguerite-Q7731"
WHY = {"by": "dpo", "reason": "asked to be forgotten"}


@pytest.fixture
def run(open_new: OpenNew) -> Run:
    """A run with whole values, updates, a refusal, a note and a read."""
    run = open_new(ClaimState, strict_reads=True).run("clm-1")
    run.write_state("note", f"by {SECRET.decode()}", writer="triage_agent", basis=f"{SECRET.decode()} said so")  # 3
    run.write_state("reports", "one", writer="evidence_agent")  # 4
    run.write_state("reports", f"two {SECRET.decode()}", writer="evidence_agent")  # 5
    run.write_state("reports", "three", writer="photo_agent")  # 6
    run.read_state("note", reader="liability_agent")  # 7
    run.append("note.added", actor="ada", key="note", body={"text": SECRET.decode()})  # 8
    run.write_state("routing", QUEBEC, writer="triage_agent", based_on=[("note", 1)])  # 9
    return run


def both(run: Run, open_new: OpenNew) -> list[Run]:
    """The run as this process knows it, and as one that has just started does."""
    return [run, open_new(ClaimState, strict_reads=True).run(run.name)]


def test_a_value_is_gone_and_says_by_whom(run: Run, open_new: OpenNew) -> None:
    """An erased whole value raises ValueErased with who, when and why; state and fold leave it out; the chain holds."""
    report = erase(run.store, "clm-1", key="note", **WHY)
    assert (report.events, report.values, report.keys) == (2, 1, {"note": 2})
    for one in both(run, open_new):
        read = one.read_state("note", reader="x")
        assert (read.version, read.absent, read.erased, read.erased_by) == (1, False, True, "dpo")
        assert read.erased_at is not None
        assert read.erased_at.tzinfo is UTC
        for take in (lambda r: r.json, lambda r: r.value, lambda r: r.text):
            with pytest.raises(ValueErased, match=r"version 1 of 'note' was erased by dpo at 2.*Z: asked to be forgo"):
                take(read)  # type: ignore[no-untyped-call]
        assert one.state().json() == one.fold() == one.at("end").state().json()
        assert sorted(one.state().json()) == ["reports", "routing"]
        assert one.state()["note"].erased
        assert [(r.version, r.erased, r.basis) for r in one.history("note")] == [(1, True, None)]
        assert walk(one) == []


def test_erasing_is_on_the_record_once(run: Run) -> None:
    """`value.erased` names actor, key, version and reason; erasing again, and a dry run, record nothing."""
    dry = erase(run.store, "clm-1", key="note", version=1, dry_run=True, **WHY)
    assert (dry.events, dry.logs[0].seq, run.head_seq(), run.peek("note").erased) == (1, 0, 9, False)
    done = erase(run.store, "clm-1", key="note", version=1, **WHY)
    assert (done.logs[0].run, done.logs[0].seq, done.logs[0].events) == ("clm-1", 10, 1)
    event = list(run.events())[-1]
    assert (event.kind, event.actor, event.key, event.version) == ("value.erased", "dpo", "note", 1)
    assert (event.refs, event.body) == ({"until": 9}, {"reason": "asked to be forgotten"})
    again = erase(run.store, "clm-1", key="note", version=1, **WHY)
    assert (again.logs, again.events, run.head_seq()) == ([], 0, 10)
    assert [event.seq for event in run.events() if event.erased] == [3]


def test_an_erased_update_folds_as_if_it_had_not_been(run: Run, open_new: OpenNew) -> None:
    """A key that stores updates keeps the others, and says which is missing."""
    erase(run.store, "clm-1", key="reports", version=2, **WHY)
    for one in both(run, open_new):
        read = one.peek("reports")
        assert (read.json, read.erased) == (["one", "three"], False)
        assert [(gap.version, gap.seq, gap.erasure and gap.erasure.by) for gap in without(read)] == [(2, 5, "dpo")]
        assert one.at("reports@2").read_state("reports").json == ["one"]
        assert [r.json for r in one.history("reports")] == [["one"], ["one"], ["one", "three"]]
        assert without(one.history("reports")[0]) == []
        assert one.fold() == one.state().json()
    run.write_state("reports", "four", writer="photo_agent")
    assert run.peek("reports").json == ["one", "three", "four"]
    run.delete_state("reports", writer="photo_agent")
    run.write_state("reports", "five", writer="photo_agent")
    assert without(run.peek("reports")) == []


def test_all_updates_erased_leave_nothing(run: Run, open_new: OpenNew) -> None:
    """A key of which every update is gone holds nothing readable; the next write begins anew."""
    erase(run.store, "clm-1", key="reports", **WHY)
    for one in both(run, open_new):
        assert one.peek("reports").erased
        assert "reports" not in one.state().json()
        assert "reports" not in one.fold()
    assert run.write_state("reports", "x", writer="photo_agent").version == 4
    assert [one.peek("reports").json for one in both(run, open_new)] == [["x"], ["x"]]


def grow(previous: Any, update: Any) -> Any:
    """A reducer of the test's own."""
    return f"{previous}+{update}"


class Odd(StateSchema):
    """Keys whose values are made from the ones before, under a rule."""

    invariants = {"cap": "spent <= cap"}  # noqa: RUF012  # read by StateSchema

    text: Annotated[str, Owner("a"), grow]
    spent: Annotated[int, Owner("a"), add]
    cap: Annotated[int, Owner("a")]


@pytest.mark.parametrize("cold", [False, True])
def test_writes_go_on_behind_an_erased_value(open_new: OpenNew, cold: bool) -> None:
    """A reducer starts from nothing, a rule that needs an erased value is not judged, deleting works."""
    run = open_new(Odd).run("r")
    run.write_state("cap", 1, writer="a")
    run.write_state("cap", 6, writer="a")
    run.write_state("text", "zero", writer="a")
    run.write_state("text", "a", writer="a")
    run.write_state("spent", 5, writer="a")
    for key in ("text", "cap"):
        erase(run.store, "r", key=key, version=2, **WHY)
    if cold:
        run = open_new(Odd).run("r")
    assert run.at("spent@1").state().json() == {"spent": 5}
    run.write_state("text", "b", writer="a")
    assert run.peek("text").json == "None+b"
    run.write_state("spent", 7, writer="a")  # 12 > 6, and nobody knows the 6
    assert run.fold() == run.state().json() == {"text": "None+b", "spent": 12}
    assert run.delete_state("cap", writer="a").version == 3
    erase(run.store, "r", key="text", version=3, **WHY)
    assert (run.fold(), run.peek("text").erased) == ({"spent": 12}, True)
    with pytest.raises(Exception, match="broken"):
        run.write_state("cap", 1, writer="a")
    assert walk(run) == []


class Older(StateSchema):
    """A list."""

    items: Annotated[list[str], Owner("a"), append]


class Newer(StateSchema):
    """The same list, and another key."""

    items: Annotated[list[str], Owner("a"), append]
    more: Annotated[int, Owner("a")]


def test_the_first_write_under_another_schema_held_everything(open_new: OpenNew) -> None:
    """That write holds the whole value: once it is erased nothing before it comes back."""
    old = open_new(Older).run("r")
    old.write_state("items", "one", writer="a")
    run = open_new(Newer).run("r")
    run.write_state("items", SECRET.decode(), writer="a")
    run.write_state("items", "three", writer="a")
    erase(run.store, "r", key="items", version=2, **WHY)
    assert run.at("items@2").read_state("items").erased
    assert run.at("items@2").state().json() == run.fold(until=run.at("items@2").seq) == {}
    assert run.fold() == run.state().json() == {"items": ["three"]}
    assert open_new(Newer).run("r").read_state("items", reader="x").json == ["three"]


@pytest.mark.parametrize("seed", range(4))
def test_random_histories_fold_as_a_naive_fold(open_new: OpenNew, seed: int) -> None:
    """State and fold at every seq, warm and cold, are those of a fold written here, whatever was erased when."""
    dice, run = Random(seed), open_new(ClaimState).run("r")
    made: dict[int, tuple[str, int, str | None]] = {}
    gone: set[int] = set()
    for step in range(60):
        key, writer = dice.choice([("note", "triage_agent"), ("reports", "photo_agent")])
        act = dice.random()
        if act < 0.65:
            written = run.write_state(key, f"v{step}" + "x" * 200, writer=writer)
            made[written.seq] = key, written.version, f"v{step}" + "x" * 200
        elif act < 0.75 and not run.peek(key).absent:
            written = run.delete_state(key, writer=writer)
            made[written.seq] = key, written.version, None
        elif versions := [(seq, version) for seq, (name, version, _text) in made.items() if name == key]:
            seq, version = dice.choice(versions)
            gone.add(seq)
            erase(run.store, "r", key=key, version=version, **WHY)
    cold = open_new(ClaimState).run("r")
    for seq in range(1, run.head_seq() + 1):
        expected = naively(made, gone, seq)
        assert run.at(seq).state().json() == cold.at(seq).state().json() == expected
        assert run.fold(until=seq) == expected
    assert walk(run) == []


def naively(made: dict[int, tuple[str, int, str | None]], gone: set[int], until: int) -> dict[str, Any]:
    """A fold of writes and deletes in which what was erased is skipped; an erased whole value is no value."""
    state: dict[str, Any] = {}
    for seq in sorted(seq for seq in made if seq <= until):
        key, _version, text = made[seq]
        if text is None or (key == "note" and seq in gone):
            state.pop(key, None)
        elif key == "note":
            state[key] = text
        elif seq not in gone:
            state[key] = [*state.get(key, []), text]
    return state


def test_keyframes_of_an_erased_key_go(open_new: OpenNew) -> None:
    """Whole values kept for speed are made anew without what was erased."""
    run = open_new(ClaimState).run("r")
    for number in range(60):
        run.write_state("reports", f"{number} {SECRET.decode() * 40}", writer="photo_agent")
    frames = "SELECT count(*) FROM keyframes"
    assert run._backend.query(frames, ())[0][0] > 0
    erase(run.store, "r", key="reports", version=1, **WHY)
    assert run._backend.query(frames, ())[0][0] == 0
    run.write_state("reports", "end", writer="photo_agent")
    assert [text.split(" ")[0] for text in run.peek("reports").json] == [*map(str, range(1, 60)), "end"]


def test_a_run_and_a_tenant(run: Run, open_new: OpenNew) -> None:
    """All of a run, all of a tenant and what its runs share; other tenants keep theirs."""
    store = run.store
    other = store.run("clm-2")
    other.write_state("note", SECRET.decode(), writer="triage_agent")
    other.write_state("house_rule", SECRET.decode(), writer="triage_agent")
    stranger = store.run("clm-1", "acme")
    stranger.write_state("note", "mine", writer="triage_agent")
    report = erase(store, "clm-1", **WHY)
    assert report.keys == {"note": 2, "reports": 3, "routing": 1}
    assert run.state().json() == run.fold() == {}
    assert other.peek("note").json == SECRET.decode()
    report = erase(store, everything_of_tenant=True, **WHY)
    assert sorted((log.run, log.scope) for log in report.logs) == [("", "tenant"), ("clm-2", "run")]
    assert other.peek("house_rule").erased
    assert stranger.peek("note").json == "mine"
    assert erase(store, everything_of_tenant=True, **WHY).logs == []
    assert [walk(one) for one in (run, other, stranger, other._home(other.declared("house_rule")))] == [[]] * 4
    assert open_new(ClaimState).run("clm-2").state().json() == {}


def test_a_shared_key_is_erased_where_it_lies(open_new: OpenNew) -> None:
    """A key of a tenant's scope is erased in the scope's run, whichever run names it."""
    run = open_new(ClaimState).run("r")
    run.write_state("house_rule", SECRET.decode(), writer="triage_agent")
    run.write_state("note", "x", writer="triage_agent")
    report = erase(run.store, "r", key="house_rule", version=1, **WHY)
    assert [(log.run, log.scope) for log in report.logs] == [("", "tenant")]
    assert run.peek("house_rule").erased


def test_forks_lose_what_they_share(run: Run, open_new: OpenNew) -> None:
    """A fork and its forks, made before or after, say themselves that a shared row was erased; own rows stay."""
    child = fork(run, "child", by="ada")
    child.write_state("note", "own", writer="triage_agent")
    fork(child, "grandchild", by="ada")
    early = fork(run, "early", at=2, by="ada")
    report = erase(run.store, "clm-1", key="note", **WHY)
    assert [log.run for log in report.logs] == ["clm-1", "child", "grandchild"]
    assert [(one.run, one.version, one.why) for one in report.suspects if one.run != "clm-1"] == [
        ("child", 2, "a later version in a fork")
    ]
    late = fork(run, "late", at="note@1", by="ada")
    assert [event.kind for event in late.events(after=3)] == ["run.forked", "value.erased"]
    for name in ("clm-1", "child", "grandchild", "early", "late"):
        for one in both(run.store.run(name), open_new):
            assert walk(one) == []
            assert one.fold() == one.state().json()
    assert child.peek("note").json == "own"
    assert child.at("note@1").read_state("note").erased_by == "dpo"
    assert late.read_state("note", reader="x").erased
    assert early.peek("note").absent
    make_self_contained(run.store, "grandchild")
    assert walk(run.store.run("grandchild")) == []


def test_erasing_in_a_fork_erases_in_its_ancestor(run: Run) -> None:
    """What a fork shares lies in the ancestor: it is erased there, for all that show it; later writes there stay."""
    child = fork(run, "child", by="ada")
    sibling = fork(run, "sibling", by="ada")
    run.write_state("note", "later", writer="triage_agent")
    report = erase(run.store, "child", key="note", **WHY)
    assert [(log.run, log.events) for log in report.logs] == [("clm-1", 2), ("child", 0), ("sibling", 0)]
    assert run.peek("note").json == "later"
    assert [one.at("note@1").read_state("note").erased for one in (run, child, sibling)] == [True] * 3
    assert [walk(one) for one in (run, child, sibling)] == [[], [], []]


def test_the_report_names_what_may_still_hold_it(run: Run) -> None:
    """Later versions of the key, writes that rest on it, and its readers."""
    run.write_state("note", "second", writer="triage_agent")
    report = erase(run.store, "clm-1", key="note", version=1, **WHY)
    assert [(one.key, one.version, one.why) for one in report.suspects] == [
        ("note", 2, "a later version of the key"),
        ("routing", 1, "rests on note@1"),
    ]
    assert report.suspect_count == 2
    assert report.readers == ["liability_agent"]


def test_refusals_that_quote_a_value_are_named(open_new: OpenNew) -> None:
    """The refusal of a rule quotes other keys' values; a refused write of the key stays when one version goes."""
    run = open_new(Odd).run("r")
    run.write_state("cap", 7731, writer="a")
    for key, value in (("spent", 9000), ("cap", "Q7731")):
        with pytest.raises(Refused):
            run.write_state(key, value, writer="a")
    report = erase(run.store, "r", key="cap", version=1, **WHY)
    assert [(one.key, one.version, one.why) for one in report.suspects] == [
        ("spent", 0, "its refusal quotes the key's value"),
        ("cap", 0, "a refused write of the key"),
    ]
    assert erase(run.store, "r", key="cap", **WHY).keys == {"cap": 1}


def test_views_show_what_is_left(run: Run) -> None:
    """The views for people take rows without a body."""
    erase(run.store, "clm-1", **WHY)
    query = run._backend.query
    assert [row[0] for row in query("SELECT body FROM event_log WHERE kind = 1 ORDER BY seq", ())] == [None] * 5
    assert {row[0] for row in query("SELECT value FROM state_events", ())} == {None}
    assert {row[0] for row in query("SELECT key FROM current_state", ())} == {"note", "reports", "routing"}
    assert [row[0] for row in query("SELECT reader FROM reads", ())] == ["liability_agent"]
    assert query("SELECT reason FROM refusals", ()) == []


def test_gone_from_the_files(run: Run, store_url: str) -> None:
    """After a vacuum the bytes stand in no file of the store; before erasing they do."""
    run.write_state("reports", SECRET.decode(), writer="photo_agent")
    run.store.flush()
    assert holds(store_url, SECRET)
    for key in ("note", "reports"):
        erase(run.store, "clm-1", key=key, **WHY)
    run.store._backend.vacuum()
    assert holds(store_url, SECRET) == []
    assert walk(run) == []


def test_mistakes_are_told(run: Run, open_new: OpenNew) -> None:
    """A run, key or version that is not there, no reason, both a run and a tenant, a read-only store: typed errors."""
    store = run.store
    with pytest.raises(NoSuchRun):
        erase(store, "clm-9", **WHY)
    with pytest.raises(UnknownKey):
        erase(store, "clm-1", key="nope", **WHY)
    with pytest.raises(NoSuchVersion, match="no version 2; its newest is 1"):
        erase(store, "clm-1", key="note", version=2, **WHY)
    with pytest.raises(NoSuchVersion):
        erase(store, "clm-1", key="decision", version=1, **WHY)
    for version in (True, 1.0, "1"):
        with pytest.raises(ConfigError, match="a version is a whole number, not"):
            erase(store, "clm-1", key="note", version=version, **WHY)  # type: ignore[arg-type]
    for wrong in (
        {"run": "clm-1", "by": "x", "reason": " "},
        {"by": "x", "reason": "y"},
        {"run": "clm-1", "everything_of_tenant": True, **WHY},
        {"run": "clm-1", "version": 1, **WHY},
    ):
        with pytest.raises(ConfigError):
            erase(store, **wrong)  # type: ignore[arg-type]
    assert erase(store, "clm-1", key="decision", **WHY).logs == []
    with pytest.raises(ReadOnlyStore):
        erase(open_new(read_only=True), "clm-1", key="note", **WHY)
    assert erase(open_new(read_only=True), "clm-1", key="note", dry_run=True, **WHY).events == 2
    assert run.head_seq() == 9


def test_a_failed_erase_leaves_everything(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Event and rows change together: when the rows cannot, there is no event."""
    monkeypatch.setattr(type(run._backend), "change", _refuse)
    with pytest.raises(OSError, match="no"):
        erase(run.store, "clm-1", key="note", **WHY)
    monkeypatch.undo()
    assert run.head_seq() == 9
    assert not run.peek("note").erased
    assert run.write_state("note", "on", writer="triage_agent").seq == 10


def _refuse(*_args: object) -> int:
    raise OSError("no")


def test_another_process_writes_meanwhile(run: Run, open_new: OpenNew, monkeypatch: pytest.MonkeyPatch) -> None:
    """A head that moved is read again; a process that holds the old head goes on behind the erasing."""
    warm = open_new(ClaimState).run("clm-1")
    warm.write_state("note", "warm", writer="triage_agent")
    erase(run.store, "clm-1", key="note", **WHY)
    assert warm.write_state("routing", ONTARIO, writer="triage_agent").seq == 12
    assert warm.peek("note").erased
    assert walk(run) == []


def test_writers_of_other_processes_lose_nothing(run: Run, open_new: OpenNew) -> None:
    """While others write and read, erasing and pruning go through, every write is there, and the log is whole."""
    stop, made = threading.Event(), []

    def write() -> None:
        other = open_new(ClaimState).run("clm-1")
        while not stop.is_set():
            made.append(other.write_state("counter", len(made), writer="counter").version)
            other.read_state("note", reader="w")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _round in range(8):
            run.write_state("note", SECRET.decode(), writer="triage_agent")
            assert erase(run.store, "clm-1", key="note", **WHY).values >= 1
            prune(run, before="end", by="ops")
    finally:
        stop.set()
        writer.join()
    assert made == list(range(1, len(made) + 1))
    assert run.peek("counter").version == len(made) > 0
    assert walk(run) == []


def test_roles(pg_server: Any, pg_url: str, open_new: OpenNew) -> None:
    """A role with the writer's rights is refused, whole; one with the keeper's erases, and may not vacuum."""
    from psycopg import connect

    with connect(pg_url, autocommit=True) as connection:
        for role in ("erase_writer", "erase_keeper"):
            connection.execute(f"DROP ROLE IF EXISTS {role}")  # type: ignore[arg-type]
            connection.execute(f"CREATE ROLE {role} LOGIN")  # type: ignore[arg-type]
    try:
        postgres_roles(pg_url, writer="erase_writer", keeper="erase_keeper")
        as_role = {role: pg_url.replace("//postgres@", f"//{role}@") for role in ("erase_writer", "erase_keeper")}
        run = open_new(ClaimState, url=pg_url).run("r")
        run.write_state("note", "x", writer="triage_agent")
        with pytest.raises(StoreUnavailable, match=r"'erase_writer' may not erase.*migrate --roles keeper=ROLE"):
            erase(open_new(ClaimState, url=as_role["erase_writer"]), "r", key="note", **WHY)
        assert run.head_seq() == 3
        keeper = open_new(ClaimState, url=as_role["erase_keeper"])
        assert erase(keeper, "r", key="note", **WHY).events == 1
        with pytest.raises(StoreUnavailable, match="as the tables' owner run: VACUUM FULL events, keyframes"):
            keeper._backend.vacuum()
        run.store._backend.vacuum()
        assert run.peek("note").erased
    finally:
        with connect(pg_url, autocommit=True) as connection:
            for role in ("erase_writer", "erase_keeper"):
                connection.execute(f"DROP OWNED BY {role}")  # type: ignore[arg-type]
                connection.execute(f"DROP ROLE {role}")  # type: ignore[arg-type]
