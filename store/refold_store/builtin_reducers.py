"""The built-in reducers on values and on documents, and the class of all reducers. The rules are in reducers.py."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from numbers import Number
from typing import Any, NoReturn

from refold_store.errors import ReducerError, RefoldError
from refold_store.jsontext import encode, member_path

Function = Callable[[Any, Any], Any]
FoldMany = Callable[[Any, Iterable[Any]], Any]


class Reducer:
    """One reducer. Call it as `reducer(previous, update)`; also a marker in `Annotated[...]`."""

    __slots__ = ("_apply", "_fold", "_normal", "commutative", "fields", "function", "name", "spec")

    def __init__(
        self,
        name: str,
        apply: Function,
        *,
        fold: FoldMany | None = None,
        normal: Callable[[Any], Any] | None = None,
        commutative: bool | None = None,
        spec: object = None,
        fields: Mapping[str, Reducer] | None = None,
        function: Function | None = None,
    ) -> None:
        self.name = name
        self.spec = name if spec is None else spec
        self.commutative = commutative
        self.fields = dict(fields or {})
        self.function = function
        self._apply = apply
        self._fold = fold
        self._normal = normal

    def __call__(self, previous: Any, update: Any) -> Any:
        try:
            return self._apply(previous, update)
        except RefoldError:
            raise
        except Exception as error:  # the function is the user's: whatever it raises is a refusal
            raise ReducerError(
                f"reducer {self.name!r} failed on previous {kind_of(previous)} and update {kind_of(update)}: "
                f"{type(error).__name__}: {error}"
            ) from error

    @property
    def custom(self) -> bool:
        """Whether it is a function that refold does not bring along."""
        return self.function is not None

    def normal(self, update: Any) -> Any:
        """The update in the one form that is stored: elements as a list, an empty update as `{}`."""
        return update if self._normal is None else self._normal(update)

    def fold_many(self, previous: Any, updates: Iterable[Any]) -> Any:
        """The JSON document after all updates, oldest first, on the previous document (None: absent)."""
        if self._fold is not None:
            return self._fold(previous, updates)
        for update in updates:
            previous = self(previous, update)
        return previous

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Reducer) and self.spec == other.spec and self.function is other.function

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return f"<reducer {self.name}>"


def kind_of(value: object) -> str:
    """The name of a value's type, for messages."""
    return type(value).__name__


def refuse(message: str, path: str | None = None) -> NoReturn:
    """Raise ReducerError, with the path in front if there is one."""
    raise ReducerError(message if path is None else f"{path}: {message}", path=path)


# -- last ----------------------------------------------------------------------------------------------------------


def _last(_previous: Any, update: Any) -> Any:
    return update


# -- append --------------------------------------------------------------------------------------------------------


def _as_elements(update: Any) -> list[Any]:
    return list(update) if isinstance(update, (list, tuple)) else [update]


def _append(previous: Any, update: Any) -> list[Any]:
    return _append_many(previous, (update,))


def _append_many(previous: Any, updates: Iterable[Any]) -> list[Any]:
    if previous is not None and not isinstance(previous, (list, tuple)):
        refuse(f"append needs a list as previous value, not {kind_of(previous)}: use `last` to replace it")
    grown: list[Any] = [] if previous is None else list(previous)
    for update in updates:
        grown.extend(_as_elements(update))
    return grown


# -- add -----------------------------------------------------------------------------------------------------------


def _addable(value: object) -> bool:
    return isinstance(value, (Number, timedelta)) and not isinstance(value, bool)


def _as_addend(update: Any) -> Any:
    if not _addable(update) and not isinstance(update, str):  # a type may read a number from text
        refuse(f"add needs two numbers (int, float, Decimal), but the update is {kind_of(update)}")
    return update


def _text_in(*values: Any) -> bool:
    return any(isinstance(value, str) for value in values)


def _add(previous: Any, update: Any) -> Any:
    if not _addable(update) or not (previous is None or _addable(previous)):
        hint = (
            "; a decimal or a duration is added by the program that declares the key"
            if _text_in(previous, update)
            else ""
        )
        refuse(f"add needs two numbers, not {kind_of(previous)} and {kind_of(update)}{hint}")
    if previous is None:
        return update
    try:
        return previous + update
    except (TypeError, ArithmeticError) as error:
        refuse(f"add cannot add {kind_of(previous)} and {kind_of(update)}: {error}")


