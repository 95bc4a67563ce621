"""A state schema drawn up from recorded runs: keys, families, owners, groups, types; every guess is marked.

Rules of this module
- Keys that share what stands before their first "/" become one family `prefix/{id}` when there are several.
- A key's owner is the agent its writes name. It is a group where others act for it, or where several agents write.
- A type fits every value seen and asks for no more than all of them have in common (see `shapes`).
- The same files give the same schema, to the byte.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from refold_replay.seeds import Seed, read_seed
from refold_replay.shapes import Shape
from refold_replay.sources import PROGRESS_EVERY, Progress, look_over, read_runs
from refold_store.declare import compile_schema
from refold_store.errors import NameInvalid
from refold_store.families import is_template
from refold_store.names import check_name
from refold_store.schema import Schema

NOBODY = "unknown"
"""The owner of a key that the files only read."""
_ROOM = "_" * 256
"""Room a group's name leaves for its ending, and for what tells it from others."""
_LONGEST = "/{id*}"
"""What a family's name has after its prefix, at most."""
_WIDE = 1_000_000
"""Columns of a YAML line: no value is folded."""


@dataclass(slots=True)
class Traits:
    """What the files say of one key."""

    shape: Shape = field(default_factory=Shape)
    owners: set[str] = field(default_factory=set)
    """The agents its writes name as the one acted for."""
    actors: set[str] = field(default_factory=set)
    writes: int = 0

    def merge(self, other: Traits) -> None:
        """Take in who wrote another key of the same family."""
        self.owners |= other.owners
        self.actors |= other.actors
        self.writes += other.writes


@dataclass(frozen=True, slots=True)
class Inferred:
    """A schema and where it came from."""

    document: dict[str, Any]
    text: str
    """YAML, with a comment at each guess."""
    schema: Schema
    lines: int
    guesses: int


def infer_schema(
    files: Sequence[str | Path],
    *,
    seed: str | Path | Seed | None = None,
    progress: Progress | None = None,
) -> Inferred:
    """Draw up a schema from event files. Faulty lines are passed over: the import names them."""
    total = look_over(files).lines if progress is not None else 0
    found = _Finder()
    if seed is not None:
        found.take_seed(seed if isinstance(seed, Seed) else read_seed(seed))
    lines = 0
    for run in read_runs(files):
        for _number, document in run.lines:
            found.take(document)
            lines += 1
            if progress is not None and not lines % PROGRESS_EVERY:
                progress(lines, total, run.name)
    if progress is not None:
        progress(lines, total, "")
    return found.result(lines)


class _Finder:
    """Collects traits by key or, once a prefix has several members, by family."""

    def __init__(self) -> None:
        self.traits: dict[str, Traits] = {}
        self.shapes: dict[str, Shape] = {}
        self.members: dict[str, int] = {}
        self.deep: set[str] = set()

    def take(self, document: dict[str, Any]) -> None:
        """Learn from one line."""
        key: Any = document.get("key")
        agent: Any = document.get("agent")
        actor = agent if document.get("on_behalf_of") is None else document["on_behalf_of"]
        if document.get("kind") not in ("read", "write") or not all(map(_is_name, (key, agent, actor))):
            return
        traits = self._of(key)
        if document["kind"] == "read":
            return
        traits.owners.add(agent)
        traits.actors.add(actor)
        traits.writes += 1
        if not document.get("deleted"):
            self._shape(key, traits).add(document.get("value"))

    def take_seed(self, seed: Seed) -> None:
        """Learn from the values that stand before a run."""
        for key, entry in seed.entries.items():
            traits = self._of(key)
            if entry.owner is not None:
                traits.owners.add(entry.owner)
            self._shape(key, traits).add(entry.value())

    def _of(self, key: str) -> Traits:
        found = self.traits.get(key)
        if found is None:
            found = self.traits[key] = Traits()
            prefix = _prefix(key)
            if prefix is not None:
                self.members[prefix] = self.members.get(prefix, 0) + 1
                if "/" in key[len(prefix) :]:
                    self.deep.add(prefix)
        return found

    def _shape(self, key: str, traits: Traits) -> Shape:
        """Members of one prefix share a shape, so that memory grows with prefixes and not with keys."""
        prefix = _prefix(key)
        return traits.shape if prefix is None else self.shapes.setdefault(prefix, Shape())

    def result(self, lines: int) -> Inferred:
        """The schema of all that was seen."""
        groups: dict[str, list[str]] = {}
        keys: dict[str, Any] = {}
        notes: dict[str, list[str]] = {}
        declared = self._declared()
        agents = {name for traits in self.traits.values() for name in traits.actors}
        members_of = self._members_of_owners()
        for name in sorted(declared):
            traits, members = declared[name]
            owner, note = _owner(name, traits, groups, agents, members_of)
            entry: dict[str, Any] = {"owner": owner, "type": traits.shape.schema()}
            if is_template(name) and not members:
                entry["family"] = False
            keys[name] = entry
            notes[name] = [note, _type_note(traits.shape)]
            if members:
                notes[name].append(f"family: {members} keys share what stands before the slash")
        document: dict[str, Any] = {"keys": keys}
        if groups:
            document["groups"] = groups
        text = _text(document, notes)
        return Inferred(document, text, compile_schema(document), lines, sum(map(len, notes.values())) + len(groups))

    def _declared(self) -> dict[str, tuple[Traits, int]]:
        """Name to (traits, members): families where a prefix has several members, else the keys themselves."""
        found: dict[str, tuple[Traits, int]] = {}
        for key, traits in self.traits.items():
            prefix = _prefix(key)
            if prefix is None:
                found[key] = (traits, 0)
                continue
            traits.shape = self.shapes.setdefault(prefix, Shape())
            if self.members[prefix] < 2:
                found[key] = (traits, 0)
                continue
            name = f"{prefix}{{id*}}" if prefix in self.deep else f"{prefix}{{id}}"
            family = found.setdefault(name, (Traits(traits.shape), self.members[prefix]))
            family[0].merge(traits)
        return found

    def _members_of_owners(self) -> dict[str, set[str]]:
        """Who acts for each agent, over all keys that name it alone."""
        found: dict[str, set[str]] = {}
        for traits in self.traits.values():
            if len(traits.owners) == 1:
                found.setdefault(next(iter(traits.owners)), set()).update(traits.actors)
        return found


