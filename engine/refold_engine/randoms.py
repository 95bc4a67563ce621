"""A stream of random bytes from one draw of a port: so that threads side by side do not race for the port."""

from __future__ import annotations

import threading
from hashlib import sha256

from refold_engine.ports import Random

SEED_BYTES = 32
"""Drawn from the port for each stream: what SHA-256 can take up."""


class Stream:
    """A Random of its own. What it gives depends on its seed and on what was asked of it before, and nothing else."""

    def __init__(self, random: Random) -> None:
        self._seed = random.bytes(SEED_BYTES)
        self._block = 0
        self._lock = threading.Lock()

    def bytes(self, size: int) -> bytes:
        """So many random bytes."""
        found = b""
        with self._lock:
            while len(found) < size:
                found += sha256(self._seed + self._block.to_bytes(8)).digest()
                self._block += 1
        return found[:size]
