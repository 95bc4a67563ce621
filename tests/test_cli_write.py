"""Writing from the command line, by the same rules as agents, on both backends."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from refold import open_store

Cli = Callable[..., Any]
RUN = "clm-77401"
SCHEMA = "keys:\n  count: {owner: counter, type: integer}\n  text: {owner: counter, type: any}\n"


@pytest.fixture
def schema_file(tmp_path: Path) -> str:
    """A schema as YAML."""
    path = tmp_path / "schema.yaml"
    path.write_text(SCHEMA)
    return str(path)


def test_write_and_delete(claims_url: str, refold_cli: Cli) -> None:
    """A write says the version and seq it made; a delete is a version, too."""
    place = ("--writer", "intake_agent", "--store", claims_url)
    written = refold_cli(
        "write", RUN, "loss", '{"claimed": 1e22}', "--basis", "corrected", "--based-on", "routing@2", *place
    )
    assert written.stdout == "loss is at version 2, seq 15\n"
    deleted = refold_cli("delete", RUN, "loss", "--json", *place)
    assert json.loads(deleted.stdout) == {"key": "loss", "run": RUN, "seq": 16, "tenant": "default", "version": 3}
    with open_store(claims_url) as store:
        history = store.run(RUN).history("loss")
    assert [(read.text, read.basis, read.based_on) for read in history[1:]] == [
        (b'{"claimed":1e+22}', "corrected", [("routing", 2)]), (b"", None, []),
    ]  # fmt: skip


def test_a_refusal_has_its_own_code_and_is_recorded(claims_url: str, refold_cli: Cli) -> None:
    """A write that is refused ends with 4 and the reason, and stands in the log."""
    result = refold_cli("write", RUN, "routing", "{}", "--writer", "evidence_agent", "--store", claims_url)
    assert result.exit_code == 4
    assert result.stdout == ""
    moved = refold_cli(
        "write", RUN, "loss", "{}", "--writer", "intake_agent", "--expected-version", "0", "--store", claims_url
    )
    assert moved.exit_code == 4
    assert "expected version 0 of 'loss', but it is at version 1" in moved.stderr
    with open_store(claims_url) as store:
        refused = list(store.run(RUN).events(["state.refused"]))
    assert [event.body["reason"] for event in refused[2:]] == ["owner", "conflict"]


def test_a_request_id_makes_repeating_safe(claims_url: str, refold_cli: Cli) -> None:
    """The same command twice with a request id makes one version; with another value it is refused."""
    words = ["--writer", "intake_agent", "--request-id", "once", "--store", claims_url]
    first = refold_cli("write", RUN, "loss", "{}", *words)
    assert refold_cli("write", RUN, "loss", "{}", *words).stdout == first.stdout
    assert refold_cli("write", RUN, "loss", '{"a":1}', *words).exit_code == 4


def test_values_come_from_files_and_standard_input(claims_url: str, refold_cli: Cli, tmp_path: Path) -> None:
    """@FILE and - hold the value; --text takes it as plain text."""
    place = ("--writer", "evidence_agent", "--store", claims_url)
    file = tmp_path / "value.json"
    file.write_text('["photograph", "invoice"]')
    refold_cli("write", RUN, "evidence", f"@{file}", *place)
    refold_cli("write", RUN, "evidence", "-", "--text", *place, input="a long report\n")
    with open_store(claims_url) as store:
        assert store.run(RUN).peek("evidence").json[1:] == ["photograph", "invoice", "a long report\n"]
    assert refold_cli("write", RUN, "evidence", "@absent.json", *place).exit_code == 2


@pytest.mark.parametrize(
    ("value", "message"),
    [("QC", "for plain text add --text"), ('{"a":1,"a":2}', "$.a"), ("NaN", "not JSON"), ("[1,", "not JSON")],
)
def test_a_value_is_strict_json(claims_url: str, refold_cli: Cli, value: str, message: str) -> None:
    """What is not exactly JSON is refused with its place, before anything is written."""
    result = refold_cli("write", RUN, "loss", value, "--writer", "intake_agent", "--store", claims_url)
    assert result.exit_code == 2
    assert message in result.stderr


def test_a_new_run_needs_a_schema(store_url: str, refold_cli: Cli, schema_file: str) -> None:
    """A run is made by a write only with --schema, so that a typing mistake makes none."""
    words = ["write", "r", "count", "1", "--writer", "counter", "--store", store_url]
    if store_url.startswith("sqlite"):
        assert refold_cli(*words).exit_code == 5
        assert not Path(store_url.removeprefix("sqlite:///")).exists()
        refold_cli("init", "--store", store_url)
    refused = refold_cli(*words)
    assert refused.exit_code == 3
    assert "a new run needs --schema FILE" in refused.stderr
    assert refold_cli(*words, "--schema", schema_file).stdout == "count is at version 1, seq 3\n"
    assert refold_cli(*words).stdout == "count is at version 2, seq 4\n"


def test_big_integers_go_both_ways(store_url: str, refold_cli: Cli, schema_file: str) -> None:
    """An integer of forty digits is stored and printed in full."""
    number = str(10**39 + 7)
    place = ("--store", store_url)
    if store_url.startswith("sqlite"):
        refold_cli("init", *place)
    refold_cli("write", "r", "text", number, "--writer", "counter", "--schema", schema_file, *place)
    assert f'"value":{number},' in refold_cli("get", "r", "text", "--json", *place).stdout
    assert number in refold_cli("get", "r", "text", *place).stdout
