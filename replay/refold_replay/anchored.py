"""The store now against its anchor of once: cut ends, old copies, rewritten logs, runs that are gone.

Rules of this module
- A log only grows: the event an anchor knows is there, with the digest it had. Anything else is a finding.
- Where the log itself says that the event was moved out or rolled up, and the digest went with it, that is said: it is
  a note, not a finding, and never silence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from refold_replay.anchoring import SCOPES, Anchor, Head, Proof
from refold_replay.findings import Finding, VerifyReport
from refold_replay.stretches import Source, refs_of

Wanted = Callable[[Head], bool]


def compare(
    source: Source,
    ids: dict[tuple[str, int, str], int],
    anchor: Anchor | Proof,
    report: VerifyReport,
    wanted: Wanted,
    public_key: bytes | None = None,
) -> list[Finding]:
    """Hold a store against an anchor, or one run against its proof. `ids`: (tenant, scope, run) to run id.

    Remarks, and how many runs were compared, go into the report.
    """
    problems = anchor.problems(public_key)
    if problems:
        word = "anchor" if isinstance(anchor, Anchor) else "proof"
        # what it says of the runs is worth nothing
        return [Finding("", "", None, "anchor", f"the {word} of {anchor.made_at}: {problem}") for problem in problems]
    report.notes += _remarks(anchor, public_key)
    heads = [head for head in anchor.heads if wanted(head)]
    if not heads:
        report.notes.append(f"the anchor of {anchor.made_at} knows none of these runs")
    report.anchored = (report.anchored or 0) + len(heads)
    found = [_one(source, ids.get((head.tenant, head.scope, head.run)), head, anchor.made_at, report) for head in heads]
    return [one for one in found if one is not None]


def _remarks(anchor: Anchor | Proof, public_key: bytes | None) -> Iterable[str]:
    if anchor.signature is None:
        yield f"the anchor of {anchor.made_at} is not signed: it is as good as the place it was kept in"
    elif public_key is None:
        yield f"the anchor of {anchor.made_at} is signed with key {anchor.public_key}: compare it, or give --public-key"


def _one(source: Source, run: int | None, head: Head, made_at: str, report: VerifyReport) -> Finding | None:
    """What is wrong with one run."""
    name, known = head.run or SCOPES[head.scope], f"the anchor of {made_at}"
    if run is None:
        message = f"{known} knows this run up to seq {head.seq}; it is gone"
        return Finding(head.tenant, name, None, "vanished", message)
    newest = source.backend.head(run)
    end = 0 if newest is None else newest[0]
    if end < head.seq:
        cause = "its end was cut off, or an old copy was put back"
        message = f"the log ends at seq {end}, {known} knows it up to {head.seq}: {cause}"
        return Finding(head.tenant, name, end + 1, "truncated", message)
    place = source.backend.at_seq(run, head.seq)
    if place is not None and place.seq == head.seq:
        digest: str | None = bytes(place.digest).hex()
    else:
        digest, remark = _gone(source, run, head.seq)
        if digest is None and remark:
            report.notes.append(f"run {name!r}: whether seq {head.seq} is what {known} knows cannot be told: {remark}")
            return None
    if digest is None:
        return Finding(head.tenant, name, head.seq, "density", f"the event that {known} knows is missing")
    if digest != head.digest:
        message = f"not the digest that {known} knows: the log was rewritten, or an old copy went on in another way"
        return Finding(head.tenant, name, head.seq, "rewritten", message)
    return None


def _gone(source: Source, run: int, seq: int) -> tuple[str | None, str]:
    """The digest of an event that the log says is gone, or the reason why nobody knows it any more."""
    first = source.backend.query(source.scans.first, (run,))
    if first and first[0][0] > seq:
        refs = refs_of(first[0][2])
        if refs.get("until") == seq:
            return str(refs.get("digest")), ""
        if "bundle" in refs:
            return (
                None,
                f"the run was archived up to seq {refs.get('until')}; bundle {refs['bundle']!r} holds the event",
            )
    for begin, gap in source.allowed(run).gaps.items():
        if begin <= seq <= gap.last:
            if gap.last == seq:
                return gap.digest.hex(), ""
            return None, f"reads.pruned at seq {gap.said} says it was a read that was rolled up; anchor after pruning"
    return None, ""
