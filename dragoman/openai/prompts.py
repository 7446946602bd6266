"""What a request of that API says, whichever of its two shapes it has: a model, the messages so
far, and what the caller's program can do."""

import base64
import binascii
import hashlib
import re
from collections.abc import Sequence
from typing import Any, Literal, cast

import msgspec

from dragoman.errors import InvalidParams
from dragoman.model.identity import is_id
from dragoman.model.message import Json, Part
from dragoman.model.record import encode
from dragoman.model.requests import TOOL_RESULT

# The member of a message's metadata that says what its chat had before it: docs/chat-clients.md.
CHAT_URI = "urn:dragoman:chat:v1"
Role = Literal["system", "user", "assistant", "tool"]
# By the names that both APIs have for them.
ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
}
# Of earlier messages, an agent is given so many characters, the latest first.
_MAX_EARLIER = 64 * 1024
_MAX_TOOLS = 128
_DATA_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+)?((?:;[\w.+-]+=[^;,]*)*)(;base64)?,", re.ASCII)
# Our ids of calls: the task, and the request of it that the call is.
_CALL_ID = re.compile(r"call_([0-9a-f-]{36})_([\x21-\x7e]{1,256})\Z")


class ChatMessage(msgspec.Struct, frozen=True):
    """One message of a chat."""

    role: Role
    parts: list[Part]
    # Of a tool's result: the call that it is of.
    call_id: str = ""

    @property
    def text(self) -> str:
        """The text parts, joined by newlines."""
        return "\n".join(part.text for part in self.parts if isinstance(part.text, str))


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """A request, decoded."""

    model: str
    messages: list[ChatMessage]
    stream: bool = False
    # The conversation that it names, the answer that it continues, and its user; empty: none.
    conversation: str = ""
    previous: str = ""
    user: str = ""
    # Whether the caller comes back for the answer.
    background: bool = False
    # Whether a stream is to tell the tokens that were used.
    include_usage: bool = False
    # The tools that its program executes, by name.
    tools: dict[str, Json] = {}

    @property
    def begins_at(self) -> int:
        """Where the new messages begin: after the last one of the assistant."""
        places = (place for place, one in enumerate(self.messages) if one.role == "assistant")
        return max(places, default=-1) + 1

    @property
    def new(self) -> list[ChatMessage]:
        """The messages that are to be answered."""
        return [one for one in self.messages[self.begins_at :] if one.role != "system"]

    def parts(self) -> list[Part]:
        """Return the new messages as the parts of one."""
        found: list[Part] = []
        for message in self.new:
            call = _CALL_ID.match(message.call_id)
            if call is not None:
                answer = {"toolUseId": call[2], "result": message.text}
                found.append(Part(data=answer, media_type=TOOL_RESULT))
            else:
                found += message.parts
        return found

    def answered_task(self) -> str:
        """Return the task whose calls the new messages have results of; empty: they have none."""
        calls = (_CALL_ID.match(one.call_id) for one in self.new)
        return next((call[1] for call in calls if call is not None), "")

    def metadata(self) -> dict[str, Any]:
        """Return what an agent may read of the chat besides the message."""
        instructions = [one for one in self.messages[self.begins_at :] if one.role == "system"]
        earlier = [*self.messages[: self.begins_at], *instructions]
        facts: dict[str, Any] = {"fingerprint": fingerprint(self.messages), "model": self.model}
        if earlier:
            facts["messages"] = _latest(earlier)
        if self.tools:
            facts["tools"] = list(self.tools.values())
        return {CHAT_URI: facts}


def _latest(messages: Sequence[ChatMessage]) -> list[dict[str, str]]:
    found: list[dict[str, str]] = []
    room = _MAX_EARLIER
    for message in reversed(messages):
        text = message.text
        room -= len(text)
        if room < 0:
            break
        found.append({"role": message.role, "text": text})
    return found[::-1]


def fingerprint(messages: Sequence[ChatMessage]) -> str:
    """Return a digest of a chat, the same whenever the same messages are sent."""
    content = encode([[one.role, one.call_id, one.parts] for one in messages])
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def call_id(task_id: str, request_id: str) -> str:
    """Return the id of a tool call, from which its result finds the task."""
    return f"call_{task_id}_{request_id}"


