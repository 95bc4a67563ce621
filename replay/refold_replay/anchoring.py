"""Anchors: the newest digest of every run, to be kept where nobody who can change the store can change it.

Rules of this module
- A run's entry is one leaf of a Merkle tree; the leaves stand in the order of tenant, scope and run, by bytes. What is
  signed is the root, with the time and the number of runs, so that a proof of one run carries the same signature.
- A document from outside is not trusted: every member is checked before it is used, and its root is made again.
- Whether the store still fits is `anchored`'s to say.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from struct import pack
from typing import TYPE_CHECKING, Any, NoReturn

from refold_replay import merkle, signing
from refold_replay.scanning import SCANS
from refold_store import jsontext
from refold_store.backend import MAX_SEQ
from refold_store.errors import ConfigError, Damaged, NameInvalid, NoSuchRun
from refold_store.names import check_name
from refold_store.store import Store

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

ANCHOR_FORM = "refold.anchor.1"
PROOF_FORM = "refold.proof.1"
DOCUMENT_MAX = 1 << 28
"""Bytes of an anchor's file: a million runs take half of it."""
DIGEST_BYTES = 32
SCOPES = ("", "tenant", "global")
"""What the run of a scope is called in messages."""
_HASH = re.compile("[0-9a-f]{64}")
_SIGNATURE = re.compile("[0-9a-f]{128}")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")


@dataclass(frozen=True, slots=True)
class Head:
    """How far a run's log reached: its newest seq, and that event's digest in hex."""

    tenant: str
    run: str
    scope: int
    seq: int
    digest: str

    @property
    def order(self) -> tuple[bytes, int, bytes]:
        """Where it stands among the leaves."""
        return self.tenant.encode(), self.scope, self.run.encode()

    def leaf(self) -> bytes:
        """Its leaf hash: tenant and run with their lengths (4 bytes), scope (1), seq (8), digest (32), big-endian."""
        tenant, run = self.tenant.encode(), self.run.encode()
        return merkle.leaf(
            pack(">I", len(tenant)) + tenant + pack(">I", len(run)) + run
            + pack(">BQ", self.scope, self.seq) + bytes.fromhex(self.digest)
        )  # fmt: skip

    def entry(self) -> list[Any]:
        """As it stands in a document."""
        return [self.tenant, self.run, self.scope, self.seq, self.digest]


@dataclass(frozen=True, slots=True)
class Anchor:
    """The heads of all runs at one time, under one root. `public_key` and `signature` in hex, None if not signed."""

    made_at: str
    heads: tuple[Head, ...]
    root: str
    public_key: str | None = None
    signature: str | None = None

    @property
    def size(self) -> int:
        """How many runs it knows."""
        return len(self.heads)

    def document(self) -> dict[str, Any]:
        """As a JSON document."""
        return {
            "form": ANCHOR_FORM, "made_at": self.made_at, "runs": [head.entry() for head in self.heads],
            "root": self.root, "public_key": self.public_key, "signature": self.signature,
        }  # fmt: skip

    def problems(self, public_key: bytes | None = None) -> list[str]:
        """Why it cannot be trusted; nothing if it can. With a key: it must have been signed by this one."""
        found = []
        order = [head.order for head in self.heads]
        if any(before >= after for before, after in pairwise(order)):
            found.append("its runs are not in order, or one stands there twice")
        if merkle.root([head.leaf() for head in self.heads]).hex() != self.root:
            found.append("its root is not that of its runs: it was changed after it was made")
        return found + _unsigned(self, public_key)

    def prove(self, run: str, tenant: str = "default", scope: int = 0) -> Proof:
        """That this run, at this seq and digest, is in the anchor: without telling of any other. Raises NoSuchRun."""
        for index, head in enumerate(self.heads):
            if (head.tenant, head.run, head.scope) == (tenant, run, scope):
                path = merkle.path([one.leaf() for one in self.heads], index)
                hashes = tuple(beside.hex() for beside in path)
                return Proof(
                    self.made_at, head, index, self.size, hashes, self.root, self.public_key, self.signature
                )  # fmt: skip
        raise NoSuchRun(run=run, tenant=tenant)


