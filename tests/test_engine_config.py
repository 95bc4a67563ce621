"""Loading configurations: every section, the wider format's files, dotted paths, and mistakes with their places."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

from refold_engine.config import Config
from refold_engine.configparts import NOT_USED
from refold_engine.configschema import json_schema
from refold_engine.loading import load
from refold_store.errors import ConfigError, InvalidValue

Write = Callable[..., Path]

SMALL = "model: {primary: m}\nagents: {a: {}}\n"

CLINIC = """\
version: "1.0"
name: clinic
state_schema: "shapes.Visit"
max_session_budget_usd: 2.0
model: {primary: big, fallback: small, cascade: [small, big], guardrails: {mask_pii: true}}
memory: {type: sqlite, db_path: x.db, shared_scope: tenant}
rag: {docs_dir: kb}
skills: [{name: s, description: d, path: s.md}]
server: {auth: {type: none}}
telemetry: [otel]
condition_functions: [{name: is_urgent, module: logic.rules}]
reducers: [{key: remarks, strategy: append}]
circuit_breakers: {max_handoffs_per_session: 7, max_usd_cost_per_session: 3.0, max_corrector_tokens: 10}
tools:
  - {name: look_up, module: logic.work}
  - {name: wards, type: mcp, command: python, args: [wards.py]}
  - {name: price_list, type: openapi, url: "http://127.0.0.1/openapi.json"}
  - {name: discharge, module: logic.work, available_when: "not _untrusted_content_ingested"}
default_agent: reception
agents:
  reception:
    system_prompt_file: prompts/reception.txt
    lazy_load_tools: true
    routers: [{condition: "is_urgent(pain)", target: doctor}]
    handoffs: [doctor]
    tools: [{name: look_up}, {name: price_list}]
  doctor:
    description: Treats.
    response_schema: "shapes.Letter"
    skills: [s]
    delegations: [lab]
    tools:
      - {name: discharge, available_when: "pain < 3"}
      - {name: look_up, available_when: seen}
      - {name: prescribe, module: logic.work, requires_approval: true, required_approvals: 2}
      - {name: scratch, type: sandbox, language: python, timeout_seconds: 5}
    spawns:
      tool_pool: "*"
      result_schema: "shapes.Letter"
      on_complete: [{key: seen, value: true}, {key: remarks, value: second opinion heard}]
  lab: {tools: [{name: wards}]}
workflows:
  second_opinion:
    - name: ask
      type: vote
      vote: {strategy: llm_judge, debate_rounds: 2}
      tasks: [{name: one, agent: lab, instruction: i}, {name: two, agent: doctor, instruction: i}]
"""


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """`write(text, **files)` makes a configuration and files beside it, in a folder of its own."""

    def make(text: str, folder: str = "team", **files: str) -> Path:
        home = tmp_path / folder
        for name, content in files.items():
            path = home / name.replace("__", "/").replace("_py", ".py").replace("_txt", ".txt")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        home.mkdir(exist_ok=True)
        (home / "team.yaml").write_text(text)
        return home / "team.yaml"

    return make


@pytest.fixture
def clinic(write: Write) -> Config:
    """A team in the wider format, with sections that refold does not use."""
    return load(
        write(
            CLINIC,
            shapes_py="from pydantic import BaseModel\n\n"
            "class Visit(BaseModel):\n    pain: int | None = None\n    seen: bool = False\n"
            "    remarks: list[str] = []\n\n"
            "class Letter(BaseModel):\n    findings: list[str]\n",
            logic__rules_py="def is_urgent(pain):\n    return (pain or 0) > 8\n",
            logic__work_py="".join(
                f"def {name}(who: str) -> str:\n    return who\n\n" for name in ("look_up", "discharge", "prescribe")
            ),
            prompts__reception_txt="Welcome {{ who }}.",
        )
    )


def _mistakes(path: Path) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(path)
    return [line.replace(f"{path}:", "") for line in str(caught.value).split("\n")]


def test_a_file_of_the_wider_format_loads(clinic: Config) -> None:
    """Its agents, tools, routers, votes, limits and types are what the file says."""
    reception, doctor = clinic.agents["reception"], clinic.agents["doctor"]
    assert list(clinic.agents) == ["reception", "doctor", "lab"]
    assert reception.routers[0].condition is not None
    assert reception.routers[0].condition({"pain": 9}) is True
    assert reception.routers[0].targets == ("doctor",)
    assert [one.name for one in reception.tools] == ["look_up"]
    assert [one.requires_approval for one in doctor.tools] == [False, False, True]
    assert clinic.tools["wards"].command == "python"
    assert clinic.tools["wards"].untrusted_output
    assert not clinic.tools["look_up"].untrusted_output
    assert clinic.tools["look_up"].function is not None
    assert clinic.tools["look_up"].function("x") == "x"
    assert clinic.model.cheap == "small"
    assert clinic.memory.shared_scope == "tenant"
    assert (clinic.breakers.max_handoffs_per_session, clinic.breakers.max_usd_cost_per_session) == (7, 2.0)
    assert clinic.workflows["second_opinion"].agents() == ("lab", "doctor")
    assert clinic.workflows["second_opinion"].tasks[0].vote.debate_rounds == 2


def test_gates_of_the_root_and_of_the_agent_both_hold(clinic: Config) -> None:
    """A tool gated at the root and where it is referred to has both conditions, the root's first."""
    gates = clinic.agents["doctor"].tools[0].available_when
    assert [one.expression for one in gates] == ["not _untrusted_content_ingested", "pain < 3"]


