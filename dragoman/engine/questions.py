"""The questions of one task that wait for answers: several may be open at once.

All of them stand in the message of the task's status. An answer names its question, or goes to the
first that takes what is simply said. Each question and each answer is on record, so that code
which runs again waits on where it was.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

from dragoman.engine.replay import UNANSWERED, Put
from dragoman.engine.withholding import asking as discreet
from dragoman.model.events import StatusUpdate, StepKind, StepRecorded
from dragoman.model.identity import Caller, MessageId
from dragoman.model.instant import stamp
from dragoman.model.message import Message, Metadata, Part, agent_message
from dragoman.model.record import Recorded
from dragoman.model.requests import (
    INPUT_REQUEST,
    REQUESTS_URI,
    TOOL_USE,
    Reply,
    Request,
    asked_in,
    asking,
    first_of,
    reply_to,
)
from dragoman.model.task import TaskState, TaskStatus

if TYPE_CHECKING:
    # It has them.
    from dragoman.engine.worker import Plan, Worker

_BARE = ("text", "authorization")


class Given(NamedTuple):
    """A message the code was not given yet: its place among the task's, and who sent it."""

    place: int
    plan: "Plan"
    caller: Caller


class Lock(Protocol):
    """Opens the answer of a question with something that is kept with the question, for the code
    alone, until the answer is there or nobody waits for it."""

    async def load(self) -> None:
        """Get ready; what is done here blocks nobody."""
        ...

    def made(self) -> bytes:
        """Return what is kept, made for one question."""
        ...

    def shown(self, request: Request, kept: bytes) -> Request:
        """Return a request with what its caller has to know of it."""
        ...

    def opened(self, request: Request, kept: bytes, reply: Reply) -> bytes | str:
        """Return what the code is given, or as a text why this is no answer."""
        ...


class Wanted(msgspec.Struct, frozen=True):
    """A question as the code puts it."""

    # How the code spells it.
    name: str
    prompt: list[Part]
    # Without an id, which comes from its place.
    request: Request
    state: TaskState = TaskState.INPUT_REQUIRED
    metadata: Metadata = {}
    # Seconds until it is given up; None: never. And what is said then.
    timeout: float | None = None
    late: str = ""
    # Says why a reply is no answer; empty: it is one.
    problem: Callable[[Reply], str] | None = None
    lock: Lock | None = None
    # Where it stands among the steps; None: it is the next one.
    place: int | None = None


class Answered(NamedTuple):
    """A message that answers, and what it says to the question."""

    message: Message
    reply: Reply
    # That of the question, which the reply may not have named.
    request_id: str
    # What its lock made of it.
    opened: bytes = b""


class Question:
    """A question that the code waits with."""

    def __init__(self, wanted: Wanted, index: int, request_id: str, due: int) -> None:
        self.wanted = wanted
        self.index = index
        self.due = due
        told = stamp(due * 1000) if due else ""
        self.request = msgspec.structs.replace(wanted.request, request_id=request_id, due=told)
        self.arrival: asyncio.Future[None] | None = None
        self.given: Given | None = None
        # With what its answer is opened, and what came of it.
        self.kept = self.opened = b""

    @property
    def is_bare(self) -> bool:
        """Whether its text says all there is to it."""
        return self.request.kind in _BARE and not self.request.problem

    def wake(self) -> None:
        """Have the code look again."""
        if self.arrival is not None and not self.arrival.done():
            self.arrival.set_result(None)


