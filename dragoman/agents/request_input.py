"""The tool `request_input`: the model asks the person in front of the caller, and goes on with the
answer.

What is asked is a question of the task as an author's code puts it, so it may wait for days, and is
answered as any other. The form of an answer is the model's word: patterns and references are
refused in it, for they would be run on what a stranger writes.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, cast

import msgspec

from dragoman.agents.tools import Tool, ToolCall, ToolResult
from dragoman.model.content import json_value
from dragoman.server.asking import MAX_PROMPT
from dragoman.server.turn import Turn

NAME = "request_input"
# How deep a form may nest.
_DEPTH = 16


class Asked(msgspec.Struct, frozen=True):
    """What a model asks for."""

    type: Literal["confirmation", "clarification", "selection", "data"]
    prompt: str
    options: list[str] = []
    schema: dict[str, Any] = {}


TOOL = Tool(
    name=NAME,
    description=(
        "Asks the person for something only they know or may decide, and waits for the answer. "
        "`type` is confirmation (yes or no), clarification (a text), selection (one of `options`) "
        "or data (JSON that fits `schema`)."
    ),
    schema={
        "type": "object",
        "properties": {
            "type": {"enum": ["confirmation", "clarification", "selection", "data"]},
            "prompt": {"type": "string", "minLength": 1, "maxLength": MAX_PROMPT},
            "options": {"type": "array", "items": {"type": "string"}},
            "schema": {"type": "object"},
        },
        "required": ["type", "prompt"],
    },
    records_itself=True,
)


class RequestInput:
    """Offers `request_input`: `AgentLoop(model, tools=[RequestInput()])`."""

    async def list_tools(self) -> Sequence[Tool]:
        """Return the one tool."""
        return [TOOL]

    async def execute(self, call: ToolCall, turn: Turn) -> ToolResult:
        """Ask, and return what was answered: yes or no, the text, the option, or the JSON."""
        asked = msgspec.convert(call.arguments, Asked)
        if not asked.prompt.strip() or len(asked.prompt) > MAX_PROMPT:
            raise ValueError(f"prompt has 1 to {MAX_PROMPT} characters")
        match asked.type:
            case "confirmation":
                return ToolResult("yes" if await turn.confirm(asked.prompt) else "no")
            case "clarification":
                return ToolResult((await turn.ask(asked.prompt)).text)
            case "selection":
                if not asked.options:
                    raise ValueError("a selection needs options")
                return ToolResult(await turn.choose(asked.prompt, asked.options))
            case "data":
                check_form(asked.schema)
                answer = await turn.fill(asked.prompt, asked.schema)
                return ToolResult(msgspec.json.encode(json_value(answer)).decode())

    async def close(self) -> None:
        """Nothing is open here."""


def check_form(schema: Any, depth: int = 0) -> None:
    """Raise `ValueError` unless answers can be held to a schema that a model wrote."""
    if not isinstance(schema, dict) or depth > _DEPTH:
        raise ValueError(f"schema: JSON Schemas are objects, at most {_DEPTH} in one another")
    members = cast("dict[str, Any]", schema)
    for keyword in ("pattern", "$ref"):
        if keyword in members:
            raise ValueError(f"schema: leave out {keyword}, it is not used here")
    for keyword, fits in _FITTING.items():
        if keyword in members and not fits(members[keyword]):
            raise ValueError(f"schema: {keyword} has no value that JSON Schema knows")
    for inner in _inner(members):
        check_form(inner, depth + 1)


def _inner(members: Mapping[str, Any]) -> list[Any]:
    """Return the schemas in a schema."""
    found: list[Any] = [*members.get("properties", {}).values()]
    for keyword in ("allOf", "anyOf", "oneOf"):
        found += members.get(keyword, [])
    more = [members.get("items"), members.get("additionalProperties")]
    return found + [one for one in more if one is not None and not isinstance(one, bool)]


_TYPES = {"object", "array", "string", "integer", "number", "boolean", "null"}


def _is_type(value: Any) -> bool:
    kinds = cast("list[Any]", value) if isinstance(value, list) else [value]
    return bool(kinds) and all(isinstance(kind, str) and kind in _TYPES for kind in kinds)


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in cast("list[Any]", value))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_FITTING: dict[str, Callable[[Any], bool]] = {
    "type": _is_type,
    "properties": lambda value: isinstance(value, dict),
    "required": _is_texts,
    **dict.fromkeys(("enum", "allOf", "anyOf", "oneOf"), _is_list),
    **dict.fromkeys(
        (
            *("minLength", "maxLength", "minItems", "maxItems"),
            *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
        ),
        _is_number,
    ),
}
