"""The check of the documents finds what it is for."""

from __future__ import annotations

from pathlib import Path

import pytest

from check_docs import check

ROOT = Path(__file__).resolve().parents[1]

GOOD = {
    "README.md": "# refold\n\nSee [the docs](docs/README.md) and [a heading](docs/a.md#two-words).\n",
    "CHANGELOG.md": "# Changelog\n",
    "docs/README.md": "# Docs\n\n- [a](a.md)\n- [decisions](decisions/)\n",
    "docs/a.md": "# A\n\n## Two `words`!\n\n```\n[not a link](nowhere.md)\n```\n",
    "docs/decisions/README.md": "# Decisions\n",
}


def write(root: Path, pages: dict[str, str]) -> Path:
    for name, text in pages.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


def test_good_documents_pass(tmp_path: Path) -> None:
    """Links to pages, folders and headings resolve; what stands in code is no link."""
    assert check(write(tmp_path, GOOD)) == []


@pytest.mark.parametrize(
    ("page", "text", "finding"),
    [
        ("README.md", "[x](docs/none.md)", "README.md: docs/none.md: no such file"),
        ("README.md", "[x](docs/a.md#none)", "README.md: docs/a.md#none: no such heading"),
        ("README.md", "[x](../other.md)", "README.md: ../other.md: no such file"),
        ("README.md", "[x][ref]\n\n[ref]: docs/none.md\n", "README.md: docs/none.md: no such file"),
        ("docs/lost.md", "# Lost", "docs/lost.md: not reachable from docs/README.md"),
    ],
)
def test_a_bad_link_or_page_is_found(page: str, text: str, finding: str, tmp_path: Path) -> None:
    """A dead link, a dead heading and an unreachable page are each named with their place."""
    assert check(write(tmp_path, GOOD | {page: text})) == [finding]


def test_missing_documents_are_found(tmp_path: Path) -> None:
    """A repository without its index of documents does not pass."""
    assert check(write(tmp_path, {"README.md": "# x", "CHANGELOG.md": "# y"})) == ["docs/README.md: missing"]


def test_the_documents_of_this_repository_are_sound() -> None:
    """Every link of README and docs resolves, and every page can be reached."""
    assert check(ROOT) == []
