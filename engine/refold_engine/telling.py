"""What happens, told as it happens: for a terminal, or whoever wants to look on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Tell = Callable[[str, dict[str, Any]], None]
"""(what, its facts): turn, said, called, returned, wrote, routed, handed, asked, stopped, served ..."""


def silent(_what: str, _facts: dict[str, Any]) -> None:
    """Tells nobody."""
