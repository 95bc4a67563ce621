"""Conditions: the language, its three values, what it refuses, and that it agrees with Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refold_store.conditions import MAX_CONDITION_CHARS, compile_condition
from refold_store.conditions_compile import MAX_CONDITION_DEPTH, MAX_CONDITION_NODES
from refold_store.errors import ConditionError, ConditionFailed

STATE: dict[str, Any] = {
    "status": "open",
    "spent": 120.5,
    "count": 3,
    "paid": False,
    "band": [100, 250],
    "tags": ["fire", "water"],
    "order": {"total": 40, "lines": [{"sku": "a"}, {"sku": "b"}], "note": None},
    "order/1": {"total": 7},
    "nothing": None,
    "class": "B",
}


def check(expression: str, **options: Any) -> bool | None:
    return compile_condition(expression, **options)(STATE)


def refusal(expression: str, **options: Any) -> ConditionError:
    with pytest.raises(ConditionError) as caught:
        compile_condition(expression, **options)
    return caught.value


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("band[0] <= band[1]", True),
        ("band[-1] == 250 and band[-2] == 100", True),
        ("status == 'open'", True),
        ("spent > -5 and count >= 3 and count != 4", True),
        ("0 < count < 10 > 4", True),
        ("0 < count < 3", False),
        ("1 < 2 > 5 < missing", False),
        ("status in ('open', 'held')", True),
        ("status not in {'closed', 'held'}", True),
        ("'fire' in tags and 'theft' not in tags", True),
        ("'total' in order", True),
        ("'pen' in status", True),
        ("order['lines'][1]['sku'] == 'b'", True),
        ("order['note'] == None", True),
        ("nothing == None and True and not False", True),
        ("state['order/1']['total'] == 7", True),
        ("state['status'] == status", True),
        ("status[0] == 'o'", True),
        ("count in [1, count]", True),
        ("(paid or status) == 'open'", True),
        ("-1.5e3 < -1_000 < 0x1F", True),
        ("'\\u00e9\\n' == 'é\\n'", True),
        ("  count == 3\n", True),
    ],
)
def test_the_language(expression: str, expected: bool) -> None:
    """Each construct of the language gives what it gives in Python."""
    assert check(expression) is expected


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("missing", None),
        ("not missing", None),
        ("missing == None", None),
        ("missing != missing", None),
        ("missing < 1", None),
        ("1 in missing", None),
        ("missing in [1]", None),
        ("missing not in tags", None),
        ("missing['x'][0]", None),
        ("state['no/1'] == 1", None),
        ("order['x'] == 1", None),
        ("order[0] == 1", None),
        ("tags[2] == 'x'", None),
        ("tags[-3] == 'x'", None),
        ("tags[99999999999999999999999] == 'x'", None),
        ("count in [3, missing]", None),
        ("missing and True", None),
        ("missing and False", False),
        ("False and missing", False),
        ("missing or True", True),
        ("True or missing", True),
        ("missing or False", None),
        ("not (missing and paid)", True),
        ("missing or missing and False or 1", True),
        ("missing < 5 < 3", False),
        ("missing < 5 < 6", None),
        ("(missing or 'x') == 'x'", None),
        ("(missing and 0) == 0", None),
        ("[missing and 0] == [False]", None),
    ],
)
def test_missing_is_unknown(expression: str, expected: bool | None) -> None:
    """What is missing is unknown, never false, and `and`, `or`, `not` follow Kleene."""
    assert check(expression) is expected


@pytest.mark.parametrize("a", [True, False, None])
@pytest.mark.parametrize("b", [True, False, None])
def test_kleene_tables(a: bool | None, b: bool | None) -> None:
    """For each pair of truth values the three-valued result is the one that every completion agrees on."""
    state = {name: value for name, value in (("a", a), ("b", b)) if value is not None}
    cases = [(x, y) for x in (True, False) for y in (True, False) if a in (x, None) and b in (y, None)]
    for expression, meaning in (("a and b", bool.__and__), ("a or b", bool.__or__)):
        possible = {meaning(x, y) for x, y in cases}
        assert compile_condition(expression)(state) is (possible.pop() if len(possible) == 1 else None)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("''", False),
        ("0.0", False),
        ("nothing", False),
        ("[]", False),
        ("tags", True),
        ("'no'", True),
        ("order", True),
        ("not tags", False),
    ],
)
def test_other_results_count_by_truthiness(expression: str, expected: bool) -> None:
    """A known result that is no boolean counts as Python counts it; None is false and not unknown."""
    assert check(expression) is expected


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("True == 1 and False == 0.0 and [True] == [1]", True),
        ("'1' == 1", False),
        ("None == False", False),
        ("True in [1]", True),
        ("pair == (1, 2) and pair == [1, 2]", True),
        ("pair in [(1, 2)] and pair in {(1, 2)} and (1, 2) in pairs", True),
        ("nested == {'a': 1}['x']", None),
        ("typed == pair and pair < (1, 3) and (0, 9) <= pair", True),
        ("marks == ['x', 'y'] and ['y', 'x'] == marks and marks == {'y', 'x'}", True),
        ("marks == ['x', 'x', 'y'] or marks == ['x'] or marks == ['x', 'z'] or marks == 'xy'", False),
        ("holder == [(1, 2)] and holder != [(1, 3)]", True),
        ("mapped == other", True),
        ("marks == [order, order]", False),
        ("[1] in marks", False),
        ("tags in order", False),
    ],
)
def test_equality(expression: str, expected: bool | None) -> None:
    """Booleans are numbers, unlike kinds are not equal, and list, tuple and set are one JSON array."""
    state = STATE | {
        "pair": [1, 2],
        "typed": (1, 2),
        "pairs": [[1, 2]],
        "marks": {"x", "y"},
        "holder": [[1, 2]],
        "mapped": {"a": [1, (2,)]},
        "other": {"a": [1, [2]]},
    }
    if expected is None:
        assert "a dict is not allowed" in str(refusal(expression))
    else:
        assert compile_condition(expression)(state) is expected


@pytest.mark.parametrize(
    ("expression", "column", "words"),
    [
        ("status < 1", 1, "`<` has no meaning for a text and a number"),
        ("count > 1 and nothing >= 1", 15, "`>=` has no meaning for None and a number"),
        ("1 < 2 < status", 5, "a number and a text"),
        ("tags < [1]", 1, "a list and a list"),
        ("order < order", 1, "an object and an object"),
        ("{1} <= {1, 2}", 1, "a set and a set"),
        ("1 in count", 1, "`in` has no meaning for a number and a number"),
        ("1 in status", 1, "a number and a text"),
        ("None not in nothing", 1, "`not in`"),
        ("nothing['x']", 1, "None has no member 'x'"),
        ("not tags['x']", 5, "a list has no member 'x'"),
        ("paid[0]", 1, "a boolean has no member 0"),
        ("{count, tags}", 1, "a set cannot hold"),
    ],
)
def test_what_has_no_meaning_fails(expression: str, column: int, words: str) -> None:
    """An operation without meaning is ConditionFailed with its column and the kinds, without the values."""
    with pytest.raises(ConditionFailed) as caught:
        check(expression)
    assert (caught.value.expression, caught.value.column) == (expression, column)
    assert words in str(caught.value)


def test_failures_do_not_quote_values() -> None:
    """A value may be sensitive: the error names kinds only."""
    with pytest.raises(ConditionFailed) as caught:
        compile_condition("pin < 1")({"pin": "8461"})
    assert "8461" not in str(caught.value)


@pytest.mark.parametrize("expression", ["count == 3 or status < 1", "paid and nothing['x']", "1 > 2 < (1 < 'a')"])
def test_evaluation_stops_once_known(expression: str) -> None:
    """`and`, `or` and chains leave alone what cannot change the answer."""
    assert check(expression) in (True, False)


@pytest.mark.parametrize(
    ("expression", "column", "words"),
    [
        ("", 1, "it is empty"),
        (" \n ", 1, "it is empty"),
        ("count is None", 7, "`is` is not allowed (write `==`, for None too)"),
        ("(count) is  not None", 9, "write `!=`"),
        ("1 < count is 3", 11, "`is`"),
        ("  len(tags)", 3, "only declared condition functions may be called (none are declared here)"),
        ("__import__('os').system('id')", 1, "only declared condition functions"),
        ("tags.append", 1, 'a member is spelled tags["append"]'),
        ("count == order.total", 10, 'order["total"]'),
        ("().__class__.__bases__", 1, "an attribute is not allowed"),
        ("lambda: 1", 1, "a lambda"),
        ("[x for x in tags]", 1, "a comprehension"),
        ("{x for x in tags}", 1, "a comprehension"),
        ("{x: 1 for x in tags}", 1, "a comprehension"),
        ("count == (x for x in tags)", 10, "a comprehension"),
        ("status == f'{count}'", 11, "an f-string"),
        ("(count := 4)", 2, "`:=` is not allowed"),
        ("[*tags]", 2, "`*` is not allowed"),
        ("count + 1 == 4", 1, "arithmetic"),
        ("9**9**9", 1, "arithmetic"),
        ("'a' * 999999999", 1, "arithmetic"),
        ("order/1", 1, 'state["order/1"]'),
        ("-count < 0", 1, "`-` stands only before a number"),
        ("- -1", 1, "`-` stands only before a number"),
        ("-True", 1, "`-` stands only before a number"),
        ("+1 == 1", 1, "leave `+` out"),
        ("~count", 1, "write `not`"),
        ("tags[0:1]", 6, "a slice is not allowed"),
        ("tags[count]", 6, "one constant text or whole number"),
        ("tags[1.0]", 6, "one constant"),
        ("tags[True]", 6, "one constant"),
        ("tags[-True]", 6, "one constant"),
        ("tags[0, 1]", 6, "one constant"),
        ("1 if count else 2", 1, "use and, or, not"),
        ("{'a': 1}", 1, "a dict is not allowed"),
        ("await count", 1, "await"),
        ("(yield)", 2, "yield"),
        ("status == b'open'", 11, "a literal of type bytes"),
        ("1j", 1, "a literal of type complex"),
        ("...", 1, "a literal of type ellipsis"),
        ("count < 1e999", 9, "too large"),
        ("true", 1, "unknown variable true (write True)"),
        ("paid == FALSE", 9, "write False"),
        ("nothing == null", 12, "write None"),
        ("state == 1", 1, "`state` stands only before a key"),
        ("state[0]", 7, "a key is a text"),
        ("1 in {1, [2]}", 6, "a set cannot hold"),
        ("count == 3 # always", 12, "a condition holds no comment"),
        ("status == '\\d'", 12, "a backslash stands only before"),
        ("status == '\\N{BULLET}'", 12, "a backslash stands only before"),
        ("status == '\\ud800'", 11, "a lone surrogate"),
        ("1or count", 1, "a number runs into a word"),
        ("count in [0x1f] and 0b1or 2", 21, "a number runs into a word"),
        ("ﬁeld == 1", 1, "in another spelling"),
        ("count ==\n3", 9, "a condition is one line"),
        ("count == '\0'", 11, "U+0000"),
        ("status == '\u202e'", 12, "U+202E"),
        ("status == '\ud800'", 12, "U+D800"),
        ("count = 3", 7, "write `==` for `=`"),
        ("paid && count", 7, "write `and`"),
        ("paid || count", 7, "write `or`"),
        ("!paid", 1, "write `not`"),
        ("count === 3", 9, "write `==`"),
        ("status == '&&' 3", 16, "a condition is made of"),
        ("class == 'B'", 1, 'state["class"]'),
        ("count; paid", 6, "cannot be read"),
        ("(count", 1, "cannot be read"),
        ("'é' == 'é' and x.y", 16, "an attribute"),
    ],
)
def test_refused_with_column_and_hint(expression: str, column: int, words: str) -> None:
    """Whatever is not in the language is refused when compiled, with its column and a hint."""
    error = refusal(expression)
    assert error.expression == expression
    assert words in str(error)
    assert error.hint
    assert error.column == column


def test_a_condition_is_text() -> None:
    """A YAML boolean in place of an expression is refused, not taken for a constant."""
    assert "not bool (put it in quotes)" in str(refusal(True))  # type: ignore[arg-type]


def test_caps_on_length_depth_and_nodes() -> None:
    """Each cap lets through what just fits and refuses one more."""
    fits = "1".ljust(MAX_CONDITION_CHARS)
    assert compile_condition(fits)({})
    assert f"at most {MAX_CONDITION_CHARS}" in str(refusal(fits + " "))
    depth = MAX_CONDITION_DEPTH - 1
    assert compile_condition("[" * depth + "1" + "]" * depth)({})
    assert "levels deep" in str(refusal("[" * (depth + 1) + "1" + "]" * (depth + 1)))
    many = ",".join("1" * (MAX_CONDITION_NODES - 1))
    assert compile_condition(f"[{many}]")({})
    assert f"more than {MAX_CONDITION_NODES} parts" in str(refusal(f"[{many},1]"))


@pytest.mark.parametrize("part", ["(", "[", "{", "not ", "-", "a and (", "f(", "a[", "{a:", "(lambda:", "~", "(yield "])
def test_deep_nesting_is_refused(part: str) -> None:
    """No nesting gets past the parser's own stack as another error."""
    assert refusal((part * MAX_CONDITION_CHARS)[:MAX_CONDITION_CHARS]).column


