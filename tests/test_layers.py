"""The import contracts hold, each of them can fail, and files keep the shape the house asks for."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCE_ROOTS = ("cli", "dashboards", "engine", "replay", "store")
PACKAGES = {
    "cli/refold",
    "dashboards/refold_dashboards",
    "engine/refold_engine",
    "replay/refold_replay",
    "store/refold_store",
}
MODULE_LINES = 400
FUNCTION_LINES = 60

VIOLATIONS = {
    "layers": ("store/refold_store/fold.py", "import refold_replay"),
    "pure": ("store/refold_store/fold.py", "import time"),
    "sqlalchemy": ("replay/refold_replay/__init__.py", "import sqlalchemy"),
    "drivers": ("replay/refold_replay/__init__.py", "import psycopg"),
    "telemetry": ("store/refold_store/fold.py", "import opentelemetry.trace"),
    "terminal": ("store/refold_store/fold.py", "import click"),
    "litellm": ("store/refold_store/fold.py", "import litellm"),
}


def lint_imports(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(str(root / name) for name in SOURCE_ROOTS)
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as run; run()", "--no-cache"]
    return subprocess.run(
        [*command, *arguments],
        cwd=root,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A copy of the packages and their contracts, to break."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def test_contracts_hold() -> None:
    """Parts import one way, pure modules stay pure, heavy libraries have one place each."""
    done = lint_imports(ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("contract", VIOLATIONS)
def test_a_broken_contract_is_seen(contract: str, copied: Path) -> None:
    """Each contract fails once a module imports what it forbids."""
    module, statement = VIOLATIONS[contract]
    with (copied / module).open("a") as source:
        source.write(f"\n{statement}\n")
    done = lint_imports(copied, "--contract", contract)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 broken" in done.stdout


def test_each_source_root_holds_one_typed_package() -> None:
    """A source root is no package itself, holds one package, and that one tells type checkers it is typed."""
    found = {str(path.parent.relative_to(ROOT)) for root in SOURCE_ROOTS for path in ROOT.glob(f"{root}/*/__init__.py")}
    assert found == PACKAGES
    assert [root for root in SOURCE_ROOTS if (ROOT / root / "__init__.py").exists()] == []
    assert [package for package in PACKAGES if not (ROOT / package / "py.typed").exists()] == []


def test_modules_and_functions_are_short() -> None:
    """A module stays within 400 lines and opens with a docstring; a function stays within 60 lines."""
    long = []
    for path in sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        tree = ast.parse(source)
        name = path.relative_to(ROOT)
        if len(source.splitlines()) > MODULE_LINES:
            long.append(f"{name}: {len(source.splitlines())} lines")
        if ast.get_docstring(tree) is None:
            long.append(f"{name}: no docstring")
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > FUNCTION_LINES:
                    long.append(f"{name}:{node.lineno}: {node.name} has {length} lines")
    assert long == []


def test_each_test_says_what_it_shows() -> None:
    """Every test function has a docstring that states the behaviour."""
    silent = [
        f"{path.name}:{node.lineno}: {node.name}"
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
        and ast.get_docstring(node) is None
    ]
    assert silent == []
