"""Seeds: the values that stand at version 1 before a recorded run begins.

A seed file is JSON Lines (or gzip) with `key`, `value`, `version` 1, and maybe `owner`. Each run starts from it afresh.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from refold_replay.sources import read_lines, read_object
from refold_store.errors import ConfigError, NameInvalid, NotExact
from refold_store.jsontext import decode, encode
from refold_store.names import check_name


@dataclass(frozen=True, slots=True)
class SeedEntry:
    """One key's value before any run. The value is kept as text: a seed may be large."""

    line: int
    owner: str | None
    text: bytes

    def value(self) -> Any:
        """The value as plain JSON, decoded afresh."""
        return decode(self.text)


@dataclass(frozen=True, slots=True)
class Seed:
    """The entries of a seed file by key."""

    file: str
    entries: dict[str, SeedEntry]

    def digest(self, keys: Iterable[str]) -> str:
        """SHA-256 of what the seed says of these keys, in hex."""
        found = sha256()
        for key in sorted(keys):
            entry = self.entries[key]
            found.update(encode([key, entry.owner]) + entry.text)
        return found.hexdigest()


NO_SEED = Seed("", {})


def read_seed(path: str | Path) -> Seed:
    """Read a seed file. Raises ConfigError with file and line."""
    entries: dict[str, SeedEntry] = {}
    for number, raw in read_lines(path):
        where = f"{path}:{number}"
        try:
            document = read_object(raw)
            key, owner = check_name("key", document.get("key")), document.get("owner")
            if owner is not None:
                check_name("owner", owner)
        except (NotExact, NameInvalid) as error:
            raise ConfigError(str(error), where=where) from error
        version = document.get("version", 1)
        if "value" not in document or type(version) is not int or version != 1:
            raise ConfigError("a seed line has a value, at version 1", where=where)
        if key in entries:
            raise ConfigError(f"key {key!r} stands at line {entries[key].line} already", where=where)
        entries[key] = SeedEntry(number, owner, encode(document["value"]))
    return Seed(str(path), entries)
