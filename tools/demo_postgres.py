"""`make demo BACKEND=postgres`: the claims case on a PostgreSQL server that lives as long as the demo."""

from __future__ import annotations

import os
import subprocess
import sys

from scratch_postgres import scratch_postgres


def main() -> int:
    """Start a server, migrate a new database, play the demo there; give the exit code of the first that fails."""
    with scratch_postgres() as server:
        env = os.environ | {"REFOLD_STORE": server.create("refold_demo")}
        for command in ("migrate", "demo"):
            done = subprocess.run([sys.executable, "-m", "refold", command], env=env, check=False)
            if done.returncode:
                return done.returncode
    print(
        "\nThe PostgreSQL server of this demo is stopped and its folder removed. To keep a run, give a URL of your own:"
    )
    print("  export REFOLD_STORE=postgresql://user@host/database; refold migrate; refold demo")
    return 0


if __name__ == "__main__":
    sys.exit(main())
