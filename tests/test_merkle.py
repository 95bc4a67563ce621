"""The Merkle tree: against a second, recursive reading of RFC 6962, and against its published values."""

from __future__ import annotations

from hashlib import sha256

import pytest

from refold_replay import merkle

LEAVES = [merkle.leaf(bytes([number])) for number in range(20)]


def by_the_letter(leaves: list[bytes]) -> bytes:
    """The tree's hash as RFC 6962, 2.1, says it: split at the largest power of two below n."""
    if not leaves:
        return sha256(b"").digest()
    if len(leaves) == 1:
        return leaves[0]
    half = 1
    while half * 2 < len(leaves):
        half *= 2
    return sha256(b"\1" + by_the_letter(leaves[:half]) + by_the_letter(leaves[half:])).digest()


def test_published_values() -> None:
    """Roots of the entries that Certificate Transparency's own tests use."""
    entries = ["", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f"]
    leaves = [merkle.leaf(bytes.fromhex(entry)) for entry in entries]
    assert merkle.root([]).hex() == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert merkle.root(leaves[:1]).hex() == "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d"
    assert merkle.root(leaves).hex() == "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328"


@pytest.mark.parametrize("size", range(20))
def test_root_is_that_of_the_rfc(size: int) -> None:
    """Every size gives the root the definition gives."""
    assert merkle.root(LEAVES[:size]) == by_the_letter(LEAVES[:size])


@pytest.mark.parametrize("size", range(1, 20))
def test_each_leaf_can_be_proven(size: int) -> None:
    """The path of each leaf leads to the root; of no other leaf, at no other place, in no tree of another height."""
    leaves = LEAVES[:size]
    for index in range(size):
        path = merkle.path(leaves, index)
        assert len(path) <= max(1, size - 1).bit_length()
        assert merkle.root_of(leaves[index], index, size, path) == merkle.root(leaves)
        assert merkle.root_of(LEAVES[19], index, size, path) != merkle.root(leaves)
        for other in range(size):
            if other != index:
                assert merkle.root_of(leaves[index], other, size, path) != merkle.root(leaves)


def test_what_fits_no_tree() -> None:
    """A path too short or too long, a place outside, an absurd size: no root, and no endless work."""
    path = merkle.path(LEAVES, 3)
    assert merkle.root_of(LEAVES[3], 3, 20, path[:-1]) is None
    assert merkle.root_of(LEAVES[3], 3, 20, [*path, path[0]]) is None
    assert merkle.root_of(LEAVES[3], 20, 20, path) is None
    assert merkle.root_of(LEAVES[3], -1, 20, path) is None
    assert merkle.root_of(LEAVES[3], 3, 1 << 500, path) is None
    assert merkle.root_of(LEAVES[3], 0, 1, [LEAVES[0]] * 100) is None
    with pytest.raises(IndexError):
        merkle.path(LEAVES, 20)


def test_a_node_is_no_leaf() -> None:
    """Leaves and nodes are hashed apart: two leaves' node, given as a leaf, does not make the same root."""
    data = LEAVES[0] + LEAVES[1]
    assert merkle.leaf(data) != merkle.node(LEAVES[0], LEAVES[1])
