"""API keys of registered agents: made, listed and revoked by whoever owns the agent.

They are in the key file like all others, so that the authenticator of API keys knows them. They
speak for the agent's owner, for nothing but what their scopes name. A key's text is shown once.
"""

import asyncio
import logging
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

from dragoman.errors import ConfigError, InternalError, InvalidParams
from dragoman.gateway.agents import Registered
from dragoman.gateway.registration import LONGEST_NAME
from dragoman.model.identity import Caller
from dragoman.security import key_file
from dragoman.security.api_keys import Key

logger = logging.getLogger("dragoman")

# What a key may be for; `*` is all of it. None of them opens what is an operator's.
SCOPES = frozenset(
    {"*", "agents:read", "agents:write", "agents:heartbeat", "tasks:read", "tasks:write"}
)
LONGEST_DAYS = 365
# Marks a caller as one that came by the key of an agent, whose id follows.
MARK = "dragoman:agent:"
# The member of a task's metadata that names the agent by whose key it was made.
REQUESTER = "requesterAgentId"


class AgentKeys:
    """The keys of agents, in the file of all keys."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def create(
        self,
        agent: Registered,
        label: str,
        *,
        scopes: Sequence[str] = ("*",),
        days: int | None = None,
    ) -> tuple[Key, str]:
        """Make a key; return it and its text, which is nowhere else."""
        if not 1 <= len(label.strip()) <= LONGEST_NAME:
            raise InvalidParams(f"must have 1 to {LONGEST_NAME} characters", field="name")
        if not scopes or not SCOPES.issuperset(scopes):
            raise InvalidParams(f"are some of {', '.join(sorted(SCOPES))}", field="scopes")
        if days is not None and not 1 <= days <= LONGEST_DAYS:
            raise InvalidParams(f"must be between 1 and {LONGEST_DAYS}", field="expiresInDays")
        try:
            return await asyncio.to_thread(
                key_file.create_for_agent,
                self._path,
                agent.id,
                name=agent.name,
                owner=agent.owner.owner,
                label=label.strip(),
                scopes=[*scopes, MARK + agent.id],
                lifetime=None if days is None else timedelta(days=days),
            )
        except ConfigError as error:
            raise _unusable(error) from None

    async def all(self, agent: Registered) -> list[Key]:
        """Return the keys of an agent, in the order they were made."""
        try:
            found = await asyncio.to_thread(key_file.read_keys, self._path)
        except ConfigError as error:
            raise _unusable(error) from None
        return [key for key in found if key.agent == agent.id]

    async def revoke(self, agent: Registered, id: str) -> Key:
        """End a key of an agent at once; raises `InvalidParams` for one that it has not."""
        if all(key.id != id for key in await self.all(agent)):
            raise InvalidParams("the agent has no such key", field="keyId")
        return await asyncio.to_thread(key_file.revoke, self._path, id)


def scopes_of(key: Key) -> list[str]:
    """Return what a key is for, as it was asked for."""
    return [scope for scope in key.scopes if not scope.startswith(MARK)]


def agent_of(caller: Caller) -> str:
    """Return the id of the agent by whose key a caller came; empty: it came by another way."""
    return next((one.removeprefix(MARK) for one in caller.scopes if one.startswith(MARK)), "")


def allows(caller: Caller, scope: str, agent_id: str = "") -> bool:
    """Tell whether a caller may do what a scope names, to an agent if one is named.

    Who came by another way than the key of an agent is not held by these scopes.
    """
    agents = [one.removeprefix(MARK) for one in caller.scopes if one.startswith(MARK)]
    if not agents:
        return True
    is_own = not agent_id or agent_id in agents
    return is_own and bool({"*", scope} & caller.scopes)


def _unusable(error: ConfigError) -> InternalError:
    # Where the file is concerns its operator alone.
    logger.error("API keys of agents cannot be read or changed: %s", error)
    return InternalError("API keys cannot be read or changed at present")
