"""What the gateway keeps for each agent it calls: connections, slots, circuits, retry budget.

Everything here is per agent, so that a slow or dead agent takes nothing from the others. A
connection uses the card that was pinned when the agent was registered, never one that the agent
shows later, and credentials go to the origin it was registered with.
"""

from collections.abc import Awaitable, Callable, Collection
from typing import Any

import msgspec

from dragoman.client.agent_connection import AgentConnection, Options
from dragoman.client.cards.cards import Cards, Fetched
from dragoman.client.credentials.credentials import ApiKey, Basic, Bearer, Credential
from dragoman.client.credentials.origins import origin_of
from dragoman.client.http import Http
from dragoman.client.pending_request import Observer
from dragoman.config import Settings
from dragoman.egress.targets import read_target
from dragoman.errors import AgentOffline, ConfigError
from dragoman.gateway.delivery.breaker import Breaker
from dragoman.gateway.delivery.bulkhead import Bulkhead
from dragoman.gateway.delivery.circuits import Circuits
from dragoman.gateway.delivery.retry_budget import RetryBudget
from dragoman.gateway.registry.registered import Registered
from dragoman.gateway.registry.registration import card_of
from dragoman.model.identity import Principal
from dragoman.security.secret_text import HIDDEN
from dragoman.stores.interface.agents import CircuitRow

# Seconds a request other than a message may take.
_TIMEOUT = 30.0
# The credential of an agent, by its id.
Credentials = Callable[[str], Awaitable[Credential | None]]
# Hears of circuits that open or close here.
CircuitHeard = Callable[[CircuitRow], None]
# Tells of an address that no call can reach at this moment.
Absent = Callable[[str], bool]


def _never(url: str) -> bool:
    return False


class Upstream:
    """One agent, as the gateway calls it."""

    def __init__(
        self,
        agent: Registered,
        http: Http,
        credentials: Credentials,
        settings: Settings,
        circuit_changed: CircuitHeard | None = None,
        own_url: str = "",
        is_absent: Absent = _never,
    ) -> None:
        """`own_url` is where this process serves the agent itself; empty: it does not."""
        self.agent: Registered = agent
        self._own_url = own_url
        self._is_absent = is_absent
        self.urls: list[str] = self._addresses()
        self._http = http
        self._credentials = credentials
        self._most_values = settings.http.max_json_values
        self.bulkhead = Bulkhead(settings.gateway.agent_concurrency, settings.gateway.agent_queue)
        self.budget = RetryBudget()
        # What of its answers deviated from its version and was read by its meaning, since the
        # process began.
        self.deviations: set[str] = set()
        self._circuit_changed = circuit_changed
        self.circuits = Circuits(changed=self._changed)
        self._connections: dict[str, AgentConnection] = {}
        self._round = 0

    def _changed(self, url: str, caller: Principal | None, breaker: Breaker) -> None:
        if self._circuit_changed is not None:
            text = None if caller is None else caller.text
            open_for = int(breaker.retry_in * 1000)
            self._circuit_changed(CircuitRow(self.agent.id, url, text, open_for, breaker.opened))

    def renew(self, agent: Registered) -> None:
        """Take over a changed registration: calls under way go on as they began."""
        if agent != self.agent:
            self.agent = agent
            self.urls = self._addresses()
            self._connections.clear()

    def _addresses(self) -> list[str]:
        if self._own_url:
            # Whichever process it was registered by.
            return [self._own_url]
        return [self.agent.url, *self.agent.replicas]

    def reached_at(self, url: str) -> str:
        """Return the address for a task that was sent to an address: the same one, unless this
        process serves the agent. Then the task is in our own store; empty: the agent is not there
        any more."""
        return url if url in self.urls else self._own_url

    def is_open(self, requester: Principal) -> bool:
        """Say whether all its circuits are open for a requester."""
        return all(self.circuits.is_open(url, requester) for url in self.urls)

    def retry_in(self, requester: Principal) -> float:
        """Return the seconds until one of its addresses may be tried; 0: at once."""
        urls = self.urls
        if len(urls) == 1:
            return self.circuits.retry_in(urls[0], requester)
        return min(self.circuits.retry_in(url, requester) for url in urls)

    def next_url(self, requester: Principal, avoided: str = "") -> str:
        """Return the address for a requester's next task: in rotation, addresses that are there
        and have a closed circuit first, and not the one that just failed if there is another."""
        urls = self.urls
        if len(urls) == 1:
            return urls[0]
        self._round += 1
        rotated = [urls[(self._round + index) % len(urls)] for index in range(len(urls))]
        is_open, is_absent = self.circuits.is_open, self._is_absent
        return min(
            rotated, key=lambda url: (is_absent(url), is_open(url, requester), url == avoided)
        )

    def may_return_to(self, url: str, requester: Principal) -> bool:
        """Say whether a requester's next task may go where an earlier one was, rather than to
        another address."""
        is_away = self._is_absent(url) or self.circuits.is_open(url, requester)
        return len(self.urls) == 1 or not is_away

    def works_once(self, url: str) -> bool:
        """Say whether a message sent twice there is worked on once, as far as that is known."""
        found = self._connections.get(url)
        return found is not None and found.works_once

    async def hidden(self, text: str) -> str:
        """Return a text that may quote the agent, without its credential."""
        secret = await self.secret()
        return text.replace(secret, HIDDEN) if secret else text

    async def secret(self) -> str:
        """Return what the agent is shown as a credential; empty: nothing that has a text."""
        match await self._credentials(self.agent.id):
            case Bearer(token=secret) | ApiKey(key=secret) | Basic(password=secret):
                return secret
            case _:
                return ""

    async def connection(self, url: str, observer: Observer | None = None) -> AgentConnection:
        """Return the connection to one of its addresses; raises `AgentOffline` for any other, also
        one that its owner removed: no credential is sent there any more. One with an observer is
        not shared."""
        url = self.reached_at(url)
        if not url:
            raise AgentOffline("The agent is not at this address any more")
        found = self._connections.get(url) if observer is None else None
        if found is None:
            agent = self.agent
            credential = await self._credentials(agent.id)
            fetched = pinned(agent, url)
            options = Options(
                credentials=[] if credential is None else [credential],
                origins=agent.origins,
                timeout=_TIMEOUT,
                most_values=self._most_values,
                sends_once=True,
                is_for_others=True,
                observer=observer,
            )
            found = AgentConnection(fetched, self._http, Cards(), options)
            await found.open()
            if agent is not self.agent and agent != self.agent:
                # Changed meanwhile: credential and address may belong to two registrations.
                return await self.connection(url, observer)
            if observer is None:
                self._connections[url] = found
        return found


