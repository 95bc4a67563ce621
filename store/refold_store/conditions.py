"""Conditions: small expressions over the state, for invariants and routers.

    reserve_band[0] <= reserve_band[1]
    status in ("open", "held") and not order["paid"] and state["order/1"]["total"] < 500

Rules:

1. A condition is one line of Python's expression syntax, cut down to: texts, numbers, `True`, `False`, `None`, lists,
   tuples, sets; names, which are keys of the state (`state["order/1"]` spells any key); `and`, `or`, `not`;
   `== != < <= > >=`, chained too; `in`, `not in`; subscripts by a constant; calls of declared functions.
   Everything else is refused when it is compiled, with its column and a hint. Columns count characters from 1.
2. Python's parser reads the text, nothing else of Python runs it: no code object is made. What a condition can reach
   is the state it is given and the functions declared for it.
3. Three values. A key that is missing, or a member missing in a present value, is *unknown*. A comparison, subscript,
   list or call with an unknown part is unknown. `and`, `or`, `not` follow Kleene: `False and unknown` is False,
   `True or unknown` is True, other mixtures are unknown. Evaluation goes left to right and stops once the answer is
   known; used as a value (`(a or "x") == b`), an unknown `a` makes the whole `or` unknown.
4. A known result that is not a boolean counts as Python counts it: `None`, zero and what is empty are false.
5. Values compare as in Python: a boolean is the number 0 or 1, kinds that are unlike are not equal. One addition makes
   plain JSON and typed values agree: a list equals a tuple with the same members, and a set equals a list or tuple
   that holds the same members once each.
6. What has no meaning is an error and not False: the order of unlike kinds or of sets, a member of a number,
   `in` a number. ConditionFailed then names the column and the kinds; it never quotes the state's values.
7. Work is bounded: characters, depth and nodes have caps, nothing loops or repeats, so one evaluation touches the
   values it names a bounded number of times. Declared functions answer for their own time.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Mapping

from refold_store.conditions_compile import UNKNOWN, Compiler, Member, Run
from refold_store.conditions_hints import GRAMMAR, blank_quoted, syntax_hint
from refold_store.errors import ConditionError, ConditionFailed

MAX_CONDITION_CHARS = 2_000
"""Longest condition in characters: an `in` list of 150 codes fits, and the parser stays under some milliseconds."""

_BLANKS = " \t\r\n"
_HIDDEN = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
"""Line breaks, control characters, lone surrogates, and marks that make a text read differently than it is."""
_ESCAPE = re.compile(r"\\(?P<known>[\\'\"bfnrt]|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8})?")

_RUN_ON = re.compile(r"(?<!\w)(?>0[xX][\da-fA-F_]+|0[oObB][\d_]+|\d[\d_.]*(?:[eE][+-]?\d[\d_]*)?[jJ]?)(?=[^\W\d])")
"""`1or 2`: Python reads it with a warning, or an error, as it is set."""


class Condition:
    """A compiled condition. Calling it with a state gives True, False, or None for unknown.

    `names` are the state keys it uses, `functions` the declared functions it calls. It holds no state of its own, so
    threads may share it. Raises ConditionFailed when the expression has no meaning on the state's values.
    """

    __slots__ = ("_keys", "_members", "_run", "expression", "functions", "names")

    def __init__(self, expression: str, run: Run, *, compiler: Compiler) -> None:
        self.expression = expression
        self.names = frozenset(compiler.keys)
        self.functions = frozenset(compiler.called)
        self._run = run
        self._keys: tuple[str, ...] = tuple(compiler.keys)
        self._members: tuple[Member, ...] = tuple(compiler.members.values())

    def __call__(self, state: Mapping[str, object]) -> bool | None:
        value = self._run(state)
        return None if value is UNKNOWN else bool(value)

    def missing(self, state: Mapping[str, object]) -> tuple[str, ...]:
        """What this state lacks: keys by name, then members of present keys as spelled (`order["x"]`)."""
        absent = [key for key in self._keys if key not in state]
        present = [member for member in self._members if member.key not in absent]
        return (*absent, *(member.spelling for member in present if _lacks(member, state)))

    def __repr__(self) -> str:
        return f"Condition({self.expression!r})"


def _lacks(member: Member, state: Mapping[str, object]) -> bool:
    try:
        return member.run(state) is UNKNOWN
    except ConditionFailed:
        return False  # of the wrong kind, which evaluation reports; not missing


def compile_condition(
    expression: str,
    *,
    functions: Mapping[str, Callable[..., object]] | None = None,
    known: Collection[str] | None = None,
) -> Condition:
    """Compile `expression`; raises ConditionError with column and hint for all that is not a condition.

    `functions` may be called by name with positional arguments; they must be plain and must not change what they are
    given; a call with an unknown argument is unknown and does not run the function. `known` are the keys that exist:
    given, any other key is refused. Its `in` decides, so a collection may also stand for key families.
    """
    if not isinstance(expression, str):
        raise ConditionError(
            f"a condition is text, not {type(expression).__name__}",
            expression=repr(expression)[:80],
            hint="put it in quotes",
        )
    text = expression.strip(_BLANKS)
    start = len(expression) - len(expression.lstrip(_BLANKS))
    _check_text(expression, text, start)
    compiler = Compiler(expression, text, start=start, functions=functions or {}, known=known)
    tree = _parse(expression, text, start)
    _check_rest(expression, text, start, tree)
    return Condition(expression, compiler.compile(tree, truth=True), compiler=compiler)


def _check_text(expression: str, text: str, start: int) -> None:
    if not text:
        raise ConditionError("it is empty", expression=expression, column=1, hint=GRAMMAR)
    if len(expression) > MAX_CONDITION_CHARS:
        raise ConditionError(
            f"it has {len(expression)} characters, at most {MAX_CONDITION_CHARS} are allowed",
            expression=expression,
            column=MAX_CONDITION_CHARS + 1,
            hint="move a part into a declared function",
        )
    if hidden := _HIDDEN.search(text):
        mark = hidden.group()
        raise ConditionError(
            "a condition is one line" if mark in "\r\n" else f"character U+{ord(mark):04X} is not allowed",
            expression=expression,
            column=start + hidden.start() + 1,
            hint="join the lines; in YAML `>` folds them" if mark in "\r\n" else "inside a text write it as \\uXXXX",
        )
    for escape in _ESCAPE.finditer(text):
        if escape["known"] is None:
            raise ConditionError(
                "a backslash stands only before \\ ' \" b f n r t xXX uXXXX UXXXXXXXX in a text",
                expression=expression,
                column=start + escape.start() + 1,
                hint="write \\\\ for the backslash itself",
            )
    if run_on := _RUN_ON.search(blank_quoted(text)):
        raise ConditionError(
            "a number runs into a word",
            expression=expression,
            column=start + run_on.start() + 1,
            hint="put a blank between them",
        )


def _parse(expression: str, text: str, start: int) -> ast.expr:
    try:
        return ast.parse(text, mode="eval").body
    except (MemoryError, RecursionError):  # how the parser says that its stack is full
        raise ConditionError(
            "it is nested too deeply",
            expression=expression,
            column=start + 1,
            hint="move a part into a declared function",
        ) from None
    except SyntaxError as error:
        offset = min(max(error.offset or 1, 1), len(text) + 1)
        raise ConditionError(
            "it cannot be read as an expression",
            expression=expression,
            column=start + offset,
            hint=syntax_hint(text, offset),
        ) from None
    except ValueError as error:  # a number with more digits than the interpreter is set to convert
        raise ConditionError(
            f"it cannot be read: {error}", expression=expression, column=start + 1, hint=GRAMMAR
        ) from None


def _check_rest(expression: str, text: str, start: int, tree: ast.expr) -> None:
    """Refuse a comment: the only thing the parser drops, and a part of a rule that is not in force misleads."""
    used = len(text.encode()[: tree.end_col_offset].decode())
    comment = text.find("#", used)
    if comment >= 0:
        raise ConditionError(
            "a condition holds no comment",
            expression=expression,
            column=start + comment + 1,
            hint="put it beside the condition",
        )
