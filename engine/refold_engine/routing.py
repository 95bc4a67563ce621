"""Deterministic routes: which agent goes on, decided by the state, before any model is asked.

Rules of this module
- In order, the first that is true wins. A router that is broken on this state is skipped and named (fail-open); a key
  that is not set yet makes it no match.
- The keys a decision looked at are named by it, with their versions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from refold_engine.config import Router
from refold_engine.ports import Json
from refold_store.drafting import DraftRead
from refold_store.errors import ConditionFailed, UnknownKey
from refold_store.reads import Read

Peek = Callable[[str], "Read | DraftRead"]


class Peeked(Mapping[str, Json]):
    """The state as routers see it: looked up key by key, and remembered with the version seen."""

    def __init__(self, peek: Peek, names: Callable[[], Sequence[str]], extra: Mapping[str, Json] | None = None) -> None:
        self._peek = peek
        self._names = names
        self._extra = dict(extra or {})
        self._held: dict[str, tuple[int, Json] | None] = {}

    def __getitem__(self, key: str) -> Json:
        if key in self._extra:
            return self._extra[key]
        found = self._look(key)
        if found is None:
            raise KeyError(key)
        return found[1]

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and (key in self._extra or self._look(key) is not None)

    def __iter__(self) -> Iterator[str]:
        return iter([*self._names(), *self._extra])

    def __len__(self) -> int:
        return len(self._names()) + len(self._extra)

    def _look(self, key: str) -> tuple[int, Json] | None:
        if key not in self._held:
            try:
                read = self._peek(key)
            except UnknownKey:
                self._held[key] = None
            else:
                self._held[key] = None if read.absent or read.erased else (read.version, read.json)
        return self._held[key]

    @property
    def seen(self) -> list[list[Json]]:
        """[key, version] of each key looked at that held a value, in the order of the looks."""
        return [[key, found[0]] for key, found in self._held.items() if found is not None]


@dataclass(frozen=True, slots=True)
class Routed:
    """What the routers said: a target and the router that named it, or none; and those that were broken."""

    target: str | None = None
    router: Router | None = None
    seen: list[list[Json]] = field(default_factory=list)
    broken: list[tuple[Router, str]] = field(default_factory=list)


def route(routers: Sequence[Router], state: Peeked) -> Routed:
    """The first router that is true."""
    broken: list[tuple[Router, str]] = []
    for router in routers:
        try:
            target = _target(router, state)
        except ConditionFailed as error:
            broken.append((router, str(error)))
            continue
        except Exception as error:  # a function of the configuration
            broken.append((router, f"{type(error).__name__}: {error}"))
            continue
        if target is not None:
            return Routed(target, router, state.seen, broken)
    return Routed(None, None, state.seen, broken)


def _target(router: Router, state: Peeked) -> str | None:
    if router.condition is not None:
        return router.targets[0] if router.condition(state) is True else None
    assert router.function is not None
    found = router.function(state)
    if found is True:
        return router.targets[0]
    if not found:
        return None
    if found not in router.targets:
        raise ValueError(f"{found!r} is none of its targets: {', '.join(router.targets)}")
    return str(found)
