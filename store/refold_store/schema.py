"""The state schema: all keys of a run with owner, type, reducer and options, compiled.

Rules
- A name means the key declared by exactly that name, else the one family it belongs to, else nothing.
- Each key has one owner: an agent, or a group, whose members write it. Groups hold agents, not groups.
- The declaration is canonical JSON; its SHA-256 is the schema's fingerprint. A schema can be rebuilt from it: types
  then are JSON Schema (typed reads give JSON), reducers are found by name.
- Mistakes are ConfigErrors that name the place; several of one kind are named together.
"""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from refold_store.codecs import JsonCodec
from refold_store.comparable import Convert, converter
from refold_store.conditions import Condition, compile_condition
from refold_store.errors import ConditionError, ConfigError, UnknownKey
from refold_store.families import Family
from refold_store.jsontext import encode
from refold_store.keys import Everyone, Key, Options
from refold_store.names import check_name
from refold_store.reducers import last, recorded
from refold_store.updates import json_key

FORM = 1
"""Version of the stored declaration's form."""

_REMEMBERED = 65_536
"""Names whose key is remembered (members of families): a bound, so that endless new names cannot fill the memory."""


class Invariant:
    """A rule across keys, as a condition over their values."""

    __slots__ = ("_condition", "_convert", "expression", "keys", "name")

    def __init__(self, name: str, condition: Condition, converters: Mapping[str, Convert | None]) -> None:
        self.name = name
        self._convert = {key: convert for key, convert in converters.items() if convert is not None}
        self.expression = condition.expression
        self.keys = condition.names
        self._condition = condition

    def check(self, values: Mapping[str, object]) -> bool | None:
        """Whether the rule holds for these stored documents; None if one it needs is missing.

        Dates, times, durations and decimals are compared as what they are. Raises ConditionFailed where a comparison
        has no meaning.
        """
        if not self._convert:
            return self._condition(values)
        convert = self._convert
        return self._condition(
            {name: convert[name](value) if name in convert else value for name, value in values.items()}
        )

    def __repr__(self) -> str:
        return f"Invariant({self.name!r}, {self.expression!r})"


class Schema:
    """A compiled state schema."""

    __slots__ = ("_by_key", "_exact", "_families", "_found", "_longest", "declaration_text", "fingerprint", "groups",
                 "invariants", "keys")  # fmt: skip

    def __init__(
        self,
        keys: Iterable[Key],
        *,
        groups: Mapping[str, Sequence[str]] | None = None,
        invariants: Mapping[str, str] | None = None,
        checked: bool = False,
    ) -> None:
        """`checked`: the families are known not to overlap, because the declaration was stored."""
        self.keys = tuple(keys)
        self.groups = {name: tuple(members) for name, members in (groups or {}).items()}
        self._exact = {key.name: key for key in self.keys if key.family is None}
        self._families: dict[str, list[tuple[Family, Key]]] = {}
        for key in self.keys:
            if key.family is not None:
                self._families.setdefault(key.family.prefix, []).append((key.family, key))
        self._longest = max(map(len, self._families), default=0)
        self._found: dict[str, Key] = dict(self._exact)
        if not checked:
            _check_names(self.keys)
            _check_families(self._families)
        self.invariants = tuple(self._invariant(name, text) for name, text in (invariants or {}).items())
        self._by_key: dict[str, tuple[Invariant, ...]] = {}
        self.declaration_text = encode(self.declaration())
        self.fingerprint = hashlib.sha256(self.declaration_text).hexdigest()

    def key(self, name: str) -> Key:
        """The key that `name` means. Raises UnknownKey with near names."""
        try:
            found = self._found.get(name)
        except TypeError:
            found = None  # no text at all: `_find` says so
        return found if found is not None else self._find(name)

    def _find(self, name: str) -> Key:
        check_name("key", name)
        if "{" in name and any(name == key.name for key in self.keys):
            raise UnknownKey(key=name, hint="this is the name of a family; fill in what stands in braces")
        for end in range(min(len(name), self._longest) + 1):
            for family, key in self._families.get(name[:end], ()):
                if family.match(name) is not None:
                    if len(self._found) >= _REMEMBERED:
                        self._found = dict(self._exact)
                    self._found[name] = key
                    return key
        near = difflib.get_close_matches(name[:200], [key.name for key in self.keys], n=3, cutoff=0.6)
        inside = f"{name}/"
        near += [
            key.name
            for key in self.keys
            if key.family is not None and key.name.startswith(inside) and key.name not in near
        ]
        raise UnknownKey(key=name, near=near)

    def __contains__(self, name: object) -> bool:
        try:
            return isinstance(name, str) and self.key(name) is not None
        except UnknownKey:
            return False

    def __iter__(self) -> Iterator[str]:
        return (key.name for key in self.keys)

    def __len__(self) -> int:
        return len(self.keys)

    def invariants_for(self, names: Iterable[str]) -> tuple[Invariant, ...]:
        """The invariants that speak of any of these keys."""
        if not self.invariants:
            return ()
        changed = set(names)
        return tuple(invariant for invariant in self.invariants if not changed.isdisjoint(invariant.keys))

    def _invariant(self, name: str, expression: str) -> Invariant:
        where = f"invariants.{name}"
        try:
            condition = compile_condition(expression, known=self)
        except ConditionError as error:
            raise ConfigError(str(error), where=where) from error
        scopes = {self.key(key).scope for key in condition.names}
        if len(scopes) > 1:
            raise ConfigError(
                f"{expression!r} speaks of keys in the scopes {', '.join(sorted(scopes))}: an invariant lies in one",
                where=where,
            )
        return Invariant(name, condition, {key: converter(self.key(key).schema) for key in condition.names})

    def declaration(self) -> dict[str, Any]:
        """The schema as plain JSON, as stored in the log."""
        return {
            "form": FORM,
            "keys": {key.name: key.declaration() for key in self.keys},
            "groups": {name: list(members) for name, members in self.groups.items()},
            "invariants": {invariant.name: invariant.expression for invariant in self.invariants},
        }

    @staticmethod
    def from_declaration(declaration: Mapping[str, Any]) -> Schema:
        """The schema a stored declaration describes."""
        if declaration.get("form") != FORM:
            raise ConfigError(
                f"the stored declaration has form {declaration.get('form')!r}, this refold reads {FORM}: "
                "use the version that wrote it or a newer one"
            )
        if declaration.get("open"):
            return Schema.open()
        groups = {name: tuple(members) for name, members in declaration["groups"].items()}
        keys = [_recorded_key(name, entry, groups) for name, entry in declaration["keys"].items()]
        return Schema(keys, groups=groups, invariants=declaration["invariants"], checked=True)

    @staticmethod
    def open() -> Schema:
        """The open schema: anybody may write any key as plain JSON. Used only when asked for."""
        return _OpenSchema()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Schema) and self.fingerprint == other.fingerprint

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def __repr__(self) -> str:
        return f"<Schema {self.fingerprint[:12]}: {len(self.keys)} keys>"


