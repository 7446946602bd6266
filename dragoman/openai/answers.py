"""What an agent does, as the answer of an assistant: text as it comes, calls of tools, an end.

Results are the text, those of several artifacts on lines of their own. What the agent says while it
works is progress, and the text only if nothing else comes. A question is the text, whatever was
produced before it, and the end of the answer.
"""

import base64
import contextlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple
from urllib.parse import quote

import msgspec
from msgspec import UNSET

from dragoman.model.artifact import Artifact
from dragoman.model.events import ArtifactUpdate, StatusUpdate
from dragoman.model.message import Message, Part, Role
from dragoman.model.record import TaskReading, encode
from dragoman.model.requests import INPUT_REQUEST, INTERNAL_EVENT, TOOL_USE, Request, open_requests
from dragoman.model.task import Task, TaskState, TaskStatus
from dragoman.openai.errors import ChatError
from dragoman.openai.prompts import call_id
from dragoman.service import Batch, Opening, TaskReply

# A larger picture is named and not shown.
_MAX_SHOWN = 1024 * 1024
_HIDDEN = (INPUT_REQUEST, TOOL_USE, INTERNAL_EVENT)
_ENDS = {
    TaskState.FAILED: (500, "task_failed", "The agent failed."),
    TaskState.REJECTED: (400, "task_rejected", "The agent rejected the task."),
    TaskState.CANCELED: (409, "task_canceled", "The task was canceled."),
}


class TextDelta(NamedTuple):
    """Some more of an answer."""

    kind: Literal["text", "progress"]
    text: str


class ProgramCall(NamedTuple):
    """A tool that the caller's program is to execute."""

    id: str
    name: str
    # As JSON.
    arguments: str


class TokenCount(msgspec.Struct, rename="camel"):
    """Tokens of models that a task used, as far as its agent says."""

    input_tokens: int = 0
    output_tokens: int = 0

    def add(self, message: Message) -> None:
        """Add what a message says of them."""
        for part in message.parts:
            if part.media_type == INTERNAL_EVENT:
                with contextlib.suppress(msgspec.ValidationError):
                    one = msgspec.convert(part.data, TokenCount)
                    self.input_tokens += max(one.input_tokens, 0)
                    self.output_tokens += max(one.output_tokens, 0)

    def __bool__(self) -> bool:
        return self.input_tokens + self.output_tokens > 0


class ChatAnswer:
    """The answer to one prompt, which grows with the events of its task."""

    def __init__(self, tools: Mapping[str, Any], shown: Mapping[str, str] | None = None) -> None:
        """`tools` are those that the caller's program executes; `shown` are the texts of artifacts
        that earlier answers of the same task had."""
        self._tools = tools
        # In pieces: joined for each event, a long stream would cost the square of its length.
        self._shown = {id: [text] for id, text in (shown or {}).items()}
        # Of artifacts that are produced again from their beginning: what was shown of them, and how
        # much of it has come again.
        self._again: dict[str, tuple[str, int]] = {}
        self._artifact = ""
        self._progress = ""
        self._pieces: list[str] = []
        self.task_id = ""
        self.context_id = ""
        self.calls: list[ProgramCall] = []
        # Why there is no answer.
        self.problem: ChatError | None = None
        self.is_done = False
        self.tokens = TokenCount()

    @property
    def text(self) -> str:
        """All text so far."""
        return "".join(self._pieces)

    def take(self, batch: Batch) -> list[TextDelta]:
        """Add what happened; return what that adds to the answer."""
        if isinstance(batch, Message):
            self.context_id, self.is_done = batch.context_id, True
            return self._say(_text(batch.parts))
        if isinstance(batch, Opening):
            return self._open(batch.reply.reading.task)
        found: list[TextDelta] = []
        for recorded in batch:
            event = recorded.event
            if isinstance(event, ArtifactUpdate):
                found += self._produce(event.artifact, append=event.append)
            elif isinstance(event, StatusUpdate):
                if event.status.message is not None:
                    self.tokens.add(event.status.message)
                found += self._rest(event.status)
        return found

    def _open(self, task: Task) -> list[TextDelta]:
        self.task_id, self.context_id = task.id, task.context_id
        for message in _since_last_user(task.history):
            self.tokens.add(message)
        found = [delta for one in task.artifacts for delta in self._produce(one, append=False)]
        return found + self._rest(task.status)

    def _produce(self, artifact: Artifact, *, append: bool) -> list[TextDelta]:
        id, text = artifact.artifact_id, _text(artifact.parts)
        shown = self._shown.setdefault(id, [])
        if append:
            shown.append(text)
            text = self._unseen(id, text)
        else:
            before, _ = self._again.pop(id, ("".join(shown), 0))
            shown[:] = [text]
            if len(text) < len(before) and before.startswith(text):
                # After a crash an agent begins anew, and what was said cannot be taken back.
                self._again[id] = (before, len(text))
                return []
            # The task so far, and not a piece of it.
            text = text.removeprefix(before)
        is_other = id != self._artifact
        if text:
            self._artifact = id
        return self._say(text, on_new_line=is_other)

    def _unseen(self, id: str, text: str) -> str:
        """Return what a further piece of an artifact adds to what was shown of it."""
        if id not in self._again:
            return text
        before, place = self._again.pop(id)
        if len(text) < len(before) - place and before.startswith(text, place):
            self._again[id] = (before, place + len(text))
            return ""
        left = before[place:]
        if text.startswith(left):
            return text[len(left) :]
        # It says something else this time.
        return "\n" + before[:place] + text

    def _rest(self, status: TaskStatus) -> list[TextDelta]:
        said = _text(status.message.parts) if status.message is not None else ""
        if not status.state.is_resting:
            self._progress = said or self._progress
            return [TextDelta("progress", said)] if said else []
        self.is_done = True
        if status.state.is_interrupted:
            return self._ask(status, said)
        if status.state in _ENDS:
            code, word, default = _ENDS[status.state]
            self.problem = ChatError(said or default, status=code, code=word)
            return []
        return self._say(said or self._progress) if not self._pieces else []

    def _ask(self, status: TaskStatus, said: str) -> list[TextDelta]:
        requests = open_requests(status)
        ours = [one for one in requests if one.kind == "tool" and one.name in self._tools]
        self.calls = [
            ProgramCall(
                call_id(self.task_id, one.request_id),
                one.name,
                encode({} if one.args is None else one.args).decode(),
            )
            for one in ours
        ]
        lines = [said, *(_hint(one) for one in requests if one not in ours)]
        question = "\n".join(line for line in lines if line)
        if not question and not ours:
            question = "The agent needs something more from you."
        return self._say(question, on_new_line=True)

    def _say(self, text: str, *, on_new_line: bool = False) -> list[TextDelta]:
        if not text:
            return []
        if on_new_line and self._pieces:
            text = f"\n{text}"
        self._pieces.append(text)
        return [TextDelta("text", text)]


