"""A model that answers from a record and never anything else.

Rules of this module
- A request is known by the digest of its canonical JSON. The nth request of one digest gets its nth answer.
- A request that the record does not hold is NotRecorded: it names the recorded request most like it and the first
  place where the two differ. Nothing is guessed and nobody else is asked.
- What failed on the record fails here in the same way.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from refold_engine.errors import ModelFailed, NotRecorded
from refold_engine.ports import Message, ModelAnswer, ModelRequest, digest_of
from refold_store import jsontext

MAX_COMPARED = 1000
"""Recorded requests compared for a miss, the newest first: enough for any run, and a miss stays quick."""

MAX_SHOWN = 60
"""Characters shown of each side of a difference."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place where two requests differ. `role` is the message's, None outside the messages."""

    path: str
    role: str | None
    recorded: str
    asked: str
    alike: int
    """How much is the same before it: settings that agree, and messages from the front."""


class RecordedModel:
    """A Model that serves recorded answers. Safe for several threads."""

    def __init__(
        self,
        answers: Mapping[str, Sequence[ModelAnswer | ModelFailed]],
        requests: Iterable[ModelRequest] = (),
    ) -> None:
        """`answers`: digest of a request to what it got, in order. `requests`: the recorded ones, to explain a miss."""
        self._answers = {digest: tuple(found) for digest, found in answers.items()}
        self._requests = tuple(requests)
        self._served: Counter[str] = Counter()
        self._lock = threading.Lock()

    def answer(self, request: ModelRequest, *, timeout_s: float) -> ModelAnswer:
        """What was recorded for this request. Raises NotRecorded, or the ModelFailed on the record."""
        digest = digest_of(request.to_json())
        with self._lock:
            ordinal = self._served[digest]
            recorded = self._answers.get(digest, ())
            if ordinal >= len(recorded):
                raise self._missing(request, digest, len(recorded))
            self._served[digest] += 1
        found = recorded[ordinal]
        if isinstance(found, ModelFailed):
            raise found
        return found

    def unused(self) -> dict[str, int]:
        """Digest to number of recorded answers that were not asked for."""
        with self._lock:
            left = {digest: len(found) - self._served[digest] for digest, found in self._answers.items()}
        return {digest: count for digest, count in left.items() if count}

    def _missing(self, request: ModelRequest, digest: str, times: int) -> NotRecorded:
        start = f"the record holds no answer of {request.model!r} to request {digest[:12]}"
        if times:
            message = f"{start} number {times + 1}: it was asked {times} time(s) then; a loop ran longer this time"
            return NotRecorded(message, digest=digest, model=request.model, nearest=digest, path=None, role=None)
        near = nearest(request, self._requests)
        if near is None:
            message = f"{start}, and no other request to compare it with; check that this is the run's record"
            return NotRecorded(message, digest=digest, model=request.model, nearest=None, path=None, role=None)
        recorded, found = near
        where = f"{found.path} ({found.role})" if found.role else found.path
        return NotRecorded(
            f"{start}; the nearest recorded one differs first at {where}: recorded {found.recorded}, "
            f"asked {found.asked}; find what changed it (prompt, config, tool or state), or ask a live model",
            digest=digest,
            model=request.model,
            nearest=digest_of(recorded.to_json()),
            path=found.path,
            role=found.role,
        )


def nearest(request: ModelRequest, recorded: Sequence[ModelRequest]) -> tuple[ModelRequest, Difference] | None:
    """The recorded request most like this one (of equals the earliest), and where they first differ."""
    best: tuple[ModelRequest, Difference] | None = None
    for one in recorded[-MAX_COMPARED:]:
        found = difference(one, request)
        if found is not None and (best is None or found.alike > best[1].alike):
            best = (one, found)
    return best


def difference(recorded: ModelRequest, asked: ModelRequest) -> Difference | None:
    """The first place where two requests differ, messages first; None if they are equal."""
    theirs, ours = _settings(recorded), _settings(asked)
    agreeing = sum(theirs[name] == ours[name] for name in theirs)
    longest = max(len(recorded.messages), len(asked.messages))
    for index in range(longest):
        then, now = _at(recorded.messages, index), _at(asked.messages, index)
        if _text(then) != _text(now):
            shown = now if now is not None else then
            assert shown is not None, "one side has a message here"
            return Difference(f"messages[{index}]", shown.role, *_shown(then, now), alike=agreeing + index)
    for name, text in theirs.items():
        if text != ours[name]:
            return Difference(name, None, *_apart(text, ours[name]), alike=agreeing + longest)
    return None


def _settings(request: ModelRequest) -> dict[str, str]:
    """All but the messages, as the text that the digest is made of: 0 and 0.0 differ there."""
    return {name: jsontext.encode(value).decode() for name, value in request.to_json().items() if name != "messages"}


def _text(message: Message | None) -> bytes:
    return b"" if message is None else jsontext.encode(message.to_json())


def _at(messages: Sequence[Message], index: int) -> Message | None:
    return messages[index] if index < len(messages) else None


def _shown(then: Message | None, now: Message | None) -> tuple[str, str]:
    if then is None or now is None:
        return _told(then), _told(now)
    if then.role != now.role:
        return f"role {then.role!r}", f"role {now.role!r}"
    if then.content != now.content:
        return _apart(then.content, now.content)
    return _apart(_text(then).decode(), _text(now).decode())


def _told(message: Message | None) -> str:
    return "no message" if message is None else _cut(message.content, 0)


def _apart(then: str, now: str) -> tuple[str, str]:
    """Both texts from a little before where they part."""
    same = next((at for at, (one, other) in enumerate(zip(then, now, strict=False)) if one != other), None)
    start = max(0, (min(len(then), len(now)) if same is None else same) - MAX_SHOWN // 3)
    return _cut(then, start), _cut(now, start)


def _cut(text: str, start: int) -> str:
    part = text[start : start + MAX_SHOWN]
    return repr(f"{'...' if start else ''}{part}{'...' if start + MAX_SHOWN < len(text) else ''}")
