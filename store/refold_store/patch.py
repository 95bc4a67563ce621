"""JSON Patch (RFC 6902): apply operations to a document, and make the operations between two documents.

Rules of this module
- `apply` never changes its input. It copies the containers on the way to what an operation touches and shares the
  rest, so that a patch costs what it touches and an untouched member stays the same object.
- Operations are all or none: if one fails, PatchInvalid names it and there is no new document. No message quotes a
  value of the document.
- `test` compares as RFC 6902 §4.6 does: numbers by their value (1 equals 1.0), objects without regard to order; true is
  not 1. `delta` is stricter: what has other canonical bytes (1, 1.0, -0.0, true) is another value.
- `jsonpatch` gives the operations their meaning. The copying, the bounds and the words of the errors are here.
- Documents are plain JSON (`jsontext`), at most 200 levels deep.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from jsonpatch import InvalidJsonPatch, JsonPatch, JsonPatchException
from jsonpointer import JsonPointer, JsonPointerException

from refold_store.errors import NotExact
from refold_store.jsontext import encode
from refold_store.turn_errors import PatchInvalid

Operation = dict[str, Any]

MAX_OPERATIONS = 10_000
"""Most operations in one patch: a larger change is a new document."""

MAX_COPIED_BYTES = 16 * 1024 * 1024
"""Most bytes of JSON the `copy` operations of one patch may add: copying the whole into itself doubles it each time."""

_MOST_SHOWN = 120
_OVERHEAD = 30
"""Bytes of an operation beside its path and value."""


# -- applying ----------------------------------------------------------------------------------------------------


def apply(document: Any, operations: Sequence[Mapping[str, Any]]) -> Any:
    """The document after all operations. Raises PatchInvalid with the first that fails; `document` never changes.

    Values in the operations are copied; what no operation touched is shared with `document`.
    """
    if not isinstance(operations, (list, tuple)):
        raise PatchInvalid(f"a patch is a list of operations, not {_kind(operations)}", count=0)
    if len(operations) > MAX_OPERATIONS:
        raise PatchInvalid(
            f"it has {len(operations)} operations, at most {MAX_OPERATIONS} are allowed: send the whole document",
            count=len(operations),
        )
    work = _Work(document)
    for number, operation in enumerate(operations, 1):
        try:
            work.step(operation)
        except _Broken as broken:
            found = operation if isinstance(operation, Mapping) else {}
            op, path = (found.get(name) for name in ("op", "path"))
            raise PatchInvalid(broken.reason, index=number, count=len(operations), op=op, path=path) from None
    return work.document


class _Broken(Exception):
    """Why one operation failed."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class _Work:
    """A document on its way. `fresh` holds the containers that this patch has copied and may change, by id."""

    __slots__ = ("copied", "document", "fresh")

    def __init__(self, document: Any) -> None:
        self.document = document
        self.fresh: dict[int, Any] = {}
        self.copied = 0

    def step(self, operation: object) -> None:
        if not isinstance(operation, Mapping):
            raise _Broken(f"an operation is an object, not {_kind(operation)}")
        kind = operation.get("op")
        if kind == "move":
            self.move(operation)
            return
        if kind == "copy":
            self.bound(_text(operation, "from"))
        self.run(operation)

    def move(self, operation: Mapping[str, Any]) -> None:
        """Remove, then add: what stands at `path` is known only after the removal, and must be copied then."""
        source, target = _text(operation, "from"), _text(operation, "path")
        value = self.at(source)
        if source == target:
            return
        if target.startswith(source + "/"):
            raise _Broken("a value cannot be moved into itself")
        self.run({"op": "remove", "path": source})
        self.run({"op": "add", "path": target, "value": value})

    def run(self, operation: Mapping[str, Any]) -> None:
        if operation.get("op") in ("add", "remove", "replace", "copy"):
            self.open(operation.get("path"))
        try:
            self.document = JsonPatch([operation]).apply(self.document, in_place=True)
        except RecursionError:
            raise _Broken("its value is nested too deep") from None
        except (JsonPatchException, JsonPointerException) as error:
            raise _Broken(self.reason(operation, error)) from None

    def open(self, path: object) -> None:
        """Copy the containers from the root down to the one that `path` changes."""
        tokens = _tokens(path)
        if not tokens or not isinstance(self.document, (dict, list)):
            return
        here = self.document = self.own(self.document)
        for token in tokens[:-1]:
            place = _place(here, token)
            if place is None or not isinstance(here[place], (dict, list)):
                return
            inner = self.own(here[place])
            here[place] = inner
            here = inner

    def own(self, container: Any) -> Any:
        if id(container) in self.fresh:
            return container
        copy = container.copy()
        self.fresh[id(copy)] = copy
        return copy

    def at(self, pointer: str) -> Any:
        fault = missing(self.document, pointer)
        if fault is not None:
            raise _Broken(f"from: {fault}")
        here = self.document
        for token in _tokens(pointer) or ():
            here = here[_place(here, token)]
        return here

    def bound(self, source: str) -> None:
        try:
            self.copied += len(encode(self.at(source)))
        except NotExact as error:
            raise _Broken(f"from: what stands there is no JSON: {_clip(str(error))}") from None
        if self.copied > MAX_COPIED_BYTES:
            raise _Broken(f"its copies come to more than {MAX_COPIED_BYTES} bytes of JSON")

    def reason(self, operation: Mapping[str, Any], error: Exception) -> str:
        kind, path = operation.get("op"), operation.get("path")
        if isinstance(error, InvalidJsonPatch) or not isinstance(path, str):
            return _clip(str(error))  # about the operation's form: it quotes nothing of the document
        found = missing(self.document, path, adding=kind in ("add", "copy"))
        if found is None and kind == "test":
            return "the value there is not the one tested for"
        if found is None and path == "":
            return "the whole document cannot be removed: replace it"
        return found or "it cannot be done there"


