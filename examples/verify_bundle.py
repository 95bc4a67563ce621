"""Verify a bundle with Python's standard library alone: `python verify_bundle.py FILE...`. Digests, order, counts.

Written from docs/format.md; it uses nothing of refold. Exit status 0: all are whole. 1: one is not, and why. 2: usage.
"""

import gzip
import hashlib
import json
import struct
import sys
import zlib

ABSENT = b"\xff\xff\xff\xff"
NUMBERS = ("seq", "txn", "turn", "version", "seen_seq", "recorded_at", "clock", "trace_flags")
WRITES = ("state.written", "state.deleted")
WHOLE = ("state.read", "run.opened", "run.imported", "run.forked", "run.archived", "schema.declared", "value.erased",
         "reads.pruned")  # fmt: skip
"""Kinds of events that keep their body, whatever is erased or left out."""


class Wrong(Exception):
    """The bundle is not what it says."""


def text(value):
    """A text or bytes behind its length in four bytes; none is FFFFFFFF."""
    if value is None:
        return ABSENT
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack(">I", len(raw)) + raw


def unhex(event, name):
    """Bytes that a member gives in hex, or None."""
    return bytes.fromhex(event[name]) if name in event else None


def digest(before, event):
    """The digest of an event, from the one before it."""
    seq, salt, body, commitment = event["seq"], unhex(event, "salt"), event.get("body"), unhex(event, "commitment")
    whole = len(salt or b"") == 16 and body != "" if commitment is None else salt is None and body is None
    need(whole and all(event.get(name, 0) >= 0 for name in NUMBERS), f"event {seq} has a part no event has")
    header = struct.pack(">8q", *(event.get(name, -1) for name in NUMBERS))
    header += b"".join(text(event.get(name)) for name in ("kind", "actor", "owner", "key", "request_id", "refs"))
    header += text(unhex(event, "trace_id")) + text(unhex(event, "span_id"))
    if commitment is None:
        commitment = hashlib.sha256(salt + (body or "").encode()).digest()
    return hashlib.sha256(before + header + commitment).digest()


def need(condition, message):
    """Raise Wrong unless a condition holds."""
    if not condition:
        raise Wrong(message)


def lines(path):
    """(line, hash of all lines before it) of a bundle."""
    seen = hashlib.sha256()
    with gzip.open(path) as file:
        for raw in file:
            need(raw.endswith(b"\n"), "the file is cut off")
            yield json.loads(raw), seen.hexdigest()
            seen.update(raw)


def allows(manifest, event):
    """Why an event may lack its body: erased by one of the events named, or left out on purpose. Empty: it may not."""
    if event["kind"] in WHOLE:
        return ""
    for by, until, key, version in manifest["erased"]:
        same = key in (None, event.get("key"))
        same = same and (version is None or (version == event.get("version") and event["kind"] in WRITES))
        if same and event["seq"] <= until and event["seq"] < by:
            return "erased"
    return "left out" if manifest["redacted"] else ""


def across(gap, before):
    """Over reads that were pruned: the seq and digest of the last one."""
    last, begin, end, by = gap
    need(before.hex() == begin and by > last, f"the reads up to {last} were pruned behind another event")
    return last, bytes.fromhex(end)


def verify(path):
    """Check a bundle. Returns what it holds. Raises Wrong."""
    source = lines(path)
    manifest, _hash = next(source, ({}, ""))
    need(manifest.get("refold") == "bundle" and manifest.get("form") == 1, "no bundle of form 1")
    scope = bytes([manifest["scope"]])
    before = hashlib.sha256(b"refold.log.1" + text(manifest["tenant"]) + text(manifest["genesis"]) + scope).digest()
    gaps = {first: rest for first, *rest in manifest["pruned"]}
    name, seq, at, count, left, versions, erased, pruned, end = manifest["genesis"], 0, 0, 0, 0, {}, [], {}, None
    for line, hashed in source:
        need(end is None, "something stands behind the last line")
        if "schema" in line:
            need(hashlib.sha256(line["declaration"].encode()).hexdigest() == line["schema"], "a schema was changed")
        elif "end" in line:
            end = line
            need(line["sha256"] == hashed and line["end"] == count, "the end does not fit the lines")
        else:
            while seq + 1 in gaps and line["seq"] > seq + 1:
                seq, before = across(gaps[seq + 1], before)
            need(line["seq"] == seq + 1, f"event {seq + 1} is missing")
            need(line["recorded_at"] > at, f"event {seq + 1}: time went back")
            seq, at, count = line["seq"], line["recorded_at"], count + 1
            before = digest(before, line)
            need(before.hex() == line["digest"], f"event {seq}: the digest does not fit")
            why = "commitment" in line and allows(manifest, line)
            need(why or "commitment" not in line, f"event {seq} lacks its body")
            need("seen_seq" in line or line["kind"] != "state.read", f"event {seq} is a read without seen_seq")
            left += why == "left out"
            if line["kind"] in WRITES:
                versions[line["key"]] = versions.get(line["key"], 0) + 1
                need(line["version"] == versions[line["key"]], f"event {seq}: a version is missing")
            elif line["kind"] == "run.forked":
                refs = json.loads(line["refs"])
                need((refs["parent"], refs["at"]) == (name, seq - 1), f"event {seq} forks another run")
                name = refs["run"]
            elif line["kind"] == "value.erased":
                erased.append([seq, json.loads(line["refs"])["until"], line.get("key"), line.get("version")])
            elif line["kind"] == "reads.pruned":
                pruned |= {first: [*rest, seq] for first, *rest in json.loads(line["body"])["ranges"]}
    need(end is not None, "the bundle is cut off")
    while seq + 1 in gaps:
        seq, before = across(gaps[seq + 1], before)
    need(name == manifest["run"], f"the log is of run {name!r}")
    need((seq, before.hex()) == (manifest["until"], manifest["digest"]), "the newest event is not the one named")
    need((manifest["erased"], gaps) == (erased, pruned), "the manifest tells of other erased or pruned events")
    redacted = f", {left} bodies left out" if manifest["redacted"] else ""
    return f"{manifest['run']}: {count} events up to seq {seq}{redacted}, digest {before.hex()}"


BROKEN = (OSError, EOFError, RuntimeError, ArithmeticError, AttributeError, LookupError, ValueError, TypeError)
"""What a file can raise that is no bundle at all."""

if __name__ == "__main__":
    asked = {"-h", "--help"} & set(sys.argv)
    if asked or len(sys.argv) < 2:
        print("usage: python verify_bundle.py FILE...", file=sys.stdout if asked else sys.stderr)
        sys.exit(0 if asked else 2)
    for path in sys.argv[1:]:
        try:
            print("ok:", verify(path))
        except (Wrong, *BROKEN, struct.error, zlib.error) as error:
            sys.exit(f"{path}: not whole: {error}")
