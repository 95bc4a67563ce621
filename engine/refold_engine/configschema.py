"""The JSON Schema of a configuration file, for editors.

Rules of this module
- It is made from the models of configfile.py, so that it cannot fall behind them.
- What an editor accepts and the models refuse is only what JSON Schema cannot say (names that must exist).
"""

from __future__ import annotations

from typing import Any

from refold_engine.configfile import ConfigFile

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def json_schema() -> dict[str, Any]:
    """The schema, as JSON."""
    found = ConfigFile.model_json_schema(mode="validation")
    return {"$schema": DIALECT, **found, "title": "refold engine configuration"}
