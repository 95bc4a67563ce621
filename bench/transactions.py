"""Transactions of many keys."""

from __future__ import annotations

from collections.abc import Iterator

from bench import peers
from bench.lab import RAM, SQLITE, Lab
from bench.measure import Side
from bench.registry import Check, Line, benchmark
from bench.subject import Refold, new_floor
from bench.values import key_names

KEYS = 100
AIM = 0.6
SYNC_SLACK = 0.12  # a checkpoint of SQLite comes every few transactions of this size, with two syncs of its own


@benchmark("transaction", "transaction of 100 keys, a key")
def transaction(lab: Lab) -> Iterator[Line]:
    """One key's part of a transaction against one durable write of the floor."""
    if RAM not in lab.options.places:
        return
    for backend in lab.options.backends:
        ours, floor = Refold(lab, backend, keys=KEYS), new_floor(lab, backend)
        side = Side("refold", ours.transaction, least=2, unit=KEYS)
        sides = [Side("floor", floor.write), side]
        names = []
        if lab.options.peers:
            peer: peers.EventSourcing
            if backend == SQLITE:
                peer = peers.EventSourcingSqlite(lab.fresh_file("eventsourcing"), key_names(KEYS))
            else:
                peer = peers.EventSourcingPostgres(lab.fresh_database("eventsourcing"), key_names(KEYS))
            lab.closing.callback(peer.close)
            sides.append(Side(peer.name, peer.transaction, least=2, unit=KEYS))
            names.append(peer.name)
        times, counts = lab.compare(sides), lab.count(side, 20)
        line = Line("transaction of 100 keys, a key", backend, RAM, counts=counts)
        line.compared(times, "refold", "floor", AIM)
        line.checks.append(Check("syncs", counts["syncs"], 1 / KEYS, slack=SYNC_SLACK))
        line.peers = {name: times.ratio(name, "floor").median for name in names}
        yield line
        ours.close()
        floor.close()
