"""Declaring a state schema as data: a mapping, or a YAML file.

    keys:
      routing:            {owner: triage_agent, type: {type: object, required: [ruleset]}, basis_required: true}
      reports:            {owner: research, type: array, reducer: append}
      "order/{order_id}": {owner: sales_agent, type: object}
    groups: {research: [evidence_agent, liability_agent]}
    invariants: {band: "reserve_band[0] <= reserve_band[1]"}

or, as engine configs have it, `state_schema:` (a mapping of key to type, or "package.module.Class") with `owners:`,
`groups:`, `reducers:` and `invariants:` beside it.

Rules
- A type is JSON Schema, or a short name: any, string, integer, number, boolean, object, array, set, null (also str,
  int, float, bool, dict, list). A trailing `?` allows null.
- A name with `{variable}` in it is a family, unless the key says `family: false`.
- Mistakes name file, line and path. A key given twice in one mapping is an error. A value YAML does not read as JSON
  (a date, a bare `on`) wants quotes.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import operator
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from refold_store.declared import Declared, Place, assemble
from refold_store.errors import ConfigError, NotExact
from refold_store.jsontext import encode
from refold_store.keys import Key
from refold_store.schema import Schema
from refold_store.updates import json_key
from refold_store.yamltext import Document, read_yaml

SHORT_TYPES: Mapping[str, Mapping[str, Any]] = {
    "any": {},
    "string": {"type": "string"},
    "integer": {"type": "integer"},
    "number": {"type": "number"},
    "boolean": {"type": "boolean"},
    "object": {"type": "object"},
    "array": {"type": "array"},
    "set": {"type": "array", "uniqueItems": True},
    "null": {"type": "null"},
}
_ALIASES = {"str": "string", "int": "integer", "float": "number", "bool": "boolean", "dict": "object", "list": "array"}

FILE_MAX = 16 * 1024 * 1024
"""Longest schema file: as much as all schemas of a bundle; one of a thousand keys takes a hundredth."""
_OPTIONS = ("basis_required", "max_bytes", "readers", "scope", "sensitive")
_ENTRY = {"owner", "type", "reducer", "family", "description", *_OPTIONS}
_SECTIONS = {"keys", "groups", "invariants", "owners", "reducers", "agents", "description"}
_MAIN = {"keys", "state_schema"}
_ADDED = ("owners", "groups", "reducers", "invariants")


class FromClass(Protocol):
    """Compiles a class with further sections."""

    def __call__(self, source: type, added: Mapping[str, Any], place: Place | None = None) -> Schema: ...


def load_file(path: str, added: Mapping[str, Mapping[str, Any]], *, from_class: FromClass) -> Schema:
    """The schema in a YAML file."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(FILE_MAX + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the schema file cannot be read: {error}", where=path) from error
    if len(text) > FILE_MAX:
        raise ConfigError(f"the schema file is longer than {FILE_MAX:,} bytes", where=path)
    return _load(read_yaml(text, path), added, from_class)


def is_schema(text: bytes) -> bool:
    """Whether a text means to be a schema file: it has the sections of one. None of its modules is imported."""
    try:
        root = read_yaml(text.decode(), "").value
    except (ConfigError, UnicodeDecodeError):
        return False
    return isinstance(root, Mapping) and set(root) <= _SECTIONS | _MAIN and bool(root.keys() & _MAIN)


def load_document(
    source: Mapping[str, Any], added: Mapping[str, Mapping[str, Any]], *, from_class: FromClass
) -> Schema:
    """The schema in a mapping of the same form."""
    return _load(Document(dict(source), "schema", {}), added, from_class)


def _load(document: Document, added: Mapping[str, Mapping[str, Any]], from_class: FromClass) -> Schema:
    root = document.value
    if not isinstance(root, Mapping):
        raise ConfigError(f"a schema is a mapping, not {type(root).__name__}", where=document.place(()))
    if "keys" in root and "state_schema" in root:
        raise ConfigError("declare either keys or state_schema, not both", where=document.place(("state_schema",)))
    if "keys" not in root and "state_schema" not in root:
        raise ConfigError("nothing is declared: give it `keys:` (or `state_schema:`)", where=document.place(()))
    sections = {name: _joined(document, name, added.get(name)) for name in _ADDED}
    if "state_schema" in root:
        source = root["state_schema"]
        if isinstance(source, str):
            return _from_path(document, source, sections, from_class)
        declared = _declared(document, "state_schema", _inline_type)
    else:
        _check_words(document, (), root, _SECTIONS)
        declared = _declared(document, "keys", _entry)
    return assemble(declared, place=document.place, agents=_agents(root), **sections)


def _joined(document: Document, section: str, added: Mapping[str, Any] | None) -> dict[str, Any]:
    own = document.value.get(section)
    if own is not None and not isinstance(own, Mapping):
        raise ConfigError(f"{section} must be a mapping, not {type(own).__name__}", where=document.place((section,)))
    twice = sorted(set(own or ()) & set(added or ()))
    if twice:
        raise ConfigError(f"{section} declares {twice[0]!r} twice", where=document.place((section, twice[0])))
    return {**(own or {}), **(added or {})}


