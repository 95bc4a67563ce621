"""The URL of a PostgreSQL store. Light: psycopg loads when a URL is looked at."""

from __future__ import annotations

from refold_store.errors import ConfigError


def libpq_url(url: str) -> str:
    """A URL as libpq takes it: without the driver that SQLAlchemy's spelling names. Raises ConfigError."""
    from psycopg import ProgrammingError
    from psycopg.conninfo import conninfo_to_dict

    scheme, mark, rest = url.partition("://")
    plain = f"{scheme.partition('+')[0]}{mark}{rest}"
    try:
        conninfo_to_dict(plain)
    except ProgrammingError as error:
        raise ConfigError(f"not a PostgreSQL URL: {error}; write postgresql://USER@HOST/DATABASE") from error
    return plain