def test_sections_not_used_are_named_in_one_warning(clinic: Config) -> None:
    """What refold leaves out stands in one line, tools of other types by name; approvals by many have their own."""
    (one,) = [text for text in clinic.warnings if "not part of refold" in text]
    for name in ("rag", "skills", "server", "telemetry", "model.cascade", "model.guardrails", "memory.type",
                 "agents.*.skills", "agents.*.lazy_load_tools", "circuit_breakers.max_corrector_tokens",
                 "the openapi tool 'price_list'", "the sandbox tool 'scratch'"):  # fmt: skip
        assert name in one
    assert "shared_scope" not in one
    assert any("one person's approval is enough" in text for text in clinic.warnings)
    assert any("templates in them are not run: reception" in text for text in clinic.warnings)


def test_without_owners_all_agents_own_every_key(clinic: Config) -> None:
    """A group of all agents owns the keys, and a warning says so."""
    assert {key.owner for key in clinic.schema.keys} == {"all_agents"}
    assert clinic.schema.groups["all_agents"] == ("reception", "doctor", "lab")
    assert any("no owners" in text for text in clinic.warnings)


def test_without_a_state_schema_any_key_holds_any_json(write: Write) -> None:
    """The open family takes what no schema names; reducers and owners declare keys beside it."""
    config = load(write(SMALL + "reducers: [{key: notes, strategy: append}, {key: sum, strategy: deep_merge}]\n"))
    assert config.schema.key("whatever").prepare({"x": [1]}).text == b'{"x":[1]}'
    assert config.schema.key("notes").reducer.name == "append"
    assert config.schema.key("sum").schema == {"type": "object"}
    assert len(config.warnings) == 2
    with pytest.raises(ConfigError, match="write True"):
        load(write(SMALL.replace("{a: {}}", "{a: {tools: [{name: x, module: os, available_when: 'go == true'}]}}")))


def test_types_check_data_by_path(clinic: Config) -> None:
    """An answer's type gives JSON Schema and refuses data with the path of what is wrong."""
    response = clinic.agents["doctor"].response
    assert response is not None
    assert response.schema["required"] == ["findings"]
    assert response.check({"findings": ["ok"]}) == {"findings": ["ok"]}
    with pytest.raises(InvalidValue, match=r"findings"):
        response.check({"findings": [1]})


def test_spawns_give_all_tools_for_a_star_and_no_left_out_one(clinic: Config) -> None:
    """`*` stands for the agent's own tools; a tool of a type left out is none of them."""
    spawns = clinic.agents["doctor"].spawns
    assert spawns is not None
    assert spawns.tool_pool == ("discharge", "look_up", "prescribe")
    assert [(one.key, one.value) for one in spawns.on_complete] == [("seen", True), ("remarks", "second opinion heard")]


def test_the_configuration_is_immutable(clinic: Config) -> None:
    """Neither its fields nor its mappings can be changed."""
    with pytest.raises(FrozenInstanceError):
        clinic.default_agent = "lab"  # type: ignore[misc]
    with pytest.raises(TypeError):
        clinic.agents["x"] = clinic.agents["lab"]  # type: ignore[index]


