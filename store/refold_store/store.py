"""Opening a store, and the store itself."""

from __future__ import annotations

import atexit
import os
import re
import sys
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

from refold_store import jsontext
from refold_store.backend import Backend
from refold_store.committer import Committer
from refold_store.conditions import Condition, compile_condition
from refold_store.errors import ConfigError, Damaged, RunArchived
from refold_store.events import NO_TRACE, Trace
from refold_store.heads import Heads
from refold_store.listing import list_runs
from refold_store.names import check_name
from refold_store.postgres_url import NOT_A_URL, means_postgres
from refold_store.reads import RunInfo
from refold_store.run import Run
from refold_store.schema import Schema
from refold_store.sealer import Sealer

if TYPE_CHECKING:
    from refold_store.telemetry import Observer, Telemetry

_SCHEME = re.compile("(sqlite|sqlite3|file):", re.IGNORECASE)
PAGE = 500
"""Runs listed in one query."""

_open: weakref.WeakSet[Store] = weakref.WeakSet()


def open_store(
    url: str | os.PathLike[str],
    schema: Any = None,
    *,
    owners: Any = None,
    strict_reads: bool = False,
    read_only: bool = False,
    create: bool = True,
    record_reads: bool = True,
    telemetry: Telemetry | bool = True,
    clock: Callable[[], int] | None = None,
    random: Callable[[int], bytes] = os.urandom,
) -> Store:
    """Open the store at `url`: `sqlite:///claims.db`, a file path, `sqlite://` (in memory), or `postgresql://...`.

    `schema` is a StateSchema class, a Pydantic model or TypedDict with `owners=`, a dict, or a YAML file. Without
    one, each run is served under the schema its log declares. `clock` returns µs since the epoch; `random(n)` n bytes.
    `telemetry` is as in `Store.instrument`.
    Raises StoreUnavailable, StoreOlder or StoreNewer (with the command that mends it), ConfigError.
    """
    text = os.fspath(url)
    if not text.strip() or text == "sqlite:///":
        raise ConfigError(
            "no store given: the URL is empty; write sqlite:///FILE, postgresql://... or sqlite:// (memory)"
        )
    compiled = None if schema is None else _compiled(schema, owners)
    store = Store(
        text,
        _backend(text, read_only=read_only, create=create),
        compiled,
        strict_reads=strict_reads,
        read_only=read_only,
        record_reads=record_reads,
        clock=clock,
        random=random,
    )
    try:
        store.instrument(telemetry)
    except BaseException:
        store.close()
        raise
    if store.observer is not None:
        store.observer.log("info", "store.opened", store=store._backend.place, read_only=read_only)
    return store


def _compiled(source: Any, owners: Any) -> Schema:
    if isinstance(source, Schema) and not owners:
        return source
    from refold_store.declare import compile_schema  # Pydantic and YAML: three times the rest of an import

    return compile_schema(source, owners=owners)


def _backend(url: str, *, read_only: bool, create: bool) -> Backend:
    if url.startswith(("postgresql://", "postgres://", "postgresql+psycopg://")):
        from refold_store.postgres import PostgresBackend

        return PostgresBackend(url.replace("postgresql+psycopg://", "postgresql://", 1), read_only=read_only)
    from refold_store.sqlite import SqliteBackend

    if url in ("sqlite://", "sqlite:///:memory:", ":memory:"):
        return SqliteBackend(":memory:", read_only=read_only, create=create)
    if url.startswith("sqlite:///"):
        return SqliteBackend(url.removeprefix("sqlite:///"), read_only=read_only, create=create)
    if means_postgres(url):
        raise ConfigError(NOT_A_URL)
    if (scheme := _SCHEME.match(url)) is not None:
        path = url[scheme.end() :].removeprefix("//") or "FILE"
        raise ConfigError(f"{scheme[0]} begins no store URL here; write sqlite:///{path}")
    if "://" in url:
        raise ConfigError(
            f"{url.split('://')[0]}:// is not a store refold knows; use sqlite:///FILE or postgresql://..."
        )
    return SqliteBackend(url, read_only=read_only, create=create)