def pinned(agent: Registered, url: str = "") -> Fetched:
    """Return the card by which an agent is called, at its own address or that of a replica."""
    raw = agent.card or synthesized(agent)
    card = card_of(agent)
    url = url or agent.url
    if url != agent.url:
        before, after = agent.url.rstrip("/"), url.rstrip("/")
        interfaces = [
            msgspec.structs.replace(one, url=_moved(one.url, before, after))
            for one in card.supported_interfaces
        ]
        card = msgspec.structs.replace(card, supported_interfaces=interfaces)
    return Fetched(card, raw, url, origin_of(url))


def synthesized(agent: Registered) -> dict[str, Any]:
    """Return a card for an agent that shows none, in the shape of its house dialect."""
    card: dict[str, Any] = {
        "name": agent.title,
        "description": agent.description,
        "url": agent.url,
        "version": "1.0.0",
        "capabilities": {},
        "skills": [msgspec.to_builtins(skill) for skill in agent.skills],
        "authentication": {"schemes": ["bearer"]},
    }
    if agent.dialect == "corvid":
        card["supportedProtocols"] = ["a2a"]
    return card


def _moved(url: str, before: str, after: str) -> str:
    """Return an interface's URL at a replica: below the same base, or else at the same path. One of
    gRPC may be host and port alone."""
    if "://" not in url:
        return _place(after) if url == _place(before) else url
    if url == before or url.startswith(f"{before}/"):
        return after + url.removeprefix(before)
    try:
        is_same = origin_of(url) == origin_of(before)
    except ConfigError:
        # The check of the card reports it.
        return url
    path = "/" + url.partition("://")[2].partition("/")[2]
    return origin_of(after) + path if is_same else url


def _place(url: str) -> str:
    """Return host and port of an address."""
    target = read_target(url)
    host = f"[{target.host}]" if ":" in target.host else target.host
    return f"{host}:{target.port}"


class Upstreams:
    """All agents that were called so far."""

    def __init__(
        self,
        http: Http,
        credentials: Credentials,
        settings: Settings,
        circuit_changed: CircuitHeard | None = None,
        is_absent: Absent = _never,
    ) -> None:
        """`circuit_changed` hears of circuits that open or close here."""
        self._is_absent = is_absent
        self._http = http
        self._credentials = credentials
        self._settings = settings
        self._circuit_changed = circuit_changed
        # Where this process serves agents itself, by their ids.
        self._own: dict[str, str] = {}
        self._upstreams: dict[str, Upstream] = {}

    def of(self, agent: Registered) -> Upstream:
        """Return what is kept for an agent; it is made if there is nothing."""
        found = self._upstreams.get(agent.id)
        if found is None:
            found = Upstream(
                agent,
                self._http,
                self._credentials,
                self._settings,
                self._circuit_changed,
                self._own.get(agent.id, ""),
                self._is_absent,
            )
            self._upstreams[agent.id] = found
        elif found.agent is not agent:
            found.renew(agent)
        return found

    def serve_own(self, agent_id: str, url: str) -> None:
        """Have an agent of this process called at its address here."""
        self._own[agent_id] = url
        self._upstreams.pop(agent_id, None)

    def adopt(self, agent: Registered, row: CircuitRow) -> None:
        """Take over what another process found of an address of an agent."""
        caller = None if row.caller is None else Principal.read(row.caller)
        self.of(agent).circuits.adopt(row.url, caller, row.open_for / 1000, row.opened)

    def find(self, agent_id: str) -> Upstream | None:
        """Return what is kept for an agent, if it was ever called."""
        return self._upstreams.get(agent_id)

    def keep(self, ids: Collection[str]) -> None:
        """Drop all agents but these: the others were removed, here or in another process."""
        for agent_id in [one for one in self._upstreams if one not in ids]:
            del self._upstreams[agent_id]
