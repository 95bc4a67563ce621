"""Hostile texts through the import: naughty strings as names and values, the JSON parsing suite as values."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Callable
from pathlib import Path

from refold import Store
from refold_replay.importing import import_files
from refold_replay.verify import verify
from refold_store.errors import NameInvalid, NotExact
from refold_store.jsontext import encode, parse
from refold_store.names import check_name

Data = Callable[[str], Path]


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
