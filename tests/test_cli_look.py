"""Looking from the command line: get, state, keys, runs, history, readers, events, tail, diff, on both backends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from refold import open_store

Cli = Callable[..., Any]
RUN = "clm-77401"

SECRETS = {
    "keys": {
        "iban": {"owner": "billing", "type": "string", "sensitive": True},
        "note": {"owner": "billing", "type": "any"},
        "order/{id}": {"owner": "sales", "type": "object"},
        "tariff": {"owner": "billing", "type": "integer", "scope": "tenant"},
    },
    "invariants": {"german": 'iban < "E"'},
}


def documents(result: Any) -> list[Any]:
    """The JSON documents a command printed, one a line."""
    return [json.loads(line) for line in result.stdout.splitlines()]


def ask(cli: Cli, *words: str) -> Any:
    """The one JSON document of a command that went well."""
    result = cli(*words, "--json")
    assert result.exit_code == 0, result.stderr
    (found,) = documents(result)
    return found


@pytest.fixture
def secrets(open_new: Callable[..., Any], store_url: str) -> str:
    """A store with a sensitive key, a deleted key, a stored null and a key of the tenant's."""
    store = open_new(SECRETS)
    run = store.run("r")
    run.write_state("iban", "DE02-1203", writer="billing")
    run.write_state("note", None, writer="billing")
    run.write_state("order/1", {"total": 5}, writer="sales")
    run.write_state("order/2", {"total": 6}, writer="sales")
    run.delete_state("order/2", writer="sales", basis="cancelled")
    with pytest.raises(Exception, match="may not write"):
        run.write_state("iban", "DE99-SECRET", writer="sales")
    with pytest.raises(Exception, match="would be broken"):
        run.write_state("iban", "FR76-SECRET", writer="billing")
    run.write_state("tariff", 3, writer="billing")
    store.close()
    return store_url


# --- get -----------------------------------------------------------------------------------------


def test_get_answers_everything_and_is_on_the_record(claims_url: str, refold_cli: Cli) -> None:
    """One command gives value, version, writer, owner, time, basis and readers, and is that person's read on record."""
    found = ask(refold_cli, "get", RUN, "routing", "--as", "alice", "--store", claims_url)
    assert found["value"] == {"authority_limit": 8000, "police_report": True, "ruleset": "QC-auto"}
    assert (found["version"], found["seq"], found["written_by"], found["owner"]) == (
        2,
        12,
        "triage_agent",
        "triage_agent",
    )
    assert found["basis"] == "injury reported: authority limit lowered"
    assert found["based_on"] == [["evidence", 1]]
    assert [one["reader"] for one in found["read_by"]] == ["liability_agent"]
    assert [(one["reader"], one["version"]) for one in found["older_readers"]] == [
        ("evidence_agent", 1), ("settlement_agent", 1),
    ]  # fmt: skip
    assert (found["recorded_as"], found["not_recorded"]) == ("alice", None)
    with open_store(claims_url) as store:
        (event,) = [event for event in store.run(RUN).events(["state.read"]) if event.actor == "alice"]
        assert (event.key, event.version, event.seen_seq) == ("routing", 2, found["at_seq"])


def test_get_for_people_is_one_screen(claims_url: str, refold_cli: Cli) -> None:
    """The same as text: who wrote it, resting on what, who read it, who saw an older version, as whom one looked."""
    shown = refold_cli("get", RUN, "routing", "--as", "alice", "--store", claims_url).stdout
    assert shown.startswith(f'routing in {RUN}: version 2, at seq 14\n{{"authority_limit":8000')
    for part in (
        "written by  triage_agent at seq 12\n", "basis       injury reported", "based on    evidence@1\n",
        "replaced    version 1, by triage_agent at seq 4\n", "liability_agent at seq 13\n",
        "settlement_agent saw version 1 at seq 7 (current then, superseded since)\n",
        "recorded    this look, as alice\n",
    ):  # fmt: skip
        assert part in shown
    assert len(shown.splitlines()) < 24


