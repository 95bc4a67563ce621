"""The state of a configuration: its keys, their owners, groups and reducers, compiled by the store.

Rules of this module
- Without `owners:` (and without an owner in the schema itself) a group of all agents owns every key: a warning.
- Without `state_schema:` any key may be written, as an open family; keys named in `owners:` and `reducers:` are
  declared beside it: a warning.
- A workflow may own keys: then its tasks' agents form a group of its name.
- What is found wrong in a section is left out of what the store gets, so that the rest is checked, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, NotRequired, Required, get_args, get_origin, get_type_hints

from pydantic import BaseModel

from refold_engine.config import ENGINE_NAMES
from refold_engine.configfile import ConfigFile
from refold_engine.findings import Findings, did_you_mean
from refold_engine.importing import import_object
from refold_engine.memorykey import with_memory
from refold_store.conditions_hints import FOREIGN_NAMES
from refold_store.declare import Option, Owner, compile_schema
from refold_store.errors import ConfigError, NameInvalid
from refold_store.reducers import BUILT_IN
from refold_store.reducers import reducer as as_reducer
from refold_store.schema import Schema

ALL_AGENTS = "all_agents"
"""Name of the group of all agents; underscores are added while an agent or group has it."""
OPEN_FAMILY = "{key}"
_ACCUMULATED = {"append": "array", "union": "array", "merge": "object", "deep_merge": "object", "add": "number"}
"""Types of keys of which no more than the reducer is said."""


@dataclass(slots=True)
class _Keys:
    """The keys of a schema before it is compiled: what to hand to the store, and the owners it names itself."""

    source: Any
    """A class, or a mapping of inline keys."""
    owners: dict[str, str | None]


@dataclass(slots=True)
class _Sections:
    owners: dict[str, str] = field(default_factory=dict)
    groups: dict[str, tuple[str, ...]] = field(default_factory=dict)
    reducers: dict[str, Any] = field(default_factory=dict)


class KnownKeys:
    """The names conditions may use: the keys of a schema, and what the engine gives."""

    def __init__(self, schema: Schema | None) -> None:
        self._schema = schema

    def __contains__(self, name: object) -> bool:
        if name in ENGINE_NAMES or self._schema is None:
            return True
        if isinstance(name, str) and name.lower() in FOREIGN_NAMES:
            return any(name == key.name for key in self._schema.keys)  # an open family makes no key of `true`
        try:
            return name in self._schema
        except NameInvalid:
            return False

    def __iter__(self) -> Iterator[str]:
        yield from () if self._schema is None else (key.name for key in self._schema.keys if key.family is None)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def compile_state(file: ConfigFile, findings: Findings) -> Schema | None:
    """The compiled schema, or None after telling why there is none."""
    reducers = _reducers(file, findings)
    keys = _open(file, reducers) if file.state_schema is None else _declared(file.state_schema, findings)
    if keys is None:
        return None
    _check_names(keys, findings)
    sections = _Sections(reducers=_of_keys("reducers", reducers, keys, findings))
    sections.groups = _groups(file, findings)
    sections.owners = _owners(file, keys, sections.groups, findings)
    schema = _compiled(file, keys, sections, findings)
    return None if schema is None else with_memory(schema, file, findings, ALL_AGENTS)


# -- keys ------------------------------------------------------------------------------------------------------------


def _open(file: ConfigFile, reducers: Mapping[str, Any]) -> _Keys:
    """Any key, and those that `owners` and `reducers` name."""
    source: dict[str, Any] = {OPEN_FAMILY: "any"}
    for name in dict.fromkeys([*(file.owners or ()), *reducers]):
        reducer = reducers.get(name)
        source[name] = _ACCUMULATED.get(reducer, "any") if isinstance(reducer, str) else "any"
    return _Keys(source, dict.fromkeys(source))


def _declared(given: str | dict[str, Any], findings: Findings) -> _Keys | None:
    if isinstance(given, dict):
        return _inline(given, findings)
    try:
        found = import_object(given)
        if not isinstance(found, type):
            raise ConfigError(f"{given!r} is {type(found).__name__}, not a class")
        return _Keys(found, _owners_in(found))
    except ConfigError as error:
        findings.error(("state_schema",), str(error))
    except NameError as error:
        findings.error(("state_schema",), f"an annotation of {given!r} cannot be resolved: {error}")
    return None


def _inline(given: dict[str, Any], findings: Findings) -> _Keys:
    """Inline keys; each is compiled alone first, so that every wrong type is told."""
    source: dict[str, Any] = {}
    for name, spec in given.items():
        alone = dict(spec) if isinstance(spec, Mapping) and "owner" in spec else spec
        owners = None if alone is not spec else {name: "anyone"}
        try:
            compile_schema({"state_schema": {name: alone}}, owners=owners)
        except (ConfigError, NameInvalid) as error:
            findings.error(("state_schema", name), _without_place(error))
        else:
            source[name] = spec
    owners_in = {name: spec["owner"] if isinstance(spec, Mapping) and "owner" in spec else None
                 for name, spec in source.items()}  # fmt: skip
    return _Keys(source, owners_in)


def _owners_in(found: type) -> dict[str, str | None]:
    """The keys a class declares, and the owner each annotation names."""
    if issubclass(found, BaseModel):
        marks = {name: tuple(info.metadata) for name, info in found.model_fields.items()}
    else:
        hints = get_type_hints(found, include_extras=True)
        marks = {name: inside for name, hint in hints.items() if (inside := _marks(hint)) is not None}
    owners: dict[str, str | None] = {}
    for attribute, inside in marks.items():
        names = [str(one.value) for one in inside if isinstance(one, Option) and one.name == "family"]
        owner = next((one.name for one in inside if isinstance(one, Owner)), None)
        owners[names[0] if names else attribute] = owner
    return owners


def _marks(hint: Any) -> tuple[Any, ...] | None:
    """What stands in Annotated; None for a class variable."""
    while get_origin(hint) in (Required, NotRequired):
        (hint,) = get_args(hint)
    if "ClassVar" in str(get_origin(hint) or hint):
        return None
    return get_args(hint)[1:] if get_origin(hint) is Annotated else ()


def _check_names(keys: _Keys, findings: Findings) -> None:
    for name in keys.owners:
        if name.startswith("_"):
            findings.error(("state_schema", name), f"the key {name!r} begins with `_`, as only the engine's names do")


# -- sections --------------------------------------------------------------------------------------------------------


def _reducers(file: ConfigFile, findings: Findings) -> dict[str, Any]:
    """Reducer by key, from either form; a built-in's name is checked here, the rest by the store."""
    found: dict[str, Any] = {}
    listed = isinstance(file.reducers, list)
    for position, one in enumerate(file.reducers if listed else file.reducers.items()):  # type: ignore[union-attr]  # told apart just before
        if listed:
            path: tuple[str, ...] = ("reducers", str(position))
            if not isinstance(one, Mapping) or not {"key"} <= set(one) <= {"key", "strategy"}:
                findings.error(path, f"a reducer is given as {{key, strategy}}, not {one!r}")
                continue
            name, reducer = one["key"], one.get("strategy", "overwrite")
        else:
            (name, reducer), path = one, ("reducers", one[0])
        if name in found:
            findings.error(path, f"key {name!r} has a second reducer")
        elif isinstance(reducer, str) and "." not in reducer and ":" not in reducer and reducer not in BUILT_IN:
            names = ", ".join(sorted(BUILT_IN))
            findings.error(path, f"unknown reducer {reducer!r}" + did_you_mean(
                reducer, BUILT_IN, otherwise=f"; use one of {names}, by_key, or a path `module:function`"))  # fmt: skip
        else:
            try:
                as_reducer(reducer)
            except ConfigError as error:
                findings.error(path, str(error))
            else:
                found[name] = reducer
    return found


