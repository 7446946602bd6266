"""Requests to `/v1/chat/completions`, decoded. What tunes a model (temperature, seed and the like)
is ignored: an agent is not one."""

from typing import Any

from dragoman.errors import InvalidParams
from dragoman.model.message import Part
from dragoman.openai.prompts import (
    ROLES,
    ChatMessage,
    Prompt,
    Role,
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

_ROLES: dict[str, Role] = {**ROLES, "tool": "tool", "function": "tool"}


def decode(value: Any, conversation: str | None) -> Prompt:
    """Return the prompt of a body; `conversation` is that of the header. Raises `InvalidParams`."""
    body = members(value, "body")
    if body.get("n") not in (None, 1):
        raise InvalidParams("an agent gives one answer; leave it out", field="n")
    listed = elements(body.get("messages"), "messages")
    messages = [_message(one, f"messages[{place}]") for place, one in enumerate(listed)]
    check_last(messages, "messages")
    return Prompt(
        model=model_of(body),
        messages=messages,
        stream=flag(body, "stream"),
        conversation=conversation_of(body, conversation),
        user=text_of(body, "user"),
        include_usage=flag(
            members(body.get("stream_options") or {}, "stream_options"), "include_usage"
        ),
        tools=tools_of(body),
    )


def _message(value: Any, field: str) -> ChatMessage:
    message = members(value, field)
    role = _ROLES.get(text_of(message, "role", f"{field}.role"))
    if role is None:
        raise InvalidParams(f"must be one of {', '.join(_ROLES)}", field=f"{field}.role")
    content = message.get("content")
    if content is None:
        # An assistant that only called tools says nothing.
        if role != "assistant":
            raise InvalidParams("is missing", field=f"{field}.content")
        content = ""
    if isinstance(content, str):
        parts = [Part(text=content)]
    else:
        listed = elements(content, f"{field}.content")
        parts = [_part(one, f"{field}.content[{place}]") for place, one in enumerate(listed)]
    call = text_of(message, "tool_call_id", f"{field}.tool_call_id")
    return ChatMessage(role, parts, call if role == "tool" else "")


def _part(value: Any, field: str) -> Part:
    part = members(value, field)
    match part.get("type"):
        case "text" | "refusal" as kind:
            return Part(text=text_of(part, kind, f"{field}.{kind}"))
        case "image_url":
            image = part.get("image_url")
            place = f"{field}.image_url"
            address = image if isinstance(image, str) else text_of(members(image, place), "url")
            return file_part(address, f"{place}.url")
        case "input_audio":
            place = f"{field}.input_audio"
            audio = members(part.get("input_audio"), place)
            kind = f"audio/{text_of(audio, 'format') or 'wav'}"
            return file_part(text_of(audio, "data"), f"{place}.data", kind=kind)
        case "file":
            place = f"{field}.file"
            file = members(part.get("file"), place)
            if file.get("file_data") is None:
                raise InvalidParams("send the content as file_data", field=place)
            content = text_of(file, "file_data", place)
            return file_part(content, f"{place}.file_data", name=text_of(file, "filename"))
        case _:
            kinds = "text, image_url, input_audio, file"
            raise InvalidParams(f"must be one of {kinds}", field=f"{field}.type")
