"""Having another agent do something, as one step of a task.

A call is a durable step: it is sent once, under an id that is the same if the code runs again, and
what the other agent calls its task stands in the log as soon as it is known. Code that runs again
gets the recorded answer, or goes on waiting for the task that is under way there.
"""

import asyncio
import contextlib
import hashlib
import logging
import math
import time
from collections.abc import AsyncGenerator, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Unpack

import msgspec

from dragoman.client.answer import Answer
from dragoman.client.client import Client
from dragoman.client.content import Content, message_of
from dragoman.client.stream import Shown, Stream
from dragoman.engine.replay import below
from dragoman.engine.worker import Worker
from dragoman.errors import (
    A2AError,
    BudgetExceeded,
    ConfigError,
    DeliveryUnknown,
    Overloaded,
    TaskFailed,
    TimedOut,
    Unreachable,
)
from dragoman.model.card import ONCE_URI, AgentCard
from dragoman.model.events import Delegated, StepKind, StepRecorded
from dragoman.model.identity import MessageId
from dragoman.model.instant import stamp
from dragoman.model.message import Message, Metadata, Role
from dragoman.model.record import encode
from dragoman.model.requests import open_requests
from dragoman.model.task import TaskState
from dragoman.server.budget import CallOptions, Delegation
from dragoman.server.results import decode_failure
from dragoman.telemetry.watching import Step

if TYPE_CHECKING:
    from dragoman.server.turn import Turn

logger = logging.getLogger("dragoman")

# What goes along with a call: how many agents it passed, and when it has to have ended.
DEPTH = "depth"
DEADLINE = "dragoman/deadline"
# Seconds another agent has to hear that a task is canceled.
CANCEL_WITHIN = 5.0
# Seconds another agent may be out of reach, and between two looks for it.
PATIENCE = 120.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 5.0
_WAITS = "The agent waits for more."
_NOTHING = Message(MessageId(""), Role.AGENT, [])

Ref = str | AgentCard | Client


class Delegates:
    """The clients of one agent's code, kept open for as long as it is served."""

    def __init__(self) -> None:
        # By address; of a card, by all it says: names are not for one agent alone.
        self._clients: dict[str | bytes, Client] = {}
        self._beside: set[asyncio.Task[None]] = set()

    def client(self, ref: Ref) -> tuple[str, Client]:
        """Return who is meant, and the client to call it with."""
        if isinstance(ref, Client):
            return ref.reference, ref
        is_card = isinstance(ref, AgentCard)
        key = encode(ref) if is_card else ref
        found = self._clients.get(key)
        if found is None:
            found = self._clients[key] = Client(ref)
        return ref.name if is_card else ref, found

    def soon(self, deed: Coroutine[Any, Any, None]) -> None:
        """Do something that nobody waits for."""
        task = asyncio.get_running_loop().create_task(deed)
        self._beside.add(task)
        task.add_done_callback(self._beside.discard)

    def withdraw(self, given: Sequence[Delegated]) -> None:
        """Have tasks canceled that agents were given by code that is gone."""
        for one in given:
            client = self.client(one.url)[1]
            self.soon(cancel(client, one))

    async def close(self) -> None:
        """Have what is done beside end, and close all clients."""
        if self._beside:
            await asyncio.wait(self._beside, timeout=CANCEL_WITHIN)
        for task in self._beside:
            task.cancel()
        clients, self._clients = self._clients, {}
        for client in clients.values():
            await client.close()


