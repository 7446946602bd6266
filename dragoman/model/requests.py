"""What a task waits for, as data: questions to a person, and tools that the caller executes.

A task that waits says so in the message of its status. A bare question is its text; whatever has a
shape (choices, a form, a tool), and several at once, are data parts under one extension, and are
answered by their ids in data parts of another type.
"""

import hashlib
from collections.abc import Sequence
from typing import Annotated, Any, Literal, cast

import msgspec
from msgspec import UNSET

from dragoman.model.identity import TaskId
from dragoman.model.message import Json, Message, Metadata, Part
from dragoman.model.task import TaskState, TaskStatus

REQUESTS_URI = "urn:dragoman:requests:v1"
# The types of data parts: what is asked, the call of a tool, and what answers either.
INPUT_REQUEST = "application/vnd.dragoman.input-request+json"
TOOL_USE = "application/vnd.a2a.tool-use+json"
TOOL_RESULT = "application/vnd.a2a.tool-result+json"
# Where dialects that have a place of their own for a question find it, in the metadata.
FIRST = "rx:inputRequest"

Kind = Literal["text", "choice", "confirmation", "form", "tool", "authorization", "credential"]
AuthType = Literal["oauth2", "api-key", "pat", "password"]
_ID_BYTES = 12
# The member of a data part with several answers, `{inputId, value}` each, and how many it may have.
INPUTS = "inputs"
MAX_INPUTS = 20


