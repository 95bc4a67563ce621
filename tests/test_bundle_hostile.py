"""Bundles that are damaged or hostile: refused with a line, by the store and by the example; nothing enters."""

from __future__ import annotations

import gzip
import json
import resource
import subprocess
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from bundles import Lines, by_hand, fill, read_lines, text, write_lines

from refold import open_store
from refold_replay.bundle_import import check_bundle, import_bundle
from refold_replay.exporting import export
from refold_store.errors import BundleInvalid
from refold_store.events import KIND_ID, chain, commit, genesis, header

Change = Callable[[Lines], object]
PLAIN = ("seq", "txn", "turn", "version", "seen_seq", "recorded_at", "clock", "request_id", "refs", "trace_flags",
         "actor", "owner", "key")  # fmt: skip
"""Columns of a header that a line has as they are."""
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


def rechain(lines: Lines) -> None:
    """Make all digests fit again, as somebody would who rewrites history."""
    manifest = lines[0]
    digest = genesis(manifest["tenant"], manifest["genesis"], manifest["scope"])
    gaps = {first: (last, end) for first, last, _before, end, _said in manifest["pruned"]}
    seq = 0
    for one in lines:
        if "seq" not in one:
            continue
        while seq + 1 in gaps and one["seq"] != seq + 1:
            seq, digest = gaps[seq + 1][0], bytes.fromhex(gaps[seq + 1][1])
        seq = one["seq"]
        names = (
            "seq",
            "txn",
            "turn",
            "version",
            "seen_seq",
            "recorded_at",
            "clock",
            "request_id",
            "refs",
            "trace_flags",
        )
        cells = {name: one.get(name) for name in (*names, "actor", "owner", "key")}
        raw = {name: bytes.fromhex(one[name]) if name in one else None for name in ("trace_id", "span_id")}
        held = bytes.fromhex(one["commitment"]) if "commitment" in one else commit(
            bytes.fromhex(one["salt"]), one["body"].encode() if "body" in one else None
        )  # fmt: skip
        digest = chain(digest, header(kind=KIND_ID[one["kind"]], **cells, **raw), held)
        one["digest"] = digest.hex()
    manifest["digest"] = digest.hex()


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
        (lambda lines: lines[0]["erased"].append([12, 0, None, None]), "other erased or pruned"),
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
        {"extra": 1}, {"digest": None},
    ],
)  # fmt: skip
def test_wrong_manifests(bundle: Path, tmp_path: Path, change: dict[str, Any]) -> None:
    """Each wrong member of the manifest is refused on line 1."""
    lines = read_lines(bundle)
    lines[0] |= change
    assert "line 1" in refused(write_lines(tmp_path / "edit.refold", lines), example=False)


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

    from refold import Schema
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


@pytest.mark.parametrize("bomb", ["line", "lines", "members"])
def test_bombs_stay_within_bounds(tmp_path: Path, bomb: str) -> None:
    """A small file that unpacks to gigabytes is refused in bounded memory: an endless line, many lines or members."""
    start = text([{"refold": "bundle"}])
    unpacked = {"line": b"[" * (1 << 20), "lines": start, "members": b" " * (1 << 20)}[bomb]
    path = tmp_path / "bomb.refold"
    with path.open("wb") as file:
        if bomb == "line":
            with gzip.GzipFile(fileobj=file, mode="wb") as packed:
                for _piece in range(2000):
                    packed.write(unpacked)
        else:
            piece = gzip.compress(unpacked * (1 if bomb == "members" else 10_000))
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
    assert resource.RLIMIT_AS is not None


def test_the_hash_is_of_all_lines(bundle: Path) -> None:
    """The end's hash is SHA-256 of the bytes of all lines before it."""
    lines = gzip.decompress(bundle.read_bytes()).splitlines(keepends=True)
    assert json.loads(lines[-1])["sha256"] == sha256(b"".join(lines[:-1])).hexdigest()
