"""The board: flushes and round trips counted by the preloaded helper, and the time that a flush is made to cost.

There are two boards, one shared by all client processes and one by the PostgreSQL server's, so that each side's
flushes are counted apart and the delay can be changed while both run.
"""

from __future__ import annotations

import mmap
import struct
import subprocess
from pathlib import Path

ENV_BOARD = "BENCH_BOARD"
WORD = struct.calcsize("l")
DELAY_US, SYNCS, TRIPS, WORDS = 0, 1, 2, 3


class Board:
    """One mapped file of counters; see fsyncsim.c for its words."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.exists():
            path.write_bytes(bytes(WORDS * WORD))
            path.chmod(0o666)
        with path.open("r+b") as file:
            self._words = mmap.mmap(file.fileno(), WORDS * WORD)

    def _word(self, index: int) -> int:
        value: int = struct.unpack_from("l", self._words, index * WORD)[0]
        return value

    @property
    def syncs(self) -> int:
        """Flushes asked for so far."""
        return self._word(SYNCS)

    @property
    def trips(self) -> int:
        """Round trips made so far."""
        return self._word(TRIPS)

    def delay(self, delay_us: int) -> None:
        """Makes each flush from now on take this much longer."""
        struct.pack_into("l", self._words, DELAY_US * WORD, delay_us)


def build_helper(folder: Path) -> Path:
    """Compiles the preloaded helper into a folder and returns its path."""
    source, target = Path(__file__).with_name("fsyncsim.c"), folder / "fsyncsim.so"
    subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", str(target), str(source), "-ldl"], check=True)
    target.chmod(0o755)
    return target
