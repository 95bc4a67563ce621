"""Keys: what the write path and the fold need of one declared key, compiled once.

Rules
- `prepare` checks an update against its type and detaches it from the caller's objects; `reduce` combines it with the
  previous value; `fold` replays stored updates on JSON documents. A family is one Key for all its members.
- A key stores whole values ("value"), so that its history never depends on code; or, where a built-in reducer works on
  an open type (members are checked one by one, the whole is not), the update alone ("update"), so that a write costs
  its update.
- Errors carry the key's declared name and a path; the caller adds the writer (and the member's name of a family).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from refold_store.codecs import Codec
from refold_store.errors import InvalidValue, Refused, TooLarge
from refold_store.families import Family
from refold_store.jsontext import decode
from refold_store.reducers import Reducer

MAX_BYTES = 16 * 1024 * 1024
"""Longest value of a key that declares no `max_bytes`, in bytes of JSON text."""
MAX_BYTES_LIMIT = 512 * 1024 * 1024
"""Most that `max_bytes` can allow: half of the largest row that both backends take."""

Stores = Literal["value", "update"]
Scope = Literal["run", "tenant", "global"]
SCOPES: tuple[Scope, ...] = ("run", "tenant", "global")

Upcaster = Callable[[Any], Any]
Check = Callable[[object], tuple[Any, bytes]]


class Everyone(frozenset[str]):
    """The actors of a key that anybody may write (only in the open schema)."""

    __slots__ = ()

    def __contains__(self, _name: object) -> bool:
        return True


class Options:
    """The options of a key, as declared."""

    __slots__ = ("basis_required", "max_bytes", "readers", "scope", "sensitive")

    def __init__(
        self,
        *,
        basis_required: bool = False,
        scope: Scope = "run",
        sensitive: bool = False,
        readers: tuple[str, ...] | None = None,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self.basis_required = basis_required
        self.scope = scope
        self.sensitive = sensitive
        self.readers = readers
        self.max_bytes = max_bytes

    def declaration(self) -> dict[str, object]:
        """The options that differ from their defaults, as JSON."""
        default = Options()
        given = {name: getattr(self, name) for name in self.__slots__ if getattr(self, name) != getattr(default, name)}
        if self.readers is not None:
            given["readers"] = list(self.readers)
        return given


class Prepared:
    """An update that fits its type: its canonical text, the validated object, and the value's text if already known."""

    __slots__ = ("text", "typed", "value_text")

    def __init__(self, text: bytes, typed: Any, value_text: bytes | None) -> None:
        self.text = text
        self.typed = typed
        self.value_text = value_text


