"""What a task's code has done so far, as the log tells it: which message it is at, which steps are
done, what waits.

Code that runs again gets the results of its finished steps instead of doing them twice. A step is
found by its place in the turn and must have the name it had: code that changed in between is not
guessed at.
"""

import json
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from dragoman.engine.log import READ_AT_ONCE
from dragoman.engine.running.withholding import decode_withheld
from dragoman.model.events import (
    AttemptStarted,
    CancelRequested,
    DeadlineSet,
    Delegated,
    Event,
    Forwarded,
    MessageAdded,
    ScopesGranted,
    StepKind,
    StepRecorded,
    TraceJoined,
    TurnBegan,
)
from dragoman.model.message import Message
from dragoman.model.operations import SendMessage
from dragoman.model.requests import names, request_id
from dragoman.model.task import Task
from dragoman.stores.interface import Store
from dragoman.telemetry import tracing

# Events without the code's progress, by their first bytes in the store.
_SKIPPED = (b'{"statusUpdate"', b'{"artifactUpdate"')


# In place of the answering message: the question was not answered in time.
UNANSWERED = -1
# The place of questions that another agent put, which have none among the steps of the code.
ELSEWHERE = -1
# From here on places are below those of other steps, so many for each.
_BELOW = 1 << 20


def below(index: int, number: int) -> int:
    """Return the place of something that belongs to the step at a place: the same one whatever
    happens beside it."""
    return (index + 1) * _BELOW + number


def _top(index: int) -> int:
    """Return the place of the step that a place belongs to."""
    return index if index < _BELOW else index // _BELOW - 1


class QuestionRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a question was put, where that is more than yes or no to its being sensitive."""

    sensitive: bool = False
    # When it is given up, in milliseconds; 0: never.
    due: int = 0
    # Which message was no answer, where it is put again for that.
    refused: int = UNANSWERED
    # The ids another agent has for it, where it is handed on: it may be answered by those too.
    theirs: list[str] = []

    def encoded(self) -> msgspec.Raw:
        """Return it as it is recorded."""
        if self.due or self.refused != UNANSWERED or self.theirs:
            return msgspec.Raw(msgspec.json.encode(self))
        return msgspec.Raw(b"true" if self.sensitive else b"null")


_decode_put = msgspec.json.Decoder(bool | QuestionRecord | None).decode


class CodeChanged(Exception):
    """The code does not do what the log says it did."""


class RecalledStep(NamedTuple):
    """The place of a step, and the step if it was done already."""

    place: int
    done: StepRecorded | None


# A struct, because one is made for each task.
class Replay(msgspec.Struct, eq=False):
    """One task's progress. Fed with the events of a log, or with what happens now."""

    # A struct would print its fields, and with them credentials and messages.
    __repr__ = object.__repr__

    # The messages of the caller, in order: at first the one that the task begins with.
    messages: list[SendMessage]
    # Which message the present turn began with.
    turn: int = 0
    # Whether messages that come are to be withheld. From the first sensitive question to the end
    # of the task: an answer may be sent twice, and arrive while the code goes on.
    is_discreet: bool = False
    has_withheld: bool = False
    _next: int = 0
    # The last place of a step or question.
    _furthest: int = -1
    attempt: int = 1
    # Attempts since the code last made progress: the deaths it is charged with, and one.
    tries: int = 1
    # How many processes died with it under way since then, alone or beside others.
    deaths: int = 0
    # The worker in which it runs alone, and the one in which it has its turn as a suspect.
    alone_in: int = 0
    turn_in: int = 0
    # How often it had a turn, and how often a process died in one though others ran beside.
    turns: int = 0
    times_caught: int = 0
    is_cancelled: bool = False
    deadline: int = 0
    # Where a gateway sent it last.
    forwarded: Forwarded | None = None
    # The trace it belongs to; None: one of its own.
    trace: tracing.Trace | None = None
    # Which of them the code was not given yet.
    _waiting: list[int] = []
    _steps: dict[int, StepRecorded] = {}
    _question_names: dict[int, str] = {}
    # Which of the questions are sensitive, each with the first message that may answer it.
    _sensitive: dict[int, int] = {}
    # When questions are given up, and the ids of all that were ever put.
    _due: dict[int, int] = {}
    _requests: set[str] = set()
    # Secrets stored beside questions for the code alone, each with the position of its event.
    _secrets: dict[int, tuple[int, bytes]] = {}
    # Those that other agents have for questions which are handed on.
    _theirs: dict[int, frozenset[str]] = {}
    # Steps that raised, as they would be recorded.
    _failed: dict[int, StepRecorded] = {}
    # What other agents were given, by the turn and the place of the step that did.
    children: dict[tuple[int, int], Delegated] = {}
    # The scopes granted to the senders of its messages, by message.
    _scopes: dict[int, frozenset[str]] = {}

    @property
    def began(self) -> SendMessage:
        """What the task began with."""
        return self.messages[0]

    @property
    def waiting(self) -> list[tuple[int, SendMessage]]:
        """Messages that the code was not given yet."""
        return [(place, self.messages[place]) for place in self._waiting]

    def apply(self, event: Event) -> None:
        """Fold one more event."""
        # The most frequent ones first: each case before the right one costs a comparison.
        match event:
            case StepRecorded():
                self._record(event)
            case Forwarded():
                self.forwarded = event
                self._progress()
            case MessageAdded():
                # It rested in between, or goes on with another message.
                self.alone_in = self.turn_in = 0
                further = SendMessage(message=event.message, metadata=event.metadata)
                self.add(further, scopes=frozenset(event.scopes))
            case TurnBegan():
                self.begin_turn(event.message)
            case AttemptStarted():
                self.attempt = event.attempt
                self.tries += event.counts
                self.deaths += event.counts or event.suspected
                self.alone_in, self.turn_in = event.alone_in, event.turn_in
                self.turns += event.turn_in != 0
                self.times_caught += event.caught
            case CancelRequested():
                self.is_cancelled = True
            case DeadlineSet():
                self.deadline = event.at
            case TraceJoined():
                self.trace = tracing.parse(event.parent, event.state)
            case ScopesGranted():
                self._scopes[0] = frozenset(event.scopes)
            case Delegated():
                before = self.children.get((event.turn, event.index))
                if before is None or before.task_id != event.task_id:
                    # Another event about the same task is no progress of the code.
                    self._progress()
                self.children[event.turn, event.index] = event
            case _:
                pass

    def add(
        self,
        operation: SendMessage,
        *,
        withheld: bool = False,
        scopes: frozenset[str] = frozenset(),
    ) -> int:
        """Take in a further message; return its place."""
        self.messages.append(operation)
        place = len(self.messages) - 1
        self._waiting.append(place)
        self.has_withheld |= withheld
        if scopes:
            self._scopes[place] = scopes
        return place

    def scopes_granted(self, place: int) -> frozenset[str]:
        """Return what the credential of a message's sender grants."""
        return self._scopes.get(place, frozenset())

    def begin_turn(self, message: int) -> None:
        """Begin afresh with a message."""
        self.turn = message
        self._waiting = [place for place in self._waiting if place != message]
        self._steps, self._question_names, self._failed = {}, {}, {}
        self._progress()
        self._sensitive.clear()
        self._due.clear()
        self._theirs.clear()
        self._secrets.clear()
        self._next, self._furthest = 0, -1

    def _progress(self) -> None:
        """Note that the code made progress."""
        self.tries, self.deaths = 1, 0
        self.turns = self.times_caught = 0

    @property
    def is_suspect(self) -> bool:
        """Whether its code may be what ends processes."""
        return self.deaths > 1

    def _record(self, event: StepRecorded) -> None:
        self._progress()
        self._furthest = max(self._furthest, _top(event.index))
        if event.kind is StepKind.ASK:
            self._ask(event)
            return
        self._steps[event.index] = event
        if event.kind is StepKind.ANSWER:
            self._take(msgspec.json.decode(event.value, type=int))

    def _ask(self, event: StepRecorded) -> None:
        value = _decode_put(event.value)
        is_record = isinstance(value, QuestionRecord)
        put = value if is_record else QuestionRecord(sensitive=value is True)
        self._question_names[event.index] = event.name
        self._requests |= {self.request_id(event.index), *put.theirs}
        if put.theirs:
            self._theirs[event.index] = frozenset(put.theirs)
        if put.due:
            self._due[event.index] = put.due
        if put.sensitive:
            self._sensitive[event.index] = len(self.messages)
            self.is_discreet = True
        if put.refused != UNANSWERED:
            self._take(put.refused)

    def _take(self, answer: int) -> None:
        """Note that a message was given to the code, unless it answers more questions."""
        if answer in self._waiting and self.unanswered(self.messages[answer].message):
            return
        self._waiting = [place for place in self._waiting if place != answer]

    # For the code that runs

    def recall(self, kind: StepKind, name: str, place: int | None = None) -> RecalledStep:
        """Return the place of the next step, and the step if it was done already.

        A step that failed and is tried again has its old place; one that is below another has the
        place it says. Raises `CodeChanged` if something else was done there."""
        for index, failure in self._failed.items():
            if kind is StepKind.STEP and failure.name == name:
                del self._failed[index]
                return RecalledStep(index, None)
        if place is None:
            index, self._next = self._next, self._next + 1
        else:
            index = place
        done = self._steps.get(index)
        was = done.kind if done is not None else kind
        if was is StepKind.FAILURE:
            was = StepKind.STEP
        if done is not None and (was is not kind or done.name != name):
            raise CodeChanged(self._difference(index, was, done.name, kind, name))
        question = self._question_names.get(index)
        if (
            done is None
            and question is not None
            and (kind is not StepKind.ANSWER or question != name)
        ):
            raise CodeChanged(self._difference(index, StepKind.ANSWER, question, kind, name))
        return RecalledStep(index, done)

    def fail(self, failure: StepRecorded) -> None:
        """Note that a step raised. It is recorded only if the code goes on with something else, and
        not if the code tries again or the process dies first."""
        if failure.index not in self._steps:
            self._failed[failure.index] = failure

    def failures(self, kind: StepKind, name: str) -> list[StepRecorded]:
        """Return the failed steps that the code does not try again next: they are recorded, and
        fail the same way if the code runs again."""
        given_up = [
            failure
            for failure in self._failed.values()
            if kind is not StepKind.STEP or failure.name != name
        ]
        for failure in given_up:
            del self._failed[failure.index]
        return given_up

    @property
    def is_behind(self) -> bool:
        """Whether the code has yet to come to what it did before."""
        return self._next <= self._furthest

    def is_asked(self, index: int, *, sensitive: bool = False) -> bool:
        """Tell whether a question was put already, and as a sensitive one if it is one."""
        return index in self._question_names and (not sensitive or index in self._sensitive)

    def may_answer(self, index: int, place: int) -> bool:
        """Tell whether a message may answer a question: one that is sensitive only if it came after
        it was put."""
        return place >= self._sensitive.get(index, 0)

    def set_secret(self, index: int, seq: int, body: bytes) -> None:
        """Note what is stored beside a question for the code alone."""
        self._secrets[index] = seq, body
        self.has_withheld = True

    def secret(self, index: int) -> tuple[int, bytes]:
        """Return what is stored beside a question, and the position of its event."""
        return self._secrets.get(index, (0, b""))

    # Questions by their ids

    def request_id(self, index: int) -> str:
        """Return the id of the question at a place of the present turn."""
        return request_id(self.began.message.task_id, self.turn, index)

    def due(self, index: int) -> int:
        """Return when a question is given up; 0: never."""
        return self._due.get(index, 0)

    def is_reply(self, message: Message) -> bool:
        """Tell whether a message answers questions of this task by their ids."""
        return any(name in self._requests for name in names(message))

    def unanswered(self, message: Message) -> set[str]:
        """Return the ids of the open questions that a message answers."""
        named = set(names(message))
        if not named & self._requests:
            return set()
        return {
            found
            for index in self._question_names
            if index not in self._steps
            and ((found := self.request_id(index)) in named or named & self._theirs_of(index))
        }

    def _theirs_of(self, index: int) -> frozenset[str]:
        return self._theirs.get(index, frozenset())

    def oldest_first(self, indexes: Iterable[int]) -> list[int]:
        """Return the places of questions in the order in which they were put."""
        put = {index: number for number, index in enumerate(self._question_names)}
        return sorted(indexes, key=lambda index: (put.get(index, len(put)), index))

    def check_end(self) -> None:
        """Raise `CodeChanged` if the code ended without doing again what it had done."""
        if not self.is_behind:
            return
        left = sorted(
            index for index in (*self._steps, *self._question_names) if _top(index) >= self._next
        )
        if left:
            done = self._steps.get(left[0])
            was = (
                _spelled_step(done.kind, done.name)
                if done is not None
                else self._question_names[left[0]]
            )
            raise CodeChanged(
                "The agent's code changed while the task was under way: step "
                f"{_top(left[0]) + 1} was {was} and is not reached any more."
            )

    def is_asleep(self, now: int) -> bool:
        """Tell whether the last thing the code did was to go to sleep, and it is not yet time."""
        if not self._steps:
            return False
        last = self._steps[max(self._steps, key=_top)]
        return last.kind is StepKind.SLEEP and msgspec.json.decode(last.value, type=int) > now

    @staticmethod
    def _difference(index: int, was: StepKind, old: str, now: StepKind, new: str) -> str:
        return (
            f"The agent's code changed while the task was under way: step {_top(index) + 1} was "
            f"{_spelled_step(was, old)} and is {_spelled_step(now, new)}."
        )


