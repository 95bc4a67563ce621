"""Bundles: one run as one file of gzip JSON lines. What the lines hold, and how each is written.

Rules of this module
- Pure. docs/format.md specifies what stands here; examples/verify_bundle.py reads it alone.
- A bundle is a manifest, the schemas, the events in seq order, and an end that counts and hashes all lines before it.
- What is none is left out; texts stand exactly as the log has them.
"""

from __future__ import annotations

import gzip
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from refold_replay.allowances import Allowances
from refold_store.errors import Damaged
from refold_store.events import KINDS
from refold_store.jsontext import encode

FORM: Final = 1
"""Version of the bundle's form."""
SIGNED: Final = b"refold.bundle.1"
"""What stands before the hash in the bytes that are signed."""
HEX: Final = {"salt": 16, "commitment": 32, "digest": 32, "trace_id": 16, "span_id": 8}
"""Members of an event that are bytes in hex, and how many."""

Members = dict[str, Any]


class Line(NamedTuple):
    """One event of a bundle, in the order of a row; names and refs are text, bytes are bytes."""

    seq: int
    kind: int
    actor: str | None
    owner: str | None
    txn: int | None
    turn: int | None
    key: str | None
    version: int | None
    seen_seq: int | None
    recorded_at: int
    clock: int | None
    request_id: str | None
    refs: str | None
    salt: bytes | None
    body: bytes | None
    commitment: bytes | None
    digest: bytes
    trace_id: bytes | None
    span_id: bytes | None
    trace_flags: int | None


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a bundle says of itself on its first line. `digest` is that of event `until`, the newest."""

    tenant: str
    run: str
    scope: int
    genesis: str
    """The name the log began under: that of the run it was first forked from."""
    until: int
    digest: bytes
    redacted: bool = False
    allowed: Allowances = field(default_factory=Allowances)
    """Erased values and pruned reads, as later events of the bundle say; keys by name."""


@dataclass(frozen=True, slots=True)
class End:
    """The last line."""

    events: int
    sha256: bytes
    public_key: bytes | None
    signature: bytes | None


def manifest_line(manifest: Manifest) -> bytes:
    """The first line."""
    allowed = manifest.allowed
    erased = sorted((one.seq, one.until, one.key, one.version) for found in allowed.erasures.values() for one in found)
    return _line(
        {
            "refold": "bundle",
            "form": FORM,
            "tenant": manifest.tenant,
            "run": manifest.run,
            "scope": manifest.scope,
            "genesis": manifest.genesis,
            "until": manifest.until,
            "digest": manifest.digest.hex(),
            "redacted": manifest.redacted,
            "erased": [list(one) for one in erased],
            "pruned": [
                [first, gap.last, gap.before.hex(), gap.digest.hex(), gap.said]
                for first, gap in sorted(allowed.gaps.items())
            ],
        }
    )


def schema_line(fingerprint: str, declaration: bytes) -> bytes:
    """The line of a schema."""
    return _line({"schema": fingerprint, "declaration": declaration.decode()})


def event_line(event: Line) -> bytes:
    """The line of an event: what is none is left out. Raises Damaged if a column holds what no event has."""
    members: Members = {name: value for name, value in event._asdict().items() if value is not None}
    try:
        members["kind"] = KINDS[event.kind]
        for name in HEX:
            if name in members:
                members[name] = members[name].hex()
        if event.body is not None:
            members["body"] = event.body.decode()
        return _line(members)
    except (AttributeError, IndexError, TypeError, ValueError) as error:
        raise Damaged(f"event {event.seq} has no line ({error}); run `refold verify`", seq=event.seq) from error


def end_line(events: int, digest: bytes, public_key: bytes | None, signature: bytes | None) -> bytes:
    """The last line."""
    members: Members = {"end": events, "sha256": digest.hex()}
    if public_key is not None and signature is not None:
        members |= {"public_key": public_key.hex(), "signature": signature.hex()}
    return _line(members)


def _line(members: Members) -> bytes:
    return encode(members) + b"\n"


def packed(data: bytes) -> bytes:
    """One gzip member that says nothing but its content, so that the same run gives the same file."""
    return gzip.compress(data, 6, mtime=0)
