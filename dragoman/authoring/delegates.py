"""The clients that an agent's code calls others with, open for as long as the agent is served.

They dial the address that the author named, and otherwise only public ones: a card is not trusted
to name a private address. A client that the author made dials what it was made for.
"""

import asyncio
import contextlib
import logging
import weakref
from collections import Counter, OrderedDict
from collections.abc import Coroutine, Generator, Sequence
from typing import Any

from dragoman.client.calls import CONNECTIONS
from dragoman.client.cards import references
from dragoman.client.client import Client
from dragoman.client.http import Http
from dragoman.egress.egress import Egress
from dragoman.egress.targets import USUAL_PORTS, NotCanonical, Policy, Target, read_target
from dragoman.errors import A2AError, ConfigError
from dragoman.model.card import AgentCard
from dragoman.model.events import Delegated
from dragoman.model.record import encode

logger = logging.getLogger("dragoman")

# Seconds that another agent has to take a cancel.
CANCEL_WITHIN = 5.0
# Unused clients that stay open. Bounded: code may call any agent that its callers name.
MOST_IDLE = 256

Ref = str | AgentCard | Client


class Delegates:
    """The clients of one agent's code."""

    def __init__(self, clients: Sequence[Client] = ()) -> None:
        # By address, or by the whole card: two cards may have one name. Least recently used first.
        self._clients: OrderedDict[str | bytes, _SharedClient] = OrderedDict()
        # Clients that the author made, perhaps with credentials, by their reference.
        self._authors: weakref.WeakValueDictionary[str, Client] = weakref.WeakValueDictionary()
        self._background: set[asyncio.Task[None]] = set()
        # Tasks of the agent that wait for other agents, and for how many.
        self.waiting: Counter[str] = Counter()
        for client in clients:
            self._authors[client.reference] = client

    @contextlib.contextmanager
    def client(self, ref: Ref) -> Generator[Client]:
        """Give the client of an agent; it is not closed meanwhile."""
        if isinstance(ref, Client):
            self._authors[ref.reference] = ref
            yield ref
            return
        key = encode(ref) if isinstance(ref, AgentCard) else ref
        shared = self._clients.get(key)
        if shared is None:
            shared = self._clients[key] = _SharedClient(guarded_client(ref))
        self._clients.move_to_end(key)
        shared.users += 1
        try:
            yield shared.client
        finally:
            shared.users -= 1
            self._close_idle()

    def _close_idle(self) -> None:
        if len(self._clients) <= MOST_IDLE:
            return
        idle = [key for key, shared in self._clients.items() if not shared.users]
        for key in idle[: max(0, len(idle) - MOST_IDLE)]:
            self.in_background(self._clients.pop(key).client.close())

    @contextlib.contextmanager
    def counted_as_waiting(self, task_id: str) -> Generator[None]:
        """Count a task of the agent as one that waits for another agent."""
        self.waiting[task_id] += 1
        try:
            yield
        finally:
            self.waiting[task_id] -= 1
            if not self.waiting[task_id]:
                del self.waiting[task_id]

    def in_background(self, deed: Coroutine[Any, Any, None]) -> None:
        """Run something in the background until it ends, or the clients are closed."""
        task = asyncio.get_running_loop().create_task(deed)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def withdraw(self, given: Sequence[Delegated]) -> None:
        """Cancel tasks of other agents whose worker is gone, in the background."""
        for one in given:
            client = self._authors.get(one.url) or self._authors.get(one.agent)
            self.in_background(self.cancel(client or one.url, one))

    async def cancel(self, ref: Ref, given: Delegated) -> None:
        """Cancel a task of another agent; a failure is logged."""
        try:
            with self.client(ref) as client:
                async with asyncio.timeout(CANCEL_WITHIN):
                    await client.cancel(given.task_id)
        except (A2AError, ConfigError, TimeoutError) as error:
            logger.info("%s was not told that its task is canceled: %s", given.agent, error)

    async def close(self) -> None:
        """Wait for what runs in the background, and close all clients."""
        if self._background:
            await asyncio.wait(self._background, timeout=CANCEL_WITHIN)
        for task in self._background:
            task.cancel()
        every, self._clients = self._clients, OrderedDict()
        for shared in every.values():
            await shared.client.close()


class _SharedClient:
    """A client, and how many calls use it."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.users = 0


def name_of(ref: Ref) -> str:
    """Return the name of an agent that is called."""
    if isinstance(ref, Client):
        return ref.reference
    return ref.name if isinstance(ref, AgentCard) else ref


def address_of(ref: Ref) -> str:
    """Return what identifies an agent, as far as that is known before it is called."""
    if isinstance(ref, AgentCard) and ref.supported_interfaces:
        # The address, not the name: a later cancel has nothing else to find the agent by.
        return ref.supported_interfaces[0].url
    return name_of(ref)


def guarded_client(ref: str | AgentCard) -> Client:
    """Return a client of an agent that dials only public addresses, unless the agent itself is at
    a private one."""
    url = ""
    if isinstance(ref, AgentCard):
        url = address_of(ref)
    else:
        with contextlib.suppress(A2AError):
            url = references.parse(ref).origin
    try:
        target = read_target(url)
    except NotCanonical:
        # A file of the author's own, or nothing that can be called: the client reports it.
        return Client(ref)
    return _GuardedClient(ref, target)


class _GuardedClient(Client):
    """A client that dials private addresses only where its author named one."""

    def __init__(self, ref: str | AgentCard, target: Target) -> None:
        self._target = target
        super().__init__(ref)

    def _new_http(self) -> Http:
        public = Policy(allow=(), allow_private=False, ports=USUAL_PORTS)
        # An agent at a private address may go by several names, so all private ones are allowed.
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
