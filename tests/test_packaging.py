"""The built wheel is complete: it installs into an empty environment, types, migrations and all, and plays the demo.

The environment gets the wheel and exactly the distributions that the wheel declares, linked from the ones the tests run
on: no network, and a dependency that was not declared is missing there.
"""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from email.parser import Parser
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("refold", "refold_dashboards", "refold_engine", "refold_replay", "refold_store")
HEAVY = ("alembic", "jsonschema_rs", "litellm", "opentelemetry.sdk", "psycopg", "pydantic", "rich", "sqlalchemy")


def run(*command: str | Path, cwd: Path, **extra: str) -> subprocess.CompletedProcess[str]:
    """Run a command that sees nothing of this process's Python settings."""
    env = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "REFOLD_", "VIRTUAL_ENV"))
    }
    return subprocess.run(
        [*map(str, command)],
        cwd=cwd,
        env=env | extra,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def linked_names(distribution: importlib.metadata.Distribution) -> Iterator[str]:
    """Top-level entries of a distribution in site-packages."""
    tops = {path.parts[0] for path in distribution.files or () if path.parts[0] not in ("..", "__pycache__")}
    yield from (name for name in tops if not name.endswith(".pth"))


def link_dependencies(requirements: list[str], site: Path) -> None:
    """Link every distribution the requirements lead to into another site-packages."""
    todo = [(Requirement(text), "") for text in requirements]
    done: set[tuple[str, str]] = set()
    while todo:
        requirement, extra = todo.pop()
        if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
            continue
        for wanted in ("", *sorted(requirement.extras)):
            name = canonicalize_name(requirement.name)
            if (name, wanted) in done:
                continue
            done.add((name, wanted))
            distribution = importlib.metadata.distribution(name)
            assert requirement.specifier.contains(distribution.version), (
                f"{requirement}: {distribution.version} is here"
            )
            todo += [(Requirement(text), wanted) for text in distribution.requires or ()]
            for entry in linked_names(distribution):
                link(Path(str(distribution.locate_file(entry))), site / entry)


def link(source: Path, target: Path) -> None:
    """Link one entry; a folder that several distributions share (a namespace) is filled entry by entry."""
    if source.is_dir() and not (source / "__init__.py").exists() and source.suffix != ".dist-info":
        target.mkdir(exist_ok=True)
        for child in source.iterdir():
            link(child, target / child.name)
    elif not target.exists():
        target.symlink_to(source)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this repository, built without network."""
    folder = tmp_path_factory.mktemp("wheel")
    done = run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    [path] = folder.glob("refold-*.whl")
    return path


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> dict[str, list[str]]:
    """The wheel's METADATA, each header with all its values."""
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        message = Parser().parsestr(archive.read(name).decode())
    return {header: message.get_all(header, []) for header in message}


@pytest.fixture(scope="module")
def installed(wheel: Path, metadata: dict[str, list[str]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of a fresh environment that holds the wheel and what it declares."""
    folder = tmp_path_factory.mktemp("fresh")
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    done = run(python, "-m", "pip", "install", "--no-index", "--no-deps", wheel, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    [site] = folder.glob("lib/python*/site-packages")
    link_dependencies(metadata["Requires-Dist"], site)
    return folder / "bin"


def test_the_wheel_carries_all_files_of_its_packages(wheel: Path) -> None:
    """Every file of every package is in the wheel, data files too, and nothing else but its metadata."""
    expected = {
        path.relative_to(root.parent).as_posix()
        for root in (next(ROOT.glob(f"*/{package}")) for package in PACKAGES)
        for path in root.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(wheel) as archive:
        assert {name for name in archive.namelist() if ".dist-info/" not in name} == expected


def test_the_wheel_carries_types_and_migrations(wheel: Path) -> None:
    """Each package has its py.typed; the store has its migrations with environment and template."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {f"{package}/py.typed" for package in PACKAGES} <= names
    assert {"refold_store/migrations/env.py", "refold_store/migrations/script.py.mako"} <= names
    assert any(name.startswith("refold_store/migrations/versions/0001") for name in names)


def test_the_wheel_states_version_license_and_python(metadata: dict[str, list[str]]) -> None:
    """The metadata name the version, the licence with its text, and the oldest Python."""
    assert metadata["Version"] == [importlib.metadata.version("refold")]
    assert metadata["License-Expression"] == ["Apache-2.0"]
    assert metadata["License-File"] == ["LICENSE"]
    assert metadata["Requires-Python"] == [">=3.11"]


def test_the_demo_runs_from_the_wheel(installed: Path, tmp_path: Path) -> None:
    """`refold demo` in an empty folder plays the claims case from start to end and leaves its store there."""
    done = run(installed / "refold", "demo", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "clm-77401" in done.stdout
    assert (tmp_path / "refold-demo.db").exists()


def test_the_command_states_its_version(installed: Path, tmp_path: Path, metadata: dict[str, list[str]]) -> None:
    """`refold --version` names the version of the wheel, and the module runs as the command does."""
    for command in ([installed / "refold"], [installed / "python", "-m", "refold"]):
        done = run(*command, "--version", cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        assert metadata["Version"][0] in done.stdout


@pytest.mark.parametrize("package", PACKAGES)
def test_each_package_imports_from_the_wheel(package: str, installed: Path, tmp_path: Path) -> None:
    """Every package imports in the fresh environment, from the wheel."""
    done = run(installed / "python", "-c", f"import {package}; print({package}.__file__)", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert str(installed.parent) in done.stdout


def test_import_refold_is_light(tmp_path: Path) -> None:
    """`import refold` loads none of the heavy libraries: names arrive when they are first used."""
    script = f"import refold, sys; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = run(sys.executable, "-c", script, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_public_names_are_listed(tmp_path: Path) -> None:
    """`refold.__all__` is sorted and each of its names can be had."""
    script = "import refold as r; [getattr(r, name) for name in r.__all__]; print(list(r.__all__) == sorted(r.__all__))"
    done = run(sys.executable, "-c", script, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "True"
