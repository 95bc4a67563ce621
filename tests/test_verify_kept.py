"""Verify on logs that were forked, erased, pruned: sound ones pass, and each thing that nothing allows is named."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from claims import ONTARIO, QUEBEC, ClaimState
from forge import COLUMNS, forging

from refold import Run, Store, open_store
from refold_replay import stretches, verify
from refold_replay.allowances import Allowances, Erasure, Gap
from refold_store.erasing import erase
from refold_store.events import KIND_ID, chain, commit, header
from refold_store.forking import fork, make_self_contained
from refold_store.pruning import prune

OpenNew = Callable[..., Store]
FORK = 2
"""The id of the fork."""


@pytest.fixture
def url(store_url: str) -> str:
    """URL of a store: a run with reads pruned and a value erased, a fork of it, and the fork's own erased value."""
    with open_store(store_url, ClaimState, strict_reads=True) as store:
        run = store.run("clm-1")
        run.write_state("routing", QUEBEC, writer="triage_agent")  # 3
        for reader in ("liability_agent", "settlement_agent"):
            run.read_state("routing", reader=reader)  # 4, 5
        run.write_state("routing", ONTARIO, writer="triage_agent", based_on=["routing@1"])  # 6
        run.write_state("reports", "first", writer="evidence_agent")  # 7
        run.write_state("reports", "second", writer="evidence_agent")  # 8
        made = fork(run, "clm-1-b", by="ada")  # 9 of the fork
        made.write_state("note", "theirs", writer="triage_agent")  # 10 of the fork
        erase(store, "clm-1", key="reports", version=1, by="dpo", reason="asked for")  # 9, and 11 of the fork
        erase(store, "clm-1-b", key="note", by="dpo", reason="asked for")  # 12 of the fork
        prune(run, before="end", by="ops")  # 10, and 13 of the fork
    return store_url


def found(url: str, level: str = "full", run: str | None = None) -> list[tuple[str, int | None, str]]:
    """Where verify finds damage, and of which kind."""
    names = None if run is None else [run]
    return [(one.run, one.seq, one.damage) for one in verify.verify(url, names, level=level).findings]  # type: ignore[arg-type]