def test_the_import_path_is_restored_and_folders_do_not_mix(write: Write) -> None:
    """Two files with modules of one name each get their own, and the import path is as it was."""
    before = list(sys.path)
    text = "model: {primary: m}\ntools: [{name: who, module: helpers_of_team}]\nagents: {a: {tools: [who]}}\n"
    one = load(write(text, folder="one", helpers_of_team_py="def who():\n    return 1\n"))
    two = load(write(text, folder="two", helpers_of_team_py="def who():\n    return 2\n"))
    assert sys.path == before
    assert one.tools["who"].function is not None
    assert two.tools["who"].function is not None
    assert (one.tools["who"].function(), two.tools["who"].function()) == (1, 2)


def test_modules_of_the_program_are_left_alone(write: Write) -> None:
    """A file beside the configuration named as a module in use does not take its place."""
    import kept

    load(write(SMALL, kept_py="raise RuntimeError\n"))
    assert sys.modules["kept"] is kept


def test_approval_asked_at_the_root_holds_for_every_agent(write: Write) -> None:
    """An agent can add approval to a tool it refers to, and repeatability, and cannot take approval away."""
    config = load(
        write(
            "model: {primary: m}\ndefault_agent: a\ntools: [{name: getcwd, module: os, requires_approval: true}, "
            "{name: listdir, module: os}]\nagents:\n  a: {handoffs: [b], tools: [getcwd, listdir]}\n"
            "  b: {tools: [{name: getcwd, requires_approval: false}, "
            "{name: listdir, requires_approval: true, idempotent: true, timeout: 2}]}\n"
        )
    )
    assert [one.requires_approval for one in config.agents["a"].tools] == [True, False]
    assert [one.requires_approval for one in config.agents["b"].tools] == [True, True]
    again = config.agents["b"].tools[1].tool
    assert (again.idempotent, again.timeout_s) == (True, 2.0)
    assert not config.agents["a"].tools[1].tool.idempotent


def test_the_import_path_is_restored_after_a_failure(write: Write) -> None:
    """A module that raises is a mistake with a line, and leaves no trace on the import path."""
    before = list(sys.path)
    path = write(SMALL + "state_schema: broken_module.X\n", broken_module_py="raise SystemExit('no')\n")
    assert _mistakes(path) == ["3: state_schema: the module 'broken_module' cannot be imported: SystemExit: no"]
    assert sys.path == before


def test_owners_groups_reducers_and_invariants_make_the_schema(write: Write) -> None:
    """Inline keys with owners, a group, a workflow that owns, reducers in both forms, an invariant."""
    config = load(
        write(
            "model: {primary: m}\ndefault_agent: a\nagents: {a: {handoffs: [b]}, b: {}}\n"
            "state_schema: {low: integer, high: {owner: b, type: integer}, log: array, found: array}\n"
            "owners: {low: a, log: team, found: search}\ngroups: {team: [a, b]}\n"
            "reducers: {log: append, found: append}\ninvariants: {band: low <= high}\n"
            "workflows: {search: [{name: t, agent: b, instruction: i}]}\n"
        )
    )
    assert {key.name: key.owner for key in config.schema.keys} == {
        "low": "a", "high": "b", "log": "team", "found": "search"}  # fmt: skip
    assert config.schema.key("found").actors == {"b"}
    assert config.schema.invariants[0].expression == "low <= high"
    assert not config.warnings


@pytest.mark.parametrize(
    "source",
    [
        "from typing import Annotated, TypedDict\nfrom refold import Owner, append\n"
        "class State(TypedDict):\n    log: Annotated[list[str], Owner('a'), append]\n"
        "    n: Annotated[int, Owner('a')]\n",
        "from typing import Annotated\nfrom refold import Owner, StateSchema, append\n"
        "class State(StateSchema):\n    log: Annotated[list[str], Owner('g'), append]\n"
        "    n: Annotated[int, Owner('a')]\n"
        "    groups = {'g': ['a']}\n",
    ],
    ids=["TypedDict", "StateSchema"],
)
def test_a_class_may_name_its_owners(write: Write, source: str) -> None:
    """Owners in the class need no `owners:`, and a second one there is a mistake."""
    config = load(write(SMALL + "state_schema: own_state.State\n", folder="x", own_state_py=source))
    assert config.schema.key("log").reducer.name == "append"
    assert not config.warnings
    path = write(SMALL + "state_schema: own_state.State\nowners: {n: a}\n", folder="y", own_state_py=source)
    assert _mistakes(path) == ["4: owners.n: key 'n' has two owners, 'a' and 'a'; declare a group that holds both"]


