"""`refold whatif`: its text, its JSON, its masks and its mistakes, on each backend."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from refold import Store

Cli = Callable[..., Result]
RUN = "clm-77401"


@pytest.fixture
def whatif(refold_cli: Cli, claims_url: str) -> Cli:
    """The command on the demo's run."""

    def call(*words: str) -> Result:
        return refold_cli("whatif", RUN, *words, "--store", claims_url)

    return call


def test_summary_and_list(whatif: Cli) -> None:
    """A summary comes first, then what would be another, then what rests on that, then the end."""
    found = whatif("--skip", "routing@2")
    assert found.exit_code == 0
    lines = found.stdout.splitlines()
    assert lines[0] == (
        "clm-77401, 14 events: 0 events would change, 0 would be refused, 1 read would have seen another value; "
        "0 decisions rest on these"
    )
    assert lines[2] == "would be another"
    assert lines[4].split() == ["12", "triage_agent", "writes", "routing@2", "left", "out"]
    assert lines[5].endswith("reads routing@2   would see routing@1")
    assert lines[7:] == ["at the end", "  routing  ~ $.authority_limit  8000 -> 15000",
                         "  routing  ~ $.police_report  true -> false"]  # fmt: skip


def test_decisions_are_told_apart(whatif: Cli) -> None:
    """Writes that stay the same stand under a title of their own, with their grounds."""
    found = whatif("--skip", "routing@1").stdout
    direct, resting = found.split("\nthe same, resting on these\n")
    assert "would see nothing" in direct
    assert "settlement" not in direct.split("would be another")[1].replace("settlement_agent", "")
    assert "routing@1 (stated, read at 7)" in resting
    assert "expected version 1, which is gone" in resting


def test_an_erased_version_is_named(whatif: Cli, refold_cli: Cli, claims_url: str) -> None:
    """What an erased version would hold cannot be shown: reads and the end say that it was erased."""
    why = ("--as", "dpo", "--reason", "asked for", "--yes")
    assert refold_cli("erase", RUN, "routing@1", *why, "--store", claims_url).exit_code == 0
    found = whatif("--skip", "routing@2").stdout
    assert "would see routing@1 (erased)" in found
    assert found.endswith("at the end\n  routing  (erased: what it would hold cannot be told)\n")
    document = json.loads(whatif("--skip", "routing@2", "--json").stdout)
    assert [(one["key"], one["erased"], one["after"]) for one in document["final"]] == [("routing", True, None)]


def test_no_change_no_difference(whatif: Cli) -> None:
    """Without an option the run is gone through and nothing differs."""
    assert whatif().stdout == "clm-77401, 14 events: nothing would differ\n"
    found = json.loads(whatif("--json").stdout)
    assert not found["differs"]
    assert found["differences"] == found["final"] == []
    assert found["at_seq"] == 14


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--edit", "reserve_band@1=[7000,6000]"], [(8, "refused")]),
        (["--edit", 'evidence@1=["a"]'], [(11, "edited"), (12, "depends")]),
        (["--reducer", "loss=merge"], []),
        (["--condition", "band_in_order="], [(10, "accepted instead")]),
        (
            ["--condition", "small=reserve_band[1] < 20000", "--condition", "band_in_order=reserve_band[0] < 30000"],
            [(8, "refused"), (10, "accepted instead")],
        ),
        (["--owner", "evidence=intake_agent"], [(11, "refused"), (12, "depends")]),
        (["--skip", "8", "--skip", "key:evidence@1"], [(8, "removed"), (11, "removed"), (12, "depends")]),
    ],
)
def test_each_option(whatif: Cli, options: list[str], expected: list[tuple[int, str]]) -> None:
    """Each option changes what it says; all but the schema may be repeated."""
    found = json.loads(whatif(*options, "--json").stdout)
    assert [(one["seq"], one["what"]) for one in found["differences"]] == expected
    assert found["differs"] == bool(expected)


def test_another_schema(whatif: Cli, tmp_path: Path) -> None:
    """A schema from a file holds in place of the run's own."""
    path = tmp_path / "schema.yaml"
    path.write_text("keys:\n  loss: {owner: intake_agent}\n  routing: {owner: triage_agent}\n")
    found = json.loads(whatif("--schema", str(path), "--json").stdout)
    refused = [(one["key"], one["reason"]) for one in found["differences"] if one["what"] == "refused"]
    assert refused == [("reserve_band", "unknown_key"), ("evidence", "unknown_key"), ("settlement", "unknown_key")]
    assert found["counts"] == {"changed": 0, "refused": 3, "reads": 0, "depends": 1, "not_judged": 0, "keys": 3}


