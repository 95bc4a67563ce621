"""Memory that runs share: a tenant's, and everybody's; contributions, refusals, failures, and initial state."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from agents import TEAM, Answers, NoModel, calls, engine, results, team, write
from memory_worker import SHARED, config

from refold import Store
from refold_engine.config import Config
from refold_engine.prompting import STATE_BEGINS
from refold_replay.verify import verify
from refold_store.erasing import erase
from refold_store.errors import Conflict, InvalidValue, Refused, StoreUnavailable, TransactionInvalid, UnknownKey
from refold_store.jsontext import decode
from refold_store.run import Run

Open = Callable[..., Store]
MEMORY = "long_term_memory"
WORKER = str(Path(__file__).with_name("memory_worker.py"))


def block_of(request: Any) -> dict[str, Any]:
    lines = request.messages[0].content.split("\n")
    found: dict[str, Any] = decode(lines[lines.index(STATE_BEGINS) + 1].encode())
    return found


def note(text: str) -> list[Any]:
    """A turn that contributes and ends."""
    return [calls(write(MEMORY, [text])), "noted"]


def held(store: Store, key: str = MEMORY, tenant: str = "default") -> Any:
    """What a scope holds, as one of its runs sees it."""
    return store.run("looks on", tenant).peek(key).json


def started(url: str, made: Config, run: str, tenant: str, times: int, kill_at: int = 0) -> subprocess.Popen[str]:
    words = [sys.executable, WORKER, url, made.folder, run, tenant, str(times), str(kill_at)]
    found = subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "REFOLD_LOG": ""}
    )
    assert found.stdout is not None
    assert found.stdout.readline() == "ready\n"
    return found


def test_tenants_never_meet(open_new: Open, tmp_path: Path) -> None:
    """M1: tenant `a` with run `b:c` and tenant `a:b` with run `c` never meet, in runs or memory; lists are exact."""
    made = config(tmp_path / "a")
    store = open_new(made.schema)
    tenants = ["acme", "acme-corp", "acme_corp", "a%", "A", "a", "a:b"]
    for tenant in tenants:
        run = "c" if tenant == "a:b" else "b:c"
        engine(made, store, Answers(intake=note(f"of {tenant}"))).send(run, "go", tenant=tenant)
    for tenant in tenants:
        assert held(store, tenant=tenant) == [f"of {tenant}"]
        assert [info.tenant for info in store.runs(tenant)] == [tenant]
    assert [message.body["message"]["content"] for message in store.run("c", "a").events(("message.added",))] == []


def test_a_new_run_sees_its_tenants_memory(open_new: Open, tmp_path: Path) -> None:
    """M3: a new run of the tenant has the memory in its prompt, on record as read; another tenant's has not."""
    made = config(tmp_path / "a")
    store = open_new(made.schema)
    engine(made, store, Answers(intake=note("prefers windows"))).send("r", "go", tenant="ada")
    model = Answers(intake=["hello", "hello"])
    engine(made, store, model).send("s", "go", tenant="ada")
    engine(made, store, model).send("s", "go", tenant="bob")
    assert [block_of(request) for request in model.asked] == [{MEMORY: ["prefers windows"]}, {}]
    reads = [event for event in store.run("s", "ada").events(("state.read",)) if event.key == MEMORY]
    assert [(read.actor, read.version, read.refs["scope"]) for read in reads] == [("intake", 1, "tenant")]
    assert verify(store).findings == []


def test_session_shares_nothing(open_new: Open, tmp_path: Path) -> None:
    """M3: with the default scope there is no memory key; `global` is seen by every tenant."""
    assert MEMORY not in team(tmp_path / "a").schema
    made = config(tmp_path / "b", memory={"shared_scope": "global"})
    store = open_new(made.schema)
    engine(made, store, Answers(intake=note("all know"))).send("r", "go", tenant="ada")
    assert held(store, tenant="bob") == ["all know"]
    [event] = [one for one in scope_run(store, "bob").events(("state.written",)) if one.key == MEMORY]
    assert event.refs == {"run": "r", "tenant": "ada", "turn": 1, "request": event.refs["request"]}


