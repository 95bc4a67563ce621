"""refold: the shared state of AI agents, owned, versioned, audited and replayable.

The names here are the public ones. They load on first use, so that `import refold` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from refold_replay.anchoring import anchor
    from refold_replay.archiving import archive, archive_old
    from refold_replay.blame import blame
    from refold_replay.bundle_import import check_bundle, import_bundle
    from refold_replay.comparing import compare
    from refold_replay.explain import explain
    from refold_replay.exporting import export
    from refold_replay.finding import find
    from refold_replay.lint import lint
    from refold_replay.story import story
    from refold_replay.tracing import impact, why
    from refold_replay.verify import verify
    from refold_replay.whatif import KEEP, SKIP, WhatIf, whatif
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
    from refold_store.drafting import DraftRead
    from refold_store.erasing import erase
    from refold_store.errors import (
        BasisRequired,
        BundleInvalid,
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
        RunArchived,
        SchemaChanged,
        StoreClosed,
        StoreNewer,
        StoreOlder,
        StoreUnavailable,
        TooLarge,
        TransactionInvalid,
        UnknownKey,
        ValueErased,
    )
    from refold_store.events import Event
    from refold_store.fold import ABSENT
    from refold_store.forking import fork, make_self_contained
    from refold_store.moments import Moment
    from refold_store.pruning import prune
    from refold_store.reads import Read, ReadRecord, RunInfo, State
    from refold_store.reducers import add, append, by_key, deep_merge, last, merge, overwrite, union
    from refold_store.requests import Written
    from refold_store.run import Run
    from refold_store.schema import Schema
    from refold_store.store import Store, open_store
    from refold_store.telemetry import Telemetry
    from refold_store.turn_errors import (
        DeltaOutdated,
        InterruptInvalid,
        InterruptsOpen,
        PatchInvalid,
        RolledBack,
        StateLocked,
        TurnEnded,
        TurnFenced,
        TurnInvalid,
        TurnUnknown,
    )
    from refold_store.turns import Turn
    from refold_store.watching import Change, Watch

_WHERE = {
    "refold_replay.anchoring": "anchor",
    "refold_replay.archiving": "archive archive_old",
    "refold_replay.blame": "blame",
    "refold_replay.bundle_import": "check_bundle import_bundle",
    "refold_replay.comparing": "compare",
    "refold_replay.explain": "explain",
    "refold_replay.exporting": "export",
    "refold_replay.finding": "find",
    "refold_replay.lint": "lint",
    "refold_replay.story": "story",
    "refold_replay.tracing": "impact why",
    "refold_replay.verify": "verify",
    "refold_replay.whatif": "KEEP SKIP WhatIf whatif",
    "refold_store.conditions": "compile_condition",
    "refold_store.declare": "Owner StateSchema basis_required compile_schema family max_bytes readers scope sensitive",
    "refold_store.errors": (
        "BasisRequired BundleInvalid ConditionError ConditionFailed ConfigError Conflict Damaged InvalidValue "
        "InvariantBroken NameInvalid NoSuchMoment NoSuchRun NoSuchVersion NotExact NotOwner ReadOnlyStore "
        "ReducerError RefoldError Refused RequestReused RunArchived SchemaChanged StoreClosed StoreNewer StoreOlder "
        "StoreUnavailable TooLarge TransactionInvalid UnknownKey ValueErased"
    ),
    "refold_store.turn_errors": (
        "DeltaOutdated InterruptInvalid InterruptsOpen PatchInvalid RolledBack StateLocked TurnEnded TurnFenced "
        "TurnInvalid TurnUnknown"
    ),
    "refold_store.drafting": "DraftRead",
    "refold_store.erasing": "erase",
    "refold_store.events": "Event",
    "refold_store.fold": "ABSENT",
    "refold_store.forking": "fork make_self_contained",
    "refold_store.pruning": "prune",
    "refold_store.reads": "Read ReadRecord RunInfo State",
    "refold_store.reducers": "add append by_key deep_merge last merge overwrite union",
    "refold_store.requests": "Written",
    "refold_store.moments": "Moment",
    "refold_store.run": "Run",
    "refold_store.schema": "Schema",
    "refold_store.store": "Store open_store",
    "refold_store.telemetry": "Telemetry",
    "refold_store.turns": "Turn",
    "refold_store.watching": "Change Watch",
}
_HOME = {name: module for module, names in _WHERE.items() for name in names.split()}

__all__ = [  # noqa: RUF022  # sorted as text, which a test asserts
    "ABSENT",
    "BasisRequired",
    "BundleInvalid",
    "Change",
    "ConditionError",
    "ConditionFailed",
    "ConfigError",
    "Conflict",
    "Damaged",
    "DeltaOutdated",
    "DraftRead",
    "Event",
    "InterruptInvalid",
    "InterruptsOpen",
    "InvalidValue",
    "InvariantBroken",
    "KEEP",
    "Moment",
    "NameInvalid",
    "NoSuchMoment",
    "NoSuchRun",
    "NoSuchVersion",
    "NotExact",
    "NotOwner",
    "Owner",
    "PatchInvalid",
    "Read",
    "ReadOnlyStore",
    "ReadRecord",
    "ReducerError",
    "RefoldError",
    "Refused",
    "RequestReused",
    "RolledBack",
    "Run",
    "RunArchived",
    "RunInfo",
    "SKIP",
    "Schema",
    "SchemaChanged",
    "State",
    "StateLocked",
    "StateSchema",
    "Store",
    "StoreClosed",
    "StoreNewer",
    "StoreOlder",
    "StoreUnavailable",
    "Telemetry",
    "TooLarge",
    "TransactionInvalid",
    "Turn",
    "TurnEnded",
    "TurnFenced",
    "TurnInvalid",
    "TurnUnknown",
    "UnknownKey",
    "ValueErased",
    "Watch",
    "WhatIf",
    "Written",
    "add",
    "anchor",
    "append",
    "archive",
    "archive_old",
    "basis_required",
    "blame",
    "by_key",
    "check_bundle",
    "compare",
    "compile_condition",
    "compile_schema",
    "deep_merge",
    "erase",
    "explain",
    "export",
    "family",
    "find",
    "fork",
    "impact",
    "import_bundle",
    "last",
    "lint",
    "make_self_contained",
    "max_bytes",
    "merge",
    "open_store",
    "overwrite",
    "prune",
    "readers",
    "scope",
    "sensitive",
    "story",
    "union",
    "verify",
    "whatif",
    "why",
]


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'refold' has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(home), name)
    return found


def __dir__() -> list[str]:
    return __all__
