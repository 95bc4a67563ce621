"""Eight agents reserve seats at the same time: read, decide, write what was expected, and try again on a conflict.

No seat is given twice and none is lost, although nobody holds a lock.

It prints:
20 seats given to 8 agents, 20 different
versions 1 to 20, without a gap
"""

from __future__ import annotations

import threading
import uuid

from refold import Conflict, Run, open_store

SCHEMA = {
    "keys": {
        "seats": {
            "owner": "desk",
            "type": {"type": "object", "additionalProperties": {"type": "string"}},
        }
    },
    "groups": {"desk": [f"agent-{number}" for number in range(8)]},
}
SEATS = 20


def reserve(run: Run, agent: str) -> bool:
    """Reserve the lowest free seat; False when there is none."""
    while True:
        seen = run.read_state("seats", reader=agent)
        taken = {} if seen.absent else seen.value
        free = next((str(seat) for seat in range(1, SEATS + 1) if str(seat) not in taken), None)
        if free is None:
            return False
        try:
            run.write_state(
                "seats", {**taken, free: agent}, writer=agent, expected_version=seen.version, based_on=[seen]
            )
        except Conflict:
            continue  # another agent was faster: look again
        return True


def work(run: Run, agent: str) -> None:
    """Reserve until the house is full."""
    while reserve(run, agent):
        pass


def main() -> None:
    """Let all agents loose, then count."""
    with open_store("sqlite:///seats.db", schema=SCHEMA) as store:
        run = store.run(f"show-{uuid.uuid4().hex[:8]}")
        agents = [threading.Thread(target=work, args=(run, f"agent-{number}")) for number in range(8)]
        for agent in agents:
            agent.start()
        for agent in agents:
            agent.join()
        seats = run.peek("seats").value
        versions = [read.version for read in run.history("seats")]
        print(f"{len(seats)} seats given to 8 agents, {len(set(seats))} different")
        print(
            f"versions {versions[0]} to {versions[-1]}, without a gap" if versions == list(range(1, 21)) else versions
        )


if __name__ == "__main__":
    main()
