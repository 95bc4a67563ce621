"""Bringing in recorded runs from the command line, checking them, their schemas, and verifying the log."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]

EVENTS = [
    {"run": "a", "seq": 1, "ts": None, "kind": "turn", "agent": "counter", "turn": 1},
    {"run": "a", "seq": 2, "ts": None, "kind": "write", "agent": "counter", "key": "n", "version": 1, "value": 1,
     "prev_version": 0},
    {"run": "a", "seq": 3, "ts": None, "kind": "read", "agent": "reporter", "key": "n", "version": 1, "value": 1},
    {"run": "b", "seq": 1, "ts": None, "kind": "write", "agent": "counter", "key": "n", "version": 1, "value": 5,
     "prev_version": 0},
]  # fmt: skip


@pytest.fixture
def events_file(tmp_path: Path) -> Path:
    """Two small runs, gzipped."""
    path = tmp_path / "events.jsonl.gz"
    path.write_bytes(gzip.compress("".join(json.dumps(event) + "\n" for event in EVENTS).encode()))
    return path


@pytest.fixture
def answers_file(tmp_path: Path) -> Path:
    """The right answer of one run."""
    path = tmp_path / "answers.jsonl"
    path.write_text(json.dumps({"run": "a", "events": 3, "final_versions": {"n": 1}}) + "\n")
    return path


def test_import_twice(store_url: str, refold_cli: Cli, events_file: Path) -> None:
    """Import says how many runs came in and that it inferred a schema; again it changes nothing."""
    first = refold_cli("import", str(events_file), "--store", store_url)
    assert first.exit_code == 0, first.stderr
    assert first.stdout.startswith("2 runs imported, 0 unchanged, 0 failed;")
    assert "inferred one with 1 key" in first.stderr
    again = json.loads(refold_cli("import", str(events_file), "--json", "--store", store_url).stdout)
    assert (again["imported"], again["unchanged"], again["events"], again["ok"]) == ([], ["a", "b"], 0, True)


def test_a_dry_run_stores_nothing(store_url: str, refold_cli: Cli, events_file: Path) -> None:
    """--dry-run reports what would come in, and makes not even a file."""
    result = refold_cli("import", str(events_file), "--dry-run", "--store", store_url)
    assert result.stdout.startswith("2 runs would be imported")
    if store_url.startswith("sqlite"):
        assert not Path(store_url.removeprefix("sqlite:///")).exists()
    else:
        assert json.loads(refold_cli("runs", "--json", "--store", store_url).stdout) == {"runs": []}


def test_a_bad_line_is_named(store_url: str, refold_cli: Cli, tmp_path: Path) -> None:
    """A run with a bad line stays out, is named with file and line, and the exit code tells; the others come in."""
    path = tmp_path / "bad.jsonl"
    lines = [json.dumps(event) for event in EVENTS]
    lines[2] = lines[2].replace('"value": 1', '"value": NaN')
    path.write_text("\n".join(lines) + "\n")
    result = refold_cli("import", str(path), "--store", store_url)
    assert result.exit_code == 1
    assert f"{path}:3: " in result.stderr
    assert result.stdout.startswith("1 run imported, 0 unchanged, 1 failed;")
    assert refold_cli("import", "absent.jsonl", "--store", store_url).exit_code == 2


def test_check(store_url: str, refold_cli: Cli, events_file: Path, answers_file: Path) -> None:
    """--check and `check` give 0 only if every answer matches; a mismatch and a foreign file are named."""
    words = ("--store", store_url)
    good = refold_cli("import", str(events_file), "--check", str(answers_file), *words)
    assert good.exit_code == 0
    assert "ok: every answer matches" in good.stdout
    assert refold_cli("check", str(events_file), str(answers_file), *words).exit_code == 0
    answers_file.write_text(json.dumps({"run": "a", "final_versions": {"n": 7}}) + "\n")
    wrong = refold_cli("check", str(events_file), str(answers_file), *words)
    assert wrong.exit_code == 1
    assert "a: final versions at n: expected 7, got 1" in wrong.stdout
    found = json.loads(refold_cli("check", str(events_file), str(answers_file), "--json", *words).stdout)
    assert [(one["run"], one["expected"], one["got"]) for one in found["mismatches"]] == [("a", "7", "1")]
    answers_file.write_text(json.dumps({"run": "a", "final_versions": {"n": 1}}) + "\n")
    events_file.write_text(json.dumps(EVENTS[0]) + "\n")
    other = refold_cli("check", str(events_file), str(answers_file), *words)
    assert (other.exit_code, other.stdout.splitlines()[0]) == (1, "a: imported from other lines")


def test_the_recorded_data(store_url: str, refold_cli: Cli, shared_data: Callable[[str], Path]) -> None:
    """The recorded Burr runs come in and every answer matches."""
    folder = shared_data("burr/dev")
    words = [str(folder / "events.jsonl.gz"), "--check", str(folder / "answers.jsonl"), "--store", store_url]
    result = refold_cli("import", *words)
    assert result.exit_code == 0, result.stdout
    assert "states: 89 of 89\n" in result.stdout
    assert refold_cli("verify", "--store", store_url).stdout.startswith("ok: 8 runs, ")


# --- schema --------------------------------------------------------------------------------------


def test_schema_infer_check_show_and_diff(store_url: str, refold_cli: Cli, events_file: Path, tmp_path: Path) -> None:
    """A schema is drawn up, checked, used, shown and compared."""
    file = tmp_path / "schema.yaml"
    made = refold_cli("schema", "infer", str(events_file), "-o", str(file))
    assert made.stdout.startswith(f"{file}: 1 key from 4 lines; guesses to check: ")
    assert "#" in file.read_text()
    assert refold_cli("schema", "infer", str(events_file)).stdout.rstrip() == file.read_text().rstrip()
    checked = refold_cli("schema", "check", str(file))
    assert checked.stdout.splitlines()[1:] == [
        "key  owner    type     reducer  options", "n    counter  integer  last",
    ]  # fmt: skip
    assert refold_cli("import", str(events_file), "--schema", str(file), "--store", store_url).exit_code == 0
    shown = refold_cli("schema", "show", "a", "--store", store_url)
    assert shown.stdout == checked.stdout
    (one,) = json.loads(refold_cli("schema", "show", "--json", "--store", store_url).stdout)["schemas"]
    assert (one["keys"], one["runs"]) == (1, 2)
    assert refold_cli("schema", "diff", str(file), "a", "--store", store_url).stdout == "the same schema\n"
    file.write_text("keys:\n  n: {owner: other, type: integer}\n")
    changed = json.loads(refold_cli("schema", "diff", "a", str(file), "--json", "--store", store_url).stdout)
    assert [(one["name"], one["field"], one["new"]) for one in changed["differences"]] == [("n", "owner", "other")]


def test_schema_check_finds_mistakes(refold_cli: Cli, tmp_path: Path) -> None:
    """A wrong schema is a finding, with file and line."""
    file = tmp_path / "schema.yaml"
    file.write_text("keys:\n  n: {type: integer}\n")
    result = refold_cli("schema", "check", str(file))
    assert result.exit_code == 1
    assert f"{file}:2" in result.stderr
    assert "owner" in result.stderr
    assert json.loads(refold_cli("schema", "check", str(file), "--json").stdout)["ok"] is False


# --- verify --------------------------------------------------------------------------------------


def test_verify_finds_damage(claims_url: str, refold_cli: Cli) -> None:
    """`verify` is quiet about a good log; a changed byte is named with its run and seq, and the exit code is 1."""
    good = refold_cli("verify", "--store", claims_url)
    assert (good.exit_code, good.stdout) == (0, "ok: 1 run, 14 events, level full\n")
    assert refold_cli("verify", "clm-77401", "--level", "digest", "--store", claims_url).exit_code == 0
    assert refold_cli("verify", "clm-1", "--store", claims_url).exit_code == 3
    _damage(claims_url)
    bad = refold_cli("verify", "clm-77401", "--store", claims_url)
    assert bad.exit_code == 1
    assert "clm-77401" in bad.stdout
    (first, *_rest) = json.loads(refold_cli("verify", "--json", "--store", claims_url).stdout)["findings"]
    assert (first["run"], first["seq"]) == ("clm-77401", 4)


def _damage(url: str) -> None:
    """Change one byte of the basis of seq 4, as somebody with the file in hand could."""
    if url.startswith("sqlite"):
        import sqlite3

        connection = sqlite3.connect(url.removeprefix("sqlite:///"))
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            connection.execute(f"DROP TRIGGER {name}")
        connection.execute(
            "UPDATE events SET body = CAST(replace(body, 'QC', 'ON') AS BLOB) WHERE pos & 4294967295 = 4"
        )
        connection.commit()
        connection.close()
        return
    import psycopg

    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute("ALTER TABLE events DISABLE TRIGGER ALL")
        admin.execute(
            "UPDATE events SET body = convert_to(replace(convert_from(body, 'UTF8'), 'QC', 'ON'), 'UTF8') WHERE seq = 4"
        )
