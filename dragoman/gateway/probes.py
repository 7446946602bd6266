"""Whether somebody is where an agent is said to be.

Any answer of HTTP is a sign of life, whatever it says: a server that knows no HEAD is there as much
as one that shows a card. Some servers hang up on what they do not know, so several requests are
tried in turn, and the one that worked is the first the next time. An agent without a card may be
any program that takes a POST: it is there once it accepts a connection.
"""

import asyncio
import logging
from typing import Literal

from dragoman.gateway.agents import Registered
from dragoman.gateway.card_source import places
from dragoman.security.egress import Egress, EgressError, EgressFailed

logger = logging.getLogger("dragoman")

# Seconds for one address. Three misses within half a minute eject: a look must not take longer.
PROBE_WITHIN = 5.0
Way = Literal["HEAD", "GET", "OPTIONS", "connection"]
_WAYS: tuple[Way, ...] = ("HEAD", "GET", "OPTIONS")


class Probes:
    """Looks whether agents are there, and remembers how each of them can be asked."""

    def __init__(self, http: Egress) -> None:
        self._http = http
        # By agent and address.
        self._worked: dict[str, dict[str, Way]] = {}

    async def absence(self, agent: Registered) -> str:
        """Return why nobody is at any address of an agent, for operators; empty: somebody is."""
        reasons: list[str] = []
        for url in (agent.url, *agent.replicas):
            reason = await self._look(agent, url)
            if not reason:
                return ""
            logger.debug("a probe of %s was not answered: %s", agent.name, reason)
            reasons.append(reason)
        return reasons[0]

    def forget(self, id: str) -> None:
        """Forget how an agent can be asked."""
        self._worked.pop(id, None)

    async def _look(self, agent: Registered, url: str) -> str:
        """Return why nobody is at an address; empty: somebody is."""
        known = self._worked.setdefault(agent.id, {})
        first = known.pop(url, None)
        every: tuple[Way, ...] = _WAYS if agent.card is not None else (*_WAYS, "connection")
        ways = sorted(every, key=lambda way: way != first)
        # What worked before has all the time there is; else each has its share of it.
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
                            # Nobody accepts a connection, whatever is asked.
                            return reason
                    else:
                        known[url] = way
                        return ""
        except TimeoutError:
            pass
        return reason

    async def _ask(self, agent: Registered, url: str, way: Way) -> None:
        """Ask in one way; whatever is answered will do. Raises `EgressError`."""
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