def missing(document: Any, pointer: str, *, adding: bool = False) -> str | None:
    """What a JSON Pointer meets that is not there, in words; None if it leads somewhere (`adding`: may lead there)."""
    tokens = _tokens(pointer)
    if tokens is None:
        return f"{_shown(pointer)} is no JSON Pointer: it is empty or starts with '/', and '~' stands in ~0 and ~1 only"
    here, walked = document, ""
    for number, token in enumerate(tokens, 1):
        last = adding and number == len(tokens)
        where = _shown(walked) if walked else "the document"
        if not isinstance(here, (dict, list)):
            return f"{where} is {_kind(here)}, which has no members"
        if isinstance(here, list) and not _is_index(token) and not (last and token == "-"):
            return f"{where} is a list, and {_shown(token)} is no index of it (0, 1, 2 ..., no leading zeros)"
        if last:
            outside = isinstance(here, list) and token != "-" and int(token) > len(here)
            return f"{where} has {len(here)} elements, {_shown(token)} is past their end" if outside else None
        place = _place(here, token)
        if place is None:
            what = f"has {len(here)} elements" if isinstance(here, list) else "is an object"
            return f"{where} {what} and holds no {_shown(token)}"
        here, walked = here[place], f"{walked}/{escape(token)}"
    return None


def _tokens(pointer: object) -> list[str] | None:
    """The unescaped parts of a pointer; None if it is none."""
    try:
        return [str(part) for part in JsonPointer(pointer).parts] if isinstance(pointer, str) else None
    except JsonPointerException:
        return None


def _is_index(token: str) -> bool:
    return token.isascii() and token.isdigit() and (token == "0" or token[0] != "0") and len(token) <= 18


def _place(container: Any, token: str) -> Any:
    """The key or index at which `container` holds `token`; None if it does not."""
    if isinstance(container, dict):
        return token if token in container else None
    return int(token) if _is_index(token) and int(token) < len(container) else None


def _text(operation: Mapping[str, Any], name: str) -> str:
    found = operation.get(name)
    if not isinstance(found, str):
        raise _Broken(f"it has no {name!r}" if name not in operation else f"{name!r} is text, not {_kind(found)}")
    return found


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "a boolean", type(None): "null"}
    return names.get(type(value)) or ("a number" if isinstance(value, (int, float)) else type(value).__name__)


