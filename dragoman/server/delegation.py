"""Having other agents do something, as steps of a task.

A call is a durable step: code that runs again gets the recorded answer, or goes on waiting for the
task that is under way there. How one is made is in `call`, with whose clients in `delegates`, and
what is left of the task's budget in `spending`.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Unpack

import msgspec

from dragoman.client.answer import Answer
from dragoman.client.client import Client
from dragoman.client.content import Content
from dragoman.client.stream import Shown
from dragoman.engine.worker import Worker
from dragoman.errors import BudgetExceeded, CallFailed, InsufficientCredits, TaskFailed
from dragoman.model.events import Delegated, StepKind, StepRecorded
from dragoman.model.identity import MessageId
from dragoman.model.message import Message, Role
from dragoman.model.record import encode
from dragoman.model.requests import open_requests
from dragoman.model.task import TaskState
from dragoman.server.budget import CallOptions, Delegation
from dragoman.server.call import Call, asked_limit, depth, given_to
from dragoman.server.delegates import Ref, name_of
from dragoman.server.results import decode_failure, is_given_up
from dragoman.server.spending import Spending
from dragoman.server.spots import Place, Spot
from dragoman.telemetry.watching import Step

if TYPE_CHECKING:
    from dragoman.server.turn import Turn

_WAITS = "The agent waits for more."
_NOTHING = Message(MessageId(""), Role.AGENT, [])


class Calls:
    """The calls of one turn, and what they may cost."""

    def __init__(self, turn: "Turn", worker: Worker, delegation: Delegation) -> None:
        self._turn = turn
        self._worker = worker
        self._delegates = delegation.delegates
        self._depth = delegation.budget.depth
        self._spending = Spending(delegation.budget, worker.clock)
        self._begun = 0
        # Tasks that wait for an answer: nobody follows them meanwhile.
        self._resting: dict[str, tuple[Ref, Delegated]] = {}
        seen: set[tuple[str, str]] = set()
        for (given_in, _), one in worker.replay.children.items():
            # What earlier turns of the task did is on the same budget.
            if given_in != worker.replay.turn:
                task = one.url, one.task_id
                self._spending.recall(one, is_leg=task in seen)
                seen.add(task)

    async def call(self, agent: Ref, content: Content, **more: Unpack[CallOptions]) -> Answer:
        """Have an agent do something; return its answer."""
        relay = more.pop("relay", True)
        spot = self._spot()
        answer = await self._answer(agent, content, more, spot)
        while relay and answer.task is not None and answer.task.status.state.is_interrupted:
            status = answer.task.status
            said = status.message
            reply = await self._turn.hand_on(
                said.parts if said is not None else _WAITS,
                spot.next_place(),
                open_requests(status),
                auth=status.state is TaskState.AUTH_REQUIRED,
            )
            more["task_id"] = answer.task_id
            answer = await self._answer(agent, reply.parts, more, spot)
        return answer

    def withdraw(self) -> None:
        """Have tasks canceled that wait for an answer which will not come."""
        resting, self._resting = self._resting, {}
        for agent, given in resting.values():
            self._delegates.soon(self._delegates.cancel(agent, given))

    def _spot(self) -> Spot:
        self._begun += 1
        return Spot(self._begun)

    async def _answer(self, agent: Ref, content: Content, more: CallOptions, spot: Spot) -> Answer:
        async with contextlib.aclosing(self._step(agent, content, more, spot)) as events:
            async for event in events:
                if isinstance(event, Answer):
                    return event
        raise AssertionError("a step ends with its answer")

    async def follow(
        self, agent: Ref, content: Content, **more: Unpack[CallOptions]
    ) -> AsyncGenerator[Shown]:
        """Yield what an agent does."""
        more.pop("relay", None)
        async with contextlib.aclosing(self._step(agent, content, more, self._spot())) as events:
            async for event in events:
                if not isinstance(event, Answer):
                    yield event

    async def _step(
        self, agent: Ref, content: Content, more: CallOptions, spot: Spot
    ) -> AsyncGenerator[Shown | Answer]:
        """Yield the events of a call, and in the end its answer: one step of the turn."""
        place = None if spot.index is None else spot.next_place()
        label = spot.label(name_of(agent))
        index, done = await self._turn.recall_step(label, place)
        if spot.index is None:
            spot.index = index
        leg_of = more.get("task_id", "")
        leg_of = leg_of if leg_of in self._resting else ""
        asked = asked_limit(content, more) if self._spending.has_money_limit else None
        one = Place(agent, index, label, leg_of, asked)
        with self._delegates.client(agent) as client:
            if done is not None and not _is_left(done):
                answer = await self._recalled(one, done, client)
                yield answer.task if answer.task is not None else answer.message or _NOTHING
                yield answer
                return
            step = Step(label)
            call: Call | None = None
            try:
                most = self._allowed(one, done)
                call = Call(
                    self._worker, self._delegates, client, agent, content, index, more, most
                )
                async with contextlib.aclosing(self._followed(one, call)) as events:
                    async for event in events:
                        yield event
                cost = await self._cost(call, most)
            except BaseException as error:
                seconds = step.end(error)
                spent = 0.0 if call is None else one.before + seconds
                problem = self._failed(one, call, error, spent)
                await self._turn.fail_step(index, label, problem, seconds, spent)
                if problem is error:
                    raise
                raise problem from error
            finally:
                if call is not None:
                    await call.close()
            assert call is not None, "it was made"
            seconds = step.end()
            spent = one.before + seconds
            self._spending.add_seconds(spent)
            self._note(one, client, call.answer, cost)
            if cost or self._spending.has_time_limit:
                call.spent(spent, cost)
            value = msgspec.Raw(encode(call.answer))
            await self._turn.record_step(index, label, value, seconds, spent)
            yield call.answer

    def _allowed(self, one: Place, left: StepRecorded | None) -> int | None:
        """Return what a call may cost; raises `BudgetExceeded` for one too many, `TaskFailed` for
        one too deep. One that is under way was allowed already."""
        spending, now = self._spending, self._worker.clock.now()
        given = self._given(one)
        is_begun = given is not None or bool(one.leg_of)
        if not is_begun and depth(self._worker) > self._depth:
            raise TaskFailed("Invocation depth limit exceeded.")
        if not is_begun:
            spending.allow(one.who)
        spending.allow_time()
        if left is not None:
            one.before = left.seconds
        elif given is not None and given.at:
            # The other agent worked on while nobody followed.
            one.before = max(0, now - given.at) / 1000
        if not one.leg_of:
            spending.count(one.who, now if given is None else given.at)
        return spending.promise(one.account, one.asked)

    async def _followed(self, one: Place, call: Call) -> AsyncGenerator[Shown]:
        """Yield what the other agent does, for as long as there is time."""
        with self._spending.running(one.before):
            async with contextlib.aclosing(call.events()) as events:
                while True:
                    async with self._spending.waiting():
                        event = await anext(events, None)
                    if event is None:
                        return
                    yield event

    async def _cost(self, call: Call, most: int | None) -> int:
        is_done = call.answer.state is TaskState.COMPLETED
        return await call.cost(most) if is_done and most is not None else 0

    def _note(self, one: Place, client: Client, answer: Answer, cost: int) -> None:
        """Note what a call cost, or that its task waits for an answer."""
        if answer.task is not None and answer.task.status.state.is_interrupted:
            self._spending.keep(one.account, answer.task_id)
            where = given_to(one.agent, client)
            given = Delegated(self._worker.replay.turn, one.index, *where, answer.task_id)
            self._resting[answer.task_id] = one.agent, given
            return
        self._resting.pop(one.leg_of, None)
        self._spending.settle(one.account, cost)

    def _failed(
        self, one: Place, call: Call | None, error: BaseException, spent: float
    ) -> BaseException:
        """Note that a call was refused or failed; return why."""
        if call is None:
            if (resting := self._resting.pop(one.leg_of, None)) is not None:
                # The answer it waits for will not come.
                self._delegates.soon(self._delegates.cancel(*resting))
            return error
        self._spending.add_seconds(spent)
        cost = self._spending.settle(one.account, self._lost(one, error))
        is_over = self._worker.is_cancelled or self._worker.log.is_over
        is_left = isinstance(error, asyncio.CancelledError | GeneratorExit)
        if (cost or self._spending.has_time_limit) and not is_left:
            call.spent(spent, cost)
        if isinstance(error, BudgetExceeded) or (is_left and is_over):
            self._resting.pop(one.leg_of, None)
            call.withdraw()
        if isinstance(error, InsufficientCredits) and "needed" not in error.facts:
            # It is dear to the task, and not to the account that pays.
            return self._spending.no_money() if self._spending.has_money_limit else error
        return error

    def _lost(self, one: Place, error: BaseException) -> int | None:
        """Return what a call cost that failed: nothing, or nobody knows."""
        is_unknown = isinstance(error, CallFailed | asyncio.CancelledError | GeneratorExit)
        return None if is_unknown and self._given(one) is not None else 0

    def _given(self, one: Place) -> Delegated | None:
        return self._worker.replay.children.get((self._worker.replay.turn, one.index))

    async def _recalled(self, one: Place, done: StepRecorded, client: Client) -> Answer:
        """Return the answer of a call that was made before, or raise what it raised."""
        given = self._given(one)
        failure = decode_failure(done.value) if done.kind is StepKind.FAILURE else None
        is_made = failure is None or not isinstance(failure, BudgetExceeded) or done.seconds > 0
        if is_made and not one.leg_of:
            # One that failed was made as well.
            self._spending.count(one.who, 0 if given is None else given.at)
        self._spending.add_seconds(done.seconds)
        if failure is None:
            answer = msgspec.json.decode(done.value, type=Answer)
            self._spending.promise(one.account, one.asked)
            self._note(one, client, answer, 0 if given is None else given.cost)
            return answer
        if isinstance(failure, BudgetExceeded):
            self._resting.pop(one.leg_of, None)
        if is_made:
            self._spending.promise(one.account, one.asked)
            self._spending.settle(one.account, self._lost(one, failure))
        if is_given_up(done):
            # It was cancelled from around it, and will be again.
            await asyncio.get_running_loop().create_future()
        raise failure


def _is_left(done: StepRecorded) -> bool:
    """Tell whether the code stopped following a call: it is shown it again."""
    if done.kind is not StepKind.FAILURE:
        return False
    return isinstance(decode_failure(done.value), GeneratorExit)
