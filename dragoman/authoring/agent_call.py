"""One call of another agent: a message under an id that is the same if the code runs again.

The id of the other agent's task is recorded as soon as it is known; from then on that task is
followed, and the message is not sent again.
"""

import asyncio
import contextlib
import hashlib
import logging
import time
from collections.abc import AsyncGenerator
from typing import Any

import msgspec

from dragoman.authoring import ancestry
from dragoman.authoring.budget import CallOptions
from dragoman.authoring.delegates import CANCEL_WITHIN, Delegates, Ref, address_of
from dragoman.client.answer import Answer
from dragoman.client.client import Client
from dragoman.client.content import Content, message_of
from dragoman.client.second_tries import wished_wait
from dragoman.client.streams.shown_task import Shown
from dragoman.client.streams.stream import Stream
from dragoman.engine.running.relaying import record_delegated
from dragoman.engine.running.worker import Worker
from dragoman.errors import (
    A2AError,
    CallFailed,
    ConfigError,
    DeliveryUnknown,
    InternalError,
    InvalidAgentResponse,
    MethodNotFound,
    Overloaded,
    TaskNotFound,
    TimedOut,
    Unreachable,
    UnsupportedOperation,
)
from dragoman.model.card import ONCE_URI
from dragoman.model.events import Delegated
from dragoman.model.message import Message, Metadata, Part
from dragoman.model.money import COST, LIMITS, credits_text, micro_credits
from dragoman.shares import NARROW_EVENTS, SLICE

logger = logging.getLogger("dragoman")

# Seconds that another agent may be out of reach, and between two tries.
PATIENCE = 120.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 5.0


