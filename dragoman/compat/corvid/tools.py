"""The two tools that a corvid session calls other agents with: what is asked before a call, and in
which order."""

import logging
from collections.abc import Awaitable, Callable
from typing import Any

from dragoman.compat.corvid.budget import SessionInvocationBudget
from dragoman.compat.corvid.records import RemoteInvocationResult, ValidationError
from dragoman.compat.corvid.remote import RemoteAgents

logger = logging.getLogger(__name__)

# From the least on.
TRUST_LEVELS = ("untrusted", "low", "medium", "high", "verified")
# From an agent's address to how far it is trusted.
Trust = Callable[[str], Awaitable[str]]
# Pays for a call of an offer; returns why that cannot be, or nothing.
Credits = Callable[[str, str], Awaitable[str | None]]


class RemoteTools:
    """The tools of one session."""

    def __init__(
        self,
        budget: SessionInvocationBudget | None = None,
        *,
        agents: RemoteAgents | None = None,
        trust: Trust | None = None,
        credits: Credits | None = None,
    ) -> None:
        self._budget = budget or SessionInvocationBudget()
        self._agents = agents or RemoteAgents()
        self._trust = trust
        self._credits = credits

    async def discover_agent(self, agent_url: str) -> dict[str, Any] | None:
        """Return an agent's card; None: there is none to be had."""
        return await self._agents.discover_agent(agent_url)

    async def invoke_remote_agent(
        self,
        agent_url: str,
        message: str,
        skill: str | None = None,
        timeout_minutes: float = 5,
        min_trust: str = "low",
        listing_id: str | None = None,
    ) -> RemoteInvocationResult:
        """Give an agent a task, if the budget, the trust in it and the credits allow it."""
        if min_trust not in TRUST_LEVELS:
            raise ValidationError(f"min_trust is one of {', '.join(TRUST_LEVELS)}")
        allowed = self._budget.check(agent_url)
        if not allowed.allowed:
            return _refused(f"{allowed.reason}: {allowed.detail}")
        if refusal := await self._distrust(agent_url, min_trust):
            return _refused(refusal)
        if listing_id is not None and (refusal := await self._credit(listing_id, agent_url)):
            return _refused(refusal)
        self._budget.record(agent_url)
        return await self._agents.invoke_remote_agent(
            agent_url, message, skill=skill, timeout_ms=int(timeout_minutes * 60_000)
        )

    async def _credit(self, listing_id: str, agent_url: str) -> str | None:
        return await self._credits(listing_id, agent_url) if self._credits else None

    async def _distrust(self, agent_url: str, min_trust: str) -> str:
        """Return why an agent is not trusted enough. That nobody can tell is no reason."""
        if self._trust is None:
            return ""
        try:
            level = await self._trust(agent_url)
            is_enough = TRUST_LEVELS.index(level) >= TRUST_LEVELS.index(min_trust)
        except Exception as error:
            logger.warning("how far %s is trusted is not known: %s", agent_url, error)
            return ""
        return "" if is_enough else f"TRUST: the agent is {level}, and {min_trust} was asked for"


def _refused(reason: str) -> RemoteInvocationResult:
    return RemoteInvocationResult(False, "", None, reason)