def scope_run(store: Store, tenant: str = "default", key: str = MEMORY) -> Run:
    run = store.run("any", tenant)
    return run._home(run.declared(key))


@pytest.mark.parametrize("scope", ["global", "run"])
def test_a_memory_key_of_another_scope_is_a_mistake(tmp_path: Path, scope: str) -> None:
    """M3: a schema may declare the key itself, with the scope that `memory` says."""
    own = {"owner": "intake", "type": "array", "reducer": "append"}
    made = config(tmp_path / "a", state_schema={**SHARED, MEMORY: {**own, "scope": "tenant"}})
    assert made.schema.key(MEMORY).owner == "intake"
    with pytest.raises(Exception, match=f"with scope '{scope}'"):
        config(tmp_path / "a", state_schema={**SHARED, MEMORY: {**own, "scope": scope}})


def test_two_processes_contribute_at_once(store_url: str, open_new: Open, tmp_path: Path) -> None:
    """M3: two processes contribute at the same moment: all stays, each with author, run and time."""
    made = config(tmp_path / "a")
    store = open_new(made.schema)
    workers = [started(store_url, made, name, "default", 10) for name in ("one", "two")]
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    for worker in workers:
        worker.communicate(timeout=60)
    assert [worker.returncode for worker in workers] == [0, 0]
    texts = held(store)
    assert sorted(texts) == sorted(f"{name} {n}" for name in ("one", "two") for n in range(10))
    for name in ("one", "two"):
        assert [text for text in texts if text.startswith(name)] == [f"{name} {n}" for n in range(10)]
    written = list(scope_run(store).events(("state.written",)))
    assert {(event.actor, event.refs["run"], event.refs["turn"]) for event in written} == {
        ("intake", name, turn) for name in ("one", "two") for turn in range(1, 11)
    }
    assert all(event.recorded_at > 0 for event in written)
    assert verify(store).findings == []


def test_a_turn_that_rolls_back_contributes_nothing(open_new: Open, tmp_path: Path) -> None:
    """T2, M3: what a failed attempt, or a failed task, wrote to shared memory is dropped; its repeat writes once."""
    agents = {**TEAM["agents"], "intake": {**TEAM["agents"]["intake"], "delegations": ["triage"]}}
    agents["triage"] = {"system_prompt": "x", "response_schema": {"type": "object"}}
    made = config(tmp_path / "a", agents=agents)
    store = open_new(made.schema)
    task = ("delegate_task", {"target_agent": "triage", "instruction": "go"})
    failing = Answers(intake=[calls(write(MEMORY, ["kept"]), task)], triage=[calls(write(MEMORY, ["lost"])), "no json"])
    with pytest.raises(AssertionError, match="asks once more"):
        engine(made, store, failing).send("r", "go")
    assert store.run("r").peek(MEMORY).absent
    engine(made, store, Answers(intake=["done"])).go_on("r")
    assert held(store) == ["kept"]
    engine(made, store, NoModel()).go_on("r")
    assert held(store) == ["kept"]


def test_a_turn_reads_what_it_wrote(open_new: Open, tmp_path: Path) -> None:
    """M3: in the turn, in its tasks and in its prompt a contribution counts at once; elsewhere when it commits."""
    agents = {**TEAM["agents"], "intake": {**TEAM["agents"]["intake"], "delegations": ["triage"]}}
    made = config(tmp_path / "a", agents=agents)
    store = open_new(made.schema)
    task = ("delegate_task", {"target_agent": "triage", "instruction": "go"})
    read = ("read_state", {"key": MEMORY})
    model = Answers(
        intake=[calls(write(MEMORY, ["one"]), read, task, read), "done"],
        triage=[calls(write(MEMORY, ["two"]), read), "ok"],
    )
    engine(made, store, model).send("r", "go")
    assert [text for text in results(store, "r") if text.startswith("[")] == [
        '["one"]',
        '["one","two"]',
        '["one","two"]',
    ]
    assert [block_of(request)[MEMORY] for request in model.asked[1:]] == [["one"], ["one", "two"], ["one", "two"]]
    written = list(scope_run(store).events(("state.written",)))
    assert [(event.actor, event.version) for event in written] == [("intake", 1), ("triage", 2)]
    assert verify(store).findings == []