def _since_last_user(history: Sequence[Message]) -> Iterator[Message]:
    """Yield what an agent said since it was last spoken to, the latest first."""
    return itertools.takewhile(lambda one: one.role is Role.AGENT, reversed(history))


def artifact_texts(artifacts: Sequence[Artifact]) -> dict[str, str]:
    """Return the texts of artifacts, as answers show them, by id."""
    return {one.artifact_id: _text(one.parts) for one in artifacts}


def question_of(task: Task) -> str:
    """Return the text by which an answer asked what a task waits for."""
    answer = ChatAnswer({}, artifact_texts(task.artifacts))
    answer.take(Opening(TaskReply(TaskReading(0, task))))
    return answer.text


def _hint(request: Request) -> str:
    """Return what people should know of a request besides its prompt."""
    match request.kind:
        case "choice":
            return f"Choose one of: {', '.join(request.choices)}"
        case "confirmation":
            return "Answer yes or no."
        case "tool":
            arguments = encode({} if request.args is None else request.args).decode()
            return f"The agent asks for the result of {request.name} with {arguments}"
        case "form":
            return f"Answer with JSON of this schema: {encode(request.schema).decode()}"
        case _:
            return ""


def _text(parts: Sequence[Part]) -> str:
    """Return parts as text: data only where there is no text that says the same for people."""
    shown = [part for part in parts if part.media_type not in _HIDDEN]
    texts = [part.text for part in shown if isinstance(part.text, str)]
    pieces = ["".join(texts)] if texts else []
    for part in shown:
        if part.raw is not UNSET or part.url is not UNSET:
            pieces.append(_file(part))
        elif part.data is not UNSET and not texts:
            pieces.append(encode(part.data).decode())
    return "\n".join(piece for piece in pieces if piece)


def _file(part: Part) -> str:
    """Return a file as Markdown: a link, a picture, or a line that names it."""
    name = "".join(sign for sign in part.filename if sign not in "[]()\\\n\r") or "file"
    is_image = part.media_type.startswith("image/")
    mark = "!" if is_image else ""
    if isinstance(part.url, str):
        # What would end the link early is written as the address may have it.
        return f"{mark}[{name}]({quote(part.url, safe=':/?#@!$&*+,;=%~-._')})"
    raw = part.raw if isinstance(part.raw, bytes) else b""
    if is_image and len(raw) <= _MAX_SHOWN:
        kind = quote(part.media_type, safe="/+.-")
        return f"![{name}](data:{kind};base64,{base64.b64encode(raw).decode()})"
    return f"[{name}: {part.type}, {len(raw)} bytes]"
