"""Every error refold raises, in one tree: facts as attributes; messages say what arrived, was expected, and is next.

RefoldError
├── Refused                a write that was not accepted; it is on the record as `state.refused`
│   ├── NotOwner           the writer may not write this key
│   ├── UnknownKey         the schema declares no such key
│   ├── InvalidValue       the update or the result does not fit the declared type
│   │   ├── NotExact       the value cannot be stored without changing it
│   │   └── TooLarge       the value is over the key's `max_bytes`
│   ├── ReducerError       the reducer cannot combine this update with the previous value
│   ├── BasisRequired      the key wants a stated reason
│   ├── InvariantBroken    a rule across keys would no longer hold
│   ├── Conflict           the key has moved on since the version the writer expected
│   ├── RequestReused      the `request_id` is bound to another payload
│   └── SchemaChanged      the run has left the schema this process holds
├── ConfigError            a schema or configuration is wrong; names the place
│   └── ConditionError     a condition does not parse; names the column
├── ConditionFailed        a condition could not be evaluated
├── NameInvalid            a tenant, run, key or agent name cannot be stored
├── NotFound
│   ├── NoSuchRun
│   ├── NoSuchVersion
│   ├── NoSuchMoment
│   ├── ValueErased        the value was erased for good; says by whom, when and why
│   └── RunArchived        the run was moved out into a bundle; names it
├── BundleInvalid          a bundle is damaged, or no bundle; names the line
├── TransactionInvalid     a transaction was used in a way it does not allow
├── PatchInvalid           a JSON Patch does not fit its document; names the operation
├── TurnInvalid            a turn cannot do this now; its kinds, and PatchInvalid, stand in `turn_errors`
├── SchemaMismatch         the database's tables are older or newer than the code
│   ├── StoreOlder
│   └── StoreNewer
├── StoreUnavailable       disk full, connection lost, locked: nothing was half written
├── StoreClosed
├── ReadOnlySto
"""

from __future__ import annotations

from collections.abc import Sequence


class RefoldError(Exception):
    """Base of all errors raised by refold."""


class Refused(RefoldError):
    """A write that was not accepted. `code` names the reason in one word, as recorded in the log."""

    code = "refused"

    def __init__(self, message: str, *, key: str | None = None, writer: str | None = None) -> None:
        super().__init__(message)
        self.key = key
        self.writer = writer
        self.path: str | None = None

    @property
    def reason(self) -> str:
        """The one-word reason recorded in the log."""
        return self.code

    @property
    def detail(self) -> str:
        """The message without key and writer."""
        return str(self.args[0])

    def __str__(self) -> str:
        where = " ".join(
            part
            for part in (
                f"key {self.key!r}" if self.key is not None else "",
                f"writer {self.writer!r}" if self.writer is not None else "",
            )
            if part
        )
        return f"{self.args[0]} [{where}]" if where else str(self.args[0])


class NotOwner(Refused):
    """The writer is neither the key's owner nor a member of the owning group."""

    code = "owner"

    def __init__(self, *, key: str, writer: str, owner: str, members: Sequence[str] = ()) -> None:
        self.owner = owner
        group = f" (a group of {', '.join(map(repr, members))})" if members else ""
        way = "let the owner write it, or change the owner in the schema"
        if members:
            way = "let one of its members write it, or add the writer to the group"
        super().__init__(
            f"{writer!r} may not write {key!r}: its owner is {owner!r}{group}; {way}",
            key=key,
            writer=writer,
        )

    def __str__(self) -> str:
        return str(self.args[0])


class UnknownKey(Refused):
    """The schema declares no such key."""

    code = "unknown_key"

    def __init__(
        self, *, key: str, near: Sequence[str] = (), hint: str | None = None, writer: str | None = None
    ) -> None:
        self.near = tuple(near)
        if hint is None:
            hint = f"did you mean {', '.join(map(repr, near))}?" if near else "declare it in the state schema"
        super().__init__(f"unknown key {key!r}: {hint}", key=key, writer=writer)

    def __str__(self) -> str:
        return str(self.args[0])


class InvalidValue(Refused):
    """The update, or the result of the reducer, does not fit the declared type. `path` is like `$.a[1]`."""

    code = "invalid"

    def __init__(self, message: str, *, path: str = "$", key: str | None = None, writer: str | None = None) -> None:
        super().__init__(message, key=key, writer=writer)
        self.path = path

    def __str__(self) -> str:
        text = super().__str__()
        return text if self.path is None or self.path in str(self.args[0]) else f"{self.path}: {text}"


