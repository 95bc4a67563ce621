"""Names and their numbers: what one process has met of a store's table `names`.

Rules of this module
- A name is interned on the writer connection, before the commit that uses it: a rollback would take it back.
- A lost connection empties the memory (`_lose_memory` of a backend): what no sync covered may be gone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from refold_store.errors import Damaged
from refold_store.names import check_name

if TYPE_CHECKING:
    from refold_store.backend import Statements


class Names(ABC):
    """The names part of a backend."""

    sql: Statements

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}
        self._texts: dict[int, str] = {}

    @abstractmethod
    def query(self, sql: str, args: Sequence[Any]) -> list[Any]:
        """All rows of one statement on a reader connection."""

    @abstractmethod
    def writer_query(self, sql: str, args: Sequence[Any]) -> list[Any]:
        """All rows of one statement on the writer connection, inside its open transaction if there is one."""

    @abstractmethod
    def add_names(self, names: Sequence[str]) -> None:
        """Intern names that are not stored yet."""

    def intern(self, names: Iterable[str]) -> None:
        """Make sure every name has an id; afterwards `ids[name]` finds it."""
        missing = sorted({name for name in names if name not in self._ids})
        if not missing:
            return
        self._look_up(missing)
        absent = [name for name in missing if name not in self._ids]
        if absent:
            self.add_names(absent)
            self._look_up(absent)

    def look_up(self, name: str) -> int | None:
        """The id of a name on the writer connection, or None. Adds nothing: a rollback would take it back."""
        if name not in self._ids:
            self._look_up((name,))
        return self._ids.get(name)

    def _look_up(self, names: Sequence[str]) -> None:
        for name in names:
            for number, text in self.writer_query(self.sql.names_by_text, (name,)):
                self._remember(number, text)

    def _remember(self, number: int, text: str) -> None:
        self._ids[text] = number
        self._texts[number] = text

    @property
    def ids(self) -> dict[str, int]:
        """Interned names; only those met so far."""
        return self._ids

    def id_of(self, name: str) -> int | None:
        """The id of a key's name, or None if the store has never seen it. Raises NameInvalid."""
        found = self._ids.get(name)
        if found is None:
            check_name("key", name)
            for found, text in self.query(self.sql.names_by_text, (name,)):
                self._remember(found, text)
        return found

    def text_of(self, number: int | None, *, writer: bool = False) -> str | None:
        """The name behind an id."""
        if number is None:
            return None
        texts = self._texts
        return texts[number] if number in texts else self.learn((number,), writer=writer)[number]

    def learn(self, numbers: Iterable[int], *, writer: bool = False) -> dict[int, str]:
        """Look up the names behind ids in one statement; returns all that are known."""
        texts = self._texts  # another one may take its place after a lost connection
        missing = sorted({number for number in numbers if number not in texts})
        if missing:
            ask = self.writer_query if writer else self.query
            for number, text in ask(self.sql.names_by_ids, (str(missing),)):
                self._remember(number, text)
                texts[number] = text
            lost = [number for number in missing if number not in texts]
            if lost:
                raise Damaged(f"the log uses name ids {lost[:5]}, which table names does not hold; restore a backup")
        return texts