@dataclass(frozen=True, slots=True)
class Proof:
    """That an anchor holds one run: its head, its place among the leaves, and the neighbours up to the root."""

    made_at: str
    head: Head
    index: int
    size: int
    path: tuple[str, ...]
    root: str
    public_key: str | None = None
    signature: str | None = None

    @property
    def heads(self) -> tuple[Head, ...]:
        """The one head it knows."""
        return (self.head,)

    def document(self) -> dict[str, Any]:
        """As a JSON document."""
        return {
            "form": PROOF_FORM, "made_at": self.made_at, "run": self.head.entry(), "index": self.index,
            "size": self.size, "path": list(self.path), "root": self.root, "public_key": self.public_key,
            "signature": self.signature,
        }  # fmt: skip

    def problems(self, public_key: bytes | None = None) -> list[str]:
        """Why it proves nothing; nothing if it does. With a key: the root must have been signed by this one."""
        found = []
        made = merkle.root_of(self.head.leaf(), self.index, self.size, [bytes.fromhex(one) for one in self.path])
        if made is None or made.hex() != self.root:
            found.append("its path does not lead from the run to the root")
        return found + _unsigned(self, public_key)


def signed_text(made_at: str, size: int, root: str) -> bytes:
    """What a signature is made over: four lines of ASCII."""
    return f"{ANCHOR_FORM}\n{made_at}\n{size}\n{root}\n".encode()


def _unsigned(one: Anchor | Proof, public_key: bytes | None) -> list[str]:
    if one.signature is None or one.public_key is None:
        return [] if public_key is None else ["it is not signed, and a signature is asked for"]
    if public_key is not None and one.public_key != public_key.hex():
        return [f"it is signed with another key: {one.public_key}"]
    text = signed_text(one.made_at, one.size, one.root)
    if not signing.verify(bytes.fromhex(one.public_key), text, bytes.fromhex(one.signature)):
        return ["its signature does not fit: it was changed after it was signed"]
    return []


# --- making ----------------------------------------------------------------------------------


def anchor(store: Store, *, tenant: str | None = None, key: Ed25519PrivateKey | None = None) -> Anchor:
    """The heads of every run of a store, or of a tenant; signed if there is a key (`signing.load_private`).

    Raises Damaged where a run's newest event has no digest.
    """
    store.flush()
    backend = store._backend
    found = []
    for number, of, name, scope, parent, _at in backend.query(SCANS[backend.name].runs, ()):
        if tenant is not None and of != tenant:
            continue
        backend.met(number, parent)
        head = backend.head(number)
        if head is None:
            continue
        seq: int = head[0]
        digest: object = head[1]
        if not isinstance(digest, bytes) or len(digest) != DIGEST_BYTES:
            raise Damaged(f"run {name!r}: the event at seq {seq} has no digest; run `refold verify`", run=name, seq=seq)
        found.append(Head(of, name, scope, seq, digest.hex()))
    heads = tuple(sorted(found, key=lambda one: one.order))
    root = merkle.root([head.leaf() for head in heads]).hex()
    when = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=store._sealer.now(None))
    made_at = when.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    if key is None:
        return Anchor(made_at, heads, root)
    signature = signing.sign(key, signed_text(made_at, len(heads), root))
    return Anchor(made_at, heads, root, signing.public_of(key).hex(), signature.hex())


# --- reading ---------------------------------------------------------------------------------


def read_anchor(text: bytes) -> Anchor:
    """An anchor from its document. Raises ConfigError: what is there, and what an anchor has."""
    members = _members(text, ANCHOR_FORM, ("made_at", "public_key", "root", "runs", "signature"))
    runs = members["runs"]
    if not isinstance(runs, list):
        _refuse(f"runs is {_kind(runs)}, not a list")
    heads = tuple(_head(entry, f"runs[{at}]") for at, entry in enumerate(runs))
    return Anchor(**_common(members), heads=heads)


