"""The open questions of one task: which there are, which message answers which, how they are shown.

Several may be open at once. All of them stand in the message of the task's status. An answer names
its question, or goes to the oldest that takes free text. Putting questions and waiting for answers
is in `asking`.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from dragoman.engine.log import TaskLog
from dragoman.engine.running.replay import Replay
from dragoman.engine.running.withholding import mark_sensitive
from dragoman.model.clock import stamp_ms
from dragoman.model.events import StatusUpdate
from dragoman.model.identity import MessageId
from dragoman.model.message import Message, Metadata, Part, agent_message
from dragoman.model.record import Recorded
from dragoman.model.requests import (
    INPUT_REQUEST,
    REQUESTS_URI,
    TOOL_USE,
    Request,
    RequestReply,
    asking,
    first_of,
)
from dragoman.model.task import TaskState, TaskStatus

_TEXT_KINDS = ("text", "authorization")


class Lock(Protocol):
    """Decrypts the answer of a question with a key that is stored beside the question, for the code
    alone, until the answer is there or the question is given up."""

    async def load(self) -> None:
        """Load what the lock needs, without blocking the loop."""
        ...

    def new_key(self) -> bytes:
        """Return a new key for one question."""
        ...

    def with_public_key(self, request: Request, key: bytes) -> Request:
        """Return a request with what its caller has to know of the key."""
        ...

    def opened(self, request: Request, key: bytes, reply: RequestReply) -> bytes | str:
        """Return the decrypted answer, or as a text why this is no answer."""
        ...


class QuestionWanted(msgspec.Struct, frozen=True):
    """A question as the code puts it."""

    # The name of its step.
    name: str
    prompt: list[Part]
    # Without an id, which comes from its place.
    request: Request
    state: TaskState = TaskState.INPUT_REQUIRED
    metadata: Metadata = {}
    # Seconds until it is given up; None: never. And the status message then.
    timeout: float | None = None
    late: str = ""
    # Says why a reply is no answer; empty: it is one.
    problem: Callable[[RequestReply], str] | None = None
    lock: Lock | None = None
    # Its place among the steps; None: it is the next one.
    place: int | None = None


class QuestionAnswer(msgspec.Struct, frozen=True):
    """A message that answers, and what it says to the question."""

    message: Message
    reply: RequestReply
    # Of the question, which the reply may not have named.
    request_id: str
    # What its lock decrypted.
    opened: bytes = b""


class Question:
    """A question that the code waits with."""

    def __init__(self, wanted: QuestionWanted, index: int, request_id: str, due: int) -> None:
        self.wanted = wanted
        self.index = index
        self.due = due
        due_text = stamp_ms(due) if due else ""
        self.request = msgspec.structs.replace(wanted.request, request_id=request_id, due=due_text)
        self.arrival: asyncio.Future[None] | None = None
        # The place of the message that answers it.
        self.answer: int | None = None
        # The key of its lock, and the decrypted answer.
        self.lock_key = self.opened = b""

    @property
    def is_text(self) -> bool:
        """Whether its text says all there is to it."""
        return self.request.kind in _TEXT_KINDS and not self.request.problem

    def wake(self) -> None:
        """Have the code look again."""
        if self.arrival is not None and not self.arrival.done():
            self.arrival.set_result(None)


class Questions:
    """The questions that one task's code waits with."""

    def __init__(self, log: TaskLog, replay: Replay, inbox: list[int]) -> None:
        """`inbox` are the places of the messages that the code was not given yet."""
        self._log = log
        self._replay = replay
        self.inbox = inbox
        self.open: dict[int, Question] = {}
        # The latest status that shows them, and the ids in it.
        self.shown: Recorded | None = None
        self._shown_ids: list[str] = []
        self._once_shown: set[str] = set()

    @property
    def _unanswered(self) -> list[Question]:
        waiting = [index for index, one in self.open.items() if one.answer is None]
        return [self.open[index] for index in self._replay.oldest_first(waiting)]

    @property
    def are_open(self) -> bool:
        """Whether the code waits for an answer."""
        return any(question.answer is None for question in self.open.values())

    @property
    def first_due(self) -> int:
        """When the first question is given up, in milliseconds; 0: never."""
        return min((one.due for one in self.open.values() if one.due), default=0)

    def arrived(self) -> None:
        """Give a message that came to the questions it answers."""
        self.route()
        answered = [question for question in self.open.values() if question.answer is not None]
        # If it answers none, the first one repeats what is waited for.
        for question in answered or self._unanswered[:1]:
            question.wake()

    def interrupt(self) -> None:
        """Free all code that waits: no answer will come."""
        for question in self.open.values():
            if question.arrival is not None:
                question.arrival.cancel()

    def drop_late(self) -> None:
        """Drop answers to questions that the code no longer waits with: they begin no turn."""
        for place in [*self.inbox]:
            if self._replay.is_reply(self._replay.messages[place].message):
                self.inbox.remove(place)

    def route(self) -> None:
        """Give the messages that wait to the questions they answer."""
        replay = self._replay
        for place in [*self.inbox]:
            message = replay.messages[place].message
            candidates = [one for one in self._unanswered if replay.may_answer(one.index, place)]
            if replay.is_reply(message):
                ids = replay.unanswered(message)
                for question in candidates:
                    if question.request.request_id in ids:
                        question.answer = place
                ids -= {
                    one.request.request_id for one in self.open.values() if one.answer is not None
                }
                if not ids:
                    self.inbox.remove(place)
                continue
            spoken = [one for one in candidates if one.request.kind != "tool"]
            # A caller that knows no tools answers the only one in plain text.
            if spoken or len(candidates) == 1:
                (spoken or candidates)[0].answer = place
                self.inbox.remove(place)

    # How they are shown

    @property
    def is_shown(self) -> bool:
        """Whether the task's status shows what is waited for."""
        draft = self._log.draft
        questions = self._unanswered
        ids = [question.request.request_id for question in questions]
        is_current = draft is not None and draft.state is _state(questions)
        # Code that runs again has shown its questions before.
        return is_current and (self.shown is None or ids == self._shown_ids)

    def mark_shown(self) -> None:
        """Note that the latest status shows all open questions."""
        self._shown_ids = [question.request.request_id for question in self._unanswered]
        self._once_shown |= {*self._shown_ids}

    def status(self, now: int) -> StatusUpdate:
        """Return the status that shows all open questions, as of a time in milliseconds."""
        log = self._log
        questions = self._unanswered
        first = questions[0]
        metadata: Metadata = {}
        for question in questions:
            metadata |= question.wanted.metadata
        if any(question.request.sensitive for question in questions):
            metadata = mark_sensitive(metadata)
        message = agent_message([], context_id=log.context_id, task_id=log.task_id)
        if len(questions) == 1 and first.is_text:
            changes: dict[str, Any] = {"parts": first.wanted.prompt}
            request_id = first.request.request_id
            if request_id in self._once_shown:
                metadata |= first_of([first.request])
            else:
                # So that it may be answered by the id of its message.
                changes["message_id"] = MessageId(request_id)
        else:
            requests = [question.request for question in questions]
            prompts = [_prompt(question) for question in questions]
            metadata |= first_of(requests)
            changes = {"parts": asking(requests, prompts), "extensions": [REQUESTS_URI]}
        message = msgspec.structs.replace(message, **changes, metadata=metadata)
        status = TaskStatus(_state(questions), message, stamp_ms(now))
        return StatusUpdate(log.task_id, log.context_id, status)

    def beside(
        self, parts: list[Part], metadata: Metadata | None
    ) -> tuple[list[Part], Metadata | None]:
        """Return what the agent says while it waits, together with the structured questions."""
        questions = self._unanswered
        if not questions or (len(questions) == 1 and questions[0].is_text):
            return parts, metadata
        requests = [question.request for question in questions]
        return [*parts, *(one.part() for one in requests)], (metadata or {}) | first_of(requests)


def _prompt(question: Question) -> list[Part]:
    """Return what a person reads. The data of another agent's request, which is handed on, is left
    out: it would be answered by an id that is not ours."""
    foreign = (INPUT_REQUEST, TOOL_USE)
    parts = [part for part in question.wanted.prompt if part.media_type not in foreign]
    problem = question.request.problem
    return [Part(text=problem), *parts] if problem else parts


def _state(questions: list[Question]) -> TaskState:
    """Return the state of a task that waits for answers: that of the latest question."""
    return questions[-1].wanted.state
