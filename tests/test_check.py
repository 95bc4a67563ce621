"""The recorded runs against the answers beside them, on both backends, and mismatches named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from refold_replay.checking import check
from refold_replay.importing import import_files
from refold_store.errors import ConfigError

Data = Callable[[str], Path]


@pytest.fixture
def burr(store_url: str, shared_data: Data) -> Path:
    """The folder of the Burr runs, imported."""
    folder = shared_data("burr/dev")
    assert import_files(store_url, [folder / "events.jsonl.gz"]).ok
    return folder


@pytest.fixture
def tau(store_url: str, shared_data: Data) -> Path:
    """The folder of the retail runs, imported with their seed."""
    folder = shared_data("tau-retail/dev")
    report = import_files(store_url, [folder / "events.jsonl.gz"], seed=folder / "seed.jsonl.gz")
    assert report.ok
    assert (report.reads_compared, report.reads_different, report.refusals) == (148, [], 4)
    return folder


def altered(folder: Path, tmp_path: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """The answers of a folder with the first line changed."""
    answers = [json.loads(line) for line in (folder / "answers.jsonl").read_text().splitlines()]
    change(answers[0])
    path = tmp_path / "answers.jsonl"
    path.write_text("".join(json.dumps(answer) + "\n" for answer in answers))
    return path


def test_burr_states_equal_the_recorded_ones(store_url: str, burr: Path) -> None:
    """The state after every recorded step equals Burr's own, deletes included: 89 of 89."""
    report = check(store_url, burr / "answers.jsonl")
    assert report.counts["states"] == (89, 89)
    assert report.ok
    assert report.not_checked == ["keys_with_several_writers", "undeclared"]


def test_tau_reads_documents_transactions_and_refusals(store_url: str, tau: Path) -> None:
    """148 full reads, 43 final documents, 4 two-owner transactions and every refusal are as recorded."""
    report = check(store_url, tau / "answers.jsonl")
    assert report.counts["full reads"] == (148, 148)
    assert report.counts["final documents"] == (43, 43)
    assert report.two_owner_transactions == 4
    assert report.refusals == 4
    assert report.counts["refusals"] == (37, 37)
    assert report.ok
    assert report.mismatches == []


def test_a_wrong_state_is_named(store_url: str, burr: Path, tmp_path: Path) -> None:
    """An answer that does not match is named with run, step and both hashes."""

    def change(answer: dict[str, Any]) -> None:
        steps = answer["asof"]
        steps[2]["state_sha256"] = "0" * 64

    report = check(store_url, altered(burr, tmp_path, change))
    assert not report.ok
    assert report.counts["states"] == (88, 89)
    [mismatch] = report.mismatches
    assert mismatch.run == "burr/demo_chatbot/chat-1-giraffe"
    assert "turn 2, source seq 10" in mismatch.place
    assert "0" * 64 in str(mismatch)


def test_a_wrong_final_document_is_named(store_url: str, tau: Path, tmp_path: Path) -> None:
    """A final document with another version, and one nobody wrote, are named by key."""

    def change(answer: dict[str, Any]) -> None:
        final = answer["final"]
        final["order/#W2378156"]["version"] = 9

    report = check(store_url, altered(tau, tmp_path, change))
    assert [(one.what, one.place) for one in report.mismatches] == [("final documents", "order/#W2378156")]


def test_a_run_that_is_not_there_is_a_mismatch(store_url: str, burr: Path, tmp_path: Path) -> None:
    """An answer for a run that the store does not hold fails the check."""
    report = check(store_url, altered(burr, tmp_path, lambda answer: answer.update(run="nobody")))
    assert [str(one) for one in report.mismatches] == ["nobody: run at the store: expected there, got missing"]
    assert not report.ok


def test_answers_of_another_tenant_do_not_count(store_url: str, burr: Path) -> None:
    """Runs are looked up in the tenant that is asked for."""
    assert not check(store_url, burr / "answers.jsonl", tenant="other").ok


