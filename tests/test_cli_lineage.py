"""`refold explain`, `impact`, `why` and `lint`: their texts, JSON, drawings, masks and mistakes, on each backend."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from refold import Store, open_store
from refold.commands import lineage
from refold.commands import lint as lint_command
from refold.demo import ClaimState
from refold_replay import lint as linting
from refold_replay import tracing
from refold_replay.archiving import archive
from refold_store.forking import fork

Cli = Callable[..., Result]
OpenNew = Callable[..., Store]
RUN = "clm-77401"

SECRETS = {
    "keys": {
        "iban": {"owner": "billing", "type": "string", "sensitive": True},
        "note": {"owner": "billing", "type": "any"},
        "count": {"owner": "billing", "type": "integer"},
        "absent": {"owner": "billing", "type": "any"},
        "limit": {"owner": "billing", "type": "integer"},
    }
}


@pytest.fixture
def ask(refold_cli: Cli, claims_url: str) -> Cli:
    """A command on the store with the demo's run."""

    def call(*words: str) -> Result:
        return refold_cli(*words, "--store", claims_url)

    return call


@pytest.fixture
def own(refold_cli: Cli, open_new: OpenNew, store_url: str) -> Cli:
    """A command on a store whose run `r` has a sensitive key, and a chain of counts that one agent made."""
    with open_new(SECRETS, strict_reads=True) as store:
        run = store.run("r")
        run.write_state("iban", "DE02", writer="billing", basis="DE02 by phone")
        run.read_state("iban", reader="billing")
        run.write_state("note", 1, writer="billing", basis="x\ny", turn=3)
        run.read_state("absent", reader="bob")
        for number in range(20):
            run.write_state("count", number, writer="billing", based_on=[("count", number)] if number else [])

    def call(*words: str) -> Result:
        return refold_cli(*words, "--store", store_url)

    return call


def document(result: Result) -> Any:
    """The one JSON document of a command that went well."""
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


# --- explain -------------------------------------------------------------------------------------


def test_explain(ask: Cli) -> None:
    """A verdict first, then each read with its status and the writes that rest on it."""
    assert ask("explain", RUN, "settlement_agent", "routing").stdout.splitlines() == [
        "clm-77401, at seq 14: settlement_agent read routing once: superseded before use: routing@2 (seq 12, by "
        "triage_agent) came after this read of routing@1 and before settlement@1 (seq 14)",
        "",
        "seq 7: reads routing@1",
        "  stated: writes settlement@1 at seq 14",
    ]
    lines = ask("explain", RUN, "liability_agent", "routing").stdout.splitlines()
    assert [line for line in lines if "writer of" in line][1:] == [
        "  current at the time: if the value was wrong, the writer of routing@1 is where to look: triage_agent, seq 4",
        "  current at the time: if the value was wrong, the writer of routing@2 is where to look: triage_agent, seq 12",
    ]
    assert lines.count("  no write rests on it") == 2


def test_explain_json(ask: Cli) -> None:
    """Every read with its members; the newer version and the uses have theirs."""
    found = document(ask("explain", RUN, "settlement_agent", "routing", "--json"))
    assert list(found) == sorted(["run", "tenant", "reader", "key", "scope", "at_seq", "verdict", "readings", "unread"])
    (one,) = found["readings"]
    newer = {"version": 2, "seq": 12, "written_by": "triage_agent"}
    assert re.fullmatch(r"\d{4}-.*Z", one.pop("recorded_at"))
    assert one.pop("verdict") in found["verdict"]
    assert one == {
        "seq": 7, "last_seq": 7, "count": 1, "version": 1, "written_by": "triage_agent", "written_seq": 4,
        "seen_seq": 6, "newest": 1, "turn": None, "status": "superseded before use", "newer": newer,
        "uses": [{"seq": 14, "key": "settlement", "version": 1, "deleted": False, "turn": None, "kind": "stated",
                  "superseded_by": newer}],
    }  # fmt: skip


def test_explain_without_reads(ask: Cli) -> None:
    """No reads are said plainly; a write that states the key without a read is told."""
    found = ask("explain", RUN, "intake_agent", "routing")
    assert (found.exit_code, found.stdout) == (
        0, "clm-77401, at seq 14: intake_agent is not on record as having read routing\n"
    )  # fmt: skip
    found = ask("explain", RUN, "triage_agent", "evidence")
    assert found.stdout.endswith("stated: writes routing@2 at seq 12; no read of evidence on record\n")
    assert [one["seq"] for one in document(ask("explain", RUN, "triage_agent", "evidence", "--json"))["unread"]] == [12]