def test_known_names() -> None:
    """Given the keys that exist, another name is an unknown variable, with similar names and `True` for `true`."""
    known = {"status", "spent", "order/1"}
    assert compile_condition("status == 'x' or state['order/1']", known=known).names <= known
    error = refusal("spent > 1 and statsu == 'x'", known=known)
    assert (error.column, error.hint) == (15, "did you mean status?")
    assert "unknown variable 'statsu'" in str(error)
    assert refusal("state['order/2']", known=known).hint == "did you mean order/1?"
    assert "no such key" in str(refusal("zzz", known=known))
    assert refusal("true", known=known).hint == "write True"
    assert compile_condition("true", known={"true"})({"true": 5})


def test_names_functions_and_missing() -> None:
    """A condition tells its keys, its functions, and what a state lacks: keys first, then members as spelled."""
    source = "b and f(a)[0] == order['x'][0] or state['k/1'] or order['lines'][0]['sku'] or nothing['x']"
    condition = compile_condition(source, functions={"f": lambda value: value, "g": len})
    assert condition.names == {"a", "b", "order", "k/1", "nothing"}
    assert condition.functions == {"f"}
    assert condition.expression == source
    assert condition.missing(STATE) == ("b", "a", "k/1", "order['x'][0]")
    assert condition.missing({}) == ("b", "a", "order", "k/1", "nothing")
    assert repr(compile_condition("a")) == "Condition('a')"


