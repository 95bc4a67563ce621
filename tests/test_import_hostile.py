"""Hostile texts through the import: naughty strings as names and values, the JSON parsing suite as values."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from refold import Store
from refold_replay import importing
from refold_replay.importing import ImportReport, import_files
from refold_replay.infer import infer_schema
from refold_replay.verify import verify
from refold_store.errors import ConfigError, NameInvalid, NotExact
from refold_store.jsontext import encode, parse
from refold_store.names import check_name

Data = Callable[[str], Path]

GOOD = {"run": "r", "seq": 1, "kind": "write", "agent": "a", "key": "k", "value": 1}
SCHEMA = {"keys": {"k": {"owner": "a"}, "l": {"owner": "a"}}}


def lines_file(folder: Path, *lines: dict[str, Any]) -> Path:
    """A file of event lines: each is a good write, changed, with the next seq."""
    path = folder / "events.jsonl"
    path.write_text("".join(json.dumps(GOOD | {"seq": seq} | line) + "\n" for seq, line in enumerate(lines, 1)))
    return path


def faults(report: ImportReport) -> list[tuple[int, str]]:
    """(line, message) of each error of an import that stored nothing."""
    assert report.imported == []
    return [(error.line, error.message) for error in report.errors]


def is_name(text: str) -> bool:
    """Whether a text can be a name."""
    try:
        check_name("key", text)
    except NameInvalid:
        return False
    return True


def cases(shared_data: Data, expect: str) -> list[bytes]:
    """The suite's texts of one verdict that fit on a line."""
    with gzip.open(shared_data("jsontestsuite/dev") / "cases.jsonl.gz") as lines:
        found = [json.loads(line) for line in lines]
    texts = [base64.b64decode(case["base64"]) for case in found if case["expect"] == expect]
    return [text for text in texts if b"\n" not in text]


def test_naughty_strings_are_names_and_values(
    store_url: str, open_new: Callable[..., Store], shared_data: Data, tmp_path: Path
) -> None:
    """Each string is the key, agent, run and value of a write; all come back equal, the schema being inferred."""
    strings = [text for text in json.loads((shared_data("blns/dev") / "strings.json").read_bytes()) if is_name(text)]
    strings = list(dict.fromkeys(strings))
    path = tmp_path / "events.jsonl"
    with path.open("w") as file:
        for seq, text in enumerate(strings, 1):
            line = {"run": "one", "seq": seq, "kind": "write", "agent": text, "key": text, "value": {text: text}}
            file.write(json.dumps(line) + "\n")
        for text in strings:
            line = {"run": text, "seq": 1, "kind": "write", "agent": "a", "key": "k", "value": text}
            file.write(json.dumps(line) + "\n")
    report = import_files(store_url, [path])
    assert [str(error) for error in report.errors] == []
    store = open_new()
    state = store.run("one").state()
    assert state.json() == {text: {text: text} for text in strings}
    assert {text: state[text].written_by for text in strings} == {text: text for text in strings}
    assert {text: store.run(text).peek("k").json for text in strings} == {text: text for text in strings}
    assert verify(store_url).ok


def test_accepted_texts_read_back_equal(
    store_url: str, open_new: Callable[..., Store], shared_data: Data, tmp_path: Path
) -> None:
    """Every text the suite calls JSON is stored and comes back as the same value."""
    stored: dict[str, bytes] = {}
    with (tmp_path / "events.jsonl").open("wb") as file:
        for text in cases(shared_data, "accept"):
            try:
                exact = encode(parse(text))
            except NotExact:  # duplicate members: JSON by its grammar, refused here on purpose
                continue
            key = f"k{len(stored)}"
            stored[key] = exact
            head = json.dumps({"run": "r", "seq": len(stored), "kind": "write", "agent": "a", "key": key})[:-1]
            file.write(head.encode() + b',"value":' + text + b"}\n")
    assert len(stored) > 40
    assert import_files(store_url, [tmp_path / "events.jsonl"]).ok
    run = open_new().run("r")
    assert {key: run.peek(key).text for key in stored} == stored


def test_bad_texts_are_refused_with_their_line(sqlite_url: str, shared_data: Data, tmp_path: Path) -> None:
    """Every text the suite calls no JSON fails its run, and the report names the line."""
    bad = cases(shared_data, "reject")
    assert len(bad) > 80
    with (tmp_path / "events.jsonl").open("wb") as file:
        for number, text in enumerate(bad):
            head = json.dumps({"run": f"r{number}", "seq": 1, "kind": "turn", "agent": "a"}).encode()
            file.write(head + b"\n" + head[:-1].replace(b'"seq": 1', b'"seq": 2') + b',"value":' + text + b"}\n")
    report = import_files(sqlite_url, [tmp_path / "events.jsonl"], schema={"keys": {"k": {"owner": "a"}}})
    assert report.imported == []
    assert [error.line for error in report.errors] == [2 * number + 2 for number in range(len(bad))]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ({"ts": "9999-12-31T23:59:59.999999"}, "after the year 9998"),
        ({"ts": "9999-01-01"}, "after the year 9998"),
        ({"ts": {}}, '"ts" is a time as text'),
        ({"ts": []}, '"ts" is a time as text'),
        ({"ts": 0}, '"ts" is a time as text'),
        ({"kind": []}, '"kind" is []'),
        ({"kind": {}}, '"kind" is {}'),
        ({"kind": None}, '"kind" is None'),
        ({"agent": []}, "agent name must be text"),
        ({"agent": "a\0"}, "NUL"),
        ({"agent": "a" * 1025}, "1025 bytes"),
        ({"key": {}}, "key name must be text"),
        ({"key": "k\0"}, "NUL"),
        ({"key": "k" * 1025}, "1025 bytes"),
        ({"on_behalf_of": 0}, "agent name must be text"),
        ({"on_behalf_of": []}, "agent name must be text"),
        ({"on_behalf_of": {}}, "agent name must be text"),
        ({"on_behalf_of": False}, "agent name must be text"),
        ({"deleted": "no"}, '"deleted" is true or false'),
        ({"txn": True}, '"txn" is a number or a text'),
        ({"txn": []}, '"txn" is a number or a text'),
    ],
)
@pytest.mark.parametrize("schema", [None, SCHEMA])
def test_a_wrong_member_is_told_with_its_line(
    sqlite_url: str, tmp_path: Path, line: dict[str, Any], says: str, schema: Any
) -> None:
    """A member of a shape or a size that cannot be is an error of its line, with a schema and without."""
    [(number, message)] = faults(import_files(sqlite_url, [lines_file(tmp_path, {}, line)], schema=schema))
    assert number == 2
    assert says in message


