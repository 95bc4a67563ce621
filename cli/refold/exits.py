"""Exit codes of the command line, and the one line each error is told in.

Rules of this module
- A code says what the caller can do next; HELP shows them in `refold --help`.
- An error of refold's own tree becomes one line on standard error. Anything else is our bug and keeps its traceback.
"""

from __future__ import annotations

from refold_store.errors import (
    ConditionFailed,
    ConfigError,
    Damaged,
    NameInvalid,
    NotFound,
    ReadOnlyStore,
    RefoldError,
    Refused,
    SchemaMismatch,
    StoreClosed,
    StoreUnavailable,
    TransactionInvalid,
    UnknownKey,
)

DONE = 0
FOUND = 1
NO = 1
"""A question that is answered with yes or no was answered with no."""
USAGE = 2
MISSING = 3
REFUSED = 4
UNAVAILABLE = 5
INTERRUPTED = 130
"""As shells report a process ended by Ctrl-C."""
PIPE_CLOSED = 141
"""As shells report a process whose reader went away."""

HELP: tuple[tuple[int, str], ...] = (
    (DONE, "done; a key that is absent is an answer, too"),
    (
        FOUND,
        "a check found something: verify, check, doctor, lint, import with errors, schema check, engine check, "
        "a replay that differs; agents reached a limit; rows are damaged; or the answer is no: find, readers --reader",
    ),
    (USAGE, "the command line, a name, a condition, a schema or a file is wrong"),
    (MISSING, "no such run, key, version or moment"),
    (REFUSED, "the write was refused; the refusal is on the record"),
    (UNAVAILABLE, "the store cannot be used: absent, unreachable, locked, full, read-only, or its tables do not match"),
)

_CODES: tuple[tuple[type[RefoldError], int], ...] = (
    (NotFound, MISSING),
    (Refused, REFUSED),
    (Damaged, FOUND),
    (StoreUnavailable, UNAVAILABLE),
    (SchemaMismatch, UNAVAILABLE),
    (ReadOnlyStore, UNAVAILABLE),
    (StoreClosed, UNAVAILABLE),
    (ConfigError, USAGE),
    (ConditionFailed, USAGE),
    (NameInvalid, USAGE),
    (TransactionInvalid, USAGE),
)


def code_of(error: RefoldError) -> int:
    """The exit code of an error. An unknown key is missing when looked up, refused when written."""
    if isinstance(error, UnknownKey) and error.writer is None:
        return MISSING
    return next((code for kind, code in _CODES if isinstance(error, kind)), USAGE)
