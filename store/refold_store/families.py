"""Key families: one declaration for many keys, like `order/{order_id}`.

Rules
- `{name}` stands for one or more characters other than `/`; `{name*}` also takes slashes. All else is literal.
- Two variables need literal text between them, so that a key has one reading.
- No two families of a schema may match the same key (decided exactly, by walking both patterns together). A key
  declared by its exact name goes before any family.
"""

from __future__ import annotations

import re

from refold_store.errors import ConfigError

_VARIABLE = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)(\*?)\}")

_SEGMENT = "{}"
_ANYTHING = "{*}"


class Family:
    """A compiled family template."""

    __slots__ = ("_pattern", "_tokens", "prefix", "template", "variables")

    def __init__(self, template: str) -> None:
        self.template = template
        self._tokens, self.variables = _tokens(template)
        self.prefix = template[: _first(template)]
        """The literal text that every member begins with."""
        pattern = "".join(
            {_SEGMENT: "([^/]+)", _ANYTHING: "(.+)"}.get(token, re.escape(token)) for token in self._tokens
        )
        self._pattern = re.compile(pattern, re.DOTALL)

    def match(self, key: str) -> dict[str, str] | None:
        """The variables' values if `key` belongs to the family."""
        found = self._pattern.fullmatch(key)
        return None if found is None else dict(zip(self.variables, found.groups(), strict=True))

    def overlaps(self, other: Family) -> bool:
        """Whether some key belongs to both."""
        seen = {(0, 0)}
        stack = [(0, 0)]
        while stack:
            mine, yours = stack.pop()
            if mine == len(self._tokens) and yours == len(other._tokens):
                return True
            for next_mine, one in self._steps(mine):
                for next_yours, two in other._steps(yours):
                    state = (next_mine, next_yours)
                    if state not in seen and _share_a_character(one, two):
                        seen.add(state)
                        stack.append(state)
        return False

    def _steps(self, at: int) -> list[tuple[int, str]]:
        """Where one more character may lead: to the next token, or on inside the variable just entered."""
        steps = [(at + 1, self._tokens[at])] if at < len(self._tokens) else []
        if at > 0 and self._tokens[at - 1] in (_SEGMENT, _ANYTHING):
            steps.append((at, self._tokens[at - 1]))
        return steps


def is_template(name: str) -> bool:
    """Whether a declared name stands for a family."""
    return _VARIABLE.search(name) is not None


def _first(template: str) -> int:
    found = _VARIABLE.search(template)
    return len(template) if found is None else found.start()


def _tokens(template: str) -> tuple[list[str], tuple[str, ...]]:
    tokens: list[str] = []
    variables: list[str] = []
    position = 0
    for found in _VARIABLE.finditer(template):
        literal = template[position : found.start()]
        if not literal and tokens:
            raise ConfigError(f"family {template!r}: put text between {{{variables[-1]}}} and {found.group()}")
        tokens += literal
        tokens.append(_ANYTHING if found[2] else _SEGMENT)
        if found[1] in variables:
            raise ConfigError(f"family {template!r} names the variable {found[1]!r} twice")
        variables.append(found[1])
        position = found.end()
    if not variables:
        raise ConfigError(f"family {template!r} has no variable: write one like 'order/{{order_id}}'")
    tokens += template[position:]
    return tokens, tuple(variables)


def _share_a_character(one: str, two: str) -> bool:
    variable = (_SEGMENT, _ANYTHING)
    if one in variable and two in variable:
        return True
    if one in variable:
        return one == _ANYTHING or two != "/"
    if two in variable:
        return two == _ANYTHING or one != "/"
    return one == two
