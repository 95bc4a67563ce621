"""The URL of a PostgreSQL store. Light: psycopg loads when a URL is looked at.

Rules of this module
- A URL may hold a password, in any of its parts if it is misspelt: no message repeats any of it, nor libpq's text.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from refold_store.errors import ConfigError

if TYPE_CHECKING:
    from psycopg import Connection

NOT_A_URL = (
    "not a PostgreSQL URL; write postgresql://USER@HOST/DATABASE, with special characters of the password "
    "percent-encoded"
)
_PORTS = re.compile(r"[0-9,]*")

_MEANT = re.compile(r"postgres(ql)?(\+\w+)?:", re.IGNORECASE)


def means_postgres(url: str) -> bool:
    """Whether a text was meant for PostgreSQL, however misspelt: it may hold a password, and is no file's name."""
    return _MEANT.match(url) is not None or "password=" in url


def libpq_url(url: str) -> str:
    """A URL as libpq takes it: without the driver that SQLAlchemy's spelling names. Raises ConfigError."""
    from psycopg import ProgrammingError
    from psycopg.conninfo import conninfo_to_dict

    scheme, mark, rest = url.partition("://")
    plain = f"{scheme.partition('+')[0]}{mark}{rest}"
    place = rest.partition("?")[0]
    if not mark or place.count("@") > ("@" in place.partition("/")[0]):  # libpq would take a password for a host
        raise ConfigError(NOT_A_URL)
    try:
        parts = conninfo_to_dict(plain)
    except (ProgrammingError, ValueError):
        raise ConfigError(NOT_A_URL) from None
    if not _PORTS.fullmatch(str(parts.get("port") or "")):
        raise ConfigError(NOT_A_URL)
    return plain


def connect(url: str, **options: Any) -> Connection[Any]:
    """A connection whose texts are UTF-8, whatever the URL or PGCLIENTENCODING asks for.

    Raises ConfigError for a parameter that psycopg does not take, psycopg's OperationalError if there is no server.
    """
    import psycopg

    try:
        return psycopg.connect(url, client_encoding="UTF8", **options)
    except psycopg.ProgrammingError:
        raise ConfigError(
            "PostgreSQL's driver refuses a parameter of the URL; check what stands after the ? (connect_timeout=5)"
        ) from None
