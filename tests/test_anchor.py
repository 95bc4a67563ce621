"""Anchors: what one holds, what it notices, what makes it worthless, and proofs of single runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest
from forge import Cells, Forge, forging
from sound import SCHEMA, fill

from refold import Store, open_store
from refold_replay import merkle, signing
from refold_replay.anchoring import Anchor, anchor, read_anchor, read_proof, signed_text
from refold_replay.verify import verify
from refold_store.archiving import move_out
from refold_store.errors import ConfigError, Damaged, NoSuchRun
from refold_store.events import READ
from refold_store.forking import fork
from refold_store.pruning import prune

OpenNew = Callable[..., Store]


SHARED = SCHEMA | {"keys": SCHEMA["keys"] | {"rule": {"owner": "ann", "type": "integer", "scope": "tenant"}}}
"""The schema with a key of the tenant's scope."""


@pytest.fixture
def url(store_url: str) -> str:
    """A filled store: runs "r" and "other", and a run of a scope."""
    with open_store(store_url, SHARED) as store:
        fill(store)
        store.run("r").write_state("rule", 1, writer="ann")
    return store_url


def anchored(url: str, key: Path | None = None) -> Anchor:
    """An anchor of a store as it is now, written and read back."""
    with open_store(url, read_only=True, create=False) as store:
        made = anchor(store, key=None if key is None else signing.load_private(key))
    return read_anchor(json.dumps(made.document()).encode())


def found(url: str, *anchors: Anchor, **options: object) -> list[tuple[str, int | None, str]]:
    """(run, seq, damage) of each finding against anchors."""
    report = verify(url, anchor=list(anchors), **options)  # type: ignore[arg-type]
    return [(one.run, one.seq, one.damage) for one in report.findings]


def again(forge: Forge, change: Callable[[list[Cells]], None]) -> None:
    """Rewrite run 1 and make all its digests anew, as somebody with the database and the code in hand could."""
    rows = forge.rows()
    change(rows)
    forge.put(rows, forge=True)


# --- what it holds -----------------------------------------------------------------------------


def test_an_anchor_holds_the_head_of_every_run(url: str, open_new: OpenNew) -> None:
    """Tenant, run, scope, seq and digest, in the order of their bytes; the root is the Merkle tree's over them."""
    made = anchored(url)
    assert [head.order for head in made.heads] == sorted(head.order for head in made.heads)
    assert [(head.tenant, head.run, head.scope) for head in made.heads] == [
        ("default", "other", 0), ("default", "r", 0), ("default", "", 1),
    ]  # fmt: skip
    store = open_new(read_only=True)
    for head in made.heads[:2]:
        last = list(store.run(head.run).events())[-1]
        assert (head.seq, head.digest) == (last.seq, bytes(last.digest).hex())
    leaves = []
    for head in made.heads:
        tenant, run = head.tenant.encode(), head.run.encode()
        data = len(tenant).to_bytes(4) + tenant + len(run).to_bytes(4) + run
        data += bytes([head.scope]) + head.seq.to_bytes(8) + bytes.fromhex(head.digest)
        leaves.append(sha256(b"\0" + data).digest())
    pair = sha256(b"\1" + leaves[0] + leaves[1]).digest()
    assert made.root == sha256(b"\1" + pair + leaves[2]).hexdigest()


def test_an_anchor_of_one_tenant(open_new: OpenNew) -> None:
    """An anchor of a tenant tells of no other; one of an empty store has the root of nothing."""
    store = open_new(SCHEMA)
    assert anchor(store).root == merkle.EMPTY.hex()
    store.run("r", "acme").write_state("low", 1, writer="ann")
    store.run("r").write_state("low", 1, writer="ann")
    assert [head.tenant for head in anchor(store, tenant="acme").heads] == ["acme"]
    assert len(anchor(store).heads) == 2


