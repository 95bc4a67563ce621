"""The command line against hostile values, names, files and surroundings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from refold import Store, open_store

Cli = Callable[..., Any]
SECRET = "DE-SECRET-1"


def run_refold(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own."""
    return subprocess.run([sys.executable, "-m", "refold", *words], text=True, check=False, timeout=60, **options)


def test_imported_events_keep_secrets(refold_cli: Cli, store_url: str, tmp_path: Path) -> None:
    """Members that came with imported events of a sensitive key are masked, and no plain hash of a value is shown."""
    schema = tmp_path / "s.yaml"
    schema.write_text("keys:\n  iban: {owner: w, type: string, sensitive: true}\n  note: {owner: w, type: string}\n")
    lines = [
        {"kind": "write", "key": "iban", "version": 1, "value": SECRET, "old_value": SECRET},
        {"kind": "read", "key": "iban", "version": 1, "value": SECRET},
        {"kind": "failure", "what": "write_rejected", "keys": ["iban", "note"], "arguments": SECRET, "text": SECRET},
        {"kind": "handoff", "key": "iban", "to": "x", "value": SECRET},
    ]
    source = tmp_path / "e.jsonl"
    source.write_text(
        "".join(json.dumps({"run": "s", "seq": n, "agent": "w"} | line) + "\n" for n, line in enumerate(lines, 1))
    )
    done = refold_cli("import", str(source), "--schema", str(schema), "--store", store_url)
    assert done.exit_code == 0, done.stderr
    shown = refold_cli("events", "s", "--json", "--store", store_url).stdout
    assert SECRET not in shown
    assert '"shown"' not in shown
    assert SECRET in refold_cli("events", "s", "--json", "--show-sensitive", "--store", store_url).stdout


def test_a_later_schema_uncovers_nothing(refold_cli: Cli, open_new: Callable[..., Store], store_url: str) -> None:
    """A key that was sensitive once stays masked when a later schema no longer says so."""
    key = {"owner": "w", "type": "string"}
    open_new({"keys": {"iban": key | {"sensitive": True}}}).run("r").write_state("iban", SECRET, writer="w")
    open_new({"keys": {"iban": key, "more": key}}).run("r").write_state("more", "x", writer="w")
    for words in (("events", "r"), ("history", "r", "iban"), ("get", "r", "iban"), ("state", "r")):
        done = refold_cli(*words, "--json", "--store", store_url)
        assert done.exit_code == 0
        assert SECRET not in done.stdout


def test_completion_offers_no_shell_code(tmp_path: Path) -> None:
    """Names that a shell would expand or run are not offered."""
    with open_store(tmp_path / "s.db", {"keys": {"a": {"owner": "w"}}}) as store:
        for name in ("plain", "$(touch x)", "*", "`id`", "-rf", "a;b"):
            store.run(name).write_state("a", 1, writer="w")
    env = os.environ | {"_REFOLD_COMPLETE": "bash_complete", "COMP_WORDS": "refold get ", "COMP_CWORD": "2"}
    done = run_refold(env=env | {"REFOLD_STORE": str(tmp_path / "s.db")}, capture_output=True)
    assert done.stdout.split() == ["plain,plain"]


def test_a_broken_store_completes_nothing(tmp_path: Path) -> None:
    """Completion is silent where the store cannot be asked."""
    (tmp_path / "s.db").write_text("not a database, but text of some length")
    env = os.environ | {"_REFOLD_COMPLETE": "bash_complete", "COMP_WORDS": "refold get ", "COMP_CWORD": "2"}
    done = run_refold(env=env | {"REFOLD_STORE": str(tmp_path / "s.db")}, capture_output=True)
    assert (done.stdout.strip(), done.stderr) == ("", "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("words", [["--help"], ["runs", "--json"]])
def test_a_full_output_is_one_line(words: list[str], tmp_path: Path) -> None:
    """Where standard output takes no more, a command says so and ends with 5."""
    open_store(tmp_path / "s.db").close()
    with open("/dev/full", "w") as full:
        env = os.environ | {"REFOLD_STORE": str(tmp_path / "s.db")}
        done = run_refold(*words, stdout=full, stderr=subprocess.PIPE, env=env)
    assert done.returncode == 5
    assert "Traceback" not in done.stderr


def test_a_ground_that_is_not_declared_does_not_hide_a_key(refold_cli: Cli, store_url: str, tmp_path: Path) -> None:
    """`get` answers for a key whose write rests on the absence of a key that no schema knows."""
    source = tmp_path / "e.jsonl"
    line = {"run": "t", "seq": 1, "agent": "w", "kind": "write", "key": "a", "version": 1, "value": 1}
    source.write_text(json.dumps(line | {"reads": [["zz", 0]]}) + "\n")
    assert refold_cli("import", str(source), "--store", store_url).exit_code == 0
    assert refold_cli("get", "t", "a", "--json", "--store", store_url).exit_code == 0


def test_rights_that_were_not_given_are_told(refold_cli: Cli, pg_url: str) -> None:
    """Somebody who does not own the tables cannot give rights to them, and is told so."""
    with psycopg.connect(pg_url, autocommit=True) as admin:
        for role in ("hostile_stranger", "hostile_writer"):
            admin.execute(f"DROP ROLE IF EXISTS {role}")
            admin.execute(f"CREATE ROLE {role} LOGIN")
    stranger = pg_url.replace("postgres:@", "hostile_stranger:@").replace("postgres@", "hostile_stranger@")
    assert "hostile_stranger" in stranger
    done = refold_cli("migrate", "--roles", "writer=hostile_writer", "--store", stranger)
    assert done.exit_code != 0
    assert "owner" in done.stderr or "rights" in done.stderr
    with psycopg.connect(pg_url, autocommit=True) as admin:
        for role in ("hostile_stranger", "hostile_writer"):
            admin.execute(f"DROP OWNED BY {role}")
            admin.execute(f"DROP ROLE {role}")


def test_schema_check_of_a_bad_name_is_json(refold_cli: Cli, tmp_path: Path) -> None:
    """A name that cannot be stored is a finding of `schema check`, in its documented form."""
    schema = tmp_path / "s.yaml"
    schema.write_text('keys:\n  "a\\0b": {owner: w, type: string}\n')
    done = refold_cli("schema", "check", str(schema), "--json")
    assert done.exit_code == 1
    assert json.loads(done.stdout)["ok"] is False


def test_a_schema_file_without_end(refold_cli: Callable[..., Any], sqlite_url: str) -> None:
    """A schema is read up to a bound: what never ends is told in one line."""
    done = refold_cli("write", "r", "k", "1", "--writer", "w", "--schema", "/dev/zero", "--store", sqlite_url)
    assert done.exit_code == 2
    assert "bytes" in done.stderr
