"""Origins: for each place in a JSON document, which of its versions put there what stands there now.

Rules of this module
- Pure. A document's *leaves* are its scalars, empty objects and empty lists; only they have an origin.
- A leaf keeps its origin from one version to the next where the value at its place stays equal, types included.
- A list that grew or shrank keeps the origins of its equal beginning and, behind the change, of its equal end; what
  lies between is compared by position. The members of a set (reducer `union`) keep theirs wherever they are sorted to.
- After a delete, or a value that is not known, everything is new.
- An update costs its own size, not the value's, for `append`, `merge` and `union`; other reducers fold the value.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from refold_replay.diff import MISSING, Missing
from refold_store.jsontext import encode, member_path
from refold_store.keys import Key

Origin = Any
"""What a leaf's origin is told by: any object that is neither a dict nor a list."""
Tree = Any
"""The origins of a document: an object or a list of trees where the document has members, else an Origin."""


def fresh(value: Any, origin: Origin) -> Tree:
    """The tree of a document in which everything is of one origin."""
    return carry(MISSING, None, value, origin)


def carry(old: Any, tree: Tree, new: Any, origin: Origin) -> Tree:
    """The tree of `new`: what it shares with `old` keeps the origins of `tree`, the rest is of `origin`."""
    top: list[Tree] = [None]
    stack: list[tuple[Any, Tree, Any, Any, Any]] = [(old, tree, new, top, 0)]
    while stack:
        old, tree, new, into, at = stack.pop()
        if old is new:
            into[at] = tree
        elif type(new) is dict and new:
            into[at] = made = dict.fromkeys(new)
            known = old if type(old) is dict else {}
            for name, inner in new.items():
                was = known.get(name, MISSING)
                below = None if was is MISSING else tree[name]
                if type(inner) in _HOLDERS:
                    stack.append((was, below, inner, made, name))
                else:
                    made[name] = below if _same_leaf(was, inner) else origin
        elif type(new) is list and new:
            into[at] = _listed(old if type(old) is list else [], tree, new, stack)
        else:
            into[at] = tree if _same_leaf(old, new) else origin
    return top[0]


_HOLDERS = (dict, list)
_GROWN: dict[str, type[Any]] = {"append": list, "union": list, "merge": dict}
"""The built-in reducers whose updates are parts of the value, and of which type both are."""


def _listed(old: list[Any], tree: Tree, new: list[Any], stack: list[tuple[Any, Tree, Any, Any, Any]]) -> list[Tree]:
    """The trees of a list's items; those that need a closer look go onto the stack."""
    made: list[Tree] = [None] * len(new)
    shorter = min(len(old), len(new))
    start = 0
    while start < shorter and equal(old[start], new[start]):
        made[start] = tree[start]
        start += 1
    end = 0
    if len(old) != len(new):
        while end < shorter - start and equal(old[-1 - end], new[-1 - end]):
            end += 1
            made[-end] = tree[len(old) - end]
    for at in range(start, len(new) - end):
        known = at < len(old) - end
        stack.append((old[at] if known else MISSING, tree[at] if known else None, new[at], made, at))
    return made


def _same_leaf(old: Any, new: Any) -> bool:
    """Whether a leaf is the same value: of one type, and equal; 0.0 and -0.0 are two."""
    if type(old) is not type(new) or old != new:
        return False
    return type(new) is not float or str(old) == str(new)


def equal(old: Any, new: Any) -> bool:
    """Whether two documents are equal, types included."""
    if type(old) not in _HOLDERS:
        return _same_leaf(old, new)
    return type(old) is type(new) and bool(old == new) and encode(old) == encode(new)


