"""A configuration file as a whole, as Pydantic models, and reading one into them.

Rules of this module
- Names of the wider format keep their meaning; fields of our own have names it does not use.
- Every mistake is told with its line and path. An unknown field names the fields it may be meant for.
"""

from __future__ import annotations

import typing
from collections.abc import Iterable, Iterator, Mapping
from types import NoneType
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, ValidationError

from refold_engine.configparts import (
    BREAKER_MAX,
    NOT_USED,
    RETRIES_MAX,
    AgentPart,
    OutOfScope,
    Part,
    RootRouterPart,
    TaskPart,
    ToolPart,
    Unused,
)
from refold_engine.findings import Findings, Path, did_you_mean
from refold_store.yamltext import Document

LEFT_OUT = ("openapi", "sandbox")
"""Types of tools that load and are left out."""
ROUNDS_MAX = 3
"""Times a file is read again without what was wrong in it."""
SHOWN_MAX = 80
"""Characters of a wrong value that a finding shows."""

_OUT_OF_RANGE = ("greater_than", "greater_than_equal", "less_than", "less_than_equal", "literal_error")
_Count = Annotated[int, Field(ge=1, le=BREAKER_MAX)]


class ModelPart(Part):
    """Which models are asked, and how patiently."""

    primary: str = Field(description="The model, as litellm names it.")
    fallback: str | None = Field(default=None, description="Asked when the primary fails; also judges and routes.")
    temperature: float | None = Field(default=0.2, ge=0.0, le=2.0, description="0 to 2; null: the provider's own.")
    timeout: float = Field(default=60.0, gt=0, le=3600, description="Seconds one try may take.")
    retries: int = Field(default=2, ge=0, le=RETRIES_MAX, description="Repeats before the fallback is asked.")
    max_tokens: OutOfScope
    variants: OutOfScope
    cascade: OutOfScope
    use_cache: OutOfScope
    enable_prompt_caching: OutOfScope
    guardrails: OutOfScope


class MemoryPart(Part):
    """What outlives a run."""

    shared_scope: Literal["session", "tenant", "global"] = Field(
        default="session", description="Who shares the long-term memory: this run, its tenant, or all."
    )
    type: OutOfScope
    max_messages: OutOfScope
    db_path: OutOfScope
    connection_url: OutOfScope
    env_var: OutOfScope
    custom_module: OutOfScope
    run_log_retention_days: OutOfScope
    context_edit_keep_recent_messages: OutOfScope


class BreakersPart(Part):
    """Limits that stop a run that goes astray. null switches one off where it may be."""

    max_handoffs_per_session: _Count | None = Field(default=25, description="Handoffs and routes in one run.")
    max_handoffs_per_turn: _Count = Field(default=10, description="Handoffs and routes for one message.")
    max_turns_per_session: _Count | None = Field(default=None, description="Turns in one run.")
    max_model_calls_per_turn: _Count = Field(default=10, description="Model calls in one turn of one agent.")
    max_tool_failures_in_a_row: _Count | None = Field(default=3, description="Failures of one tool, one after another.")
    max_usd_cost_per_session: float | None = Field(default=None, gt=0, description="US dollars one run may cost.")
    max_delegation_depth: _Count = Field(default=3, description="Levels of delegation.")
    max_delegation_turns: _Count = Field(default=15, description="Model calls of one delegated task.")
    max_parallel_fan_out: _Count = Field(default=10, description="Tasks in one `delegate_to_many`.")
    max_parallel_tool_calls_per_turn: _Count = Field(default=10, description="Tool calls run from one answer.")
    max_tool_result_chars: _Count | None = Field(default=20_000, description="Characters of a result a model sees.")
    max_corrector_tokens: OutOfScope
    max_compression_batch_messages: OutOfScope


class ConfigFile(Part):
    """A team of agents: its state, its agents, and how they work together."""

    version: Any = Field(default=None, description="Version of the format, for people.")
    name: str = Field(default="", description="Name of the team.")
    description: str | None = Field(default=None, description="What it does, for people.")
    state_schema: str | dict[str, Any] | None = Field(
        default=None,
        description="Dotted path of a StateSchema, Pydantic model or TypedDict; or keys with JSON Schema types.",
    )
    owners: dict[str, str] | None = Field(default=None, description="The owner of each key: an agent or a group.")
    groups: dict[str, list[str]] = Field(default_factory=dict, description="Agents under one name.")
    reducers: list[Any] | dict[str, Any] = Field(
        default_factory=dict, description="How updates of a key combine: `key: append`, or a list of {key, strategy}."
    )
    invariants: dict[str, str] = Field(default_factory=dict, description="Rules across keys, by name.")
    model: ModelPart = Field(description="The models.")
    memory: MemoryPart = Field(default_factory=lambda: MemoryPart.model_validate({}), description="Shared memory.")
    agents: dict[str, AgentPart] = Field(default_factory=dict, description="The agents, by name.")
    default_agent: str | None = Field(default=None, description="Who gets a run's first message.")
    routers: Annotated[
        dict[str, RootRouterPart],
        BeforeValidator(
            lambda given: _numbered(given), json_schema_input_type=dict[str, RootRouterPart] | list[RootRouterPart]
        ),
    ] = Field(default_factory=dict, description="Routers of an agent, by its name, or of every agent.")
    workflows: dict[str, list[TaskPart]] = Field(default_factory=dict, description="Fixed courses of tasks, by name.")
    circuit_breakers: BreakersPart = Field(
        default_factory=lambda: BreakersPart.model_validate({}), description="Limits on what a run may do."
    )
    condition_functions: list[Any] | dict[str, str] = Field(
        default_factory=dict,
        description="Functions conditions may call: `name: dotted.path`, or a list of {name, module}.",
    )
    tools: list[ToolPart] = Field(default_factory=list, description="Tools that agents refer to by name.")
    max_session_budget_usd: float | None = Field(
        default=None, gt=0, description="As circuit_breakers.max_usd_cost_per_session; the smaller holds."
    )
    imports: OutOfScope
    rag: OutOfScope
    episodic_memory: OutOfScope
    skills: OutOfScope
    telemetry: OutOfScope
    server: OutOfScope


