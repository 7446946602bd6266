"""One call of another agent: a message under an id that is the same if the code runs again.

What the other agent calls its task stands in the log as soon as it is known; from then on the task
is followed, and nothing is sent twice.
"""

import asyncio
import contextlib
import hashlib
import logging
import time
from collections.abc import AsyncGenerator
from typing import Any

import msgspec

from dragoman.client.answer import Answer
from dragoman.client.client import Client
from dragoman.client.content import Content, message_of
from dragoman.client.line import wished_wait
from dragoman.client.stream import Shown, Stream
from dragoman.engine.shares import NARROW_EVENTS, SLICE
from dragoman.engine.worker import Worker
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
from dragoman.server import ancestry
from dragoman.server.budget import CallOptions
from dragoman.server.delegates import CANCEL_WITHIN, Delegates, Ref, address_of

logger = logging.getLogger("dragoman")

# Seconds another agent may be out of reach, and between two looks for it.
PATIENCE = 120.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 5.0


class Call:
    """One call of another agent. Whoever made it closes it."""

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
            # Of several that name one, the message's counts: there is one.
            metadata = {**_unlimited(metadata), LIMITS[-1]: credits_text(most)}
            message = msgspec.structs.replace(message, metadata=_unlimited(message.metadata))
        references = ancestry.references(worker, message.reference_task_ids)
        self._message = msgspec.structs.replace(message, reference_task_ids=references)
        self._metadata = ancestry.onward(worker, metadata)
        self._most = most or 0
        self._made_at = worker.clock.now()
        # What the agent calls its task, once it has said so.
        known = worker.replay.children.get((worker.replay.turn, index))
        self.known = known if known is not None and known.task_id else None
        # What is read at present, and how many events came.
        self._stream: Stream | None = None
        self._events = 0
        # Whether the agent may have the message although it never said so.
        self._is_doubtful = False
        self.answer = Answer()

    async def events(self) -> AsyncGenerator[Shown]:
        """Yield what the other agent does; when it is done, `answer` is what came of it. What it
        begins counts for the caller of this task, if it is an agent of this process.

        An agent that is away for a while is asked again, where that cannot repeat work: this task
        has time, and so has its caller."""
        log = self._worker.log
        with log.shares.calling(self._message.message_id, log.account.who):
            async with contextlib.aclosing(self._shown()) as events:
                async for event in events:
                    yield event

    async def _shown(self) -> AsyncGenerator[Shown]:
        since = time.monotonic()
        tries = 0
        while True:
            stream = self._stream = self._opened()
            stream.idle = self._turn
            try:
                async for event in stream:
                    since, tries = time.monotonic(), 0
                    self._learn(stream.task_id)
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
        """Wait for a turn before more is read: what another agent sends takes time of ours."""
        log = self._worker.log
        log.shares.use(log.account, SLICE)
        await log.shares.turn(log.account, log.agent)
        # A turn may come at once.
        await asyncio.sleep(0)

    async def close(self) -> None:
        """Stop reading. What the agent does goes on."""
        stream, self._stream = self._stream, None
        if stream is not None:
            await stream.aclose()

    def withdraw(self) -> None:
        """Have the agent's task canceled; where nobody knows yet what it is called, once the agent
        says so. Nobody waits for it."""
        known = self.known
        if known is None and self._message.task_id:
            # It goes on with a task.
            known = self._given(self._message.task_id)
        if known is not None:
            self._delegates.soon(self._delegates.cancel(self._agent, known))
        elif self._stream is not None or self._is_doubtful:
            stream, self._stream = self._stream or self._opened(), None
            self._delegates.soon(self._find_and_cancel(stream))

    async def _find_and_cancel(self, stream: Stream) -> None:
        """Read until the agent names its task, and cancel that."""
        # Held, so that the client is not closed meanwhile.
        with self._delegates.client(self._agent):
            try:
                async with asyncio.timeout(CANCEL_WITHIN):
                    while not stream.task_id:
                        await anext(stream)
            except (A2AError, ConfigError, TimeoutError, StopAsyncIteration) as error:
                logger.info("%s never named the task it was given: %s", self._named[0], error)
                return
            finally:
                await stream.aclose()
            await self._delegates.cancel(self._agent, self._given(stream.task_id))

    async def cost(self, most: int) -> int:
        """Return what the task cost by the word of the gateway that it went through, in
        micro-credits; where it cannot be asked, as much as it may have cost."""
        if self.answer.task is None:
            return 0
        try:
            task = await self._client.get(self.answer.task_id, history=0)
        except (TaskNotFound, MethodNotFound, UnsupportedOperation):
            # Whoever bills keeps its tasks, and shows them.
            return 0
        except A2AError:
            return most
        said: Any = task.metadata.get(COST)
        if said is None:
            return 0
        try:
            return micro_credits(said) if isinstance(said, str) else most
        except ValueError:
            return most

    def is_doubtful(self, error: BaseException) -> bool:
        """Say whether the agent may have the message although it never named a task: the call
        ended with an error before."""
        if isinstance(error, InternalError | InvalidAgentResponse):
            return True
        if isinstance(error, CallFailed | Overloaded):
            return self._is_doubtful
        if isinstance(error, A2AError | ConfigError):
            # It was refused.
            return False
        # Somebody stopped waiting.
        return self._is_doubtful or (self._stream is not None and self._is_connected)

    async def announce(self, said: str) -> None:
        """Tell the task's caller how it goes, and which task it is there. Whom it is for by the
        name on its card: the address is the author's own."""
        references = [] if self.known is None else [self.known.task_id]
        self._worker.say([Part(text=f"{self._client.card.name} {said}")], references=references)
        await self._worker.keep_pace()

    def spent(self, seconds: float, cost: int) -> None:
        """Record what came of it on the task's budget; of a call whose task nobody named as well:
        it was made."""
        given = self.known or msgspec.structs.replace(self._given(""), at=self._made_at)
        given = msgspec.structs.replace(given, seconds=seconds, cost=cost)
        self.known = given if given.task_id else None
        self._worker.delegate(given)

    @property
    def _is_connected(self) -> bool:
        try:
            return bool(self._client.card)
        except ConfigError:
            # Nothing is sent to an agent whose card was not read.
            return False

    def _opened(self) -> Stream:
        if self.known is not None:
            return self._client.subscribe(self.known.task_id)
        return self._client.stream(self._message, metadata=self._metadata, accept=self._accept)

    async def _may_repeat(self, error: A2AError) -> bool:
        """Say whether asking again does nothing twice."""
        if self.known is not None or not isinstance(error, DeliveryUnknown | TimedOut):
            return True
        try:
            card = await self._client.look()
        except A2AError:
            return False
        return any(one.uri == ONCE_URI for one in card.capabilities.extensions)

    def _learn(self, task_id: str) -> None:
        """Record what the other agent calls its task, and that it may cost all it was allowed to:
        what it did stands there once it has ended."""
        if not task_id or (self.known is not None and self.known.task_id == task_id):
            return
        self.known = self._given(task_id)
        self._worker.delegate(self.known)

    @property
    def _named(self) -> tuple[str, str]:
        """Whom the code named, and where that is."""
        return given_to(self._agent, self._client)

    def _given(self, task_id: str) -> Delegated:
        now = self._worker.clock.now()
        turn = self._worker.replay.turn
        return Delegated(turn, self._index, *self._named, task_id, now, cost=self._most)


def given_to(agent: Ref, client: Client) -> tuple[str, str]:
    """Return what is recorded of whom a task is given to: its name, and where it is."""
    if not isinstance(agent, Client):
        return client.reference, address_of(agent)
    try:
        is_by_card = client.card.name == client.reference
        return client.reference, client.interface.url if is_by_card else client.reference
    except ConfigError:
        # It was not connected yet.
        return client.reference, client.reference


def asked_limit(content: Content, more: CallOptions) -> int | None:
    """Return what the code itself wants a call to cost at most; raises `ConfigError`."""
    said: Metadata = dict(more.get("metadata", {}))
    if isinstance(content, Message):
        said |= content.metadata
    for name in LIMITS:
        value: Any = said.get(name)
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
