"""From what was declared to a compiled schema: the part that Python classes and YAML share.

Rules
- Every key without an owner is named, all in one error. A key with two owners or two reducers is an error, also when
  the second comes from `owners=` or `reducers=`.
- A reducer of the user's is probed for purity here, on values of its key's kind.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from refold_store.errors import ConfigError
from refold_store.families import is_template
from refold_store.keys import MAX_BYTES_LIMIT, SCOPES, Key, Options, Upcaster
from refold_store.names import check_name
from refold_store.reducers import Reducer, by_key, from_function, last, reducer
from refold_store.schema import Schema, actors_of, check_groups

T = TypeVar("T")

Place = Callable[[tuple[str, ...]], str]
"""Names a place in the source: `claims.yaml:12: keys.routing.owner`, or `ClaimState.routing`."""


class Make(Protocol):
    """Builds the key of one type."""

    def __call__(
        self,
        name: str,
        *,
        owner: str,
        actors: frozenset[str],
        reducer: Reducer,
        options: Options,
        family: bool,
        upcaster: Upcaster | None,
    ) -> Key: ...


class Declared:
    """One key as declared, before owners, groups and reducers are joined to it."""

    __slots__ = ("family", "kind", "make", "name", "options", "owner", "reducer", "where")

    def __init__(self, name: str, *, where: str, make: Make, kind: str | None) -> None:
        self.name = name
        self.where = where
        self.make = make
        self.kind = kind
        self.owner: str | None = None
        self.reducer: object = None
        self.family: bool | None = None
        self.options: dict[str, Any] = {}

    def set_owner(self, owner: object, where: str) -> None:
        """Declare the owner. A second one is an error."""
        if not isinstance(owner, str):
            raise ConfigError(
                f"key {self.name!r} has exactly one owner, not {owner!r}; for several agents declare a group",
                where=where,
            )
        if self.owner is not None:
            raise ConfigError(
                f"key {self.name!r} has two owners, {self.owner!r} and {owner!r}; declare a group that holds both",
                where=where,
            )
        self.owner = check_name("owner", owner)

    def set_reducer(self, source: object, where: str) -> None:
        """Declare the reducer. A second one is an error."""
        if self.reducer is not None:
            raise ConfigError(f"key {self.name!r} has a second reducer", where=where)
        self.reducer = source

    def set_option(self, option: str, value: object, where: str) -> None:
        """Declare an option. A second time is an error."""
        if option in self.options:
            raise ConfigError(f"key {self.name!r} declares {option} twice", where=where)
        self.options[option] = _checked_option(option, value, where)


def _checked_option(option: str, value: Any, where: str) -> object:
    if option in ("basis_required", "sensitive") and isinstance(value, bool):
        return value
    if option == "scope" and value in SCOPES:
        return value
    if (
        option == "max_bytes"
        and isinstance(value, int)
        and not isinstance(value, bool)
        and 0 < value <= MAX_BYTES_LIMIT
    ):
        return value
    if option == "readers" and isinstance(value, (list, tuple)) and all(isinstance(name, str) for name in value):
        return tuple(value)
    wanted = {
        "basis_required": "true or false",
        "sensitive": "true or false",
        "scope": f"one of {', '.join(SCOPES)}",
        "max_bytes": f"a number of bytes from 1 to {MAX_BYTES_LIMIT}",
        "readers": "a list of agent names",
    }
    raise ConfigError(f"{option} must be {wanted[option]}, not {value!r}", where=where)


def assemble(
    declared: Sequence[Declared],
    *,
    place: Place,
    owners: Mapping[str, Any] | None = None,
    groups: Mapping[str, Any] | None = None,
    reducers: Mapping[str, Any] | None = None,
    invariants: Mapping[str, Any] | None = None,
    upcasters: Mapping[str, Upcaster] | None = None,
    agents: Iterable[str] | None = None,
) -> Schema:
    """The compiled schema. Raises ConfigError for every mistake the rules above name."""
    by_name = {one.name: one for one in declared}
    for section, given in (("owners", owners), ("reducers", reducers), ("upcasters", upcasters)):
        _check_known(section, given, by_name, place)
    for name, owner in (owners or {}).items():
        by_name[name].set_owner(owner, place(("owners", name)))
    for name, source in (reducers or {}).items():
        by_name[name].set_reducer(source, place(("reducers", name)))
    members = _groups(groups or {}, place)
    known = None if agents is None else list(agents)
    _placed(place, ("groups",), lambda: check_groups(members, agents=known))
    _check_owners(declared, members, known)
    keys = [_key(one, members, (upcasters or {}).get(one.name)) for one in declared]
    rules = {name: _rule(name, text, place) for name, text in (invariants or {}).items()}
    return _placed(place, (), lambda: Schema(keys, groups=members, invariants=rules))


def _placed(place: Place, path: tuple[str, ...], step: Callable[[], T]) -> T:
    """Run one step; give its ConfigError the source's place."""
    try:
        return step()
    except ConfigError as error:
        inner = tuple(error.where.split(".", 1)) if error.where else path
        where = place(inner)
        message = str(error).removeprefix(f"{error.where}: ") if error.where else str(error)
        raise ConfigError(message, where=where) from error