def _agents(root: Mapping[str, Any]) -> list[str] | None:
    agents = root.get("agents")
    if isinstance(agents, Mapping):
        return [str(name) for name in agents]
    if isinstance(agents, list):
        return [str(one["name"]) if isinstance(one, Mapping) and "name" in one else str(one) for one in agents]
    return None


def _from_path(document: Document, path: str, sections: Mapping[str, dict[str, Any]], from_class: FromClass) -> Schema:
    where = document.place(("state_schema",))
    module, _, name = path.partition(":") if ":" in path else path.rpartition(".")
    try:
        found = operator.attrgetter(name)(importlib.import_module(module))
    except (Exception, SystemExit) as error:  # the module is the user's
        raise ConfigError(f"the class {path!r} cannot be loaded: {error}", where=where) from error
    if isinstance(found, Schema):
        return found
    if not isinstance(found, type):
        raise ConfigError(f"{path!r} is {type(found).__name__}, not a class", where=where)
    agents = _agents(document.value)
    extra: dict[str, Any] = {section: given for section, given in sections.items() if given}
    if agents is not None:
        extra["agents"] = agents
    return from_class(found, extra, place=document.place)


# -- keys ------------------------------------------------------------------------------------------------------------


def _declared(document: Document, section: str, read: Callable[[Document, str, str, Any], Declared]) -> list[Declared]:
    keys = document.value[section]
    if not isinstance(keys, Mapping):
        raise ConfigError(
            f"{section} must be a mapping of keys, not {type(keys).__name__}", where=document.place((section,))
        )
    for name in keys:
        if not isinstance(name, str):
            raise ConfigError(f"the key {name!r} is not text: quote it", where=document.place((section, str(name))))
    return [read(document, section, name, given) for name, given in keys.items()]


def _entry(document: Document, section: str, name: str, given: Any) -> Declared:
    at = (section, name)
    if not isinstance(given, Mapping):
        raise ConfigError(
            f"key {name!r} must be a mapping with owner and type, not {given!r}", where=document.place(at)
        )
    _check_words(document, at, given, _ENTRY)
    declared = _typed(document, at, name, given.get("type", "any"))
    if "owner" in given:
        declared.set_owner(given["owner"], document.place((*at, "owner")))
    if given.get("reducer") is not None:
        declared.set_reducer(given["reducer"], document.place((*at, "reducer")))
    for option in _OPTIONS:
        if option in given:
            declared.set_option(option, given[option], document.place((*at, option)))
    if "family" in given:
        declared.family = bool(given["family"])
    return declared


def _inline_type(document: Document, section: str, name: str, given: Any) -> Declared:
    """In `state_schema:` a key gives its type alone, or an entry as under `keys:`."""
    if isinstance(given, Mapping) and "owner" in given:
        return _entry(document, section, name, given)
    return _typed(document, (section, name), name, given)


def _typed(document: Document, at: tuple[str, ...], name: str, given: Any) -> Declared:
    where = document.place((*at, "type")) if (*at, "type") in document.lines else document.place(at)
    schema = _schema(given, where)
    try:
        encode(schema)
    except NotExact as error:
        raise ConfigError(f"the type of {name!r} is not plain JSON: {error}; quote it", where=where) from error
    kind = schema.get("type")
    return Declared(name, where=where, make=functools.partial(_make, schema), kind=_KINDS.get(str(kind)))


_KINDS = {"integer": "int", "number": "float", "string": "str", "boolean": "bool", "array": "list", "object": "dict"}


def _make(schema: Mapping[str, Any], name: str, **rest: Any) -> Key:
    return json_key(name, schema=schema, **rest)


def _schema(given: Any, where: str) -> dict[str, Any]:
    if isinstance(given, Mapping):
        return dict(given)
    if not isinstance(given, str):
        raise ConfigError(f"a type is JSON Schema or a short name, not {given!r}", where=where)
    name = given.removesuffix("?")
    short = SHORT_TYPES.get(_ALIASES.get(name, name))
    if short is None:
        near = difflib.get_close_matches(name, [*SHORT_TYPES, *_ALIASES], n=1)
        hint = f"; did you mean {near[0]!r}?" if near else f"; use one of {', '.join(SHORT_TYPES)} or JSON Schema"
        raise ConfigError(f"unknown type {given!r}{hint}", where=where)
    return {"anyOf": [dict(short), {"type": "null"}]} if given.endswith("?") and short else dict(short)


def _check_words(document: Document, at: tuple[str, ...], given: Mapping[str, Any], known: set[str]) -> None:
    for word in given:
        if word not in known:
            near = difflib.get_close_matches(str(word), sorted(known), n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; it may hold {', '.join(sorted(known))}"
            raise ConfigError(f"unknown entry {word!r}{hint}", where=document.place((*at, str(word))))
