"""A Merkle tree as RFC 6962 defines it: one hash for a list, and a short proof that one entry is in it.

Rules of this module
- A leaf is SHA-256(0x00 ‖ data), a node SHA-256(0x01 ‖ left ‖ right): no node can be passed off as a leaf.
- A node without a neighbour is taken up as it is, never doubled.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

EMPTY = sha256(b"").digest()
"""The root of no leaves."""
PATH_MAX = 64
"""Hashes of a path at most: more leaves than 2^64 nobody has."""


def leaf(data: bytes) -> bytes:
    """The hash of one entry."""
    return sha256(b"\0" + data).digest()


def node(left: bytes, right: bytes) -> bytes:
    """The hash of two neighbours."""
    return sha256(b"\1" + left + right).digest()


def root(leaves: Sequence[bytes]) -> bytes:
    """The hash of all leaves (given as `leaf` hashes)."""
    level = list(leaves)
    while len(level) > 1:
        level = _above(level)
    return level[0] if level else EMPTY


def path(leaves: Sequence[bytes], index: int) -> list[bytes]:
    """The neighbours on the way from one leaf up to the root. Raises IndexError if there is no such leaf."""
    if not 0 <= index < len(leaves):
        raise IndexError(f"there is no leaf {index} of {len(leaves)}")
    found, level = [], list(leaves)
    while len(level) > 1:
        beside = index ^ 1
        if beside < len(level):
            found.append(level[beside])
        level, index = _above(level), index // 2
    return found


def root_of(hashed: bytes, index: int, size: int, neighbours: Sequence[bytes]) -> bytes | None:
    """The root that a leaf at a place among `size` and its path lead to; None if they fit no tree."""
    if not 0 <= index < size or len(neighbours) > PATH_MAX:
        return None
    last, rest = size - 1, list(neighbours)[::-1]
    while last > 0:
        if index % 2 or index < last:
            if not rest:
                return None
            beside = rest.pop()
            hashed = node(beside, hashed) if index % 2 else node(hashed, beside)
        index, last = index // 2, last // 2
    return None if rest else hashed


def _above(level: list[bytes]) -> list[bytes]:
    made = [node(level[at], level[at + 1]) for at in range(0, len(level) - 1, 2)]
    return made + level[-1:] if len(level) % 2 else made
