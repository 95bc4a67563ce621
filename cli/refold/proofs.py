"""What the commands on anchors and keys share: reading their files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from refold_store.errors import ConfigError

Function = TypeVar("Function", bound=Callable[..., Any])
Document = TypeVar("Document")


def public_key_option(function: Function) -> Function:
    """`--public-key FILE`."""
    return click.option(
        "--public-key", metavar="FILE", help="Who must have signed: the key's .pub file, or its 64 hex digits."
    )(function)


def load_public(given: str | None) -> bytes | None:
    """The public key somebody named. Raises ConfigError."""
    if given is None:
        return None
    from refold_replay import signing

    return signing.load_public(given)


def load(
    read: Callable[[bytes], Document], path: str, word: str, other: tuple[Callable[[bytes], object], str] | None = None
) -> Document:
    """A document from a file. Raises ConfigError or a usage error that names the file.

    `other`: what reads the document it may be instead, and what is said then.
    """
    from refold_replay.anchoring import DOCUMENT_MAX

    try:
        with open(path, "rb") as file:
            text = file.read(DOCUMENT_MAX + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise click.UsageError(f"cannot read {path!r}: {reason}") from None
    try:
        return read(text)
    except ConfigError as error:
        if other is not None and _reads(other[0], text):
            raise ConfigError(f"{path!r} is no {word}: {other[1]}") from None
        raise ConfigError(f"{path!r} is no {word} that `refold anchor` wrote: {error}") from None


def _reads(read: Callable[[bytes], object], text: bytes) -> bool:
    try:
        read(text)
    except ConfigError:
        return False
    return True
