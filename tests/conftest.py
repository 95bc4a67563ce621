"""What tests share: a PostgreSQL server, fresh databases, stores on both backends, the recorded data.

PostgreSQL is a real server from a wheel, one for each pytest worker, and is never skipped. A test gets a database of
its own, copied from one that was migrated once.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings
from kept import Clock

from scratch_postgres import ScratchPostgres, scratch_postgres

if TYPE_CHECKING:
    from click.testing import Result

    from refold import Store

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared" / "data"
TEMPLATE = "refold_template"

# A slow machine is no failure. CI draws the same examples each time, so that a red run can be repeated.
settings.register_profile("refold", deadline=None, print_blob=True, derandomize="CI" in os.environ)
settings.load_profile("refold")

_serials = itertools.count(1)


@pytest.fixture(scope="session", autouse=True)
def _no_settings_from_outside() -> Iterator[None]:
    """Keep the developer's own store out of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("REFOLD_")]:
            patch.delenv(name)
        yield


@pytest.fixture(scope="session")
def pg_server() -> Iterator[ScratchPostgres]:
    """The worker's PostgreSQL server. Tests that stop it take `own_pg_server`."""
    with scratch_postgres() as server:
        yield server


@pytest.fixture
def own_pg_server() -> Iterator[ScratchPostgres]:
    """A PostgreSQL server of the test's own, to stop, kill and start again."""
    with scratch_postgres() as server:
        yield server


@pytest.fixture(scope="session")
def pg_template(pg_server: ScratchPostgres) -> str:
    """Name of a migrated, empty database, to be copied. Nobody may stay connected to it."""
    from refold_store.migrate import migrate_postgres

    migrate_postgres(pg_server.create(TEMPLATE))
    return TEMPLATE


@pytest.fixture
def pg_url(pg_server: ScratchPostgres, pg_template: str) -> Iterator[str]:
    """URL of a fresh, migrated database, dropped after the test."""
    name = f"refold_{next(_serials)}"
    yield pg_server.create(name, template=pg_template)
    pg_server.drop(name)


@pytest.fixture
def empty_pg_url(pg_server: ScratchPostgres) -> Iterator[str]:
    """URL of a fresh database without any table, dropped after the test."""
    name = f"empty_{next(_serials)}"
    yield pg_server.create(name)
    pg_server.drop(name)


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """URL of a SQLite file that does not exist yet."""
    return f"sqlite:///{tmp_path / 'refold.db'}"


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest) -> str:
    """URL of a fresh store: the test runs once on each backend."""
    url: str = request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "pg_url")
    return url


@pytest.fixture
def open_new(store_url: str) -> Iterator[Callable[..., Store]]:
    """`open_new(schema, **options)` opens the test's store, each time anew; all are closed after the test.

    `url=` opens another one instead.
    """
    from refold import open_store

    with ExitStack() as opened:

        def make(schema: Any = None, *, url: str = store_url, **options: Any) -> Store:
            return opened.enter_context(open_store(url, schema, **options))

        yield make


@pytest.fixture
def refold_cli() -> Callable[..., Result]:
    """`refold_cli("get", run, key, "--store", url)` runs a command line in this process: exit_code, stdout, stderr."""
    from click.testing import CliRunner

    from refold.app import root

    def call(*words: str, **options: Any) -> Result:
        result = CliRunner().invoke(root, words, **options)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return call


@pytest.fixture
def claims_url(store_url: str) -> str:
    """URL of a store in which the demo's claims case was played, on each backend."""
    from refold import open_store
    from refold.demo import ClaimState, free_run, play

    with open_store(store_url, ClaimState) as store:
        play(free_run(store, "default"), lambda _line: None)
    return store_url


@pytest.fixture(scope="session")
def shared_data() -> Callable[[str], Path]:
    """`shared_data("burr/dev")` gives a path among the recorded data; the test is skipped where they are absent."""

    def find(name: str) -> Path:
        path = SHARED / name
        if not path.exists():
            pytest.skip(f"recorded data {name!r} are not beside the repository (../shared/data)")
        return path

    return find


@pytest.fixture
def clock() -> Clock:
    """A store's clock that a test moves."""
    return Clock()