def _spelled_step(kind: StepKind, name: str) -> str:
    """Return how the code spells a step; a question has no name of its own."""
    return name if kind is StepKind.ANSWER else f"{kind.value} {json.dumps(name)}"


async def read_replay(store: Store, number: int, ended_at: int | None = None) -> Replay | None:
    """Return a task's progress from its log. If the log was seen to end at `ended_at`, a batch that
    reaches it is the last one."""
    replay: Replay | None = None
    answers: dict[int, bytes] | None = None
    after = 0
    while batch := await store.read(number, after=after, limit=READ_AT_ONCE, artifacts=False):
        for recorded in batch:
            if replay is None:
                task = recorded.event
                assert isinstance(task, Task), "a log begins with its task"
                replay = Replay([_began(task)])
            elif not recorded.body.startswith(_SKIPPED):
                event = recorded.event
                is_apart = isinstance(event, MessageAdded | StepRecorded) and event.withheld
                if is_apart and answers is None:
                    answers = await store.withheld(number)
                body = answers.get(recorded.seq) if is_apart and answers is not None else None
                if is_apart and isinstance(event, MessageAdded):
                    answer = decode_withheld(event, body)
                    replay.add(answer, withheld=True, scopes=frozenset(event.scopes))
                    continue
                replay.apply(event)
                if is_apart and isinstance(event, StepRecorded):
                    replay.set_secret(event.index, recorded.seq, body or b"")
        after = batch[-1].seq
        if ended_at is not None and after >= ended_at:
            break
    return replay


def _began(task: Task) -> SendMessage:
    message: Message = task.history[0]
    return SendMessage(message=message, metadata=task.metadata)
