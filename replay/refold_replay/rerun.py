"""A recorded run gone through again by the engine itself, with everything recorded: no model, no tool, no waiting.

Rules of this module
- The same engine code runs on a store of its own, in memory. What the engine asks comes from the record, what came
  from outside is applied where it stood, and every step is compared with the record as soon as it is done.
- Only what was committed is compared. Attempts that failed or were lost with their process are not repeated.
- It goes on behind a difference as far as both sides still do the same things; then it stops and says where.
- The run itself is only read, and one turn of it held at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from refold_engine.config import Config
from refold_engine.engine import Engine
from refold_engine.errors import NotRecorded
from refold_engine.ports import Tool, digest_of
from refold_engine.progress import ENGINE, Progress
from refold_replay.course import Course, Input, Step
from refold_replay.divergence import Fact, facts_of
from refold_replay.outside import Outside
from refold_replay.recorded_ports import NoChance, NoWaiting, TapedModel, serve, server_specs, taped_tools
from refold_replay.rerun_judge import Judge, Rerun
from refold_replay.tape import Tape
from refold_store import jsontext
from refold_store.errors import RefoldError, Refused
from refold_store.run import Run
from refold_store.store import Store, open_store
from refold_store.turn_errors import RolledBack

Tell = Callable[[int, int, str], None]
"""(events done, events in all, run)."""


class NoEngineRun(RefoldError):
    """No engine worked on a run: there is nothing to run again."""


def rerun(run: Run, config: Config, *, tools: Mapping[str, Tool] | None = None, tell: Tell | None = None) -> Rerun:
    """Run a recorded run again under a configuration, and compare. Nothing live is called but `tools`, where given.

    Raises NoSuchRun; NoEngineRun if no engine worked on it.
    """
    head = run.info().head_seq
    if not any(event.body.get("by") == ENGINE for event in run.events(("turn.started", "route.decided"))):
        raise NoEngineRun(
            f"run {run.name!r} was not made by an engine: it holds no turn and no route of one, so there is nothing "
            "to run again; `refold whatif` replays the writes of any run"
        )
    return _Replay(run, config, tools or {}, head, tell).go()


class _Stepping(Engine):
    """An engine that is asked for one step at a time."""

    def step(self, run: Run, progress: Progress) -> None:
        """One step, if there is one to take."""
        asking = bool(progress.waiting) and bool(run.interrupts())
        if progress.stopped is None and progress.unanswered and not asking:
            self._step(run, progress)


class _Replay:
    """One replay under way."""

    def __init__(self, run: Run, config: Config, tools: Mapping[str, Tool], head: int, tell: Tell | None) -> None:
        self._source, self._config, self._given, self._head, self._tell = run, config, tools, head, tell
        self.report = Rerun(run.name, run.tenant)
        self._judge = Judge(run, self.report)
        self._clock = NoWaiting()
        self._tape = Tape(self._inside)
        self._course = Course()
        self._meanwhile: list[tuple[int, list[Fact], list[Fact]]] = []
        self._foreign: set[int] = set()
        """Seqs of the replay that came from outside within a turn."""

    def go(self) -> Rerun:
        """All of it."""
        clock, random = self._clock.now_us, NoChance().bytes
        with open_store("sqlite://", self._config.schema, telemetry=False, clock=clock, random=random) as store:
            serve(store, self._tape)
            self._scratch = store.run(self._source.name, self._source.tenant)
            self._outside = Outside(self._scratch)
            self._engine = self._open_engine(store)
            with self._engine:
                self._through()
        self._add_up()
        return self.report

    def _open_engine(self, store: Store) -> _Stepping:
        config = self._config
        python = {name: one for name, one in config.tools.items() if one.kind == "python"}
        servers = len(python) < len(config.tools)
        prompts = (one for one in self._source.events(("message.added",)) if "settings" in one.body)
        tools = taped_tools(config, self._tape, self._given, server_specs(config, prompts) if servers else {})
        engine = _Stepping(
            replace(config, tools=python), store, TapedModel(self._tape), tools=tools, clock=self._clock,
            random=NoChance(), tell=self._heard,
        )  # fmt: skip
        engine.config, engine.tools = config, tools  # no server is started: its tools are the record's
        return engine

    def _heard(self, what: str, _facts: dict[str, Any]) -> None:
        if what == "returned":
            self._tape.returned()

    def _through(self) -> None:
        for item in self._course.items(self._source.events()):
            if isinstance(item, Input):
                self._clock.at_us = item.events[0].recorded_at
                recorded, now = self._outside.apply(item)
                self._judge.compare(recorded, now, after=item.seq)
            elif not self._step(item):
                self.report.stopped = item.seq
                break
            if self._tell is not None:
                self._tell(item.seq, self._head, self._source.name)
        if self._tell is not None:
            self._tell(self._head, self._head, self._source.name)

    def _inside(self, given: Input) -> None:
        """An input that fell into a turn."""
        self.report.inputs_in_turns += 1
        store = self._scratch.store
        store.flush()
        before = self._scratch.head_seq()
        recorded, now = self._outside.apply(given)
        self._foreign |= set(range(before + 1, self._scratch.head_seq() + 1))
        self._meanwhile.append((given.seq, recorded, now))

    # --- one step ----------------------------------------------------------------------------

    def _step(self, step: Step) -> bool:
        """Let the engine do what the record did. False: the two have parted."""
        self._clock.at_us = step.course[0].recorded_at
        for event in step.wasted:
            self._outside.waste(event)
        self._meanwhile, self._foreign = [], set()
        head = self._scratch.head_seq()
        self._tape.load(step)
        broken = self._go()
        requests = self._tape.requests
        self._tape.load(None)
        replayed = [*self._done(head, lost=bool(broken)), *broken]
        asked = dict(zip((one.seq for one in replayed if one.kind == "request"), requests, strict=False))
        for seq, recorded, now in self._meanwhile:
            self._judge.compare(recorded, now, after=seq)
        alike = self._judge.compare(
            list(facts_of(step.course)), replayed, after=step.start, course=step.course, asked=asked
        )
        self._outside.asked = step.pending
        self._outside.waiting = [one.id for one in self._engine.progress(self._scratch).waiting]
        self._count(step)
        return alike and not broken

    def _go(self) -> list[Fact]:
        """One step of the engine. Returns what broke it off, as a fact."""
        progress = self._engine.progress(self._scratch)
        if progress.agent not in self._config.agents:
            return [_broken("stop", progress.agent, {"message": f"there is no agent {progress.agent!r}"})]
        try:
            self._engine.step(self._scratch, progress)
        except NotRecorded as error:
            if self._tape.stuck is None:
                return [_broken("stop", progress.agent, {"message": str(error)})]
            agent, what, asked = self._tape.stuck
            if what == "tool":
                return [_broken("tool", agent, asked)]
            return [_broken("request", agent, {"digest": digest_of(asked.to_json())}, asked)]
        except RefoldError as error:
            told = {"error": type(error).__name__, "message": str(error)}
            return [_broken("refusal" if isinstance(error, Refused) else "stop", progress.agent, told)]
        return []

    def _done(self, head: int, *, lost: bool) -> list[Fact]:
        """What the replay did since `head`. What a lost attempt gave back is none of it."""
        self._scratch.store.flush()
        events = [one for one in self._scratch.events(after=head) if one.seq not in self._foreign]
        facts = list(facts_of(events))
        if lost:
            facts = [one for one in facts if one.kind != "refusal" or one.value.get("reason") != RolledBack.code]
        return facts

    def _count(self, step: Step) -> None:
        match step.kind:
            case "turn":
                self.report.turns += 1
            case "route":
                self.report.routes += 1
            case "stop":
                self.report.stops += 1

    # --- the report --------------------------------------------------------------------------

    def _add_up(self) -> None:
        report, course = self.report, self._course
        report.inputs = self._outside.count
        report.erased = self._outside.erased
        report.attempts_dropped = course.dropped
        report.unfinished = course.unfinished
        report.notes = [*self._notes(course.configs), *(_odd(kind, count) for kind, count in course.odd.items())]

    def _notes(self, configs: set[str]) -> list[str]:
        """What differs from the start on: the configuration, the schema."""
        notes = []
        declared = [event.body.get("fingerprint", "") for event in self._source.events(("schema.declared",))]
        schema = self._config.schema.fingerprint
        if others := [one for one in declared if one != schema]:
            notes.append(
                f"the record was made under another state schema ({_short(others)}; this one is {schema[:12]})"
            )
        mine = self._config.fingerprint
        if others := sorted(one for one in configs if one != mine):
            notes.append(f"the record was made under another configuration ({_short(others)}; this one is {mine[:12]})")
        return notes


def _broken(kind: Any, agent: str, value: Any, source: Any = None) -> Fact:
    """What an attempt came to that could not go on."""
    return Fact(kind, 0, None, agent, jsontext.encode([agent, value]), value, None, source)


def _short(prints: Sequence[str]) -> str:
    return ", ".join(one[:12] for one in prints)


def _odd(kind: str, count: int) -> str:
    return f"{count} event(s) {kind!r}: no replay knows them yet, what rests on them may differ"
