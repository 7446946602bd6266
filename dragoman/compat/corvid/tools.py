"""The two tools by which a corvid session calls other agents, and the checks before a call."""

import logging
from collections.abc import Awaitable, Callable
from typing import Any

from dragoman.compat.corvid.budget import SessionInvocationBudget
from dragoman.compat.corvid.records import RemoteInvocationResult, ValidationError
from dragoman.compat.corvid.remote import RemoteAgents

logger = logging.getLogger(__name__)

# In ascending order.
TRUST_LEVELS = ("untrusted", "low", "medium", "high", "verified")
# Returns the trust level of the agent at an address.
Trust = Callable[[str], Awaitable[str]]
# Pays for a call of a listing; returns why it cannot, or None.
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
        """Return an agent's card; None: it cannot be read."""
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
        """Give an agent a task, if the budget, its trust level and the credits allow it."""
        if min_trust not in TRUST_LEVELS:
            raise ValidationError(f"min_trust is one of {', '.join(TRUST_LEVELS)}")
        allowed = self._budget.check(agent_url)
        if not allowed.allowed:
            return _refused(f"{allowed.reason}: {allowed.detail}")
        if refusal := await self._distrust(agent_url, min_trust):
            return _refused(refusal)
        if listing_id is not None and self._credits is not None:
            refusal = await self._credits(listing_id, agent_url)
            if refusal:
                return _refused(refusal)
        self._budget.record(agent_url)
        return await self._agents.invoke_remote_agent(
            agent_url, message, skill=skill, timeout_ms=int(timeout_minutes * 60_000)
        )

    async def _distrust(self, agent_url: str, min_trust: str) -> str:
        """Return why an agent is not trusted enough. An unknown trust level is not a reason."""
        if self._trust is None:
            return ""
        try:
            level = await self._trust(agent_url)
            is_enough = TRUST_LEVELS.index(level) >= TRUST_LEVELS.index(min_trust)
        except Exception as error:
            # The function is the author's; corvid lets a call through that it cannot judge.
            logger.warning("the trust level of %s is unknown: %s", agent_url, error)
            return ""
        return "" if is_enough else f"TRUST: the agent is {level}, and {min_trust} was asked for"


def _refused(reason: str) -> RemoteInvocationResult:
    return RemoteInvocationResult(False, "", None, reason)
