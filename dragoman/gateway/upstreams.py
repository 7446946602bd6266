"""What the gateway keeps for each agent it forwards to: lines, places, breakers, second tries.

Everything here is per agent, so that one that is slow or dead takes nothing from the others. Lines
are made from the card that was pinned when the agent was registered, never from one that an agent
shows meanwhile, and credentials go to the origin it was registered with.
"""

from collections.abc import Awaitable, Callable, Collection
from typing import Any

import msgspec

from dragoman.client.cards import Cards, Fetched
from dragoman.client.credentials import ApiKey, Bearer, Credential
from dragoman.client.http import Http
from dragoman.client.line import Line, Options
from dragoman.client.origins import origin_of
from dragoman.config import Settings
from dragoman.errors import AgentOffline, ConfigError
from dragoman.gateway.agents import Registered
from dragoman.gateway.budget import RetryBudget
from dragoman.gateway.bulkhead import Bulkhead
from dragoman.gateway.circuits import Circuits
from dragoman.gateway.registration import card_of
from dragoman.model.identity import Principal
from dragoman.security.secret_text import HIDDEN

# Seconds a request other than a message may take.
_TIMEOUT = 30.0
# The credential of an agent, by its id.
Credentials = Callable[[str], Awaitable[Credential | None]]


class Upstream:
    """One agent as the gateway deals with it."""

    def __init__(
        self, agent: Registered, http: Http, credentials: Credentials, settings: Settings
    ) -> None:
        self.agent: Registered = agent
        # Where the agent is.
        self.urls: list[str] = [agent.url, *agent.replicas]
        self._http = http
        self._credentials = credentials
        self._most_values = settings.max_json_values
        self.places = Bulkhead(settings.agent_concurrency, settings.agent_queue)
        self.budget = RetryBudget()
        self.circuits = Circuits()
        self._lines: dict[str, Line] = {}
        self._turn = 0

    def renew(self, agent: Registered) -> None:
        """Take note that the agent was changed: what is under way goes on as it began."""
        if agent is not self.agent and agent != self.agent:
            self.agent = agent
            self.urls = [agent.url, *agent.replicas]
            self._lines.clear()

    def is_open(self, who: Principal) -> bool:
        """Say whether nobody there is called for somebody at present."""
        return all(self.circuits.is_open(url, who) for url in self.urls)

    def retry_in(self, who: Principal) -> float:
        """Return the seconds until one of its addresses may be tried; 0: at once."""
        return min(self.circuits.retry_in(url, who) for url in self.urls)

    def next_url(self, who: Principal, avoided: str = "") -> str:
        """Return the address for somebody's next task: one after the other, those that answer
        first, and not the one that just failed if there is another."""
        urls = self.urls
        if len(urls) == 1:
            return urls[0]
        self._turn += 1
        turned = [urls[(self._turn + place) % len(urls)] for place in range(len(urls))]
        is_open = self.circuits.is_open
        return min(turned, key=lambda url: (is_open(url, who), url == avoided))

    def works_once(self, url: str) -> bool:
        """Say whether a message sent twice there is worked on once, as far as that is known."""
        found = self._lines.get(url)
        return found is not None and found.works_once

    async def hidden(self, text: str) -> str:
        """Return a text that may quote the agent without what we show it."""
        credential = await self._credentials(self.agent.id)
        match credential:
            case Bearer(token=secret) | ApiKey(key=secret):
                return text.replace(secret, HIDDEN)
            case _:
                return text

    async def line(self, url: str) -> Line:
        """Return the line to one of its addresses; raises `AgentOffline` for any other, also one
        that its owner took back: nothing is shown there any more."""
        if url not in self.urls:
            raise AgentOffline("The agent is not at this address any more")
        found = self._lines.get(url)
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
            )
            found = Line(fetched, self._http, Cards(), options)
            await found.open()
            if agent is not self.agent and agent != self.agent:
                # Changed meanwhile: its credential and its address may be of two times.
                return await self.line(url)
            self._lines[url] = found
        return found


def pinned(agent: Registered, url: str = "") -> Fetched:
    """Return the card an agent is called by, at its own address or that of a replica."""
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
    """Return the card of an agent that shows none: in the shape of the house it speaks like."""
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
    """Return an address at another place: below the same base, or else at the same path."""
    if url == before or url.startswith(f"{before}/"):
        return after + url.removeprefix(before)
    try:
        is_there = origin_of(url) == origin_of(before)
    except ConfigError:
        # What cannot be read is left for the card's check.
        return url
    path = "/" + url.partition("://")[2].partition("/")[2]
    return origin_of(after) + path if is_there else url


class Upstreams:
    """All agents that were forwarded to so far."""

    def __init__(self, http: Http, credentials: Credentials, settings: Settings) -> None:
        self._http = http
        self._credentials = credentials
        self._settings = settings
        self._known: dict[str, Upstream] = {}

    def of(self, agent: Registered) -> Upstream:
        """Return what is kept for an agent."""
        found = self._known.get(agent.id)
        if found is None:
            found = Upstream(agent, self._http, self._credentials, self._settings)
            self._known[agent.id] = found
        else:
            found.renew(agent)
        return found

    def known(self, agent_id: str) -> Upstream | None:
        """Return what is kept for an agent, if anything was ever forwarded to it."""
        return self._known.get(agent_id)

    def keep(self, ids: Collection[str]) -> None:
        """Let go of all agents but these: the others were removed, here or in another process."""
        for agent_id in [one for one in self._known if one not in ids]:
            del self._known[agent_id]
