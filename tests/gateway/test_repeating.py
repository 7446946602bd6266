"""What a gateway does again and again goes on after whatever one time raised."""

import asyncio
import logging

import pytest

from dragoman.errors import StoreUnavailable
from dragoman.gateway.repeating import Repeating

WITHIN = 60.0


@pytest.mark.parametrize("error", [StoreUnavailable("away"), RuntimeError("broken")])
async def test_it_goes_on_after_a_failure_and_says_so(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    times = 0
    is_done = asyncio.Event()

    async def do() -> None:
        nonlocal times
        times += 1
        if times == 1:
            raise error
        is_done.set()

    async def pause() -> None:
        await asyncio.sleep(0)

    repeating = Repeating("the pots could not be counted", do, pause)
    with caplog.at_level(logging.WARNING, "dragoman"):
        repeating.start()
        await asyncio.wait_for(is_done.wait(), WITHIN)
    await asyncio.wait_for(repeating.stop(), WITHIN)
    assert "the pots could not be counted; trying again" in caplog.text


async def test_it_ends_in_the_midst_and_may_never_have_begun() -> None:
    has_begun = asyncio.Event()

    async def do() -> None:
        has_begun.set()
        await asyncio.Event().wait()

    repeating = Repeating("nothing", do, asyncio.Event().wait)
    await repeating.stop()
    repeating.start()
    await asyncio.wait_for(has_begun.wait(), WITHIN)
    await asyncio.wait_for(repeating.stop(), WITHIN)
