"""Bundles that are damaged or hostile: refused with a line, by the store and by the example; nothing enters."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from bundles import Lines, by_hand, fill, read_lines, rechain, text, write_lines

from refold import Schema, Store, compile_schema, open_store, verify
from refold_replay.allowances import Allowances, Erasure
from refold_replay.archiving import archive
from refold_replay.bundle_import import SEQ_HEADROOM, check_bundle, import_bundle
from refold_replay.bundle_reader import PARTS_MAX
from refold_replay.exporting import export
from refold_store.backend import MAX_SEQ
from refold_store.errors import BundleInvalid, ConfigError
from refold_store.events import KIND_ID
from refold_store.jsontext import decode, encode
from refold_store.sealer import CLOCK_END_US

Change = Callable[[Lines], object]
OpenNew = Callable[..., Store]
PLAIN = ("seq", "txn", "turn", "version", "seen_seq", "recorded_at", "clock", "request_id", "refs", "trace_flags",
         "actor", "owner", "key")  # fmt: skip
"""Columns of a header that a line has as they are."""
GAP = ("00" * 32, "00" * 32)
"""Digests of a gap that is none."""
MEMORY = 700 * 1024 * 1024
"""Address space a hostile bundle may take: the interpreter and its libraries take half of it."""


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sound bundle: of a fork, with a value erased and reads pruned."""
    folder = tmp_path_factory.mktemp("hostile")
    url = f"sqlite:///{folder / 'a.db'}"
    fill(url)
    with open_store(url) as store:
        export(store.run("clm-1-b"), folder / "run.refold")
    return folder / "run.refold"


def refused(path: Path, *, example: bool = True) -> str:
    """The message a bundle is refused with. `example`: the standard-library verifier refuses it, too."""
    with pytest.raises(BundleInvalid) as caught:
        check_bundle(path)
    assert str(path) in str(caught.value)
    if example:
        done = by_hand(path)
        assert done.returncode == 1, done.stdout
        assert "Traceback" not in done.stderr
    return str(caught.value)


def event(lines: Lines, seq: int) -> dict[str, Any]:
    """The line of an event."""
    return next(one for one in lines if one.get("seq") == seq)


def as_read(one: dict[str, Any], **members: Any) -> None:
    """Turn an event into a read of several keys, as its refs say."""
    del one["key"], one["version"]
    one.update(kind="state.read", seen_seq=2, **members)


