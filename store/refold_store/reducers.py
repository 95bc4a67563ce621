"""Reducers: pure functions (previous value, update) -> value.

Rules
- `None` as previous value stands for "nothing yet". Inputs never change; a result is a new object where it differs.
- A text is one thing: no reducer takes it apart. A list or tuple given to `append` or `union` is many elements; wrap a
  list in a list to add it as one.
- What cannot be combined raises ReducerError; nothing is dropped or converted.
- Each built-in knows two spellings of itself: on Python values (`reducer(previous, update)`), and on JSON documents
  (`fold_many`), where a set is a list sorted by the canonical text of its elements.
- `commutative` says whether updates may come in any order: True, False, or None when that is not known.
- `deep_merge` goes into objects only: lists and plain values are replaced, an object against anything else (a list
  against anything else) is a conflict and refused. A previous `None` gives way to anything.
"""

from __future__ import annotations

import importlib
import operator
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from refold_store.builtin_reducers import (
    BUILT_IN,
    Function,
    Reducer,
    add,
    append,
    as_object,
    deep_merge,
    kind_of,
    last,
    merge,
    overwrite,
    refuse,
    union,
)
from refold_store.errors import ConfigError, ReducerError
from refold_store.jsontext import member_path
from refold_store.probing import probe, started

__all__ = [
    "BUILT_IN",
    "LOCAL",
    "Function",
    "Reducer",
    "add",
    "append",
    "by_key",
    "deep_merge",
    "from_function",
    "import_path",
    "last",
    "load",
    "merge",
    "overwrite",
    "recorded",
    "reducer",
    "union",
]

LOCAL = "local:"
"""Prefix of the recorded name of a function that no import path leads to."""


# -- by_key ----------------------------------------------------------------------------------------------------------


def by_key(fields: Mapping[str, Reducer | Function | str]) -> Reducer:
    """A reducer for objects with a reducer of its own for each field; other fields may not be written."""
    if not isinstance(fields, Mapping):
        raise ConfigError("by_key wants a mapping of field names to reducers, like by_key({'items': append})")
    inner = {name: reducer(field) for name, field in fields.items()}

    def checked(update: Any) -> dict[str, Any]:
        given = as_object("by_key", "update", update)
        for name in given:
            if name not in inner:
                refuse(f"by_key has no field {name!r}; its fields are {sorted(inner)}", member_path("$", str(name)))
        return given

    def apply(previous: Any, update: Any) -> dict[str, Any]:
        return each(previous, update, lambda field, old, new: field(old, new))

    def each(previous: Any, update: Any, step: Callable[[Reducer, Any, Any], Any]) -> dict[str, Any]:
        result = as_object("by_key", "previous value", previous)
        for name, new in checked(update).items():
            try:
                result[name] = step(inner[name], result.get(name), new)
            except ReducerError as error:
                path = member_path("$", name) + (error.path or "$")[1:]
                raise ReducerError(f"{path}: {error.detail}", path=path) from error
        return result

    def fold(previous: Any, updates: Iterable[Any]) -> dict[str, Any]:
        result = as_object("by_key", "previous value", previous)
        for update in updates:
            result = each(result, update, lambda field, old, new: field.fold_many(old, (new,)))
        return result

    def normal(update: Any) -> dict[str, Any]:
        return {name: inner[name].normal(new) for name, new in checked(update).items()}

    return Reducer(
        "by_key",
        apply,
        fold=fold,
        normal=normal,
        commutative=_all_commute(inner.values()),
        spec={"by_key": {name: inner[name].spec for name in sorted(inner)}},
        fields=inner,
        function=next((field.function for field in inner.values() if field.custom), None),
    )


def _all_commute(fields: Iterable[Reducer]) -> bool | None:
    answers = {field.commutative for field in fields}
    if False in answers:
        return False
    return None if None in answers else True


def reducer(source: object) -> Reducer:
    """The reducer that `source` names: a Reducer, a function, a built-in's name, `module:function`, `{by_key: ...}`.

    A function is probed for purity where it becomes the reducer of a key (`from_function`).
    """
    if isinstance(source, Reducer):
        return source
    if isinstance(source, str):
        return _named(source)
    if isinstance(source, Mapping):
        if list(source) != ["by_key"]:
            raise ConfigError(f"a reducer given as a mapping is {{'by_key': {{...}}}}, not one of {sorted(source)}")
        return by_key(source["by_key"])
    if callable(source):
        return Reducer(import_path(source), source, function=source)
    raise ConfigError(f"a reducer is a function, a name or {{'by_key': ...}}, not {kind_of(source)}")


def _named(name: str) -> Reducer:
    if name in BUILT_IN:
        return BUILT_IN[name]
    if name.startswith(LOCAL):
        return recorded(name)
    if ":" not in name and "." not in name:
        raise ConfigError(
            f"unknown reducer {name!r}: use one of {sorted(BUILT_IN)}, {{by_key: ...}}, or a path `module:function`"
        )
    function = load(name)
    if isinstance(function, Reducer):
        return function
    return Reducer(name, function, function=function)


def from_function(name: str, function: Function, kind: str | None) -> Reducer:
    """The reducer of a function, probed on values of a kind. Raises ConfigError if it is not pure."""
    found = probe(function, name, kind)
    apply = function if found.starts_itself else started(function)
    return Reducer(name, apply, commutative=found.commutative, function=function)


def load(path: str) -> Function:
    """The function at `module:function`. Raises ConfigError when it is not there."""
    module_name, _, attribute = path.partition(":") if ":" in path else path.rpartition(".")
    try:
        found = operator.attrgetter(attribute)(importlib.import_module(module_name))
    except (Exception, SystemExit) as error:  # the module is the user's
        raise ConfigError(f"reducer {path!r} cannot be loaded: {error}") from error
    if not callable(found):
        raise ConfigError(f"reducer {path!r} is {kind_of(found)}, not a function")
    return found  # type: ignore[no-any-return]  # any callable will do: its arguments are checked when it is called


def import_path(function: Callable[..., Any]) -> str:
    """`module:function`, or `local:...` when no import leads back to this very function."""
    module = getattr(function, "__module__", None) or ""
    qualname = getattr(function, "__qualname__", None) or type(function).__qualname__
    module = {"_operator": "operator"}.get(module, module)
    try:
        found = operator.attrgetter(qualname)(sys.modules[module])
    except (KeyError, AttributeError):
        found = None
    return f"{module}:{qualname}" if found is function else f"{LOCAL}{qualname}"


def recorded(spec: object) -> Reducer:
    """The reducer a stored declaration names. Its code is looked for only when it is first needed."""
    if isinstance(spec, Mapping):
        fields = spec.get("by_key", {})
        return by_key({name: recorded(inner) for name, inner in fields.items()})
    if spec in BUILT_IN:
        return BUILT_IN[str(spec)]
    name = str(spec)

    def later(previous: Any, update: Any) -> Any:
        if name.startswith(LOCAL):
            refuse(
                f"reducer {name!r} was a local function and cannot be rebuilt from the stored declaration; "
                "open the store with the schema that defines it"
            )
        if not loaded:
            loaded.append(from_function(name, load(name), None))
        return loaded[0](previous, update)

    loaded: list[Reducer] = []
    return Reducer(name, later, function=later)
