"""How large a JSON Schema is once every reference in it stands for what it names.

A few hundred bytes can unfold to 2^40 parts (`allOf` of the same reference twice, forty times over), and a validator
looks at each: compiling or checking would never end.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

UNFOLDED_MAX: Final = 1_000_000
"""Parts of an unfolded schema: a large one, of a model with hundreds of classes, has some ten thousand."""


def unfolds_within(schema: Mapping[str, Any], most: int = UNFOLDED_MAX) -> bool:
    """Whether a schema unfolds to so many parts at most. A reference to what it stands in itself counts once."""
    sizes: dict[str, int] = {}

    def size(part: Any) -> int:
        if isinstance(part, list):
            return 1 + sum(map(size, part))
        if not isinstance(part, Mapping):
            return 1
        return 1 + sum(map(size, part.values())) + named(part.get("$ref"))

    def named(reference: Any) -> int:
        if not isinstance(reference, str) or not reference.startswith("#"):
            return 0
        if reference not in sizes:
            sizes[reference] = 0
            sizes[reference] = size(_at(schema, reference))
        return sizes[reference]

    return size(schema) <= most


def _at(schema: Any, reference: str) -> Any:
    """What a local reference names; None if there is no such thing, which compiling the schema tells."""
    found = schema
    for step in reference.split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        found = found.get(name) if isinstance(found, Mapping) else None
    return found
