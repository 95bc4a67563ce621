"""The peer of the engine: a LangGraph graph with its SQLite checkpointer that does the same steps.

An agent node asks the same scripted model; a tools node reads three channels and writes one. WAL, `synchronous=FULL`,
`durability="sync"`: a step's checkpoint is stored before the next begins, as the engine stores an answer before it is
used. Loaded only when a run asks for peers (extra: bench).
"""

from __future__ import annotations

import importlib
import itertools
import operator
import sqlite3
from pathlib import Path
from typing import Annotated, Any, TypedDict

from bench.team import QUESTION, READS, WRITTEN, Scripted
from bench.values import DOCUMENTS
from refold_engine.ports import Message
from refold_store import jsontext


class TeamState(TypedDict, total=False):
    """The graph's channels: the conversation grows, the facts are replaced."""

    messages: Annotated[list[dict[str, Any]], operator.add]
    limit: dict[str, Any]
    loss: dict[str, Any]
    notes: dict[str, Any]
    routing: dict[str, Any]


class ListState(TypedDict, total=False):
    """A list that grows by one item a step."""

    log: Annotated[list[dict[str, Any]], operator.add]


class Graph:
    """A compiled graph on a file of its own."""

    name = "LangGraph"

    def __init__(self, path: Path) -> None:
        self.path = path
        self._connection = sqlite3.connect(path, check_same_thread=False)
        self._connection.execute("PRAGMA synchronous=FULL")
        self._saver = importlib.import_module("langgraph.checkpoint.sqlite").SqliteSaver(self._connection)
        self.model = Scripted()
        self.talking, self.listing = self._talking(), self._listing()
        self._numbers = itertools.count()

    def _talking(self) -> Any:
        graphs = importlib.import_module("langgraph.graph")
        graph = graphs.StateGraph(TeamState)
        graph.add_node("agent", self._agent)
        graph.add_node("tools", tools)
        graph.add_edge(graphs.START, "agent")
        graph.add_conditional_edges("agent", onward, {"tools": "tools", "end": graphs.END})
        graph.add_edge("tools", "agent")
        return graph.compile(checkpointer=self._saver)

    def _listing(self) -> Any:
        graphs = importlib.import_module("langgraph.graph")
        graph = graphs.StateGraph(ListState)
        graph.add_node("note", lambda _state: {"log": [DOCUMENTS[next(self._numbers) % len(DOCUMENTS)]]})
        graph.add_edge(graphs.START, "note")
        return graph.compile(checkpointer=self._saver)

    def _agent(self, state: TeamState) -> dict[str, Any]:
        answer = self.model.reply(Message.from_json(state["messages"][-1]))
        return {"messages": [Message("assistant", answer.content, answer.tool_calls).to_json()]}

    def start(self) -> dict[str, Any]:
        """The configuration of a fresh thread that holds what its agent will read."""
        thread = {"configurable": {"thread_id": f"clm-{next(self._numbers)}"}}
        self.talking.update_state(thread, {key: DOCUMENTS[at] for at, key in enumerate(READS)}, as_node="tools")
        return thread

    def talk(self, thread: dict[str, Any], turns: int) -> None:
        """So many messages, each answered."""
        for _ in range(turns):
            asked = {"messages": [Message("user", QUESTION).to_json()]}
            assert self.talking.invoke(asked, thread, durability="sync")["messages"][-1]["content"]

    def note(self, steps: int) -> None:
        """So many steps of a graph whose list grows."""
        thread = {"configurable": {"thread_id": "list"}}
        for _ in range(steps):
            self.listing.invoke({"log": []}, thread, durability="sync")

    def size(self) -> int:
        """Bytes of the file, its WAL written back."""
        self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return self.path.stat().st_size

    def close(self) -> None:
        """Closes the connection."""
        self._connection.close()


def tools(state: TeamState) -> dict[str, Any]:
    """The tools' node: what the calls of the last message read and write."""
    calls = state["messages"][-1]["tool_calls"]
    texts = [jsontext.encode(state[key]).decode() for key in READS]  # type: ignore[literal-required]  # three of them
    said = [
        Message("tool", text, tool_call_id=call["id"]).to_json()
        for call, text in zip(calls, [*texts, "written"], strict=True)
    ]
    return {"messages": said, WRITTEN: calls[-1]["arguments"]["value"]}


def onward(state: TeamState) -> str:
    """Where the agent's answer leads."""
    return "tools" if state["messages"][-1].get("tool_calls") else "end"
