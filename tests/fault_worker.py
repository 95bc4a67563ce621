"""A process with little room on its disk. `fault_worker.py URL BYTES` writes until the disk is full.

Its files may grow to BYTES (0: no limit, the file system is small itself). It prints a line for each acknowledged
write, then the error, makes room, and writes on.
"""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path

from process_worker import SCHEMA

from refold import StoreUnavailable, open_store


def main(url: str, limit: str) -> None:
    """Fill the disk, report, make room, go on."""
    path = Path(url.removeprefix("sqlite:///"))
    with open_store(url, SCHEMA) as store:
        run = store.run("shared")
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        if int(limit):
            resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), hard))
        number = 0
        while True:
            try:
                run.read_state("a", reader="r")
                version = run.write_state("a", [number, "x" * 5000], writer="w0").version
            except StoreUnavailable as error:
                print("full", str(error), flush=True)  # noqa: T201  # the report
                break
            print("ack", version, flush=True)  # noqa: T201
            number += 1
        for _again in range(3):
            try:
                run.write_state("b", number, writer="w0")
            except StoreUnavailable:
                continue
            print("small", flush=True)  # noqa: T201  # there may be room for a small one
        (path.parent / "ballast").unlink(missing_ok=True)
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        for _try in range(2):  # the first call may be told of reads that could not be stored
            try:
                print("after", run.write_state("a", "room again", writer="w0").version, flush=True)  # noqa: T201
                break
            except StoreUnavailable as error:
                print("told", str(error), flush=True)  # noqa: T201
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