def _check_known(section: str, given: Mapping[str, Any] | None, keys: Mapping[str, Any], place: Place) -> None:
    for name in given or {}:
        if name not in keys:
            near = difflib.get_close_matches(str(name), list(keys), n=3)
            hint = f"; did you mean {', '.join(map(repr, near))}?" if near else ""
            raise ConfigError(f"{section} names {name!r}, which is no key{hint}", where=place((section, str(name))))


def _groups(groups: Mapping[str, Any], place: Place) -> dict[str, tuple[str, ...]]:
    for name, members in groups.items():
        if not isinstance(members, (list, tuple)) or not all(isinstance(member, str) for member in members):
            raise ConfigError(
                f"group {name!r} must be a list of agent names, not {members!r}", where=place(("groups", str(name)))
            )
    return {name: tuple(members) for name, members in groups.items()}


def _check_owners(
    declared: Sequence[Declared], groups: Mapping[str, Sequence[str]], agents: Sequence[str] | None
) -> None:
    missing = [one for one in declared if one.owner is None]
    if missing:
        names = ", ".join(repr(one.name) for one in missing)
        raise ConfigError(
            f"{len(missing)} keys have no owner: {names}; give each an Owner(...) or an entry in `owners`"
            if len(missing) > 1
            else f"key {names} has no owner: give it an Owner(...) or an entry in `owners`",
            where=missing[0].where,
        )
    if agents is not None:
        for one in declared:
            if one.owner not in groups and one.owner not in agents:
                near = difflib.get_close_matches(str(one.owner), [*groups, *agents], n=3)
                hint = f"; did you mean {', '.join(map(repr, near))}?" if near else ""
                raise ConfigError(
                    f"the owner {one.owner!r} of {one.name!r} is neither an agent nor a group{hint}", where=one.where
                )


def _key(one: Declared, groups: Mapping[str, Sequence[str]], upcaster: Upcaster | None) -> Key:
    owner = one.owner
    assert owner is not None  # _check_owners has seen to it
    try:
        chosen = _probed(last if one.reducer is None else reducer(one.reducer), one.kind)
        return one.make(
            one.name,
            owner=owner,
            actors=actors_of(owner, groups),
            reducer=chosen,
            options=Options(**one.options),
            family=is_template(one.name) if one.family is None else one.family,
            upcaster=upcaster,
        )
    except ConfigError as error:
        if error.where is not None:
            raise
        raise ConfigError(f"key {one.name!r}: {error}", where=one.where) from error


def _probed(chosen: Reducer, kind: str | None) -> Reducer:
    if chosen.fields:
        return by_key({name: _probed(field, None) for name, field in chosen.fields.items()})
    return chosen if chosen.function is None else from_function(chosen.name, chosen.function, kind)


def _rule(name: str, text: object, place: Place) -> str:
    if not isinstance(text, str):
        raise ConfigError(
            f"invariant {name!r} must be a condition in text, not {text!r}", where=place(("invariants", name))
        )
    return text
