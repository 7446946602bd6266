"""The client: one gateway, and a service for each thing that it has."""

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

from dragoman.compat.nexus.line import Line
from dragoman.compat.nexus.services import Agents, Billing, Tasks, Trust, Workflows


class NexusClient:
    """Talks to a gateway. `api_key` is one of its keys or a token; `timeout` is in seconds, for one
    try. What the gateway puts off, and what did not reach it, is tried `max_retries` times more
    where it does no harm. Everything that fails is a `NexusError`.
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
        self._line = Line(base_url, api_key, max_retries, timeout, pause)
        self.agents = Agents(self._line)
        self.tasks = Tasks(self._line)
        self.trust = Trust(self._line)
        self.billing = Billing(self._line)
        self.workflows = Workflows(self._line)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections, for good."""
        await self._line.close()
