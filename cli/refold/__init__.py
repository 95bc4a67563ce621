"""refold: the shared state of AI agents, owned, versioned, audited and replayable.

The names here are the public ones. They load on first use, so that `import refold` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from refold_store.conditions import compile_condition
    from refold_store.declare import (
        Owner,
        StateSchema,
        basis_required,
        compile_schema,
        family,
        max_bytes,
        readers,
        scope,
        sensitive,
    )
    from refold_store.errors import (
        BasisRequired,
        ConditionError,
        ConditionFailed,
        ConfigError,
        Conflict,
        Damaged,
        InvalidValue,
        InvariantBroken,
        NameInvalid,
        NoSuchMoment,
        NoSuchRun,
        NoSuchVersion,
        NotExact,
        NotOwner,
        ReadOnlyStore,
        ReducerError,
        RefoldError,
        Refused,
        RequestReused,
        SchemaChanged,
        StoreClosed,
        StoreNewer,
        StoreOlder,
        StoreUnavailable,
        TooLarge,
        TransactionInvalid,
        UnknownKey,
    )
    from refold_store.events import Event
    from refold_store.fold import ABSENT
    from refold_store.moments import Moment
    from refold_store.reads import Read, ReadRecord, RunInfo, State
    from refold_store.reducers import add, append, by_key, deep_merge, last, merge, overwrite, union
    from refold_store.requests import Written
    from refold_store.run import Run
    from refold_store.schema import Schema
    from refold_store.store import Store, open_store
    from refold_store.telemetry import Telemetry

_WHERE = {
    "refold_store.conditions": "compile_condition",
    "refold_store.declare": "Owner StateSchema basis_required compile_schema family max_bytes readers scope sensitive",
    "refold_store.errors": (
        "BasisRequired ConditionError ConditionFailed ConfigError Conflict Damaged InvalidValue InvariantBroken "
        "NameInvalid NoSuchMoment NoSuchRun NoSuchVersion NotExact NotOwner ReadOnlyStore ReducerError RefoldError "
        "Refused RequestReused SchemaChanged StoreClosed StoreNewer StoreOlder StoreUnavailable TooLarge "
        "TransactionInvalid UnknownKey"
    ),
    "refold_store.events": "Event",
    "refold_store.fold": "ABSENT",
    "refold_store.reads": "Read ReadRecord RunInfo State",
    "refold_store.reducers": "add append by_key deep_merge last merge overwrite union",
    "refold_store.requests": "Written",
    "refold_store.moments": "Moment",
    "refold_store.run": "Run",
    "refold_store.schema": "Schema",
    "refold_store.store": "Store open_store",
    "refold_store.telemetry": "Telemetry",
}
_HOME = {name: module for module, names in _WHERE.items() for name in names.split()}

__all__ = [
    "ABSENT",
    "BasisRequired",
    "ConditionError",
    "ConditionFailed",
    "ConfigError",
    "Conflict",
    "Damaged",
    "Event",
    "InvalidValue",
    "InvariantBroken",
    "Moment",
    "NameInvalid",
    "NoSuchMoment",
    "NoSuchRun",
    "NoSuchVersion",
    "NotExact",
    "NotOwner",
    "Owner",
    "Read",
    "ReadOnlyStore",
    "ReadRecord",
    "ReducerError",
    "RefoldError",
    "Refused",
    "RequestReused",
    "Run",
    "RunInfo",
    "Schema",
    "SchemaChanged",
    "State",
    "StateSchema",
    "Store",
    "StoreClosed",
    "StoreNewer",
    "StoreOlder",
    "StoreUnavailable",
    "Telemetry",
    "TooLarge",
    "TransactionInvalid",
    "UnknownKey",
    "Written",
    "add",
    "append",
    "basis_required",
    "by_key",
    "compile_condition",
    "compile_schema",
    "deep_merge",
    "family",
    "last",
    "max_bytes",
    "merge",
    "open_store",
    "overwrite",
    "readers",
    "scope",
    "sensitive",
    "union",
]


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'refold' has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(home), name)
    return found


def __dir__() -> list[str]:
    return __all__
