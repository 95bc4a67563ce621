"""Erasing follows forks that hold a copy of the past, and names every place that it does not reach."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from claims import QUEBEC, ClaimState
from kept import walk

from refold import Run, Store
from refold_replay.archiving import archive
from refold_replay.bundle_import import import_bundle
from refold_replay.exporting import export
from refold_store.erasing import erase
from refold_store.forking import FORKS_MAX, fork, make_self_contained
from refold_store.pruning import prune

OpenNew = Callable[..., Store]
WHY = {"by": "dpo", "reason": "asked to be forgotten"}


@pytest.fixture
def run(open_new: OpenNew) -> Run:
    """A run with a note at seq 3, an update at seq 4, and a routing at seq 5."""
    run = open_new(ClaimState, strict_reads=True).run("clm-1")
    run.write_state("note", "M. Tremblay", writer="triage_agent")
    run.write_state("reports", "M. Tremblay is ill", writer="photo_agent")
    run.write_state("routing", QUEBEC, writer="triage_agent")
    return run


@pytest.fixture
def other_url(tmp_path: Path) -> str:
    """URL of another store."""
    return f"sqlite:///{tmp_path / 'other.db'}"


def copy(run: Run, name: str, at: int | str = "end") -> Run:
    """A fork that was given its own past."""
    made = fork(run, name, at=at, by="ada")
    make_self_contained(run.store, name)
    return made


def said(run: Run) -> list[tuple[Any, ...]]:
    """Each `value.erased` of a log: who, key, version, up to where, why."""
    found = run.events(("value.erased",))
    return [(e.actor, e.key, e.version, e.refs["until"], e.body["reason"]) for e in found]


def test_a_copy_loses_what_its_origin_loses(run: Run, open_new: OpenNew) -> None:
    """A self-contained fork, its forks and its copies lose the value, and the log of each says by whom and why."""
    copied = copy(run, "copied")
    copied.write_state("note", "own", writer="triage_agent")
    forked = fork(copied, "forked", by="ada")
    again = copy(forked, "again")
    early = copy(run, "early", at=2)
    report = erase(run.store, "clm-1", key="note", **WHY)
    assert [(log.run, log.events, log.until) for log in report.logs] == [
        ("clm-1", 1, 5), ("copied", 1, 5), ("forked", 0, 5), ("again", 1, 5)
    ]  # fmt: skip
    assert (report.events, report.values, report.elsewhere) == (3, 3, [])
    assert [(one.run, one.version) for one in report.suspects] == [("copied", 2), ("again", 2)]
    for one in (copied, forked, again):
        cold = open_new(ClaimState).run(one.name)
        assert said(cold) == [("dpo", "note", None, 5, "asked to be forgotten")]
        assert cold.at("note@1").read_state("note").erased_by == "dpo"
        assert cold.peek("note").json == "own"
        assert cold.fold() == cold.state().json()
    assert said(early) == []
    assert walk(run) == walk(copied) == walk(forked) == walk(again) == []
    head = run.head_seq(), copied.head_seq()
    assert erase(run.store, "clm-1", key="note", **WHY).logs == []
    assert (run.head_seq(), copied.head_seq()) == head


def test_every_fork_beyond_the_sixteenth(run: Run) -> None:
    """Forks that `fork` itself copies, since they are too deep, lose it too: of a whole run, and of one version."""
    made = [run]
    for depth in range(1, FORKS_MAX + 4):
        made.append(fork(made[-1], f"fork-{depth}", by="ada"))
    assert run._backend.parent_of(made[FORKS_MAX + 1]._run_id() or 0) is None
    report = erase(run.store, "clm-1", key="reports", version=1, **WHY)
    assert sorted(log.run for log in report.logs) == sorted(one.name for one in made)
    erase(run.store, "clm-1", **WHY)
    assert [one.state().json() for one in made] == [{}] * len(made)
    assert walk(run) == walk(made[-1]) == []


def test_in_one_transaction(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Origin and copies change together: when the rows of one cannot, nothing is erased and nothing is said."""
    copied = copy(run, "copied")
    backend, calls = type(run._backend), []
    change = backend.change

    def fail_at_the_second(self: Any, sql: str, args: Any) -> int:
        calls.append(sql)
        if len(calls) == 2:
            raise OSError("no")
        return change(self, sql, args)

    monkeypatch.setattr(backend, "change", fail_at_the_second)
    with pytest.raises(OSError, match="no"):
        erase(run.store, "clm-1", key="note", **WHY)
    monkeypatch.undo()
    assert said(run) == said(copied) == []
    assert [one.peek("note").json for one in (run, copied)] == ["M. Tremblay"] * 2
    assert len(erase(run.store, "clm-1", key="note", **WHY).logs) == 2


def test_a_copy_names_where_it_came_from(run: Run) -> None:
    """Erasing in a copy leaves its origin and the origin's other copies, and says what erases it there."""
    copied, sibling = copy(run, "copied"), copy(run, "sibling")
    report = erase(run.store, "copied", key="note", version=1, **WHY)
    assert [log.run for log in report.logs] == ["copied"]
    how = "`refold erase {} note@1 --reason 'asked to be forgotten'`"
    assert [(one.run, one.how) for one in report.elsewhere] == [
        (name, how.format(name)) for name in ("clm-1", "sibling")
    ]
    assert run.peek("note").json == "M. Tremblay"
    again = erase(run.store, "copied", key="note", version=1, dry_run=True, **WHY)
    assert (again.events, [one.run for one in again.elsewhere]) == (0, ["clm-1", "sibling"])
    assert [log.run for log in erase(run.store, "clm-1", key="note", **WHY).logs] == ["clm-1", "sibling"]
    assert erase(run.store, "copied", key="note", version=1, **WHY).elsewhere == []
    assert walk(copied) == walk(sibling) == []


