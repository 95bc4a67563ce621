"""What a new file may take the place of: an empty file, or an older one of its own kind. Nothing else is lost.

Rules of this module
- A file is judged by what it holds, never by its name, and the one a link leads to is meant.
- What is no file (a pipe, a device) has nothing to lose; a folder cannot be written.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from refold_replay.bundle_reader import BundleReader
from refold_store.errors import ConfigError, RefoldError

GZIP = b"\x1f\x8b"
"""How a file of gzip members begins."""


def refusal(path: str | os.PathLike[str], word: str) -> ConfigError:
    """The error for a file that is not replaced. `word` is what may be."""
    return ConfigError(f"{os.fspath(path)!r} is there and is no {word}; remove it, or choose another name")


def check_place(path: str | os.PathLike[str], kind: Callable[[Path], bool], word: str) -> None:
    """Raises ConfigError if a file is there that is neither empty nor of the kind. OSError if it cannot be read."""
    target = os.path.realpath(path)
    if os.path.isfile(target) and os.path.getsize(target) and not kind(Path(target)):
        raise refusal(path, word)


def check_place_of_bundle(path: str | os.PathLike[str], tenant: str, run: str, scope: int) -> None:
    """Raises ConfigError if a file is there that is neither empty nor a bundle of this run."""

    def same(target: Path) -> bool:
        try:
            told = BundleReader(target).manifest
        except RefoldError:
            return False
        return (told.tenant, told.run, told.scope) == (tenant, run, scope)

    of = "" if tenant == "default" else f" of tenant {tenant!r}"
    check_place(path, same, f"bundle of run {run!r}{of}")


def holds_lines(path: Path, digest: bytes) -> bool:
    """Whether a file is a bundle of just the lines that give this hash, signed or not; it is on the disk then."""
    try:
        reader = BundleReader(path)
        for _event in reader.events():
            pass  # the hash stands at the end
    except RefoldError:
        return False
    with path.open("rb") as file:
        os.fsync(file.fileno())
    return reader.end is not None and reader.end.sha256 == digest