class Handoff(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """How a credential is handed over: as a compact JWE to a key that is the request's own. It is
    the same wherever the request is passed on to."""

    # What the JWE has to name, besides when it was made and when it ends.
    auth_id: str
    context_id: str
    auth_type: AuthType
    # The public key, as a JWK.
    key: dict[str, Any]
    # Until when (RFC 3339).
    due: str
    agent_id: str = ""
    # Where a person signs in, whose code is then the credential.
    authorization_url: str = ""
    alg: str = msgspec.field(default_factory=lambda: "ECDH-ES")
    enc: str = msgspec.field(default_factory=lambda: "A256GCM")


class Request(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """One thing that a task waits for."""

    request_id: str
    kind: Kind = "text"
    prompt: str = ""
    # Whether nobody else is to see the answer.
    sensitive: bool = False
    # One of which is the answer.
    choices: list[str] = []
    # What a form has to fit, or what a tool's result does.
    schema: Json = None
    # The tool, and what it is called with.
    name: str = ""
    args: Json = None
    # When it is given up (RFC 3339), if it is.
    due: str = ""
    # Why what was said before is no answer.
    problem: str = ""
    # Of a credential: what it is encrypted to.
    handoff: Handoff | None = None
    # Whether it is answered by its id; else by the next thing that is said.
    is_declared: bool = msgspec.field(name="~", default=True)

    def part(self) -> Part:
        """Return it as a part of a message."""
        if self.kind == "tool":
            data = {"id": self.request_id, "name": self.name, "args": self.args}
            more = {"schema": self.schema, "due": self.due}
            data |= {name: item for name, item in more.items() if item}
            return Part(data=data, media_type=TOOL_USE)
        data = cast("dict[str, Any]", msgspec.to_builtins(self))
        return Part(data=data | {"kind": self.kind}, media_type=INPUT_REQUEST)

    def answered(self, result: Any) -> list[Part]:
        """Return the parts of a message that answers it."""
        if not self.is_declared and isinstance(result, str):
            # Its agent may know nothing of ids.
            return [Part(text=result)]
        answer = Part(data={"toolUseId": self.request_id, "result": result}, media_type=TOOL_RESULT)
        # A credential is encrypted: there is nothing to read.
        is_text = isinstance(result, str) and self.kind != "credential"
        return [Part(text=result), answer] if is_text else [answer]

    def failed(self, error: str) -> list[Part]:
        """Return the parts of a message that says why there is no answer."""
        data = {"toolUseId": self.request_id, "error": error}
        return [Part(data=data, media_type=TOOL_RESULT)]


def request_id(task_id: TaskId, turn: int, index: int) -> str:
    """Return the id of a question: the same one whenever the code that asks it runs again."""
    place = f"{task_id}\n{turn}\n{index}"
    return "q-" + hashlib.blake2b(place.encode(), digest_size=_ID_BYTES).hexdigest()


def asking(requests: Sequence[Request], prompts: Sequence[list[Part]]) -> list[Part]:
    """Return the parts of a message that puts requests: what a person reads, then the data."""
    said = [part for prompt in prompts for part in prompt]
    return [*said, *(request.part() for request in requests)]


def first_of(requests: Sequence[Request]) -> Metadata:
    """Return the metadata of a message that puts requests."""
    first = requests[0]
    told = {"prompt": first.prompt, "sensitive": first.sensitive, "requestId": first.request_id}
    metadata: Metadata = {FIRST: told}
    if any(request.sensitive for request in requests):
        metadata["sensitive"] = True
    return metadata


def open_requests(status: TaskStatus) -> list[Request]:
    """Return what a task waits for, in order; empty where it does not wait."""
    if not status.state.is_interrupted or status.message is None:
        return []
    message = status.message
    found = [request for part in message.parts if (request := _request(part)) is not None]
    if found:
        return found
    given: Any = message.metadata.get(FIRST) or message.extra.get("inputRequest")
    told: dict[str, Any] = cast("dict[str, Any]", given) if isinstance(given, dict) else {}
    named, prompt = told.get("requestId"), told.get("prompt")
    is_declared = isinstance(named, str) and bool(named)
    is_auth = status.state is TaskState.AUTH_REQUIRED
    return [
        Request(
            request_id=cast(str, named) if is_declared else message.message_id,
            kind="authorization" if is_auth else "text",
            prompt=prompt if isinstance(prompt, str) else message.text,
            sensitive=True in (told.get("sensitive"), message.metadata.get("sensitive")),
            is_declared=is_declared,
        )
    ]


def asked_in(parts: Sequence[Part]) -> list[str]:
    """Return the ids of the requests that parts put."""
    return [found.request_id for part in parts if (found := _request(part)) is not None]


def _request(part: Part) -> Request | None:
    data = _object(part)
    if part.media_type == TOOL_USE:
        named = {"requestId": data.get("id"), "kind": "tool"}
        data = {name: item for name, item in data.items() if name != "id"} | named
    elif part.media_type != INPUT_REQUEST:
        return None
    try:
        return msgspec.convert(data, Request)
    except msgspec.ValidationError:
        # Of another kind than we know: a text that answers is all there is.
        return None


def _object(part: Part) -> dict[str, Any]:
    data: Any = part.data
    return cast("dict[str, Any]", data) if isinstance(data, dict) else {}


class _Input(msgspec.Struct, frozen=True, rename="camel"):
    """An answer as the R system spells it."""

    input_id: str
    value: Any


_Inputs = Annotated[list[_Input], msgspec.Meta(max_length=MAX_INPUTS)]


class Reply(msgspec.Struct, frozen=True):
    """What a message says to one request."""

    request_id: str
    result: Json = None
    error: str = ""


def replies(message: Message) -> list[Reply]:
    """Return what a message says to requests that it names."""
    return [reply for part in message.parts for reply in _replies_in(part)]


def _replies_in(part: Part) -> list[Reply]:
    data = _object(part)
    named = data.get("toolUseId")
    if isinstance(named, str) and ("result" in data or "error" in data):
        error: Any = data.get("error") if "result" not in data else ""
        told = error if isinstance(error, str) else _told(error)
        return [Reply(named, data.get("result"), told)]
    if INPUTS not in data:
        return []
    try:
        inputs = msgspec.convert(data[INPUTS], _Inputs)
    except msgspec.ValidationError:
        # Data of the caller's own, which happens to be called so, or too many.
        return []
    return [Reply(one.input_id, one.value) for one in inputs]


def _told(error: Any) -> str:
    if isinstance(error, dict) and isinstance(
        said := cast("dict[str, Any]", error).get("message"), str
    ):
        return said
    return "it failed" if error is None else msgspec.json.encode(error).decode()


def reply_to(message: Message, request_id: str) -> Reply:
    """Return what a message says to a request: by its id, else by what it says at all."""
    said = replies(message)
    for reply in said:
        if reply.request_id == request_id:
            return reply
    if len(said) == 1:
        # By an id that is not ours, such as that of a message which put it again.
        return said[0]
    return Reply(request_id, _value(message))


def _value(message: Message) -> Any:
    values = [part.data for part in message.parts if part.data is not UNSET]
    return message.text or (values[0] if values else "")


def narrowed(message: Message, request_id: str) -> Message:
    """Return what a message says to one request, where it answers several: the other answers may
    be secrets, and are for whoever asked for them."""
    said = names(message)
    if len(said) < 2 or request_id not in said:
        return message
    parts: list[Part] = []
    for part in message.parts:
        found = [reply for reply in _replies_in(part) if reply.request_id == request_id]
        if found and INPUTS in _object(part):
            inputs = [{"inputId": one.request_id, "value": one.result} for one in found]
            part = msgspec.structs.replace(part, data={INPUTS: inputs})
        if found:
            parts.append(part)
    return msgspec.structs.replace(message, parts=parts)


def as_answer(message: Message, reply: Reply) -> Message:
    """Return a message that has what it says to a request as its text, and as its data where that
    is no text. The words around a result are for whoever reads along: they are not the answer."""
    if reply.error or reply.request_id not in names(message):
        return message
    result = plain(reply.result)
    if isinstance(result, str):
        said = [Part(text=result)]
    else:
        said = [Part(text=msgspec.json.encode(result).decode()), Part(data=result)]
    return msgspec.structs.replace(message, parts=[*said, *beside(message)])


def beside(message: Message) -> list[Part]:
    """Return what a message that answers brings besides answers and words, such as files."""
    return [
        part for part in message.parts if not isinstance(part.text, str) and not _replies_in(part)
    ]


def plain(result: Any) -> Any:
    """Return a result without the object around it that clients of R put it in."""
    if not isinstance(result, dict):
        return result
    members = cast("dict[str, Any]", result)
    return members["value"] if members.keys() == {"value"} else members


def names(message: Message) -> Sequence[str]:
    """Return the ids of the requests that a message answers."""
    return [reply.request_id for reply in replies(message)]
