"""Exploring from the command line: log, blame, find, diff of two runs, history and readers, on both backends."""

from __future__ import annotations

import json
from collections.abc import Callable
from math import nan
from typing import Any

import pytest

from refold import InvalidValue, NotExact, open_store
from refold_store.erasing import erase
from refold_store.forking import fork
from refold_store.pruning import prune

Cli = Callable[..., Any]
RUN = "clm-77401"
KEYS: dict[str, Any] = {
    "iban": {"owner": "billing", "type": "any", "sensitive": True},
    "note": {"owner": "billing", "type": "any"},
    "house": {"owner": "billing", "type": "any", "scope": "tenant"},
}
SECRET = "DE02-1203"


def documents(result: Any) -> list[Any]:
    """The JSON documents a command printed, one a line."""
    return [json.loads(line) for line in result.stdout.splitlines()]


def ask(cli: Cli, *words: str, code: int = 0) -> Any:
    """The one JSON document of a command that ended as expected."""
    result = cli(*words, "--json")
    assert result.exit_code == code, result.stderr
    (found,) = documents(result)
    return found


@pytest.fixture
def secrets(store_url: str) -> str:
    """A store with a sensitive key in a transaction, a refused write, a fork, and odd names."""
    with open_store(store_url, {"keys": KEYS}) as store:
        run = store.run("r")
        with run.transaction(turn=3) as tx:
            tx.write_state("iban", {SECRET: SECRET}, writer="billing", basis=f"from {SECRET}")
            tx.write_state("note", "\x1b[31mred", writer="billing")
        with pytest.raises(Exception, match="may not write"):
            run.write_state("iban", SECRET, writer="sales")
        run.write_state("house", 1, writer="billing")
        other = fork(run, "f", by="dana")
        other.write_state("note", "other", writer="billing")
        other.write_state("iban", {SECRET: "new"}, writer="billing")
    return store_url


# --- log -----------------------------------------------------------------------------------------


def test_log_tells_the_case(claims_url: str, refold_cli: Cli) -> None:
    """One line an event: who did what, the value, the basis, what it rests on and that it was stale."""
    result = refold_cli("log", RUN, "--store", claims_url)
    lines = result.stdout.splitlines()
    assert lines[0].startswith(f"{RUN}, seq 1 to 14; +0 is 20")
    assert len(lines) == 15
    assert lines[5].endswith("5  evidence_agent read routing@1")
    assert "reserve_agent was refused reserve_band (invariant): [25000,5000]; invariant 'band_in_order'" in lines[10]
    assert lines[14].endswith(
        '14  settlement_agent wrote settlement@1: {"amount":12000,"within_limit":15000}; '
        "basis: authority limit is 15000; rests on routing@1 (stale: 2 was current)"
    )


def test_log_takes_moments_keys_and_agents(claims_url: str, refold_cli: Cli) -> None:
    """A part of the story, as JSON: one record a line, each member there."""
    found = documents(refold_cli("log", RUN, "--from", "routing@1", "--to", "routing@2", "--key", "routing",
                                 "--agent", "triage_agent", "--json", "--store", claims_url))  # fmt: skip
    assert [(one["seq"], one["words"], one["at_seq"]) for one in found] == [
        (4, "triage_agent wrote routing@1", 12),
        (12, "triage_agent wrote routing@2", 12),
    ]
    assert found[1]["based_on"] == [["evidence", 1, 1]]
    assert {len(one) for one in found} == {23}
    nothing = refold_cli("log", RUN, "--agent", "nobody", "--store", claims_url)
    assert (nothing.exit_code, nothing.stdout) == (0, f"nothing to tell of {RUN}, seq 0 to 14\n")
    assert refold_cli("log", RUN, "--from", "routing@9", "--store", claims_url).exit_code == 3
    turned = refold_cli("log", RUN, "--from", "10", "--to", "5", "--store", claims_url)
    assert (turned.exit_code, "--from is seq 10, --to is seq 5" in turned.stderr) == (2, True)