# --- impact --------------------------------------------------------------------------------------

IMPACT = """\
routing@1 in clm-77401, at seq 14: 4 reads and 3 writes by 4 agents rest on it

triage_agent writes routing@1, seq 4; basis: fnol: loss location QC, stated by claimant
├─ evidence_agent reads routing@1, seq 5
│  └─ direct: evidence_agent writes evidence@1, seq 11
│     └─ stated, no read on record: triage_agent writes routing@2, seq 12; basis: injury reported: authority limit lowered
│        └─ liability_agent reads routing@2, seq 13
├─ liability_agent reads routing@1, seq 6
└─ settlement_agent reads routing@1 (superseded before use), seq 7
   └─ stated: settlement_agent writes settlement@1, seq 14; basis: authority limit is 15000
"""  # noqa: E501  # as it is printed


@pytest.mark.parametrize("spelled", ["routing@1", "key:routing@1", "routing@01"])
def test_impact(ask: Cli, spelled: str) -> None:
    """The version is spelled as in a moment; a summary, then the tree."""
    assert ask("impact", RUN, spelled).stdout == IMPACT


def test_impact_json(ask: Cli) -> None:
    """Counts, nodes with all their members, and edges from a cause to what rests on it."""
    found = document(ask("impact", RUN, "routing@1", "--json"))
    counts = {name: found[name] for name in ("reads", "writes", "forks", "runs", "notes", "left", "root", "at_seq")}
    assert counts == {
        "reads": 4, "writes": 3, "forks": [], "runs": [RUN], "notes": [], "left": 0, "root": "n1", "at_seq": 14,
    }  # fmt: skip
    assert found["agents"] == ["evidence_agent", "liability_agent", "settlement_agent", "triage_agent"]
    assert [(one["seq"], one["kind"], one["status"]) for one in found["nodes"]][:4] == [
        (4, "write", None), (5, "read", "current"), (6, "read", "current"), (7, "read", "superseded before use"),
    ]  # fmt: skip
    assert {"source": "n1", "target": "n2", "kind": "read"} in found["edges"]
    first = found["nodes"][0]
    assert re.fullmatch(r"\d{4}-.*Z", first.pop("recorded_at"))
    assert first == {
        "id": "n1", "kind": "write", "event": "state.written", "run": RUN, "scope": "run", "seq": 4, "last_seq": 4,
        "count": 0, "actor": "triage_agent", "owner": "triage_agent", "key": "routing", "version": 1, "turn": None,
        "basis": "fnol: loss location QC, stated by claimant", "masked": False, "deleted": False, "erased": False,
        "seen_seq": None, "newest": None, "status": None, "tool": None, "depth": 0, "more": 0,
    }  # fmt: skip


def test_impact_in_a_fork(ask: Cli, claims_url: str) -> None:
    """What a fork did on the inherited version is told with its run's name; a fork made before does not inherit."""
    with open_store(claims_url, strict_reads=True) as store:
        fork(store.run(RUN), "early", at=3, by="ann")
        late = fork(store.run(RUN), "late", at=6, by="ann")
        late.read_state("routing", reader="reserve_agent")
    found = ask("impact", RUN, "routing@1").stdout
    assert f"\nin {RUN}, late\nforks that inherit it: late\n" in found
    assert "reserve_agent reads routing@1, seq 8 of late\n" in found
    assert document(ask("impact", RUN, "routing@1", "--json"))["runs"] == [RUN, "late"]


def test_nothing_rests_on_it(ask: Cli) -> None:
    """A version nobody used says so."""
    lines = ask("impact", RUN, "settlement@1").stdout.splitlines()
    assert lines[0] == "settlement@1 in clm-77401, at seq 14: nothing rests on it"
    assert len(lines) == 3


# --- why -----------------------------------------------------------------------------------------


