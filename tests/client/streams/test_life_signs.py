"""The clock of a task, and what is made of it."""

import asyncio
import math

import pytest
from harness.clock import Clock

from dragoman.client.streams.life_signs import (
    INTERVALS,
    SHORTEST_INTERVALS,
    KeepAlives,
    LifeSigns,
    NoSignOfLife,
    Silence,
    SilenceWatch,
)
from dragoman.errors import A2AError, Unreachable

WITHIN = 60.0


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def signs(clock: Clock) -> LifeSigns:
    return LifeSigns(clock)


def test_silence_is_counted_from_the_last_sign_on(clock: Clock, signs: LifeSigns) -> None:
    signs.release()
    clock.now += 5
    assert signs.silence == 5
    signs.note()
    clock.now += 2
    assert signs.silence == 2


def test_the_clock_stands_still_while_nobody_listens(clock: Clock, signs: LifeSigns) -> None:
    clock.now += 1000
    assert signs.silence == 0
    signs.release()
    clock.now += 5
    signs.hold()
    clock.now += 1000
    assert signs.silence == 5
    signs.hold()
    signs.release()
    signs.release()
    clock.now += 1
    assert signs.silence == 6
    signs.hold()
    signs.note()
    clock.now += 3
    assert signs.silence == 0


def test_a_time_in_which_we_stood_still_is_left_out(clock: Clock, signs: LifeSigns) -> None:
    signs.release()
    clock.now += 600
    signs.forgive(590)
    assert signs.silence == 10
    signs.forgive(590)
    assert signs.silence == 0


def test_only_the_next_sign_is_told(signs: LifeSigns) -> None:
    told: list[int] = []
    signs.on_next = lambda: told.append(1)
    signs.note()
    signs.note()
    assert told == [1]


def test_questions_fit_into_short_patience() -> None:
    short = Silence(ask_after=30, most=3, answer_within=10).shortened()
    assert (short.ask_after, short.answer_within, short.most) == (1, 1, 3)
    endless = Silence(most=math.inf)
    assert endless.shortened() == endless


def test_comments_are_expected_once_two_in_a_row_were_seen() -> None:
    seen = KeepAlives()
    assert seen.seconds_left(1000, 0) == math.inf
    seen.note(10, is_comment=False)
    assert not seen.note(25, is_comment=True)
    seen.note(26, is_comment=False)
    assert not seen.note(40, is_comment=True)
    # An event between them tells nothing of how far they are apart.
    assert seen.seconds_left(1000, 0) == math.inf
    assert seen.note(55, is_comment=True)
    assert not seen.note(69, is_comment=True)
    assert seen.seconds_left(69, 0) == INTERVALS * 15
    assert seen.seconds_left(79, 0) == INTERVALS * 15 - 10
    # Whoever did not listen has missed nothing.
    assert seen.seconds_left(500, 490) == INTERVALS * 15 - 10


def test_comments_in_quick_succession_have_time_all_the_same() -> None:
    seen = KeepAlives()
    seen.note(1.0, is_comment=True)
    seen.note(1.1, is_comment=True)
    assert seen.seconds_left(1.1, 0) == SHORTEST_INTERVALS


def watch(silence: Silence, ask: object, signs: LifeSigns, *, begun: bool = True) -> SilenceWatch:
    signs.release()
    made = SilenceWatch(signs, silence.shortened(), ask, lambda: begun)  # type: ignore[arg-type]
    made.opening()
    return made


async def never() -> A2AError | None:
    await asyncio.Event().wait()
    return None


async def test_a_wait_ends_when_patience_does() -> None:
    watched = watch(Silence(most=0.2), never, LifeSigns())
    with pytest.raises(NoSignOfLife):
        async with asyncio.timeout(WITHIN):
            with watched:
                await asyncio.Event().wait()
    watched.close()
    task = asyncio.current_task()
    assert task is not None and not task.cancelling()


async def test_answers_to_questions_are_signs_and_the_wait_ends_as_they_say() -> None:
    asked: list[int] = []

    async def ask() -> A2AError | None:
        asked.append(1)
        return Unreachable("enough") if len(asked) == 5 else None

    watched = watch(Silence(ask_after=0.1, most=0.3), ask, LifeSigns())
    with pytest.raises(Unreachable, match="enough"):
        async with asyncio.timeout(WITHIN):
            with watched:
                await asyncio.Event().wait()
    watched.close()


async def test_an_agent_that_has_not_begun_is_not_asked() -> None:
    async def ask() -> A2AError | None:
        raise AssertionError("not now")

    watched = watch(Silence(ask_after=0.01, most=60, begin=0.3), ask, LifeSigns(), begun=False)
    with pytest.raises(NoSignOfLife, match=r"0\.3 s"):
        async with asyncio.timeout(WITHIN):
            with watched:
                await asyncio.Event().wait()
    watched.close()


async def test_a_cancel_from_outside_is_one() -> None:
    watched = watch(Silence(most=60), never, LifeSigns())

    async def wait() -> None:
        with watched:
            await asyncio.Event().wait()

    waiting = asyncio.create_task(wait())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    watched.close()


async def test_our_own_standing_still_is_not_the_agent_s_silence() -> None:
    """A stop of this process looks to its clocks like a very late timer."""
    signs = LifeSigns()
    answered = asyncio.Event()

    async def ask() -> A2AError | None:
        answered.set()
        return None

    watched = watch(Silence(ask_after=2, most=60), ask, signs)
    with watched:
        # As if the whole time since had been lost in one stop.
        watched._due_at -= 3600
        signs._last -= 3600
        watched._check()
        assert signs.silence < 60
    watched.close()
