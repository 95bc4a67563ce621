"""Names of tenants, runs, keys and agents.

A name is any text of 0 to 1,024 UTF-8 bytes without NUL and without lone surrogates. Names are compared by bytes.
"""

from __future__ import annotations

from refold_store.errors import NameInvalid

MAX_NAME_BYTES = 1024
"""Longest name in UTF-8 bytes: fits an index entry on both backends."""

MAX_TURN = (1 << 63) - 1
"""Largest number of a turn: what a column holds."""

_known: set[str] = set()
_KNOWN_MAX = 4096
"""Names remembered as valid, so that a hot path checks each once."""


def check_name(what: str, name: object) -> str:
    """Return `name` if it can be stored. `what` is "run", "key", "writer" ... Raises NameInvalid."""
    if type(name) is str and name in _known:
        return name
    if not isinstance(name, str):
        raise NameInvalid(
            f"{'an' if what[:1] in 'aeiou' else 'a'} {what} name must be text, not {type(name).__name__}: {name!r}",
            what=what,
            name=name,
        )
    if "\0" in name:
        raise NameInvalid(f"the {what} name {name!r} holds a NUL character; remove it", what=what, name=name)
    try:
        size = len(name.encode())
    except UnicodeEncodeError as error:
        raise NameInvalid(
            f"the {what} name {name!r} holds a lone surrogate at character {error.start}; it is not valid Unicode",
            what=what,
            name=name,
        ) from None
    if size > MAX_NAME_BYTES:
        raise NameInvalid(
            f"the {what} name is {size} bytes in UTF-8, at most {MAX_NAME_BYTES} are allowed: {name[:40]!r}...",
            what=what,
            name=name,
        )
    if len(_known) < _KNOWN_MAX:
        _known.add(str(name))
    return name


def check_turn(turn: object) -> int | None:
    """Return `turn` if it is None or can be stored as a turn's number. Raises NameInvalid."""
    if turn is None or (type(turn) is int and 0 <= turn <= MAX_TURN):
        return turn
    raise NameInvalid(f"a turn is a whole number from 0 to {MAX_TURN}, not {turn!r}", what="turn", name=turn)