def _numbered(given: Any) -> Any:
    """A list as a mapping of position to member: the same paths, one type."""
    return {str(position): one for position, one in enumerate(given)} if isinstance(given, list) else given


def read_file(document: Document, findings: Findings) -> ConfigFile | None:
    """The file as models, without the fields that are wrong in it; None if it makes no sense without them.

    What is wrong is told, and so keeps the file from loading; the rest can be checked.
    """
    if not isinstance(document.value, Mapping):
        findings.error((), f"a configuration is a mapping with `agents` and `model`, not {_kind(document.value)}")
        return None
    value: Any = document.value
    for _round in range(ROUNDS_MAX):
        try:
            return ConfigFile.model_validate(value)
        except ValidationError as error:
            wrong = [(one, _path_of(document, one["loc"])) for one in error.errors(include_url=False)]
        for one, path in wrong:
            findings.error(path, _told(one, path))
        if not all(_can_go(one, path) for one, path in wrong):
            break
        for _one, path in wrong:
            value = _without(value, path)
    return None


def _can_go(error: Any, path: Path) -> bool:
    """Whether what is wrong can be left out to check the rest: an unknown field, or one that has a default."""
    if error["type"] == "extra_forbidden":
        return True
    field = _fields_at(path[:-1]).get(path[-1]) if path else None
    return error["type"] in _OUT_OF_RANGE and field is not None and not field.is_required()


def _without(value: Any, path: Path) -> Any:
    """The same data without what stands at a path."""
    if isinstance(value, list):
        return [_without(one, path[1:]) if str(at) == path[0] else one for at, one in enumerate(value)]
    if len(path) == 1:
        return {name: one for name, one in value.items() if name != path[0]}
    return {name: _without(one, path[1:]) if name == path[0] else one for name, one in value.items()}


def unused(file: ConfigFile) -> tuple[str, ...]:
    """What the file gives and refold does not use, each once: `rag`, `model.guardrails`, `agents.*.skills`."""
    return tuple(dict.fromkeys(_unused(file, "")))


def _unused(part: Any, prefix: str) -> Iterator[str]:
    if isinstance(part, ToolPart) and part.type in LEFT_OUT:
        yield f"the {part.type} tool {part.name!r}"
    elif isinstance(part, BaseModel):
        for name, field in type(part).model_fields.items():
            if name not in part.model_fields_set:
                continue
            if any(isinstance(mark, Unused) for mark in field.metadata):
                yield f"{prefix}{name}"
            else:
                yield from _unused(getattr(part, name), f"{prefix}{name}.")
    elif isinstance(part, (dict, list)):
        for inner in part.values() if isinstance(part, dict) else part:
            yield from _unused(inner, f"{prefix}*.")


# -- telling what Pydantic found -------------------------------------------------------------------------------------


def _path_of(document: Document, location: Iterable[int | str]) -> Path:
    """Pydantic's location as a path of the document: without the names it gives to members of a union."""
    path: Path = ()
    here = document.value
    for step in location:
        name = str(step)
        if isinstance(here, Mapping):
            if name not in here and (*path, name) not in document.lines and "[" in name:
                continue
            here = here.get(name)
        elif isinstance(here, list) and name.isdecimal():
            here = here[int(name)] if int(name) < len(here) else None
        elif name in ("str", "int", "float", "bool", "none") or "[" in name or here is None:
            continue
        path = (*path, name)
    return path


def _told(error: Any, path: Path) -> str:
    kind, given = error["type"], error["input"]
    if kind == "extra_forbidden":
        names = [name for name, field in _fields_at(path[:-1]).items() if field.description != NOT_USED]
        return f"unknown field {path[-1]!r}" + did_you_mean(
            path[-1], names, otherwise=f"; it may hold {', '.join(sorted(names))}"
        )
    if kind == "missing":
        return f"{path[-1]!r} is missing"
    message = str(error["msg"])
    shown = repr(given)
    shown = shown if len(shown) <= SHOWN_MAX else f"{shown[: SHOWN_MAX - 3]}..."
    quotes = "; put it in quotes" if kind == "string_type" and isinstance(given, (bool, int, float)) else ""
    return f"{message[:1].lower()}{message[1:]}, not {shown}{quotes}"


def _fields_at(path: Path) -> dict[str, Any]:
    """The fields of the part at a path."""
    here: Any = ConfigFile
    for step in path:
        here = _inside(here, step)
    parts = [one for one in (here, *typing.get_args(here)) if _is_part(one)]
    return dict(parts[0].model_fields) if parts else {}


def _inside(annotation: Any, step: str) -> Any:
    """The annotation of what stands at one step inside: a field, or a member of a list or mapping."""
    if _is_part(annotation):
        field = annotation.model_fields.get(step)
        return None if field is None else field.annotation
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (dict, list):
        return inner[-1]
    found = (_inside(one, step) for one in inner if one is not NoneType)  # of a union, or what Annotated holds
    return next((one for one in found if one is not None), None)


def _is_part(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Part)


def _kind(value: Any) -> str:
    return {"NoneType": "nothing", "str": "a text", "list": "a list"}.get(type(value).__name__, type(value).__name__)
