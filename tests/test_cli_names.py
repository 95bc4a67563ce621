"""Names at the command line that are nobody's, or none: a typing mistake is told, never answered like a name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from click.testing import Result

Cli = Callable[..., "Result"]
RUN = "clm-77401"


@pytest.fixture
def cli(refold_cli: Cli, claims_url: str) -> Cli:
    """The command line on the claims case."""

    def call(*words: str, **options: Any) -> Result:
        return refold_cli(*words, "--store", claims_url, **options)

    return call


@pytest.mark.parametrize("form", [(), ("--json",)])
@pytest.mark.parametrize(
    "words",
    [
        ("readers", RUN, "routing", "--reader", "triage_agnt"),
        ("explain", RUN, "triage_agnt", "routing"),
        ("log", RUN, "--agent", "triage_agnt"),
    ],
)
def test_nobody_of_that_name(cli: Cli, words: tuple[str, ...], form: tuple[str, ...]) -> None:
    """An answer that is empty because the name is nobody's says so, on standard error, with near names."""
    done = cli(*words, *form)
    assert done.stderr == "note: nobody named 'triage_agnt' in this run; did you mean 'triage_agent'?\n"
    assert "note" not in done.stdout


def test_somebody_who_did_nothing_is_known(cli: Cli) -> None:
    """Who acted, was handed a turn, read before a roll-up, or stands in the schema is known, in a fork, too."""
    assert cli("readers", RUN, "routing", "--reader", "triage_agent").stderr == ""
    cli("get", RUN, "loss", "--as", "dana")
    cli("prune", RUN, "--before", "end", "--as", "ops")
    cli("fork", RUN, "other", "--as", "ada")
    for name in ("dana", "ops", "evidence_agent", "ada"):
        assert cli("readers", "other", "settlement", "--reader", name).stderr == ""
    assert "nobody named 'grace'" in cli("readers", "other", "settlement", "--reader", "grace").stderr


def test_an_unknown_key_of_the_log_is_told(cli: Cli) -> None:
    """`log --key` ends as every command does; a key that only a refused write names is told all the same."""
    done = cli("log", RUN, "--key", "routng")
    assert (done.exit_code, done.stdout) == (3, "")
    assert "unknown key 'routng': did you mean 'routing'?" in done.stderr
    assert cli("write", RUN, "routng", "1", "--writer", "triage_agent").exit_code == 4
    assert "routng" in cli("log", RUN, "--key", "routng").stdout


def test_readers_of_a_version_that_is_not_there(cli: Cli) -> None:
    """It ends with 3 and names the newest one, as `impact` does; a version that nobody read is no mistake."""
    done = cli("readers", RUN, "routing", "--version", "9")
    assert (done.exit_code, done.stdout) == (3, "")
    assert "key 'routing' has no version 9; its newest is 2" in done.stderr
    assert cli("readers", RUN, "settlement", "--version", "1").exit_code == 0


def test_reader_and_key_exchanged(cli: Cli) -> None:
    """`explain KEY READER` names the order."""
    done = cli("explain", RUN, "routing", "triage_agent")
    assert (done.exit_code, "the order is READER KEY, and 'routing' is a key" in done.stderr) == (3, True)


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("get", RUN, "routing@1"), "--at routing@1"),
        (("blame", RUN, "routing@1"), "--at routing@1"),
        (("history", RUN, "routing@1"), "--at routing@1"),
        (("readers", RUN, "routing@1"), "--version 1"),
    ],
)
def test_a_version_behind_the_key(cli: Cli, words: tuple[str, ...], hint: str) -> None:
    """What takes a key tells how to ask for one of its versions."""
    done = cli(*words)
    assert (done.exit_code, f"did you mean 'routing'? For a version: {hint}" in done.stderr) == (3, True)


@pytest.mark.parametrize("name", ["", "  "])
@pytest.mark.parametrize(
    "words",
    [
        ("erase", RUN, "routing", "--reason", "x", "--yes", "--as", "NAME"),
        ("prune", RUN, "--before", "end", "--as", "NAME"),
        ("archive", RUN, "-o", "DIR", "--as", "NAME"),
        ("fork", RUN, "new", "--as", "NAME"),
        ("get", RUN, "routing", "--as", "NAME"),
        ("import", "DIR", "--as", "NAME"),
        ("fork", RUN, "NAME"),
        ("write", "NAME", "routing", "1", "--writer", "triage_agent"),
        ("write", RUN, "NAME", "1", "--writer", "triage_agent"),
        ("write", RUN, "routing", "1", "--writer", "NAME"),
        ("delete", RUN, "routing", "--writer", "NAME"),
    ],
)
def test_a_variable_that_was_not_set_is_no_name(
    refold_cli: Cli, sqlite_url: str, tmp_path: Path, words: tuple[str, ...], name: str
) -> None:
    """Empty and blank names are a usage error, before any store is opened."""
    given = [name if word == "NAME" else word.replace("DIR", str(tmp_path)) for word in words]
    done = refold_cli(*given, "--store", sqlite_url)
    assert (done.exit_code, "a name is expected, not an empty or blank one" in done.stderr) == (2, True)