class Questions:
    """What one worker's code waits for."""

    def __init__(self, worker: "Worker", inbox: deque[Given]) -> None:
        self._worker = worker
        self._inbox = inbox
        self._open: dict[int, Question] = {}
        # The status that has them, and whose ids it names.
        self._told: Recorded | None = None
        self._told_ids: list[str] = []
        self._once_told: set[str] = set()

    @property
    def _unfilled(self) -> list[Question]:
        waiting = [index for index, question in self._open.items() if not question.given]
        return [self._open[index] for index in self._worker.replay.oldest_first(waiting)]

    @property
    def are_open(self) -> bool:
        """Whether the code waits for an answer."""
        return any(question.given is None for question in self._open.values())

    def arrived(self) -> None:
        """Look whom a message is for."""
        self._route()
        taken = [question for question in self._open.values() if question.given is not None]
        # If it is for nobody, the first one says again what is waited for.
        for question in taken or self._unfilled[:1]:
            question.wake()

    def interrupt(self) -> None:
        """Free all code that waits; nothing comes any more."""
        for question in self._open.values():
            if question.arrival is not None:
                question.arrival.cancel()

    def drop_late(self) -> None:
        """Let go of answers to questions that nobody waits with: they begin no turn."""
        replay = self._worker.replay
        for given in [*self._inbox]:
            if replay.is_reply(replay.messages[given.place].message):
                self._inbox.remove(given)

    async def ask(self, wanted: Wanted) -> Answered | None:
        """Put a question, unless it was put before, and return its answer; None: nobody answered
        in time. What a caller said before a sensitive question is no answer to it."""
        worker = self._worker
        replay = worker.replay
        index, done = worker.recall(StepKind.ANSWER, wanted.name, wanted.place)
        if done is not None:
            return self._recalled(index, msgspec.json.decode(done.value, type=int))
        is_put = replay.is_asked(index, sensitive=wanted.request.sensitive)
        _, kept = replay.kept(index)
        if wanted.lock is not None:
            await wanted.lock.load()
        if wanted.lock is not None and not kept:
            # Where it is gone, the question is put as another one.
            is_put, kept = False, wanted.lock.made()
            await worker.begun()
        due = replay.due(index)
        if not is_put and wanted.timeout is not None:
            due = worker.clock.now() + round(wanted.timeout * 1000)
        question = Question(wanted, index, replay.request_id(index), due)
        if wanted.lock is not None:
            question.kept = kept
            question.request = wanted.lock.shown(question.request, kept)
        self._open[index] = question
        given: Given | None = None
        try:
            if not is_put:
                if worker.span is not None:
                    worker.span.event(wanted.name)
                self._put(question)
            while (given := await self._answer(question)) is not None:
                problem = self._problem(question, given)
                if not problem:
                    break
                question.request = msgspec.structs.replace(question.request, problem=problem)
                question.given = None
                self._put(question, refused=given.place)
        finally:
            del self._open[index]
            late = question.given
            if late is not None and late is not given and late not in self._inbox:
                # The code gave up when the answer had come: another question may be open to it.
                self._inbox.appendleft(late)
            if question.due:
                self._set_alarm()
        return self._take(question, given)

    def _recalled(self, index: int, place: int) -> Answered | None:
        if place == UNANSWERED:
            return None
        worker = self._worker
        worker.operation = worker.replay.messages[place]
        # The owner is the same, whichever credential was shown.
        scopes = worker.replay.granted(place)
        worker.caller = msgspec.structs.replace(worker.caller, scopes=scopes)
        _, opened = worker.replay.kept(index)
        return _answered(worker.message, worker.replay.request_id(index), opened)

    def _problem(self, question: Question, given: Given) -> str:
        """Return why a message is no answer; one that declines is."""
        message = self._worker.replay.messages[given.place].message
        reply = reply_to(message, question.request.request_id)
        check, lock = question.wanted.problem, question.wanted.lock
        if lock is not None and not reply.error:
            found = lock.opened(question.request, question.kept, reply)
            if isinstance(found, str):
                return found
            question.opened = found
        return "" if check is None or reply.error else check(reply)

    async def _answer(self, question: Question) -> Given | None:
        """Wait for what answers a question; None: its time is over."""
        while True:
            self._route()
            for other in self._open.values():
                # What fitted none of several may fit the one that is left.
                if other is not question and other.given is not None:
                    other.wake()
            if question.given is not None:
                return question.given
            self._tell()
            question.arrival = asyncio.get_running_loop().create_future()
            if not await self._wait(question.arrival, question.due):
                return None

    async def _wait(self, arrival: asyncio.Future[None], due: int) -> bool:
        if not due:
            await arrival
            return True
        alarm = asyncio.get_running_loop().create_task(_until(self._worker, due))
        try:
            await asyncio.wait((arrival, alarm), return_when=asyncio.FIRST_COMPLETED)
        finally:
            alarm.cancel()
        if arrival.cancelled():
            raise asyncio.CancelledError
        return arrival.done()

    def _take(self, question: Question, given: Given | None) -> Answered | None:
        worker, name = self._worker, question.wanted.name
        place = UNANSWERED if given is None else given.place
        answer = msgspec.Raw(msgspec.json.encode(place))
        if question.kept:
            # What it was opened with is of no more use.
            seq, _ = worker.replay.kept(question.index)
            worker.log.withhold(seq, question.opened)
            worker.replay.keep(question.index, seq, question.opened)
        worker.note(StepRecorded(StepKind.ANSWER, question.index, name, answer))
        if given is not None:
            _, worker.plan, worker.caller = given
            worker.operation = worker.replay.messages[place]
        draft = worker.log.draft
        if self.are_open:
            self._tell()
        elif draft is not None and draft.state.is_interrupted:
            # The answer was there before the question, or never came.
            late = question.wanted.late if given is None else ""
            worker.status(TaskState.WORKING, [Part(text=late)] if late else None)
        if given is None:
            return None
        return _answered(worker.message, question.request.request_id, question.opened)

    def _route(self) -> None:
        """Give what waits to the questions it answers."""
        replay = self._worker.replay
        for given in [*self._inbox]:
            message = replay.messages[given.place].message
            if replay.is_reply(message):
                named = replay.unanswered(message)
                for question in self._takers(given):
                    if question.request.request_id in named:
                        question.given = given
                named -= {one.request.request_id for one in self._open.values() if one.given}
                if not named:
                    self._inbox.remove(given)
                continue
            takers = self._takers(given)
            said = [one for one in takers if one.request.kind != "tool"]
            # A caller that knows no tools says what comes of the only one.
            if taker := (said[0] if said else takers[0] if len(takers) == 1 else None):
                taker.given = given
                self._inbox.remove(given)

    def _takers(self, given: Given) -> list[Question]:
        replay = self._worker.replay
        return [one for one in self._unfilled if replay.may_answer(one.index, given.place)]

    # What is said

    def _put(self, question: Question, refused: int = UNANSWERED) -> None:
        """Record a question, and say it with all others that are open."""
        worker = self._worker
        worker.decide()
        theirs = asked_in(question.wanted.prompt)
        put = Put(question.request.sensitive, question.due, refused, theirs)
        name = question.wanted.name
        # Put again it has the same lock.
        kept = question.kept if refused == UNANSWERED else b""
        event = StepRecorded(StepKind.ASK, question.index, name, put.encoded(), withheld=bool(kept))
        now = time.time_ns() // 1000
        update = self._status(now)
        # Of one moment they are one status: a reader who stops at the first sees all of them.
        is_restated = self._told is not None and worker.log.restate(self._told, update)
        recorded = worker.note(event, kept)
        if kept:
            worker.replay.keep(question.index, recorded.seq, kept)
        if not is_restated:
            self._told = worker.emit(update, now // 1000)
        self._mark()
        if question.due:
            self._set_alarm()

    def _tell(self) -> None:
        """Say what is waited for, unless that is what was said last: another question was
        answered, or the task went on beside them."""
        draft = self._worker.log.draft
        questions = self._unfilled
        ids = [question.request.request_id for question in questions]
        is_said = draft is not None and draft.state is _state(questions)
        # Code that runs again has said it before.
        if not is_said or (self._told is not None and ids != self._told_ids):
            now = time.time_ns() // 1000
            self._told = self._worker.emit(self._status(now), now // 1000)
            self._mark()

    def _mark(self) -> None:
        self._told_ids = [question.request.request_id for question in self._unfilled]
        self._once_told |= {*self._told_ids}

    def _status(self, now: int) -> StatusUpdate:
        log = self._worker.log
        questions = self._unfilled
        first = questions[0]
        own: Metadata = {}
        for question in questions:
            own |= question.wanted.metadata
        if any(question.request.sensitive for question in questions):
            own = discreet(own)
        message = agent_message([], context_id=log.context_id, task_id=log.task_id)
        if len(questions) == 1 and first.is_bare:
            changes: dict[str, Any] = {"parts": first.wanted.prompt}
            own_id = first.request.request_id
            if own_id in self._once_told:
                own |= first_of([first.request])
            else:
                # So that it may be answered by the id of its message.
                changes["message_id"] = MessageId(own_id)
        else:
            requests = [question.request for question in questions]
            prompts = [_prompt(question) for question in questions]
            own |= first_of(requests)
            changes = {"parts": asking(requests, prompts), "extensions": [REQUESTS_URI]}
        message = msgspec.structs.replace(message, **changes, metadata=own)
        status = TaskStatus(_state(questions), message, stamp(now))
        return StatusUpdate(log.task_id, log.context_id, status)

    def beside(
        self, parts: list[Part], metadata: Metadata | None
    ) -> tuple[list[Part], Metadata | None]:
        """Return what the agent says while it waits, with what it waits for where that has a
        shape."""
        questions = self._unfilled
        if not questions or (len(questions) == 1 and questions[0].is_bare):
            return parts, metadata
        requests = [question.request for question in questions]
        return [*parts, *(one.part() for one in requests)], (metadata or {}) | first_of(requests)

    def _set_alarm(self) -> None:
        """Have someone look at the task when the first question is to be given up."""
        times = [one.due for one in self._open.values() if one.due]
        if self._worker.deadline:
            times.append(self._worker.deadline)
        self._worker.log.set_alarm(min(times, default=0))


def _answered(message: Message, request_id: str, opened: bytes = b"") -> Answered:
    return Answered(message, reply_to(message, request_id), request_id, opened)


def _prompt(question: Question) -> list[Part]:
    """Return what a person reads. The data of another agent's request, which is handed on, is left
    out: it would be answered by an id that is not ours."""
    theirs = (INPUT_REQUEST, TOOL_USE)
    said = [part for part in question.wanted.prompt if part.media_type not in theirs]
    problem = question.request.problem
    return [Part(text=problem), *said] if problem else said


def _state(questions: list[Question]) -> TaskState:
    """Return the state of a task that waits for some answers: that of the latest question."""
    return questions[-1].wanted.state


async def _until(worker: "Worker", due: int) -> None:
    await worker.clock.wait_until(due)
