"""What the tests of bundles share: a store with every kind of log, and bundles taken apart and put together again."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

from claims import ONTARIO, QUEBEC, ClaimState

from refold import Run, Store, erase, fork, open_store, prune
from refold_store.events import KIND_ID, chain, commit, genesis, header

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "verify_bundle.py"
Lines = list[dict[str, Any]]


def fill(url: str) -> None:
    """A run with reads, a refusal, a transaction, updates; an erased value and pruned reads; and a fork of it."""
    with open_store(url, ClaimState, strict_reads=True) as store:
        run = store.run("clm-1")
        run.write_state("routing", QUEBEC, writer="triage_agent", basis="first notice")
        for reader in ("liability_agent", "settlement_agent"):
            run.read_state("routing", reader=reader)
        with run.transaction(request_id="r1") as tx:
            tx.write_state("reserve_cap", 9, writer="reserve_agent")
            tx.write_state("spent", 1, writer="billing")
        run.write_state("routing", ONTARIO, writer="triage_agent", based_on=["routing@1"], expected_version=1)
        for number in range(30):
            run.write_state("reports", f"{number} {'x' * 300}", writer="evidence_agent")
        run.delete_state("reserve_cap", writer="reserve_agent")
        made = fork(run, "clm-1-b", by="ada")
        made.write_state("note", {"\u0000": [1.0, 10**400, -0.0, 1e22, "é"]}, writer="triage_agent")
        erase(store, "clm-1", key="reports", version=1, by="dpo", reason="asked for")
        prune(run, before="end", by="ops")


def facts(run: Run) -> list[Any]:
    """All that must survive a move: bytes, digests, times, states, readers."""
    events = [
        (e.seq, e.kind, e.actor, e.owner, e.key, e.version, e.txn, e.turn, e.seen_seq, e.recorded_at, e.clock,
         e.request_id, e.row.refs, e.text, bytes(e.digest), e.trace_id, e.span_id, e.trace_flags)
        for e in run.events()
    ]  # fmt: skip
    reads = [(r.seq, r.reader, r.version, r.newest, r.count) for r in run.readers("routing")]
    return [events, run.state().json(), run.fold(), reads, run.schema().fingerprint]


def read_lines(path: Path) -> Lines:
    """The lines of a bundle."""
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]


def write_lines(path: Path, lines: Lines, *, end: bool = True) -> Path:
    """A bundle of these lines; `end`: with a last line that fits."""
    if end:
        lines = [one for one in lines if "end" not in one]
        data = text(lines)
        count = sum("seq" in one for one in lines)
        lines = [*lines, {"end": count, "sha256": sha256(data).hexdigest()}]
    path.write_bytes(gzip.compress(text(lines)))
    return path


def text(lines: Lines) -> bytes:
    """Lines as the file has them."""
    return b"".join(
        json.dumps(one, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode() + b"\n" for one in lines
    )


def rechain(lines: Lines) -> None:
    """Make all digests fit again, as somebody would who rewrites history."""
    manifest = lines[0]
    digest = genesis(manifest["tenant"], manifest["genesis"], manifest["scope"])
    gaps = {first: (last, end) for first, last, _before, end, _said in manifest["pruned"]}
    seq = 0
    for one in lines:
        if "seq" not in one:
            continue
        while seq + 1 in gaps and one["seq"] != seq + 1:
            seq, digest = gaps[seq + 1][0], bytes.fromhex(gaps[seq + 1][1])
        seq = one["seq"]
        names = (
            "seq",
            "txn",
            "turn",
            "version",
            "seen_seq",
            "recorded_at",
            "clock",
            "request_id",
            "refs",
            "trace_flags",
        )
        cells = {name: one.get(name) for name in (*names, "actor", "owner", "key")}
        raw = {name: bytes.fromhex(one[name]) if name in one else None for name in ("trace_id", "span_id")}
        held = bytes.fromhex(one["commitment"]) if "commitment" in one else commit(
            bytes.fromhex(one["salt"]), one["body"].encode() if "body" in one else None
        )  # fmt: skip
        digest = chain(digest, header(kind=KIND_ID[one["kind"]], **cells, **raw), held)
        one["digest"] = digest.hex()
    manifest["digest"] = digest.hex()


def by_hand(path: Path) -> subprocess.CompletedProcess[str]:
    """The standard-library verifier of the examples on a bundle."""
    return subprocess.run([sys.executable, "-I", str(EXAMPLE), str(path)], capture_output=True, text=True, check=False)


OpenNew = Callable[..., Store]