def test_why(ask: Cli) -> None:
    """The newest version, its ground, the read behind it, the write that made what was read."""
    expected = """\
settlement@1 in clm-77401, at seq 14: it rests on 1 read, 2 writes and 0 effects

settlement_agent writes settlement@1, seq 14; basis: authority limit is 15000
└─ stated: settlement_agent reads routing@1 (superseded before use), seq 7
   └─ triage_agent writes routing@1, seq 4; basis: fnol: loss location QC, stated by claimant
      └─ stated, no read on record: intake_agent writes loss@1, seq 3; basis: first notice of loss, by phone
"""
    assert ask("why", RUN, "settlement").stdout == ask("why", RUN, "key:settlement@1").stdout == expected
    first = ask("why", RUN, "loss@1").stdout.splitlines()[0]
    assert first == "loss@1 in clm-77401, at seq 14: it rests on nothing that is on record"


def test_why_json(ask: Cli) -> None:
    """The same as nodes and edges."""
    found = document(ask("why", RUN, "settlement", "--json"))
    assert (found["written"], found["version"], found["reads"], found["writes"], found["effects"]) == (True, 1, 1, 2, 0)
    assert [one["seq"] for one in found["nodes"]] == [14, 7, 4, 3]
    assert [(one["source"], one["target"], one["kind"]) for one in found["edges"]] == [
        ("n2", "n1", "stated"), ("n3", "n2", "read"), ("n4", "n3", "stated"),
    ]  # fmt: skip


def test_why_of_a_key_nobody_wrote(own: Cli) -> None:
    """It says so, and who read it all the same."""
    found = own("why", "r", "absent")
    assert (found.exit_code, found.stdout) == (
        0, "absent in r, at seq 26: nobody wrote it; read as absent by bob\n\nbob reads absent, absent, seq 6\n"
    )  # fmt: skip
    found = document(own("why", "r", "absent", "--json"))
    assert (found["written"], found["version"], found["root"], found["agents"]) == (False, None, None, ["bob"])
    assert found["readers"] == [{"reader": "bob", "reads": 1, "first_seq": 6, "last_seq": 6}]
    assert not found["initial"]
    nobody = own("why", "r", "limit").stdout.splitlines()[0]
    assert nobody == "limit in r, at seq 26: nobody wrote it, and nobody read it"


def test_why_of_an_initial_value(refold_cli: Cli, open_new: OpenNew, store_url: str) -> None:
    """Nobody wrote it: it says who set it, and who read it, by name and in numbers."""
    with open_new(SECRETS, strict_reads=True) as store:
        run = store.run("r")
        run.open(opened_by="intake", initial={"limit": 5, "count": 1})
        for name in ("bob", "bob", *(f"agent{number:02}" for number in range(lineage.NAMES))):
            run.read_state("limit", reader=name)

    found = refold_cli("why", "r", "limit", "--store", store_url).stdout.splitlines()
    agents = ", ".join(f"agent{number:02}" for number in range(lineage.NAMES))
    set_by = "nobody wrote it, version 1 is an initial value, set by intake; read by"
    assert re.sub("seq [0-9]+", "seq N", found[0]) == f"limit in r, at seq N: {set_by} {agents} and 1 more"
    unread = refold_cli("why", "r", "count", "--store", store_url).stdout.splitlines()[0]
    assert unread.endswith(f"{set_by} nobody")
    data = document(refold_cli("why", "r", "limit", "--json", "--store", store_url))
    assert (data["written"], data["initial"], data["version"], data["agents"]) == (False, True, 1, ["intake"])
    assert [(one["reader"], one["reads"]) for one in data["readers"]][-1] == ("bob", 2)
    assert data["readers"][-1]["last_seq"] == data["readers"][-1]["first_seq"] + 1


# --- what impact and why share -------------------------------------------------------------------


def test_a_basis_of_a_sensitive_key_is_masked(own: Cli) -> None:
    """Text and JSON hide the basis of a sensitive key unless asked for; drawings never hold one."""
    for words in (["why", "r", "note"], ["impact", "r", "iban@1"]):
        assert "DE02" not in own(*words).stdout + own(*words, "--json").stdout
        assert "billing writes iban@1, seq 3; basis: ***" in own(*words).stdout
        assert "basis: DE02 by phone" in own(*words, "--show-sensitive").stdout
        nodes = {one["key"]: one for one in document(own(*words, "--json"))["nodes"] if one["kind"] == "write"}
        assert (nodes["iban"]["basis"], nodes["iban"]["masked"]) == (None, True)
        assert (nodes["note"]["basis"], nodes["note"]["masked"]) == ("x\ny", False)
        shown = document(own(*words, "--json", "--show-sensitive"))["nodes"]
        assert "DE02 by phone" in [one["basis"] for one in shown]
        for form in ("--dot", "--mermaid"):
            assert "DE02" not in own(*words, form, "--show-sensitive").stdout