@pytest.mark.parametrize("level", ["full", "digest"])
@pytest.mark.parametrize("size", [25_000, 1, 3])
def test_sound_logs_pass(url: str, level: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the size of a stretch, also one that would end inside a gap."""
    monkeypatch.setattr(stretches, "STRETCH", size)
    assert found(url, level) == []


def test_other_processes_know_forks(url: str) -> None:
    """Workers find the same nothing."""
    assert verify.verify(url, workers=2).findings == []


def test_a_fork_with_its_own_copy_passes(url: str) -> None:
    """A fork that was made self-contained begins under its ancestor's name."""
    with open_store(url, ClaimState) as store:
        make_self_contained(store, "clm-1-b")
    assert found(url) == []


def test_a_body_that_nothing_says_was_erased(url: str) -> None:
    """A commitment in the place of a body needs an event of that key and version behind it."""
    with forging(url) as forge:
        row = forge.rows()[-3]  # reports@2
        assert row["version"] == 2
        forge.set(8, "commitment", commit(row["salt"], row["body"]))
        forge.set(8, "salt", None)
        forge.set(8, "body", None)
    assert found(url, "digest") == [("clm-1", 8, "body")]


def test_an_erased_body_that_came_back(url: str) -> None:
    """A value that was erased, and stands there again with a commitment that fits, is named as not erased."""
    with forging(url) as forge:
        salt, body = b"s" * 16, b'{"update":"first"}'
        digests = {row["seq"]: row["digest"] for row in forge.rows()}
        forge.set(7, "commitment", None)
        forge.set(7, "salt", salt)
        forge.set(7, "body", body)
        assert digests[7] is not None
    assert ("clm-1", 7, "erasure") in found(url)
    assert ("clm-1", 7, "digest") in found(url)


def test_reads_that_came_back(url: str, open_new: OpenNew) -> None:
    """Reads that a reads.pruned says are gone, and are there, are named."""
    with forging(url) as forge:
        told = json.loads(forge.rows()[-1]["body"])["ranges"]
        assert [one[:2] for one in told] == [[4, 5]]
        row = forge.rows()[3] | {"seq": 4}
        forge.add(row)
    assert ("clm-1", 4, "pruning") in found(url)


def test_a_gap_wider_than_said(url: str) -> None:
    """A write removed beside a gap is missing: the gap must be exactly what was said."""
    with forging(url) as forge:
        forge.remove(6)
    assert ("clm-1", 4, "density") in found(url, "digest")


def test_a_gap_with_another_digest(url: str) -> None:
    """The row behind a gap hangs on the digest that the gap names."""
    with forging(url) as forge:
        body = json.loads(forge.rows()[-1]["body"])
        body["ranges"][0][3] = "00" * 32
        forge.set(10, "body", json.dumps(body, separators=(",", ":")).encode())
    assert {("clm-1", 6, "digest"), ("clm-1", 10, "digest")} <= set(found(url, "digest"))


def test_nothing_before_a_gap_can_be_rewritten(url: str) -> None:
    """An event before pruned reads, changed with a digest that fits: the gap no longer begins where it says."""
    with forging(url) as forge:
        rows = forge.rows()
        write = rows[2] | {"body": b'{"value":{"desk":"laval","ruleset":"QC_auto_2026"}}'}
        shown = {name: write[name] for name in COLUMNS if name not in ("run", "salt", "body", "commitment", "digest")}
        names = dict(forge.run("SELECT id, name FROM names")) | {None: None}
        shown |= {column: names[shown[column]] for column in ("actor", "owner", "key")}
        digest = chain(rows[1]["digest"], header(**shown), commit(write["salt"], write["body"]))
        forge.set(3, "body", write["body"])
        forge.set(3, "digest", digest)
    assert ("clm-1", 4, "density") in found(url, "digest")


def test_a_roll_up_that_hides_reads(url: str) -> None:
    """A roll-up that tells of fewer reads than were removed, or of a version that never was, is named."""
    with forging(url) as forge:
        body = json.loads(forge.rows()[-1]["body"])
        body["reads"] = [[*body["reads"][0][:1], 9, *body["reads"][0][2:]]]
        forge.set(10, "body", json.dumps(body, separators=(",", ":")).encode())
    assert [one for one in found(url) if one[2] == "pruning"] == [("clm-1", 10, "pruning")] * 2


def test_a_fork_hung_elsewhere(url: str) -> None:
    """A fork whose row in runs names another seq does not fit the chain, nor its own first event."""
    with forging(url) as forge:
        forge.run("UPDATE runs SET parent_seq = 7 WHERE id = ?", FORK)
    damage = {one[2] for one in found(url, run="clm-1-b")}
    assert {"density", "fork"} <= damage


def test_a_fork_under_another_name(url: str) -> None:
    """A fork's first event names it: another name in runs is noticed."""
    with forging(url) as forge:
        forge.run("UPDATE runs SET name = 'clm-2' WHERE id = ?", FORK)
    assert found(url, run="clm-2") == [("clm-2", 9, "fork")]


def test_an_ancestor_that_was_changed(url: str) -> None:
    """The row a fork hangs on, changed: the ancestor's damage, and the fork's first digest no longer fits."""
    with forging(url) as forge:
        forge.set(8, "digest", b"x" * 32)
    assert {("clm-1", 8, "digest"), ("clm-1-b", 9, "digest")} <= set(found(url, "digest"))


def test_an_ancestor_that_is_gone(url: str) -> None:
    """A fork whose ancestor's run row is not there is named, and nothing crashes."""
    with forging(url) as forge:
        forge.run("UPDATE runs SET parent = 99 WHERE id = ?", FORK)
    assert any(one[0] == "clm-1-b" for one in found(url))


def test_reads_are_protected_like_writes(open_new: OpenNew, store_url: str) -> None:
    """A read removed, its version changed, its reader changed: each is noticed by its digest or its place."""
    store = open_new(ClaimState, strict_reads=True)
    run: Run = store.run("clm-1")
    run.write_state("routing", QUEBEC, writer="triage_agent")
    for _read in range(3):
        run.read_state("routing", reader="liability_agent")
    store.close()
    for column, value in (("version", 0), ("actor", 1), ("seen_seq", 1)):
        with forging(store_url) as forge:
            before = forge.rows()[4][column]
            assert before != value
            forge.set(5, column, value)
        assert ("clm-1", 5, "digest") in found(store_url), column
        with forging(store_url) as forge:
            forge.set(5, column, before)
    with forging(store_url) as forge:
        forge.remove(5)
    assert ("clm-1", 5, "density") in found(store_url, "digest")


def test_a_fork_event_in_another_place(url: str) -> None:
    """A run.forked that names another moment than the one it stands behind."""
    with forging(url) as forge:
        refs = json.loads(forge.rows(FORK)[0]["refs"])
        forge.set(9, "refs", json.dumps(refs | {"at": 7}, separators=(",", ":")), FORK)
    assert {("clm-1-b", 9, "fork"), ("clm-1-b", 9, "digest")} <= set(found(url, run="clm-1-b"))


def test_an_event_allows_nothing_behind_itself() -> None:
    """An erasure speaks of what stands before it, however far its `until` reaches; a later gap explains nothing."""
    written = KIND_ID["state.written"]
    erasure = Erasure(seq=5, until=9, key=1, version=None)
    assert [erasure.covers(seq, written, 1, 1) for seq in (4, 5, 6)] == [True, False, False]
    allowed = Allowances(gaps={3: Gap(last=6, before=b"", digest=b"", said=5)})
    assert allowed.across(3, 7, None) is None
