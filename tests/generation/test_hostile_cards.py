"""Cards of strangers: whatever they say, their modules are valid and harmless, or are refused."""

import ast
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.errors import ConfigError
from dragoman.generation import harmless
from dragoman.generation.client_module import client_module, types_module
from dragoman.generation.harmless import NotHarmless
from dragoman.model.card import (
    SCHEMAS_URI,
    AgentCapabilities,
    AgentCard,
    AgentExtension,
    AgentSkill,
)

# Each would do something if it were written as code.
INJECTIONS = [
    '"""\nimport os\nos.system("x")\n"""',
    "'''\nraise SystemExit\n'''",
    '"); raise SystemExit; ("',
    "\\",
    '\\"""',
    '"',
    '""',
    'ends with a quote"',
    "ends with a backslash\\",
    "{raise SystemExit}",
    "x\rraise SystemExit",
    "x\x0craise SystemExit",
    "x\u2028raise SystemExit",
    "\u202eright to left",
    "nul \x00 byte",
    "# coding: rot13",
    "%(x)s {0} $x `x`",
    "",
    " ",
    "a" * 100_000,
]
NAMES = [
    *("class", "def", "None", "True", "await", "match", "type", "self", "cls", "__init__", "list"),
    *("call", "ask", "close", "sync", "agent", "skills", "stream", "run", "__class__", "1st"),
    *("a b", "a-b", "a_b", "é", "ß", "中文", "🙂", "-", "_", "__", "import os", "x" * 300),
]


def card(
    skills: list[tuple[str, str]],
    schemas: dict[str, Any] | None = None,
    results: dict[str, Any] | None = None,
    name: str = "Agent",
) -> AgentCard:
    params = {"schemas": schemas or {}, "results": results or {}}
    return AgentCard(
        name=name,
        description=name,
        supported_interfaces=[],
        version="1",
        capabilities=AgentCapabilities(
            streaming=True, extensions=[AgentExtension(uri=SCHEMAS_URI, params=params)]
        ),
        default_input_modes=[],
        default_output_modes=[],
        skills=[AgentSkill(id=id, name=id, description=about, tags=[]) for id, about in skills],
    )


def written(one: AgentCard, ref: str = "http://127.0.0.1") -> dict[str, Any]:
    """Return what there is when the module of a card has been loaded."""
    source = client_module(one, ref)
    names: dict[str, Any] = {"__name__": __name__}
    exec(compile(source, "generated", "exec"), names)
    return names


@pytest.mark.parametrize("text", INJECTIONS, ids=range(len(INJECTIONS)))
def test_texts_of_a_card_are_texts_of_its_module(text: str) -> None:
    schema = {
        "type": "object",
        "title": text[:100],
        "description": text,
        "properties": {
            text[:100]: {"type": "string", "description": text, "enum": [text[:100], "x"]},
            "inner": {
                "type": "object",
                "description": text,
                "properties": {text[:100]: {"const": text[:100]}, "x": {"type": "integer"}},
            },
        },
        "required": [text[:100]],
    }
    found = written(card([(text[:100], text)], {text[:100]: schema}, {text[:100]: schema}, text))
    assert any(hasattr(one, "sync") for one in found.values())
    assert written(card([("x", text)]), ref=text[:100])


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_names_of_a_card_become_names_of_python(name: str) -> None:
    key = name[:200]
    schema = {"type": "object", "properties": {key: {"type": "string"}, "x": {}}}
    found = written(card([(name, "x"), (f"{name} ", "x")], {name: schema}, {name: schema}, name))
    (client,) = [one for one in found.values() if getattr(one, "skills", None)]
    assert client.skills.keys() == {name, f"{name} "}


def test_skills_and_arguments_whose_names_fall_together_stay_apart() -> None:
    schema = {"type": "object", "properties": {"a-b": {}, "a b": {}, "a_b": {}, "A.B": {}}}
    source = client_module(
        card([("a-b", ""), ("a_b", ""), ("stream a b", "")], {"a-b": schema}), "x"
    )
    (client, _) = [one for one in ast.parse(source).body if isinstance(one, ast.ClassDef)]
    methods = [
        one.name for one in client.body if isinstance(one, ast.AsyncFunctionDef | ast.FunctionDef)
    ]
    assert len(methods) == len(set(methods)) == 7
    first = next(one for one in client.body if isinstance(one, ast.AsyncFunctionDef))
    assert len({one.arg for one in first.args.args}) == 5