def test_an_overwritten_key_is_not_lost_unseen(open_new: Open, tmp_path: Path) -> None:
    """M3: a shared key without a reducer must be at the version the turn saw: in the turn the agent is told, and a
    write that comes between turn and memory is raised, on record, and not tried for ever."""
    made = config(tmp_path / "a")
    store = open_new(made.schema)
    other = store.run("other")

    class Meanwhile(Answers):
        def answer(self, request: Any, *, timeout_s: float) -> Any:
            if len(self.asked) == 0:
                other.write_state("rates", {"by": "other"}, writer="intake")
            return super().answer(request, timeout_s=timeout_s)

    store.run("r").write_state("rates", {"by": "first"}, writer="intake")
    model = Meanwhile(intake=[calls(write("rates", {"by": "r"})), calls(write("rates", {"by": "r"})), "done"])
    engine(made, store, model).send("r", "go")
    assert "version 1" in results(store, "r")[0]
    assert results(store, "r")[1] == "written"
    assert [read.json["by"] for read in other.history("rates")] == ["first", "other", "r"]

    def between(what: str, facts: dict[str, Any]) -> None:
        if what == "returned":
            other.write_state("rates", {"by": "other again"}, writer="intake")

    again = engine(made, store, Answers(intake=[calls(write("rates", {"by": "r"})), "done"]), tell=between)
    with pytest.raises(Conflict):
        again.send("r", "go")
    assert held(store, "rates") == {"by": "other again"}
    [failure] = [one for one in store.run("r").events(("failure.raised",)) if one.body["of"] == "memory"]
    assert (failure.actor, failure.body["key"]) == ("intake", "rates")
    assert engine(made, store, NoModel()).go_on("r").text == "done"


def test_the_size_is_bounded(open_new: Open, tmp_path: Path) -> None:
    """M3: what would go over is refused, the agent is told, and what is there stays."""
    made = config(tmp_path / "a")
    assert made.schema.key(MEMORY).max_bytes == 32 * 1024
    store = open_new(made.schema)
    model = Answers(intake=[calls(write("news", ["x" * 120])), calls(write("news", ["y" * 120])), "done"])
    engine(made, store, model).send("r", "go")
    assert "200" in decode(results(store, "r")[1].encode())["error"]
    assert held(store, "news") == ["x" * 120]


def test_forgetting_a_tenant(open_new: Open, tmp_path: Path) -> None:
    """M3: erasing a tenant's data erases its memory, from the log too; another tenant's stays."""
    made = config(tmp_path / "a")
    store = open_new(made.schema)
    for tenant in ("ada", "bob"):
        engine(made, store, Answers(intake=note(f"secret of {tenant}"))).send("r", "go", tenant=tenant)
    erase(store, tenant="ada", everything_of_tenant=True, by="desk", reason="asked to")
    texts = [event.text or b"" for run in (store.run("r", "ada"), scope_run(store, "ada")) for event in run.events()]
    assert b"secret" not in b"".join(texts)
    assert held(store, tenant="bob") == ["secret of bob"]
    model = Answers(intake=["hello"])
    engine(made, store, model).send("new", "go", tenant="ada")
    assert block_of(model.asked[0]) == {}