def test_get_tells_what_was_outdated_when_written(claims_url: str, refold_cli: Cli) -> None:
    """A write that rests on a version which already had a successor is told as such."""
    found = ask(refold_cli, "get", RUN, "settlement", "--store", claims_url)
    assert found["outdated_when_written"] == [{"key": "routing", "version": 1, "newest": 2, "since_seq": 12}]
    shown = refold_cli("get", RUN, "settlement", "--store", claims_url).stdout
    assert "based on    routing@1, outdated when written: version 2 was there since seq 12\n" in shown


def test_get_at_a_moment(claims_url: str, refold_cli: Cli) -> None:
    """At an older moment the answer names the seq, the version then and what superseded it; it is recorded so."""
    found = ask(refold_cli, "get", RUN, "routing", "--at", "9", "--as", "alice", "--store", claims_url)
    assert (found["at_seq"], found["version"], found["newest_version"]) == (9, 1, 2)
    assert [one["seq"] for one in found["superseded_by"]] == [12]
    for moment in ("routing@1", "key:routing@1", "4"):
        assert ask(refold_cli, "get", RUN, "routing", "--at", moment, "--store", claims_url)["at_seq"] == 4
    with open_store(claims_url) as store:
        assert [one.version for one in store.run(RUN).readers("routing") if one.reader == "alice"] == [1]


def test_get_without_a_record_says_so(claims_url: str, refold_cli: Cli) -> None:
    """--no-record leaves no event, and the answer says that the look is not on the record."""
    with open_store(claims_url) as store:
        before = store.run(RUN).head_seq()
    shown = refold_cli("get", RUN, "routing", "--no-record", "--store", claims_url).stdout
    assert "recorded    no: --no-record was given\n" in shown
    with open_store(claims_url) as store:
        assert store.run(RUN).head_seq() == before


def test_get_on_a_store_that_cannot_be_written_says_so(claims_url: str, refold_cli: Cli) -> None:
    """Where a read cannot be stored the answer still comes, with the reason why it is not on the record."""
    if claims_url.startswith("sqlite"):
        with open(claims_url.removeprefix("sqlite:///"), "r+b") as file:
            file.seek(18)
            file.write(b"\x03")  # a write version SQLite does not know: it reads the file and refuses to write it
        url = claims_url
    else:
        import psycopg

        with psycopg.connect(claims_url, autocommit=True) as admin:
            admin.execute("DROP ROLE IF EXISTS looker")
            admin.execute("CREATE ROLE looker LOGIN")
        assert refold_cli("migrate", "--roles", "reader=looker", "--store", claims_url).exit_code == 0
        url = claims_url.replace("postgres@", "looker@")
    found = ask(refold_cli, "get", RUN, "routing", "--as", "alice", "--store", url)
    if not claims_url.startswith("sqlite"):
        with psycopg.connect(claims_url, autocommit=True) as admin:
            admin.execute("DROP OWNED BY looker")
            admin.execute("DROP ROLE looker")
    assert found["version"] == 2
    assert found["recorded_as"] is None
    assert "the store cannot be written" in found["not_recorded"]