def test_declared_functions() -> None:
    """Declared functions are called by name with evaluated arguments; an unknown argument keeps them from running."""
    calls: list[tuple[object, ...]] = []

    def near(a: float, b: float, within: float = 1) -> bool:
        calls.append((a, b, within))
        return abs(a - b) <= within

    functions = {"near": near, "size": len}
    assert check("near(count, 4) and not near(count, band[0], 2) and size([1, 2]) == 2", functions=functions)
    assert calls == [(3, 4, 1), (3, 100, 2)]
    assert check("near(count, missing)", functions=functions) is None
    assert len(calls) == 2


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("nera(1, 2)", "did you mean near?"),
        ("other(1)", "declared: near, slow"),
        ("near(1)", "does not take 1 arguments"),
        ("near(1, 2, 3)", "does not take 3 arguments"),
        ("near(a=1, b=2)", "by position"),
        ("near(*tags)", "`*` is not allowed"),
        ("near(1, 2)(3)", "only declared"),
        ("order.near(1, 2)", "only declared"),
        ("slow()", "no plain function"),
    ],
)
def test_calls_refused(expression: str, words: str) -> None:
    """Calls of what is not declared, of coroutines, or with arguments that do not fit are refused when compiled."""

    async def slow() -> bool:
        return True

    functions: dict[str, Callable[..., object]] = {"near": lambda a, b: a == b, "slow": slow}
    assert words in str(refusal(expression, functions=functions))


