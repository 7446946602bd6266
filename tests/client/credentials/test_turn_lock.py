"""Taking turns on one loop and on several."""

import asyncio
import threading

import pytest
from harness.waiting import within

from dragoman.client.credentials import turn_lock
from dragoman.client.credentials.turn_lock import Turns

PATIENCE = 60.0


async def test_a_turn_on_another_loop_is_waited_for() -> None:
    gate = Turns()
    begun, release = threading.Event(), threading.Event()
    order: list[str] = []

    async def first() -> None:
        async with gate.take():
            begun.set()
            await asyncio.to_thread(release.wait, PATIENCE)
            order.append("first")

    async def second() -> None:
        async with gate.take():
            order.append("second")

    other = asyncio.create_task(asyncio.to_thread(asyncio.run, first()))
    assert await asyncio.to_thread(begun.wait, PATIENCE)
    waiting = asyncio.create_task(second())
    await asyncio.sleep(0)
    release.set()
    await within(asyncio.gather(other, waiting))
    assert order == ["first", "second"]


async def test_whoever_gives_up_waiting_takes_no_turn_from_the_others() -> None:
    gate = Turns()
    release = asyncio.Event()
    inside = most = 0

    async def one() -> None:
        nonlocal inside, most
        async with gate.take():
            inside += 1
            most = max(most, inside)
            await release.wait()
            inside -= 1

    tasks = [asyncio.create_task(one()) for _ in range(5)]
    await asyncio.sleep(0)
    tasks[1].cancel()
    await asyncio.sleep(0)
    release.set()
    ended = await within(asyncio.gather(*tasks, return_exceptions=True))
    assert [type(one) for one in ended].count(asyncio.CancelledError) == 1
    assert (inside, most) == (0, 1)


async def test_whoever_gave_up_with_their_loop_is_not_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    gate = Turns()

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02), gate.take():
                pass

    async with asyncio.timeout(PATIENCE):
        async with gate.take():
            await asyncio.to_thread(lambda: asyncio.run(give_up()))
        async with gate.take():
            pass
    assert caplog.records == []


async def test_a_turn_ends_with_an_error_too() -> None:
    gate = Turns()
    with pytest.raises(ZeroDivisionError):
        async with gate.take():
            raise ZeroDivisionError
    async with asyncio.timeout(PATIENCE), gate.take():
        pass


async def test_a_turn_on_a_loop_that_has_stopped_is_not_waited_for_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(turn_lock, "LONGEST_TURN", 0.05)
    gate = Turns()
    stopped = asyncio.new_event_loop()

    async def stay() -> None:
        async with gate.take():
            stopped.stop()
            await asyncio.Event().wait()

    staying = stopped.create_task(stay())
    await asyncio.to_thread(stopped.run_forever)
    async with asyncio.timeout(PATIENCE), gate.take():
        # The one that stopped has no say in whose turn it is.
        staying.cancel()
        await asyncio.to_thread(_finish, stopped, staying)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02), gate.take():
                pass


def _finish(loop: asyncio.AbstractEventLoop, task: "asyncio.Task[None]") -> None:
    loop.run_until_complete(asyncio.wait([task]))
    loop.close()
