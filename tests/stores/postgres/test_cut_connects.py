"""A connection that is given up while it is opened leaves nothing behind."""

import asyncio
import gc
from typing import Any

import pytest

from dragoman.stores.postgres import Addresses
from dragoman.stores.postgres.connections import Connections

pytestmark = pytest.mark.anyio


async def test_a_read_that_is_canceled_while_it_connects_leaves_no_error_behind(
    database: str,
) -> None:
    said: list[Any] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: said.append(context))
    try:
        # The driver has a socket after a few turns of the loop, and a session after some more.
        for turns in range(24):
            connections = Connections(Addresses(database))
            await connections.open()
            reading = asyncio.create_task(connections.rows("SELECT 1"))
            for _ in range(turns):
                await asyncio.sleep(0)
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            await connections.close()
            await asyncio.sleep(0)
            gc.collect()
        assert said == []
    finally:
        loop.set_exception_handler(None)