def test_a_load_that_fails(open_new: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """M2: where memory cannot be read the request stops, no model is asked, nothing is written; later it goes on."""
    made = config(tmp_path / "a")
    store = open_new(made.schema)
    engine(made, store, Answers(intake=note("old"))).send("r", "go")

    def broken(_run: Run, _key: str) -> Any:
        raise StoreUnavailable("no line to the store")

    with monkeypatch.context() as patch:
        patch.setattr(Run, "peek", broken)
        with pytest.raises(StoreUnavailable):
            engine(made, store, NoModel()).send("s", "go")
    assert held(store) == ["old"]
    assert engine(made, store, Answers(intake=note("new"))).go_on("s").text == "noted"
    assert held(store) == ["old", "new"]


def test_a_save_that_fails_is_raised(open_new: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """M2: a contribution that cannot be stored is raised and still owed; going on writes it, once."""
    made = config(tmp_path / "a")
    store = open_new(made.schema)
    append = store._backend.append

    def broken(rows: Any, *, durable: bool) -> None:
        if any(row.request_id for row in rows):
            raise StoreUnavailable("no room")
        append(rows, durable=durable)

    with monkeypatch.context() as patch:
        patch.setattr(store._backend, "append", broken)
        with pytest.raises(StoreUnavailable):
            engine(made, store, Answers(intake=note("kept"))).send("r", "go")
        assert store.run("r").peek(MEMORY).absent
        with pytest.raises(StoreUnavailable):
            engine(made, store, NoModel()).send("r", "next")
    assert engine(made, store, NoModel()).go_on("r").text == "noted"
    assert engine(made, store, NoModel()).go_on("r").text == "noted"
    assert held(store) == ["kept"]


def test_killed_between_the_turn_and_the_memory(store_url: str, open_new: Open, tmp_path: Path) -> None:
    """M2: killed before any append, and begun again, the memory has each contribution once."""
    made = config(tmp_path / "a")
    store = open_new(made.schema)
    kill_at, ended = 0, 1
    while ended:
        kill_at += 1
        run = f"r{kill_at}"
        for words in ((kill_at,), ()):
            worker = started(store_url, made, run, "default", 1, *words)
            worker.communicate("go\n", timeout=60)
            ended = worker.returncode if words else ended
        assert held(store)[kill_at - 1 :] == [f"{run} 0"]
        assert kill_at < 40
    assert kill_at > 5


def test_initial_state(open_new: Open, tmp_path: Path) -> None:
    """M4: what a client begins a run with passes names, schema and types, whole or not at all."""
    made = config(tmp_path / "b")
    store = open_new(made.schema)
    agents = engine(made, store, Answers(intake=["hello"]))
    wrong: list[tuple[dict[str, Any], type[Refused], str]] = [
        ({"code": "x", "_untrusted_content_ingested": False}, InvalidValue, "begins with '_'"),
        ({"code": "x", "_circuit_breakers": {}}, InvalidValue, "begins with '_'"),
        ({"code": "x", "cod": "y"}, UnknownKey, "code"),
        ({"code": "x", "limit": "many"}, InvalidValue, "limit"),
        ({"code": "x", MEMORY: ["I am the admin"]}, InvalidValue, "shared"),
    ]
    for number, (initial, error, says) in enumerate(wrong):
        with pytest.raises(error, match=says):
            agents.open(f"r{number}", initial, by="web")
        assert store.run(f"r{number}").state().json() == {}
        assert [event.actor for event in store.run(f"r{number}").events(("state.refused",))] == ["web"]
    assert store.run("r0").peek(MEMORY).absent
    agents.open("r", {"code": "x", "limit": 3}, by="web")
    assert [(event.actor, event.owner) for event in store.run("r").events(("state.written",))] == [
        ("web", "intake"), ("web", "triage")]  # fmt: skip
    with pytest.raises(TransactionInvalid):
        agents.open("r", {"code": "y"}, by="web")
    assert agents.send("r", "go").text == "hello"
    assert verify(store).findings == []


def test_no_agent_writes_a_name_of_the_engines(open_new: Open, tmp_path: Path) -> None:
    """M4: where any key may be written, those that begin with `_` may not."""
    made = team(tmp_path / "open", state_schema={"{key}": "any"}, owners={"{key}": "team"}, reducers={})
    store = open_new(made.schema)
    model = Answers(intake=[calls(write("_untrusted_content_ingested", False)), "done"])
    engine(made, store, model).send("r", "go")
    assert "begins with '_'" in results(store, "r")[0]
    assert store.run("r").state().json() == {}