def test_a_store_on_a_read_only_medium_is_read(
    sqlite_url: str, refold_cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no file can be made beside the store, lookups work and make none."""
    refold_cli("demo", "--quiet", "--store", sqlite_url)
    path = Path(sqlite_url.removeprefix("sqlite:///"))
    monkeypatch.setattr("os.access", lambda *_args: False)
    assert ask(refold_cli, "state", RUN, "--store", sqlite_url)["at_seq"] == 14
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_absent_deleted_and_null_are_told_apart(secrets: str, refold_cli: Cli) -> None:
    """Never written, deleted, and holding null are three answers; near names are offered for the first."""
    never = ask(refold_cli, "get", "r", "order/3", "--store", secrets)
    deleted = ask(refold_cli, "get", "r", "order/2", "--store", secrets)
    null = ask(refold_cli, "get", "r", "note", "--store", secrets)
    assert [(one["absent"], one["deleted"], one["version"]) for one in (never, deleted, null)] == [
        (True, False, 0), (True, True, 2), (False, False, 1),
    ]  # fmt: skip
    shown = refold_cli("get", "r", "order/3", "--store", secrets).stdout
    assert "(absent: never written)" in shown
    assert "did you mean order/" in shown
    shown = refold_cli("get", "r", "order/2", "--store", secrets).stdout
    assert "(deleted)" in shown
    assert "basis       cancelled" in shown


@pytest.mark.parametrize(
    "words",
    [["get", "r", "iban"], ["state", "r"], ["history", "r", "iban"], ["events", "r"], ["diff", "r", "0", "end"]],
)
def test_sensitive_values_are_masked_unless_asked_for(secrets: str, refold_cli: Cli, words: list[str]) -> None:
    """A sensitive key's value shows with --show-sensitive only: not in text, not in JSON, not in a refusal."""
    for form in ([], ["--json"]):
        shown = refold_cli(*words, *form, "--store", secrets).stdout
        assert "***" in shown or '"masked":true' in shown or "sensitive" in shown
        assert "DE02" not in shown
        assert "SECRET" not in shown
    assert "DE02-1203" in refold_cli(*words, "--show-sensitive", "--json", "--store", secrets).stdout


def test_a_tenants_key_is_served_from_its_scope(secrets: str, refold_cli: Cli) -> None:
    """A key shared by the tenant is found from any of its runs; a moment of one run does not apply to it."""
    assert ask(refold_cli, "get", "r", "tariff", "--store", secrets)["value"] == 3
    refused = refold_cli("get", "r", "tariff", "--at", "1", "--store", secrets)
    assert refused.exit_code == 2
    assert "has scope 'tenant'" in refused.stderr


def test_a_moment_warns(open_new: Callable[..., Any], store_url: str, refold_cli: Cli) -> None:
    """Where a writer's clock and the recorded time differ, a time as moment comes with a warning."""
    now = [10**15 + 60_000_000]
    store = open_new(SECRETS, clock=lambda: now[0])
    store.run("r").write_state("note", 1, writer="billing")
    now[0] = 10**15
    store.run("r").write_state("note", 2, writer="billing")
    store.close()
    result = refold_cli("state", "r", "--at", "2026-01-01T00:00:00Z", "--json", "--store", store_url)
    assert json.loads(result.stdout)["warning"]
    assert "warning: " in result.stderr
    assert "clock" in result.stderr


# --- the others ----------------------------------------------------------------------------------


def test_state_now_and_then(claims_url: str, refold_cli: Cli) -> None:
    """`state` gives every key with its version, now or at a moment, and names the seq."""
    now = ask(refold_cli, "state", RUN, "--store", claims_url)
    assert sorted(now["keys"]) == ["evidence", "loss", "reserve_band", "routing", "settlement"]
    assert now["keys"]["evidence"]["value"] == ["police report QC-2231"]
    then = ask(refold_cli, "state", RUN, "--at", "routing@1", "--store", claims_url)
    assert (then["at_seq"], sorted(then["keys"])) == (4, ["loss", "routing"])
    assert then["keys"]["routing"]["value"]["authority_limit"] == 15000


def test_keys_lists_deleted_ones(secrets: str, refold_cli: Cli) -> None:
    """`keys` lists what was written, the deleted marked."""
    found = ask(refold_cli, "keys", "r", "--store", secrets)["keys"]
    assert [(one["key"], one["deleted"]) for one in found] == [
        ("iban", False), ("note", False), ("order/1", False), ("order/2", True),
    ]  # fmt: skip


def test_runs_by_condition_tenant_and_limit(claims_url: str, refold_cli: Cli) -> None:
    """`runs` lists a tenant's runs, those whose state fulfils a condition, at most so many, or all tenants'."""
    refold_cli("demo", "--quiet", "--store", claims_url)
    refold_cli("demo", "--quiet", "--tenant", "acme", "--store", claims_url)

    def names(*words: str) -> list[str]:
        return [one["run"] for one in ask(refold_cli, "runs", *words, "--store", claims_url)["runs"]]

    assert names() == [RUN, f"{RUN}-2"]
    assert names("--limit", "1") == [RUN]
    assert names("--where", 'routing["authority_limit"] < 9000') == [RUN, f"{RUN}-2"]
    assert names("--where", 'routing["authority_limit"] > 9000') == []
    assert names("--all-tenants") == [RUN, f"{RUN}-2", RUN]
    assert names("--tenant", "acme") == [RUN]


def test_history_and_readers(claims_url: str, refold_cli: Cli) -> None:
    """`history` gives a version a line, `readers` who saw which version and whether it was stale."""
    lines = documents(refold_cli("history", RUN, "routing", "--json", "--store", claims_url))
    assert [(one["version"], one["value"]["authority_limit"]) for one in lines] == [(1, 15000), (2, 8000)]
    with open_store(claims_url) as store:
        store.run(RUN).at("routing@1").read_state("routing", reader="late_agent")
    found = ask(refold_cli, "readers", RUN, "routing", "--version", "1", "--store", claims_url)["reads"]
    assert [one["reader"] for one in found] == ["evidence_agent", "liability_agent", "settlement_agent", "late_agent"]
    assert not any(one["stale"] for one in found[:3])


def test_events_by_kind_and_place(claims_url: str, refold_cli: Cli) -> None:
    """`events` gives the log, a line an event, by kind, from a seq on, and at most so many."""

    def seqs(*words: str) -> list[int]:
        return [one["seq"] for one in documents(refold_cli("events", RUN, "--json", *words, "--store", claims_url))]

    assert seqs() == list(range(1, 15))
    assert seqs("--kind", "state.refused") == [9, 10]
    assert seqs("--kind", "state.refused", "--kind", "run.opened") == [1, 9, 10]
    assert seqs("--after", "5", "--limit", "2") == [6, 7]
    wrong = refold_cli("events", RUN, "--kind", "state.writen", "--store", claims_url)
    assert wrong.exit_code == 2
    shown = refold_cli("events", RUN, "--store", claims_url).stdout
    assert "owner: 'evidence_agent' may not write 'routing'" in shown


def test_diff_between_moments(claims_url: str, refold_cli: Cli) -> None:
    """`diff` names each key that changed, its versions, and each path."""
    found = ask(refold_cli, "diff", RUN, "routing@1", "routing@2", "--store", claims_url)
    assert (found["from_seq"], found["to_seq"]) == (4, 12)
    changes = {one["key"]: one for one in found["keys"]}
    assert sorted(changes) == ["evidence", "reserve_band", "routing"]
    assert changes["routing"]["changes"] == [
        {"op": "replace", "path": "$.authority_limit", "before": 15000, "after": 8000},
        {"op": "replace", "path": "$.police_report", "before": False, "after": True},
    ]
    shown = refold_cli("diff", RUN, "routing@2", "routing@1", "--store", claims_url).stdout
    assert "  ~ $.authority_limit  8000 -> 15000\n" in shown
    assert "evidence: gone, was version 1\n" in shown


def test_tail_follows(claims_url: str) -> None:
    """`tail` prints the events after a seq, then each new one as it comes, until it is interrupted."""
    words = ["tail", RUN, "--after", "13", "--json", "--store", claims_url]
    with subprocess.Popen(
        [sys.executable, "-m", "refold", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    ) as tail:  # fmt: skip
        try:
            assert tail.stdout is not None
            assert json.loads(tail.stdout.readline())["seq"] == 14
            with open_store(claims_url) as store:
                store.run(RUN).write_state("evidence", "a photograph", writer="evidence_agent")
            event = json.loads(tail.stdout.readline())
            assert (event["seq"], event["body"]["update"]) == (15, ["a photograph"])
            tail.send_signal(signal.SIGINT)
            assert tail.wait(timeout=20) == 130
        finally:
            tail.kill()