class Key:
    """One declared key or family."""

    __slots__ = (
        "_check",
        "_codec",
        "_normal",
        "_read",
        "_upcaster",
        "actors",
        "basis_required",
        "family",
        "max_bytes",
        "name",
        "needs_previous",
        "options",
        "owner",
        "prepare",
        "readers",
        "reducer",
        "scope",
        "sensitive",
        "stores",
    )

    prepare: Callable[[object], Prepared]

    def __init__(
        self,
        name: str,
        *,
        owner: str,
        actors: frozenset[str],
        codec: Codec,
        reducer: Reducer,
        stores: Stores = "value",
        needs_previous: bool = False,
        update_check: Check | None = None,
        normal: Callable[[Any], Any] | None = None,
        options: Options | None = None,
        family: bool = False,
        upcaster: Upcaster | None = None,
    ) -> None:
        self.name = name
        self.owner = owner
        self.actors = actors
        self.reducer = reducer
        self.stores = stores
        self.needs_previous = needs_previous
        self.family = Family(name) if family else None
        self.options = options or Options()
        self.basis_required = self.options.basis_required
        self.scope = self.options.scope
        self.sensitive = self.options.sensitive
        self.readers = self.options.readers
        self.max_bytes = self.options.max_bytes
        self._codec = codec
        self._check = update_check or codec.check
        self._normal = normal
        self._read = codec.typed
        self._upcaster = upcaster
        self.prepare = self._prepare_last if reducer.name == "last" else self._prepare_update

    @property
    def schema(self) -> Mapping[str, Any]:
        """The JSON Schema of the key's values."""
        return self._codec.schema

    @property
    def depends_on_previous(self) -> bool:
        """Whether a value is made from the previous one (any reducer but `last`)."""
        return self.reducer.name != "last"

    def _prepare_last(self, update: object) -> Prepared:
        try:
            typed, text = self._check(update)
        except Refused as error:
            error.key = self.name
            raise
        if len(text) > self.max_bytes:
            raise self._too_large(text)
        return Prepared(text, typed, text)

    def _prepare_update(self, update: object) -> Prepared:
        try:
            typed, text = self._check(update if self._normal is None else self._normal(update))
        except Refused as error:
            error.key = self.name
            raise
        if len(text) > self.max_bytes:
            raise self._too_large(text)
        return Prepared(text, typed, None)

    def reduce(self, prepared: Prepared, previous: bytes | None) -> bytes | None:
        """The next value's text, from the previous value's text (None: absent); None if the key stores updates.

        Raises ReducerError when the two cannot be combined, InvalidValue or NotExact when the result does not fit.
        """
        if prepared.value_text is not None:
            return prepared.value_text
        try:
            if self.stores == "update":
                if self.needs_previous:
                    self.fold(None if previous is None else decode(previous), decode(prepared.text))
                return None
            return self._reduce_whole(prepared, previous)
        except Refused as error:
            error.key = self.name
            raise

    def _reduce_whole(self, prepared: Prepared, previous: bytes | None) -> bytes:
        read = self._codec.typed if self.reducer.custom and not self.reducer.fields else self._codec.loose
        old = None if previous is None else self._reread(previous, read)
        if self._codec.documents:
            result = self.reducer.fold_many(old, (prepared.typed,))
        else:
            result = self.reducer(old, prepared.typed)
        try:
            _, text = self._codec.check(result)
        except InvalidValue as error:
            error.args = (f"the result of {self.reducer.name}: {error.detail}", *error.args[1:])
            raise
        if len(text) > self.max_bytes:
            raise self._too_large(text)
        return text

    def typed(self, text: bytes) -> Any:
        """The value of a stored text in its declared type, through the key's upcaster if it no longer fits.

        Raises InvalidValue with key and path if it does not fit even so: the text itself stays readable.
        """
        try:
            return self._read(text) if self._upcaster is None else self._reread(text, self._read)
        except InvalidValue as error:
            error.key = self.name
            raise

    def verify(self, text: bytes) -> None:
        """Raises InvalidValue with key and path if a stored text does not fit the declared type or size."""
        if len(text) > self.max_bytes:
            raise self._too_large(text)
        try:
            self._codec.verify(text)
        except InvalidValue as error:
            error.key = self.name
            raise

    def _reread(self, text: bytes, read: Callable[[bytes], Any]) -> Any:
        if self._upcaster is None:
            return read(text)
        try:
            self._codec.verify(text)
        except InvalidValue as unfit:
            try:
                older = self._upcaster(decode(text))
            except Exception as error:  # the upcaster is the user's
                raise InvalidValue(
                    f"{unfit.detail}; its upcaster failed: {type(error).__name__}: {error}", path=unfit.path or "$"
                ) from error
            _, text = self._codec.check(older)
        return read(text)

    def fold(self, previous: Any, update: Any) -> Any:
        """The next JSON document, from the previous one (None: absent) and a stored update. Changes neither."""
        return self.reducer.fold_many(previous, (update,))

    def fold_many(self, previous: Any, updates: Iterable[Any]) -> Any:
        """The JSON document after all the updates, oldest first: one pass, where `fold` in a loop would copy each."""
        return self.reducer.fold_many(previous, updates)

    def declaration(self) -> dict[str, Any]:
        """The key as JSON, as it goes into the stored declaration."""
        entry: dict[str, Any] = {"owner": self.owner, "type": dict(self.schema), "reducer": self.reducer.spec}
        entry["stores"] = self.stores
        if not self._codec.formats:
            entry["typed"] = True
        if self.family is not None:
            entry["family"] = True
        return entry | self.options.declaration()

    def _too_large(self, text: bytes) -> TooLarge:
        return TooLarge(size=len(text), max_bytes=self.max_bytes, key=self.name)

    def __repr__(self) -> str:
        return f"Key({self.name!r}, owner={self.owner!r}, reducer={self.reducer.name})"