# -- merge and deep_merge --------------------------------------------------------------------------------------------


def as_object(name: str, role: str, value: Any) -> dict[str, Any]:
    """A fresh dict of an object; None is an empty one."""
    if value is None:
        return {}
    if isinstance(value, Mapping):
        return dict(value)
    refuse(f"{name} needs an object as {role}, not {kind_of(value)}")


def _merge(previous: Any, update: Any) -> dict[str, Any]:
    return _merge_many(previous, (update,))


def _merge_many(previous: Any, updates: Iterable[Any]) -> dict[str, Any]:
    merged = as_object("merge", "previous value", previous)
    for update in updates:
        merged.update(as_object("merge", "update", update))
    return merged


def _deep_merge(previous: Any, update: Any) -> dict[str, Any]:
    base = as_object("deep_merge", "previous value", previous)
    return _deepen(base, as_object("deep_merge", "update", update), "$")


def _deepen(base: Mapping[str, Any], update: Mapping[str, Any], path: str) -> dict[str, Any]:
    merged = dict(base)
    for name, new in update.items():
        old = merged.get(name)
        if old is None:
            merged[name] = new
            continue
        place = member_path(path, name)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            merged[name] = _deepen(old, new, place)
        elif _shape(old) == _shape(new):
            merged[name] = new
        else:
            refuse(
                f"deep_merge found {kind_of(new)} where {kind_of(old)} is; "
                "replace the whole value with a key whose reducer is `last`",
                place,
            )
    return merged


def _shape(value: object) -> str:
    if isinstance(value, Mapping):
        return "object"
    return "list" if isinstance(value, (list, tuple, set, frozenset)) else "plain"


# -- union -----------------------------------------------------------------------------------------------------------


def _as_members(update: Any) -> Iterable[Any]:
    return update if isinstance(update, (set, frozenset, list, tuple)) else (update,)


def _union(previous: Any, update: Any) -> set[Any] | frozenset[Any]:
    if previous is not None and not isinstance(previous, (set, frozenset, list, tuple)):
        refuse(f"union needs a set as previous value, not {kind_of(previous)}: use `last` to replace it")
    try:
        joined = set(previous or ()).union(_as_members(update))
    except TypeError as error:
        refuse(f"union needs elements that can be compared and hashed: {error}")
    return frozenset(joined) if isinstance(previous, frozenset) else joined


def _sorted_members(update: Any) -> list[Any]:
    return _union_many(None, (update,))


def _union_many(previous: Any, updates: Iterable[Any]) -> list[Any]:
    if previous is not None and not isinstance(previous, list):
        refuse(f"union needs a list as previous document, not {kind_of(previous)}")
    members = {encode(element): element for element in previous or ()}
    for update in updates:
        for element in _as_members(update):
            if isinstance(element, (dict, list)):
                refuse(f"union needs elements that can be compared and hashed: unhashable type: {kind_of(element)!r}")
            members.setdefault(encode(element), element)
    return [members[text] for text in sorted(members)]


# -- the built-ins by name -------------------------------------------------------------------------------------------

last = Reducer("last", _last, commutative=False)
overwrite = last
append = Reducer("append", _append, fold=_append_many, normal=_as_elements, commutative=False)
add = Reducer("add", _add, normal=_as_addend, commutative=True)
merge = Reducer(
    "merge",
    _merge,
    fold=_merge_many,
    normal=lambda update: as_object("merge", "update", update),
    commutative=False,
)
deep_merge = Reducer(
    "deep_merge", _deep_merge, normal=lambda update: as_object("deep_merge", "update", update), commutative=False
)
union = Reducer("union", _union, fold=_union_many, normal=_sorted_members, commutative=True)

BUILT_IN: Mapping[str, Reducer] = {
    "last": last,
    "overwrite": last,
    "append": append,
    "add": add,
    "merge": merge,
    "deep_merge": deep_merge,
    "union": union,
}
