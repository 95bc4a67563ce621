"""The tool calls of one answer: the engine's own applied in order, the user's run side by side, results in order.

Rules of this module
- State calls apply in the order of the calls, whatever finishes first; what a tool writes counts at its call's place.
  What stands on the record stands in that order, too: announcements, then what tools side by side read, then results.
- A call that was not offered, or is not available any more, is refused: its result says so, and the model may go on.
- A tool that may not be repeated is announced on the record before it runs. Announced and not answered after a crash:
  the outcome is unknown, and it is not run again.
- Only the active agent's turn can wait for a person. A call in a task that needs one is refused, and says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from refold_engine import gating, limits
from refold_engine import state_tools as own
from refold_engine.config import AgentTool
from refold_engine.conversation import Said
from refold_engine.delegating import delegate, needs_approval, spawn
from refold_engine.errors import ToolFailed
from refold_engine.offers import Offer, own_tools, targets_of
from refold_engine.outcomes import Approval
from refold_engine.ports import Json, Message, Tool, ToolCall, digest_of
from refold_engine.progress import Waiting
from refold_engine.randoms import Stream
from refold_engine.toolcontext import ToolContext
from refold_store import jsontext
from refold_store.drafting import DraftRead
from refold_store.errors import Refused
from refold_store.fold import ABSENT
from refold_store.reads import Read
from refold_store.writing import admitted

if TYPE_CHECKING:
    from refold_engine.agentturn import AgentTurn

UNKNOWN = "whether this call had its effect is not known: the process ended while it ran, and it may not be repeated"

NOBODY_TO_ASK = (
    "a person has to approve this call, and none can be asked inside a task: nothing was done. Say so in your result; "
    "the agent that gave you the task can hand the conversation over to an agent that has this tool, which then asks"
)


@dataclass(frozen=True, slots=True)
class Handover:
    """A handoff that a model asked for and that is allowed."""

    target: str
    reason: str = ""
    payload: Json = None


@dataclass(slots=True)
class Done:
    """What became of an answer's calls."""

    said: list[Said] = field(default_factory=list)
    approvals: list[Approval] = field(default_factory=list)
    handover: Handover | None = None


@dataclass(slots=True)
class Running:
    """One call of a user's tool: what it returned, and what it wrote meanwhile."""

    call: ToolCall
    request: str
    config: AgentTool
    tool: Tool
    context: ToolContext | None = None
    """Set if it is to be run."""
    untrusted: bool = False
    """Whether what it returned, or failed with, comes from outside."""
    result: Json = None
    error: ToolFailed | None = None
    reads: list[Read | DraftRead] = field(default_factory=list)
    """What it read beside others, not on the record yet."""
    writes: list[tuple[str, object, str | None]] = field(default_factory=list)
    recorded: list[list[Json]] = field(default_factory=list)
    """The same as JSON, for the record."""
    served: Said | None = None
    failed: bool = False
    """Of one that is served from the record: whether it had failed."""


@dataclass(frozen=True, slots=True)
class Returned:
    """A call's result as text for the model, and whether it failed."""

    call: ToolCall
    text: str
    failed: bool = False
    request: str | None = None
    untrusted: bool = False


