"""Hashes of documents as the answers beside recorded runs give them.

SHA-256 of UTF-8 JSON with sorted keys, no blanks, text outside ASCII unescaped, numbers as Python's `json` prints them.
"""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any


def document_hash(document: Any) -> str:
    """The hash of a plain JSON document, in hex."""
    text = json.dumps(document, ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return sha256(text.encode()).hexdigest()


def text_hash(text: bytes) -> str:
    """The hash of a canonical JSON text, in hex: what `refs.shown` of an imported read holds."""
    return sha256(text).hexdigest()
