"""What `refold engine check` finds: every kind of mistake of CHECKLIST E8, each with its line, all in one run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from refold_engine.checking import Report, check

Check = Callable[[str], Report]

GOOD = """\
model: {primary: m}
default_agent: intake
state_schema: {urgent: boolean, ward: string, notes: array}
owners: {urgent: intake, ward: nurse, notes: team}
groups: {team: [intake, nurse]}
reducers: {notes: append}
condition_functions: {getcwd: os.getcwd}
tools: [{name: listdir, module: os}]
agents:
  intake:
    handoffs: [nurse]
    tools: [{name: listdir, available_when: "urgent == True"}]
    routers: [{condition: urgent, target: nurse}]
    spawns: {tool_pool: [listdir], on_complete: [{key: urgent, value: true}]}
  nurse: {}
workflows:
  round: [{name: v, type: vote, vote: {min_agreement: 0.6}, tasks: [{name: a, agent: nurse, instruction: i}]}]
"""


@pytest.fixture
def checked(tmp_path: Path) -> Check:
    """`checked(text)` checks a file of this text."""

    def run(text: str) -> Report:
        path = tmp_path / "team.yaml"
        path.write_text(text)
        return check(path)

    return run


def test_a_good_file_has_no_findings(checked: Check) -> None:
    """Nothing is found, and the routes are proven free of cycles."""
    report = checked(GOOD)
    assert report.findings == ()
    assert report.proof == "the router graph has no cycle (agents: 2, routes: 1)"


@pytest.mark.parametrize(
    ("old", "new", "line", "path", "said"),
    [
        ("urgent == True", "urgent = True", 12, "agents.intake.tools.0.available_when", "write `==` for `=`"),
        ("urgent == True", "urgent == true", 12, "agents.intake.tools.0.available_when", "write True"),
        ("urgent == True", "urgnt", 12, "agents.intake.tools.0.available_when", "did you mean urgent?"),
        ("urgent == True", "asked(urgent)", 12, "agents.intake.tools.0.available_when", "only declared"),
        ("condition: urgent", "condition: lambda", 13, "agents.intake.routers.0.condition", "cannot be read"),
        (
            "urgent, target: nurse",
            "urgent, target: nurze",
            13,
            "agents.intake.routers.0.target",
            "did you mean 'nurse'?",
        ),
        ("urgent, target: nurse", "urgent, target: intake", 13, "agents.intake.routers.0", "to itself"),
        ("handoffs: [nurse]", "handoffs: [intake]", 11, "agents.intake.handoffs", "hands over to itself"),
        ("handoffs: [nurse]", "handoffs: [doc]", 11, "agents.intake.handoffs.0", "'doc' is no agent"),
        ("handoffs: [nurse]", "handofs: [nurse]", 11, "agents.intake.handofs", "did you mean 'handoffs'?"),
        ("default_agent: intake", "default_agent: intak", 2, "default_agent", "did you mean 'intake'?"),
        (
            "{name: listdir, available",
            "{name: listdr, available",
            12,
            "agents.intake.tools.0",
            "did you mean 'listdir'?",
        ),
        ("nurse: {}", "nurse: {}\n  ghost: {}", 16, "agents.ghost", "leads to the agent 'ghost'"),
        (", notes: team}", "}", 4, "owners", "key 'notes' has no owner"),
        (
            "urgent: boolean",
            "urgent: {owner: nurse, type: boolean}",
            4,
            "owners.urgent",
            "two owners, 'nurse' and 'intake'",
        ),
        ("0.6", "1.5", 17, "workflows.round.0.vote.min_agreement", "less than or equal to 1, not 1.5"),
        ("primary: m", "primary: m, temp: 1", 1, "model.temp", "unknown field 'temp'"),
        ("notes: append", "notes: appendd", 6, "reducers.notes", "did you mean 'append'"),
        ("team: [intake, nurse]", "team: [intake, nurce]", 5, "groups.team", "did you mean 'nurse'?"),
        (
            "tool_pool: [listdir]",
            "tool_pool: [rm]",
            14,
            "agents.intake.spawns.tool_pool.0",
            "'rm' is no tool of 'intake'",
        ),
        ("key: urgent", "key: ward", 14, "agents.intake.spawns.on_complete.0", "its owner is 'nurse'"),
        ("key: urgent", "key: urgnt", 14, "agents.intake.spawns.on_complete.0", "unknown key 'urgnt'"),
        ("value: true", "value: 3", 14, "agents.intake.spawns.on_complete.0", "does not fit the key 'urgent'"),
        ("os.getcwd", "os.getcwdd", 7, "condition_functions.getcwd", "has no attribute 'getcwdd'"),
        ("module: os}", "module: oss}", 8, "tools.0", "'oss' cannot be imported"),
        ("ward: nurse", "ward: nursing", 4, "owners.ward", "neither an agent, a group nor a workflow"),
        ("a, agent: nurse", "a, agent: nobody", 17, "workflows.round.0.tasks.0.agent", "'nobody' is no agent"),
        ("ward: string", "ward: strnig", 3, "state_schema.ward", "did you mean 'string'?"),
        ("ward: string", "ward: {owner: nurse, type: string, readers: [x]}", 3, "state_schema.ward", "the reader 'x'"),
    ],
)
def test_each_mistake_is_found_with_its_line(
    checked: Check, old: str, new: str, line: int, path: str, said: str
) -> None:
    """One change to a good file makes a finding at its line and path that says what to do."""
    assert GOOD.count(old) == 1
    text = GOOD.replace(old, new)
    if "readers" in new:
        text = text.replace(", ward: nurse", "")
    found = [one for one in checked(text).errors if (one.line, one.path) == (line, path)]
    assert [one for one in found if said in one.message], checked(text).findings


def test_everything_is_told_in_one_run(checked: Check) -> None:
    """Mistakes of fields, names, conditions, and loops of routers come together, by line."""
    text = GOOD.replace("primary: m", "primary: m, temp: 1").replace("urgent == True", "urgent == true")
    text = text.replace("nurse: {}", "nurse: {routers: [{condition: urgent, target: intake}]}")
    report = checked(text)
    assert [one.line for one in report.errors] == [1, 12, 13]
    assert "go round for ever, intake -> nurse -> intake" in report.errors[2].message
    assert report.config is None


def test_a_loop_is_shown_with_its_state(checked: Check) -> None:
    """The cycle, a state in which it goes round, and the line of its first router are told."""
    report = checked(GOOD.replace("nurse: {}", 'nurse: {routers: [{condition: ward == "a", target: intake}]}'))
    (error,) = report.errors
    assert (error.line, error.path) == (13, "agents.intake.routers.0")
    assert 'in the state {"urgent":true,"ward":"a"}' in error.message
    assert report.proof == "the router graph has cycles that can go round for ever"


def test_a_cycle_with_an_exit_passes(checked: Check) -> None:
    """Routers that exclude each other are no error, and the proof says so."""
    report = checked(GOOD.replace("nurse: {}", "nurse: {routers: [{condition: not urgent, target: intake}]}"))
    assert report.findings == ()
    assert report.proof == "the router graph has cycles, and in no state does one go round: each has an exit"


def test_what_is_not_proven_is_a_warning(checked: Check) -> None:
    """A cycle over a function or over what the search does not understand warns, and fails nothing."""
    asked = checked(GOOD.replace("nurse: {}", "nurse: {routers: [{condition: getcwd() == 'x', target: intake}]}"))
    assert asked.errors == ()
    assert "if their functions say so" in asked.warnings[0].message
    deep = checked(GOOD.replace("nurse: {}", "nurse: {routers: [{condition: \"notes[0] == 'x'\", target: intake}]}"))
    assert "it is not proven" in deep.warnings[0].message
    assert deep.errors == ()


def test_a_router_that_never_fires_is_a_warning(checked: Check) -> None:
    """Behind one that always does, or false by itself."""
    report = checked(GOOD.replace("nurse: {}", "nurse: {routers: [{condition: 1 > 2, target: intake}]}"))
    assert ["never fires" in one.message for one in report.findings] == [True]
    assert report.errors == ()


def test_what_cannot_be_read_is_one_finding(checked: Check, tmp_path: Path) -> None:
    """No YAML, a missing file, a file that is no mapping: told with the line where there is one."""
    (error,) = checked("model: {primary: m\nagents: [\n").findings
    assert (error.severity, error.line > 0) == ("error", True)
    (missing,) = check(tmp_path / "none.yaml").findings
    assert str(missing).endswith("none.yaml: the file cannot be read: No such file or directory")
    (shape,) = checked("[1, 2]\n").findings
    assert "not a list" in shape.message


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("key: urgent", 'key: "\\0"'),
        ("urgent: intake", 'urgent: "\\0"'),
        ("urgent == True", "state['\\u0000'] == 1"),
        ("ward: string", '"a\\0b": string'),
        ("nurse: {}", '"\\0": {}'),
    ],
)
def test_names_that_cannot_be_stored_are_findings(checked: Check, old: str, new: str) -> None:
    """A NUL in the name of a key, an owner or an agent is told like any other mistake."""
    assert checked(GOOD.replace(old, new)).errors


def test_imports_explain_unknown_agents(checked: Check) -> None:
    """A file that is put together from others is told why an agent is not there."""
    report = checked(GOOD.replace("handoffs: [nurse]", "handoffs: [pay_desk]") + "imports: [{path: pay.yaml}]\n")
    assert "`imports` is not read" in report.errors[0].message
    assert "imports" in report.warnings[0].message
