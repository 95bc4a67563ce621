"""`python -m bench`: measures refold against the floors and, with --peers, against its peers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from bench.board import ENV_BOARD, Board, build_helper
from bench.lab import PLACES, POSTGRES, RAM, SQLITE, SYNC_1MS, Options
from bench.registry import BENCHMARKS, Check, Line
from bench.report import as_json, markdown, rows
from bench.server import postgres
from bench.worker import load_all

QUICK_SCALE, QUICK_ROUNDS = 20_000, 7
ROUNDS, SCALE = 21, 100_000
WORKER_LIMIT_S = 1_800  # a benchmark that takes longer hangs: filling 1,000,000 events takes a few minutes
RAM_DISK = Path("/dev/shm")


@dataclass(frozen=True, slots=True)
class Site:
    """What all workers of a run share."""

    folder: Path
    helper: Path
    client: Path
    server: Path
    postgres: str


@contextmanager
def site() -> Iterator[Site]:
    """A folder on the RAM disk with the helper, the boards and a PostgreSQL server; gone afterwards."""
    if not RAM_DISK.is_dir():
        raise click.ClickException(f"{RAM_DISK} is not there: the benchmarks need a RAM disk (a tmpfs) at that path")
    with tempfile.TemporaryDirectory(prefix="refold-bench-", dir=RAM_DISK) as name:
        folder = Path(name)
        folder.chmod(0o755)
        helper = build_helper(folder)
        boards = [Board(folder / f"{side}.board").path for side in ("client", "server")]
        with postgres(folder, helper, boards[1]) as url:
            yield Site(folder, helper, boards[0], boards[1], url)


def measure(name: str, place: Site, options: Options) -> tuple[list[Line], str]:
    """Runs one benchmark in its process: what it found, and the end of its errors if it failed."""
    result = place.folder / f"{name}.jsonl"
    settings = {
        "folder": str(place.folder),
        "client_board": str(place.client),
        "server_board": str(place.server),
        "postgres": place.postgres,
        "options": asdict(options),
        "result": str(result),
    }
    env = {**os.environ, "LD_PRELOAD": str(place.helper), ENV_BOARD: str(place.client)}
    command = [sys.executable, "-m", "bench.worker", name, json.dumps(settings)]
    try:
        done = subprocess.run(command, env=env, stderr=subprocess.PIPE, text=True, timeout=WORKER_LIMIT_S, check=False)
        error = "" if done.returncode == 0 else done.stderr[-3000:] or f"exit code {done.returncode}"
    except subprocess.TimeoutExpired:
        error = f"took longer than {WORKER_LIMIT_S} s"
    texts = result.read_text("utf-8").splitlines() if result.exists() else []
    return [line_from(json.loads(text)) for text in texts], error


def line_from(found: dict[str, object]) -> Line:
    """A line as the worker wrote it."""
    checks = found.pop("checks")
    assert isinstance(checks, list)
    return Line(**found, checks=[Check(**check) for check in checks])  # type: ignore[arg-type]  # as asdict gave them


def chosen(only: tuple[str, ...]) -> list[str]:
    """The benchmarks to run: all, or those whose name begins with one of the words given."""
    names = [name for name in BENCHMARKS if not only or name.startswith(only)]
    if not names:
        raise click.ClickException(f"no benchmark is called {', '.join(only)}; there are: {', '.join(BENCHMARKS)}")
    return names


@click.command()
@click.option("--quick", is_flag=True, help="Short rounds and a short run: shows that all works, proves little.")
@click.option("--only", multiple=True, metavar="NAME", help="Only benchmarks whose name begins so; may be repeated.")
@click.option("--rounds", type=click.IntRange(min=2), default=None, help=f"Rounds of a comparison [default: {ROUNDS}].")
@click.option(
    "--scale", type=click.IntRange(min=2_000), default=None, help=f"Events of a long run [default: {SCALE:,}]."
)
@click.option(
    "--place", type=click.Choice([*PLACES, "both"]), default="both", help="RAM disk, a sync of 1 ms, or both."
)
@click.option("--backend", type=click.Choice([SQLITE, POSTGRES, "both"]), default="both")
@click.option("--peers", is_flag=True, help="Also eventsourcing and LangGraph's checkpointers (extra: bench).")
@click.option("--json", "json_path", type=click.Path(path_type=Path), default=None, help="Write the findings there.")
@click.option(
    "--markdown", "markdown_path", type=click.Path(path_type=Path), default=None, help="Write the report there."
)
@click.option("--list", "listing", is_flag=True, help="Say which benchmarks there are.")
def main(
    quick: bool,
    only: tuple[str, ...],
    rounds: int | None,
    scale: int | None,
    place: str,
    backend: str,
    peers: bool,
    json_path: Path | None,
    markdown_path: Path | None,
    listing: bool,
) -> None:
    """Measures refold's speed as ratios; bench/README.md says how to read them."""
    load_all()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the server and the folder go, too
    if listing:
        for name in BENCHMARKS:
            click.echo(f"{name:24} {BENCHMARKS[name].row}")
        return
    options = Options(
        rounds=rounds or (QUICK_ROUNDS if quick else ROUNDS),
        scale=scale or (QUICK_SCALE if quick else SCALE),
        quick=quick,
        peers=peers,
        places=(RAM, SYNC_1MS) if place == "both" else (PLACES[place],),
        backends=(SQLITE, POSTGRES) if backend == "both" else (backend,),
    )
    found, failed = run(chosen(only), options)
    text = markdown(found, failed, options)
    if markdown_path:
        markdown_path.write_text(text, "utf-8")
    if json_path:
        json_path.write_text(json.dumps(as_json(found, failed, options), indent=1) + "\n", "utf-8")
    click.echo("\n" + text)
    sys.exit(1 if failed else 0)


def run(names: list[str], options: Options) -> tuple[dict[str, list[Line]], dict[str, str]]:
    """Runs benchmarks one after another and says on the way what was found."""
    found: dict[str, list[Line]] = {}
    failed: dict[str, str] = {}
    with site() as place:
        for name in names:
            click.echo(f"... {name}", err=True)
            lines, error = measure(name, place, options)
            for row in (row for line in lines for row in rows(line)):
                click.echo(row, err=True)
            if lines:
                found[name] = lines
            if error:
                failed[name] = error
                click.echo(error, err=True)
    return found, failed


if __name__ == "__main__":
    main()
