"""Where a version went, or came from, by way of branches: copies of shared keys, and merges. As notes for people.

Rules of this module
- A trace stays in one log (and in its forks). A branch is a log of its own: a note names it, its key and version, so
  that the same question can be asked there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from refold_store.branching import branches_of, parent_of
from refold_store.run import Run

NAMES_MAX = 10
"""Branches named in one note."""


def came_from(refs: dict[str, Any], key: str) -> list[str]:
    """Where the write with these refs came from, if it was not made in its own run."""
    version = refs.get("version")
    if isinstance(branch := refs.get("branch"), str):
        return [f"it was merged from branch {branch!r}, where it is {key}@{version}: what it rests on is told there"]
    if refs.get("initial") is True and isinstance(parent := refs.get("parent"), str):
        return [f"it is a copy of {key}@{version} of {parent!r}: what that rests on is told there"]
    return []


def went_to(run: Run, key: str, version: int) -> list[str]:
    """Branches that began with a copy of a version, and the version of the parent it became by a merge."""
    copies = [one.branch for one in branches_of(run).values() if one.shared.get(key) == version]
    notes = []
    if copies:
        left = len(copies) - NAMES_MAX
        named = ", ".join(map(repr, copies[:NAMES_MAX])) + (f" and {left:,} more" if left > 0 else "")
        notes.append(f"branches began with a copy of it, and what they made of it is told there: {named}")
    parent = parent_of(run)
    if parent is not None:
        for merged in _merged(run.store.run(parent, run.tenant), run.name, key, version):
            notes.append(f"it was merged into {parent!r} as {key}@{merged}: what that did is told there")
    return notes


def _merged(parent: Run, branch: str, key: str, version: int) -> Iterator[int]:
    for one in parent.history(key):
        refs = one.refs
        if refs.get("branch") == branch and refs.get("version") == version:
            yield one.version