def test_log_marks_turns_transactions_and_silence(store_url: str, refold_cli: Cli) -> None:
    """A heading for a turn, a block for a transaction, a line for a silence of over a minute."""
    now = [1_700_000_000_000_000]
    with open_store(store_url, {"keys": KEYS}, clock=lambda: now[0]) as store:
        run = store.run("r")
        run.write_state("note", 1, writer="billing")
        now[0] += 19 * 60_000_000
        with run.transaction(turn=7) as tx:
            tx.write_state("note", 2, writer="billing")
            tx.write_state("iban", 2, writer="billing")
        now[0] += 26 * 3_600_000_000
        run.write_state("note", 3, writer="billing")
    lines = refold_cli("log", "r", "--store", store_url).stdout.splitlines()[4:]
    assert lines == [
        "   ... 19 min later",
        "-- turn 7",
        "+00:19:00.000  4  ┌ billing wrote note@2: 2",
        "+00:19:00.000  5  └ billing wrote iban@1: ***",
        "   ... 1.1 d later",
        "-- no turn",
        "+1d 02:19:00.000  6  billing wrote note@3: 3",
    ]


# --- blame ---------------------------------------------------------------------------------------


def test_blame_names_versions_part_by_part(claims_url: str, refold_cli: Cli) -> None:
    """Routing's ruleset is of version 1, the rest of version 2; the answer says which seq it is as of."""
    found = ask(refold_cli, "blame", RUN, "routing", "--store", claims_url)
    assert [(one["path"], one["value"], one["version"], one["written_by"], one["seq"]) for one in found["lines"]] == [
        ("$.authority_limit", 8000, 2, "triage_agent", 12),
        ("$.police_report", True, 2, "triage_agent", 12),
        ("$.ruleset", "QC-auto", 1, "triage_agent", 4),
    ]
    assert (found["at_seq"], found["version"], found["state"], found["masked"]) == (14, 2, "value", False)
    early = ask(refold_cli, "blame", RUN, "routing", "--at", "5", "--path", "$.ruleset", "--store", claims_url)
    assert ([one["version"] for one in early["lines"]], early["at_seq"]) == ([1], 5)
    text = refold_cli("blame", RUN, "routing", "--store", claims_url).stdout.splitlines()
    assert text[0] == f"routing in {RUN}: version 2, at seq 14"
    assert text[4].split()[:3] == ["$.ruleset", '"QC-auto"', "1"]


def test_blame_of_nothing(claims_url: str, refold_cli: Cli) -> None:
    """A key without a value is an answer; an unknown key and an unknown path end with code 3 and what is near."""
    result = refold_cli("blame", RUN, "settlement", "--at", "3", "--store", claims_url)
    assert (result.exit_code, result.stdout.splitlines()[1]) == (0, "no value: it was never written")
    result = refold_cli("blame", RUN, "routin", "--store", claims_url)
    assert (result.exit_code, "did you mean 'routing'" in result.stderr) == (3, True)
    result = refold_cli("blame", RUN, "routing", "--path", "$.rule", "--store", claims_url)
    assert (result.exit_code, "$.authority_limit" in result.stderr) == (3, True)
    assert refold_cli("blame", RUN, "routing", "--at", "99", "--store", claims_url).exit_code == 3


# --- find ----------------------------------------------------------------------------------------


def test_find_gives_the_moment_and_its_write(claims_url: str, refold_cli: Cli) -> None:
    """The moment the offer went over the limit in force, with what made it so, and the values then."""
    when = "settlement['amount'] > routing['authority_limit']"
    found = ask(refold_cli, "find", RUN, "--when", when, "--store", claims_url)
    (one,) = found["found"]
    assert (one["seq"], one["ended_seq"], found["at_seq"], found["keys"]) == (14, None, 14, ["routing", "settlement"])
    assert [(wrote["key"], wrote["version"], wrote["written_by"]) for wrote in one["writes"]] == [
        ("settlement", 1, "settlement_agent")
    ]
    text = refold_cli("find", RUN, "--when", "routing['authority_limit'] == 15000", "--store", claims_url).stdout
    assert text.splitlines()[0].startswith("seq 4, 20")
    assert text.splitlines()[0].endswith("Z: true, until seq 12")
    assert text.splitlines()[1] == (
        "  triage_agent wrote routing@1 at seq 4; basis: fnol: loss location QC, stated by claimant"
    )


def test_find_first_last_all_and_never(claims_url: str, refold_cli: Cli) -> None:
    """The exit code says whether there was such a moment; --first, --last and --all say which are told."""
    when = ("find", RUN, "--store", claims_url, "--when", "routing['authority_limit'] in (8000, 15000)")
    assert [ask(refold_cli, *when, word)["which"] for word in ("--first", "--last", "--all")] == [
        "first",
        "last",
        "all",
    ]
    never = ("find", RUN, "--store", claims_url, "--when", "reserve_band[0] > 90000")
    assert ask(refold_cli, *never, code=1)["found"] == []
    assert refold_cli(*never).stdout == f"never in {RUN}, up to seq 14\n"
    early = ask(refold_cli, "find", RUN, "--store", claims_url, "--when", "evidence", "--at", "10", code=1)
    assert early["at_seq"] == 10


