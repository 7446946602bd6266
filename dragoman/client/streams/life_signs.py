"""Whether an agent that has a task still lives: one clock for each task, fed by every sign of life.

Events, the comments of a stream, answers about the task and posts are signs. An agent that was
silent for a while is asked how the task stands, on another connection; one that shows no sign for
as long as patience lasts is given up. The clock stands still while we do not listen: neither our
back-pressure nor a stop of our own process is the agent's silence.
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from dragoman.errors import A2AError, TimedOut, Unreachable

# A stream whose server sends comments is expected to go on: so many of their intervals may pass,
# and at least so many seconds.
INTERVALS, SHORTEST_INTERVALS = 3.0, 2.0
# A timer that is later than so many seconds shows that it was us who stood still.
_LATE = 1.0
# Seconds between two looks at the clock, at least.
_SOONEST = 0.02
# The part of the whole patience after which an agent is asked at the latest, and in which it has to
# answer: where patience is short there is still time for more than one question.
_PART = 1 / 3


class NoSignOfLife(TimedOut):
    """The agent shows no sign of life"""


class StreamStalled(Unreachable):
    """The agent's stream shows nothing any more"""

    is_sent = True


class Silence(msgspec.Struct, frozen=True, kw_only=True):
    """How long an agent may be silent, in seconds."""

    # After so much of it the agent is asked how the task stands, again and again.
    ask_after: float = 30.0
    # It is given up after so much; infinite: never.
    most: float = 300.0
    # The same for an agent that has not said yet which task it has: it has so long to say so, it is
    # not asked, and comments do not help it. None: it is asked too, and any answer is a sign.
    begin: float | None = None
    # It has so long to answer that question.
    answer_within: float = 10.0

    def shortened(self) -> "Silence":
        """Return it with questions that fit into the patience there is."""
        part = self.most * _PART
        if self.ask_after <= part and self.answer_within <= part:
            return self
        return msgspec.structs.replace(
            self,
            ask_after=min(self.ask_after, part),
            answer_within=min(self.answer_within, part),
        )


class LifeSigns:
    """When an agent last showed that it lives. The clock stands still without a listener."""

    __slots__ = ("_held_since", "_last", "_now", "on_next")

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._last = now()
        self._held_since: float | None = self._last
        # Called once, at the next sign.
        self.on_next: Callable[[], None] | None = None

    def note(self) -> None:
        """Note a sign of life."""
        self._last = self._now()
        if self._held_since is not None:
            self._held_since = self._last
        if self.on_next is not None:
            callback, self.on_next = self.on_next, None
            callback()

    def hold(self) -> None:
        """Stop the clock: it is us who do not listen."""
        if self._held_since is None:
            self._held_since = self._now()

    def hold_since_sign(self) -> None:
        """Stop the clock where the last sign set it: what came is being dealt with."""
        self._held_since = self._last

    def release(self) -> None:
        """Let the clock go on."""
        if self._held_since is not None:
            self._last += self._now() - self._held_since
            self._held_since = None

    def forgive(self, seconds: float) -> None:
        """Leave out a time in which we could not listen."""
        self._last = min(self._last + seconds, self._now())

    @property
    def silence(self) -> float:
        """The seconds without a sign, while there was a listener."""
        until = self._now() if self._held_since is None else self._held_since
        return until - self._last


class KeepAlives:
    """The comments of one stream, and when the next is due."""

    __slots__ = ("_interval", "_is_comment", "_last", "is_begun")

    def __init__(self) -> None:
        self._interval = 0.0
        # When the last line came, and whether that was a comment.
        self._last = 0.0
        self._is_comment = False
        # Whether there was any comment.
        self.is_begun = False

    def note(self, now: float, *, is_comment: bool) -> bool:
        """Note that something came; say whether the first comments are now expected. Only two in
        a row tell how far they are apart."""
        is_first = False
        if is_comment and self._is_comment:
            is_first = not self._interval
            self._interval = max(self._interval, now - self._last)
        self._last, self._is_comment = now, is_comment
        self.is_begun |= is_comment
        return is_first

    def seconds_left(self, now: float, since: float) -> float:
        """Return for how many seconds the stream may still show nothing to one who has listened
        since a time; infinite where it has no comments."""
        if not self._interval:
            return math.inf
        longest = max(INTERVALS * self._interval, SHORTEST_INTERVALS)
        return longest - (now - max(self._last, since))