class Store:
    """A database of runs. Thread-safe; close it, or use it in a `with` block."""

    def __init__(
        self,
        url: str,
        backend: Backend,
        schema: Schema | None,
        *,
        strict_reads: bool,
        read_only: bool,
        record_reads: bool,
        clock: Callable[[], int] | None,
        random: Callable[[int], bytes],
    ) -> None:
        self.url = url
        self.schema = schema
        self.strict_reads = strict_reads
        self.read_only = read_only
        self._records = record_reads and not read_only
        self._backend = backend
        self._schemas: dict[str, Schema] = {} if schema is None else {schema.fingerprint: schema}
        self._heads = Heads(backend, self._schema_of)
        self._sealer = Sealer(backend, clock, random)
        self._committer = Committer(backend, self._heads, self._sealer)
        self._tracer: Callable[[], Trace] | None = None
        self._make_run: Callable[[Store, str, str], Run] = Run
        self.observer: Observer | None = None
        _open.add(self)

    @property
    def backend(self) -> str:
        """`sqlite` or `postgresql`."""
        return self._backend.name

    def run(self, name: str, tenant: str = "default") -> Run:
        """A run by name. Touches nothing; the first write opens it."""
        return self._make_run(self, name, tenant)

    def runs(
        self, tenant: str | None = None, *, where: str | Condition | None = None, limit: int | None = None
    ) -> list[RunInfo]:
        """Runs in the order they were opened. `where` is a condition over a run's current state: `status == "open"`.

        Of an archived run no condition is known to hold.
        """
        if tenant is not None:
            check_name("tenant", tenant)
        self.flush()
        condition = compile_condition(where) if isinstance(where, str) else where
        found: list[RunInfo] = []
        for info in self._each_run(tenant):
            if limit is not None and len(found) >= limit:
                break
            if condition is None or self._holds(info, condition):
                found.append(info)
        return found

    def _holds(self, info: RunInfo, condition: Condition) -> bool:
        try:
            return condition(Run(self, info.name, info.tenant).state().json()) is True
        except RunArchived:
            return False

    def _each_run(self, tenant: str | None) -> Iterator[RunInfo]:
        after = 0
        while page := list_runs(self, tenant, after, PAGE):
            for number, info in page:
                after = number
                if info.scope == "run":
                    yield info

    def instrument(self, telemetry: Telemetry | bool = True) -> bool:
        """Look again for an OpenTelemetry SDK and structlog, after they were set up. Returns whether anything reports.

        True: what the process has set up; False: nothing; a `Telemetry`: what it says. It holds for runs taken from
        the store after this call. Raises ConfigError for a wrong REFOLD_LOG.
        """
        self.observer = self._tracer = self._committer.watch = self._backend.on_reconnect = None
        self._make_run = Run
        if telemetry is False or (telemetry is True and not _may_have_telemetry()):
            return False
        from refold_store.observed import ObservedRun, current_trace, observer_for  # brings OpenTelemetry's API

        settings = None if telemetry is True else telemetry
        observer = observer_for(self.backend, self._committer, settings)
        if observer is None:
            return False
        self.observer, self._tracer = observer, current_trace
        self._committer.watch, self._backend.on_reconnect = observer, observer.reconnected
        self._make_run = partial(ObservedRun, observer)
        return True

    def flush(self) -> None:
        """Append the reads and refusals that wait."""
        if not self.read_only:
            self._committer.flush()

    def close(self) -> None:
        """Flush and close. Closing twice is fine."""
        if self in _open:
            _open.discard(self)
            try:
                self._committer.close()
            finally:
                self._backend.close()
                if self.observer is not None:
                    self.observer.log("info", "store.closed", store=self._backend.place)

    def _schema_of(self, fingerprint: str) -> Schema:
        """A schema by the fingerprint the log names."""
        found = self._schemas.get(fingerprint)
        if found is None:
            rows = self._backend.query(self._backend.sql.schema_get, (fingerprint,))
            if not rows:
                raise Damaged(f"the log names schema {fingerprint}, which table schemas does not hold")
            found = self._schemas[fingerprint] = Schema.from_declaration(jsontext.decode(rows[0][0]))
        return found

    def _trace(self) -> Trace:
        return NO_TRACE if self._tracer is None else self._tracer()

    def _after_fork(self) -> None:
        self._backend.after_fork()
        self._committer.after_fork()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        place = self._backend.place if self.backend == "postgresql" else self.url  # its URL may hold a password
        return f"<Store {self.backend} {place!r}>"


_SIGNS = ("OTEL_PYTHON_TRACER_PROVIDER", "OTEL_PYTHON_METER_PROVIDER", "REFOLD_LOG")
"""Variables that ask for spans, metrics or log lines."""


def _may_have_telemetry() -> bool:
    """Whether a look is worth it: who configures OpenTelemetry or structlog has imported it, or set a variable."""
    loaded = sys.modules
    return (
        "opentelemetry.trace" in loaded
        or "opentelemetry.metrics" in loaded
        or "structlog" in loaded
        or any(os.environ.get(name) for name in _SIGNS)
    )


def _close_all() -> None:
    for store in list(_open):
        store.close()


def _before_fork() -> None:
    for store in list(_open):
        store._committer.before_fork()
        store._backend.before_fork()


def _after_fork_in_parent() -> None:
    for store in list(_open):
        store._backend.after_fork_in_parent()
        store._committer.after_fork_in_parent()


def _after_fork_in_child() -> None:
    for store in list(_open):
        store._after_fork()


atexit.register(_close_all)
os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