def test_find_says_what_is_wrong(claims_url: str, refold_cli: Cli) -> None:
    """A wrong condition is a usage error with column and near names; one without meaning is a warning."""
    result = refold_cli("find", RUN, "--when", "routng == 1", "--store", claims_url)
    assert (result.exit_code, "did you mean routing?" in result.stderr) == (2, True)
    result = refold_cli("find", RUN, "--when", "loss > 1", "--store", claims_url)
    assert result.exit_code == 1
    assert "warning: cannot be judged at 1 step, first at seq 3" in result.stderr
    assert (
        ask(refold_cli, "find", RUN, "--when", "loss > 1", "--store", claims_url, code=1)["unjudged_first"]["seq"] == 3
    )


# --- diff, history, readers ----------------------------------------------------------------------


def test_diff_of_two_runs(secrets: str, refold_cli: Cli) -> None:
    """The second moment may lie in another run; there values are compared."""
    found = ask(refold_cli, "diff", "r", "end", "end", "--with", "f", "--show-sensitive", "--store", secrets)
    assert (found["with_run"], found["from_seq"], found["to_seq"]) == ("f", 5, 8)
    assert [(one["key"], one["changes"]) for one in found["keys"]] == [
        ("iban", [{"op": "replace", "path": f'$["{SECRET}"]', "before": SECRET, "after": "new"}]),
        ("note", [{"op": "replace", "path": "$", "before": "\x1b[31mred", "after": "other"}]),
    ]
    text = refold_cli("diff", "r", "end", "end", "--with", "f", "--store", secrets).stdout
    assert text.splitlines()[0] == "r at seq 5, f at seq 8: 2 keys differ"
    assert "note: version 1 and version 2, by billing" in text
    assert ask(refold_cli, "diff", "r", "0", "-0s", "--store", secrets)["with_run"] is None
    assert refold_cli("diff", "r", "0", "end", "--with", "x", "--store", secrets).exit_code == 3


def test_did_a_reader_ever_read_it(claims_url: str, refold_cli: Cli) -> None:
    """Yes or no, with seqs, and an exit code for scripts."""
    yes = refold_cli("readers", RUN, "routing", "--reader", "settlement_agent", "--store", claims_url)
    assert yes.exit_code == 0
    assert yes.stdout.splitlines()[0] == f"yes: settlement_agent read routing in {RUN} once, at seq 7"
    twice = refold_cli("readers", RUN, "routing", "--reader", "liability_agent", "--store", claims_url)
    assert twice.stdout.splitlines()[0].endswith("2 times, at seq 6, 13")
    no = refold_cli("readers", RUN, "routing", "--reader", "settlement_agent", "--version", "2", "--store", claims_url)
    assert no.exit_code == 1
    assert no.stdout == f"no: settlement_agent has not read version 2 of routing in {RUN}, up to seq 14\n"
    found = ask(refold_cli, "readers", RUN, "loss", "--reader", "x", "--store", claims_url, code=1)
    assert (found["reads"], found["reader"], found["at_seq"]) == ([], "x", 14)
    assert refold_cli("readers", RUN, "loss", "--store", claims_url).exit_code == 0


def test_rolled_up_reads_show_their_count(claims_url: str, refold_cli: Cli) -> None:
    """Pruned reads stand in one line with their number, first and last seq; yes and no stay the same."""
    with open_store(claims_url, strict_reads=True) as store:
        for _ in range(2):
            store.run(RUN).read_state("routing", reader="liability_agent")
        prune(store.run(RUN), before="end", by="ada")
    text = refold_cli(
        "readers", RUN, "routing", "--reader", "liability_agent", "--store", claims_url
    ).stdout.splitlines()
    assert text[0].endswith("4 times, at seq 6, 13 to 16")
    assert text[3].endswith("3 reads, rolled up")
    found = ask(refold_cli, "readers", RUN, "routing", "--reader", "liability_agent", "--store", claims_url)["reads"]
    assert [(one["seq"], one["last_seq"], one["count"], one["version"]) for one in found] == [
        (6, 6, 1, 1),
        (13, 16, 3, 2),
    ]