def test_a_function_that_raises() -> None:
    """A declared function's error arrives as ConditionFailed with column and cause."""
    cause = ValueError("no such policy")

    def broken(value: object) -> bool:
        raise cause

    with pytest.raises(ConditionFailed, match="function broken raised ValueError: no such policy") as caught:
        check("paid or broken(1)", functions={"broken": broken})
    assert caught.value.column == 9
    assert caught.value.__cause__ is cause


def test_a_function_gets_a_list_of_its_own() -> None:
    """A literal list handed to a function is built anew, so that no call can change the condition."""
    condition = compile_condition("pop([1]) == 1", functions={"pop": lambda items: items.pop()})
    assert [condition({}), condition({})] == [True, True]


class Recording(dict[str, object]):
    """A state that notes each read and fails on demand."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.reads: list[str] = []

    def get(self, key: str, default: object = None) -> Any:
        self.reads.append(key)
        if key == "gone":
            raise ConnectionError(key)
        return super().get(key, default)


def test_reads_each_mention_once_and_lets_errors_of_the_state_pass() -> None:
    """The state is asked once for each mention, only as far as needed, and its own errors pass unchanged."""
    state = Recording(STATE)
    assert compile_condition("1 < count < 5 or gone")(state)
    assert state.reads == ["count"]
    with pytest.raises(ConnectionError):
        compile_condition("gone == 1")(state)


def test_typed_values_whose_comparison_raises() -> None:
    """An error in a typed value's own comparison is ConditionFailed; depth beyond the stack too."""

    class Odd:
        def __eq__(self, other: object) -> bool:
            raise ZeroDivisionError

    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(ConditionFailed, match="a Odd and a number"):
        compile_condition("x == 1")({"x": Odd()})
    with pytest.raises(ConditionFailed, match="a list and a list"):
        compile_condition("x == y")({"x": [deep], "y": [[deep]]})
    while deep:
        deep = deep.pop()


