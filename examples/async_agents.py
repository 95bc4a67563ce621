"""Async agents that add up costs and collect notes while another task follows the log.

`add` and `append` are applied to the newest value, so the tasks need no conflict handling; they share commits.

It prints:
the follower saw 40 writes
spent 2.0 in 20 calls, 20 notes
"""

from __future__ import annotations

import asyncio
import uuid
from typing import Annotated

from refold import Owner, Run, StateSchema, add, append, open_store

CALLS = 20


class Costs(StateSchema):
    """What a team of agents spends."""

    spent: Annotated[float, Owner("team"), add]
    notes: Annotated[list[str], Owner("team"), append]

    groups = {"team": [f"agent-{number}" for number in range(4)]}


async def agent(run: Run, name: str) -> None:
    """One agent's calls; both keys of a call are written together."""
    for call in range(CALLS // 4):
        async with run.transaction() as tx:
            tx.write_state("spent", 0.1, writer=name)
            tx.write_state("notes", f"{name}: call {call}", writer=name)


def count_writes(run: Run, wanted: int) -> int:
    """Follow the log from its beginning until enough writes were seen."""
    seen = 0
    for event in run.follow(after=0, poll_s=0.01):
        seen += event.kind == "state.written"
        if seen == wanted:
            break
    return seen


async def main() -> None:
    """Run four agents and a follower."""
    with open_store("sqlite:///costs.db", schema=Costs) as store:
        run = store.run(f"job-{uuid.uuid4().hex[:8]}")
        follower = asyncio.create_task(asyncio.to_thread(count_writes, run, 2 * CALLS))
        await asyncio.gather(*(agent(run, f"agent-{number}") for number in range(4)))
        print(f"the follower saw {await follower} writes")
        spent = await run.aread_state("spent", reader="agent-0")
        notes = await run.aread_state("notes", reader="agent-0")
        print(f"spent {round(spent.value, 6)} in {CALLS} calls, {len(notes.value)} notes")


if __name__ == "__main__":
    asyncio.run(main())
