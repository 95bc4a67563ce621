"""Exact canonical JSON text.

Rules
- Canonical text: keys sorted by code point, no blanks, floats as orjson spells them, integers in full, UTF-8.
- `decode(encode(value)) == value` for every value that `encode` accepts; whatever has no exact form is refused with
  its path. str, int, float, dict and list subclasses are accepted as what they hold (an IntEnum is its number, a text
  enum its text); tuples, sets, bytes and all other objects are not: they need a declared type.
- The fast path is orjson and one comparison, all in C. Only when that fails does a walk look for the place.
- Integers run to 4,300 digits, nesting to 200 levels. No recursion here, so a deep value cannot exhaust the stack.
- `parse` reads foreign text strictly: what a lenient reader would drop or change (a second member of one name, an
  overflowing or vanishing number, a lone surrogate) is refused. A number with more digits than a float holds reads as
  the nearest float, as everywhere in JSON.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import orjson

from refold_store.errors import NotExact

MAX_DEPTH = 200
"""Deepest nesting of arrays and objects, in levels: every JSON reader in use here can still read it back."""

MAX_DIGITS = 4300
"""Longest integer, in digits: Python's own bound for reading one back."""

_OPTIONS = orjson.OPT_SORT_KEYS | orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME
_PLAIN_OPTIONS = _OPTIONS | orjson.OPT_PASSTHROUGH_SUBCLASS
_DIGITS_AS_ZERO = bytes(0x30 if 0x30 <= byte <= 0x39 else byte for byte in range(256))
_WIDE_RUN = b"0" * 19
_TOO_WIDE = 10**MAX_DIGITS
_SHORTEST_DEEP = 2 * MAX_DEPTH  # bytes: a text that nests deeper than MAX_DEPTH is longer than this

_dumps = orjson.dumps
_loads = orjson.loads


def encode(value: object) -> bytes:
    """Canonical text of a plain JSON value. Raises NotExact with the path of what has no exact form."""
    return snapshot(value)[0]


def snapshot(value: object) -> tuple[bytes, Any]:
    """Canonical text of a plain JSON value, and a fresh copy of the value read back from it."""
    try:
        text = _dumps(value, None, _OPTIONS)
        copy = _loads(text)
        if copy == value and (len(text) <= _SHORTEST_DEEP or not _too_deep(text, copy)):
            return text, copy
    except (TypeError, ValueError, RecursionError):
        pass
    return _snapshot_slowly(value)


def decode(text: bytes) -> Any:
    """The value of a stored text, integers exact. Raises ValueError if the text is not JSON."""
    if _WIDE_RUN in text.translate(_DIGITS_AS_ZERO):
        return json.loads(text)
    return _loads(text)


def canonical(text: bytes) -> bytes:
    """Canonical text of a JSON text that some serializer wrote. Raises ValueError if it is not JSON."""
    if has_wide_integer(text):
        return _spell(json.loads(text))
    return _dumps(_loads(text), None, orjson.OPT_SORT_KEYS)


def has_wide_integer(text: bytes) -> bool:
    """Whether the text may hold an integer over 64 bits (which orjson would turn into a float)."""
    return len(text) >= len(_WIDE_RUN) and _WIDE_RUN in text.translate(_DIGITS_AS_ZERO)


def is_plain(value: object) -> bool:
    """Whether the value is free of models, dataclasses and subclasses of JSON's types; one pass in C."""
    try:
        _dumps(value, None, _PLAIN_OPTIONS)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def member_path(path: str, member: str | int) -> str:
    """The path of a member: `$.a`, `$["a b"]` or `$[1]`."""
    if isinstance(member, int):
        return f"{path}[{member}]"
    if member.isidentifier():
        return f"{path}.{member}"
    return f"{path}[{json.dumps(member, ensure_ascii=not _is_unicode(member))}]"


# -- the slow way: find the fault, or spell what orjson cannot ---------------------------------------------------


def _snapshot_slowly(value: object) -> tuple[bytes, Any]:
    fault = find_fault(value)
    if fault is not None:
        path, reason = fault
        raise NotExact(f"{path} {reason}", path=path)
    text = _spell(value)
    copy = decode(text)
    if copy != value:
        raise NotExact("$ does not read back equal to what was written", path="$")
    return text, copy


def _too_deep(text: bytes, value: object) -> bool:
    if text.count(b"[") + text.count(b"{") <= MAX_DEPTH:
        return False
    level: list[Any] = [[value]]
    for _ in range(MAX_DEPTH + 1):
        members = (outer.values() if type(outer) is dict else outer for outer in level)
        level = [inner for inside in members for inner in inside if type(inner) is dict or type(inner) is list]
        if not level:
            return False
    return True


