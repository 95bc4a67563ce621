"""The long-term memory of `memory.shared_scope`: one declared key, shared by a tenant's runs or by all.

Rules of this module
- `session` (the default) shares nothing and declares nothing. `tenant` and `global` declare the key `long_term_memory`
  of that scope: a list of texts that every agent may read and add to. A schema that declares it itself keeps its own.
- Its size is bounded: what would go over is refused, and the agent is told. Nothing is dropped to make room.
"""

from __future__ import annotations

from refold_engine.configfile import ConfigFile
from refold_engine.findings import Findings
from refold_store.keys import Options
from refold_store.reducers import append
from refold_store.schema import Schema
from refold_store.updates import json_key

MEMORY = "long_term_memory"
"""The key's name, as the format has it."""
MAX_BYTES = 32 * 1024
"""Largest memory, in bytes of JSON: it stands in every prompt, and this is some 8,000 tokens."""


def with_memory(schema: Schema, file: ConfigFile, findings: Findings, all_agents: str) -> Schema:
    """The schema, with the key of the shared memory if the file asks for one. `all_agents`: name of its owner."""
    scope = file.memory.shared_scope
    if scope == "session" or not file.agents:
        return schema
    declared = next((key for key in schema.keys if key.name == MEMORY), None)
    if declared is not None:
        if declared.scope != scope:
            findings.error(
                ("memory", "shared_scope"),
                f"state_schema declares {MEMORY!r} with scope {declared.scope!r}, and this says {scope!r}: "
                "give both the same, or leave the key out",
            )
        return schema
    group, members = all_agents, tuple(file.agents)
    while group in file.agents or group in file.workflows or schema.groups.get(group, members) != members:
        group += "_"
    key = json_key(
        MEMORY,
        schema={"type": "array", "items": {"type": "string"}},
        owner=group,
        actors=frozenset(file.agents),
        reducer=append,
        options=Options(scope=scope, max_bytes=MAX_BYTES),
    )
    groups = {**schema.groups, group: members}
    return Schema(
        [*schema.keys, key], groups=groups, invariants={one.name: one.expression for one in schema.invariants}
    )
