"""Probes: whether an agent answers at its addresses.

Any answer of HTTP is a sign of life, whatever its status. Some servers close the connection on
methods that they do not know, so several requests are tried in turn, and the one that worked comes
first the next time. An agent without a card may be any program that takes a POST: it is there once
it accepts a connection.
"""

import asyncio
import logging
from typing import Literal

from dragoman.egress.egress import Egress
from dragoman.egress.errors import EgressError, EgressFailed
from dragoman.gateway.registry.card_source import places
from dragoman.gateway.registry.registered import Registered

logger = logging.getLogger("dragoman")

# Seconds for one address. Three misses within half a minute eject: a probe must not take longer.
PROBE_WITHIN = 5.0
Way = Literal["HEAD", "GET", "OPTIONS", "connection"]
_WAYS: tuple[Way, ...] = ("HEAD", "GET", "OPTIONS")


class Probes:
    """Finds out whether agents are there, and remembers which request each of them answers."""

    def __init__(self, http: Egress) -> None:
        self._http = http
        # Where this process serves agents itself, by their ids.
        self.own: dict[str, str] = {}
        # By agent and address.
        self._worked: dict[str, dict[str, Way]] = {}

    async def absence(self, agent: Registered) -> str:
        """Return why no address of an agent answers, in words for operators; empty: one does."""
        reasons: list[str] = []
        own = self.own.get(agent.id)
        for url in [own] if own else (agent.url, *agent.replicas):
            reason = await self._probe(agent, url)
            if not reason:
                return ""
            logger.debug("a probe of %s was not answered: %s", agent.name, reason)
            reasons.append(reason)
        return reasons[0]

    def forget(self, id: str) -> None:
        """Forget which request an agent answers."""
        self._worked.pop(id, None)

    async def _probe(self, agent: Registered, url: str) -> str:
        """Return why an address does not answer; empty: it does."""
        known = self._worked.setdefault(agent.id, {})
        first = known.pop(url, None)
        every: tuple[Way, ...] = _WAYS if agent.card is not None else (*_WAYS, "connection")
        ways = sorted(every, key=lambda way: way != first)
        # The request that worked before has all the time; each other one has its share.
        share = PROBE_WITHIN / len(ways)
        reason = f"no answer within {PROBE_WITHIN:g} s"
        try:
            async with asyncio.timeout(PROBE_WITHIN):
                for way in ways:
                    try:
                        async with asyncio.timeout(None if way == first else share):
                            await self._ask(agent, url, way)
                    except TimeoutError:
                        continue
                    except EgressError as error:
                        reason = error.reason
                        if not isinstance(error, EgressFailed) or not error.is_sent:
                            # No connection is accepted, so no other request would be answered.
                            return reason
                    else:
                        known[url] = way
                        return ""
        except TimeoutError:
            pass
        return reason

    async def _ask(self, agent: Registered, url: str, way: Way) -> None:
        """Ask in one way; any answer will do. Raises `EgressError`."""
        if way == "connection":
            await self._http.reach(url)
            return
        if url == agent.url and agent.card_url:
            card = agent.card_url
        else:
            card = places(url)[0].url if way == "GET" else url
        target = url if way == "OPTIONS" else card
        async with self._http.open(way, target, headers={}):
            pass
