"""Puts a question of the code to its caller and waits for the answer.

Each question and each answer is a step on record, so that code which runs again waits where it
was.
"""

import asyncio

import msgspec

from dragoman.engine.running.questions import Question, QuestionAnswer, QuestionWanted
from dragoman.engine.running.replay import UNANSWERED, QuestionRecord
from dragoman.engine.running.worker import Worker
from dragoman.model.events import StepKind, StepRecorded
from dragoman.model.message import Message, Part
from dragoman.model.requests import asked_in, reply_to
from dragoman.model.task import TaskState


async def ask(worker: Worker, wanted: QuestionWanted) -> QuestionAnswer | None:
    """Put a question, unless it was put before, and return its answer; None: there was none in
    time. A message that came before a sensitive question does not answer it."""
    replay = worker.replay
    index, done = worker.recall(StepKind.ANSWER, wanted.name, wanted.place)
    if done is not None:
        return _recalled(worker, index, msgspec.json.decode(done.value, type=int))
    is_put = replay.is_asked(index, sensitive=wanted.request.sensitive)
    _, lock_key = replay.secret(index)
    if wanted.lock is not None:
        await wanted.lock.load()
    if wanted.lock is not None and not lock_key:
        # A question whose key is lost is put anew.
        is_put, lock_key = False, wanted.lock.new_key()
        await worker.wait_until_stored()
    due = replay.due(index)
    if not is_put and wanted.timeout is not None:
        due = worker.clock.now() + round(wanted.timeout * 1000)
    question = Question(wanted, index, replay.request_id(index), due)
    if wanted.lock is not None:
        question.lock_key = lock_key
        question.request = wanted.lock.with_public_key(question.request, lock_key)
    questions = worker.questions
    questions.open[index] = question
    place: int | None = None
    try:
        if not is_put:
            if worker.span is not None:
                worker.span.event(wanted.name)
            _record_question(worker, question)
        while (place := await _answer(worker, question)) is not None:
            problem = _problem(worker, question, place)
            if not problem:
                break
            question.request = msgspec.structs.replace(question.request, problem=problem)
            question.answer = None
            _record_question(worker, question, refused=place)
    finally:
        del questions.open[index]
        late = question.answer
        if late is not None and late != place and late not in questions.inbox:
            # The code gave up after the answer had come: another question may take it.
            questions.inbox.insert(0, late)
        if question.due:
            _set_alarm(worker)
    return _take(worker, question, place)


def _recalled(worker: Worker, index: int, place: int) -> QuestionAnswer | None:
    """Return the answer of an earlier run of the code."""
    if place == UNANSWERED:
        return None
    worker.operation = worker.replay.messages[place]
    # The owner is the same, whichever credential was shown.
    scopes = worker.replay.scopes_granted(place)
    worker.caller = msgspec.structs.replace(worker.caller, scopes=scopes)
    _, opened = worker.replay.secret(index)
    return _answered(worker.message, worker.replay.request_id(index), opened)


def _problem(worker: Worker, question: Question, place: int) -> str:
    """Return why a message is no answer; one that declines is."""
    message = worker.replay.messages[place].message
    reply = reply_to(message, question.request.request_id)
    check, lock = question.wanted.problem, question.wanted.lock
    if lock is not None and not reply.error:
        opened = lock.opened(question.request, question.lock_key, reply)
        if isinstance(opened, str):
            return opened
        question.opened = opened
    return "" if check is None or reply.error else check(reply)


async def _answer(worker: Worker, question: Question) -> int | None:
    """Wait for the message that answers a question; None: its time is over."""
    questions = worker.questions
    while True:
        questions.route()
        for other in questions.open.values():
            # A message that answered none of several questions may answer the one that is left.
            if other is not question and other.answer is not None:
                other.wake()
        if question.answer is not None:
            return question.answer
        _show(worker)
        question.arrival = asyncio.get_running_loop().create_future()
        if not await _wait(worker, question.arrival, question.due):
            return None


async def _wait(worker: Worker, arrival: asyncio.Future[None], due: int) -> bool:
    if not due:
        await arrival
        return True
    alarm = asyncio.ensure_future(worker.clock.wait_until(due))
    try:
        await asyncio.wait((arrival, alarm), return_when=asyncio.FIRST_COMPLETED)
    finally:
        alarm.cancel()
    if arrival.cancelled():
        raise asyncio.CancelledError
    return arrival.done()


def _take(worker: Worker, question: Question, place: int | None) -> QuestionAnswer | None:
    """Record the answer of a question, or that there was none, and let the code go on with it."""
    answer = UNANSWERED if place is None else place
    if question.lock_key:
        # The key is of no more use: the decrypted answer takes its place.
        seq, _ = worker.replay.secret(question.index)
        worker.log.withhold(seq, question.opened)
        worker.replay.set_secret(question.index, seq, question.opened)
    value = msgspec.Raw(msgspec.json.encode(answer))
    index, name, at = question.index, question.wanted.name, worker.log.now()
    worker.note(StepRecorded(StepKind.ANSWER, index, name, value, at=at))
    if place is not None:
        worker.take(place)
    draft = worker.log.draft
    if worker.questions.are_open:
        _show(worker)
    elif draft is not None and draft.state.is_interrupted:
        # The answer was there before the question, or never came.
        late = question.wanted.late if place is None else ""
        worker.status(TaskState.WORKING, [Part(text=late)] if late else None)
    if place is None:
        return None
    return _answered(worker.message, question.request.request_id, question.opened)


def _record_question(worker: Worker, question: Question, refused: int = UNANSWERED) -> None:
    """Record a question, and show it with all others that are open."""
    worker.decide()
    questions = worker.questions
    foreign_ids = asked_in(question.wanted.prompt)
    record = QuestionRecord(question.request.sensitive, question.due, refused, foreign_ids)
    # A question that is put again keeps its key.
    lock_key = question.lock_key if refused == UNANSWERED else b""
    now = worker.log.now()
    event = StepRecorded(
        StepKind.ASK,
        question.index,
        question.wanted.name,
        record.encoded(),
        withheld=bool(lock_key),
        at=now,
    )
    update = questions.status(now)
    # Questions of one moment share one status: a reader that stops at the first sees all of them.
    is_restated = questions.shown is not None and worker.log.restate(questions.shown, update)
    recorded = worker.note(event, lock_key)
    if lock_key:
        worker.replay.set_secret(question.index, recorded.seq, lock_key)
    if not is_restated:
        questions.shown = worker.emit(update, now)
    questions.mark_shown()
    if question.due:
        _set_alarm(worker)


def _show(worker: Worker) -> None:
    """Show what is waited for, unless the task's status does: another question was answered, or
    the code went on beside them."""
    questions = worker.questions
    if not questions.is_shown:
        now = worker.log.now()
        questions.shown = worker.emit(questions.status(now), now)
        questions.mark_shown()


def _set_alarm(worker: Worker) -> None:
    """Have a sweep look at the task when its first question is given up."""
    times = [at for at in (worker.questions.first_due, worker.deadline) if at]
    worker.log.set_alarm(min(times, default=0))


def _answered(message: Message, request_id: str, opened: bytes) -> QuestionAnswer:
    return QuestionAnswer(message, reply_to(message, request_id), request_id, opened)
