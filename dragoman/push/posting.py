"""The way of one task's events to one receiver: in order, one at a time, each until it is taken.

The log is the outbox and the cursor says how far the receiver is, so nothing that is recorded can
be forgotten: the worker that takes over reads on from the cursor. An event that is not taken in ten
tries becomes a dead letter and the next one follows: a gap, never another order. Every failure is
tried again, also answers such as 404: a receiver under repair gives them too. Only 410 means gone.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from random import Random
from typing import TYPE_CHECKING, Protocol

import msgspec
from msgspec.structs import replace

from dragoman.dialects.dialect import Dialect
from dragoman.egress.answers import EgressResponse
from dragoman.egress.errors import EgressFailed, EgressRefused
from dragoman.egress.plain_words import plain
from dragoman.errors import StoreConflict, StoreRefused, StoreUnavailable
from dragoman.model.clock import Clock
from dragoman.model.events import StatusUpdate, TraceJoined
from dragoman.model.record import Recorded
from dragoman.model.task import Task
from dragoman.push import request
from dragoman.push.schedule import GIVE_UP_AFTER, TRIES, next_try, retry_after
from dragoman.push.slots import Slots
from dragoman.stores.interface import DeadLetter, Push, Store
from dragoman.telemetry import figures, tracing
from dragoman.telemetry.tracing import Here, Trace

if TYPE_CHECKING:
    # Only where the option is on: its libraries are an extra.
    from dragoman.push.token import Tokens

logger = logging.getLogger("dragoman.push")

# A task's log after the receiver's cursor, until the task is over. Ends early only by raising.
Follow = Callable[[Push], AsyncGenerator[Sequence[Recorded]]]
# The task as of an event, for versions whose receivers get it whole.
Read = Callable[[Push, int], Awaitable[Task]]

# When the disk or the log was not to be had, in milliseconds.
_AGAIN_AFTER = 1000
_AGAIN_AT_MOST = 30_000
_MAX_PROBLEM = 200


class Poster(Protocol):
    """What dials out."""

    def check(self, url: str) -> None:
        """Raise `EgressRefused` for an address we never go to."""
        ...

    async def post(
        self, url: str, body: bytes, headers: Mapping[str, str], *, timeout: float
    ) -> EgressResponse:
        """Return what the receiver answered; raises `EgressRefused` or `EgressFailed`."""
        ...


class PostingContext(msgspec.Struct, frozen=True):
    """What every posting works with."""

    store: Store
    egress: Poster
    follow: Follow
    read: Read
    dialects: Mapping[str, Dialect]
    # Each signs, so that receivers may have any of them.
    secrets: Sequence[bytes]
    tokens: "Tokens | None"
    clock: Clock
    slots: Slots
    # Seconds a receiver has for its answer.
    timeout: float
    random: Random

    def __repr__(self) -> str:
        return f"Means(secrets='***', timeout={self.timeout})"


class PostOutcome(msgspec.Struct, frozen=True):
    """How a try ended."""

    # Empty: it was taken.
    problem: str = ""
    is_gone: bool = False
    # Milliseconds the receiver wants to be left alone.
    wish: int = 0


class Posting:
    """Posts one task's events to one receiver."""

    def __init__(self, push: Push, means: PostingContext) -> None:
        self.push = push
        # Whether a post is on its way, or its outcome not yet recorded.
        self.is_busy = False
        # Set to have it end once it is not busy.
        self.is_ending = False
        self._means = means
        self._dialect = means.dialects[push.config.version]
        self._trace: Trace | None = None
        self._hurried = asyncio.Event()

    def hurry(self) -> None:
        """Try at once what waits for its next try."""
        self._hurried.set()

    async def run(self) -> None:
        """Post until the task is over, the receiver is given up or another worker has it."""
        pause = _AGAIN_AFTER
        # Not the request's that named the receiver: what is posted belongs to the task.
        tracing.here.set(Here(None, self.push.config.task_id, self.push.scope.agent))
        while self.push.is_open and not self.is_ending:
            before = self.push.cursor
            try:
                await self._post_all()
                if not self.push.is_open or self.is_ending or await self._is_over():
                    return
            except StoreConflict:
                # Dropped, or another worker has it.
                return
            except Exception:
                # The border around one receiver: what went wrong with it must not end its
                # deliveries, and they go on from the cursor.
                logger.exception("posting to %s was interrupted", self._origin)
            pause = _AGAIN_AFTER if self.push.cursor > before else min(2 * pause, _AGAIN_AT_MOST)
            await self._means.clock.wait_until(self._means.clock.now() + pause)

    @property
    def _origin(self) -> str:
        return request.origin(self.push.config.url)

    async def _post_all(self) -> None:
        async with aclosing(self._means.follow(self.push)) as batches:
            async for batch in batches:
                for recorded in batch:
                    if recorded.seq <= self.push.cursor or not recorded.is_public:
                        continue
                    if self._dialect.posts(recorded):
                        await self._post(recorded)
                    if not self.push.is_open or self.is_ending:
                        return

    async def _is_over(self) -> bool:
        """Close what has nothing more to wait for; the log of a living task only broke off."""
        head = await self._means.store.head(self.push.scope, self.push.config.task_id)
        if head is not None and not head.standing.state.is_terminal:
            return False
        await self._settle(replace(self.push, is_open=False))
        return True

    async def _post(self, recorded: Recorded) -> None:
        """Try until the event is taken or given up."""
        clock = self._means.clock
        is_done = False
        while not is_done:
            if self.push.due_at > clock.now():
                await self._wait_until(self.push.due_at)
            async with self._means.slots.place(self._origin):
                if self.is_ending:
                    return
                await self._check_is_ours()
                self.is_busy = True
                try:
                    outcome = await self._try(recorded)
                    is_done = await self._record(recorded, outcome)
                finally:
                    self.is_busy = False

    async def _wait_until(self, due_at: int) -> None:
        """Wait for a time, or until an operator wants a try at once."""
        self._hurried.clear()
        waits = [
            asyncio.ensure_future(self._means.clock.wait_until(due_at)),
            asyncio.ensure_future(self._hurried.wait()),
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def _check_is_ours(self) -> None:
        """Raise `StoreConflict` if the receiver was dropped or replaced, or another worker has it.
        Before each post: credentials that a caller took back must not be sent any more."""
        ours = self.push
        for found in await self._means.store.pushes(ours.task):
            is_same = found.number == ours.number and found.config == ours.config
            if is_same and found.is_open and found.cursor == ours.cursor:
                return
        raise StoreConflict("the receiver is no longer ours")

    async def _traced(self) -> Trace:
        """Return the place of the posts in the task's trace."""
        if self._trace is None:
            second = await self._means.store.read(self.push.task, after=1, limit=1)
            joined = second[0].event if second and not second[0].is_public else None
            if isinstance(joined, TraceJoined):
                self._trace = tracing.parse(joined.parent, joined.state)
            self._trace = self._trace or tracing.of_task(self.push.config.task_id)
        return self._trace

    async def _body(self, recorded: Recorded) -> bytes:
        task = None
        if self._dialect.push_needs_task:
            task = await self._means.read(self.push, recorded.seq)
        return self._dialect.encode_push(recorded, task)

    async def _try(self, recorded: Recorded) -> PostOutcome:
        means, config, seq = self._means, self.push.config, recorded.seq
        try:
            trace = await self._traced()
            body = await self._body(recorded)
            headers = request.headers(
                config,
                body,
                id=request.webhook_id(self.push.scope, config, seq),
                seq=seq,
                content_type=self._dialect.push_content_type,
                now=means.clock.now(),
                secrets=means.secrets,
                tokens=means.tokens,
            )
        except StoreRefused:
            raise
        except Exception:
            # An event that cannot be encoded must not keep back those after it: it fails like one
            # that the receiver refuses.
            logger.exception("event %s of a task could not be made a post", seq)
            return PostOutcome("could not be made")
        span = None
        if tracing.on:
            names = {"agent.id": self.push.scope.agent, "agent.task.id": config.task_id}
            names["server.address"] = self._origin
            span = tracing.begin("push", names, kind="client", parent=trace)
            trace = span.trace
        outcome, kind = PostOutcome(), "cancelled"
        try:
            outcome, kind = await self._dial(body, headers | trace.headers)
        finally:
            figures.push_tries.add(kind)
            if span is not None:
                if kind != "taken":
                    span.fail(kind)
                span.end()
        return outcome

    async def _dial(self, body: bytes, headers: Mapping[str, str]) -> tuple[PostOutcome, str]:
        """Post; return how that ended, and its kind in one word."""
        means, url = self._means, self.push.config.url
        try:
            answer = await means.egress.post(url, body, headers, timeout=means.timeout)
        except EgressRefused as error:
            return PostOutcome(f"refused: {error.reason}"[:_MAX_PROBLEM]), "refused"
        except EgressFailed as error:
            means.slots.mark(self._origin, silent=True)
            said = plain(error.reason)
            problem = said if said.startswith("no answer") else f"no answer: {said}"
            return PostOutcome(problem[:_MAX_PROBLEM]), "unanswered"
        means.slots.mark(self._origin, silent=False)
        outcome = _outcome(answer, means.clock.now())
        return outcome, "error" if outcome.problem else "taken"

    async def _record(self, recorded: Recorded, outcome: PostOutcome) -> bool:
        """Write down how a try ended; tell whether the event is dealt with."""
        push, now, seq = self.push, self._means.clock.now(), recorded.seq
        if not outcome.problem:
            if push.failing_since:
                logger.info("%s takes posts again", self._origin)
            await self._settle(
                replace(
                    push,
                    cursor=seq,
                    tries=0,
                    due_at=0,
                    failing_since=0,
                    problem="",
                    is_open=not _ends(recorded),
                )
            )
            figures.push_delivered.add()
            return True
        if not push.failing_since:
            # Once, not at each try.
            logger.warning("%s does not take posts: %s", self._origin, outcome.problem)
        failing = replace(
            push,
            tries=push.tries + 1,
            due_at=0,
            failing_since=push.failing_since or now,
            problem=outcome.problem,
        )
        if outcome.is_gone or now - failing.failing_since >= GIVE_UP_AFTER:
            # The cursor stays where it is: opened again, it goes on without a gap.
            await self._settle(replace(failing, is_open=False))
            logger.error("%s gets no more posts: %s", self._origin, outcome.problem)
            return True
        if failing.tries < TRIES:
            due_at = next_try(failing.tries, now, outcome.wish, self._means.random)
            await self._settle(replace(failing, due_at=due_at))
            return False
        config = push.config
        letter = DeadLetter(
            push.number,
            config.task_id,
            config.id,
            config.url,
            seq,
            failing.tries,
            now,
            outcome.problem,
        )
        await self._settle(
            replace(failing, cursor=seq, tries=0, is_open=not _ends(recorded)), letter
        )
        figures.push_dead.add()
        id = request.webhook_id(push.scope, config, seq)
        logger.error("%s never took %s: %s", self._origin, id, outcome.problem)
        return True

    async def _settle(self, push: Push, letter: DeadLetter | None = None) -> None:
        """Record how far the receiver is. A disk that is full for a while costs patience, not
        another post."""
        pause = _AGAIN_AFTER
        while True:
            try:
                await self._means.store.settle(push, letter)
            except StoreUnavailable:
                if self.is_ending:
                    raise
                await self._means.clock.wait_until(self._means.clock.now() + pause)
                pause = min(2 * pause, _AGAIN_AT_MOST)
            else:
                self.push = push
                return


def _outcome(answer: EgressResponse, now: int) -> PostOutcome:
    status = answer.status
    if 200 <= status < 300:
        return PostOutcome()
    if status == 410:
        return PostOutcome("answered 410: gone", is_gone=True)
    wish = 0
    if status in (429, 503):
        wish = retry_after(answer.headers.get("retry-after", ""), now)
    return PostOutcome(f"answered {status}", wish=wish)


def _ends(recorded: Recorded) -> bool:
    event = recorded.event if recorded.is_status else None
    return isinstance(event, StatusUpdate) and event.status.state.is_terminal