def test_a_class_with_owners_must_give_all_of_them(write: Write) -> None:
    """Once somebody owns a key, one without an owner is a mistake and not everybody's."""
    source = ("from typing import Annotated\nfrom refold import Owner, StateSchema\n"
              "class State(StateSchema):\n    n: Annotated[int, Owner('a')]\n    lost: int\n")  # fmt: skip
    path = write(SMALL + "state_schema: half_state.State\n", half_state_py=source)
    assert _mistakes(path) == ["3: state_schema.lost: key 'lost' has no owner: give it an entry in `owners`"]


def test_root_routers_hold_for_one_agent_or_for_all(write: Write) -> None:
    """A router named after an agent is that agent's; another holds everywhere but at its target; first the root's."""
    config = load(
        write(
            "model: {primary: m}\ndefault_agent: a\n"
            "agents: {a: {routers: [{condition: x, target: c}]}, b: {}, c: {}}\n"
            "routers:\n  a: {module: way_out, possible_targets: [b, c]}\n  stop: {condition: halt, target: b}\n",
            way_out_py="def route(state):\n    return state.get('to')\n",
        )
    )
    assert [one.name for one in config.routers_of("a")] == ["routers.a", "routers.stop", "agents.a.routers.0"]
    assert [one.name for one in config.routers_of("b")] == []
    assert [one.name for one in config.routers_of("c")] == ["routers.stop"]
    function = config.routers_of("a")[0].function
    assert function is not None
    assert function({"to": "b"}) == "b"


def test_handoffs_may_want_a_payload(write: Write) -> None:
    """A handoff names its agent, or an agent and the type of what comes along."""
    config = load(
        write(
            "model: {primary: m}\ndefault_agent: a\nagents:\n  b: {}\n  c: {auto_route: true}\n"
            "  a:\n    auto_route: true\n    handoffs: [c, {agent: b, payload: {type: object, required: [case]}}]\n"
        )
    )
    handoff = config.agents["a"].handoff("b")
    assert handoff is not None
    assert handoff.payload is not None
    with pytest.raises(InvalidValue, match="case"):
        handoff.payload.check({})
    assert config.agents["a"].auto_route == ("c", "b")
    assert config.agents["c"].auto_route == ("b", "a")


def test_the_fingerprint_follows_what_the_file_says(write: Write) -> None:
    """The same content has the same fingerprint, comments aside; a prompt file, an owner or a field changes it."""
    text = "model: {primary: m}\ndefault_agent: a\nagents: {a: {system_prompt_file: p.txt, handoffs: [b]}, b: {}}\n"
    text += "state_schema: {k: string}\nowners: {k: a}\n"
    base = load(write(text, p_txt="one")).fingerprint
    assert len(base) == 64
    assert load(write("# a comment\n" + text, p_txt="one")).fingerprint == base
    others = {
        load(write(text, p_txt="two")).fingerprint,
        load(write(text.replace("{k: a}", "{k: b}"), p_txt="one")).fingerprint,
        load(write(text.replace("primary: m", "primary: n"), p_txt="one")).fingerprint,
    }
    assert len({base, *others}) == 4


