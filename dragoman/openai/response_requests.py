"""Requests to `/v1/responses`, decoded."""

from typing import Any

from dragoman.errors import InvalidParams
from dragoman.model.message import Part
from dragoman.openai.prompts import (
    ROLES,
    ChatMessage,
    Prompt,
    check_last,
    conversation_of,
    elements,
    file_part,
    flag,
    members,
    model_of,
    text_of,
    tools_of,
)


def decode(value: Any, conversation: str | None) -> Prompt:
    """Return the prompt of a body; `conversation` is that of the header. Raises `InvalidParams`."""
    body = members(value, "body")
    stream, background = flag(body, "stream"), flag(body, "background")
    if stream and background:
        raise InvalidParams("is not streamed; retrieve it", field="background")
    given = body.get("input")
    if isinstance(given, str):
        messages = [ChatMessage("user", [Part(text=given)])]
    else:
        listed = [
            _item(one, f"input[{place}]") for place, one in enumerate(elements(given, "input"))
        ]
        messages = [one for one in listed if one is not None]
    check_last(messages, "input")
    if instructions := text_of(body, "instructions"):
        messages.insert(0, ChatMessage("system", [Part(text=instructions)]))
    return Prompt(
        model=model_of(body),
        messages=messages,
        stream=stream,
        background=background,
        conversation=conversation_of(body, conversation),
        previous=text_of(body, "previous_response_id"),
        user=text_of(body, "user") or text_of(body, "safety_identifier"),
        tools=tools_of(body),
    )


def _item(value: Any, field: str) -> ChatMessage | None:
    item = members(value, field)
    match item.get("type", "message"):
        case "message":
            return _message(item, field)
        case "function_call_output":
            return _output(item, field)
        case "function_call":
            # Its place counts: what follows is new.
            return ChatMessage("assistant", [])
        case "reasoning":
            # Of an earlier answer, and of no model that is here.
            return None
        case _:
            kinds = "message, function_call, function_call_output"
            raise InvalidParams(f"must be one of {kinds}", field=f"{field}.type")


def _message(item: dict[str, Any], field: str) -> ChatMessage:
    role = ROLES.get(text_of(item, "role", f"{field}.role"))
    if role is None:
        raise InvalidParams(f"must be one of {', '.join(ROLES)}", field=f"{field}.role")
    return ChatMessage(role, _content(item.get("content"), f"{field}.content"))


def _output(item: dict[str, Any], field: str) -> ChatMessage:
    call = text_of(item, "call_id", f"{field}.call_id")
    if not call:
        raise InvalidParams("is missing", field=f"{field}.call_id")
    return ChatMessage("tool", _content(item.get("output"), f"{field}.output"), call)


def _content(content: Any, field: str) -> list[Part]:
    if isinstance(content, str):
        return [Part(text=content)]
    listed = elements(content, field)
    return [_part(one, f"{field}[{place}]") for place, one in enumerate(listed)]


def _part(value: Any, field: str) -> Part:
    part = members(value, field)
    match part.get("type"):
        case "input_text" | "output_text" | "text":
            return Part(text=text_of(part, "text", f"{field}.text"))
        case "refusal":
            return Part(text=text_of(part, "refusal", f"{field}.refusal"))
        case "input_image":
            return file_part(_inline(part, "image_url", field), f"{field}.image_url")
        case "input_file":
            name = text_of(part, "filename")
            source = "file_url" if part.get("file_url") is not None else "file_data"
            return file_part(_inline(part, source, field), f"{field}.{source}", name=name)
        case _:
            kinds = "input_text, output_text, input_image, input_file"
            raise InvalidParams(f"must be one of {kinds}", field=f"{field}.type")


def _inline(part: dict[str, Any], name: str, field: str) -> str:
    if part.get(name) is None:
        raise InvalidParams(f"send it as {name}", field=field)
    return text_of(part, name, f"{field}.{name}")
