"""The client: one gateway, and a service for each part of its API."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Self

from dragoman.compat.nexus.connection import NexusConnection
from dragoman.compat.nexus.services import (
    Billing,
    NexusAgents,
    NexusTasks,
    NexusTrust,
    NexusWorkflows,
)


class NexusClient:
    """Calls a gateway. `api_key` is one of its keys or a token; `timeout` is in seconds, for one
    try. A request that the gateway deferred, or that did not reach it, is tried `max_retries` times
    more if it may be repeated. Every failure is a `NexusError`.
    """

    def __init__(
        self,
        base_url: str = "http://127.0.0.1:8000",
        api_key: str = "",
        *,
        max_retries: int = 3,
        timeout: float = 30.0,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._connection = NexusConnection(base_url, api_key, max_retries, timeout, pause)
        self.agents = NexusAgents(self._connection)
        self.tasks = NexusTasks(self._connection)
        self.trust = NexusTrust(self._connection)
        self.billing = Billing(self._connection)
        self.workflows = NexusWorkflows(self._connection)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections, for good."""
        await self._connection.close()
