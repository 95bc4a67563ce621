"""What is printed: everything a model can put into a name or a value is shown, and none of it acts on the terminal."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold import NotExact, Schema, output
from refold_store import jsontext

NASTY = "\x1b[31mred\x1b[0m \u202egnp.exe \u200b\x07\x9b\x7f \u2028end"


@pytest.fixture
def on_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard output passes for a terminal of 60 columns."""
    monkeypatch.setattr(output, "terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")


@given(st.text())
def test_safe_text_is_printable(text: str) -> None:
    """Nothing but printable characters is left of any text; printable text stays as it is."""
    shown = output.safe(text)
    assert shown.isprintable()
    assert not text.isprintable() or shown == text


@given(
    st.recursive(
        st.none() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_a_shown_value_is_the_value(value: Any) -> None:
    """JSON shown to people means exactly the stored value, over one line or many."""
    try:
        jsontext.encode(value)
    except NotExact:
        return
    for shown in (output.compact(value), output.pretty(value)):
        assert json.loads(shown) == value
        assert shown.replace("\n", "").isprintable()


def test_escapes_are_those_of_json_and_python() -> None:
    """An escape sequence shows as \\x1b in a name and as \\u001b in a value."""
    assert output.safe("a\x1b[31m\u202e") == "a\\x1b[31m\\u202e"
    assert output.compact("\x1b\u202e\U000e0001") == '"\\u001b\\u202e\\udb40\\udc01"'
    assert output.safe("naïve 名前 🙂") == "naïve 名前 🙂"


def test_integers_and_floats_in_full() -> None:
    """Numbers are shown as they are stored."""
    assert output.compact([2**64, 10**40, 1e22, -0.0, 1.0]) == f"[{2**64},{10**40},1e+22,-0.0,1.0]"


def test_long_values_come_indented() -> None:
    """A value that does not fit on a line is laid out, keys sorted."""
    shown = output.pretty({"b": ["x" * 40, "y" * 40], "a": 1})
    assert shown.split("\n") == [
        "{", '  "a": 1,', '  "b": [', f'    "{"x" * 40}",', f'    "{"y" * 40}"', "  ]", "}",
    ]  # fmt: skip


def test_times_can_be_used_as_moments() -> None:
    """Times are printed in full, in UTC."""
    when = datetime(2026, 11, 30, 2, 0, 0, 123456, tzinfo=UTC)
    assert output.at_time(when) == "2026-11-30T02:00:00.123456Z"
    now = int(when.timestamp() * 1e6)
    assert [output.ago(when, now + after) for after in (0, 2_000_000, 120_000_000, -5_000_000)] == [
        "just now", "2 s ago", "2 min ago", "in the future: check the clocks",
    ]  # fmt: skip


@pytest.mark.usefixtures("on_terminal")
def test_a_table_on_a_terminal_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    """A table wider than the terminal is cut with … and never wraps; nothing in it acts on the terminal."""
    output.table(("key", "value"), [("routing", "x" * 500), (NASTY, 1)], empty="none")
    shown = capsys.readouterr().out
    assert [len(line) <= 60 for line in shown.splitlines()] == [True] * 3
    assert "…" in shown
    assert output.safe(shown.replace("\n", "")) == shown.replace("\n", "")


def test_the_widest_columns_give_way() -> None:
    """Numbers and short names stay whole as long as wide columns have room to give; nothing goes under eight."""
    assert output._fitting([3, 12, 200], 60) == [3, 12, 45]
    assert output._fitting([3, 40, 40], 43) == [3, 20, 20]
    assert output._fitting([3, 40, 40], 10) == [3, 8, 8]


def test_a_table_elsewhere_is_whole(capsys: pytest.CaptureFixture[str]) -> None:
    """A table that is piped is aligned, and nothing is cut."""
    output.table(("key", "value"), [("routing", "x" * 500), ("a", None)], empty="none")
    assert capsys.readouterr().out.splitlines() == ["key      value", "routing  " + "x" * 500, "a"]


def test_an_empty_table_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    """No rows: a sentence instead of a head without a body."""
    output.table(("key",), [], empty="no key was written")
    assert capsys.readouterr().out == "no key was written\n"


@pytest.mark.usefixtures("on_terminal")
def test_json_on_a_terminal_is_escaped_and_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    """`--json` on a terminal shows invisible characters escaped; the document is the same."""
    output.document({"name": NASTY})
    text = capsys.readouterr().out
    assert text.strip().isprintable()
    assert json.loads(text) == {"name": NASTY}


def test_hostile_names_and_values(open_new: Callable[..., Any], store_url: str, refold_cli: Callable[..., Any]) -> None:
    """Runs, keys, writers, bases and values with escape sequences are shown escaped, and exactly with --json."""
    store = open_new(Schema.open())
    store.run(NASTY, NASTY).write_state(NASTY, {NASTY: [NASTY]}, writer=NASTY, basis=NASTY)
    store.close()
    place = ("--store", store_url, "--tenant", NASTY)
    for words in (
        ["get", NASTY, NASTY, "--as", NASTY], ["state", NASTY], ["keys", NASTY], ["runs"], ["history", NASTY, NASTY],
        ["readers", NASTY, NASTY], ["events", NASTY], ["diff", NASTY, "0", "end"],
    ):  # fmt: skip
        shown = refold_cli(*words, *place).stdout
        assert output.safe("\x1b[31m") in shown or "\\u001b[31m" in shown
        assert all(char.isprintable() or char == "\n" for char in shown)
    found = json.loads(refold_cli("get", NASTY, NASTY, "--json", *place).stdout)
    assert (found["key"], found["value"], found["basis"]) == (NASTY, {NASTY: [NASTY]}, NASTY)