def read_proof(text: bytes) -> Proof:
    """A proof from its document. Raises ConfigError: what is there, and what a proof has."""
    wanted = ("index", "made_at", "path", "public_key", "root", "run", "signature", "size")
    members = _members(text, PROOF_FORM, wanted)
    path = members["path"]
    if not isinstance(path, list) or len(path) > merkle.PATH_MAX or not all(_fits(one, _HASH) for one in path):
        _refuse(f"path is no list of hashes, {merkle.PATH_MAX} at most")
    for name in ("index", "size"):
        if type(members[name]) is not int or not 0 <= members[name] < 1 << 63:
            _refuse(f"{name} is no number of runs")
    head = _head(members["run"], "run")
    return Proof(
        **_common(members), head=head, index=members["index"], size=members["size"], path=tuple(path)
    )  # fmt: skip


def _members(text: bytes, form: str, wanted: tuple[str, ...]) -> dict[str, Any]:
    if len(text) > DOCUMENT_MAX:
        _refuse(f"it is larger than {DOCUMENT_MAX} bytes")
    try:
        found = jsontext.parse(text)
    except Exception as error:  # a text from outside may be anything
        raise ConfigError(f"it is no JSON: {error}") from None
    if not isinstance(found, dict):
        _refuse(f"it is {_kind(found)}, not an object")
    if found.get("form") != form:
        _refuse(f"its form is {jsontext.encode(found.get('form')).decode()[:80]}, not {form!r}")
    if sorted(found) != sorted(("form", *wanted)):
        _refuse(f"its members are not form, {', '.join(wanted)}")
    return found


def _common(members: dict[str, Any]) -> dict[str, Any]:
    """The members that both documents have."""
    checks: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
        ("made_at", lambda one: _fits(one, _TIME), "a time like 2026-11-30T02:00:00.000000Z"),
        ("root", lambda one: _fits(one, _HASH), "a hash of 64 hex digits"),
        ("public_key", lambda one: one is None or _fits(one, _HASH), "a key of 64 hex digits, or null"),
        ("signature", lambda one: one is None or _fits(one, _SIGNATURE), "a signature of 128 hex digits, or null"),
    )
    for name, holds, right in checks:
        if not holds(members[name]):
            _refuse(f"{name} is not {right}")
    if (members["public_key"] is None) != (members["signature"] is None):
        _refuse("public_key and signature come together")
    return {name: members[name] for name, _holds, _right in checks}


def _head(entry: Any, where: str) -> Head:
    if not isinstance(entry, list) or len(entry) != 5:
        _refuse(f"{where} is not [tenant, run, scope, seq, digest]")
    tenant, run, scope, seq, digest = entry
    try:
        check_name("tenant", tenant)
        check_name("run", run)
    except (NameInvalid, TypeError, AttributeError) as error:
        _refuse(f"{where}: {error}")
    if type(scope) is not int or not 0 <= scope < len(SCOPES):
        _refuse(f"{where}: the scope is 0, 1 or 2")
    if type(seq) is not int or not 0 < seq <= MAX_SEQ:
        _refuse(f"{where}: the seq is a number from 1 on")
    if not _fits(digest, _HASH):
        _refuse(f"{where}: the digest is no hash of 64 hex digits")
    return Head(tenant, run, scope, seq, digest)


def _fits(text: Any, pattern: re.Pattern[str]) -> bool:
    return isinstance(text, str) and pattern.fullmatch(text) is not None


def _kind(value: Any) -> str:
    words: dict[type, str] = {dict: "an object", list: "a list", str: "a text"}
    return words.get(type(value), "a number or null")


def _refuse(message: str) -> NoReturn:
    raise ConfigError(message)