class _OpenSchema(Schema):
    __slots__ = ("_any",)

    def __init__(self) -> None:
        self._any = Key("{name*}", owner="anyone", actors=Everyone(), codec=JsonCodec({}), reducer=last, family=True)
        super().__init__([self._any])

    def _find(self, name: str) -> Key:
        return self._any

    def declaration(self) -> dict[str, Any]:
        return {**super().declaration(), "open": True}


def actors_of(owner: str, groups: Mapping[str, Sequence[str]]) -> frozenset[str]:
    """Who writes a key of this owner: a group's members, else the agent itself."""
    return frozenset(groups.get(owner, (owner,)))


def _recorded_key(name: str, entry: Mapping[str, Any], groups: Mapping[str, Sequence[str]]) -> Key:
    options = Options(
        basis_required=entry.get("basis_required", False),
        scope=entry.get("scope", "run"),
        sensitive=entry.get("sensitive", False),
        readers=tuple(entry["readers"]) if "readers" in entry else None,
        max_bytes=entry.get("max_bytes", Options().max_bytes),
    )
    return json_key(
        name,
        schema=entry["type"],
        owner=entry["owner"],
        actors=actors_of(entry["owner"], groups),
        reducer=recorded(entry["reducer"]),
        options=options,
        family=entry.get("family", False),
        stores=entry["stores"],
        formats=not entry.get("typed", False),
    )


def _check_names(keys: Sequence[Key]) -> None:
    seen: set[str] = set()
    for key in keys:
        check_name("key", key.name)
        if key.name in seen:
            raise ConfigError(f"key {key.name!r} is declared twice", where=f"keys.{key.name}")
        seen.add(key.name)


def _check_families(families: Mapping[str, Sequence[tuple[Family, Key]]]) -> None:
    """Raises ConfigError if two overlap. Only families of which one's literal start begins the other's can."""
    open_ones: list[str] = []
    for prefix in sorted(families):
        while open_ones and not prefix.startswith(open_ones[-1]):
            open_ones.pop()
        open_ones.append(prefix)
        here = families[prefix]
        for position, (family, _key) in enumerate(here):
            shorter = (other for start in open_ones[:-1] for other, _ in families[start])
            for other in (*shorter, *(one for one, _ in here[:position])):
                if family.overlaps(other):
                    raise ConfigError(
                        f"the families {other.template!r} and {family.template!r} overlap: some keys belong to both; "
                        "give one of them a literal part of its own",
                        where=f"keys.{family.template}",
                    )


def check_groups(groups: Mapping[str, Sequence[str]], *, agents: Iterable[str] | None = None) -> None:
    """Raises ConfigError for a group that is also an agent, an empty group, a member named twice."""
    members = {member: name for name, inside in groups.items() for member in inside}
    declared = set(agents or ())
    for name, inside in groups.items():
        where = f"groups.{name}"
        check_name("group", name)
        if not inside:
            raise ConfigError("the group has no members: nobody could write its keys", where=where)
        if len(set(inside)) < len(inside):
            raise ConfigError("the group names a member twice", where=where)
        if name in declared or name in members:
            by = f"a member of the group {members[name]!r}" if name in members else "a declared agent"
            raise ConfigError(f"{name!r} is a group and also {by}: give the group a name of its own", where=where)
        for member in inside:
            check_name("agent", member)
