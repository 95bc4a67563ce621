"""Signatures of anchors and bundles: Ed25519, through the extra `sign`. The one module that knows `cryptography`.

Rules of this module
- The library is loaded when a key is first needed: whoever signs nothing needs nothing.
- A private key is a PEM file only its owner may read. Public keys travel as 32 bytes.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from refold_store.errors import ConfigError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

KEY_FILE_MAX = 10_000
"""Bytes of a key file: an Ed25519 key takes some hundred."""
_HEX = re.compile("[0-9a-f]{64}")


def new_key(path: str | os.PathLike[str]) -> bytes:
    """Make a private key file (mode 0600) and the public one beside it (`.pub`). Returns the public key.

    Raises ConfigError if one of the files exists or cannot be written.
    """
    ed25519, serialization = _library()
    key = ed25519.Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    beside = Path(f"{os.fspath(path)}.pub")
    if beside.exists():
        raise ConfigError(f"{str(beside)!r} is there already; choose another file: a key is never overwritten")
    _write(Path(path), private, 0o600)
    _write(beside, public, 0o644)
    return public_of(key)


def load_private(path: str | os.PathLike[str]) -> Ed25519PrivateKey:
    """The private key in a PEM file. Raises ConfigError."""
    ed25519, serialization = _library()
    text = _read(path)
    try:
        key = serialization.load_pem_private_key(text, password=None)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{os.fspath(path)!r} is no private key that can be read: {_short(error)}") from None
    except Exception as error:  # cryptography.exceptions.UnsupportedAlgorithm
        raise ConfigError(f"{os.fspath(path)!r} is no private key that can be used: {_short(error)}") from None
    if not isinstance(key, ed25519.Ed25519PrivateKey):
        raise ConfigError(f"{os.fspath(path)!r} is no Ed25519 key; `refold keygen FILE` makes one")
    found: Ed25519PrivateKey = key
    return found


def load_public(path: str | os.PathLike[str]) -> bytes:
    """The 32 bytes of a public key: from the PEM file `new_key` writes, or given in hex. Raises ConfigError."""
    if _HEX.fullmatch(os.fspath(path)):
        return bytes.fromhex(os.fspath(path))
    ed25519, serialization = _library()
    text = _read(path)
    if b"PRIVATE" in text:
        raise ConfigError(f"{os.fspath(path)!r} is a private key; give the public one, {os.fspath(path)}.pub")
    try:
        key = serialization.load_pem_public_key(text)
    except Exception as error:  # ValueError, or cryptography.exceptions.UnsupportedAlgorithm
        raise ConfigError(f"{os.fspath(path)!r} is no public key that can be read: {_short(error)}") from None
    if not isinstance(key, ed25519.Ed25519PublicKey):
        raise ConfigError(f"{os.fspath(path)!r} is no Ed25519 key; `refold keygen FILE` makes one")
    raw: bytes = key.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    return raw


def public_of(key: Ed25519PrivateKey) -> bytes:
    """The 32 bytes of a key's public part."""
    _ed25519, serialization = _library()
    raw: bytes = key.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    return raw


def sign(key: Ed25519PrivateKey, data: bytes) -> bytes:
    """The 64 bytes of a signature."""
    return key.sign(data)


def verify(public: bytes, data: bytes, signature: bytes) -> bool:
    """Whether a signature over some bytes was made with the private part of `public`."""
    ed25519, _serialization = _library()
    try:
        ed25519.Ed25519PublicKey.from_public_bytes(public).verify(signature, data)
    except Exception:  # InvalidSignature, or bytes that are no key: either way it does not hold
        return False
    return True


def _library() -> tuple[Any, Any]:
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError:
        raise ConfigError("signatures need the package cryptography: pip install 'refold[sign]'") from None
    return ed25519, serialization


def _read(path: str | os.PathLike[str]) -> bytes:
    try:
        with open(path, "rb") as file:
            text = file.read(KEY_FILE_MAX + 1)
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {os.fspath(path)!r}: {_reason(error)}") from None
    if len(text) > KEY_FILE_MAX:
        raise ConfigError(f"{os.fspath(path)!r} is too large for a key file")
    return text


def _write(path: Path, text: bytes, mode: int) -> None:
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError:
        raise ConfigError(f"{str(path)!r} is there already; choose another file: a key is never overwritten") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot write {str(path)!r}: {_reason(error)}") from None
    with open(handle, "wb") as file:
        file.write(text)


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


def _short(error: Exception) -> str:
    return str(error).partition("\n")[0][:200] or type(error).__name__