def _of_keys(section: str, given: Mapping[str, Any], keys: _Keys, findings: Findings) -> dict[str, Any]:
    """The entries that name a key; the others are told."""
    for position, name in enumerate(given):
        if name not in keys.owners:
            hint = did_you_mean(name, keys.owners, otherwise="; declare it in state_schema")
            path = (section, name)
            findings.error(path if section == "owners" else _either(findings, path, position),
                           f"{section} names {name!r}, which is no key{hint}")  # fmt: skip
    return {name: one for name, one in given.items() if name in keys.owners}


def _either(findings: Findings, path: tuple[str, ...], position: int) -> tuple[str, ...]:
    """The path of a reducer: by its key, or by its position in a list."""
    return path if findings.has(path) else (path[0], str(position))


def _groups(file: ConfigFile, findings: Findings) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for name, members in file.groups.items():
        path = ("groups", name)
        wrong = [member for member in members if member not in file.agents]
        for member in wrong:
            findings.error(path, f"the member {member!r} is no agent{did_you_mean(member, file.agents)}")
        if name in file.agents:
            findings.error(path, f"{name!r} is a group and also an agent: give the group a name of its own")
            continue
        if len(set(members)) < len(members):
            findings.error(path, "the group names a member twice")
        kept = tuple(dict.fromkeys(member for member in members if member not in wrong))
        if kept:
            found[name] = kept
        elif not wrong:
            findings.error(path, "the group has no members: nobody could write its keys")
    return found