def test_runs_of_one_name_are_not_one(run: Run, open_new: OpenNew, other_url: str, tmp_path: Path) -> None:
    """A fork of another run of the same name, from another store, is no copy: its past has other digests."""
    stranger = open_new(ClaimState, url=other_url).run("clm-1")
    stranger.write_state("note", "M. Roy", writer="triage_agent")
    export(fork(stranger, "theirs", by="ada"), tmp_path / "theirs.refold")
    import_bundle(run.store, tmp_path / "theirs.refold")
    report = erase(run.store, "clm-1", key="note", **WHY)
    assert ([log.run for log in report.logs], report.elsewhere) == (["clm-1"], [])
    theirs = run.store.run("theirs")
    assert (theirs.peek("note").json, walk(theirs)) == ("M. Roy", [])
    assert erase(run.store, "theirs", key="note", **WHY).elsewhere == []


def test_an_origin_that_went_on_otherwise(run: Run, open_new: OpenNew, other_url: str, tmp_path: Path) -> None:
    """A fork of later events than the store has of its origin shares what both hold, and keeps what it does not."""
    export(run, tmp_path / "short.refold")
    run.write_state("note", "later", writer="triage_agent")
    export(fork(run, "long", by="ada"), tmp_path / "long.refold")
    store = open_new(ClaimState, url=other_url)
    for name in ("short", "long"):
        import_bundle(store, tmp_path / f"{name}.refold")
    origin, long = store.run("clm-1"), store.run("long")
    origin.write_state("note", "otherwise", writer="triage_agent")
    report = erase(store, "clm-1", **WHY)
    assert [(log.run, log.until) for log in report.logs] == [("clm-1", 6), ("long", 5)]
    assert long.state().json() == {"note": "later"}
    assert walk(origin) == walk(long) == []


def test_pruned_reads_hide_no_copy(run: Run) -> None:
    """Reads that are gone in one of the logs and not in the other do not part them."""
    run.read_state("note", reader="x")
    copied = copy(run, "copied")
    prune(run, before="end", by="ops")
    assert [log.run for log in erase(run.store, "clm-1", key="note", **WHY).logs] == ["clm-1", "copied"]
    assert walk(run) == walk(copied) == []


def test_bundles_are_named(run: Run, tmp_path: Path) -> None:
    """Files that an archive wrote, runs that are archived, and an origin that is: each is named with what to do."""
    copied = copy(run, "copied")
    archive(run, tmp_path, by="ops")
    report = erase(run.store, "copied", key="note", **WHY)
    assert [(one.run, one.why.split(",")[0]) for one in report.elsewhere] == [
        ("clm-1", "'copied' was copied from it"), ("clm-1", "archived")
    ]  # fmt: skip
    import_bundle(run.store, tmp_path / "clm-1-5.refold")
    report = erase(run.store, "clm-1", key="note", **WHY)
    assert [(one.run, one.why, one.how) for one in report.elsewhere] == [
        (
            "clm-1",
            "its bundle clm-1-5.refold, written when it was archived, holds what is erased now",
            "delete the file",
        )
    ]
    assert copied.peek("note").erased


def test_a_copy_whose_origin_is_elsewhere(run: Run, open_new: OpenNew, other_url: str, tmp_path: Path) -> None:
    """A fork imported without the run it goes on from says where else the value stands; not of its own values."""
    forked = fork(run, "forked", by="ada")
    forked.write_state("note", "own", writer="triage_agent")
    export(forked, tmp_path / "forked.refold")
    store = open_new(ClaimState, url=other_url)
    import_bundle(store, tmp_path / "forked.refold")
    assert erase(store, "forked", key="note", version=2, **WHY).elsewhere == []
    report = erase(store, "forked", key="note", version=1, **WHY)
    assert [(one.run, one.why) for one in report.elsewhere] == [
        ("clm-1", "'forked' was copied from it, and it is not in this store")
    ]


def test_tenant_data_takes_copies_once(run: Run) -> None:
    """All of a tenant's: each copy is a run of its own, and says it once for its own rows."""
    copied = copy(run, "copied")
    report = erase(run.store, everything_of_tenant=True, **WHY)
    assert [(log.run, log.events) for log in report.logs] == [("clm-1", 3), ("copied", 3)]
    assert (copied.state().json(), walk(copied)) == ({}, [])


def test_keys_that_all_tenants_share_are_named(run: Run) -> None:
    """Erasing a tenant's data leaves what all tenants share, names those keys, and says how to erase them."""
    run.write_state("world_rule", "M. Tremblay", writer="triage_agent")
    for again in (False, True):
        report = erase(run.store, everything_of_tenant=True, dry_run=not again, **WHY)
        assert [(one.run, one.why.split(":")[0]) for one in report.elsewhere] == [
            ("world_rule", "a key that all tenants share")
        ]
    assert "`refold erase RUN world_rule`" in report.elsewhere[0].how
    assert run.peek("world_rule").json == "M. Tremblay"
    erase(run.store, "clm-1", key="world_rule", **WHY)
    assert erase(run.store, everything_of_tenant=True, **WHY).elsewhere == []
