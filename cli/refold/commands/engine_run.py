"""`refold engine run`, `workflow` and `resume`: agents at work on a run, told as it happens.

Rules of this module
- What happens goes to standard error, the answer to standard output, so that it can be piped.
- The same command again is safe: a message that is on record and unanswered is gone on with, not sent twice.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from refold import exits, output
from refold.output import safe
from refold.site import Site, common, complete_runs, login_name
from refold_store import jsontext
from refold_store.errors import InvalidValue

if TYPE_CHECKING:
    from refold_engine.engine import Engine
    from refold_engine.outcomes import Result
    from refold_engine.ports import Model
    from refold_store.run import Run

SCRIPTED = "scripted:"
"""In front of the file of a scripted model."""
SHOWN = 300
"""Characters of a text shown while agents work."""

_model_option = click.option(
    "--model", metavar="scripted:FILE", help="Answers from a script, in place of the models of the configuration."
)


@click.command("run")
@click.argument("file", type=click.Path(dir_okay=False))
@click.option("--run", "run_name", required=True, metavar="ID", shell_complete=complete_runs, help="The run.")
@click.option("--message", metavar="TEXT", help="A person's message; without one the run goes on where it stands.")
@click.option(
    "--message-id", metavar="ID", help="Names the message: sent again under this name, it is not added twice."
)
@_model_option
@click.option("--quiet", is_flag=True, help="Only the answer.")
@common
def run_command(
    site: Site,
    file: str,
    run_name: str,
    message: str | None,
    message_id: str | None,
    model: str | None,
    quiet: bool,
) -> None:
    """Let the agents of FILE work on a run until they answer, ask a person, or reach a limit.

    Ended half way, by a crash or by you, the same command goes on: what is finished is not done again. Exit code 1
    says that a limit was reached.
    """
    if message is None and message_id is not None:
        raise click.UsageError("--message-id names a --message")
    with _engine(site, file, run_name, model, quiet) as (engine, run):
        progress = engine.progress(run)
        last = next((one.message for one in reversed(progress.said) if one.message.role == "user"), None)
        if message is None or (progress.unanswered and last is not None and last.content == message):
            found = engine.go_on(run_name, tenant=site.tenant)
        else:
            found = engine.send(run_name, message, tenant=site.tenant, message_id=message_id)
    _end(site, found)


@click.command("resume")
@click.argument("run_name", metavar="RUN", shell_complete=complete_runs)
@click.option("--config", "file", required=True, type=click.Path(dir_okay=False), metavar="FILE", help="Its agents.")
@click.option(
    "--answer", "given", multiple=True, metavar="ID=VALUE", help="true, false or JSON; for each that is asked."
)
@click.option("--yes", "verdict", flag_value="yes", help="Allow all that is asked.")
@click.option("--no", "verdict", flag_value="no", help="Refuse all that is asked.")
@click.option("--as", "actor", metavar="NAME", help="Who answers; the login name by default.")
@_model_option
@click.option("--quiet", is_flag=True, help="Only the answer.")
@common
def resume_command(
    site: Site,
    run_name: str,
    file: str,
    given: Sequence[str],
    verdict: str | None,
    actor: str | None,
    model: str | None,
    quiet: bool,
) -> None:
    """Answer what the agents of RUN ask a person, and let them go on. Without an answer: show what they ask."""
    if verdict is not None and given:
        raise click.UsageError("--yes and --no answer everything: --answer has no place beside them")
    with _engine(site, file, run_name, model, quiet) as (engine, run):
        waiting = [one.id for one in engine.progress(run).waiting] if run.interrupts() else []
        if not given and not (verdict and waiting):
            found = engine.go_on(run_name, tenant=site.tenant)
        else:
            answers = dict.fromkeys(waiting, verdict == "yes") if verdict else dict(_answer(one) for one in given)
            found = engine.resume(run_name, answers, by=actor or login_name(), tenant=site.tenant)
    _end(site, found)


@click.command("workflow")
@click.argument("file", type=click.Path(dir_okay=False))
@click.argument("name")
@click.option("--run", "run_name", required=True, metavar="ID", shell_complete=complete_runs, help="The run.")
@click.option("--input", "text", metavar="TEXT", help="What it is about; without one, that of the pass under way.")
@click.option("--again", is_flag=True, help="Another pass, if the last one is finished.")
@_model_option
@click.option("--quiet", is_flag=True, help="Only the result.")
@common
def workflow_command(
    site: Site, file: str, name: str, run_name: str, text: str | None, again: bool, model: str | None, quiet: bool
) -> None:
    """Do the workflow NAME of FILE on a run, or what is left of it.

    Ended half way, the same command goes on: finished steps and branches are not done again. Exit code 1: it failed.
    """
    from refold_engine.workflows import run_workflow

    with _engine(site, file, run_name, model, quiet) as (engine, _run):
        found = run_workflow(engine, run_name, name, text, tenant=site.tenant, again=again)
    if site.as_json:
        steps = [{"path": one.path, "name": one.name, "outcome": one.how, "text": one.text} for one in found.steps]
        output.document(
            {"run": run_name, "tenant": site.tenant, "workflow": name, "pass": found.number, "outcome": found.how,
             "text": found.text, "asked": found.asked, "steps": steps}
        )  # fmt: skip
    else:
        output.say("\n".join(map(safe, found.text.split("\n"))))
    for run_asking in found.asked if not site.as_json else ():
        output.note(
            f"answer with: refold engine resume {safe(run_asking)} --config {safe(file)} --yes, then go on here"
        )
    if found.how == "failed":
        raise click.exceptions.Exit(exits.FOUND)


def _answer(text: str) -> tuple[str, Any]:
    name, mark, value = text.partition("=")
    if not mark or not name:
        raise click.UsageError(f"--answer {text!r}: write ID=true, ID=false or ID=JSON")
    try:
        return name, jsontext.parse(value.encode("utf-8", "surrogateescape"))
    except InvalidValue as error:
        raise click.UsageError(f"--answer {text!r}: what follows `=` is not JSON: {error}") from None


@contextmanager
def _engine(site: Site, file: str, run_name: str, model: str | None, quiet: bool) -> Iterator[tuple[Engine, Run]]:
    """The engine of a configuration on the store, and the run."""
    from refold_engine.engine import Engine
    from refold_engine.loading import load

    config = load(file)
    if not quiet:
        for warning in config.warnings:
            output.note(f"warning: {safe(warning)}")
    asked = _model(model)
    with site.store(config.schema, read_only=False, create=True) as store:
        run = store.run(run_name, site.tenant)
        if model is not None:
            _take_up(asked, run)
        with Engine(config, store, asked, tell=_silent if quiet else _tell) as engine:
            yield engine, run


def _model(name: str | None) -> Model:
    if name is None:
        from refold_engine.models import LiteLLMModel

        return LiteLLMModel()
    if not name.startswith(SCRIPTED):
        raise click.UsageError(f"--model {name!r}: write {SCRIPTED}FILE; other models stand in the configuration")
    from refold_engine.scripted import ScriptedModel

    return ScriptedModel.from_file(name.removeprefix(SCRIPTED))


def _take_up(model: Any, run: Run) -> None:
    """Use up what a script has answered already, in the run and in its branches: a new process goes on from there."""
    from refold_engine.retelling import requests_of

    if not run.head_seq():
        return
    model.skip(requests_of(run.events()))
    for event in run.events(("branch.opened",)):
        name = event.refs.get("branch")
        if isinstance(name, str):
            _take_up(model, run.store.run(name, run.tenant))


def _end(site: Site, found: Result) -> None:
    if site.as_json:
        output.document(
            {"run": found.run, "tenant": site.tenant, "outcome": found.how, "agent": found.agent, "text": found.text,
             "asked": found.asked}
        )  # fmt: skip
    elif found.how == "interrupted":
        for name, call in found.asked.items():
            what = f"{safe(call['name'])} {output.compact(call['arguments'])}"
            output.say(f"{safe(found.agent)} asks to call {what}  [{safe(name)}]")
        output.note(
            f"answer with: refold engine resume {safe(found.run)} --config FILE --yes (or --no, --answer ID=true)"
        )
    elif found.how == "idle":
        output.note("nothing to do: send a message with --message")
    else:
        output.say("\n".join(map(safe, found.text.split("\n"))))
    if found.how == "stopped":
        raise click.exceptions.Exit(exits.FOUND)


def _silent(_what: str, _facts: dict[str, Any]) -> None:
    pass


def _tell(what: str, facts: dict[str, Any]) -> None:
    """One line on standard error for each thing that happens."""
    line = _line(what, facts)
    if line is not None:
        output.note(line)
        sys.stderr.flush()


def _line(what: str, facts: dict[str, Any]) -> str | None:
    who = safe(str(facts.get("agent", facts.get("from", ""))))
    match what:
        case "turn":
            again = "" if facts["attempt"] == 1 else f", attempt {facts['attempt']}"
            return f"-- turn {facts['turn']}: {who}{again}"
        case "said" if facts["text"]:
            return f"{who}: {_short(facts['text'])}"
        case "called":
            return f"  {who} calls {safe(facts['tool'])} {_short(output.compact(facts['arguments']))}"
        case "returned":
            return f"  {safe(facts['tool'])} -> {_short(facts['text'])}"
        case "wrote":
            return f"  {who} writes {safe(facts['key'])} {_short(output.compact(facts['value']))}"
        case "routed" | "handed":
            way = f"router {facts['router']}" if what == "routed" else facts["reason"] or "handoff"
            return f"   {who} -> {safe(str(facts['to']))} ({safe(str(way))})"
        case "delegated":
            return f"  {who} gives {safe(facts['to'])} a task: {_short(facts['task'])}"
        case "step":
            return f"== {safe(facts['name'])}"
        case "workflow":
            again = f", pass {facts['pass']}" if facts["pass"] > 1 else ""
            return f"workflow {safe(facts['workflow'])} on {safe(facts['run'])}{again}"
        case "branch":
            return f"  branch {safe(facts['name'])}: {safe(facts['run'])}"
        case "branch_ended" if facts["how"] != "done":
            return f"  branch {safe(facts['name'])} {facts['how']}: {_short(facts['text'])}"
        case "merged":
            return f"  merged {len(facts['branches'])} branches{_clashes(facts)}"
        case "asked":
            return f"  a person is asked: {safe(facts['reason'])}"
        case "served":
            return f"  {safe(facts['what'])}: on record already"
        case "failed":
            return f"  {safe(facts['what'])} failed: {safe(str(facts['why']))}"
        case "noticed" | "stopped":
            return f"  note: {safe(str(facts.get('text') or facts.get('message')))}"
    return None


def _clashes(facts: dict[str, Any]) -> str:
    """What a merge has to say: keys that several wrote, a vote's count."""
    told = [f"{word} {output.compact(facts[word])}" for word in ("conflicts", "overwrote") if facts.get(word)]
    vote = facts.get("vote")
    if isinstance(vote, dict):
        told.append(
            f"{vote['count']} of {vote['of']} say {_short(str(vote['winner']))}" if vote["winner"] else "no consensus"
        )
    return "".join(f"; {one}" for one in told)


def _short(text: str) -> str:
    line = safe(" ".join(text.split()))
    return line if len(line) <= SHOWN else line[: SHOWN - 1] + "…"