def test_the_last_time_that_is_taken(store_url: str, open_new: Callable[..., Store], tmp_path: Path) -> None:
    """The end of 9998 is stored, and everything about the run can be asked."""
    assert import_files(store_url, [lines_file(tmp_path, {"ts": "9998-12-31T23:59:59.999999"}, {})]).ok
    store = open_new()
    [info] = store.runs()
    assert info.last_at.year == 9999  # each event is 1 us later than the one before
    assert verify(store_url).ok


@pytest.mark.parametrize(
    ("second", "says"),
    [
        ({"turn": 2, "ts": "2026-01-01T00:00:00"}, "began in turn 1, not 2"),
        ({"turn": 1, "ts": "2026-01-01T00:00:01"}, 'at another "ts"'),
        ({"turn": 1, "ts": "2026-01-01T00:00:00", "txn": 7.5}, '"txn" is a number'),
    ],
)
def test_a_transaction_has_one_turn_and_time(
    sqlite_url: str, tmp_path: Path, second: dict[str, Any], says: str
) -> None:
    """A write that says another turn or time than the first of its transaction is refused: none is dropped."""
    path = lines_file(tmp_path, {"txn": 7, "turn": 1, "ts": "2026-01-01T00:00:00"}, {"txn": 7, "key": "l", **second})
    [(number, message)] = faults(import_files(sqlite_url, [path], schema=SCHEMA))
    assert number == 2
    assert says in message


def test_a_transaction_whose_first_line_has_no_time(
    sqlite_url: str, open_new: Callable[..., Store], tmp_path: Path
) -> None:
    """Lines before the first time take that time, so a transaction may begin there."""
    path = lines_file(tmp_path, {"txn": "x"}, {"txn": "x", "key": "l", "ts": "2026-01-01T00:00:00"})
    assert import_files(sqlite_url, [path], schema=SCHEMA).ok
    written = list(open_new(url=sqlite_url).run("r").events(kinds=["state.written"]))
    assert len({event.txn for event in written}) == 1


def test_names_that_cannot_be_do_not_stop_infer(tmp_path: Path) -> None:
    """Infer passes over lines whose names cannot be stored, and learns from the others."""
    bad = [{"key": "k\0"}, {"key": "k" * 1025}, {"agent": "b\0"}, {"on_behalf_of": "c" * 1025}, {"on_behalf_of": 0}]
    found = infer_schema([lines_file(tmp_path, *bad, {})])
    assert list(found.document["keys"]) == ["k"]
    assert found.document["keys"]["k"]["owner"] == "a"


def test_inferred_names_do_not_grow_too_long(sqlite_url: str, tmp_path: Path) -> None:
    """A long prefix makes no family, a long name no group of its own; the import goes through."""
    long = "k" * 1021
    path = lines_file(
        tmp_path,
        {"key": f"{long}/a"},
        {"key": f"{long}/b"},
        {"key": long, "agent": "b" * 1024},
        {"key": long, "agent": "c"},
        {"key": "l", "agent": "b" * 1024, "on_behalf_of": "d"},
    )
    report = import_files(sqlite_url, [path])
    assert [str(error) for error in report.errors] == []
    assert report.schema is not None
    assert set(report.schema) == {f"{long}/a", f"{long}/b", long, "l"}


@pytest.mark.parametrize("version", [True, 1.0, "1", None])
def test_a_seed_version_is_the_number_1(sqlite_url: str, tmp_path: Path, version: object) -> None:
    """What only equals 1 is refused with file and line."""
    seed = tmp_path / "seed.jsonl"
    seed.write_text(json.dumps({"key": "k", "version": version, "value": 1}) + "\n")
    with pytest.raises(ConfigError, match=r"seed\.jsonl:1: .*version 1"):
        import_files(sqlite_url, [lines_file(tmp_path, {})], seed=seed)


def test_two_imports_at_once(store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that another import of the same lines stores meanwhile is unchanged; of other lines, an error."""
    path = lines_file(tmp_path, {}, {})

    def racing() -> ImportReport:
        monkeypatch.setattr(importing._Importer, "_earlier", first_blind(importing._Importer._earlier))
        return import_files(store_url, [path], schema=SCHEMA)

    def first_blind(asked: Callable[..., Any]) -> Callable[..., Any]:
        def earlier(self: Any, made: Any) -> Any:
            if not calls:
                calls.append(made)
                return None
            return asked(self, made)

        return earlier

    calls: list[object] = []
    assert import_files(store_url, [path], schema=SCHEMA).ok
    report = racing()
    assert (report.unchanged, report.errors) == (["r"], [])
    monkeypatch.undo()
    calls.clear()
    path = lines_file(tmp_path, {}, {"value": 2})
    assert "imported before from other lines" in racing().errors[0].message
