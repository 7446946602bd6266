"""A limit on the time of a block: what `asyncio.timeout` promises holds."""

import asyncio

import pytest

from dragoman.client.time_limit import TimeLimit


async def _wait(seconds: float) -> None:
    with TimeLimit(seconds, asyncio.get_running_loop()):
        await asyncio.Event().wait()


async def test_a_block_that_takes_longer_is_ended() -> None:
    with pytest.raises(TimeoutError):
        await _wait(0.001)
    task = asyncio.current_task()
    assert task is not None and task.cancelling() == 0


async def test_a_block_in_time_is_left_alone() -> None:
    loop = asyncio.get_running_loop()
    later = asyncio.Event()
    with TimeLimit(0.001, loop):
        pass
    loop.call_later(0.005, later.set)
    await asyncio.wait_for(later.wait(), 5)


async def test_a_cancellation_from_elsewhere_passes() -> None:
    waiting = asyncio.ensure_future(_wait(60))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_a_cancellation_from_elsewhere_at_the_same_moment_passes() -> None:
    async def both() -> None:
        task = asyncio.current_task()
        assert task is not None
        limit = TimeLimit(60, asyncio.get_running_loop())
        with limit:
            limit.expire()
            task.cancel()
            await asyncio.Event().wait()

    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(asyncio.ensure_future(both()), 5)


async def test_another_error_is_not_hidden_by_the_end_of_the_time() -> None:
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None
    limit = TimeLimit(60, loop)
    with pytest.raises(ValueError, match="own"), limit:
        loop.call_soon(limit.expire)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ValueError("own") from None
    assert task.cancelling() == 0
    # Nothing is left of the cancellation for what waits next.
    await asyncio.sleep(0)