class DelegatedCall:
    """One call of another agent. The code that makes it has to close it."""

    def __init__(
        self,
        worker: Worker,
        delegates: Delegates,
        client: Client,
        agent: Ref,
        content: Content,
        index: int,
        more: CallOptions,
        most: int | None = None,
    ) -> None:
        """`most` is what it may cost, in micro-credits."""
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
        metadata = more.get("metadata", {})
        if most is not None:
            # A limit in the message would win over this one, so there must be none.
            metadata = {**_unlimited(metadata), LIMITS[-1]: credits_text(most)}
            message = msgspec.structs.replace(message, metadata=_unlimited(message.metadata))
        references = ancestry.references(worker, message.reference_task_ids)
        self._message = msgspec.structs.replace(message, reference_task_ids=references)
        self._metadata = ancestry.call_metadata(worker, metadata)
        self._most = most or 0
        self._made_at = worker.clock.now()
        # The agent's task, once its id is known.
        delegated = worker.replay.children.get((worker.replay.turn, index))
        self.delegated = delegated if delegated is not None and delegated.task_id else None
        # The stream that is read at present, and how many events came.
        self._stream: Stream | None = None
        self._events = 0
        # Whether the agent may have the message although it confirmed nothing.
        self._is_doubtful = False
        self.answer = Answer()

    async def events(self) -> AsyncGenerator[Shown]:
        """Yield the events of the other agent's task; in the end `answer` is set. Tasks that it
        begins count for the caller of this task, if it is an agent of this process.

        An agent that is out of reach for a while is called again, where that cannot repeat work:
        this task can wait, and so can its caller."""
        log = self._worker.log
        with log.shares.calling(self._message.message_id, log.account.who):
            async with contextlib.aclosing(self._events_through_cuts()) as events:
                async for event in events:
                    yield event

    async def _events_through_cuts(self) -> AsyncGenerator[Shown]:
        since = time.monotonic()
        tries = 0
        while True:
            stream = self._stream = self._opened()
            stream.idle = self._turn
            try:
                async for event in stream:
                    since, tries = time.monotonic(), 0
                    self._record_task(stream.task_id)
                    self._events += 1
                    if self._events % NARROW_EVENTS == 0:
                        await self._turn()
                    yield event
                self.answer = stream.answer
                return
            except (Unreachable, TimedOut, Overloaded) as error:
                await self.close()
                self._is_doubtful |= isinstance(error, DeliveryUnknown | TimedOut)
                is_late = time.monotonic() - since > PATIENCE or wished_wait(error) > PATIENCE
                if is_late or not await self._may_repeat(error):
                    raise
                await asyncio.sleep(min(_LONGEST_PAUSE, _FIRST_PAUSE * 2**tries))
                tries += 1

    async def _turn(self) -> None:
        """Wait for a turn before more is read: events of another agent take processor time here."""
        log = self._worker.log
        log.shares.use(log.account, SLICE)
        await log.shares.turn(log.account, log.agent)
        # Yield to the loop although the turn may come at once.
        await asyncio.sleep(0)

    async def close(self) -> None:
        """Stop reading. The agent's task goes on."""
        stream, self._stream = self._stream, None
        if stream is not None:
            await stream.aclose()

    def withdraw(self) -> None:
        """Have the agent's task canceled in the background; a task without a known id, once
        the agent names it."""
        delegated = self.delegated
        if delegated is None and self._message.task_id:
            # The message continues a task.
            delegated = self._delegated_now(self._message.task_id)
        if delegated is not None:
            self._delegates.in_background(self._delegates.cancel(self._agent, delegated))
        elif self._stream is not None or self._is_doubtful:
            stream, self._stream = self._stream or self._opened(), None
            self._delegates.in_background(self._find_and_cancel(stream))

    async def _find_and_cancel(self, stream: Stream) -> None:
        """Read until the agent names its task, and cancel that."""
        # In use, so that the client is not closed meanwhile.
        with self._delegates.client(self._agent):
            try:
                async with asyncio.timeout(CANCEL_WITHIN):
                    while not stream.task_id:
                        await anext(stream)
            except (A2AError, ConfigError, TimeoutError, StopAsyncIteration) as error:
                logger.info("%s never named the task it was given: %s", self._called[0], error)
                return
            finally:
                await stream.aclose()
            await self._delegates.cancel(self._agent, self._delegated_now(stream.task_id))

    async def cost(self, most: int) -> int:
        """Return what the task cost in micro-credits, as the gateway that it went through reports;
        where that cannot be read, as much as it may have cost."""
        if self.answer.task is None:
            return 0
        try:
            task = await self._client.get(self.answer.task_id, history=0)
        except (TaskNotFound, MethodNotFound, UnsupportedOperation):
            # A gateway that bills for a task keeps and shows it: this one was free.
            return 0
        except A2AError:
            return most
        cost: Any = task.metadata.get(COST)
        if cost is None:
            return 0
        try:
            return micro_credits(cost) if isinstance(cost, str) else most
        except ValueError:
            return most

    def is_doubtful(self, error: BaseException) -> bool:
        """Tell whether the agent may have the message although the call ended with an error before
        it named a task."""
        if isinstance(error, InternalError | InvalidAgentResponse):
            return True
        if isinstance(error, CallFailed | Overloaded):
            return self._is_doubtful
        if isinstance(error, A2AError | ConfigError):
            # It was refused.
            return False
        # The code around the call stopped waiting.
        return self._is_doubtful or (self._stream is not None and self._is_connected)

    async def announce(self, text: str) -> None:
        """Tell the task's caller how the call goes, and the id of the agent's task. The agent is
        named as in its card: its address is the author's business."""
        references = [] if self.delegated is None else [self.delegated.task_id]
        self._worker.say([Part(text=f"{self._client.card.name} {text}")], references=references)
        await self._worker.keep_pace()

    def record_spending(self, seconds: float, cost: int) -> None:
        """Record seconds and cost on the task's budget, also of a call whose task has no id yet:
        it was made."""
        given = self.delegated or msgspec.structs.replace(self._delegated_now(""), at=self._made_at)
        given = msgspec.structs.replace(given, seconds=seconds, cost=cost)
        self.delegated = given if given.task_id else None
        record_delegated(self._worker, given)

    @property
    def _is_connected(self) -> bool:
        try:
            return bool(self._client.card)
        except ConfigError:
            # Nothing is sent to an agent whose card was not read.
            return False

    def _opened(self) -> Stream:
        if self.delegated is not None:
            return self._client.subscribe(self.delegated.task_id)
        return self._client.stream(self._message, metadata=self._metadata, accept=self._accept)

    async def _may_repeat(self, error: A2AError) -> bool:
        """Tell whether another try cannot repeat work."""
        if self.delegated is not None or not isinstance(error, DeliveryUnknown | TimedOut):
            return True
        try:
            card = await self._client.look()
        except A2AError:
            return False
        return any(one.uri == ONCE_URI for one in card.capabilities.extensions)

    def _record_task(self, task_id: str) -> None:
        """Record the id of the other agent's task, and that it may cost all it was allowed to; the
        actual cost is recorded once it has ended."""
        if not task_id or (self.delegated is not None and self.delegated.task_id == task_id):
            return
        self.delegated = self._delegated_now(task_id)
        record_delegated(self._worker, self.delegated)

    @property
    def _called(self) -> tuple[str, str]:
        """The agent as the code named it, and its address."""
        return called_agent(self._agent, self._client)

    def _delegated_now(self, task_id: str) -> Delegated:
        now = self._worker.clock.now()
        turn = self._worker.replay.turn
        return Delegated(turn, self._index, *self._called, task_id, now, cost=self._most)


def called_agent(agent: Ref, client: Client) -> tuple[str, str]:
    """Return what is recorded of the agent that is called: its name and its address."""
    if not isinstance(agent, Client):
        return client.reference, address_of(agent)
    try:
        is_by_card = client.card.name == client.reference
        return client.reference, client.interface.url if is_by_card else client.reference
    except ConfigError:
        # It was not connected yet.
        return client.reference, client.reference


def cost_limit(content: Content, more: CallOptions) -> int | None:
    """Return the most that the code lets a call cost; raises `ConfigError`."""
    metadata: Metadata = dict(more.get("metadata", {}))
    if isinstance(content, Message):
        metadata |= content.metadata
    for name in LIMITS:
        value: Any = metadata.get(name)
        if value is None:
            continue
        if isinstance(value, int | float) and not isinstance(value, bool):
            value = repr(value).removesuffix(".0")
        try:
            return micro_credits(value if isinstance(value, str) else "")
        except ValueError as error:
            raise ConfigError(f"metadata.{name} {error}") from None
    return None


def _unlimited(metadata: Metadata) -> Metadata:
    return {name: value for name, value in metadata.items() if name not in LIMITS}