def test_truncated_anywhere(bundle: Path, tmp_path: Path) -> None:
    """Cut at each of 200 places: refused, and an import leaves the store empty."""
    data = bundle.read_bytes()
    path = tmp_path / "cut.refold"
    with open_store(f"sqlite:///{tmp_path / 'b.db'}") as store:
        for place in range(200):
            path.write_bytes(data[: len(data) * place // 200])
            with pytest.raises(BundleInvalid):
                import_bundle(store, path)
        assert store.runs() == []


def test_lines_cut_off_with_an_end_that_fits(bundle: Path, tmp_path: Path) -> None:
    """Whole lines left out at the end, with count and hash made to fit: the manifest names another newest event."""
    lines = read_lines(bundle)
    for count in range(2, len(lines) - 1, 5):
        refused(write_lines(tmp_path / "cut.refold", lines[:count]), example=count % 3 == 0)


def test_flipped_bytes(bundle: Path, tmp_path: Path) -> None:
    """One byte changed at each of 300 places of the file is noticed, or changes nothing that is read."""
    data = bytearray(bundle.read_bytes())
    whole = check_bundle(bundle)
    path = tmp_path / "flip.refold"
    unread = 0
    for place in range(0, len(data), max(len(data) // 300, 1)):
        data[place] ^= 0x41
        path.write_bytes(data)
        try:
            assert check_bundle(path).digest == whole.digest
            unread += 1
        except BundleInvalid:
            pass
        data[place] ^= 0x41
    assert unread <= 8, "only the header of gzip holds bytes that nobody reads"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda lines: event(lines, 3).update(actor="mallory"), "digest"),
        (lambda lines: event(lines, 3).update(body='{"value":1}'), "digest"),
        (lambda lines: event(lines, 3).pop("body"), "digest|body"),
        (lambda lines: event(lines, 8).update(version=9), "version|digest"),
        (lambda lines: lines.remove(event(lines, 9)), "missing"),
        (lambda lines: lines.insert(9, dict(lines[8])), "stands behind"),
        (lambda lines: lines.insert(9, lines.pop(12)), "missing|behind"),
        (lambda lines: lines[0].update(run="clm-9"), "the log is of run"),
        (lambda lines: lines[0].update(genesis="clm-9"), "digest"),
        (lambda lines: lines[0].update(tenant="other"), "digest"),
        (lambda lines: lines[0].update(until=3), "newest event"),
        (lambda lines: lines[0].update(digest="00" * 32), "newest event"),
        (lambda lines: lines[0].update(erased=[]), "has no body"),
        (lambda lines: lines[0].update(pruned=[]), "missing"),
        (lambda lines: lines[0]["erased"].append([9, 8, None, None]), "erased or pruned|erasure"),
        (lambda lines: lines[0]["erased"].insert(0, [1, 0, None, None]), "other erased or pruned"),
        (lambda lines: event(lines, 4 + 2).update(recorded_at=5), "time|digest"),
    ],
)  # fmt: skip
def test_edited_lines(bundle: Path, tmp_path: Path, change: Change, message: str) -> None:
    """An edit under an end that fits is noticed by what the lines say."""
    lines = read_lines(bundle)
    change(lines)
    found = refused(write_lines(tmp_path / "edit.refold", lines), example="erased or" not in message)
    assert any(one in found for one in message.split("|")), found


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda lines: event(lines, 3).update(actor="evidence_agent"), "owner"),
        (lambda lines: event(lines, 3).update(body='{"value":{"desk":"x","ruleset":"none"}}'), "type"),
        (lambda lines: event(lines, 8).update(seen_seq=99, kind="state.read"), "version|read"),
        (lambda lines: event(lines, 2).update(body='{"fingerprint":"00"}'), "schema"),
        (lambda lines: event(lines, 7).update(txn=3), "transaction"),
    ],
)  # fmt: skip
def test_rewritten_history_breaks_the_rules(bundle: Path, tmp_path: Path, change: Change, message: str) -> None:
    """Digests made to fit again do not help where a rule is broken: owner, type, read, schema, transaction."""
    lines = read_lines(bundle)
    change(lines)
    rechain(lines)
    found = refused(write_lines(tmp_path / "edit.refold", lines), example=False)
    assert any(one in found for one in message.split("|")), found


def changed(lines: Lines, kind: str, part: str, member: str, value: Any) -> None:
    """Set a member inside refs or body of the last event of a kind."""
    one = [line for line in lines if line.get("kind") == kind][-1]
    one[part] = encode(decode(one.get(part, "{}").encode()) | {member: value}).decode()


READ = ["routing", 1, "x", 4, 5, 2, 1, 7]
"""A line of a roll-up."""


