"""`refold engine`: check configurations of agents, draw their routes, export the format's schema."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from refold import exits, output
from refold.commands.engine_run import resume_command, run_command, workflow_command

if TYPE_CHECKING:
    from refold_engine.checking import Report
    from refold_engine.findings import Finding
    from refold_engine.graph import Graph

_json_option = click.option("--json", "as_json", is_flag=True, help="Exact JSON instead of text.")
_file_argument = click.argument("file", type=click.Path(dir_okay=False))


@click.group("engine")
def engine_command() -> None:
    """Run agents on a store; check configurations of agents, draw their routes, export the format's schema."""


engine_command.add_command(run_command)
engine_command.add_command(resume_command)
engine_command.add_command(workflow_command)


@engine_command.command("check")
@_file_argument
@click.option("--strict", is_flag=True, help="Warnings fail the check, too.")
@_json_option
def check_command(file: str, strict: bool, as_json: bool) -> None:
    """Check an engine configuration FILE (YAML). Exit code 1 if something is wrong.

    Tells every mistake with file, line and path: fields, names, conditions, owners, types, tools, agents nobody
    reaches. Proves that the routers cannot go round for ever, or shows a state in which they do. Imports the modules
    the file names.
    """
    report = _report(file)
    failed = bool(report.errors) or (strict and bool(report.warnings))
    if as_json:
        output.document(
            {"ok": not failed, "file": file, "findings": [_members(one) for one in report.findings],
             "proof": report.proof, "fingerprint": None if report.config is None else report.config.fingerprint}
        )  # fmt: skip
    else:
        _tell(file, report)
    if failed:
        raise click.exceptions.Exit(exits.FOUND)


@engine_command.command("graph")
@_file_argument
@click.option("--mermaid", is_flag=True, help="A Mermaid flowchart.")
@_json_option
def graph_command(file: str, mermaid: bool, as_json: bool) -> None:
    """Draw who can come after whom: routers, handoffs, delegations."""
    from refold_engine.graph import as_mermaid, as_text

    report = _report(file)
    if report.graph is None:
        for one in report.errors:
            output.note(output.safe(str(one)))
        raise click.exceptions.Exit(exits.FOUND)
    if as_json:
        output.document({**_graph(report.graph), "proof": report.proof})
    elif mermaid:
        output.say(_lines(as_mermaid(report.graph)))
    else:
        output.say(_lines(as_text(report.graph)))
        output.say(report.proof)


@engine_command.command("schema")
def schema_command() -> None:
    """Print the JSON Schema of configuration files, for editors."""
    from refold_engine.configschema import json_schema

    output.say(output.pretty(json_schema()))


def _report(file: str) -> Report:
    from refold_engine.checking import check

    if not Path(file).is_file():
        raise click.UsageError(f"no file {file!r}")
    with redirect_stdout(sys.stderr):  # it imports the modules a configuration names, and they may print
        return check(file)


def _tell(file: str, report: Report) -> None:
    for one in report.findings:
        output.say(output.safe(str(one)))
    if report.config is not None:
        config = report.config
        counts = {"agent": config.agents, "tool": config.tools, "workflow": config.workflows, "key": config.schema.keys}
        said = ", ".join(output.plural(len(found), word) for word, found in counts.items())
        output.say(f"{output.safe(file)}: {said}; {report.proof}")
    errors, warnings = len(report.errors), len(report.warnings)
    output.say(
        f"{output.plural(errors, 'error')}, {output.plural(warnings, 'warning')}" if errors or warnings else "ok"
    )


def _members(one: Finding) -> dict[str, Any]:
    return {"file": one.file, "line": one.line, "path": one.path, "message": one.message, "severity": one.severity}


def _graph(graph: Graph) -> dict[str, Any]:
    edges = [
        {"from": one.source, "to": one.target, "kind": one.kind, "taken": one.taken, "label": one.label}
        for one in graph.edges
    ]
    return {"agents": list(graph.nodes), "default_agent": graph.start, "workflow_agents": list(graph.entries),
            "edges": edges, "unreachable": list(graph.unreachable())}  # fmt: skip


def _lines(text: str) -> str:
    return "\n".join(map(output.safe, text.split("\n")))