def leaves(value: Any, tree: Tree) -> Iterator[tuple[str, Any, Origin]]:
    """(path, value, origin) of each leaf, members by name, items by position."""
    stack: list[tuple[str, Any, Tree]] = [("$", value, tree)]
    while stack:
        path, value, tree = stack.pop()
        if type(value) is dict and value:
            stack += [(member_path(path, name), value[name], tree[name]) for name in sorted(value, reverse=True)]
        elif type(value) is list and value:
            stack += [(member_path(path, at), value[at], tree[at]) for at in range(len(value) - 1, -1, -1)]
        else:
            yield path, value, tree


class Traced:
    """The value of one key as its versions go by, with the origin of every leaf. MISSING: no value."""

    def __init__(self) -> None:
        self._value: Any = MISSING
        self._tree: Tree = None
        self._members: dict[bytes, tuple[Any, Origin]] | None = None
        """The value while it grows as a set: each member by its text. It stands for value and tree."""

    @property
    def value(self) -> Any:
        """The JSON document, or MISSING."""
        self._sort()
        return self._value

    @property
    def tree(self) -> Tree:
        """The origins of its leaves."""
        self._sort()
        return self._tree

    def clear(self) -> None:
        """No value: deleted, or not known."""
        self._value, self._tree, self._members = MISSING, None, None

    def set(self, value: Any) -> None:
        """A whole value whose origins nobody asks for."""
        self._value, self._tree, self._members = value, None, None

    def replace(self, value: Any, origin: Origin, *, as_set: bool = False) -> None:
        """A whole value."""
        if as_set and type(value) is list and type(self.value) is list:
            known = {encode(member): tree for member, tree in self._pairs()}
            self._tree = [
                known[text] if (text := encode(member)) in known else fresh(member, origin) for member in value
            ] or (self._tree if self._value == [] else origin)
        else:
            self._tree = carry(self.value, self._tree, value, origin)
        self._value = value

    def update(self, key: Key, update: Any, origin: Origin) -> None:
        """An update of a key that stores updates, by its reducer."""
        if self._tree is None and self._members is None and self._value is not MISSING:
            self._tree = fresh(self._value, origin)
        name, grown = key.reducer.name, _GROWN.get(key.reducer.name)
        if grown is not type(update) or type(self._value) not in (grown, Missing, type(None)):
            before = self.value
            folded = key.fold(None if type(before) is Missing else before, update)
            self.replace(folded, origin, as_set=name == "union")
        elif name == "append":
            self._append(update, origin)
        elif name == "merge":
            self._merge(update, origin)
        elif any(type(one) in _HOLDERS for one in update):
            key.fold(None, update)  # raises what the fold raises
        else:
            self._unite(update, origin)

    def _append(self, items: list[Any], origin: Origin) -> None:
        if not self._value:
            if self._value == [] and not items:
                return
            self._value, self._tree = items, fresh(items, origin)
            return
        self._value += items
        self._tree += [fresh(item, origin) for item in items]

    def _merge(self, update: dict[str, Any], origin: Origin) -> None:
        value = self._value
        if not value:
            if value != {} or update:
                self._value, self._tree = update, fresh(update, origin)
            return
        for name, inner in update.items():
            was = value.get(name, MISSING)
            self._tree[name] = carry(was, None if was is MISSING else self._tree[name], inner, origin)
            value[name] = inner

    def _unite(self, update: list[Any], origin: Origin) -> None:
        if self._members is None:
            value = self.value
            if not value and not (value == [] and not update):
                self._tree = origin  # of an empty set that was not there before
            self._members = {encode(member): (member, tree) for member, tree in self._pairs()}
            self._value = []
        for member in update:
            self._members.setdefault(encode(member), (member, origin))

    def _pairs(self) -> Iterator[tuple[Any, Tree]]:
        """The items of a list and their trees."""
        return zip(self._value, self._tree, strict=True) if self._value else iter(())

    def _sort(self) -> None:
        """Make value and tree of a set's members, in their stored order."""
        members, self._members = self._members, None
        if members:
            self._value = [members[text][0] for text in sorted(members)]
            self._tree = [members[text][1] for text in sorted(members)]