@pytest.mark.parametrize(
    ("kind", "part", "member", "value"),
    [
        ("state.written", "refs", "based_on", 5), ("state.written", "refs", "based_on", [["routing"]]),
        ("state.written", "refs", "based_on", [["routing", "1"]]), ("state.written", "refs", "expected", "1"),
        ("state.written", "refs", "request", 1), ("state.deleted", "refs", "based_on", [[1, 1]]),
        ("state.written", "body", "basis", ["x"]), ("run.forked", "refs", "run", 5),
        ("value.erased", "refs", "until", "39"), ("reads.pruned", "refs", "until", None),
        ("reads.pruned", "body", "reads", 5), ("reads.pruned", "body", "reads", [[1]]),
        ("reads.pruned", "body", "reads", [[*READ[:7], "now"]]), ("reads.pruned", "body", "reads", [[*READ[:7], True]]),
        ("reads.pruned", "body", "reads", [["routing", [], *READ[2:]]]),
        ("reads.pruned", "body", "reads", [[*READ[:7], CLOCK_END_US]]), ("reads.pruned", "body", "ranges", "x"),
    ],
)  # fmt: skip
def test_what_refold_records_has_its_form(
    bundle: Path, tmp_path: Path, kind: str, part: str, member: str, value: Any
) -> None:
    """Members that commands rely on, with another type, are refused with their line, however well all is chained."""
    lines = read_lines(bundle)
    changed(lines, kind, part, member, value)
    rechain(lines)
    assert f"is no {kind} of refold" in refused(write_lines(tmp_path / "edit.refold", lines), example=False)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda one: one.update(refs='{"keys":5}'), "refs.keys has another form"),
        (lambda one: one.update(refs='{"keys":[["routing"]]}'), "refs.keys has another form"),
        (lambda one: one.update(refs='{"scope":1}'), "refs.scope has another form"),
        (lambda one: one.update(key="routing", refs='{"scope":"tenant"}'), "a key with its version"),
        (lambda one: one.pop("seen_seq"), "a read has seen_seq"),
    ],
)  # fmt: skip
def test_reads_have_their_form(
    bundle: Path, tmp_path: Path, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    """A read that says in no known way what it saw is refused."""
    lines = read_lines(bundle)
    as_read(event(lines, 8))
    change(event(lines, 8))
    rechain(lines)
    assert message in refused(write_lines(tmp_path / "edit.refold", lines), example=False)


@pytest.mark.parametrize(
    ("reads", "message"),
    [
        ([[*READ[:5], 1, *READ[6:]]], "removed 2 reads, its roll-up tells of 1"),
        ([[READ[0], 9, *READ[2:]]], "reads of 'routing' version 9, never there"),
        ([["nokey", *READ[1:]]], "reads of 'nokey' version 1, never there"),
    ],
)
def test_a_roll_up_fits_what_was_removed(tmp_path: Path, reads: list[list[Any]], message: str) -> None:
    """A roll-up that tells of fewer reads than were removed, or of versions that were never there, is refused."""
    url = f"sqlite:///{tmp_path / 'a.db'}"
    fill(url)
    with open_store(url) as store:
        export(store.run("clm-1"), tmp_path / "run.refold")
    lines = read_lines(tmp_path / "run.refold")
    changed(lines, "reads.pruned", "body", "reads", reads)
    rechain(lines)
    assert message in refused(write_lines(tmp_path / "edit.refold", lines), example=False)


def rolled_up_to(lines: Lines, until: int) -> None:
    """Put a roll-up behind the newest event that claims all reads up to a seq, in the manifest as in the log."""
    newest = lines[-2]
    first, digests = newest["seq"] + 1, [newest["digest"], "11" * 32]
    told = ["routing", 1, "x", first, until - 1, until - first, 1, newest["recorded_at"]]
    body = {"ranges": [[first, until - 1, *digests]], "reads": [told]}
    lines.insert(-1, {
        "seq": until, "kind": "reads.pruned", "actor": "ops", "recorded_at": newest["recorded_at"] + 1,
        "refs": encode({"until": until - 1}).decode(), "salt": "00" * 16, "body": encode(body).decode(),
    })  # fmt: skip
    lines[0]["pruned"].append([first, until - 1, *digests, until])
    lines[0]["until"] = until


@pytest.mark.parametrize("room", [0, SEQ_HEADROOM - 1, SEQ_HEADROOM])
def test_a_run_that_comes_in_has_room_to_go_on(bundle: Path, open_new: OpenNew, tmp_path: Path, room: int) -> None:
    """Reads rolled up to the largest seq there is would leave no seq for the next event: refused, and nothing is there.

    What leaves room comes in, and goes on.
    """
    lines = read_lines(bundle)
    rolled_up_to(lines, MAX_SEQ - room)
    rechain(lines)
    path, store = write_lines(tmp_path / "full.refold", lines), open_new(None)
    if room < SEQ_HEADROOM:
        with pytest.raises(BundleInvalid, match="no room"):
            import_bundle(store, path)
        assert store.runs() == []
    else:
        import_bundle(store, path)
        assert store.run("clm-1-b").write_state("note", 1, writer="triage_agent").seq == MAX_SEQ - room + 1
        assert verify(store).ok


@pytest.mark.parametrize("member", ["recorded_at", "clock"])
def test_times_have_a_date(bundle: Path, tmp_path: Path, member: str) -> None:
    """A time behind the year 9998 is refused: the events that follow it by a microsecond each must have one, too."""
    lines = read_lines(bundle)
    lines[-2][member] = CLOCK_END_US
    rechain(lines)
    assert f"{member} is a whole number" in refused(write_lines(tmp_path / "late.refold", lines), example=False)


def test_an_archive_stands_behind_what_it_names(tmp_path: Path) -> None:
    """A `run.archived` that names another moment than the one before it is refused."""
    with open_store(f"sqlite:///{tmp_path / 'a.db'}", Schema.open()) as store:
        store.run("r").write_state("k", 1, writer="w")
        import_bundle(store, archive(store.run("r"), tmp_path, by="ops").path)
        export(store.run("r"), tmp_path / "run.refold")
    assert check_bundle(tmp_path / "run.refold").outcome == "checked"
    lines = read_lines(tmp_path / "run.refold")
    changed(lines, "run.archived", "refs", "until", 2)
    rechain(lines)
    found = refused(write_lines(tmp_path / "edit.refold", lines), example=False)
    assert "does not stand right behind what it says was archived" in found


def test_a_rewritten_value_needs_an_anchor(bundle: Path, tmp_path: Path) -> None:
    """A value rewritten in its owner's name, all chained anew, is a sound log: its newest digest is another one."""
    lines = read_lines(bundle)
    event(lines, 7).update(body='{"update":2}')
    rechain(lines)
    path = write_lines(tmp_path / "edit.refold", lines)
    assert check_bundle(path).digest != check_bundle(bundle).digest


def test_nothing_before_pruned_reads_can_be_rewritten(bundle: Path, tmp_path: Path) -> None:
    """A value rewritten before a gap, all chained anew: the gap begins at a digest that is no longer there."""
    lines = read_lines(bundle)
    event(lines, 3).update(body='{"basis":"first notice","value":{"desk":"laval","ruleset":"QC_auto_2026"}}')
    rechain(lines)
    refused(write_lines(tmp_path / "edit.refold", lines))


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("seq", 0), ("seq", -1), ("seq", 1.0), ("seq", True), ("seq", "3"), ("seq", 10**400), ("seq", None),
        ("version", 1 << 63), ("turn", -1), ("recorded_at", "now"), ("trace_flags", 256), ("kind", "state.exploded"),
        ("kind", 1), ("kind", None), ("actor", 7), ("actor", "a\u0000b"), ("actor", "x" * 1025), ("owner", ["x"]),
        ("key", {"a": 1}), ("digest", "zz"), ("digest", "AA" * 32), ("digest", "00"), ("salt", None), ("salt", "00"),
        ("body", {"value": 1}), ("body", "{"), ("body", "[]"), ("body", '{"a":1,"a":2}'), ("body", '{ "a":1}'),
        ("body", '{"value":NaN}'), ("body", "[" * 5000), ("refs", "nope"), ("refs", []), ("commitment", "00" * 32),
        ("path", "../../etc/passwd"), ("span_id", "00" * 16), ("request_id", 4),
    ],
)  # fmt: skip
def test_wrong_types_and_ranges(bundle: Path, tmp_path: Path, member: str, value: Any) -> None:
    """Each wrong member of an event is refused with its line."""
    lines = read_lines(bundle)
    event(lines, 3)[member] = value
    assert "line 5" in refused(write_lines(tmp_path / "edit.refold", lines), example=False)


