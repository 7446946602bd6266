"""The sender: one posting for every receiver this process is responsible for.

A failing receiver waits in its own posting and delays no other. Receivers of a process that died
are claimed from the store by the owner of the sender, and added like any other.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING

from dragoman.dialects.dialect import Dialect
from dragoman.egress.errors import EgressRefused
from dragoman.errors import InvalidParams
from dragoman.model.clock import Clock, SystemClock
from dragoman.model.push import PushConfig
from dragoman.push.posting import Follow, Poster, Posting, PostingContext, Read
from dragoman.push.request import origin
from dragoman.push.slots import Slots
from dragoman.stores.interface import Push, Store
from dragoman.telemetry import figures

if TYPE_CHECKING:
    # Only where the option is on: its libraries are an extra.
    from dragoman.push.token import Tokens

logger = logging.getLogger("dragoman.push")


class Sender:
    """Delivers to every receiver it was given."""

    def __init__(
        self,
        store: Store,
        egress: Poster,
        *,
        follow: Follow,
        read: Read,
        dialects: Mapping[str, Dialect],
        secrets: Sequence[bytes],
        tokens: "Tokens | None" = None,
        clock: Clock | None = None,
        slots: int = 256,
        timeout: float = 15.0,
        random: Random | None = None,
    ) -> None:
        self._means = PostingContext(
            store,
            egress,
            follow,
            read,
            dialects,
            secrets,
            tokens,
            clock or SystemClock(),
            Slots(slots),
            timeout,
            random or Random(),
        )
        self._running: dict[int, tuple[Posting, asyncio.Task[None]]] = {}
        # Receivers that were added once more: their postings may not have heard yet that they had
        # lost them.
        self._again: dict[int, Push] = {}
        self._unwatch = figures.push_receivers.watch(self._running_now)

    def add(self, push: Push) -> None:
        """Begin to deliver to a receiver that this process holds."""
        if not push.is_open:
            return
        if push.number in self._running:
            if self._running[push.number][0].push.config == push.config:
                self._again[push.number] = push
                return
            # The number went to another receiver.
            self.drop(push)
        if push.config.version not in self._means.dialects:
            logger.error("a receiver wants version %s, which is unknown", push.config.version)
            return
        posting = Posting(push, self._means)
        task = asyncio.get_running_loop().create_task(posting.run())
        self._running[push.number] = posting, task
        task.add_done_callback(lambda task: self._ended(push.number, task))

    def check(self, config: PushConfig) -> None:
        """Raise `InvalidParams` if nothing would ever be posted there; why is not said, since that
        would describe our network. What a name leads to is checked at each try."""
        try:
            self._means.egress.check(config.url)
        except EgressRefused as error:
            logger.warning("%s is refused as a receiver: %s", origin(config.url), error.reason)
            raise InvalidParams("is not an address that posts may go to", field="url") from None

    def hurry(self, number: int) -> bool:
        """Try a receiver at once; tell whether this process delivers to it."""
        found = self._running.get(number)
        if found is not None:
            found[0].hurry()
        return found is not None

    def drop(self, push: Push) -> None:
        """Deliver no more to a receiver."""
        self._again.pop(push.number, None)
        found = self._running.pop(push.number, None)
        if found is not None:
            found[1].cancel()

    async def stop(self, grace: float = 5.0) -> None:
        """End. Posts on their way have a moment to be answered, so that they are not repeated."""
        self._unwatch()
        self._again.clear()
        tasks: list[asyncio.Task[None]] = []
        for posting, task in self._running.values():
            posting.is_ending = True
            if not posting.is_busy:
                task.cancel()
            tasks.append(task)
        if not tasks:
            return
        _, late = await asyncio.wait(tasks, timeout=grace)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late)

    @property
    def running(self) -> int:
        """How many receivers are being delivered to."""
        return len(self._running)

    def _running_now(self) -> float:
        return len(self._running)

    def _ended(self, number: int, task: asyncio.Task[None]) -> None:
        if (found := self._running.get(number)) is not None and found[1] is task:
            del self._running[number]
            if (push := self._again.pop(number, None)) is not None:
                # If it ended for another reason, the next one finds that out before it posts.
                self.add(push)