def test_erased_values_say_so(secrets: str, refold_cli: Cli) -> None:
    """Blame, diff, log and history of an erased value answer, and show nothing of it."""
    with open_store(secrets, {"keys": KEYS}) as store:
        erase(store, "r", key="note", by="dpo", reason="asked for")
    assert "no value: erased by dpo at 20" in refold_cli("blame", "r", "note", "--store", secrets).stdout
    for words in (["diff", "r", "0", "end"], ["log", "r"], ["history", "r", "note"]):
        result = refold_cli(*words, "--store", secrets)
        assert (result.exit_code, "red" in result.stdout, "erased" in result.stdout) == (0, False, True)
    assert refold_cli("find", "r", "--when", "note", "--store", secrets).exit_code == 1


def test_history_up_to_a_moment_and_the_newest_of_it(claims_url: str, refold_cli: Cli) -> None:
    """`--at` leaves later versions out, `--limit` older ones, and says how many."""
    early = documents(refold_cli("history", RUN, "routing", "--at", "11", "--json", "--store", claims_url))
    assert [(one["version"], one["at_seq"]) for one in early] == [(1, 11)]
    newest = refold_cli("history", RUN, "routing", "--limit", "1", "--store", claims_url).stdout.splitlines()
    assert (len(newest), newest[1].split()[0], newest[2]) == (3, "2", "and 1 older version")
    assert not documents(refold_cli("history", RUN, "routing", "--limit", "0", "--json", "--store", claims_url))
    assert len(documents(refold_cli("history", RUN, "routing", "--limit", "9", "--json", "--store", claims_url))) == 2


def test_keys_of_a_scope_have_no_moments_here(secrets: str, refold_cli: Cli) -> None:
    """A key of the tenant's is shown as of its own run; a moment of this one is refused in one line."""
    assert refold_cli("history", "r", "house", "--store", secrets).exit_code == 0
    assert refold_cli("blame", "r", "house", "--store", secrets).exit_code == 0
    assert refold_cli("history", "r", "house", "--at", "2", "--store", secrets).exit_code == 2
    assert refold_cli("blame", "r", "house", "--at", "2", "--store", secrets).exit_code == 3
    assert refold_cli("find", "r", "--when", "house", "--store", secrets).exit_code == 2


@pytest.mark.parametrize("form", [[], ["--json"]])
@pytest.mark.parametrize(
    "words",
    [
        ["log", "r"],
        ["blame", "r", "iban"],
        ["find", "r", "--when", "iban", "--all"],
        ["diff", "r", "0", "end"],
        ["diff", "r", "end", "end", "--with", "f"],
        ["history", "r", "iban"],
    ],
)
def test_sensitive_values_are_masked(words: list[str], form: list[str], secrets: str, refold_cli: Cli) -> None:
    """No value, no basis, no name inside a value of a sensitive key is shown unless asked for."""
    masked = refold_cli(*words, *form, "--store", secrets)
    assert (masked.exit_code, SECRET in masked.stdout + masked.stderr) == (0, False)
    assert SECRET in refold_cli(*words, *form, "--show-sensitive", "--store", secrets).stdout


@pytest.mark.parametrize("form", [[], ["--json"]])
@pytest.mark.parametrize("words", [["events", "r"], ["log", "r"], ["whatif", "r", "--owner", "iban=sales"]])
def test_refusals_of_a_sensitive_key_are_masked(
    words: list[str], form: list[str], secrets: str, refold_cli: Cli
) -> None:
    """The path of a refusal holds names inside the value: it shows where it is none of these, and if asked for."""
    with open_store(secrets, {"keys": KEYS}) as store:
        with pytest.raises(NotExact):
            store.run("r").write_state("iban", {SECRET: nan}, writer="billing")
        with pytest.raises(InvalidValue):
            store.run("r").write_state("iban", 1, writer="billing", basis=1)  # type: ignore[arg-type]
    shown = refold_cli(*words, *form, "--store", secrets).stdout
    assert SECRET not in shown
    assert ('"path":"basis"' in shown) == (words[0] == "events" and form == ["--json"])
    assert SECRET in refold_cli(*words, *form, "--show-sensitive", "--store", secrets).stdout


@pytest.mark.parametrize("words", [["log", "r"], ["blame", "r", "note"], ["find", "r", "--when", "note"]])
def test_what_is_not_printable_is_escaped(words: list[str], secrets: str, refold_cli: Cli) -> None:
    """A value with an escape sequence cannot command a terminal."""
    assert "\x1b" not in refold_cli(*words, "--store", secrets).stdout