@pytest.mark.parametrize(
    "change",
    [
        {"form": 2}, {"refold": "x"}, {"tenant": 1}, {"tenant": "a\u0000"}, {"until": 0}, {"until": 1 << 40},
        {"scope": 3}, {"redacted": "no"}, {"erased": 1}, {"erased": [[1]]}, {"erased": [["1", 1, None, None]]},
        {"pruned": [[4, 3, "00" * 32, "00" * 32, 9]]}, {"pruned": [[4, 5, "00", "00" * 32, 9]]},
        {"extra": 1}, {"digest": None}, {"erased": [[99, 1, None, None]]}, {"pruned": [[4, 5, *GAP, 99]]},
        {"erased": [[9, 1, None, None], [8, 1, None, None]]}, {"erased": [[9, 1, None, None]] * 2},
        {"pruned": [[6, 7, *GAP, 9], [4, 5, *GAP, 9]]}, {"pruned": [[4, 6, *GAP, 9], [6, 7, *GAP, 9]]},
    ],
)  # fmt: skip
def test_wrong_manifests(bundle: Path, tmp_path: Path, change: dict[str, Any]) -> None:
    """Each wrong member of the manifest is refused on line 1."""
    lines = read_lines(bundle)
    lines[0] |= change
    assert "line 1" in refused(write_lines(tmp_path / "edit.refold", lines), example=False)