def test_what_does_not_print_is_escaped(own: Cli) -> None:
    """A basis with a line break stays on its line; turns are told."""
    assert "billing writes note@1, seq 5, turn 3; basis: x\\ny\n" in own("why", "r", "note").stdout


def test_depth_and_all(own: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tree is cut by steps and by lines, and says how many are left; --all shows everything."""
    deep = own("why", "r", "count").stdout.splitlines()
    assert len(deep) == 2 + lineage.DEPTH + 1 + 2
    assert deep[-1] == f"{19 - lineage.DEPTH} more: --depth N goes deeper, --all shows everything"
    assert deep[-3].endswith("(+1 below)")
    assert len(own("why", "r", "count", "--all").stdout.splitlines()) == 2 + 20
    assert len(own("why", "r", "count", "--depth", "15").stdout.splitlines()) == 2 + 16 + 2
    monkeypatch.setattr(lineage, "LINES", 4)
    few = own("impact", "r", "count@1").stdout.splitlines()
    assert few[2:][-1] == "16 more: --depth N goes less deep, --all shows everything"
    assert len(few) == 2 + 4 + 2
    assert len(own("impact", "r", "count@1", "--all").stdout.splitlines()) == 2 + 20


def test_depth_of_data(own: Cli) -> None:
    """JSON and drawings are whole unless a depth is given; what is left out is counted."""
    assert len(document(own("why", "r", "count", "--json"))["nodes"]) == 20
    part = document(own("why", "r", "count", "--json", "--depth", "2"))
    assert (len(part["nodes"]), len(part["edges"]), part["left"]) == (3, 2, 17)
    drawn = own("why", "r", "count", "--dot", "--depth", "2")
    assert '"17 more left out"' in drawn.stdout
    assert drawn.stderr == "note: 17 more left out\n"


@pytest.mark.parametrize("words", [["why", "r", "count"], ["impact", "r", "count@1"]])
def test_all_keeps_every_node(own: Cli, monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    """A trace keeps a bounded number of nodes and counts the others; --all keeps them."""
    monkeypatch.setattr(tracing, "NODES_MAX", 5)
    found = document(own(*words, "--json"))
    assert len(found["nodes"]) == 5
    assert found["left"] > 0
    assert own(*words, "--dot").stderr == f"note: {found['left']:,} more left out; --all shows them\n"
    assert "--all shows everything" in own(*words).stdout
    found = document(own(*words, "--json", "--all"))
    assert (len(found["nodes"]), found["left"]) == (20, 0)


def test_drawings(ask: Cli) -> None:
    """DOT and Mermaid come alone on standard output."""
    found = ask("impact", RUN, "routing@1", "--dot")
    assert (found.exit_code, found.stderr) == (0, "")
    assert found.stdout.startswith("digraph lineage {\n")
    assert '  n1 [label="triage_agent writes routing@1\\nseq 4", shape=box, penwidth=2];\n' in found.stdout
    assert found.stdout.endswith('  n4 -> n8 [label="stated"];\n}\n')
    found = ask("why", RUN, "settlement", "--mermaid")
    assert found.stdout.startswith('flowchart LR\n  n1["settlement_agent writes settlement@1<br/>seq 14"]\n')
    assert "  n2 -->|stated| n1\n" in found.stdout


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["impact", RUN, "routing"], 2, "'routing' names no version: write routing@1"),
        (["impact", RUN, "routing@x"], 3, "unknown key 'routing@x': did you mean 'routing'?"),
        (["impact", RUN, "routing@9"], 3, "has no version 9; its newest is 2"),
        (["impact", RUN, "routing@" + "9" * 5000], 3, "has no version"),
        (["impact", RUN, "routin@1"], 3, "unknown key 'routin': did you mean 'routing'?"),
        (["impact", "clm-77402", "routing@1"], 3, "no run 'clm-77402'"),
        (["why", RUN, "settlement@0"], 3, "has no version 0"),
        (["why", RUN, "settlment"], 3, "did you mean 'settlement'?"),
        (["why", RUN, "settlement", "--json", "--dot"], 2, "--json and --dot exclude each other"),
        (["why", RUN, "settlement", "--depth", "-1"], 2, "--depth"),
        (["explain", RUN, "settlement_agent", "routin"], 3, "did you mean 'routing'?"),
        (["explain", "clm-77402", "settlement_agent", "routing"], 3, "no run 'clm-77402'"),
        (["lint", "clm-77402"], 3, "no run 'clm-77402'"),
        (["lint", "--only", "smell"], 2, "'smell' is not one of"),
    ],
)
def test_mistakes(ask: Cli, words: list[str], code: int, says: str) -> None:
    """Each mistake is one clear line and its exit code."""
    found = ask(*words)
    assert (found.exit_code, found.stdout) == (code, "")
    assert says in found.stderr
    assert len(found.stderr.splitlines()) == 1


# --- lint ----------------------------------------------------------------------------------------


def test_lint(ask: Cli) -> None:
    """One line for each finding, with the places; exit code 1."""
    found = ask("lint", RUN)
    assert found.exit_code == 1
    assert found.stdout.splitlines() == [
        "clm-77401: 4 findings",
        "  one-reader  only triage_agent reads evidence: a handoff field (seq 12)",
        "  never-read  reserve_band was written once by reserve_agent and never read (seq 8)",
        "  never-read  settlement was written once by settlement_agent and never read (seq 14)",
        "  superseded  settlement_agent wrote settlement@1 on routing@1 (stated), after triage_agent had written "
        "routing@2 (seq 14)",
    ]


def test_lint_options(ask: Cli) -> None:
    """Only some codes; fewer keys; nothing found ends with 0."""
    found = ask("lint", RUN, "--only", "superseded", "--only", "reads-too-much", "--max-keys", "0")
    assert [line.split()[0] for line in found.stdout.splitlines()[1:]] == ["reads-too-much"] * 3 + ["superseded"]
    found = ask("lint", RUN, "--only", "unread-write")
    assert (found.exit_code, found.stdout) == (0, "1 run without findings\n")


def test_lint_all_runs(ask: Cli, claims_url: str, tmp_path: Path) -> None:
    """Without RUN every run of the tenant; archived ones are named and not looked at."""
    with open_store(claims_url, ClaimState) as store:
        fork(store.run(RUN), "second", at=2, by="ann")
        store.run("old").write_state("loss", {}, writer="intake_agent")
        archive(store.run("old"), tmp_path, by="ann")
        store.run("elsewhere", "other").write_state("loss", {}, writer="intake_agent")
    found = ask("lint")
    assert found.exit_code == 1
    assert found.stdout.splitlines()[0] == "clm-77401: 4 findings"
    assert found.stdout.endswith("1 run more without findings\n")
    assert found.stderr == "note: archived and not looked at: old\n"
    listed = json.loads(ask("lint", "--json").stdout)
    assert (listed["runs"], listed["archived"], len(listed["findings"])) == ([RUN, "second"], ["old"], 4)
    assert "there are runs in 'default', 'other'" in ask("lint", "--tenant", "nobody").stderr
    assert ask("lint", "old").exit_code != 0


def test_lint_json(ask: Cli) -> None:
    """Findings as records, with what was asked."""
    found = ask("lint", RUN, "--json", "--only", "superseded", "--max-keys", "3")
    assert found.exit_code == 1
    message = "settlement_agent wrote settlement@1 on routing@1 (stated), after triage_agent had written routing@2"
    assert json.loads(found.stdout) == {
        "tenant": "default", "runs": [RUN], "archived": [], "max_keys": 3, "only": ["superseded"],
        "findings": [{"code": "superseded", "run": RUN, "key": "settlement", "agent": "settlement_agent",
                      "message": message, "seqs": [14]}],
    }  # fmt: skip


def test_lint_knows_the_codes() -> None:
    """The command offers exactly the codes there are, and the same bound."""
    assert (lint_command.CODES, lint_command.KEYS_MAX) == (linting.CODES, linting.KEYS_MAX)