class SilenceWatch:
    """Ends the wait for an agent that is silent for too long: enter it for every wait.

    One timer looks at the clock when something may be due, so that an event costs next to nothing.
    """

    def __init__(
        self,
        signs: LifeSigns,
        silence: Silence,
        ask: Callable[[], Awaitable[A2AError | None]],
        is_begun: Callable[[], bool],
    ) -> None:
        """`ask` asks the agent how the task stands, and returns what to end the wait with, if
        anything; it raises `A2AError` or `TimeoutError` where no sign came of it. `is_begun` says
        whether the agent has said which task it has."""
        self._signs = signs
        self._silence = silence
        self._ask = ask
        self._is_begun = is_begun
        self._may_ask = True
        self._task: asyncio.Task[Any] | None = None
        self._before = 0
        self._waits_since = 0.0
        # When what is waited for was asked for.
        self._opened_at = 0.0
        self._verdict: A2AError | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due_at = 0.0
        self._asking: asyncio.Task[None] | None = None
        self._asked_at = -math.inf
        # Of the stream that is being read; None: what is waited for is no stream.
        self._keep_alives: KeepAlives | None = None
        self._is_suspect = False

    # What is waited for

    def opening(self) -> None:
        """A stream is read from here on."""
        self._keep_alives, self._may_ask = KeepAlives(), True
        self._opened_at = time.monotonic()

    def answering(self, *, may_ask: bool) -> None:
        """One answer is waited for from here on; `may_ask`: it is not itself about the task."""
        self._keep_alives, self._may_ask = None, may_ask
        self._opened_at = time.monotonic()

    def note_sign(self, is_comment: bool = False) -> None:
        """Note that something came."""
        self._signs.note()
        self._is_suspect = False
        seen = self._keep_alives
        if (
            seen is not None
            and (is_comment or seen.is_begun)
            and seen.note(time.monotonic(), is_comment=is_comment)
        ):
            # Something is due earlier than was thought.
            self._arm()

    def __enter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None, "waits inside a task"
        self._task, self._before = task, task.cancelling()
        if self._keep_alives is not None and self._keep_alives.is_begun:
            self._waits_since = time.monotonic()
        if self._timer is None:
            self._arm()

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        task, self._task = self._task, None
        if self._verdict is None or task is None:
            return
        verdict, self._verdict = self._verdict, None
        # The cancel was ours, unless another was wanted as well.
        is_ours = task.uncancel() <= self._before
        if is_ours and kind is not None and issubclass(kind, asyncio.CancelledError):
            raise verdict from None

    def close(self) -> None:
        """Ask and look no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._asking is not None:
            self._asking.cancel()
            self._asking = None

    # Looking at the clock

    @property
    def _is_beginning(self) -> bool:
        """Whether the agent has yet to say which task it has, and is given a time for that."""
        return self._silence.begin is not None and not self._is_begun()

    @property
    def _seconds_left(self) -> float:
        """The seconds until patience ends."""
        if self._silence.begin is not None and self._is_beginning:
            return self._silence.begin - (time.monotonic() - self._opened_at)
        return self._silence.most - self._signs.silence

    @property
    def _asks(self) -> bool:
        return self._may_ask and not self._is_beginning

    def _arm(self) -> None:
        """Look again when something may be due."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        silence, now = self._signs.silence, time.monotonic()
        # What is due may change meanwhile: no look is further away than a question.
        left = min(self._seconds_left, self._silence.ask_after)
        if self._asks and self._asking is None:
            since_asked = min(silence, now - self._asked_at)
            left = min(left, self._silence.ask_after - since_asked)
        if self._keep_alives is not None:
            left = min(left, self._keep_alives.seconds_left(now, self._waits_since))
        if left == math.inf:
            return
        self._due_at = now + max(left, _SOONEST)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(max(left, _SOONEST), self._check)

    def _check(self) -> None:
        self._timer = None
        if self._task is None or self._verdict is not None:
            # No waiter: the next one checks the clock again.
            return
        late = time.monotonic() - self._due_at
        if late > _LATE:
            self._signs.forgive(late)
            self._waits_since += late
            self._opened_at += late
        if self._seconds_left <= 0:
            self._end(self._given_up())
            return
        if self._is_stalled():
            self._end(StreamStalled("The comments of the agent's stream have stopped"))
            return
        silence = self._signs.silence
        is_due = min(silence, time.monotonic() - self._asked_at) >= self._silence.ask_after
        if self._asks and is_due and self._asking is None:
            self._asked_at = time.monotonic()
            self._asking = asyncio.get_running_loop().create_task(self._question())
        self._arm()

    def _given_up(self) -> NoSignOfLife:
        if self._silence.begin is not None and self._is_beginning:
            return NoSignOfLife(f"No answer of the agent for {self._silence.begin:g} s")
        return NoSignOfLife(f"No sign of life of the agent for {self._silence.most:g} s")

    def _is_stalled(self) -> bool:
        """Say whether a stream that has comments shows none. The first time it is suspected only:
        something may lie unread."""
        if (
            self._keep_alives is None
            or self._keep_alives.seconds_left(time.monotonic(), self._waits_since) > 0
        ):
            return False
        is_certain, self._is_suspect = self._is_suspect, True
        return is_certain

    async def _question(self) -> None:
        """Ask how the task stands, and end the wait if the answer says so."""
        verdict: A2AError | None = None
        try:
            async with asyncio.timeout(self._silence.answer_within):
                verdict = await self._ask()
            self._signs.note()
        except (A2AError, TimeoutError):
            # No sign: it is asked again, for as long as patience lasts.
            pass
        finally:
            self._asking = None
        if verdict is not None:
            self._end(verdict)
        elif self._task is not None:
            self._arm()

    def _end(self, verdict: A2AError) -> None:
        """End the wait, if it is still on."""
        if self._task is not None and self._verdict is None:
            self._verdict = verdict
            self._task.cancel()
