"""What the events of turns must agree on: attempts count up, and only the newest one ends its turn.

Rules of this module
- Pure, and one stretch of a run at a time: of a turn that began before the stretch nothing is known, or said.
- Imported turns number no attempts; they are left alone.
"""

from __future__ import annotations

from collections.abc import Iterator

from refold_store.events import KIND_ID, TURN_COMMITTED, TURN_INTERRUPTED, TURN_ROLLED_BACK, TURN_STARTED

TURN_ENDS = frozenset((TURN_COMMITTED, TURN_INTERRUPTED))
"""The kinds that end a turn well."""
CLOSING = TURN_ENDS | {KIND_ID["branch.merged"]}
"""The kinds that may close a transaction: it may then name a key more than once."""
IN_TURNS = CLOSING | {KIND_ID[name] for name in ("handoff.made", "route.decided", "message.added")}
"""The kinds that may stand in a transaction behind the writes."""
_OVER = TURN_ENDS | {TURN_ROLLED_BACK}
TURNS = _OVER | {TURN_STARTED}
"""The kinds that `judge` looks at."""


class TurnRules:
    """Follows the turns of one stretch."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[int, int | None]] = {}

    def judge(self, kind: int, turn: int, attempt: object) -> Iterator[str]:
        """What is wrong with one event. `turn` is -1 for none."""
        if turn == -1 or not isinstance(attempt, int):
            return
        known = self._known.get(turn)
        if kind == TURN_STARTED:
            if known is not None:
                if attempt != known[0] + 1:
                    yield f"attempt {attempt} of turn {turn} follows attempt {known[0]}"
                if known[1] in TURN_ENDS:
                    yield f"turn {turn} begins again after it was committed"
                elif known[1] is None:
                    yield f"attempt {attempt} of turn {turn} begins while attempt {known[0]} is open"
            self._known[turn] = attempt, None
        elif kind in _OVER and known is not None:
            if attempt != known[0]:
                yield f"attempt {attempt} ends turn {turn}, whose newest attempt is {known[0]}"
            elif known[1] is not None:
                yield f"attempt {attempt} of turn {turn} ends twice"
            self._known[turn] = known[0], kind
