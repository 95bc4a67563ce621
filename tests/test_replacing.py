"""What a file that is written may take the place of: `-o` of every command, and the folder of `archive`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from claims import ONTARIO, QUEBEC, ClaimState

from refold import Run, open_store
from refold_replay.archiving import archive, archive_old, bundle
from refold_replay.bundle_import import check_bundle, import_bundle
from refold_replay.exporting import export
from refold_replay.signing import load_private, new_key
from refold_store.errors import ConfigError

if TYPE_CHECKING:
    from click.testing import Result

Cli = Callable[..., "Result"]
OpenNew = Callable[..., Any]
RUN = "clm-77401"


@pytest.fixture
def run(open_new: OpenNew) -> Run:
    """A run of one write."""
    made: Run = open_new(ClaimState).run("c-1")
    made.write_state("routing", QUEBEC, writer="triage_agent")
    return made


@pytest.fixture
def twin(tmp_path: Path, open_new: OpenNew) -> Run:
    """A run of the same name and length in another store."""
    made: Run = open_new(ClaimState, url=f"sqlite:///{tmp_path / 'twin.db'}").run("c-1")
    made.write_state("routing", ONTARIO, writer="triage_agent")
    return made


def test_archiving_keeps_the_bundle_of_another_store(run: Run, twin: Run, tmp_path: Path) -> None:
    """Two runs of one name into one folder: the second is refused, keeps its events, and the first comes back."""
    done = archive(run, tmp_path / "out", by="ops")
    kept = Path(done.path).read_bytes()
    for options in ({}, {"dry_run": True}):
        with pytest.raises(ConfigError, match=r"c-1-3.refold' is there and is no bundle of just what run 'c-1' holds"):
            archive(twin, tmp_path / "out", by="ops", **options)
    report = archive_old(twin.store, tmp_path / "out", older_than="0s", by="ops")
    assert list(report.skipped) == ["c-1"]
    assert twin.peek("routing").json == ONTARIO
    assert Path(done.path).read_bytes() == kept
    import_bundle(run.store, done.path)
    assert run.peek("routing").json == QUEBEC


def test_a_twin_that_comes_meanwhile_is_not_replaced(run: Run, twin: Run, tmp_path: Path) -> None:
    """A bundle that takes the name after the first look stays, and the run keeps its events."""
    path = tmp_path / "c-1-3.refold"

    def late(one: Run, target: Path) -> None:
        export(twin, path)
        bundle(one, target)

    with pytest.raises(ConfigError, match="is no bundle of just what run 'c-1' holds"):
        archive(run, tmp_path, by="ops", pack=late)
    assert check_bundle(path).digest == list(twin.events())[-1].digest.hex()
    assert run.peek("routing").json == QUEBEC
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.parametrize("signed", [False, True])
def test_an_archiving_that_was_killed_goes_on(run: Run, tmp_path: Path, signed: bool) -> None:
    """A bundle of just these events, left before they went, is verified and taken as it is; a damaged one is not."""
    path = tmp_path / "c-1-3.refold"
    new_key(tmp_path / "key")
    export(run, path, key=load_private(tmp_path / "key") if signed else None)
    before = path.read_bytes()
    path.write_bytes(before[:-12])
    with pytest.raises(ConfigError, match="is there and is no bundle"):
        archive(run, tmp_path, by="ops")
    path.write_bytes(before)
    done = archive(run, tmp_path, by="ops")
    assert (done.path, path.read_bytes(), done.events) == (str(path), before, 3)
    import_bundle(run.store, path)
    assert run.peek("routing").json == QUEBEC


def test_a_bundle_that_was_there_is_not_removed(run: Run, tmp_path: Path) -> None:
    """When the run goes on meanwhile, only a bundle that this archiving wrote is removed."""
    path = tmp_path / "c-1-3.refold"
    export(run, path)

    def slow(one: Run, target: Path) -> None:
        bundle(one, target)
        if target == path:
            one.write_state("routing", ONTARIO, writer="triage_agent")

    assert archive(run, tmp_path, by="ops", pack=slow).until == 4
    assert check_bundle(path).until == 3


def test_a_foreign_file_is_not_archived_over(run: Run, tmp_path: Path) -> None:
    """Somebody's text under the bundle's name, or under that of its part, stays as it is; an empty file gives way."""
    for name in ("c-1-3.refold", "c-1-3.refold.part"):
        (tmp_path / name).write_text("mine")
        with pytest.raises(ConfigError, match="remove it, or choose another name"):
            archive(run, tmp_path, by="ops")
        assert (tmp_path / name).read_text() == "mine"
        (tmp_path / name).write_text("")
    assert archive(run, tmp_path, by="ops").events == 3


@pytest.fixture
def files(claims_url: str, refold_cli: Cli, tmp_path: Path) -> dict[str, Path]:
    """One file of each kind, and the words that write it."""
    other = f"sqlite:///{tmp_path / 'store.db'}"
    with open_store(other, ClaimState) as store:
        store.run("other").write_state("routing", QUEBEC, writer="triage_agent")
    (tmp_path / "events.jsonl").write_text(
        json.dumps({"run": "a", "kind": "write", "writer": "w", "key": "k", "value": 1})
    )
    (tmp_path / "notes.txt").write_text("mine\n")
    (tmp_path / "compose.yaml").write_text("services: {web: {image: x}}\n")
    made = {name: tmp_path / name for name in ("store.db", "notes.txt", "compose.yaml", "events.jsonl")}
    for name, words in (*WRITERS.items(), ("other.refold", ("export", "other", "--store", other))):
        made[name] = tmp_path / name
        words = tuple(word.replace("DIR", str(tmp_path)) for word in words)
        store_words = () if "--store" in words else ("--store", claims_url)
        done = refold_cli(*words, "-o", str(made[name]), *store_words)
        assert done.exit_code == 0, done.stderr
    return made


WRITERS = {
    "anchor.json": ("anchor",),
    "proof.json": ("anchor", "--prove", RUN, "--from", "DIR/anchor.json"),
    "schema.yaml": ("schema", "infer", "DIR/events.jsonl"),
    "run.refold": ("export", RUN),
}


@pytest.mark.parametrize("name", WRITERS)
def test_only_its_own_kind_is_replaced(
    claims_url: str, refold_cli: Cli, files: dict[str, Path], tmp_path: Path, name: str
) -> None:
    """Each command replaces what it wrote, and a link to it; any other file stays, and one line says the way out."""
    words = [word.replace("DIR", str(tmp_path)) for word in WRITERS[name]]
    for there, path in files.items():
        before = path.read_bytes()
        link = tmp_path / "link"
        link.symlink_to(path)
        for target in (path, link):
            done = refold_cli(*words, "-o", str(target), "--store", claims_url)
            assert done.exit_code == (0 if there == name else 2), (there, done.stderr)
            assert ("remove it, or choose another name" in done.stderr) is (there != name)
        assert there == name or path.read_bytes() == before
        link.unlink()
    assert not list(tmp_path.glob("*.part"))


def test_all_runs_leave_what_is_no_bundle(claims_url: str, refold_cli: Cli, tmp_path: Path) -> None:
    """`export --all` names an unrelated file under a run's name, leaves it, and ends with 1."""
    (tmp_path / f"{RUN}.refold").write_text("mine")
    done = refold_cli("export", "--all", "-o", str(tmp_path), "--store", claims_url)
    assert (done.exit_code, (tmp_path / f"{RUN}.refold").read_text()) == (1, "mine")
    assert "remove it, or choose another name" in done.stderr


def test_pipes_still_take_what_is_written(claims_url: str, refold_cli: Cli, tmp_path: Path) -> None:
    """A pipe has nothing to lose: the anchor goes through it."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert refold_cli("anchor", "-o", str(pipe), "--store", claims_url).exit_code == 0
        assert json.loads(os.read(reader, 1 << 16))["form"] == "refold.anchor.1"
    finally:
        os.close(reader)