def _owners(file: ConfigFile, keys: _Keys, groups: dict[str, tuple[str, ...]], findings: Findings) -> dict[str, str]:
    """The owner of each key the schema itself gives none; workflows that own become groups."""
    given = _of_keys("owners", file.owners or {}, keys, findings)
    own = getattr(keys.source, "groups", None)
    known = {*file.agents, *file.groups, *(own if isinstance(own, Mapping) else ()), *file.workflows}
    for name in [name for name in given if keys.owners[name] is not None]:
        findings.error(
            ("owners", name),
            f"key {name!r} has two owners, {keys.owners[name]!r} and {given.pop(name)!r}; "
            "declare a group that holds both",
        )
    for name, owner in [*given.items(), *((name, owner) for name, owner in keys.owners.items() if owner)]:
        if owner not in known:
            place = ("owners", name) if name in given else ("state_schema", name)
            message = f"the owner {owner!r} of {name!r} is neither an agent, a group nor a workflow"
            findings.error(place, message + did_you_mean(owner, known))
        elif owner in file.workflows and owner not in file.agents and owner not in file.groups:
            groups[owner] = _agents_of(file.workflows[owner])
    missing = [name for name, owner in keys.owners.items() if owner is None and name not in given]
    if missing:
        given |= dict.fromkeys(missing, _everyone(file, keys, groups, missing, findings))
    return given


def _everyone(
    file: ConfigFile, keys: _Keys, groups: dict[str, tuple[str, ...]], missing: Sequence[str], findings: Findings
) -> str:
    """The group of all agents, for keys without an owner: by rule with a warning, else to go on after an error."""
    name = ALL_AGENTS
    while name in file.agents or name in file.groups or name in file.workflows:
        name += "_"
    groups[name] = tuple(file.agents)
    if file.state_schema is None:
        findings.warning((), "no state_schema: agents may write any key, unchecked; declare the keys")
        if file.owners is None:
            findings.warning((), f"no owners: every agent may write every key, as the group {name!r}")
    elif file.owners is None and not any(keys.owners.values()):
        findings.warning((), f"no owners: every agent may write every key, as the group {name!r}; say who owns what")
    else:
        for one in missing:
            findings.error(("owners",) if file.owners is not None else ("state_schema", one),
                           f"key {one!r} has no owner: give it an entry in `owners`")  # fmt: skip
    return name


def _agents_of(tasks: Iterable[Any]) -> tuple[str, ...]:
    """The agents of a workflow's tasks, each once."""
    found: dict[str, None] = {}
    for task in tasks:
        if task.agent is not None:
            found[task.agent] = None
        found |= dict.fromkeys(_agents_of(task.tasks or ()))
    return tuple(found)


# -- compiling -------------------------------------------------------------------------------------------------------


def _compiled(file: ConfigFile, keys: _Keys, sections: _Sections, findings: Findings) -> Schema | None:
    source = keys.source if isinstance(keys.source, type) else {"state_schema": keys.source}
    invariants = dict(file.invariants)
    while True:
        try:
            return compile_schema(
                source,
                owners=sections.owners,
                groups=sections.groups,
                reducers=sections.reducers,
                invariants=invariants,
            )
        except NameInvalid as error:
            findings.error(("state_schema",), str(error))
            return None
        except ConfigError as error:
            section, name = _place_of(error, sections, invariants)
            findings.error((section, name) if name else (section,), _without_place(error))
            if not name:
                return None
            (invariants if section == "invariants" else sections.reducers).pop(name)


def _place_of(error: ConfigError, sections: _Sections, invariants: Mapping[str, str]) -> tuple[str, str]:
    """Which entry an error of the store speaks of, if it is one that can be left out."""
    where = error.where or ""
    for section, entries in (("invariants", invariants), ("reducers", sections.reducers)):
        for name in entries:
            if where.endswith(f"{section}.{name}"):
                return section, name
    return "state_schema", ""


def _without_place(error: ConfigError | NameInvalid) -> str:
    where = getattr(error, "where", None)
    return str(error).removeprefix(f"{where}: ") if where else str(error)
