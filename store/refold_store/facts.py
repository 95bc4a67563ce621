"""What a person needs to know about the database under a store, for `refold doctor`.

Rules of this module
- Only asks: nothing is changed, and nothing is judged here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from refold_store.revision import REVISION_SQL

if TYPE_CHECKING:
    from refold_store.store import Store

_SETTINGS = ("synchronous_commit", "fsync", "server_encoding", "server_version")


def database_facts(store: Store) -> dict[str, Any]:
    """Facts of the database by name. SQLite and PostgreSQL have different ones; `revision` is of both."""
    ask = store._backend.query
    facts: dict[str, Any] = {"revision": ask(REVISION_SQL, ())[0][0]}
    if store.backend == "sqlite":
        facts["sqlite_version"] = ask("SELECT sqlite_version()", ())[0][0]
        facts["journal_mode"] = ask("PRAGMA journal_mode", ())[0][0]
        return facts
    for name in _SETTINGS:
        facts[name] = ask("SELECT current_setting($1)", (name,))[0][0]
    facts["collation"] = ask("SELECT datcollate FROM pg_database WHERE datname = current_database()", ())[0][0]
    facts["clock_offset_us"] = store._backend.clock_offset_us()
    return facts
