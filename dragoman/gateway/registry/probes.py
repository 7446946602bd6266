"""Probes: whether an agent answers at its addresses.

Any answer of HTTP is a sign of life, whatever its status. Some servers close the connection on
methods that they do not know, so several requests are tried in turn, and the one that worked comes
first the next time. An agent without a card may be any program that takes a POST: it is there once
it accepts a connection. One whose card has gRPC alone is asked over gRPC: HTTP at its address, if
there is any, says nothing of what it is called by.
"""

import asyncio
import logging
from typing import Literal, NamedTuple

from dragoman.client.cards.interfaces import addressed, has_grpc
from dragoman.egress.egress import Egress
from dragoman.egress.errors import EgressError, EgressFailed, RpcFailed
from dragoman.egress.targets import NotCanonical, read_target
from dragoman.gateway.registry.card_source import places
from dragoman.gateway.registry.registered import Registered
from dragoman.gateway.registry.registration import card_of
from dragoman.model.card import GRPC

logger = logging.getLogger("dragoman")

# Seconds for one address. Three misses within half a minute eject: a probe must not take longer.
PROBE_WITHIN = 5.0
Way = Literal["HEAD", "GET", "OPTIONS", "connection", "rpc"]
_WAYS: tuple[Way, ...] = ("HEAD", "GET", "OPTIONS")
_HEALTH = "/grpc.health.v1.Health/Check"
# The answer to it of a server that takes no rpcs now.
_NOT_SERVING = b"\x08\x02"


class RpcPlace(NamedTuple):
    """Where an agent that has gRPC alone is asked."""

    digest: str
    # None: it has another interface.
    origin: str | None
    version: str
    # Whether it is where the agent was registered: then replicas have it at their addresses too.
    is_there: bool


class Probes:
    """Finds out whether agents are there, and remembers which request each of them answers."""

    def __init__(self, http: Egress) -> None:
        self._http = http
        # Where this process serves agents itself, by their ids.
        self.own: dict[str, str] = {}
        # By agent and address.
        self._worked: dict[str, dict[str, Way]] = {}
        # By agent.
        self._rpcs: dict[str, RpcPlace] = {}

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
        self._rpcs.pop(id, None)

    async def _probe(self, agent: Registered, url: str) -> str:
        """Return why an address does not answer; empty: it does."""
        known = self._worked.setdefault(agent.id, {})
        first = known.pop(url, None)
        every = self._ways(agent)
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

    def is_by_rpc(self, agent: Registered) -> bool:
        """Tell whether an agent is asked over gRPC."""
        return self._ways(agent) == ("rpc",)

    def _ways(self, agent: Registered) -> tuple[Way, ...]:
        if agent.card is None:
            return (*_WAYS, "connection")
        return _WAYS if self._rpc_place(agent).origin is None else ("rpc",)

    def _rpc_place(self, agent: Registered) -> RpcPlace:
        found = self._rpcs.get(agent.id)
        if found is None or found.digest != agent.card_digest:
            found = self._rpcs[agent.id] = _rpc_place(agent)
        return found

    async def _ask(self, agent: Registered, url: str, way: Way) -> None:
        """Ask in one way; any answer will do. Raises `EgressError`."""
        if way == "connection":
            await self._http.reach(url)
            return
        if way == "rpc":
            await self._ask_rpc(self._rpc_place(agent), url)
            return
        if url == agent.url and agent.card_url:
            card = agent.card_url
        else:
            card = places(url)[0].url if way == "GET" else url
        target = url if way == "OPTIONS" else card
        async with self._http.open(way, target, headers={}):
            pass

    async def _ask_rpc(self, place: RpcPlace, url: str) -> None:
        """Ask for the health of a server, or else for a task that it does not have."""
        origin = read_target(url).origin if place.is_there else place.origin
        service = "lf.a2a.v1" if place.version.startswith("1.") else "a2a.v1"
        for path in (_HEALTH, f"/{service}.A2AService/GetTask"):
            try:
                async with self._http.open_rpc(f"{origin}{path}", headers={}, body=b"") as answer:
                    async for message in answer.chunks():
                        if path == _HEALTH and message == _NOT_SERVING:
                            raise EgressFailed("it says that it does not serve")
                        return
            except RpcFailed:
                # That is an answer, but perhaps of something before the agent.
                continue


def _rpc_place(agent: Registered) -> RpcPlace:
    card = card_of(agent)
    first = card.supported_interfaces[0]
    kinds = {one.protocol_binding.upper() for one in card.supported_interfaces}
    if kinds != {GRPC} or not has_grpc():
        return RpcPlace(agent.card_digest, None, "", is_there=False)
    try:
        origin = read_target(addressed(first, card, agent.url).url).origin
    except NotCanonical:
        return RpcPlace(agent.card_digest, None, "", is_there=False)
    is_there = origin == read_target(agent.url).origin
    return RpcPlace(agent.card_digest, origin, first.protocol_version, is_there=is_there)