class Caller:
    """Makes the calls of one attempt of a turn."""

    def __init__(self, owner: AgentTurn) -> None:
        self._owner = owner
        self._engine = owner.engine
        self._turn = owner.turn
        self._asked = 0

    def call(self, calls: Sequence[ToolCall], offered: Offer) -> Done:
        """Make all calls of an answer."""
        most = self._engine.config.breakers.max_parallel_tool_calls_per_turn
        done = Done()
        plain = [at for at, call in enumerate(calls[:most]) if self._is_plain(call, offered)]
        running = dict(zip(plain, self._run_tools([calls[at] for at in plain], offered), strict=True))
        for at, call in enumerate(calls):
            if at >= most:
                text = f"not called: max_parallel_tool_calls_per_turn is {most}"
                self._return(done, Returned(call, _error(text), failed=True))
            elif at in running:
                self._finish(done, running[at])
            elif call.name in offered.own:
                self._own(done, call, offered)
            elif call.name in offered.tools:
                self._ask(done, call)
            else:
                self._return(done, Returned(call, _error(f"there is no tool {call.name!r} here"), failed=True))
        return done

    def approved(self, waiting: Sequence[Waiting]) -> list[Said]:
        """Make the calls that a person allowed; tell the model which were not."""
        done = Done()
        tools = self._engine.tools_of(self._owner.agent)
        offered = Offer(own_tools(self._engine.config, self._owner.agent, delegated=False))
        for one in waiting:
            allowed, note = _verdict(one.answer)
            if not allowed:
                text = f"a person refused this call{f': {note}' if note else ''}"
                self._return(done, Returned(one.call, _error(text)))
            elif one.call.name in offered.own:
                self._own(done, one.call, offered, allowed=True)
            elif one.call.name not in tools:
                self._return(
                    done, Returned(one.call, _error(f"there is no tool {one.call.name!r} any more"), failed=True)
                )
            else:
                running = self._begun(one.call, *tools[one.call.name], apart=False)
                self._work(running)
                self._finish(done, running)
        return done.said

    def _ask(self, done: Done, call: ToolCall) -> None:
        """Let a person decide about a call."""
        if self._owner.delegated:
            self._return(done, Returned(call, _error(f"{call.name}: {NOBODY_TO_ASK}"), failed=True))
            return
        self._asked += 1
        approval = Approval(f"turn-{self._turn.number}-{self._asked}", call, self._owner.agent.name)
        done.approvals.append(approval)

    def _is_plain(self, call: ToolCall, offered: Offer) -> bool:
        found = offered.tools.get(call.name)
        return found is not None and not found[0].requires_approval

    # --- the user's tools --------------------------------------------------------------------

    def _run_tools(self, calls: Sequence[ToolCall], offered: Offer) -> list[Running]:
        """Run them side by side; what they read is on the record in the order of the calls when all have ended."""
        apart = len(calls) > 1
        begun = [self._begun(call, *offered.tools[call.name], apart=apart) for call in calls]
        floor = self._turn.run.head_seq() if apart else 0
        if apart:
            with ThreadPoolExecutor(len(begun), thread_name_prefix="refold-tool") as pool:
                list(pool.map(self._work, begun))
        else:
            for one in begun:
                self._work(one)
        for one in begun:
            for read in one.reads:
                self._owner.state.note(read, floor)
        return begun

    def _begun(self, call: ToolCall, config: AgentTool, tool: Tool, *, apart: bool) -> Running:
        """A call as far as it goes before the tool runs: served from the record, refused, or announced."""
        digest = digest_of({"name": call.name, "arguments": dict(call.arguments)})
        recorded = self._owner.journal.ask("tool", digest)
        running = Running(call, digest, config, tool)
        if recorded is not None and recorded.event is not None:
            message = Message.from_json(recorded.event.body["message"])
            running.served = Said(recorded.event.seq, message)
            running.writes = [tuple(one) for one in recorded.event.body.get("writes", ())]
            running.failed = bool(recorded.event.refs.get("failed"))
            running.untrusted = bool(recorded.event.refs.get("untrusted"))
            self._engine.tell("served", {"agent": self._owner.agent.name, "what": call.name})
            return running
        if recorded is not None and not config.tool.idempotent:
            running.error = ToolFailed(UNKNOWN, tool=call.name, unknown=True)
            return running
        try:
            self._check_available(call.name, config)
        except ToolFailed as error:
            running.error = error
            return running
        if not config.tool.idempotent and recorded is None:
            self._turn.append("tool.called", refs={"request": digest, "tool": call.name, "call": call.id})
        self._engine.tell(
            "called", {"agent": self._owner.agent.name, "tool": call.name, "arguments": dict(call.arguments)}
        )
        running.context = self._context(running, apart=apart)
        return running

    def _work(self, running: Running) -> None:
        """Run the tool, if it is to be run. Threads do this side by side."""
        if running.context is None:
            return
        running.untrusted = running.config.tool.untrusted_output
        try:
            running.result = running.tool.call(running.call.arguments, running.context)
        except ToolFailed as error:
            running.error = error

    def _check_available(self, name: str, config: AgentTool) -> None:
        state = self._owner.peeked()
        for condition in config.available_when:
            gating.check(gating.Gate(name, condition), state)

    def _context(self, running: Running, *, apart: bool) -> ToolContext:
        state, turn, agent, ports = self._owner.state, self._turn, self._owner.agent.name, self._engine.ports

        def read(key: str) -> Json:
            if not apart:
                return state.read(key).json
            running.reads.append(found := state.peek(key))
            return found.json

        def write(key: str, value: object, *, basis: str | None = None) -> None:
            _declared, prepared = admitted(turn.run.schema(), key, value, agent, basis)
            assert prepared is not None  # only a delete has none
            running.writes.append((key, value, basis))
            running.recorded.append([key, jsontext.decode(prepared.text), basis])

        return ToolContext(agent, turn.run.name, turn.number, read, write, ports.clock, Stream(ports.random))

    def _finish(self, done: Done, running: Running) -> None:
        """Apply what a call wrote, and put its result on the record, at its place among the calls."""
        refused = self._write_all(running)
        live = self._owner.progress.live
        live.untrusted = live.untrusted or running.untrusted
        if running.served is not None:
            done.said.append(running.served)
            self._count(running.call, failed=running.failed)
            return
        if running.error is None and refused is None:
            text, failed = _text(running.result), False
        else:
            text, failed = _error(str(running.error or refused)), True
        returned = Returned(running.call, text, failed, running.request, running.untrusted)
        self._return(done, returned, running.recorded, durable=True)
        self._count(running.call, failed=failed)

    def _count(self, call: ToolCall, *, failed: bool) -> None:
        """Count failures in a row. Raises EngineStopped at the limit."""
        progress = self._owner.progress
        progress.live.returned(call.name, failed=failed)
        if failed:
            limits.check_failures(self._engine.config.breakers, progress, call.name)

    def _write_all(self, running: Running) -> Refused | None:
        for key, value, basis in running.writes:
            try:
                self._owner.state.write(key, value, basis)
            except Refused as error:
                return error
        return None

    # --- the engine's own --------------------------------------------------------------------

    def _own(self, done: Done, call: ToolCall, offered: Offer, *, allowed: bool = False) -> None:
        """A call of one of the engine's own. `allowed`: by a person, who was asked."""
        owner = self._owner
        try:
            command = own.asked(call, offered.own[call.name], targets_of(self._engine.config, owner.agent))
            match command:
                case own.ReadState(key):
                    found = owner.state.read(key).json
                    text = jsontext.encode(None if found is ABSENT else found).decode()
                case own.WriteState(key, value, basis):
                    owner.state.write(key, value, basis)
                    self._engine.tell("wrote", {"agent": owner.agent.name, "key": key, "value": value})
                    text = "written"
                case own.Transfer(agent, reason, payload):
                    if done.handover is not None:
                        raise ToolFailed("the conversation is handed over once", tool=call.name)
                    done.handover = Handover(agent, reason, payload)
                    text = f"{agent} takes over"
                case own.Delegate(agent, instructions, many):
                    results = [delegate(owner, agent, one) for one in instructions]
                    text = jsontext.encode(results).decode() if many else results[0]
                case own.Spawn():
                    if not allowed and needs_approval(owner, command):
                        self._ask(done, call)
                        return
                    text = spawn(owner, command)
        except (ToolFailed, Refused) as error:
            self._return(done, Returned(call, _error(str(error)), failed=True))
            return
        self._return(done, Returned(call, text))

    def _return(self, done: Done, returned: Returned, writes: Sequence[object] = (), *, durable: bool = False) -> None:
        """Put a call's result on the record."""
        call = returned.call
        message = Message("tool", returned.text, tool_call_id=call.id)
        refs: dict[str, Any] = {"tool": call.name, "call": call.id}
        if returned.failed:
            refs["failed"] = True
        if returned.request is not None:
            refs["request"] = returned.request
        if returned.untrusted:
            refs["untrusted"] = True
        body: dict[str, Any] = {"message": message.to_json()}
        if writes:
            body["writes"] = list(writes)
        seq = self._turn.append("tool.returned", body=body, refs=refs, durable=durable)
        self._engine.tell("returned", {"agent": self._owner.agent.name, "tool": call.name, "text": returned.text})
        done.said.append(Said(seq, message))


def _verdict(answer: Any) -> tuple[bool, str]:
    """Whether a person allowed a call, and the words that came with it."""
    if isinstance(answer, dict):
        return answer.get("approved") is True, str(answer.get("note", ""))
    return answer is True, ""


def _text(result: Json) -> str:
    return result if isinstance(result, str) else jsontext.encode(result).decode()


def _error(text: str) -> str:
    return jsontext.encode({"error": text.encode("utf-8", "replace").decode()}).decode()
