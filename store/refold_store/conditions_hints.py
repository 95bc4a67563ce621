"""What people write in a condition that is none, and what to write instead.

Rules: hints only; nothing here decides what is refused. Searching is bounded, for hints come from hostile text too.
"""

from __future__ import annotations

import ast
import difflib
import keyword
import re
from collections.abc import Collection
from itertools import islice
from typing import Final

_NEAR_MAX = 3
"""Similar names offered in a hint."""
_KNOWN_SCAN_MAX = 10_000
"""Known names compared for a hint: keeps a refusal under a second on huge schemas."""

GRAMMAR = "a condition is made of keys, literals, and or not, == != < <= > >=, in, not in, and subscripts by a constant"
FOREIGN_NAMES: Final = {"true": "True", "false": "False", "null": "None", "none": "None"}
ARITHMETIC = 'compute it before and write it to the state; a key like "order/1" is spelled state["order/1"]'
REFUSED: Final[dict[type[ast.expr], tuple[str, str]]] = {
    ast.BinOp: ("arithmetic is not allowed", ARITHMETIC),
    ast.Lambda: ("a lambda is not allowed", "declare a condition function"),
    ast.IfExp: ("`if ... else` is not allowed", "use and, or, not"),
    ast.Dict: ("a dict is not allowed", "compare its members one by one"),
    **dict.fromkeys(
        (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp),
        ("a comprehension is not allowed", "declare a condition function"),
    ),
    ast.JoinedStr: ("an f-string is not allowed", "write a plain text"),
    ast.NamedExpr: ("`:=` is not allowed", "a condition sets nothing; write `==` to compare"),
    ast.Starred: ("`*` is not allowed", "name the members one by one"),
    **dict.fromkeys(
        (ast.Await, ast.Yield, ast.YieldFrom), ("await and yield are not allowed", "a condition is answered at once")
    ),
}
"""Parts of Python that are refused: what they are, what to do instead."""

_QUOTED = re.compile(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*\"""")
_SPELLINGS: Final[tuple[tuple[re.Pattern[str], str], ...]] = (
    (re.compile(r"&&"), "write `and` for `&&`"),
    (re.compile(r"\|\|"), "write `or` for `||`"),
    (re.compile(r"[=!]=="), "write `==` or `!=`"),
    (re.compile(r"<>"), "write `!=` for `<>`"),
    (re.compile(r"=>|=<"), "write `>=` or `<=`"),
    (re.compile(r":="), "a condition sets nothing; write `==` to compare"),
    (re.compile(r"(?<![=!<>])=(?!=)"), "write `==` for `=`"),
    (re.compile(r"!(?!=)"), "write `not` for `!`"),
)
_GRAMMAR_WORDS = frozenset({"and", "or", "not", "in", "True", "False", "None"})


def blank_quoted(text: str) -> str:
    """The text with the content of quotes blanked, each character in its place."""
    return _QUOTED.sub(lambda quoted: "'" + " " * (len(quoted.group()) - 2) + "'", text)


def near(name: str, names: Collection[str]) -> str:
    """A question that offers the names similar to `name`; empty when there are none."""
    similar = difflib.get_close_matches(name, list(islice(names, _KNOWN_SCAN_MAX)), n=_NEAR_MAX)
    return f"did you mean {', '.join(similar)}?" if similar else ""


def syntax_hint(text: str, offset: int) -> str:
    """What may be meant by a text that does not parse; `offset` counts from 1."""
    word = re.compile(r"\w*").match(text, offset - 1)
    if word and keyword.iskeyword(word.group()) and word.group() not in _GRAMMAR_WORDS:
        return f'a key named {word.group()} is spelled state["{word.group()}"]'
    bare = blank_quoted(text)
    return next((hint for pattern, hint in _SPELLINGS if pattern.search(bare)), GRAMMAR)