# agreement with Python

SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-3, 3), st.sampled_from([0.5, -1.0, 2.0, "", "a", "ab"]))
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=5,
)
NAMES = st.sampled_from(["a", "b", "c", "state['k/1']"])
LISTS = st.lists(SCALARS, max_size=3)


def _grow(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    operator = st.sampled_from(["==", "!=", "<", "<=", ">", ">=", "in", "not in"])
    chain = st.lists(st.tuples(operator, inner), min_size=1, max_size=3)
    index = st.sampled_from(["0", "1", "-1", "'a'"])
    return st.one_of(
        st.tuples(inner, chain).map(lambda at: f"({at[0]} {' '.join(f'{op} {right}' for op, right in at[1])})"),
        st.tuples(inner, st.sampled_from(["and", "or"]), inner, inner).map(
            lambda at: f"({at[0]} {at[1]} {at[2]} {at[1]} {at[3]})"
        ),
        inner.map(lambda text: f"(not {text})"),
        st.lists(inner, max_size=3).map(lambda parts: f"[{', '.join(parts)}]"),
        st.tuples(NAMES, index).map(lambda at: f"{at[0]}[{at[1]}]"),
        st.tuples(NAMES, LISTS).map(lambda at: f"({at[0]} in {at[1]})"),
    )


@pytest.mark.filterwarnings("ignore::SyntaxWarning")
@settings(max_examples=500)
@given(st.recursive(NAMES | SCALARS.map(repr), _grow, max_leaves=8), st.tuples(VALUES, VALUES, VALUES, VALUES))
def test_agrees_with_python_on_known_states(expression: str, values: tuple[object, ...]) -> None:
    """Where all is known, a condition answers as Python's own eval does, and fails where that has no meaning."""
    state = dict(zip(["a", "b", "c", "k/1"], values, strict=True))
    condition = compile_condition(expression)
    try:
        expected = bool(eval(expression, {"__builtins__": {}}, {**state, "state": state}))
    except LookupError:
        return  # a missing member: unknown here, an error there
    except TypeError as error:
        if "unhashable" in str(error):
            return  # Python cannot ask whether a set or an object holds a list; here it just does not
        with pytest.raises(ConditionFailed):
            condition(state)
        return
    assert condition(state) is expected


@settings(max_examples=500)
@given(st.recursive(NAMES | st.sampled_from(["True", "0"]), _grow, max_leaves=8), st.data())
def test_an_answer_on_part_of_a_state_holds_for_the_whole(expression: str, data: st.DataObject) -> None:
    """What is known with keys missing stays so whatever values the missing keys take."""
    whole = {name: data.draw(VALUES) for name in ("a", "b", "c", "k/1")}
    part = {name: value for name, value in whole.items() if data.draw(st.booleans())}
    condition = compile_condition(expression)
    try:
        early, late = condition(part), condition(whole)
    except ConditionFailed:
        return
    assert early is None or early is late