class NotExact(InvalidValue):
    """The value has no exact JSON form; storing it would change it."""

    code = "not_exact"


class TooLarge(InvalidValue):
    """The value is over the key's `max_bytes` of JSON text."""

    code = "too_large"

    def __init__(self, *, size: int, max_bytes: int, key: str | None = None, writer: str | None = None) -> None:
        self.size, self.max_bytes = size, max_bytes
        super().__init__(
            f"the value is {size} bytes of JSON, more than max_bytes={max_bytes}; "
            "store a reference instead, or raise max_bytes for this key",
            key=key,
            writer=writer,
        )


class ReducerError(Refused):
    """The reducer cannot combine this update with the previous value."""

    code = "reducer"

    def __init__(
        self, message: str, *, path: str | None = None, key: str | None = None, writer: str | None = None
    ) -> None:
        super().__init__(message, key=key, writer=writer)
        self.path = path


class BasisRequired(Refused):
    """The key was declared with `basis_required` and the write gave no basis."""

    code = "basis_required"

    def __init__(self, *, key: str, writer: str) -> None:
        super().__init__(
            "this key wants a stated reason: --basis TEXT, or basis='...' in Python", key=key, writer=writer
        )


class InvariantBroken(Refused):
    """A rule across keys would no longer hold after this write, or cannot be judged (`problem`)."""

    code = "invariant"

    def __init__(
        self,
        *,
        invariant: str,
        expression: str,
        values: str,
        problem: str | None = None,
        key: str | None = None,
        writer: str | None = None,
    ) -> None:
        self.invariant, self.expression, self.problem = invariant, expression, problem
        super().__init__(
            f"invariant {invariant!r} would be broken: {expression} is false for {values}; "
            "write the keys concerned together in one transaction"
            if problem is None
            else f"invariant {invariant!r} cannot be judged for {values}: {problem}; mend the invariant in the schema",
            key=key,
            writer=writer,
        )


class Conflict(Refused):
    """The key has moved on since the version the writer expected. 0 means never written."""

    code = "conflict"

    def __init__(self, *, key: str, writer: str, expected: int, actual: int, actual_writer: str | None) -> None:
        self.expected, self.actual, self.actual_writer = expected, actual, actual_writer
        by = f", written by {actual_writer!r}" if actual_writer is not None else ""
        super().__init__(
            f"expected version {expected} of {key!r}, but it is at version {actual}{by}; read it again and decide anew",
            key=key,
            writer=writer,
        )


class RequestReused(Refused):
    """The `request_id` is already bound to a write or transaction with another payload."""

    code = "request_reused"

    def __init__(self, *, request_id: str, seq: int, key: str | None = None, writer: str | None = None) -> None:
        self.request_id = request_id
        self.seq = seq
        super().__init__(
            f"request_id {request_id!r} is bound to another payload (seq {seq}); use a fresh id for a new request",
            key=key,
            writer=writer,
        )


class SchemaChanged(Refused):
    """The run is under another schema: it left the one this process holds, or has keys that this one `dropped`."""

    code = "schema_changed"

    def __init__(
        self,
        *,
        run: str,
        held: str,
        in_force: str,
        dropped: Sequence[str] = (),
        key: str | None = None,
        writer: str | None = None,
    ) -> None:
        self.run, self.held, self.in_force = run, held, in_force
        self.dropped = tuple(dropped)
        if dropped:
            message = (
                f"run {run!r} holds keys that schema {held[:12]} does not declare: "
                f"{', '.join(map(repr, dropped[:5]))}; is it the right run? A newer schema goes on declaring them"
            )
        else:
            message = (
                f"run {run!r} has left schema {held[:12]} and is now under {in_force[:12]}; "
                "open the store with the newer schema"
            )
        super().__init__(message, key=key, writer=writer)


class ConfigError(RefoldError):
    """A schema or configuration is wrong. `where` names the file, line or path."""

    def __init__(self, message: str, *, where: str | None = None) -> None:
        super().__init__(f"{where}: {message}" if where else message)
        self.where = where