def test_all_mistakes_are_told_at_once_by_line(write: Write) -> None:
    """Wrong fields, wrong names and wrong conditions come in one error, each with its line and path."""
    path = write(
        "model: {primary: m, temprature: 1, retries: 99}\n"
        "agents:\n  a:\n    handofs: [b]\n    tools: [nothing]\n"
        "    routers: [{condition: 'k = 1', target: z}]\n"
        "state_schema: {k: intger}\nowners: {}\n"
    )
    head, *found = _mistakes(path)
    assert head.startswith("7 mistakes in ")
    assert found == [
        "1: model.retries: input should be less than or equal to 10, not 99",
        "1: model.temprature: unknown field 'temprature'; did you mean 'temperature'?",
        "4: agents.a.handofs: unknown field 'handofs'; did you mean 'handoffs'?",
        "5: agents.a.tools.0: unknown tool 'nothing'; declare it under `tools`, or give it a `module` here",
        "6: agents.a.routers.0.target: the router's target 'z' is no agent",
        "6: agents.a.routers.0.condition: condition 'k = 1' at column 3: it cannot be read as an expression "
        "(write `==` for `=`)",
        "7: state_schema.k: unknown type 'intger'; did you mean 'integer'?",
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the file is empty"),
        ("- a\n", "a configuration is a mapping with `agents` and `model`, not a list"),
        ("model: {primary: m\n", "not YAML"),
        ("model: {primary: m}\nmodel: {primary: n}\n", "the key 'model' is given twice"),
        ("agents: {a: {}}\n", "'model' is missing"),
        ("model: {primary: m}\n", "no agents are declared"),
        (
            "model: {primary: 3}\nagents: {a: {}}\n",
            "model.primary: input should be a valid string, not 3; put it in quotes",
        ),
        ("model: {primary: m}\nagents: {a: {}, b: {}}\n", "'default_agent' is missing"),
        (SMALL + "version: 2026-01-01\n", "put it in quotes"),
        (
            SMALL + "workflows: {w: [{name: t, type: vote, vote: {min_agreement: -0.1}}]}\n",
            "greater than or equal to 0",
        ),
        (SMALL + "state_schema: {_x: string}\nowners: {_x: a}\n", "begins with `_`"),
        (SMALL + "groups: {g: []}\n", "the group has no members"),
        (SMALL + "reducers: [{key: k}, {key: k}]\n", "second reducer"),
        (SMALL + "tools: [{name: t, module: os, function: os.getcwd}]\n", "either `module` or `function`"),
        (SMALL + "tools: [{name: getcwd, module: os}, {name: getcwd, module: posix}]\n", "two tools are named"),
        (SMALL + "tools: [{name: read_state, module: os}]\n", "the engine's"),
        (SMALL + "routers: {r: {module: os}}\n", "wants `possible_targets`"),
    ],
)
def test_a_mistake_is_one_clear_line(write: Write, text: str, said: str) -> None:
    """Each mistake says what is wrong, in the file it is in."""
    with pytest.raises(ConfigError) as caught:
        load(write(text))
    assert said in str(caught.value)
    assert "team.yaml" in str(caught.value)


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    """A missing file and a folder are one line each."""
    with pytest.raises(ConfigError, match=r"none.yaml: the file cannot be read: No such file"):
        load(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path)


def test_one_name_is_one_tool(write: Write) -> None:
    """Two agents may declare the same function inline, and not two functions under one name."""
    text = "model: {primary: m}\ndefault_agent: a\nagents: {a: {handoffs: [b], tools: [{name: getcwd, module: os}]}, "
    config = load(write(text + "b: {tools: [{name: getcwd, module: os, available_when: go}]}}\n"))
    assert list(config.tools) == ["getcwd"]
    assert [len(config.agents[name].tools[0].available_when) for name in "ab"] == [0, 1]
    (mistake,) = _mistakes(write(text + "b: {tools: [{name: getcwd, function: os.listdir}]}}\n"))
    assert "already declared as something else (os:getcwd)" in mistake


def test_the_json_schema_knows_the_format() -> None:
    """The exported schema accepts a good file and refuses an unknown field, as editors would."""
    import jsonschema_rs
    import yaml

    validator = jsonschema_rs.validator_for(json_schema())
    assert validator.is_valid(yaml.safe_load(CLINIC))
    assert not validator.is_valid({**yaml.safe_load(CLINIC), "agent": {}})
    assert not validator.is_valid({"agents": {}})


def test_every_field_is_documented() -> None:
    """Every section and field that is used stands in its page; those not used do not have to."""
    text = (Path(__file__).parents[1] / "docs" / "engine-config.md").read_text(encoding="utf-8")
    schema = json_schema()
    parts = [schema, *schema["$defs"].values()]
    fields = {name for part in parts for name, one in part["properties"].items() if one.get("description") != NOT_USED}
    assert len(fields) > 60
    assert sorted(name for name in fields if not re.search(rf"[`.]{name}\b", text)) == []