class Calls:
    """The calls of one turn, and what they may cost."""

    def __init__(self, turn: "Turn", worker: Worker, delegation: Delegation) -> None:
        self._turn = turn
        self._worker = worker
        self._delegates = delegation.delegates
        self._budget = delegation.budget
        self._begun = 0
        self._made = 0
        self._agents: set[str] = set()
        self._last_at = -math.inf
        self._spent = 0.0
        # Tasks that wait for an answer: nobody follows them meanwhile.
        self._resting: dict[str, tuple[Client, Delegated]] = {}
        for (given_in, _), one in worker.replay.children.items():
            # What earlier turns of the task did is on the same budget.
            if given_in != worker.replay.turn:
                self._made += 1
                self._agents.add(one.agent)

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
                auth=status.state is TaskState.AUTH_REQUIRED,
                sensitive=any(request.sensitive for request in open_requests(status)),
            )
            more["task_id"] = answer.task_id
            answer = await self._answer(agent, reply.parts, more, spot)
        return answer

    def withdraw(self) -> None:
        """Have tasks canceled that wait for an answer which will not come."""
        resting, self._resting = self._resting, {}
        for client, given in resting.values():
            self._delegates.soon(cancel(client, given))

    def _settle(self, client: Client, agent: Ref, index: int, answer: Answer) -> None:
        """Note whether a task waits for an answer."""
        if answer.task is None:
            return
        self._resting.pop(answer.task_id, None)
        if answer.task.status.state.is_interrupted:
            turn = self._worker.replay.turn
            given = _given(turn, index, agent, client, answer.task_id)
            self._resting[answer.task_id] = client, given

    def _spot(self) -> "_Spot":
        self._begun += 1
        return _Spot(self._begun)

    async def _answer(
        self, agent: Ref, content: Content, more: CallOptions, spot: "_Spot"
    ) -> Answer:
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
        self, agent: Ref, content: Content, more: CallOptions, spot: "_Spot"
    ) -> AsyncGenerator[Shown | Answer]:
        """Yield the events of a call, and in the end its answer: one step of the turn."""
        name, client = self._delegates.client(agent)
        place = None if spot.index is None else spot.next_place()
        label = spot.label(name)
        index, done = await self._turn.recall_step(label, place)
        if spot.index is None:
            spot.index = index
        if done is not None:
            answer = self._recalled(done, name)
            self._settle(client, agent, index, answer)
            yield answer.task if answer.task is not None else answer.message or _NOTHING
            yield answer
            return
        step = Step(label)
        try:
            self._allow(name)
            call = Call(self._worker, self._delegates, client, agent, content, index, more)
            async with contextlib.aclosing(call.events()) as events:
                async for event in events:
                    yield event
            value = msgspec.Raw(encode(call.answer))
            self._settle(client, agent, index, call.answer)
        except BaseException as error:
            seconds = step.end(error)
            self._spent += seconds
            await self._turn.fail_step(index, label, error, seconds, seconds)
            raise
        seconds = step.end()
        self._spent += seconds
        await self._turn.record_step(index, label, value, seconds, seconds)
        yield call.answer

    def _recalled(self, done: StepRecorded, name: str) -> Answer:
        failure = decode_failure(done.value) if done.kind is StepKind.FAILURE else None
        if not isinstance(failure, BudgetExceeded):
            # One that failed was made as well.
            self._count(name)
        self._spent += done.seconds
        if failure is not None:
            raise failure
        return msgspec.json.decode(done.value, type=Answer)

    def _allow(self, name: str) -> None:
        """Raise `BudgetExceeded` for a call too many, `TaskFailed` for one too deep."""
        budget = self._budget
        if _depth(self._worker) > budget.depth:
            raise TaskFailed("Invocation depth limit exceeded.")
        if budget.calls is not None and self._made >= budget.calls:
            raise BudgetExceeded(
                f"The task may make {budget.calls} calls", reason="INVOCATION_LIMIT"
            )
        is_new = name not in self._agents
        if budget.agents is not None and is_new and len(self._agents) >= budget.agents:
            raise BudgetExceeded(
                f"The task may call {budget.agents} agents", reason="UNIQUE_AGENT_LIMIT"
            )
        if asyncio.get_running_loop().time() - self._last_at < budget.cooldown:
            raise BudgetExceeded(
                f"There have to be {budget.cooldown:g} s between two calls", reason="COOLDOWN"
            )
        if budget.seconds is not None and self._spent >= budget.seconds:
            raise BudgetExceeded(
                f"The task may spend {budget.seconds:g} s on calls", reason="TIME_LIMIT"
            )
        self._count(name)

    def _count(self, name: str) -> None:
        self._made += 1
        self._agents.add(name)
        self._last_at = asyncio.get_running_loop().time()