def test_an_anchor_has_what_was_read_last(open_new: OpenNew) -> None:
    """Reads that wait to be stored are stored before an anchor is made."""
    store = open_new(SCHEMA)
    store.run("r").write_state("low", 1, writer="ann")
    store.run("r").read_state("low", reader="bob")
    [head] = anchor(store).heads
    assert list(store.run("r").events())[-1].kind == "state.read"
    assert head.seq == 4


def test_a_log_without_a_digest_is_not_anchored(url: str) -> None:
    """A newest event whose digest is none is an error that says where; nothing is vouched for."""
    with forging(url) as forge:
        last = forge.rows()[-1]["seq"]
        forge.set(last, "digest", b"", 1)
    with pytest.raises(Damaged, match=f"'r'.* seq {last} "):
        anchored(url)


# --- what it notices ---------------------------------------------------------------------------


def test_a_growing_log_fits_an_older_anchor(url: str) -> None:
    """A store that only grew fits every anchor of it, also one of several."""
    first = anchored(url)
    with open_store(url, SHARED) as store:
        store.run("r").write_state("low", 3, writer="ann")
        store.run("new").write_state("low", 3, writer="ann")
    assert found(url, first, anchored(url)) == []
    report = verify(url, anchor=first)
    assert (report.ok, report.anchored) == (True, 3)
    assert [note for note in report.notes if "not signed" in note]


def test_a_log_cut_off_at_its_end_is_found(url: str) -> None:
    """A cut log is whole in itself; the anchor names the first event that is gone, and a run that is gone."""
    made = anchored(url)
    with forging(url) as forge:
        last = forge.rows()[-1]["seq"]
        forge.remove(last)
        assert verify(url).ok
        assert found(url, made) == [("r", last, "truncated")]
        forge.remove(last - 1)
        assert found(url, made) == [("r", last - 1, "truncated")]
        forge.run("DELETE FROM events WHERE run = 1")
        forge.run("DELETE FROM keyframes")
        assert found(url, made) == [("r", 1, "truncated")]
        forge.run("DELETE FROM runs WHERE id = 1")
    assert verify(url).ok
    assert found(url, made) == [("r", None, "vanished")]
    assert found(url, made, runs=["r"]) == [("r", None, "vanished")]
    assert found(url, made, runs=["other"]) == []


def test_a_rewritten_history_is_found(url: str) -> None:
    """Somebody rewrites a value and makes all digests after it anew: only the anchor shows it."""
    made = anchored(url)

    def change(rows: list[Cells]) -> None:
        row = next(row for row in rows if row["request_id"] == "q")
        row["body"] = bytes(row["body"]).replace(b'"QC"', b'"AB"')

    with forging(url) as forge:
        again(forge, change)
        last = forge.rows()[-1]["seq"]
    assert verify(url).ok
    assert found(url, made) == [("r", last, "rewritten")]


def test_an_old_copy_that_went_on_is_found(url: str) -> None:
    """An old copy put back, and gone on with in another way, is whole in itself, and is no longer what was anchored."""
    with forging(url) as forge:
        old = forge.rows()
    with open_store(url, SHARED) as store:
        for number in range(3):
            store.run("r").write_state("low", number, writer="ann")
    made = anchored(url)
    with forging(url) as forge:
        forge.put(old)
    assert verify(url).ok
    assert found(url, made) == [("r", len(old) + 1, "truncated")]
    with open_store(url, SHARED) as store:
        for number in range(5):
            store.run("r").write_state("low", number, writer="ann")
    assert verify(url).ok
    assert found(url, made) == [("r", len(old) + 3, "rewritten")]


def test_a_fork_is_anchored_like_any_run(url: str) -> None:
    """A fork has its own head; an ancestor that went on does not move it; a cut fork is noticed."""
    with open_store(url, SHARED) as store:
        fork(store.run("r"), "r-2", at=9, by="ada")
        store.run("r-2").write_state("low", 1, writer="ann")
        made = anchor(store)
        store.run("r").write_state("low", 1, writer="ann")
    assert found(url, made) == []
    with forging(url) as forge:
        [(number,)] = forge.run("SELECT id FROM runs WHERE name = 'r-2'")
        forge.remove(11, number)
    assert found(url, made) == [("r-2", 11, "truncated")]