# Reading


def members(value: Any, field: str) -> dict[str, Any]:
    """Return an object; raises `InvalidParams`."""
    if not isinstance(value, dict):
        raise InvalidParams("must be an object", field=field)
    return cast("dict[str, Any]", value)


def elements(value: Any, field: str) -> list[Any]:
    """Return an array; raises `InvalidParams`."""
    if not isinstance(value, list):
        raise InvalidParams("must be an array", field=field)
    return cast("list[Any]", value)


def text_of(body: dict[str, Any], name: str, field: str = "") -> str:
    """Return a member that is a text, or empty; raises `InvalidParams`."""
    value = body.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InvalidParams("must be a string", field=field or name)
    return value


def flag(body: dict[str, Any], name: str) -> bool:
    """Return a member that is true or false, or missing; raises `InvalidParams`."""
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise InvalidParams("must be true or false", field=name)
    return bool(value)


def model_of(body: dict[str, Any]) -> str:
    """Return the model; raises `InvalidParams` if there is none."""
    model = text_of(body, "model")
    if not model:
        raise InvalidParams("is missing; GET /v1/models lists what there is", field="model")
    return model


def conversation_of(body: dict[str, Any], header: str | None) -> str:
    """Return the conversation that a request names: in a header, as the member `conversation`, or
    in `metadata.conversation_id`."""
    named = body.get("conversation")
    if isinstance(named, dict):
        named = cast("dict[str, Any]", named).get("id")
    metadata = body.get("metadata")
    if named is None and metadata is not None:
        named = members(metadata, "metadata").get("conversation_id")
    if named is None:
        named = header or ""
    if not isinstance(named, str) or (named and is_id(named) is None):
        raise InvalidParams("must be up to 256 visible characters", field="conversation")
    return named


def tools_of(body: dict[str, Any]) -> dict[str, Json]:
    """Return the functions that the caller's program executes, by name. Tools that its provider
    would execute are left out: there is none."""
    given = body.get("tools")
    listed = [] if given is None else elements(given, "tools")
    if len(listed) > _MAX_TOOLS:
        raise InvalidParams(f"must be at most {_MAX_TOOLS}", field="tools")
    found: dict[str, Json] = {}
    for place, one in enumerate(listed):
        field = f"tools[{place}]"
        tool = members(one, field)
        if tool.get("type") != "function":
            continue
        facts = members(tool.get("function", tool), f"{field}.function")
        name = text_of(facts, "name", f"{field}.name")
        if not name:
            raise InvalidParams("is missing", field=f"{field}.name")
        found[name] = {
            "name": name,
            "description": text_of(facts, "description", f"{field}.description"),
            "parameters": facts.get("parameters") or {},
        }
    return found


def file_part(address: str, field: str, *, name: str = "", kind: str = "") -> Part:
    """Return a file: by an address, or with its content as a data URL or as base64."""
    if address.startswith(("http://", "https://")):
        return Part(url=address, filename=name, media_type=kind)
    content = address
    if address.startswith("data:"):
        # A short look: the content may be megabytes.
        head = _DATA_URL.match(address, 0, 512)
        if head is None or not head[3]:
            raise InvalidParams("must be an http(s) address or a base64 data URL", field=field)
        kind, content = head[1] or kind, address[head.end() :]
    try:
        raw = base64.b64decode(content, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidParams("is not valid base64", field=field) from None
    return Part(raw=raw, filename=name, media_type=kind or "application/octet-stream")


def check_last(messages: Sequence[ChatMessage], field: str) -> None:
    """Raise `InvalidParams` unless there is something new to answer."""
    if not messages:
        raise InvalidParams("must have at least one message", field=field)
    last = next((one for one in reversed(messages) if one.role != "system"), None)
    if last is None or last.role == "assistant":
        raise InvalidParams("the last message must be of a user or a tool", field=field)
    # A tool may have nothing to say.
    if last.role == "user" and all(part.text == "" for part in last.parts):
        raise InvalidParams("the last message is empty", field=field)
