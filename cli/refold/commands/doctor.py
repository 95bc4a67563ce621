"""`refold doctor`: is what the store stands on in order, and if not, what to do.

Rules of this module
- Looks only; a line is ok, warn or fail. Only fail gives exit code 1.
- A store that cannot be opened is a finding, not the end: the other lines still come.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from refold import exits, output
from refold.site import Site, common, shown_url
from refold_store.errors import RefoldError, SchemaMismatch
from refold_store.postgres_url import means_postgres

if TYPE_CHECKING:
    from refold_store.store import Store

PYTHON_OLDEST = (3, 11)
SQLITE_OLDEST = (3, 31)
"""Generated columns, which the tables use."""
SQLITE_WAL_RESET = (3, 51, 3)
"""The first release without the WAL-reset bug: before it, two connections that checkpoint at once can lose a commit."""
DISK_WARN_BYTES = 1 << 30
DISK_FAIL_BYTES = 64 << 20
CLOCK_WARN_US = 1_000_000
"""As for moments: clocks further apart make times misleading; the order is by seq in any case."""


class Line(NamedTuple):
    """One thing looked at."""

    mark: str
    what: str
    found: str
    todo: str = ""


@click.command("doctor")
@common
def doctor_command(site: Site) -> None:
    """Check Python, SQLite or PostgreSQL, the tables, the disk and the clocks."""
    lines = [*_python(), *_store(site)]
    if site.as_json:
        output.document({"ok": not _failed(lines), "lines": [one._asdict() for one in lines]})
    else:
        for one in lines:
            todo = f"\n{'':26}{one.todo}" if one.todo else ""
            output.say(f"{one.mark:<5} {one.what:<19} {output.safe(one.found)}{todo}")
    if _failed(lines):
        raise click.exceptions.Exit(exits.FOUND)


def _failed(lines: list[Line]) -> bool:
    return any(one.mark == "fail" for one in lines)


def _python() -> Iterator[Line]:
    from importlib.metadata import version

    yield Line("ok", "refold", version("refold"))
    found = f"{platform.python_version()} ({platform.python_implementation()})"
    if sys.version_info[:2] < PYTHON_OLDEST:
        yield Line("fail", "python", found, "install Python 3.11 or newer")
    else:
        yield Line("ok", "python", found)


def _store(site: Site) -> Iterator[Line]:
    from refold_store.facts import database_facts

    url = site.store_url
    try:
        with site.store() as store:
            facts = database_facts(store)
            yield Line("ok", "store", shown_url(url))
            yield from _sqlite(facts) if store.backend == "sqlite" else _postgres(facts)
            yield from _revision(facts["revision"])
            yield from _clock(store)
    except SchemaMismatch as error:
        yield Line("fail", "store", f"{shown_url(url)}: {error}", "" if error.command else "`refold init` does that")
    except RefoldError as error:
        yield Line("fail", "store", f"{shown_url(url)}: {' '.join(str(error).split())}")
    yield from _disk(url)


def _revision(found: str) -> Iterator[Line]:
    from refold_store.revision import HEAD_REVISION

    if found == HEAD_REVISION:
        yield Line("ok", "tables", f"revision {found}, no migration pending")
    else:
        yield Line("warn", "tables", f"revision {found}, this refold makes {HEAD_REVISION}", "run `refold migrate`")


# --- SQLite --------------------------------------------------------------------------------------


def _sqlite(facts: dict[str, Any]) -> Iterator[Line]:
    text = facts["sqlite_version"]
    version = tuple(int(part) for part in text.split("."))
    if version < SQLITE_OLDEST:
        yield Line("fail", "sqlite", text, "upgrade to SQLite 3.51.3 or newer")
    elif version < SQLITE_WAL_RESET:
        yield Line(
            "warn", "sqlite", f"{text} has the WAL-reset bug (up to 3.51.2)",
            "rare, but with several processes a checkpoint can lose a commit: use a Python with SQLite 3.51.3 or newer",
        )  # fmt: skip
    else:
        yield Line("ok", "sqlite", text)
    mode = facts["journal_mode"]
    if mode == "wal":
        yield Line("ok", "journal mode", mode)
    else:
        yield Line("warn", "journal mode", mode, "readers and writers block each other: open it once for writing")


# --- PostgreSQL ----------------------------------------------------------------------------------


def _postgres(facts: dict[str, Any]) -> Iterator[Line]:
    yield Line("ok", "postgresql", facts["server_version"])
    yield _must(facts, "server_encoding", "UTF8", "create the database anew with ENCODING 'UTF8' TEMPLATE template0")
    yield Line("ok", "collation", f"{facts['collation']} (names are compared by bytes whatever it is)")
    yield _must(facts, "fsync", "on", "set fsync = on: a crash of the machine may damage the database")
    commit = facts["synchronous_commit"]
    if commit == "off":
        yield Line(
            "warn", "synchronous_commit", commit,
            "acknowledged writes may be lost in a crash: set it on for this database or role",
        )  # fmt: skip
    else:
        yield Line("ok", "synchronous_commit", commit)
    yield _offset(facts["clock_offset_us"])


def _must(facts: dict[str, Any], name: str, wanted: str, todo: str) -> Line:
    found = str(facts[name])
    return Line("ok", name, found) if found == wanted else Line("fail", name, found, todo)


def _offset(micros: int) -> Line:
    found = f"the server's is {abs(micros) / 1e6:.3f} s {'ahead' if micros > 0 else 'behind'} of this machine's"
    if abs(micros) > CLOCK_WARN_US:
        return Line("warn", "clock", found, "recorded times are the server's: set both by NTP")
    return Line("ok", "clock", found)


# --- both ----------------------------------------------------------------------------------------


def _clock(store: Store) -> Iterator[Line]:
    """Events from the future: a clock that was wrong keeps recorded times ahead until it is passed."""
    limit = store.run("").now_us() / 1e6 + CLOCK_WARN_US / 1e6
    ahead = [info.name for info in store.runs() if info.last_at.timestamp() > limit]
    if ahead:
        some = ", ".join(ahead[:3])
        yield Line(
            "warn", "recorded times", f"{output.plural(len(ahead), 'run')} ahead of the clock now: {some}",
            "a clock was wrong when they were written; order is by seq and holds, times in them mislead",
        )  # fmt: skip


def _disk(url: str) -> Iterator[Line]:
    """Room beside a SQLite file. A PostgreSQL server's disk cannot be seen from here."""
    if means_postgres(url) or ("://" in url and not url.startswith("sqlite:///")):
        return
    folder = os.path.dirname(os.path.abspath(url.removeprefix("sqlite:///"))) or "."
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        yield Line("fail", "disk", f"{folder}: {error.strerror}", "check the folder")
        return
    found = f"{free / (1 << 30):.1f} GiB free in {folder}"
    if free < DISK_FAIL_BYTES:
        yield Line("fail", "disk", found, "make room: writes will fail, nothing stored is lost")
    elif free < DISK_WARN_BYTES:
        yield Line("warn", "disk", found, "make room soon")
    else:
        yield Line("ok", "disk", found)