def _is_name(given: object) -> bool:
    """Whether a line can be stored by this name."""
    try:
        check_name("key", given)
    except NameInvalid:
        return False
    return True


def _prefix(key: str) -> str | None:
    """What stands before the first slash, with it; None if the key cannot be a member of a family."""
    head, slash, rest = key.partition("/")
    whole = slash and rest and not is_template(head) and "{" not in head and _is_name(head + _LONGEST)
    return head + slash if whole else None


def _owner(
    name: str, traits: Traits, groups: dict[str, list[str]], agents: set[str], members_of: dict[str, set[str]]
) -> tuple[str, str]:
    """(owner, why), adding the group it stands for."""
    if not traits.owners:
        return NOBODY, "owner: the files only read it"
    if len(traits.owners) == 1:
        owner = next(iter(traits.owners))
        members = members_of[owner] if traits.actors else set()
        if members <= {owner}:
            return (
                owner,
                f"owner: the one agent its {traits.writes} writes name"
                if traits.writes
                else "owner: the seed names it",
            )
        group = owner
        if owner in agents:
            group = f"{owner}_group" if _is_name(owner + _ROOM) else "group"
        why = f"owner: its writes name {owner!r}, others act for it"
    else:
        members = traits.actors
        if not members:
            return min(traits.owners), f"owner: one of {len(traits.owners)} that the seed names"
        prefix = name.partition("/")[0]
        group = f"{prefix}_writers" if _is_name(prefix + _ROOM) else "writers"
        why = f"owner: {len(traits.owners)} agents write it"
    wanted = sorted(members)
    while group in agents or groups.get(group, wanted) != wanted:
        group += "_"
    groups[group] = wanted
    return group, why


def _type_note(shape: Shape) -> str:
    return f"type: fits the {shape.count} values seen" if shape.count else "type: no value was seen"


def _text(document: dict[str, Any], notes: dict[str, list[str]]) -> str:
    return "\n".join(_lines(document, notes)) + "\n"


def _lines(document: dict[str, Any], notes: dict[str, list[str]]) -> Iterator[str]:
    yield "# Drawn up from recorded runs. Each comment marks a guess: check it, correct it, remove the comment."
    yield "keys:" if document["keys"] else "keys: {}"
    for name, entry in document["keys"].items():
        for note in notes[name]:
            yield f"  # {_one_line(note)}"
        yield from _dumped({name: entry})
    if "groups" in document:
        yield "groups:"
        for name, members in document["groups"].items():
            yield f"  # group: the {len(members)} that were seen to write"
            yield from _dumped({name: members})


def _dumped(entry: dict[str, Any]) -> list[str]:
    text = yaml.safe_dump(entry, sort_keys=False, allow_unicode=True, default_flow_style=False, width=_WIDE)
    return ["  " + line for line in text.splitlines()]


def _one_line(text: str) -> str:
    """A comment ends where its line ends: whatever breaks lines or hides is escaped."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