def test_archived_runs_fit_older_anchors(url: str) -> None:
    """What an archive says of its last event fits the anchor made right before; an older anchor cannot be told."""
    early = anchored(url)
    with open_store(url, SHARED) as store:
        run = store.run("r")
        run.write_state("low", 1, writer="ann")
        late = anchor(store)
        done = move_out(run, until=run.head_seq(), bundle="r.refold", sha256="00" * 32, by="ops", reason=None)
        assert done is not None
    assert found(url, late) == []
    report = verify(url, anchor=early)
    assert report.ok
    assert any("cannot be told" in note and "r.refold" in note for note in report.notes)
    other = replace(late, heads=tuple(replace(head, digest="00" * 32) for head in late.heads))
    other = replace(other, root=merkle.root([head.leaf() for head in other.heads]).hex())
    assert ("r", next(head.seq for head in late.heads if head.run == "r"), "rewritten") in found(url, other)


def test_pruned_reads_fit_older_anchors_or_it_is_said(open_new: OpenNew, store_url: str) -> None:
    """An anchored read that was rolled up: the end of a gap has its digest; inside one it is said that none is left."""
    store = open_new(SCHEMA, strict_reads=True)
    run = store.run("r")
    run.write_state("low", 1, writer="ann")
    run.read_state("low", reader="bob")
    inside = anchor(store)
    run.read_state("low", reader="bob")
    at_end = anchor(store)
    prune(run, before="end", by="ops")
    assert READ not in [event.row.kind for event in run.events()]
    fits = verify(store_url, anchor=at_end)
    assert (fits.findings, [note for note in fits.notes if "cannot be told" in note]) == ([], [])
    heads = tuple(replace(head, digest="00" * 32) for head in at_end.heads)
    other = replace(at_end, heads=heads, root=merkle.root([head.leaf() for head in heads]).hex())
    assert found(store_url, other) == [("r", at_end.heads[0].seq, "rewritten")]
    report = verify(store_url, anchor=inside)
    assert report.ok
    assert [note for note in report.notes if "cannot be told" in note]


# --- an anchor that is worth nothing ------------------------------------------------------------


def test_a_changed_anchor_is_found(url: str) -> None:
    """A head changed in the file does not fit the root; runs out of order, or one twice, are named, too."""
    made = anchored(url)
    head = replace(made.heads[1], seq=2)
    assert found(url, replace(made, heads=(made.heads[0], head, made.heads[2]))) == [("", None, "anchor")]
    assert found(url, replace(made, heads=made.heads[:2])) == [("", None, "anchor")]
    turned = made.heads[::-1]
    root = merkle.root([one.leaf() for one in turned]).hex()
    [finding] = verify(url, anchor=replace(made, heads=turned, root=root)).findings
    assert "order" in finding.message
    assert str(finding).startswith("anchor: the anchor of ")


def test_a_signed_anchor(url: str, tmp_path: Path) -> None:
    """Anybody can make a root anew, only the key's owner a signature: over the root, the time and the count."""
    public = signing.new_key(tmp_path / "auditor")
    other = signing.new_key(tmp_path / "eve")
    made = anchored(url, tmp_path / "auditor")
    assert made.public_key == public.hex()
    assert found(url, made, public_key=public) == []
    assert signing.verify(public, signed_text(made.made_at, 3, made.root), bytes.fromhex(made.signature or ""))
    heads = made.heads[:2]
    cut = replace(made, heads=heads, root=merkle.root([one.leaf() for one in heads]).hex())
    for wrong in (cut, replace(made, made_at="2020-01-01T00:00:00.000000Z"), replace(made, signature="00" * 64)):
        assert found(url, wrong) == [("", None, "anchor")]
        assert found(url, wrong, public_key=public) == [("", None, "anchor")]
    assert found(url, anchored(url, tmp_path / "eve"), public_key=public) == [("", None, "anchor")]
    assert found(url, anchored(url, tmp_path / "eve"), public_key=other) == []
    assert found(url, anchored(url), public_key=public) == [("", None, "anchor")]


