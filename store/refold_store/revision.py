"""The schema revisions this code knows, oldest first.

A tiny module on purpose: opening a store compares one text with `HEAD_REVISION` and imports neither SQLAlchemy nor
Alembic. A test checks that the tuple equals Alembic's own history.
"""

from __future__ import annotations

from typing import Final

REVISIONS: Final[tuple[str, ...]] = ("0001", "0002", "0003")
HEAD_REVISION: Final = REVISIONS[-1]

# The oldest revision this code can work on: everything after it is a "post" step that may still be to come.
OLDEST_USABLE: Final = "0003"

VERSION_TABLE: Final = "refold_version"
REVISION_SQL: Final = f"SELECT version_num FROM {VERSION_TABLE}"