def find_fault(value: object) -> tuple[str, str] | None:
    """Path and reason of the first thing in `value` that has no exact JSON form; None if all is well."""
    open_ids: set[int] = set()
    stack: list[tuple[str, Any, int]] = [("$", value, 0)]
    while stack:
        path, item, depth = stack.pop()
        if depth < 0:  # all inside this container has been seen
            open_ids.discard(id(item))
            continue
        if not isinstance(item, (dict, list)):
            reason = _scalar_fault(item)
            if reason is not None:
                return path, reason
            continue
        if id(item) in open_ids:
            return path, "contains itself: a cycle has no JSON form"
        if depth >= MAX_DEPTH:
            return path, f"is nested deeper than {MAX_DEPTH} levels: flatten it, or store parts under keys of their own"
        open_ids.add(id(item))
        stack.append((path, item, -1))
        if isinstance(item, dict):
            reason = _names_fault(item)
            if reason is not None:
                return path, reason
            members: Iterator[tuple[str | int, Any]] = iter((str.__str__(name), inner) for name, inner in item.items())
        else:
            members = iter(enumerate(item))
        stack.extend(reversed([(member_path(path, name), inner, depth + 1) for name, inner in members]))
    return None


def _scalar_fault(item: object) -> str | None:
    if item is None or isinstance(item, bool):
        return None
    if isinstance(item, str):
        return None if _is_unicode(item) else "holds a lone surrogate: it is not valid Unicode"
    if isinstance(item, float):
        return None if math.isfinite(item) else f"is {float.__repr__(item)}: JSON has finite numbers only"
    if isinstance(item, int):
        return None if -_TOO_WIDE < item < _TOO_WIDE else f"is an integer of more than {MAX_DIGITS} digits"
    return _type_fault(item)


def _type_fault(item: object) -> str:
    name = type(item).__name__
    if isinstance(item, tuple):
        return f"is a {name}, which JSON would turn into a list: declare a tuple type or pass a list"
    if isinstance(item, (set, frozenset)):
        return f"is a {name}, which JSON does not have: declare a set type or pass a sorted list"
    if isinstance(item, (bytes, bytearray, memoryview)):
        return f"is {name}, which JSON does not have: declare a type for it or pass text"
    return f"is of type {name}, which has no declared type here: declare it in the state schema or pass plain JSON"


def _names_fault(item: dict[Any, Any]) -> str | None:
    for name in item:
        if not isinstance(name, str):
            return f"has the key {name!r} of type {type(name).__name__}: JSON has text keys only"
        if not _is_unicode(name):
            return f"has the key {name!r} with a lone surrogate: it is not valid Unicode"
    if len({str.__str__(name) for name in item}) < len(item):
        return "has two keys with the same text"
    return None


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _spell(value: object) -> bytes:
    """Canonical text of a value without a fault, whatever the width of its integers."""
    pieces: list[bytes] = []
    stack: list[Any] = [value]
    while stack:
        item = stack.pop()
        if type(item) is bytes:  # ready text: a value never is bytes
            pieces.append(item)
        elif isinstance(item, dict):
            inner: list[Any] = [b"{"]
            for position, name in enumerate(sorted(item)):
                inner += [(b"," if position else b"") + _dumps(str.__str__(name)) + b":", item[name]]
            stack.extend(reversed([*inner, b"}"]))
        elif isinstance(item, list):
            inner = [b"["]
            for position, element in enumerate(item):
                inner += [b",", element] if position else [element]
            stack.extend(reversed([*inner, b"]"]))
        else:
            pieces.append(_spell_scalar(item))
    return b"".join(pieces)


def _spell_scalar(item: Any) -> bytes:
    if isinstance(item, str):
        return _dumps(str.__str__(item))
    if item is None or isinstance(item, bool):
        return _dumps(item)
    if isinstance(item, float):
        return _dumps(float.__pos__(item))
    return int.__repr__(item).encode()


# -- foreign text ------------------------------------------------------------------------------------------------


class _Fault:
    """Stands in a parsed document where the text says something that a value cannot hold."""

    __slots__ = ("member", "reason")

    def __init__(self, reason: str, member: str | None = None) -> None:
        self.reason = reason
        self.member = member