LOOP = {"$defs": {"A": {"$ref": "#/$defs/B"}, "B": {"$ref": "#/$defs/A"}}, "$ref": "#/$defs/A"}
TREE = {
    "$defs": {
        "Node": {
            "type": "object",
            "properties": {
                "next": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]},
                "all": {"type": "array", "items": {"$ref": "#/$defs/Node"}},
                "by name": {"additionalProperties": {"$ref": "#/$defs/Node"}, "type": "object"},
            },
        }
    },
    "$ref": "#/$defs/Node",
}
LIST = {"$defs": {"L": {"type": "array", "items": {"$ref": "#/$defs/L"}}}, "$ref": "#/$defs/L"}
ODD: list[Any] = [
    LOOP,
    TREE,
    LIST,
    True,
    [],
    "x",
    {"type": 3},
    {"type": []},
    {"type": ["string", "x", 3]},
    {"$ref": "https://example.com/schema.json"},
    {"$ref": "#/nowhere"},
    {"$ref": "#"},
    {"anyOf": []},
    {"anyOf": [{}] * 1000},
    {"enum": list(range(1000))},
    {"enum": [1.5, {"a": 1}]},
    {"const": 10**400},
    {"properties": []},
    {"type": "object", "properties": {"a": None}, "required": "a"},
    {"type": "object", "properties": {"a": {}}, "required": [3, None, "b"]},
    {"allOf": [{"type": "string"}, {"type": "integer"}]},
    {"type": "array", "prefixItems": []},
    {"type": "array", "prefixItems": {}, "minItems": 0, "maxItems": 0},
    {"type": "array", "prefixItems": [3, None], "minItems": 2, "items": False},
    {"type": "array", "prefixItems": [{}] * 1000, "minItems": 1000, "maxItems": 1000},
    {
        "$defs": {"L": {"prefixItems": [{"$ref": "#/$defs/L"}], "minItems": 1, "items": False}},
        "$ref": "#/$defs/L",
    },
]


@pytest.mark.parametrize("schema", ODD, ids=range(len(ODD)))
def test_odd_schemas_are_types_or_anything(schema: Any) -> None:
    assert written(card([("x", "x")], {"x": schema}, {"x": schema}))
    assert ast.parse(types_module(card([("x", "x")], results={"x": {"type": "integer"}})))


def deep(levels: int) -> Any:
    schema: Any = {}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


def wide(depth: int) -> Any:
    """Return definitions of which each refers to the next one twice."""
    defs: dict[str, Any] = {f"D{depth}": {"type": "string"}}
    for number in range(depth):
        inner = {"$ref": f"#/$defs/D{number + 1}"}
        defs[f"D{number}"] = {"type": "object", "properties": {"a": inner, "b": inner}}
    return {"$defs": defs, "$ref": "#/$defs/D0"}


@pytest.mark.parametrize(
    "one",
    [
        card([("x", "")], {"x": deep(500)}),
        card([("x", "")], {"x": {"properties": {f"a{n}": {} for n in range(6000)}}}),
        card([("x", "")], {"x": {"properties": {"a" * 1000: {}}}}),
        card([(f"x{n}", "") for n in range(501)]),
    ],
    ids=["deep", "many", "long", "skills"],
)
def test_cards_without_measure_are_refused_in_words(one: AgentCard) -> None:
    with pytest.raises(ConfigError, match=r"card ha|of the card"):
        client_module(one, "x")


def test_definitions_that_refer_to_each_other_often_are_written_once() -> None:
    source = client_module(card([("x", "")], results={"x": wide(15)}), "x")
    assert source.count("class D") == 15
    # The same definitions in another schema are the same classes; others of their names are not.
    other = wide(15)
    other["$defs"]["D14"]["properties"]["a"] = {"type": "integer"}
    both = card(
        [("x", ""), ("y", ""), ("z", "")], results={"x": wide(15), "y": wide(15), "z": other}
    )
    assert client_module(both, "x").count("class D") == 30


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "type",
                    "properties",
                    "items",
                    "$ref",
                    "anyOf",
                    "enum",
                    "const",
                    "title",
                    "required",
                    "description",
                    "additionalProperties",
                    "allOf",
                    "$defs",
                    "object",
                    "array",
                    "string",
                ]
            )
            | st.text(max_size=10),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@given(st.text(max_size=30), st.text(max_size=60), json_values, json_values)
def test_whatever_a_card_says_its_module_loads_or_is_refused(
    id: str, about: str, arguments: Any, result: Any
) -> None:
    one = card([(id, about)], {id: arguments}, {id: result}, about)
    try:
        assert written(one)
    except ConfigError as error:
        assert "card" in str(error)


@pytest.mark.parametrize(
    "code",
    [
        "import os",
        "from os import system",
        "from . import x",
        "print(1)",
        "eval('1')",
        "x = __import__",
        "x = ().__class__",
        "class A:\n    def f(self):\n        return self.x.y",
        "class A:\n    def f(self):\n        return open('x')",
        "x = [a for a in b]",
        "x = lambda: 1",
        "x = f'{a}'",
        "def f(x=print()): ...",
        "class str: ...",
        "while True: pass",
        "del x",
        "x = (",
        "x = '\0'",
    ],
)
def test_code_that_no_card_calls_for_is_not_written(code: str) -> None:
    with pytest.raises(NotHarmless):
        harmless.check(code)
