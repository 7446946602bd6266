"""What a task waits for, as data: questions to the user, and tools that the caller executes.

The message of the task's status contains the requests. A plain question is its text; structured
requests (choices, a form, a tool), and several at once, are data parts under one extension, and are
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
# The types of data parts: a question, a tool call, and an answer to either.
INPUT_REQUEST = "application/vnd.dragoman.input-request+json"
TOOL_USE = "application/vnd.a2a.tool-use+json"
TOOL_RESULT = "application/vnd.a2a.tool-result+json"
# In a request's metadata: the caller asks for the internal events of its task, which are data parts
# of this type.
INTERNAL_REQUESTED = "internalEvents"
INTERNAL_EVENT = "application/vnd.dragoman.internal-event+json"
# The member of the metadata for dialects that have a field of their own for a question.
FIRST = "rx:inputRequest"

Kind = Literal["text", "choice", "confirmation", "form", "tool", "authorization", "credential"]
AuthType = Literal["oauth2", "api-key", "pat", "password"]
_ID_BYTES = 12
# The member of a data part with several answers, `{inputId, value}` each, and how many it may have.
INPUTS = "inputs"
MAX_INPUTS = 20


class Handoff(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """How a credential is handed over: as a compact JWE, encrypted to a key of the request. It
    stays the same when the request is forwarded."""

    # What the JWE has to name, besides its times.
    auth_id: str
    context_id: str
    auth_type: AuthType
    # The public key, as a JWK.
    key: dict[str, Any]
    # Until when (RFC 3339).
    due: str
    agent_id: str = ""
    # Where the user signs in; the resulting code is the credential.
    authorization_url: str = ""
    alg: str = msgspec.field(default_factory=lambda: "ECDH-ES")
    enc: str = msgspec.field(default_factory=lambda: "A256GCM")


class Request(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """One thing that a task waits for."""

    request_id: str
    kind: Kind = "text"
    prompt: str = ""
    # Whether the answer is secret.
    sensitive: bool = False
    # One of them is the answer.
    choices: list[str] = []
    # The schema of a form, or of a tool's result.
    schema: Json = None
    # The tool, and its arguments.
    name: str = ""
    args: Json = None
    # When it expires (RFC 3339); empty: never.
    due: str = ""
    # Why an earlier answer was not accepted.
    problem: str = ""
    # Of a credential: how it is handed over.
    handoff: Handoff | None = None
    # Whether it is answered by its id; else the next message answers it.
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
            # The agent may not know ids.
            return [Part(text=result)]
        answer = Part(data={"toolUseId": self.request_id, "result": result}, media_type=TOOL_RESULT)
        # A credential is encrypted, not text.
        is_text = isinstance(result, str) and self.kind != "credential"
        return [Part(text=result), answer] if is_text else [answer]

    def failed(self, error: str) -> list[Part]:
        """Return the parts of a message that says why there is no answer."""
        data = {"toolUseId": self.request_id, "error": error}
        return [Part(data=data, media_type=TOOL_RESULT)]


def request_id(task_id: TaskId, turn: int, index: int) -> str:
    """Return the id of a question: the same if the code that asks it runs again."""
    position = f"{task_id}\n{turn}\n{index}"
    return "q-" + hashlib.blake2b(position.encode(), digest_size=_ID_BYTES).hexdigest()


def asking(requests: Sequence[Request], prompts: Sequence[list[Part]]) -> list[Part]:
    """Return the parts of a message with requests: the prompts, then the data."""
    shown = [part for prompt in prompts for part in prompt]
    return [*shown, *(request.part() for request in requests)]


def first_of(requests: Sequence[Request]) -> Metadata:
    """Return the metadata of a message with requests."""
    first = requests[0]
    facts = {"prompt": first.prompt, "sensitive": first.sensitive, "requestId": first.request_id}
    metadata: Metadata = {FIRST: facts}
    if any(request.sensitive for request in requests):
        metadata["sensitive"] = True
    return metadata


def open_requests(status: TaskStatus) -> list[Request]:
    """Return the open requests of a task, in order; empty if it does not wait."""
    if not status.state.is_interrupted or status.message is None:
        return []
    message = status.message
    found = [request for part in message.parts if (request := _request(part)) is not None]
    if found:
        return found
    given: Any = message.metadata.get(FIRST) or message.extra.get("inputRequest")
    facts: dict[str, Any] = cast("dict[str, Any]", given) if isinstance(given, dict) else {}
    id, prompt = facts.get("requestId"), facts.get("prompt")
    is_declared = isinstance(id, str) and bool(id)
    is_auth = status.state is TaskState.AUTH_REQUIRED
    return [
        Request(
            request_id=cast(str, id) if is_declared else message.message_id,
            kind="authorization" if is_auth else "text",
            prompt=prompt if isinstance(prompt, str) else message.text,
            sensitive=True in (facts.get("sensitive"), message.metadata.get("sensitive")),
            is_declared=is_declared,
        )
    ]


def asked_in(parts: Sequence[Part]) -> list[str]:
    """Return the ids of the requests in parts."""
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
        # An unknown kind: it can only be answered by a text.
        return None


def _object(part: Part) -> dict[str, Any]:
    data: Any = part.data
    return cast("dict[str, Any]", data) if isinstance(data, dict) else {}


class _Input(msgspec.Struct, frozen=True, rename="camel"):
    """An answer as the R system spells it."""

    input_id: str
    value: Any


_Inputs = Annotated[list[_Input], msgspec.Meta(max_length=MAX_INPUTS)]


class RequestReply(msgspec.Struct, frozen=True):
    """The answer of a message to one request."""

    request_id: str
    result: Json = None
    error: str = ""


def replies(message: Message) -> list[RequestReply]:
    """Return the answers of a message to requests that it names."""
    return [reply for part in message.parts for reply in _replies_in(part)]


def _replies_in(part: Part) -> list[RequestReply]:
    data = _object(part)
    named = data.get("toolUseId")
    if isinstance(named, str) and ("result" in data or "error" in data):
        error: Any = data.get("error") if "result" not in data else ""
        text = error if isinstance(error, str) else _error_text(error)
        return [RequestReply(named, data.get("result"), text)]
    if INPUTS not in data:
        return []
    try:
        inputs = msgspec.convert(data[INPUTS], _Inputs)
    except msgspec.ValidationError:
        # Other data under the same name, or too many answers.
        return []
    return [RequestReply(one.input_id, one.value) for one in inputs]


def _error_text(error: Any) -> str:
    if isinstance(error, dict) and isinstance(
        message := cast("dict[str, Any]", error).get("message"), str
    ):
        return message
    return "it failed" if error is None else msgspec.json.encode(error).decode()


def reply_to(message: Message, request_id: str) -> RequestReply:
    """Return the answer of a message to a request: by its id, else by its content."""
    found = replies(message)
    for reply in found:
        if reply.request_id == request_id:
            return reply
    if len(found) == 1:
        # Under another id, such as that of a message that repeated the request.
        return found[0]
    return RequestReply(request_id, _value(message))


def _value(message: Message) -> Any:
    values = [part.data for part in message.parts if part.data is not UNSET]
    return message.text or (values[0] if values else "")


def narrowed(message: Message, request_id: str) -> Message:
    """Return a message with its answer to one request only: the other answers may be secrets, and
    belong to other requests."""
    answered = names(message)
    if len(answered) < 2 or request_id not in answered:
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


def as_answer(message: Message, reply: RequestReply) -> Message:
    """Return a message with its answer to a request as its text, and as its data if that is not a
    text. Other text in the message is for people: it is not the answer."""
    if reply.error or reply.request_id not in names(message):
        return message
    result = plain(reply.result)
    if isinstance(result, str):
        answer = [Part(text=result)]
    else:
        answer = [Part(text=msgspec.json.encode(result).decode()), Part(data=result)]
    return msgspec.structs.replace(message, parts=[*answer, *beside(message)])


def beside(message: Message) -> list[Part]:
    """Return the parts of a message that are neither answers nor text, such as files."""
    return [
        part for part in message.parts if not isinstance(part.text, str) and not _replies_in(part)
    ]


def plain(result: Any) -> Any:
    """Return a result without the object that clients of R wrap it in."""
    if not isinstance(result, dict):
        return result
    members = cast("dict[str, Any]", result)
    return members["value"] if members.keys() == {"value"} else members


def names(message: Message) -> Sequence[str]:
    """Return the ids of the requests that a message answers."""
    return [reply.request_id for reply in replies(message)]