class ConditionError(ConfigError):
    """A condition does not parse or uses what conditions do not allow. `column` counts from 1."""

    def __init__(self, message: str, *, expression: str, column: int | None = None, hint: str | None = None) -> None:
        self.expression, self.column, self.hint = expression, column, hint
        at = f" at column {column}" if column is not None else ""
        shown = expression if len(expression) <= 120 else expression[:117] + "..."
        super().__init__(f"condition {shown!r}{at}: {message}" + (f" ({hint})" if hint else ""))


class ConditionFailed(RefoldError):
    """A condition could not be evaluated on this state. `column` counts from 1."""

    def __init__(self, message: str, *, expression: str, column: int | None = None) -> None:
        self.expression = expression
        self.column = column
        at = f" at column {column}" if column is not None else ""
        super().__init__(f"condition {expression!r}{at}: {message}")


class NameInvalid(RefoldError):
    """A tenant, run, key or agent name that cannot be stored: NUL, lone surrogate, or over 1,024 UTF-8 bytes."""

    def __init__(self, message: str, *, what: str, name: object) -> None:
        super().__init__(message)
        self.what, self.name = what, name


class NotFound(RefoldError):
    """What was asked for is not in the store."""


class NoSuchRun(NotFound):
    """The tenant has no run of this name."""

    def __init__(self, *, run: str, tenant: str, near: Sequence[str] = ()) -> None:
        self.run = run
        self.tenant = tenant
        self.near = tuple(near)
        hint = (
            f"; did you mean {', '.join(map(repr, near))}?"
            if near
            else "; `refold runs --all-tenants` lists what there is"
        )
        super().__init__(f"no run {run!r} in tenant {tenant!r}{hint}")


class NoSuchVersion(NotFound):
    """The key has no such version in this run."""

    def __init__(self, *, key: str, version: int, newest: int) -> None:
        self.key, self.version, self.newest = key, version, newest
        super().__init__(f"key {key!r} has no version {version}; its newest is {newest}")


class NoSuchMoment(NotFound):
    """The text does not name a moment of this run."""

    def __init__(self, message: str, *, moment: object) -> None:
        super().__init__(message)
        self.moment = moment


class ValueErased(NotFound):
    """A value that was erased for good: by whom, when (text) and why, if the log says so."""

    def __init__(self, message: str, *, key: str, version: int, by: str | None, at: str | None, reason: str | None):
        super().__init__(message)
        self.key, self.version, self.by, self.at, self.reason = key, version, by, at, reason


class RunArchived(NotFound):
    """A run whose events were moved into the file `bundle`; `refold import` puts them back."""

    def __init__(self, *, run: str, bundle: str, by: str | None, at: str) -> None:
        self.run, self.bundle, self.by, self.at = run, bundle, by, at
        hint = f"`refold import` of the file {bundle!r}, from where it was archived to, puts it back"
        super().__init__(f"run {run!r} was archived by {by!r} at {at}; {hint}")


class BundleInvalid(RefoldError):
    """A bundle that cannot be trusted or read. `line` counts from 1. Nothing of it was imported."""

    def __init__(self, message: str, *, line: int) -> None:
        super().__init__(message)
        self.line = line


class TransactionInvalid(RefoldError):
    """A transaction was used in a way it does not allow."""


class SchemaMismatch(RefoldError):
    """The database's tables do not match the code. `command` mends it."""

    def __init__(self, message: str, *, found: str | None, expected: str, command: str | None) -> None:
        super().__init__(message)
        self.found, self.expected, self.command = found, expected, command


class StoreOlder(SchemaMismatch):
    """The database's tables are missing or older than the code."""


class StoreNewer(SchemaMismatch):
    """The database's tables are newer than the code."""


class StoreUnavailable(RefoldError):
    """The database could not do it: disk full, connection lost, locked too long. Nothing was half written."""

    def __init__(self, message: str, *, maybe_committed: bool = False) -> None:
        super().__init__(message)
        self.maybe_committed = maybe_committed


class StoreClosed(RefoldError):
    """The store was closed."""


class ReadOnlyStore(RefoldError):
    """The store was opened read-only."""


class Damaged(RefoldError):
    """Stored rows contradict each other; `refold verify` names every place."""

    def __init__(self, message: str, *, run: str | None = None, seq: int | None = None) -> None:
        super().__init__(message)
        self.run, self.seq = run, seq
