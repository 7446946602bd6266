"""Wake-ups by NATS. A lost one costs latency, never an event.

NATS tells a publisher nothing of what was lost, and a listener nothing of what it missed. So every
worker numbers its messages; after a gap in them, as after each new connection, listeners look at
everything they follow. A server that is not there keeps no worker from its work: it is tried again
for as long as the store is open.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any, cast

from nats.aio.client import Client
from nats.errors import Error, SlowConsumerError

from dragoman.stores.interface import Rung
from dragoman.stores.rings import WorkerBus, decoded, encoded

logger = logging.getLogger("dragoman")

# Seconds between two signs of life, of which two may stay unanswered.
_PING_EVERY = 2
_CONNECT_WITHIN = 2
_BETWEEN_TRIES = 1
# Rings for when the server is back are of no use: then everything is looked at.
_KEEPS_NOTHING = 0
_CLOSE_WITHIN = 2.0


class NatsBus(WorkerBus):
    """Rings the other workers of one database through a NATS server."""

    def __init__(
        self, url: str, subject: Callable[[], Awaitable[str]], worker: Callable[[], int]
    ) -> None:
        """`subject` is one per database, so that two of them on one server do not mix."""
        super().__init__(worker)
        # Several with commas in between.
        self._servers = [part.strip() for part in url.split(",")]
        self._subject_of = subject
        self._subject = ""
        self._client = Client()
        self._connecting: asyncio.Task[None] | None = None
        # The last message that we sent, and the last that we had of each worker.
        self._sent = 0
        self._places: dict[int, int] = {}
        self._trouble = "not connected yet"
        # Whether we are subscribed: what is rung for before is not heard.
        self._hears = False

    @property
    def trouble(self) -> str:
        """What is wrong with it at present."""
        return "" if self._client.is_connected and self._hears else f"NATS: {self._trouble}"

    async def open(self) -> None:
        """Connect if the server is there; otherwise go on trying."""
        self._subject = await self._subject_of()
        self._connecting = asyncio.get_running_loop().create_task(self._connect())
        # The first try is awaited: most often all is well, and nothing is missed.
        await asyncio.wait([self._connecting], timeout=_CONNECT_WITHIN)

    async def close(self) -> None:
        """Send what is to be sent, and disconnect."""
        await super().close()
        # What follows is no trouble.
        self._trouble = self._trouble or "closed"
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.gather(self._connecting, return_exceptions=True)
        with contextlib.suppress(Error, OSError, TimeoutError):
            async with asyncio.timeout(_CLOSE_WITHIN):
                if self._client.is_connected:
                    await self._client.flush()
                await self._client.close()

    async def _connect(self) -> None:
        while True:
            try:
                await self._client.connect(
                    self._servers,
                    error_cb=self._failed,
                    disconnected_cb=self._disconnected,
                    reconnected_cb=self._connected,
                    allow_reconnect=True,
                    connect_timeout=_CONNECT_WITHIN,
                    reconnect_time_wait=_BETWEEN_TRIES,
                    max_reconnect_attempts=-1,
                    ping_interval=_PING_EVERY,
                    max_outstanding_pings=2,
                    no_echo=True,
                    pending_size=_KEEPS_NOTHING,
                )
                break
            except (Error, OSError, TimeoutError) as error:
                await self._failed(error)
                # What half a connection left behind is of no use.
                self._client = Client()
                await asyncio.sleep(_BETWEEN_TRIES)
        # Its own types say too little for a strict checker.
        await cast("Any", self._client).subscribe(self._subject, cb=self._heard)
        with contextlib.suppress(Error, OSError):
            await self._wait_until_subscribed()
        await self._connected()

    async def _wait_until_subscribed(self) -> None:
        """Return when the server knows of it. The library writes a ping at once, before what it has
        queued: only the second one is behind the subscription."""
        answers = 0
        while answers < 2:
            with contextlib.suppress(TimeoutError):
                await self._client.flush(_CONNECT_WITHIN)
                answers += 1

    async def _send(self, rung: Rung) -> None:
        self._sent += 1
        message = encoded(self.worker(), self._sent, rung)
        # Lost with its connection: listeners look again by themselves.
        with contextlib.suppress(Error, OSError):
            if self._client.is_connected:
                await self._client.publish(self._subject, message)

    async def _heard(self, message: Any) -> None:
        worker, place, rung = decoded(message.data)
        before = self._places.get(worker, place - 1)
        self._places[worker] = place
        self.tell(rung if place == before + 1 else None)

    async def _connected(self) -> None:
        if self._trouble:
            logger.info("connected to the bus")
        self._trouble, self._hears = "", True
        self._places.clear()
        self.tell(None)

    async def _disconnected(self) -> None:
        self._hears = False
        await self._failed(ConnectionError("the connection was lost"))

    async def _failed(self, error: Exception) -> None:
        if isinstance(error, SlowConsumerError):
            # Messages for us were thrown away.
            self.tell(None)
            return
        if not self._trouble:
            logger.warning("the bus does not answer (%s); events are seen later", error)
        self._trouble = str(error) or type(error).__name__
