"""`refold anchor` and `refold keygen`: what is kept elsewhere, so that the log's end can be trusted.

Rules of this module
- The document goes to standard output, to be piped where it is kept, or to a file, written whole or not at all.
- A key is never overwritten.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from refold import output
from refold.proofs import load
from refold.site import Site, check_tenant, common
from refold_store import jsontext

if TYPE_CHECKING:
    from refold_replay.anchoring import Anchor, Proof


@click.command("anchor")
@click.option("-o", "--output", "path", metavar="FILE", help="Write here; standard output by default.")
@click.option("--key", "key_file", metavar="FILE", help="Sign with this private key (`refold keygen FILE` makes one).")
@click.option("--all-tenants", is_flag=True, help="The whole store.")
@click.option("--prove", "run_name", metavar="RUN", help="Instead: prove that RUN is in an anchor, given by --from.")
@click.option("--from", "anchor_file", metavar="FILE", help="The anchor that --prove is about.")
@common
def anchor_command(
    site: Site,
    path: str | None,
    key_file: str | None,
    all_tenants: bool,
    run_name: str | None,
    anchor_file: str | None,
) -> None:
    """Write the newest seq and digest of every run of the tenant, to be kept where the store's writers cannot reach.

    `refold verify --anchor FILE` later notices a log that was cut off, rolled back or rewritten, and runs that are
    gone. `--prove RUN --from FILE` makes a proof of one run that tells of no other.
    """
    if run_name is not None or anchor_file is not None:
        if run_name is None or anchor_file is None:
            raise click.UsageError("--prove RUN and --from FILE go together")
        if key_file is not None or all_tenants:
            raise click.UsageError("a proof carries the signature of its anchor: --key and --all-tenants have no place")
        _write(site, path, _proof(site, run_name, anchor_file))
        return
    from refold_replay import signing
    from refold_replay.anchoring import anchor

    key = None if key_file is None else signing.load_private(key_file)
    with site.store() as store:
        if not all_tenants:
            check_tenant(store, site.tenant)
        made = anchor(store, tenant=None if all_tenants else site.tenant, key=key)
    _write(site, path, made)


def _proof(site: Site, run_name: str, anchor_file: str) -> Proof:
    from refold_replay.anchoring import read_anchor

    anchor = load(read_anchor, anchor_file, "anchor")
    for problem in anchor.problems():
        raise click.UsageError(f"{anchor_file!r} proves nothing: {problem}")
    return anchor.prove(run_name, site.tenant)


def _write(site: Site, path: str | None, made: Anchor | Proof) -> None:
    if path is None:
        output.document(made.document())
        return
    from refold_replay.anchoring import Proof, read_anchor, read_proof

    content = jsontext.encode(made.document()) + b"\n"
    if isinstance(made, Proof):
        output.write_file(path, content, kind=read_proof, word="proof")
    else:
        output.write_file(path, content, kind=read_anchor, word="anchor")
    if site.as_json:
        output.document(
            {"file": path, "made_at": made.made_at, "root": made.root, "runs": made.size, "public_key": made.public_key}
        )
        return
    what = (
        output.plural(made.size, "run") if len(made.heads) == made.size else f"1 of {output.plural(made.size, 'run')}"
    )
    signed = "not signed" if made.public_key is None else f"signed by {made.public_key}"
    output.say(output.safe(f"{path}: {what}, anchored at {made.made_at}"))
    output.facts([("root", made.root), ("signature", signed)])


@click.command("keygen")
@click.argument("file", metavar="FILE")
@click.option("--json", "as_json", is_flag=True, help="Exact JSON instead of text.")
def keygen_command(file: str, as_json: bool) -> None:
    """Make an Ed25519 key that signs anchors and bundles: FILE is private, FILE.pub is for everybody who checks.

    Whoever has FILE can sign; keep it away from the store's machines. Nothing is overwritten.
    """
    from refold_replay import signing

    public = signing.new_key(file).hex()
    members: dict[str, Any] = {"private": file, "public": f"{file}.pub", "public_key": public}
    if as_json:
        output.document(members)
        return
    output.facts([("private", output.safe(file)), ("public", output.safe(f"{file}.pub")), ("public key", public)])
