"""One state machine drives a SQLite file, SQLite in memory and PostgreSQL, and demands that they agree.

The same calls give equal answers, equal errors, equal order and, with a fixed clock and fixed salts, equal bytes: the
digests of all events are the same. At the end of each run of the machine the file's and PostgreSQL's logs are read by
the bare driver (rawlog.py).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from claims import ClaimState
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
from rawlog import check_run, ram_folder, read_log

from refold import Moment, Read, RefoldError, Run, State, Store, open_store
from refold_store import committer

STEPS = 30
EXAMPLES = 40
START_US = 1_764_500_000_000_000
VALUES: dict[str, list[Any]] = {
    "routing": [{"ruleset": "QC_auto_2026"}, {"ruleset": "ON_auto_2026", "desk": "toronto"}, {"ruleset": "?"}, None],
    "note": [None, "", "é\0\u2028", 1.0, -0.0, 1e22, 2**70, [1, {"b": 1, "a": None}], float("nan"), "\ud800"],
    "any": [{"z": 1, "a": [True]}, (1, 2), {1: 2}, object, "x" * 200],
    "decision": ["settle", "deny", 5],
    "reserve_band": [(5000, 25000), (25000, 5000), [1, 2], (1, 2, 3), "no"],
    "reserve_cap": [100, 0, "7"],
    "spent": [5, 0, -3, 10**30, "x"],
    "reports": ["one", ["two", "three"], [], ("four",), [5]],
    "tags": [{"b", "a"}, ["c", "a"], "d", [[1]]],
    "facts": [{"x": 1}, {"y": 2}, {}, None, {"x": "text"}],
    "tree": [{"a": {"x": 1}}, {"a": {"y": [1]}}, {"a": "text"}, {"b": None}],
    "order/#W1": [{"items": 1}, {}, []],
    "order/#W2 ü": [{"items": [1, 2]}],
    "small": ["short", "much too long to be stored here"],
    "status": ["open", "closed", "shut"],
    "opened": [datetime(2026, 11, 30, 2, 40, tzinfo=UTC), "2026-11-30T02:40:00-05:00", "no time"],
    "amount": [Decimal("1.10"), "2.200", 3, "x"],
    "counter": [1, 2**40, True],
    "house_rule": ["be kind", 1],
    "nowhere": [1],
}
OWNERS = {
    "routing": "triage_agent", "note": "triage_agent", "any": "triage_agent", "decision": "settlement_agent",
    "reserve_band": "reserve_agent", "reserve_cap": "reserve_agent", "spent": "billing", "reports": "photo_agent",
    "tags": "evidence_agent", "facts": "photo_agent", "tree": "photo_agent", "order/#W1": "sales_agent",
    "order/#W2 ü": "sales_agent", "small": "triage_agent", "status": "triage_agent", "opened": "triage_agent",
    "amount": "billing", "counter": "counter", "house_rule": "triage_agent", "nowhere": "nobody",
}  # fmt: skip

_examples = itertools.count(1)

keys = st.sampled_from(sorted(VALUES))
runs = st.sampled_from(["clm-1", "clm-2"])
readers = st.sampled_from(["liability_agent", "settlement_agent", "", "naïve 🙂"])
writes = keys.flatmap(
    lambda key: st.tuples(
        st.just(key),
        st.sampled_from(VALUES[key]),
        st.sampled_from([OWNERS[key]] * 6 + ["evidence_agent", "stranger"]),
        st.sampled_from([None, None, "stated by claimant"]),
        st.sampled_from([None, None, None, 0, 1, 2]),
    )
)
request_ids = st.sampled_from([None, None, None, "request 1", "request 2"])
moments = st.one_of(
    st.integers(0, 40),
    st.sampled_from(["end", "routing@1", "key:spent@2", "nowhere@1", "2025-11-30T10:53:20Z", "-1s", "-1h", "soon"]),
)


class Agreement(RuleBasedStateMachine):
    """Calls go to all stores; what they answer is compared in a plain form."""

    urls: tuple[str, ...]
    """Of the file and of PostgreSQL; the third is in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.tenant = f"example {next(_examples)}"
        self.now = START_US
        self.opened = ExitStack()
        self.stores: list[Store] = []

    @initialize()
    def open(self) -> None:
        self.stores = [self._open(url) for url in (*self.urls, "sqlite://")]

    def _open(self, url: str) -> Store:
        store = open_store(url, ClaimState, clock=lambda: self.now, random=lambda size: bytes(range(16)) * (size // 16))
        return self.opened.enter_context(store)

    def agree(self, name: str, act: Callable[[Run], Any]) -> Any:
        """Do it on every store; all answers are alike."""
        answers = []
        for store in self.stores:
            try:
                answers.append(plain(act(store.run(name, tenant=self.tenant))))
            except RefoldError as error:
                facts = {fact: repr(value) for fact, value in vars(error).items()}
                answers.append(("raised", type(error).__name__, str(error), facts))
        assert answers[1:] == answers[:1] * (len(answers) - 1), answers
        return answers[0]

    @rule(run=runs, write=writes, request_id=request_ids, turn=st.sampled_from([None, None, 7]))
    def write(self, run: str, write: tuple[Any, ...], request_id: str | None, turn: int | None) -> None:
        key, value, writer, basis, expected = write
        self.agree(
            run,
            lambda run: run.write_state(
                key, value, writer=writer, basis=basis, expected_version=expected, request_id=request_id, turn=turn
            ),
        )

    @rule(run=runs, key=keys, stranger=st.booleans(), request_id=request_ids)
    def delete(self, run: str, key: str, stranger: bool, request_id: str | None) -> None:
        writer = "stranger" if stranger else OWNERS[key]
        self.agree(run, lambda run: run.delete_state(key, writer=writer, basis="gone", request_id=request_id))

    @rule(run=runs, listed=st.lists(writes, max_size=4), request_id=request_ids)
    def transaction(self, run: str, listed: list[tuple[Any, ...]], request_id: str | None) -> None:
        def act(run: Run) -> Any:
            with run.transaction(request_id=request_id) as tx:
                for key, value, writer, basis, expected in listed:
                    tx.write_state(key, value, writer=writer, basis=basis, expected_version=expected)
            return tx.written

        self.agree(run, act)

    @rule(run=runs, key=keys, reader=readers)
    def read(self, run: str, key: str, reader: str) -> None:
        self.agree(run, lambda run: run.read_state(key, reader=reader))

    @rule(run=runs, key=keys, reader=readers)
    def write_on_what_was_read(self, run: str, key: str, reader: str) -> None:
        def act(run: Run) -> Any:
            got = run.read_state(key, reader=reader)
            return run.write_state(
                key, VALUES[key][0], writer=OWNERS[key], basis="b", expected_version=got.version, based_on=[got]
            )

        self.agree(run, act)

    @rule(run=runs, listed=st.lists(keys, max_size=4), reader=readers)
    def read_many(self, run: str, listed: list[str], reader: str) -> None:
        self.agree(run, lambda run: run.read_many(listed, reader=reader))

    @rule(run=runs, moment=moments, key=keys)
    def look_back(self, run: str, moment: int | str, key: str) -> None:
        self.agree(run, lambda run: run.at(moment))
        self.agree(run, lambda run: run.at(moment).state())
        self.agree(run, lambda run: run.at(moment).read_state(key, reader="auditor"))

    @rule(run=runs, key=keys)
    def look(self, run: str, key: str) -> None:
        for act in (Run.state, Run.keys, Run.head_seq, Run.info):
            self.agree(run, act)
        self.agree(run, lambda run: run.history(key))
        self.agree(run, lambda run: run.readers(key))
        self.agree(run, lambda run: run.peek(key))

    @rule(run=runs, listed=st.lists(writes, max_size=3))
    def open_run(self, run: str, listed: list[tuple[Any, ...]]) -> None:
        initial = {write[0]: write[1] for write in listed}
        self.agree(run, lambda run: run.open(opened_by="intake", initial=initial))

    @rule(run=runs, kind=st.sampled_from(["message.added", "turn.started", "state.written", "nothing.done"]))
    def append(self, run: str, kind: str) -> None:
        self.agree(run, lambda run: run.append(kind, actor="fnol", turn=3, body={"text": "hello", "n": 2**70}))

    @rule(by=st.sampled_from([1, 1_000_000, 86_400_000_000, -3_600_000_000]))
    def pass_time(self, by: int) -> None:
        self.flush()
        self.now += by

    @rule()
    def flush(self) -> None:
        for store in self.stores:
            store.flush()

    @precondition(lambda self: self.stores)
    @rule()
    def reopen(self) -> None:
        """The two that have a disk start anew: nothing remembered."""
        self.flush()  # closing does, and the third must have done the same
        for number, url in enumerate(self.urls):
            self.stores[number].close()
            self.stores[number] = self._open(url)

    def teardown(self) -> None:
        try:
            for name in ("clm-1", "clm-2") if self.stores else ():
                self.agree(name, lambda run: list(run.events()))
        finally:
            self.opened.close()
        for url in self.urls if self.stores else ():
            for run, events in read_log(url).items():
                if run[0] == self.tenant:
                    check_run(run, events)


def plain(answer: Any) -> Any:
    """An answer as data that can be compared and shown."""
    if isinstance(answer, Read):
        facts = ("key", "version", "seq", "seen_seq", "recorded", "absent", "deleted", "written_by", "owner", "basis")
        value = None if answer.absent else (repr(answer.value), answer.text, repr(answer.json))
        return [getattr(answer, fact) for fact in facts], value, answer.recorded_at, answer.refs
    if isinstance(answer, Moment):
        return answer.seq, answer.warning
    if isinstance(answer, State):
        return answer.seq, sorted((key, plain(read)) for key, read in answer.items())
    if isinstance(answer, dict):
        return [(key, plain(value)) for key, value in answer.items()]
    if isinstance(answer, list):
        return [plain(one) for one in answer]
    return repr(answer), getattr(answer, "digest", None), getattr(answer, "text", None)


@pytest.fixture
def agreement(pg_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Agreement]]:
    """The machine, with a file and a database for all its examples; each has a tenant of its own."""
    monkeypatch.setattr(committer, "FLUSH_S", 3600.0)  # reads are flushed when the machine says so
    with ram_folder() as folder:

        class Machine(Agreement):
            urls = (f"sqlite:///{folder / 'refold.db'}", pg_url)

        yield Machine


MACHINE = settings(stateful_step_count=STEPS, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])


def test_three_stores_agree(agreement: type[Agreement]) -> None:
    """Random calls on a file, in memory and on PostgreSQL: equal answers, errors, order and bytes."""
    run_state_machine_as_test(agreement, settings=settings(MACHINE, max_examples=EXAMPLES))


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_three_stores_agree_for_long(agreement: type[Agreement]) -> None:
    """The same with many more calls."""
    run_state_machine_as_test(agreement, settings=settings(MACHINE, max_examples=1000, stateful_step_count=60))
