"""The documents run: every Python block, every console block, every example; and they name everything there is."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import refold
from pages import Page, blocks, commands, environment, run_page, same
from refold_store.events import KINDS
from refold_store.keys import Options
from refold_store.store import open_store

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
GENERATED = {"cli.md"}
"""Pages made and checked by a tool of their own."""
SERVED = "db.example"
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def _text(*paths: Path) -> str:
    return "\n".join(path.read_text(encoding="utf-8") for path in (paths or PAGES))


def _runnable() -> list[Path]:
    return [
        page
        for page in PAGES
        if page.name not in GENERATED and any(block.language in ("python", "console") for block in blocks(_text(page)))
    ]


@pytest.mark.parametrize("path", _runnable(), ids=lambda path: str(path.relative_to(ROOT)))
def test_page_runs(path: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """The blocks of a page run in order and print what the page shows."""
    server = request.getfixturevalue("pg_url") if SERVED in _text(path) else None
    page = Page(tmp_path, environment(), server)
    findings = run_page(path, page)
    assert not findings, "\n\n".join(findings)


@pytest.mark.parametrize(
    "path", [path for path in EXAMPLES if path.stem != "verify_bundle"], ids=lambda path: path.stem
)
def test_example_runs(path: Path, tmp_path: Path) -> None:
    """An example runs twice in an empty folder, and prints what its docstring shows. The verifier wants a file."""
    for _time in range(2):
        done = subprocess.run(
            [sys.executable, str(path)],
            cwd=tmp_path,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    shown = inspect.cleandoc(_docstring(path)).partition("It prints:\n")[2]
    assert same(shown, done.stdout), done.stdout


def _docstring(path: Path) -> str:
    return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")), clean=False) or ""


def test_every_public_name_is_documented() -> None:
    """Every name of the front door stands in the Python guide, or in the pages on declaring keys and telemetry."""
    text = _text(DOCS / "python.md", DOCS / "schema.md", DOCS / "telemetry.md")
    assert [name for name in refold.__all__ if not re.search(rf"\b{name}\b", text)] == []


def test_every_event_kind_is_documented() -> None:
    """Every kind of event stands in the concepts."""
    text = _text(DOCS / "concepts.md")
    assert [kind for kind in KINDS if kind and f"`{kind}`" not in text] == []


def test_every_option_is_documented() -> None:
    """Every argument of open_store and every option of a key is explained."""
    python, schema = _text(DOCS / "python.md"), _text(DOCS / "schema.md")
    assert [name for name in inspect.signature(open_store).parameters if f"`{name}" not in python] == []
    assert [name for name in Options.__slots__ if f"`{name}" not in schema] == []


def test_every_public_method_is_documented() -> None:
    """Every public method and property of the objects users hold stands in the Python guide."""
    text = _text(DOCS / "python.md")
    held = (refold.Store, refold.Run, refold.Moment, refold.Read, refold.State, refold.ReadRecord, refold.RunInfo)
    names = {name for kind in held for name in vars(kind) if not name.startswith("_")}
    names |= {name for kind in held for name in getattr(kind, "__annotations__", {}) if not name.startswith("_")}
    assert sorted(name for name in names if not re.search(rf"\b{name}\b", text)) == []


def test_every_setting_is_documented() -> None:
    """Every environment variable the code reads stands in the documents."""
    code = _text(*(path for part in ("cli", "store", "replay", "engine") for path in (ROOT / part).rglob("*.py")))
    settings = set(re.findall(r"\bREFOLD_[A-Z_]+\b", code))
    assert sorted(name for name in settings if name not in _text()) == []


def test_every_command_and_option_is_documented() -> None:
    """Every command and option of the command line stands in its page."""
    click = pytest.importorskip("click")
    app = pytest.importorskip("refold.app")
    text = _text(DOCS / "cli.md")
    missing = []
    root = next(one for one in vars(app).values() if isinstance(one, click.Group))

    def walk(command: object, path: tuple[str, ...]) -> None:
        assert isinstance(command, click.Command)
        if path and f"refold {' '.join(path)}" not in text:
            missing.append(" ".join(path))
        for parameter in command.params:
            missing.extend(option for option in parameter.opts if option.startswith("--") and option not in text)
        if isinstance(command, click.Group):
            context = click.Context(command)
            for name in command.list_commands(context):
                found = command.get_command(context, name)
                if found is not None and not found.hidden:
                    walk(found, (*path, name))

    walk(root, ())
    assert missing == []


def test_every_metric_is_documented() -> None:
    """Every metric, span and attribute of the telemetry module stands in its page."""
    source = _text(*sorted((ROOT / "store" / "refold_store").glob("telemetry*.py")))
    names = set(re.findall(r'"(refold\.[a-z_.]+[a-z])"', source))
    text = _text(DOCS / "telemetry.md")
    assert names
    assert sorted(name for name in names if name not in text) == []


def test_tests_named_in_documents_exist() -> None:
    """A test that a document names as proof exists."""
    named = re.findall(r"`?(tests/test_\w+\.py)(?:::(test_\w+))?", _text())
    missing = []
    for file, test in named:
        path = ROOT / file
        if not path.exists() or (test and f"def {test}(" not in _text(path)):
            missing.append(f"{file}::{test}")
    assert missing == []


def test_documents_keep_to_public_places() -> None:
    """No document or example names a machine's folders or a package registry's host."""
    text = _text(*PAGES, *EXAMPLES)
    assert re.findall(r"(?:/wor[k]/|/root/|/tmp/|pyp[i]\.|python[h]osted|npm[j]s)\S*", text) == []


def test_runner_sees_wrong_output(tmp_path: Path) -> None:
    """The runner reports output that differs, a wrong exit status, and takes `...` for anything."""
    page = tmp_path / "page.md"
    page.write_text("```python\nprint(1)\n```\n\n```text\n2\n```\n", encoding="utf-8")
    assert len(run_page(page, Page(tmp_path, environment()))) == 1
    page.write_text('```console\n$ python -c "print(1); raise SystemExit(3)"\n1\n```\n', encoding="utf-8")
    assert len(run_page(page, Page(tmp_path, environment()))) == 1
    page.write_text('```console\n$ python -c "raise SystemExit(3)"\n[exit status 3]\n```\n', encoding="utf-8")
    assert run_page(page, Page(tmp_path, environment())) == []
    assert same("a\n...\nb", "a\nx\ny\nb")
    assert not same("a\n...\nb", "a\nx\nc")
    assert same("at 2026-11-30T01:02:03Z", "at 2027-01-01T00:00:00.5Z")
    assert list(commands("$ one \\\n> two\nout\n$ three\n")) == [("one two", "out"), ("three", "")]