class _Spot:
    """Where a call stands in its turn, and what comes of it: what is asked back and answered has
    places below its own, because calls side by side get there in any order."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._below = 0
        # Its own place, once it has one.
        self.index: int | None = None

    def next_place(self) -> int:
        """Return the next place below."""
        assert self.index is not None, "what comes of a call comes after it"
        self._below += 1
        return below(self.index, self._below)

    def label(self, name: str) -> str:
        """Return what the step is called. Numbered: of two calls of one agent side by side, each is
        a step of its own."""
        number = f"{self._number}.{self._below}" if self._below else f"{self._number}"
        return f"call {number} {name}"


class Call:
    """One call of another agent."""

    def __init__(
        self,
        worker: Worker,
        delegates: Delegates,
        client: Client,
        agent: Ref,
        content: Content,
        index: int,
        more: CallOptions,
    ) -> None:
        self._worker = worker
        self._delegates = delegates
        self._client = client
        self._agent = agent
        self._index = index
        self._accept = more.get("accept", ())
        own = f"{worker.log.task_id}\n{worker.replay.turn}\n{index}"
        message = message_of(
            content,
            task_id=more.get("task_id", ""),
            context_id=more.get("context_id", ""),
            message_id=hashlib.blake2b(own.encode(), digest_size=16).hexdigest(),
        )
        references = [*message.reference_task_ids, worker.log.task_id]
        self._message = msgspec.structs.replace(message, reference_task_ids=references)
        self._metadata = _onward(worker, more.get("metadata", {}))
        self._known = worker.replay.children.get((worker.replay.turn, index))
        self.answer = Answer()

    async def events(self) -> AsyncGenerator[Shown]:
        """Yield what the other agent does; when it is done, `answer` is what came of it.

        An agent that is away for a while is asked again, where that cannot repeat work: this task
        has time, and so has its caller."""
        since = time.monotonic()
        tries = 0
        try:
            while True:
                stream = self._opened()
                try:
                    async with contextlib.aclosing(stream):
                        async for event in stream:
                            since, tries = time.monotonic(), 0
                            self._learn(stream.task_id)
                            yield event
                        self.answer = stream.answer
                        return
                except (Unreachable, TimedOut, Overloaded) as error:
                    if time.monotonic() - since > PATIENCE or not await self._may_repeat(error):
                        raise
                    await asyncio.sleep(min(_LONGEST_PAUSE, _FIRST_PAUSE * 2**tries))
                    tries += 1
        except asyncio.CancelledError:
            is_over = self._worker.is_cancelled or self._worker.log.is_over
            if is_over and self._known is not None:
                self._delegates.soon(cancel(self._client, self._known))
            raise

    def _opened(self) -> Stream:
        if self._known is not None:
            return self._client.subscribe(self._known.task_id)
        return self._client.stream(self._message, metadata=self._metadata, accept=self._accept)

    async def _may_repeat(self, error: A2AError) -> bool:
        """Say whether asking again does nothing twice."""
        if self._known is not None or not isinstance(error, DeliveryUnknown | TimedOut):
            return True
        try:
            card = await self._client.look()
        except A2AError:
            return False
        return any(one.uri == ONCE_URI for one in card.capabilities.extensions)

    def _learn(self, task_id: str) -> None:
        """Record what the other agent calls its task."""
        if not task_id or (self._known is not None and self._known.task_id == task_id):
            return
        turn = self._worker.replay.turn
        self._known = _given(turn, self._index, self._agent, self._client, task_id)
        self._worker.delegate(self._known)


async def cancel(client: Client, given: Delegated) -> None:
    """Tell an agent that what it was given is not wanted any more."""
    try:
        async with asyncio.timeout(CANCEL_WITHIN):
            await client.cancel(given.task_id)
    except (A2AError, ConfigError, TimeoutError) as error:
        logger.info("%s was not told that its task is canceled: %s", given.agent, error)


def _given(turn: int, index: int, agent: Ref, client: Client, task_id: str) -> Delegated:
    """Return what is recorded of a task that an agent was given: its name, and where it is."""
    name = where = client.reference
    if isinstance(agent, AgentCard) and agent.supported_interfaces:
        # A name is no address: whoever cancels the task later has nothing else to go by.
        where = agent.supported_interfaces[0].url
    return Delegated(turn, index, name, where, task_id)


def _depth(worker: Worker) -> int:
    said: Any = worker.replay.began.metadata.get(DEPTH)
    return said if isinstance(said, int) and not isinstance(said, bool) else 1


def _onward(worker: Worker, metadata: Metadata) -> Metadata:
    onward: Metadata = {**metadata, DEPTH: _depth(worker) + 1}
    if worker.deadline:
        onward[DEADLINE] = stamp(worker.deadline * 1000)
    return onward
