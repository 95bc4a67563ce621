"""What is told of erased values: by whom, when and why in every look, and nothing of a sensitive one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from refold import erase, export, open_store
from refold_replay.bundle_import import import_bundle

if TYPE_CHECKING:
    from click.testing import Result

Cli = Callable[..., "Result"]
KEYS: dict[str, Any] = {
    "rate": {"owner": "pricer", "type": "number"},
    "iban": {"owner": "billing", "type": "any", "sensitive": True},
    "offer": {"owner": "sales", "type": "any"},
}
REASON = "it was DE02"


@pytest.fixture
def url(store_url: str) -> str:
    """A store in which the first versions of a plain and of a sensitive key were erased."""
    with open_store(store_url, {"keys": KEYS}) as store:
        run = store.run("q-2")
        for rate in (0.5, 0.75):
            run.write_state("rate", rate, writer="pricer")
            run.write_state("iban", f"DE{rate}", writer="billing")
        run.write_state("offer", 1, writer="sales", based_on=[("rate", 1), ("iban", 1)])
        erase(store, "q-2", key="rate", version=1, by="dpo", reason="wrong person")
        erase(store, "q-2", key="iban", version=1, by="dpo", reason=REASON)
    return store_url


def test_why_it_was_erased(url: str, refold_cli: Cli) -> None:
    """`get`, `history` and `blame` say by whom, when and why, as text and as JSON."""
    for words in (("get", "q-2", "rate", "--at", "rate@1", "--no-record"), ("history", "q-2", "rate"),
                  ("blame", "q-2", "rate", "--at", "rate@1")):  # fmt: skip
        shown = refold_cli(*words, "--store", url).stdout
        assert "erased by dpo at 20" in shown
        assert "Z: wrong person" in shown
    found = json.loads(
        refold_cli("get", "q-2", "rate", "--at", "rate@1", "--no-record", "--json", "--store", url).stdout
    )
    assert (found["erased"], found["erased_reason"], found["left_out"]) == (True, "wrong person", False)
    first = json.loads(refold_cli("history", "q-2", "rate", "--json", "--store", url).stdout.splitlines()[0])
    assert first["erased_reason"] == "wrong person"


@pytest.mark.parametrize("form", [(), ("--json",)])
@pytest.mark.parametrize(
    "words",
    [
        ("events", "q-2"),
        ("events", "q-2", "--kind", "value.erased"),
        ("log", "q-2"),
        ("get", "q-2", "iban", "--at", "iban@1", "--no-record"),
        ("history", "q-2", "iban"),
        ("blame", "q-2", "iban", "--at", "iban@1"),
        ("diff", "q-2", "iban@1", "end"),
    ],
)
def test_the_reason_for_a_sensitive_key_is_masked(
    url: str, refold_cli: Cli, words: tuple[str, ...], form: tuple[str, ...]
) -> None:
    """Why a sensitive value was erased may quote it: it is shown only when asked for; other reasons always are."""
    shown = refold_cli(*words, *form, "--store", url).stdout
    assert shown
    assert REASON not in shown
    if "iban" not in words and "diff" not in words:
        assert "wrong person" in shown
        assert REASON in refold_cli(*words, *form, "--show-sensitive", "--store", url).stdout


def test_a_masked_erasure_says_so(url: str, refold_cli: Cli) -> None:
    """The event of a sensitive key's erasure is marked as masked, that of another key is not."""
    lines = refold_cli("events", "q-2", "--kind", "value.erased", "--json", "--store", url).stdout.splitlines()
    assert [json.loads(line)["masked"] for line in lines] == [False, True]
    assert json.loads(lines[1])["body"]["reason"] == "***"


def test_one_erased_side_does_not_hide_the_other(url: str, refold_cli: Cli) -> None:
    """`diff` shows the side that is left, masked if its key is sensitive; erased goes before masked."""
    text = refold_cli("diff", "q-2", "rate@1", "end", "--store", url).stdout
    (line,) = [line for line in text.splitlines() if "wrong person" in line]
    assert line.startswith("  ~ $  (erased by dpo at 20")
    assert line.endswith("Z: wrong person) -> 0.75")
    found = json.loads(refold_cli("diff", "q-2", "iban@1", "end", "--json", "--store", url).stdout)
    assert [(one["key"], one["changes"]) for one in found["keys"]][-1] == (
        "rate", [{"op": "replace", "path": "$", "after": 0.75}],
    )  # fmt: skip
    iban = found["keys"][0]
    assert (iban["before_hidden"][:14], iban["after_hidden"][:3], iban["changes"]) == ("(erased by dpo", "***", [])
    shown = refold_cli("diff", "q-2", "iban@1", "end", "--show-sensitive", "--store", url).stdout
    assert f'Z: {REASON}) -> "DE0.75"' in shown


def test_lineage_marks_what_was_erased(url: str, refold_cli: Cli) -> None:
    """`why` and `impact` say at a write that its value is gone: as text, JSON, DOT and Mermaid."""
    for command, what in (("why", "offer@1"), ("impact", "rate@1")):
        words = (command, "q-2", what, "--store", url)
        assert "pricer writes rate@1 (erased), seq" in refold_cli(*words).stdout
        nodes = json.loads(refold_cli(*words, "--json").stdout)["nodes"]
        gone = {node["key"] for node in nodes if node["erased"]}
        assert gone == ({"rate", "iban"} if command == "why" else {"rate"})
        for form in ("--dot", "--mermaid"):
            assert "(erased)" in refold_cli(*words, form).stdout


def test_left_out_is_not_erased(url: str, refold_cli: Cli, tmp_path: Path) -> None:
    """After a redacted import nobody is said to have erased what the bundle never held; the full one adds nothing."""
    other = f"sqlite:///{tmp_path / 'other.db'}"
    with open_store(url) as store, open_store(other) as into:
        export(store.run("q-2"), tmp_path / "redacted.refold", redact=True)
        export(store.run("q-2"), tmp_path / "full.refold")
        import_bundle(into, tmp_path / "redacted.refold", by="root")
    for words in (("get", "q-2", "iban", "--no-record"), ("history", "q-2", "iban")):
        shown = refold_cli(*words, "--store", other).stdout
        assert "(left out of the bundle, imported by root at 20" in shown
        assert "erased by root" not in shown
    done = refold_cli("import", str(tmp_path / "full.refold"), "--store", other)
    assert done.exit_code == 0
    assert "came in redacted and stay without bodies" in done.stderr


def test_a_heading_ends_a_turn(store_url: str, refold_cli: Cli) -> None:
    """Events without a turn behind the last one of a turn stand under a heading; before the first there is none."""
    with open_store(store_url, {"keys": KEYS}) as store:
        run = store.run("q-2")
        for turn in (None, 1, None, 1, None, None, 2):
            run.write_state("rate", 0.5, writer="pricer", turn=turn)
    lines = refold_cli("log", "q-2", "--key", "rate", "--store", store_url).stdout.splitlines()[1:]
    told = [line if line.startswith("--") else line.split("@")[1][0] for line in lines]
    assert told == ["1", "-- turn 1", "2", "3", "4", "-- no turn", "5", "6", "-- turn 2", "7"]