def test_an_answers_file_that_is_none_is_refused(store_url: str, burr: Path, tmp_path: Path) -> None:
    """A line that is no JSON, or names no run, is a ConfigError with file and line."""
    path = tmp_path / "answers.jsonl"
    path.write_text('{"run":"a"}\n{"asof":[]}\n')
    with pytest.raises(ConfigError, match=r"answers\.jsonl:2: .*names its"):
        check(store_url, path)
    path.write_text("nonsense\n")
    with pytest.raises(ConfigError, match=r"answers\.jsonl:1: .*not JSON"):
        check(store_url, path)


def test_nothing_to_compare_is_no_success(store_url: str, burr: Path, tmp_path: Path) -> None:
    """An empty answers file is an error that names it."""
    path = tmp_path / "answers.jsonl"
    path.write_text("\n")
    with pytest.raises(ConfigError, match=r"answers\.jsonl: no answers in the file"):
        check(store_url, path)


@pytest.fixture
def city(store_url: str, tmp_path: Path) -> Path:
    """An answers file to be written, beside a store with one imported run."""
    events = tmp_path / "events.jsonl"
    events.write_text('{"run":"t1","seq":1,"kind":"write","agent":"a","key":"city","value":"Quebec"}\n')
    assert import_files(store_url, [events]).ok
    return tmp_path / "answers.jsonl"


def test_expected_without_wrong_keys_is_compared(store_url: str, city: Path) -> None:
    """Where no key is said to be wrong, each must end as expected."""
    city.write_text('{"run":"t1","expected":{"city":"x"}}\n')
    report = check(store_url, city)
    assert [(one.what, one.expected, one.got) for one in report.mismatches] == [("wrong keys", [], ["city"])]
    assert not report.ok


def test_a_misspelt_member_is_no_success(store_url: str, city: Path) -> None:
    """A member nobody knows is named and fails the check; known ones about something else do not."""
    city.write_text('{"run":"t1","events":1,"finals":{"city":{"version":9}}}\n')
    report = check(store_url, city)
    assert (report.ok, report.unknown, report.mismatches) == (False, ["finals"], [])
    city.write_text('{"run":"t1","events":1,"reward":1.0}\n')
    report = check(store_url, city)
    assert (report.ok, report.not_checked) == (True, ["reward"])


@pytest.mark.parametrize("key", ["zz", "a\0b"])
def test_answers_for_keys_that_are_not_declared(store_url: str, city: Path, key: str) -> None:
    """A key the run's schema does not know, or that no key can have, is a mismatch, and the check goes on."""
    answer = {"run": "t1", "final": {key: {"version": 1}}, "final_versions": {key: 1}, "expected": {key: "x"}}
    city.write_text(json.dumps(answer) + "\n")
    report = check(store_url, city)
    assert [one.what for one in report.mismatches] == ["final documents", "final versions", "wrong keys"]
    assert "declared" in str(report.mismatches[0].got) or "NUL" in str(report.mismatches[0].got)


@pytest.mark.parametrize(
    "members",
    [
        {"final": 5},
        {"final": {"s": 1}},
        {"asof": 5},
        {"asof": ["x"]},
        {"final_versions": []},
        {"expected": "x"},
        {"wrong_keys": 1},
        {"wrong_keys": [[1]]},
        {"events": True},
        {"rejected_writes": "1"},
    ],
)
def test_answers_of_another_form_are_refused(sqlite_url: str, tmp_path: Path, members: dict[str, Any]) -> None:
    """A member of another form than documented is a ConfigError with file and line."""
    events, answers = tmp_path / "events.jsonl", tmp_path / "answers.jsonl"
    events.write_text('{"run":"t1","seq":1,"kind":"turn","agent":"a"}\n')
    assert import_files(sqlite_url, [events], schema={"keys": {"k": {"owner": "a"}}}).ok
    answers.write_text(json.dumps({"run": "t1", **members}) + "\n")
    with pytest.raises(ConfigError, match=rf"answers\.jsonl:1: .*\"{next(iter(members))}\""):
        check(sqlite_url, answers)