DOCUMENT = {
    "form": "refold.anchor.1", "made_at": "2026-11-30T02:00:00.000000Z", "public_key": None, "root": "00" * 32,
    "runs": [["default", "r", 0, 1, "00" * 32]], "signature": None,
}  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {"form": "refold.anchor.2"}, {"made_at": "yesterday"}, {"made_at": None}, {"root": "00"}, {"root": 7},
        {"runs": {}}, {"runs": [["default", "r", 0, 1]]}, {"runs": ["default"]}, {"public_key": "00" * 32},
        {"runs": [["default", "r", 3, 1, "00" * 32]]}, {"runs": [["default", "r", 0, 0, "00" * 32]]},
        {"runs": [["default", "r", 0, 1 << 70, "00" * 32]]}, {"runs": [["default", "r", 0, True, "00" * 32]]},
        {"runs": [["default", "r\0", 0, 1, "00" * 32]]}, {"runs": [["default", 5, 0, 1, "00" * 32]]},
        {"runs": [["default", "r", 0, 1, "zz" * 32]]}, {"signature": "00" * 64}, {"more": 1},
    ],
    ids=repr,
)  # fmt: skip
def test_a_document_that_is_no_anchor(change: dict[str, object]) -> None:
    """Whatever is wrong with a document is said, before anything of it is used."""
    assert read_anchor(json.dumps(DOCUMENT).encode()).size == 1
    with pytest.raises(ConfigError):
        read_anchor(json.dumps(DOCUMENT | change).encode())


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"\xff", b"[" * 100_000, b'{"form":1,"form":2}'])
def test_a_text_that_is_no_document(text: bytes) -> None:
    """Any bytes are refused with an error of refold's own."""
    for read in (read_anchor, read_proof):
        with pytest.raises(ConfigError):
            read(text)


# --- proofs of one run ---------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 7, 8])
def test_each_run_can_be_proven_alone(open_new: OpenNew, tmp_path: Path, size: int) -> None:
    """A proof holds for its run, tells of no other, and no changed one holds."""
    public = signing.new_key(tmp_path / "auditor")
    store = open_new(SCHEMA)
    for number in range(size):
        store.run(f"run-{number}").write_state("low", 1, writer="ann")
    made = anchor(store, key=signing.load_private(tmp_path / "auditor"))
    for number in range(size):
        text = json.dumps(made.prove(f"run-{number}").document())
        assert [f"run-{other}" in text for other in range(size)] == [other == number for other in range(size)]
        proof = read_proof(text.encode())
        assert proof.problems(public) == []
        wrong = [
            replace(proof, head=replace(proof.head, seq=proof.head.seq + 1)),
            replace(proof, head=replace(proof.head, run="run-x")),
            replace(proof, size=size + 1),
            replace(proof, path=(*proof.path, "00" * 32)),
            replace(proof, root="00" * 32),
        ]
        assert all(one.problems() for one in wrong)
    with pytest.raises(NoSuchRun):
        made.prove("run-x")


def test_a_run_is_held_against_its_proof(url: str) -> None:
    """A proof notices what the anchor notices, of its run alone."""
    proof = anchored(url).prove("r")
    assert verify(url, anchor=proof).ok
    with forging(url) as forge:
        last = forge.rows()[-1]["seq"]
        forge.remove(last)
        forge.run("DELETE FROM events WHERE run = 2")
    report = verify(url, ["r"], anchor=proof)
    assert [(one.run, one.seq, one.damage) for one in report.findings] == [("r", last, "truncated")]
    changed = replace(proof, head=replace(proof.head, seq=last - 1))
    assert [one.damage for one in verify(url, ["r"], anchor=changed).findings] == ["anchor"]