class _Reader:
    """One strict reading; remembers whether any fault was put into the document."""

    def __init__(self) -> None:
        self.faulty = False

    def fault(self, reason: str, member: str | None = None) -> _Fault:
        self.faulty = True
        return _Fault(reason, member)

    def members(self, pairs: list[tuple[str, Any]]) -> object:
        found = dict(pairs)
        if len(found) == len(pairs):
            return found
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                return self.fault("appears twice in one object: which one is meant cannot be told", name)
            seen.add(name)
        raise AssertionError("fewer members than pairs, yet none twice")

    def number(self, digits: str) -> object:
        value = float(digits)
        if math.isinf(value):
            return self.fault(f"is {_short(digits)}, beyond the range of a float")
        if value == 0 and digits.lower().partition("e")[0].strip("-0."):
            return self.fault(f"is {_short(digits)}, too small for a float: it would become 0")
        return value

    def integer(self, digits: str) -> object:
        if len(digits.lstrip("-")) > MAX_DIGITS:
            return self.fault(f"is an integer of more than {MAX_DIGITS} digits")
        return int(digits)

    def constant(self, name: str) -> object:
        return self.fault(f"is {name}: JSON has finite numbers only")


def parse(text: bytes | str) -> Any:
    """The value of a JSON text from outside, read strictly. Raises NotExact with path or position."""
    if isinstance(text, bytes) and (found := _reread(text)) is not None:
        return found
    source = text if isinstance(text, str) else _as_text(text)
    if source.startswith("\ufeff"):
        raise NotExact("$: the text starts with a byte order mark; remove it (position 0)", path="$")
    reader = _Reader()
    hooks: dict[str, Callable[..., object]] = {
        "object_pairs_hook": reader.members,
        "parse_float": reader.number,
        "parse_int": reader.integer,
        "parse_constant": reader.constant,
    }
    try:
        value = json.loads(source, **hooks)  # type: ignore[arg-type]  # the hooks go by name
    except json.JSONDecodeError as error:
        _refuse_text(f"{error.msg} at line {error.lineno}, column {error.colno}", error.pos)
    except RecursionError:
        _refuse_text(f"the text is nested deeper than {MAX_DEPTH} levels", _depth_position(source))
    if reader.faulty:
        path, reason = _locate(value)
        raise NotExact(f"{path} {reason}", path=path)
    encode(value)  # lone surrogates, over-deep nesting
    return value


def _reread(text: bytes) -> Any:
    """The value, if a writer spells it as this very text: then nothing was dropped or changed. None if none does."""
    try:
        value = _loads(text)
        again = json.dumps(value, ensure_ascii=text.isascii()).encode() if b'": ' in text else _dumps(value)
        if again == text and (len(text) <= _SHORTEST_DEEP or not _too_deep(text, value)):
            return value
    except (TypeError, ValueError, RecursionError):
        pass
    return None


def _as_text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise NotExact(f"$: byte {error.start} is not valid UTF-8 ({error.reason})", path="$") from None


def _refuse_text(what: str, position: int) -> NoReturn:
    raise NotExact(f"$: not JSON: {what} (position {position})", path="$") from None


def _short(digits: str) -> str:
    return digits if len(digits) <= 40 else digits[:37] + "..."


def _depth_position(source: str) -> int:
    depth = 0
    for position, character in enumerate(source):
        depth += (character in "[{") - (character in "]}")
        if depth > MAX_DEPTH:
            return position
    return len(source)


def _locate(value: object) -> tuple[str, str]:
    stack: list[tuple[str, Any]] = [("$", value)]
    while stack:
        path, item = stack.pop()
        if isinstance(item, _Fault):
            return (path if item.member is None else member_path(path, item.member)), item.reason
        if isinstance(item, dict):
            stack.extend(reversed([(member_path(path, name), inner) for name, inner in item.items()]))
        elif isinstance(item, list):
            stack.extend(reversed([(member_path(path, index), inner) for index, inner in enumerate(item)]))
    raise AssertionError("a fault was reported, yet none is in the document")


def mixed_names(value: object) -> str | None:
    """The path of a mapping whose names are of several types (`{1: "a", "1": "b"}`), or None."""
    stack: list[tuple[str, Any]] = [("$", value)]
    seen: set[int] = set()
    while stack:
        path, node = stack.pop()
        if not isinstance(node, (dict, list, tuple)) or id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, dict):
            if len(set(map(type, node))) > 1:
                return path
            stack += [(member_path(path, str(name)), member) for name, member in node.items()]
        else:
            stack += [(member_path(path, place), member) for place, member in enumerate(node)]
    return None
