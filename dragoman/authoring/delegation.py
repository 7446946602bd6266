"""Calls of other agents, as steps of a task.

A call is a durable step: code that runs again gets the recorded answer, or waits on for the task
that is under way there. One call is in `agent_call`, the clients are in `delegates`, and what is
left of the task's budget in `spending`.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Unpack

import msgspec

from dragoman.authoring.agent_call import DelegatedCall, called_agent, cost_limit
from dragoman.authoring.ancestry import check
from dragoman.authoring.asking import Questioner
from dragoman.authoring.budget import CallOptions, Delegation
from dragoman.authoring.delegates import Ref, name_of
from dragoman.authoring.spending import Spending
from dragoman.authoring.step_keys import CallPlace, CallSite
from dragoman.authoring.steps import (
    decode_failure,
    is_given_up,
    recall_step,
    record_failure,
    record_result,
)
from dragoman.client.answer import Answer
from dragoman.client.client import Client
from dragoman.client.content import Content
from dragoman.client.streams.shown_task import Shown
from dragoman.engine.running.worker import Worker
from dragoman.errors import BudgetExceeded, InsufficientCredits, TaskNotFound
from dragoman.model.events import Delegated, StepKind, StepRecorded
from dragoman.model.identity import MessageId
from dragoman.model.message import Message, Role
from dragoman.model.record import encode
from dragoman.model.requests import open_requests
from dragoman.model.task import TaskState
from dragoman.telemetry.observation import StepObservation

_WAITS = "The agent waits for more."
_BEGUN, _ANSWERED = "has begun.", "has answered."
_NOTHING = Message(MessageId(""), Role.AGENT, [])


class Calls:
    """The calls of one turn, and what they may cost."""

    def __init__(self, questioner: Questioner, worker: Worker, delegation: Delegation) -> None:
        self._questioner = questioner
        self._worker = worker
        self._delegates = delegation.delegates
        self._budget = delegation.budget
        self._spending = Spending(delegation.budget, worker.clock)
        self._calls_begun = 0
        # Tasks that wait for an answer: no call follows them meanwhile.
        self._resting: dict[str, tuple[Ref, Delegated]] = {}
        for (given_in, _), one in worker.replay.children.items():
            # Calls of earlier turns count on the same budget.
            if given_in != worker.replay.turn:
                self._spending.recall(one)

    async def call(self, agent: Ref, content: Content, **more: Unpack[CallOptions]) -> Answer:
        """Have an agent do something; return its answer."""
        relay = more.pop("relay", True)
        at = self._next_place()
        answer = await self._answer(agent, content, more, at)
        while relay and answer.task is not None and _waits(answer):
            status = answer.task.status
            message = status.message
            reply = await self._questioner.hand_on(
                message.parts if message is not None else _WAITS,
                at.next_place(),
                open_requests(status),
                auth=status.state is TaskState.AUTH_REQUIRED,
            )
            more["task_id"] = answer.task_id
            answer = await self._answer(agent, reply.parts, more, at)
        return answer

    def withdraw(self) -> None:
        """Cancel tasks that wait for an answer which will not come."""
        resting, self._resting = self._resting, {}
        for agent, given in resting.values():
            self._delegates.in_background(self._delegates.cancel(agent, given))

    def _next_place(self) -> CallPlace:
        self._calls_begun += 1
        return CallPlace(self._calls_begun)

    async def _answer(
        self, agent: Ref, content: Content, more: CallOptions, at: CallPlace
    ) -> Answer:
        async with contextlib.aclosing(self._step(agent, content, more, at)) as events:
            async for event in events:
                if isinstance(event, Answer):
                    return event
        raise AssertionError("a step ends with its answer")

    async def follow(
        self, agent: Ref, content: Content, **more: Unpack[CallOptions]
    ) -> AsyncGenerator[Shown]:
        """Yield what an agent does."""
        more.pop("relay", None)
        async with contextlib.aclosing(
            self._step(agent, content, more, self._next_place())
        ) as events:
            async for event in events:
                if not isinstance(event, Answer):
                    yield event

    async def _step(
        self, agent: Ref, content: Content, more: CallOptions, at: CallPlace
    ) -> AsyncGenerator[Shown | Answer]:
        """Yield the events of a call, and in the end its answer: one step of the turn."""
        place = None if at.index is None else at.next_place()
        label = at.label(name_of(agent))
        index, done = await recall_step(self._worker, label, place)
        if at.index is None:
            at.index = index
        goes_to = more.get("task_id", "")
        max_cost = cost_limit(content, more) if self._spending.has_money_limit else None
        one = CallSite(agent, index, label, goes_to if goes_to in self._resting else "", max_cost)
        if not one.leg_of and self._spending.take_up(goes_to, one.who, name_of(agent)):
            one.earlier = goes_to
        waits = self._delegates.counted_as_waiting(self._worker.log.task_id)
        with waits, self._delegates.client(agent) as client:
            if done is not None and not _is_left(done):
                answer = await self._recalled(one, done, client)
                yield answer.task if answer.task is not None else answer.message or _NOTHING
                yield answer
                return
            step = StepObservation(label)
            call: DelegatedCall | None = None
            try:
                most = self._allowed(one, done, goes_to)
                call = DelegatedCall(
                    self._worker, self._delegates, client, agent, content, index, more, most
                )
                is_announced = call.delegated is not None or not more.get("announce")
                async with contextlib.aclosing(self._followed(one, call)) as events:
                    async for event in events:
                        if not is_announced and call.delegated is not None:
                            is_announced = True
                            await call.announce(_BEGUN)
                        yield event
                cost = await self._cost(call, most)
            except BaseException as error:
                seconds = step.end(error)
                spent = 0.0 if call is None else one.before + seconds
                problem = self._failed(one, call, error, spent)
                await record_failure(self._worker, index, label, problem, seconds, spent)
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
            cost = self._note(one, client, call.answer, cost)
            self._record(call, spent, cost)
            if more.get("announce") and not _waits(call.answer):
                await call.announce(_ANSWERED)
            value = msgspec.Raw(encode(call.answer))
            await record_result(self._worker, index, label, value, seconds, spent)
            yield call.answer

    def _allowed(self, one: CallSite, left: StepRecorded | None, goes_to: str) -> int | None:
        """Return what a call may cost; raises `BudgetExceeded` for one too many, `TaskFailed` for
        one too deep or in a circle. One that is under way was allowed already."""
        spending, now = self._spending, self._worker.clock.now()
        given = self._recorded_child(one)
        is_begun = given is not None or bool(one.leg_of)
        if not is_begun:
            budget, ours = self._budget, self._delegates.waiting
            check(self._worker, ours, goes_to, depth=budget.depth, rounds=budget.rounds)
            spending.allow(one.who)
        spending.allow_time()
        if left is not None:
            one.before = left.seconds
        elif given is not None and given.at:
            # The other agent worked on while no process followed.
            one.before = max(0, now - given.at) / 1000
        if not one.leg_of:
            spending.count(one.who, now if given is None else given.at)
        return spending.promise(one.account, one.max_cost)

    async def _followed(self, one: CallSite, call: DelegatedCall) -> AsyncGenerator[Shown]:
        """Yield what the other agent does, for as long as there is time."""
        with self._spending.running(one.before):
            async with contextlib.aclosing(call.events()) as events:
                while True:
                    async with self._spending.waiting():
                        event = await anext(events, None)
                    if event is None:
                        return
                    yield event

    async def _cost(self, call: DelegatedCall, most: int | None) -> int:
        is_done = call.answer.state is TaskState.COMPLETED
        return await call.cost(most) if is_done and most is not None else 0

    def _note(self, one: CallSite, client: Client, answer: Answer, cost: int) -> int:
        """Note what a call cost, or that its task waits for an answer; return what it may come to
        then."""
        if _waits(answer):
            where = called_agent(one.agent, client)
            given = Delegated(self._worker.replay.turn, one.index, *where, answer.task_id)
            self._resting[answer.task_id] = one.agent, given
            return self._spending.keep(one.account, answer.task_id)
        self._resting.pop(one.leg_of, None)
        return self._spending.settle(one.account, cost)

    def _failed(
        self, one: CallSite, call: DelegatedCall | None, error: BaseException, spent: float
    ) -> BaseException:
        """Note that a call was refused or failed; return why."""
        if call is None:
            given = self._recorded_child(one)
            self._settle(one, 0 if given is None else given.cost)
            if (resting := self._resting.pop(one.leg_of, None)) is not None:
                # The answer that it waits for will not come.
                self._delegates.in_background(self._delegates.cancel(*resting))
            return error
        self._spending.add_seconds(spent)
        is_over = self._worker.is_cancelled or self._worker.log.is_over
        is_left = isinstance(error, asyncio.CancelledError | GeneratorExit)
        cost = self._settle(one, self._lost(one, call, error))
        if not is_over and self._worker.is_running and self._worker.log.failure is None:
            # Else the task has ended, or another process continues it from the log.
            self._record(call, spent, cost)
        if isinstance(error, BudgetExceeded) or (is_left and is_over):
            self._resting.pop(one.leg_of, None)
            call.withdraw()
        if isinstance(error, InsufficientCredits) and "needed" not in error.facts:
            # The task's limit refused it, not the account that pays.
            return self._spending.no_money() if self._spending.has_money_limit else error
        return error

    def _record(self, call: DelegatedCall, spent: float, cost: int) -> None:
        """Record seconds and cost of a call for later turns, if a limit counts them."""
        spending = self._spending
        is_measured = spending.has_money_limit or spending.has_time_limit
        if is_measured or (call.delegated is None and spending.has_limits):
            call.record_spending(spent, cost)

    def _lost(self, one: CallSite, call: DelegatedCall, error: BaseException) -> int | None:
        """Return what a failed call cost: 0, or None if that is unknown."""
        if call.delegated is not None:
            return 0 if isinstance(error, TaskNotFound) else None
        return None if call.is_doubtful(error) and not one.task else 0

    def _settle(self, one: CallSite, cost: int | None) -> int:
        """Settle a call that failed. A task that it was to continue waits as before, with its
        promise."""
        return 0 if one.task and cost == 0 else self._spending.settle(one.account, cost)

    def _recorded_child(self, one: CallSite) -> Delegated | None:
        return self._worker.replay.children.get((self._worker.replay.turn, one.index))

    async def _recalled(self, one: CallSite, done: StepRecorded, client: Client) -> Answer:
        """Return the answer of a call that was made before, or raise what it raised."""
        given = self._recorded_child(one)
        failure = decode_failure(done.value) if done.kind is StepKind.FAILURE else None
        is_made = failure is None or not isinstance(failure, BudgetExceeded) or done.seconds > 0
        if is_made and not one.leg_of:
            # A call that failed was made as well.
            self._spending.count(one.who, 0 if given is None else given.at)
        self._spending.add_seconds(done.seconds)
        cost = 0 if given is None else given.cost
        is_given = is_made or given is not None
        if is_given and not one.task:
            self._spending.set_aside(one.account, cost)
        if failure is None:
            answer = msgspec.json.decode(done.value, type=Answer)
            self._note(one, client, answer, cost)
            return answer
        if isinstance(failure, BudgetExceeded):
            self._resting.pop(one.leg_of, None)
        if is_given:
            self._settle(one, cost)
        if is_given_up(done):
            # The code around it cancelled it, and will again.
            await asyncio.get_running_loop().create_future()
        raise failure


def _waits(answer: Answer) -> bool:
    return answer.state is not None and answer.state.is_interrupted


def _is_left(done: StepRecorded) -> bool:
    """Tell whether the code stopped following a call: then it sees the events again."""
    if done.kind is not StepKind.FAILURE:
        return False
    return isinstance(decode_failure(done.value), GeneratorExit)