def _shown(text: str) -> str:
    return repr(_clip(text))


def _clip(text: str) -> str:
    return text if len(text) <= _MOST_SHOWN else text[: _MOST_SHOWN - 3] + "..."


# -- the difference of two documents -----------------------------------------------------------------------------


def delta(before: Any, after: Any) -> list[Operation]:
    """Operations that turn `before` into a document with the canonical bytes of `after`. [] if they are the same.

    Objects are compared member by member in the order of their names, lists behind their common beginning and before
    their common end, element by element: the time is linear in the nodes (times the depth, at most 200). Where the
    operations inside a member are longer than its new value, it is replaced; an object as a whole only where `apply`
    would not take as many operations. Values are shared with `after`.
    """
    found = _between_objects(before, after, "") if type(before) is type(after) is dict else _between(before, after, "")
    return found if len(found) <= MAX_OPERATIONS else [_replace("", after)]


def escape(token: str) -> str:
    """A member's name as a part of a JSON Pointer."""
    return token.replace("~", "~0").replace("/", "~1")


def _between(before: Any, after: Any, path: str) -> list[Operation]:
    if before is after:
        return []
    if type(before) is type(after) is dict:
        found = _between_objects(before, after, path)
    elif type(before) is type(after) is list:
        found = _between_lists(before, after, path)
    elif same(before, after):
        return []
    else:
        return [_replace(path, after)]
    whole = _OVERHEAD + len(path)
    size = sum(_OVERHEAD + len(one["path"]) + _size(one.get("value", "")) for one in found)
    if found and size > whole + _size(after, size - whole):
        return [_replace(path, after)]
    return found


def _replace(path: str, value: Any) -> Operation:
    return {"op": "replace", "path": path, "value": value}


def _between_objects(before: dict[str, Any], after: dict[str, Any], path: str) -> list[Operation]:
    found: list[Operation] = []
    for name in sorted(before.keys() | after.keys()):
        place = f"{path}/{escape(name)}"
        if name not in after:
            found.append({"op": "remove", "path": place})
        elif name not in before:
            found.append({"op": "add", "path": place, "value": after[name]})
        else:
            found += _between(before[name], after[name], place)
    return found


def _between_lists(before: list[Any], after: list[Any], path: str) -> list[Operation]:
    shorter = min(len(before), len(after))
    start = 0
    while start < shorter and same(before[start], after[start]):
        start += 1
    end = 0
    while end < shorter - start and same(before[-1 - end], after[-1 - end]):
        end += 1
    found: list[Operation] = []
    for index in range(start, shorter - end):
        found += _between(before[index], after[index], f"{path}/{index}")
    for index in range(len(before) - end - 1, shorter - end - 1, -1):
        found.append({"op": "remove", "path": f"{path}/{index}"})
    for index in range(shorter - end, len(after) - end):
        found.append({"op": "add", "path": f"{path}/{index}", "value": after[index]})
    return found


def same(one: Any, other: Any) -> bool:
    """Whether two plain JSON values have the same canonical bytes: 1, 1.0, true, 0.0 and -0.0 all differ."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if type(one) is dict:
        return len(one) == len(other) and all(name in other and same(one[name], other[name]) for name in one)
    if type(one) is list:
        return len(one) == len(other) and all(map(same, one, other))
    return repr(one) == repr(other) if type(one) is float else bool(one == other)


def _size(value: Any, most: float = math.inf) -> int:
    """About how many bytes of JSON a value takes; the count stops once it is over `most`."""
    size, stack = 0, [value]
    while stack and size <= most:
        item = stack.pop()
        if type(item) is str:
            size += len(item) + 2
        elif type(item) is dict:
            size += 2 + sum(len(name) + 4 for name in item)
            stack.extend(item.values())
        elif type(item) is list:
            size += 2 + len(item)
            stack.extend(item)
        else:
            size += len(repr(item))
    return size
