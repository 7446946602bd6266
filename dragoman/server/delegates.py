"""The clients that an agent's code calls others with, kept open for as long as it is served.

They go where the author said, and otherwise to public addresses alone: what a card names is
somebody else's word. A client that the author made goes where it was made to go.
"""

import asyncio
import contextlib
import logging
import weakref
from collections import Counter, OrderedDict
from collections.abc import Coroutine, Generator, Sequence
from typing import Any

from dragoman.client import references
from dragoman.client.client import CONNECTIONS, Client
from dragoman.client.http import Http
from dragoman.errors import A2AError, ConfigError
from dragoman.model.card import AgentCard
from dragoman.model.events import Delegated
from dragoman.model.record import encode
from dragoman.security.egress import Egress
from dragoman.security.targets import USUAL_PORTS, NotCanonical, Policy, Target, read_target

logger = logging.getLogger("dragoman")

# Seconds another agent has to hear that a task is canceled.
CANCEL_WITHIN = 5.0
# Clients that are kept although nobody uses them: code may call whomever its callers name.
MOST_IDLE = 256

Ref = str | AgentCard | Client


class Delegates:
    """The clients of one agent's code."""

    def __init__(self, clients: Sequence[Client] = ()) -> None:
        # By address; of a card, by all it says: names are not for one agent alone. The one that
        # was used last is the last.
        self._kept: OrderedDict[str | bytes, _Kept] = OrderedDict()
        # Those that the author made, who may have put credentials into them, by what they are for.
        self._authors: weakref.WeakValueDictionary[str, Client] = weakref.WeakValueDictionary()
        self._beside: set[asyncio.Task[None]] = set()
        # Tasks of the agent that wait for others, by how many of these.
        self.waiting: Counter[str] = Counter()
        for client in clients:
            self._authors[client.reference] = client

    @contextlib.contextmanager
    def client(self, ref: Ref) -> Generator[Client]:
        """Give the client to call somebody with; it is not closed meanwhile."""
        if isinstance(ref, Client):
            self._authors[ref.reference] = ref
            yield ref
            return
        key = encode(ref) if isinstance(ref, AgentCard) else ref
        kept = self._kept.get(key)
        if kept is None:
            kept = self._kept[key] = _Kept(guarded(ref))
        self._kept.move_to_end(key)
        kept.users += 1
        try:
            yield kept.client
        finally:
            kept.users -= 1
            self._let_go()

    def _let_go(self) -> None:
        if len(self._kept) <= MOST_IDLE:
            return
        idle = [key for key, kept in self._kept.items() if not kept.users]
        for key in idle[: max(0, len(idle) - MOST_IDLE)]:
            self.soon(self._kept.pop(key).client.close())

    @contextlib.contextmanager
    def awaited(self, task_id: str) -> Generator[None]:
        """Have a task of the agent be one that waits for another agent."""
        self.waiting[task_id] += 1
        try:
            yield
        finally:
            self.waiting[task_id] -= 1
            if not self.waiting[task_id]:
                del self.waiting[task_id]

    def soon(self, deed: Coroutine[Any, Any, None]) -> None:
        """Do something that nobody waits for."""
        task = asyncio.get_running_loop().create_task(deed)
        self._beside.add(task)
        task.add_done_callback(self._beside.discard)

    def withdraw(self, given: Sequence[Delegated]) -> None:
        """Have tasks canceled that agents were given by code that is gone."""
        for one in given:
            client = self._authors.get(one.url) or self._authors.get(one.agent)
            self.soon(self.cancel(client or one.url, one))

    async def cancel(self, ref: Ref, given: Delegated) -> None:
        """Tell an agent that what it was given is not wanted any more."""
        try:
            with self.client(ref) as client:
                async with asyncio.timeout(CANCEL_WITHIN):
                    await client.cancel(given.task_id)
        except (A2AError, ConfigError, TimeoutError) as error:
            logger.info("%s was not told that its task is canceled: %s", given.agent, error)

    async def close(self) -> None:
        """Have what is done beside end, and close all clients."""
        if self._beside:
            await asyncio.wait(self._beside, timeout=CANCEL_WITHIN)
        for task in self._beside:
            task.cancel()
        every, self._kept = self._kept, OrderedDict()
        for kept in every.values():
            await kept.client.close()


class _Kept:
    """A client, and how many use it."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.users = 0


def name_of(ref: Ref) -> str:
    """Return what a call says whom it is for."""
    if isinstance(ref, Client):
        return ref.reference
    return ref.name if isinstance(ref, AgentCard) else ref


def address_of(ref: Ref) -> str:
    """Return by what an agent is told from others, as far as that is known before it is called."""
    if isinstance(ref, AgentCard) and ref.supported_interfaces:
        # A name is no address: whoever cancels the task later has nothing else to go by.
        return ref.supported_interfaces[0].url
    return name_of(ref)


def guarded(ref: str | AgentCard) -> Client:
    """Return a client of an agent that goes nowhere else than to public addresses, unless the
    agent itself is at another."""
    url = ""
    if isinstance(ref, AgentCard):
        url = address_of(ref)
    else:
        with contextlib.suppress(A2AError):
            url = references.parse(ref).origin
    try:
        target = read_target(url)
    except NotCanonical:
        # A file of the author's own, or nothing that can be called: the client says why.
        return Client(ref)
    return _Guarded(ref, target)


class _Guarded(Client):
    """A client that is kept from what is private, but for where its author sent it."""

    def __init__(self, ref: str | AgentCard, target: Target) -> None:
        self._target = target
        super().__init__(ref)

    def _new_http(self) -> Http:
        public = Policy(allow=(), allow_private=False, ports=USUAL_PORTS)
        # The neighbours of an agent on a private address have others; it may go by several names.
        is_near = not _is_public(self._target, public)
        return Egress(
            allow=[self._target.host],
            allow_private=is_near,
            keep_alive=True,
            connect_timeout=self._connect_timeout,
            per_host=CONNECTIONS,
        )


def _is_public(target: Target, public: Policy) -> bool:
    """Tell whether a host is, by its name or address, whatever the scheme and the port."""
    host = f"[{target.host}]" if target.address is not None and ":" in target.host else target.host
    return not public.refusal(read_target(f"https://{host}/"))
