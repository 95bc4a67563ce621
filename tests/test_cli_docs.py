"""docs/cli.md is made from the commands, and up to date."""

from __future__ import annotations

from pathlib import Path

import pytest

import make_cli_docs
from refold.app import COMMANDS


def test_the_page_is_up_to_date() -> None:
    """The committed page is what tools/make_cli_docs.py makes now."""
    assert make_cli_docs.PAGE.read_text(encoding="utf-8") == make_cli_docs.page()


def test_every_command_and_exit_code_is_on_it() -> None:
    """Each command has its heading, subcommands included, and each exit code its line."""
    page = make_cli_docs.page()
    for name in [*COMMANDS, "schema show", "schema check", "schema diff", "schema infer"]:
        assert f"\n### refold {name}\n" in page
    for code in range(6):
        assert f"\n| {code} | " in page


def test_a_stale_page_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """--check compares, says what to run, and gives exit code 1 for another page or none."""
    monkeypatch.setattr(make_cli_docs, "PAGE", tmp_path / "cli.md")
    monkeypatch.setattr("sys.argv", ["make_cli_docs.py", "--check"])
    assert make_cli_docs.main() == 1
    assert "make_cli_docs.py" in capsys.readouterr().out
    monkeypatch.setattr("sys.argv", ["make_cli_docs.py"])
    assert make_cli_docs.main() == 0
    monkeypatch.setattr("sys.argv", ["make_cli_docs.py", "--check"])
    assert make_cli_docs.main() == 0
