"""`refold explain`, `refold impact` and `refold why`: what rests on what."""

from __future__ import annotations

import functools
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

import click

from refold import output, records
from refold.output import MASK, plural, safe
from refold.site import (
    COUNT,
    Site,
    common,
    complete_keys,
    declared_key,
    exclude_each_other,
    key_argument,
    note_strangers,
    run_argument,
    sensitive_option,
)
from refold_store.errors import UnknownKey
from refold_store.moments import version_of

if TYPE_CHECKING:
    from refold_replay.explain import Explanation, Newer, Reading, Use
    from refold_replay.trace import Node, Trace
    from refold_replay.tracing import Impact, Reader, Why
    from refold_store.run import Run

DEPTH = 12
"""Steps a tree shows unless --depth or --all says otherwise."""
LINES = 200
"""Lines of a tree without --all."""
NAMES = 10
"""Readers named in a line; --json has all."""

Form = Literal["text", "dot", "mermaid"]


def _drawn(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options of a command that shows a trace."""

    @functools.wraps(function)
    def call(*args: Any, dot: bool, mermaid: bool, depth: int | None, everything: bool, **rest: Any) -> Any:
        exclude_each_other(dot=dot, mermaid=mermaid)
        exclude_each_other(depth=depth, all=everything)
        form = "dot" if dot else "mermaid" if mermaid else None
        return function(*args, form=form, depth=depth, everything=everything, **rest)

    for option in (
        click.option("--mermaid", is_flag=True, help="A Mermaid flowchart."),
        click.option("--dot", is_flag=True, help="A graph in the language of Graphviz."),
        click.option("--all", "everything", is_flag=True, help="However deep and however much."),
        click.option(
            "--depth", type=COUNT, metavar="N", help=f"At most N steps from the version; as text {DEPTH} by default."
        ),
    ):
        call = option(call)
    return call


@click.command("explain")
@run_argument
@click.argument("reader", metavar="READER")
@key_argument
@common
def explain_command(site: Site, run_name: str, reader: str, key: str) -> None:
    """Show what READER read of KEY in RUN, and what it wrote on the strength of it.

    A read is stale if a newer version was there when it was served; superseded before use if one came after it and
    before a write that rests on it; else it was current: if the value was wrong, its writer is where to look.
    """
    from refold_replay.explain import explain

    with site.run(run_name) as run:
        _check_order(run, reader, key)
        found = explain(run, reader, key)
        if not found.readings and not found.unread:
            note_strangers(run, [reader])
    if site.as_json:
        output.document(
            {"run": run_name, "tenant": site.tenant, "reader": reader, "key": key, "scope": found.scope,
             "at_seq": found.seq, "verdict": found.verdict, "readings": [_reading(one) for one in found.readings],
             "unread": [_use(one) for one in found.unread]}
        )  # fmt: skip
        return
    _tell_explanation(run_name, found)


def _check_order(run: Run, reader: str, key: str) -> None:
    """Raises UnknownKey; it says so if the two were exchanged."""
    try:
        declared_key(run, key)
    except UnknownKey:
        try:
            run.declared(reader)
        except UnknownKey:
            pass
        else:
            raise UnknownKey(key=key, hint=f"the order is READER KEY, and {reader!r} is a key") from None
        raise


def _reading(one: Reading) -> dict[str, Any]:
    return {
        "seq": one.seq,
        "last_seq": max(one.seq, one.last_seq),
        "count": one.count,
        "recorded_at": records.time_of(one.recorded_at),
        "version": one.version,
        "written_by": one.writer,
        "written_seq": one.written_seq,
        "seen_seq": one.seen_seq,
        "newest": one.newest,
        "turn": one.turn,
        "status": one.status,
        "newer": _newer(one.newer),
        "verdict": one.verdict,
        "uses": [_use(use) for use in one.uses],
    }


def _newer(newer: Newer | None) -> dict[str, Any] | None:
    return None if newer is None else {"version": newer.version, "seq": newer.seq, "written_by": newer.writer}


def _use(use: Use) -> dict[str, Any]:
    return {
        "seq": use.seq,
        "key": use.key,
        "version": use.version,
        "deleted": use.deleted,
        "turn": use.turn,
        "kind": use.kind,
        "superseded_by": _newer(use.superseded_by),
    }


def _tell_explanation(run_name: str, found: Explanation) -> None:
    output.say(f"{safe(run_name)}, at seq {found.seq}: {safe(found.verdict)}")
    for one in found.readings:
        what = f"{safe(found.key)}@{one.version}" if one.version else f"{safe(found.key)}, absent"
        seq = f"seq {one.seq}" if one.count < 2 else f"seq {one.seq} to {one.last_seq}, {one.count:,} times"
        turn = "" if one.turn is None else f", turn {one.turn}"
        output.say(f"\n{seq}{turn}: reads {what}")
        if len(found.readings) > 1:  # else it stands above
            output.say(f"  {safe(one.verdict)}")
        for use in one.uses:
            output.say(f"  {_told_use(use)}")
        if not one.uses:
            output.say("  no write rests on it")
    for use in found.unread:
        output.say(f"\n{_told_use(use)}; no read of {safe(found.key)} on record")


def _told_use(use: Use) -> str:
    verb = "deletes" if use.deleted else "writes"
    turn = "" if use.turn is None else f", turn {use.turn}"
    return f"{use.kind}: {verb} {safe(use.key)}@{use.version} at seq {use.seq}{turn}"


# --- impact and why ------------------------------------------------------------------------------


@click.command("impact")
@run_argument
@click.argument("what", metavar="KEY@VERSION", shell_complete=complete_keys)
@_drawn
@sensitive_option
@common
def impact_command(
    site: Site,
    run_name: str,
    what: str,
    depth: int | None,
    everything: bool,
    form: Form | None,
    show_sensitive: bool,
) -> None:
    """Show what rests on a version: who read it, what they wrote later, who read that, and on; also in forks of RUN.

    A write rests on what it states (stated); else on what its writer had read before, in the same turn (direct) or an
    earlier one (carried); and on the version before it if its reducer builds on that (folded).
    """
    from refold_replay.tracing import NODES_MAX, impact

    _check_form(site, form)
    key, version = _version(what)
    with site.run(run_name) as run:
        declared_key(run, key)
        if version is None:
            raise click.UsageError(f"{what!r} names no version: write {what}@1")
        found = impact(run, key, version, limit=None if everything else NODES_MAX)
    if site.as_json:
        counts = {"reads": found.reads, "writes": found.writes, "agents": found.agents, "runs": found.runs}
        named = {"run": run_name, "tenant": site.tenant, "key": key, "version": version}
        rest = {"forks": found.forks, "notes": found.notes, **_graph(found.trace, depth, show_sensitive)}
        output.document(named | counts | rest)
    elif form:
        _draw(found.trace, depth, form, found.notes)
    else:
        _tell_impact(run_name, found)
        _show_tree(found.trace, depth, everything, show_sensitive, backwards=False)
        _say_notes(found.notes)


@click.command("why")
@run_argument
@click.argument("what", metavar="KEY[@VERSION]", shell_complete=complete_keys)
@_drawn
@sensitive_option
@common
def why_command(
    site: Site,
    run_name: str,
    what: str,
    depth: int | None,
    everything: bool,
    form: Form | None,
    show_sensitive: bool,
) -> None:
    """Show what a version rests on, back to the first causes: reads, the writes they saw, what tools and models said.

    The newest version unless one is given. Of a key that nobody wrote: who read it all the same.
    """
    from refold_replay.tracing import NODES_MAX, why

    _check_form(site, form)
    key, version = _version(what)
    with site.run(run_name) as run:
        declared_key(run, key)
        found = why(run, key, version, limit=None if everything else NODES_MAX)
    if site.as_json:
        counts = {"reads": found.reads, "writes": found.writes, "effects": found.effects, "agents": found.agents}
        named = {"run": run_name, "tenant": site.tenant, "key": key, "version": found.version or None}
        known = {"written": found.written, "initial": found.initial, "readers": [_reader(one) for one in found.readers]}
        rest = {**known, "notes": found.notes, **_graph(found.trace, depth, show_sensitive)}
        output.document(named | counts | rest)
    elif form:
        _draw(found.trace, depth, form, found.notes)
    else:
        _tell_why(run_name, found)
        _show_tree(found.trace, depth, everything, show_sensitive, backwards=True)
        if found.written:
            _say_notes(found.notes)


def _version(text: str) -> tuple[str, int | None]:
    """`routing@2`, `key:routing@2` or `routing` as a moment spells them: the last @digits are the version."""
    return version_of(text) or (text.removeprefix("key:"), None)


def _check_form(site: Site, form: Form | None) -> None:
    if form and site.as_json:
        raise click.UsageError(f"--json and --{form} exclude each other")


def _graph(trace: Trace, depth: int | None, show_sensitive: bool) -> dict[str, Any]:
    """A trace as members of a record."""
    from refold_replay.drawing import within

    part = within(trace, depth)
    return {
        "at_seq": part.seq,
        "root": part.root,
        "nodes": [_node(node, show_sensitive) for node in part.nodes.values()],
        "edges": [{"source": edge.source, "target": edge.target, "kind": edge.kind} for edge in part.edges],
        "left": part.left,
    }


def _node(node: Node, show_sensitive: bool) -> dict[str, Any]:
    masked = node.sensitive and node.basis is not None and not show_sensitive
    return {
        "id": node.id,
        "kind": node.kind,
        "event": node.event,
        "run": node.run or None,
        "scope": node.scope,
        "seq": node.seq,
        "last_seq": max(node.seq, node.last_seq),
        "count": node.count,
        "recorded_at": records.time_of(node.recorded_at),
        "actor": node.actor,
        "owner": node.owner,
        "key": node.key,
        "version": node.version,
        "turn": node.turn,
        "basis": None if masked else node.basis,
        "masked": masked,
        "deleted": node.deleted,
        "erased": node.erased,
        "seen_seq": node.seen_seq,
        "newest": node.newest,
        "status": node.status,
        "tool": node.tool,
        "depth": node.depth,
        "more": node.more,
    }


def _draw(trace: Trace, depth: int | None, form: Form, notes: list[str]) -> None:
    from refold_replay.drawing import dot, mermaid, within

    part = within(trace, depth)
    output.say(dot(part) if form == "dot" else mermaid(part))
    for text in notes:
        output.note(f"note: {text}")
    if part.left:
        output.note(f"note: {part.left:,} more left out{'' if depth is not None else '; --all shows them'}")


def _tell_impact(run_name: str, found: Impact) -> None:
    counts = (
        f"{plural(found.reads, 'read')} and {plural(found.writes, 'write')} by {plural(len(found.agents), 'agent')}"
    )
    verb = "rests" if found.reads + found.writes == 1 else "rest"
    head = f"{safe(found.key)}@{found.version} in {safe(run_name)}, at seq {found.trace.seq}"
    output.say(f"{head}: {counts} {verb} on it" if found.reads + found.writes else f"{head}: nothing rests on it")
    if len(found.runs) > 1:
        output.say(f"in {', '.join(map(safe, found.runs))}")
    if found.forks:
        output.say(f"forks that inherit it: {', '.join(map(safe, found.forks))}")
    output.say()


def _tell_why(run_name: str, found: Why) -> None:
    where = f"in {safe(run_name)}, at seq {found.trace.seq}"
    if not found.written:
        output.say(f"{safe(found.key)} {where}: {_unwritten(found)}")
    elif not found.reads + found.writes + found.effects:
        output.say(f"{safe(found.key)}@{found.version} {where}: it rests on nothing that is on record")
    else:
        counts = f"{plural(found.reads, 'read')}, {plural(found.writes, 'write')} and {plural(found.effects, 'effect')}"
        output.say(f"{safe(found.key)}@{found.version} {where}: it rests on {counts}")
    output.say()


def _unwritten(found: Why) -> str:
    """That nobody wrote it, and who read it all the same."""
    names = [safe(one.name) for one in found.readers[:NAMES]]
    more = f" and {len(found.readers) - NAMES:,} more" if len(found.readers) > NAMES else ""
    readers = f"{', '.join(names)}{more}"
    if found.initial:
        by = safe(found.trace.nodes["n1"].actor)
        said = f"nobody wrote it, version {found.version} is an initial value, set by {by}"
        return f"{said}; read by {readers or 'nobody'}"
    return f"nobody wrote it; read as absent by {readers}" if readers else "nobody wrote it, and nobody read it"


def _reader(one: Reader) -> dict[str, Any]:
    return {"reader": one.name, "reads": one.reads, "first_seq": one.first_seq, "last_seq": one.last_seq}


def _say_notes(notes: list[str]) -> None:
    for text in notes:
        output.say(f"\nnote: {safe(text)}")


def _show_tree(trace: Trace, depth: int | None, everything: bool, show_sensitive: bool, *, backwards: bool) -> None:
    from refold_replay.drawing import tree

    def words(node: Node) -> str:
        return _words(trace, node, show_sensitive)

    steps = depth if depth is not None or everything else DEPTH
    lines = tree(trace, backwards=backwards, depth=steps)
    told = set()
    for line in lines if everything else islice(lines, LINES):
        told.add(line.node.id)
        output.say(line.text(words))
    left = trace.left + len(trace.nodes) - len(told)
    if left:
        deep = "less deep" if next(lines, None) is not None else "deeper"
        output.say(f"\n{left:,} more: --depth N goes {deep}, --all shows everything")


def _words(trace: Trace, node: Node, show_sensitive: bool) -> str:
    """What a tree says at a node; of a write also its basis."""
    from refold_replay.drawing import words_of

    said = ", ".join(words_of(trace, node))
    if node.basis is not None:
        said += f"; basis: {MASK if node.sensitive and not show_sensitive else _cut(safe(node.basis))}"
    return f"{said} (+{plural(node.more, 'ground')} not told)" if node.more else said


def _cut(text: str) -> str:
    return text if len(text) <= records.CELL else text[: records.CELL - 1] + "…"
