"""The URL of a PostgreSQL store. Light: psycopg loads when a URL is looked at.

Rules of this module
- A URL may hold a password, in any of its parts if it is misspelt: no message repeats any of it, libpq's texts included.
"""

from __future__ import annotations

import re

from refold_store.errors import ConfigError

NOT_A_URL = (
    "not a PostgreSQL URL; write postgresql://USER@HOST/DATABASE, with special characters of the password "
    "percent-encoded"
)
_PORTS = re.compile(r"[0-9,]*")


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