def test_a_manifest_has_all_its_members(bundle: Path, tmp_path: Path) -> None:
    """Each member that a manifest lacks is refused on line 1."""
    whole = read_lines(bundle)
    for name in whole[0]:
        lines = [{key: value for key, value in whole[0].items() if key != name}, *whole[1:]]
        assert "line 1" in refused(write_lines(tmp_path / "edit.refold", lines), example=False)


def as_declared(lines: Lines, said: dict[str, Any]) -> None:
    """Put another declaration in the place of the first schema, with all digests made to fit."""
    declaration = text([said]).decode().strip()
    fingerprint = sha256(declaration.encode()).hexdigest()
    for line in lines:
        if "body" in line:
            line["body"] = line["body"].replace(lines[1]["schema"], fingerprint)
    lines[1] = {"schema": fingerprint, "declaration": declaration}
    rechain(lines)


@pytest.mark.parametrize(
    "change",
    [
        lambda said: said.clear(), lambda said: said.update(form=2), lambda said: said.update(keys=[]),
        lambda said: said.update(groups={"research": 1}), lambda said: said.pop("invariants"),
        lambda said: said["keys"]["spent"].clear(), lambda said: said["keys"]["spent"].update(owner=["x"]),
        lambda said: said["keys"]["spent"].update(type="x"), lambda said: said["keys"]["spent"].update(reducer=[]),
        lambda said: said["invariants"].update(cap="spent <"), lambda said: said["keys"].pop("spent"),
    ],
)  # fmt: skip
def test_schemas_that_cannot_be_read(bundle: Path, tmp_path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """A declaration that fits its fingerprint and is none is refused with its line, whatever it trips over."""
    lines = read_lines(bundle)
    said = json.loads(lines[1]["declaration"])
    change(said)
    as_declared(lines, said)
    found = refused(write_lines(tmp_path / "edit.refold", lines), example=False)
    assert "line 2: the schema cannot be read" in found


def test_a_schema_that_unfolds_without_end(bundle: Path, tmp_path: Path) -> None:
    """A type of forty references, each twice, would be looked at 2^40 times: refused, and a recursive one is not."""
    defs: dict[str, Any] = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)}
    endless = {"$defs": defs | {"d40": {}}, "$ref": "#/$defs/d0"}
    with pytest.raises(ConfigError, match="unfolds"):
        compile_schema({"keys": {"k": {"owner": "w", "type": endless}}}).key("k").prepare(1)
    tree = {"type": "object", "properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}}}
    compile_schema({"keys": {"k": {"owner": "w", "type": tree}}}).key("k").prepare({"left": {"right": {}}})
    lines = read_lines(bundle)
    said = json.loads(lines[1]["declaration"])
    said["keys"]["routing"]["type"] = endless
    as_declared(lines, said)
    assert "unfolds" in refused(write_lines(tmp_path / "edit.refold", lines), example=False)


def test_what_was_erased_is_found_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many erasures of the same, the one that reaches furthest is asked: a bundle may tell of any number."""
    allowed, asked = Allowances(), []
    for seq in range(1, 1_001):
        allowed.erase(Erasure(seq, seq - 1 if seq != 500 else 10_000, None, None))
    covers = Erasure.covers
    monkeypatch.setattr(Erasure, "covers", lambda *event: asked.append(event) or covers(*event))
    note = KIND_ID["note.added"]
    assert [allowed.erased_by(seq, note, None, None) for seq in (1, 999, 1_000)] == [1_000, 1_000, None]
    assert len(asked) == 3


def test_files_that_are_no_bundle(bundle: Path, tmp_path: Path) -> None:
    """Empty, plain text, other gzip, trailing bytes, a second bundle behind, deep nesting, duplicate members."""
    path = tmp_path / "odd.refold"
    data = bundle.read_bytes()
    deep = b'{"refold":' + b"[" * 200_000 + b"]" * 200_000 + b"}\n"
    twice = b'{"refold":"bundle","refold":"bundle"}\n'
    packed = [gzip.compress(one) for one in (b"", b"hello\n", deep, twice, b"\xff\xfe\n", b"null\n")]
    for odd in (b"", b"hello", data + b"x", data + data, *packed):
        path.write_bytes(odd)
        refused(path)
    with pytest.raises(BundleInvalid, match="cannot read"):
        check_bundle(tmp_path / "nowhere.refold")
    with pytest.raises(BundleInvalid, match="cannot read"):
        check_bundle(tmp_path)


def test_an_end_that_lies(bundle: Path, tmp_path: Path) -> None:
    """A wrong count, a wrong hash, half a signature."""
    lines = read_lines(bundle)
    for change in ({"end": 1}, {"sha256": "00" * 32}, {"public_key": "00" * 32}, {"end": True}):
        path = write_lines(tmp_path / "edit.refold", [*lines[:-1], lines[-1] | change], end=False)
        refused(path, example="public_key" not in change and change != {"end": True})


def test_names_are_no_paths(tmp_path: Path) -> None:
    """A run named like a path makes its file inside the folder, and the import makes no file at all."""
    from click.testing import CliRunner

    from refold.app import root

    url = f"sqlite:///{tmp_path / 'a.db'}"
    names = ["../../evil", "/etc/passwd", "..", ".", "", "a" * 900, "x\ny", "C:\\evil"]
    with open_store(url, Schema.open()) as store:
        for name in names:
            store.run(name).write_state("k", 1, writer="w")
    done = CliRunner().invoke(root, ["export", "--all", "-o", str(tmp_path / "out"), "--store", url])
    assert done.exit_code == 0, done.output
    assert len(list((tmp_path / "out").iterdir())) == len(names)
    assert sorted(one.name for one in tmp_path.iterdir() if not one.name.startswith("a.db")) == ["out"]


def lists(size: int) -> bytes:
    """A list of empty lists: a byte of text takes 24 of memory."""
    return b"[" + b"[]," * size + b"[]]"


def many_erasures(first: bytes, size: int) -> bytes:
    """A manifest that tells of so many erasures."""
    said = json.loads(first)
    return text([said | {"until": size, "erased": [[one + 1, 1, None, None] for one in range(size)]}])


def many_schemas(size: int) -> bytes:
    """Schemas of a megabyte, each with its own fingerprint."""
    said = [f'"{number}{" " * 1_000_000}"' for number in range(size)]
    return text([{"schema": sha256(one.encode()).hexdigest(), "declaration": one} for one in said])


VALUES = {"body": "[]", "floats": "1.5", "numbers": "999", "texts": '\\"a\u00e9\\"', "objects": '{\\"a\\":1}'}
"""Values of which a list takes up to twenty times the memory of its text, as they stand in a line."""


def parts(unit: str) -> bytes:
    """An event whose value is a list of many units."""
    start = {"seq": 1, "kind": "run.opened", "recorded_at": 1, "digest": "00" * 32, "salt": "00" * 16}
    count = 40_000_000 // (len(unit.encode()) + 1)
    return text([start])[:-2] + b',"body":"{\\"value\\":[' + f"{unit},".encode() * count + unit.encode() + b']}"}\n'


@pytest.mark.parametrize("bomb", ["line", "lines", "members", "manifest", "erased", "schemas", *VALUES])
def test_bombs_stay_within_bounds(bundle: Path, tmp_path: Path, bomb: str) -> None:
    """A small file that unpacks to gigabytes of text or of values is refused in bounded memory."""
    start = text([{"refold": "bundle"}])
    first = gzip.decompress(bundle.read_bytes()).split(b"\n", 1)[0]
    path = tmp_path / "bomb.refold"
    with path.open("wb") as file:
        if bomb in VALUES:
            file.write(gzip.compress(first + b"\n" + parts(VALUES[bomb]), 1))
        elif bomb in ("manifest", "erased", "schemas"):
            data = {
                "manifest": lambda: first[:-1] + b',"x":' + lists(20_000_000) + b"}\n",
                "erased": lambda: many_erasures(first, 600_000),
                "schemas": lambda: first + b"\n" + many_schemas(40),
            }[bomb]()
            file.write(gzip.compress(data, 1))
        elif bomb == "line":
            with gzip.GzipFile(fileobj=file, mode="wb") as packed:
                for _piece in range(2000):
                    packed.write(b"[" * (1 << 20))
        else:
            piece = gzip.compress(b" " * (1 << 20) if bomb == "members" else start * 10_000)
            for _piece in range(2000):
                file.write(piece)
    script = (
        "import resource, sys; from refold_replay.bundle_import import check_bundle\n"
        f"resource.setrlimit(resource.RLIMIT_AS, ({MEMORY}, {MEMORY}))\n"
        "try: check_bundle(sys.argv[1])\n"
        "except Exception as error: print(type(error).__name__, error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("BundleInvalid"), done.stdout + done.stderr
    assert bomb != "schemas" or "16777216 bytes" in done.stdout
    assert bomb not in {"manifest", *VALUES} or "parts" in done.stdout
    assert bomb != "erased" or "erasures and gaps" in done.stdout


def test_commas_inside_texts_are_no_parts(bundle: Path, tmp_path: Path) -> None:
    """A long text of commas, quotes and brackets is one value, however many of them it has."""
    lines = read_lines(bundle)
    note = next(one for one in lines if one.get("key") == "note")
    note["body"] = encode({"value": '[,"\\:{' * (PARTS_MAX // 2)}).decode()
    rechain(lines)
    assert check_bundle(write_lines(tmp_path / "text.refold", lines)).outcome == "checked"


def test_the_hash_is_of_all_lines(bundle: Path) -> None:
    """The end's hash is SHA-256 of the bytes of all lines before it."""
    lines = gzip.decompress(bundle.read_bytes()).splitlines(keepends=True)
    assert json.loads(lines[-1])["sha256"] == sha256(b"".join(lines[:-1])).hexdigest()
