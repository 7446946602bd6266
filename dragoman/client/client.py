"""The client: talk to any A2A agent as it is.

    async with Client("https://agent.example.com") as agent:
        answer = await agent.send("hello")
        print(answer.text)

What to reach is a host, a URL, a card file or a card. What it can be asked is in `calls.py`; here
is its blocking twin, `client.sync`.
"""

import asyncio
import threading
from typing import Self

from dragoman.client.calls import AgentCalls
from dragoman.client.sync import Sync
from dragoman.errors import ConfigError

# Two threads that ask one client for its twin get the same.
_making = threading.Lock()


class Client(AgentCalls):
    __doc__ = AgentCalls.__doc__

    _sync: Sync | None = None

    @property
    def sync(self) -> Sync:
        """The same methods for code that is not async; they may be called inside a loop too."""
        with _making:
            if self._waits.is_closed:
                raise ConfigError("the client is closed")
            if self._sync is None or self._sync.is_closed:
                self._sync = Sync(self.copy())
            return self._sync

    def copy(self) -> Self:
        """Return a client of the same agent with connections of its own."""
        twin = super().copy()
        twin._sync = None
        return twin

    async def close(self) -> None:
        """Close what is open, for good. Calls under way end with `Unreachable`; tasks go on
        without us."""
        self._waits.close()
        with _making:
            sync, self._sync = self._sync, None
        if sync is not None:
            # Not on this loop, which may be the one that it waits for.
            await asyncio.to_thread(sync.close)
        await super().close()
