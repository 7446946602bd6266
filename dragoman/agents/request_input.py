"""The tool `request_input`: the model asks the user, and continues with the answer.

The request is a question of the task like one of an author's code: it may wait for days, and is
answered in the same way. The model supplies the schema of an answer: patterns and references are
refused in it, because they would be run on untrusted input.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, cast

import msgspec

from dragoman.agents.tools import Tool, ToolCall, ToolResult
from dragoman.authoring.asking import MAX_PROMPT
from dragoman.authoring.turn import Turn
from dragoman.model.content import json_value

NAME = "request_input"
# How deep a schema may nest.
_DEPTH = 16


class InputRequest(msgspec.Struct, frozen=True):
    """The arguments of the tool."""

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
        """Ask, and return the answer: yes or no, the text, the option, or the JSON."""
        request = msgspec.convert(call.arguments, InputRequest)
        if not request.prompt.strip() or len(request.prompt) > MAX_PROMPT:
            raise ValueError(f"prompt has 1 to {MAX_PROMPT} characters")
        match request.type:
            case "confirmation":
                return ToolResult("yes" if await turn.confirm(request.prompt) else "no")
            case "clarification":
                return ToolResult((await turn.ask(request.prompt)).text)
            case "selection":
                if not request.options:
                    raise ValueError("a selection needs options")
                return ToolResult(await turn.choose(request.prompt, request.options))
            case "data":
                check_schema(request.schema)
                answer = await turn.fill(request.prompt, request.schema)
                return ToolResult(msgspec.json.encode(json_value(answer)).decode())

    async def close(self) -> None:
        """Nothing to close."""


def check_schema(schema: Any, depth: int = 0) -> None:
    """Raise `ValueError` unless answers can be checked against a schema that a model wrote."""
    if not isinstance(schema, dict) or depth > _DEPTH:
        raise ValueError(f"schema: JSON Schemas are objects, at most {_DEPTH} in one another")
    members = cast("dict[str, Any]", schema)
    for keyword in ("pattern", "$ref"):
        if keyword in members:
            raise ValueError(f"schema: leave out {keyword}, it is not used here")
    for keyword, fits in _CHECKS.items():
        if keyword in members and not fits(members[keyword]):
            raise ValueError(f"schema: {keyword} has no value that JSON Schema knows")
    for inner in _inner(members):
        check_schema(inner, depth + 1)


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


_CHECKS: dict[str, Callable[[Any], bool]] = {
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