def test_json_members(whatif: Cli) -> None:
    """Every member is always there."""
    found = json.loads(whatif("--owner", "routing=evidence_agent", "--json").stdout)
    assert set(found) == {"run", "tenant", "at_seq", "differs", "counts", "differences", "final"}
    members = {frozenset(one) for one in found["differences"]}
    assert members == {
        frozenset(
            ("seq", "kind", "actor", "key", "version", "what", "direct", "reason", "message", "sees", "rests_on",
             "more_grounds", "masked", "cut", "before", "after", "had_value", "would_have_value", "changes",
             "more_changes")
        )
    }  # fmt: skip
    instead = next(one for one in found["differences"] if one["what"] == "accepted instead")
    assert instead["after"]["ruleset"] == "ON-auto"
    assert (instead["before"], instead["had_value"], instead["version"]) == (None, False, None)
    [last] = [one for one in found["differences"] if one["seq"] == 14]
    assert last["rests_on"] == [{"key": "routing", "version": 1, "kind": "stated", "read_seq": 7}]
    assert not last["direct"]


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        (["--skip", "5"], 2, "seq 5 is state.read by 'evidence_agent', no write; the nearest writes are 3 (loss@1)"),
        (["--skip", "99"], 3, "seq 99 is not in this run"),
        (["--skip", "routing@9"], 3, "key 'routing' has no version 9"),
        (["--skip", "9"], 2, "nothing to skip"),
        (["--edit", "3"], 2, "write SEQ=VALUE"),
        (["--edit", "3=foo"], 2, "is not JSON"),
        (["--edit", "99=1"], 3, "seq 99 is not in this run"),
        (["--owner", "rooting=x"], 3, "did you mean 'routing'"),
        (["--owner", "routing"], 2, "write KEY=NAME"),
        (["--owner", "routing="], 2, "write KEY=NAME"),
        (["--owner", "routing=a", "--owner", "routing=b"], 2, "twice"),
        (["--reducer", "evidence=appnd"], 2, "did you mean 'append'"),
        (["--condition", "bandorder="], 2, "did you mean 'band_in_order'"),
        (["--condition", "x=reserve_bnd[0] < 1"], 2, "did you mean reserve_band"),
        (["--schema", "nowhere.yaml"], 2, "nowhere.yaml"),
    ],
)
def test_mistakes(whatif: Cli, options: list[str], code: int, text: str) -> None:
    """A mistake is one line that says what was meant, and an exit code."""
    found = whatif(*options)
    assert found.exit_code == code, found.stderr
    assert text in found.stderr
    assert found.stderr.count("\n") == 1
    assert not found.stdout


SECRET: dict[str, Any] = {
    "keys": {
        "pin": {"owner": "ann", "type": {"type": "object"}, "sensitive": True},
        "low": {"owner": "ann", "type": "integer"},
        "top": {"owner": "ann", "type": "integer", "sensitive": True},
    },
    "invariants": {"order": "low <= top"},
}


@pytest.mark.parametrize("schema", [SECRET, {**SECRET, "keys": {**SECRET["keys"], "top": SECRET["keys"]["low"]}}])
def test_sensitive_values_are_masked(
    open_new: Callable[..., Store], store_url: str, refold_cli: Cli, tmp_path: Path, schema: dict[str, Any]
) -> None:
    """No value, path or message of a sensitive key is shown unless asked for, whatever the schema tried says."""
    run = open_new(SECRET).run("r")
    run.write_state("pin", {"code-4711": 4711}, writer="ann")
    run.write_state("top", 8899, writer="ann")
    run.write_state("low", 5, writer="ann")
    path = tmp_path / "schema.json"
    path.write_text(json.dumps(schema))
    words = ["whatif", "r", "--edit", 'pin@1={"code-0815":815}', "--edit", "low@1=9900", "--schema", str(path)]
    for form in ([], ["--json"]):
        found = refold_cli(*words, *form, "--store", store_url).stdout
        assert "***" in found
        assert not any(text in found for text in ("4711", "8899", "815"))
        shown = refold_cli(*words, *form, "--store", store_url, "--show-sensitive").stdout
        assert all(text in shown for text in ("4711", "815"))
        assert ("8899" in shown) == (schema is not SECRET)


def test_keys_that_hold_an_equals_sign(open_new: Callable[..., Store], store_url: str, refold_cli: Cli) -> None:
    """An edit is split where a moment ends and JSON begins."""
    run = open_new({"keys": {"a=b": {"owner": "ann", "type": "any"}}}).run("r")
    run.write_state("a=b", 1, writer="ann")
    found = refold_cli("whatif", "r", "--edit", 'key:a=b@1={"x": "="}', "--json", "--store", store_url)
    assert json.loads(found.stdout)["differences"][0]["after"] == {"x": "="}
