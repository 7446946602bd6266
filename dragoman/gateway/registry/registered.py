"""A registered agent: what the gateway knows of it and stores."""

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from dragoman.model.card import AgentSkill
from dragoman.model.identity import LOCAL, Principal

Status = Literal["online", "degraded", "offline"]
# How an agent is spoken to whose card does not tell, or has none.
HouseDialect = Literal["", "nexus", "corvid"]
CredentialKind = Literal["", "bearer", "apiKey", "header"]


class TunnelEnd(msgspec.Struct, frozen=True):
    """Where a tunnel of an agent that dialled out ends."""

    # The name that leads into it, the process of the gateway that has it, and where that is.
    host: str
    worker: int
    url: str


class Registered(msgspec.Struct, frozen=True, kw_only=True):
    """One agent. Nothing secret is in here: its credential is kept apart and sealed."""

    id: str
    # Its name in addresses, `/a2a/{name}`: lower case letters, digits and hyphens; unique.
    name: str
    owner: Principal = LOCAL
    title: str
    description: str = ""
    # Its address, and those of its replicas: any of them may do a task.
    url: str
    replicas: list[str] = []
    # Of an agent that dialled out: the processes of the gateway that have a tunnel of it, or had.
    tunnels: list[TunnelEnd] = []
    # Of versions that dialled out and were replaced by others: what their hosts end with. None of
    # their processes joins as this agent again.
    replaced: list[str] = []
    # The pinned card, as the agent published it; None: it has none, and one is made of the rest.
    card: dict[str, Any] | None = None
    # A later card that changes where calls or credentials go, held until its owner accepts it.
    pending: dict[str, Any] | None = None
    pending_reason: str = ""
    # The digest of a later card that its owner refused: the same one is not held again.
    refused_digest: str = ""
    # When a later card came into force or was held; 0: none did.
    card_changed_at: int = 0
    skills: list[AgentSkill] = []
    tags: list[str] = []
    metadata: dict[str, Any] = {}
    # Micro-credits for a completed task.
    price: int = 0
    # Whether a task may be done twice: then it is sent again if it is unknown whether it arrived,
    # and may fail over to another agent.
    repeatable: bool = False
    # The skills of which that is so where it is not of all, by their ids.
    repeatable_skills: list[str] = []
    # Whether messages keep the ids that callers gave them: for an agent that only one tenant uses.
    # See `gateway.delivery.remote_ids`.
    keep_message_ids: bool = False
    # Origins besides that of `url` to which the card may send calls.
    origins: list[str] = []
    # The callers besides its owner that may use it, as texts of principals; empty: all.
    callers: list[str] = []
    dialect: HouseDialect = ""
    # Whether it receives tasks that match no other agent.
    is_default: bool = False
    # Whether it gets no further tasks until its owner says so; those it has go on.
    is_paused: bool = False
    status: Status = "offline"
    # Milliseconds since the epoch.
    last_seen_at: int = 0
    created_at: int = 0
    updated_at: int = 0
    # Of its last heartbeat; 0: it sends none, and is probed instead.
    beat_at: int = 0
    # Where the card was found, and the digest of the pinned one.
    card_url: str = ""
    card_digest: str = ""
    # Which of title, description and skills its owner gave: a card does not change those.
    said: list[str] = []
    # By skill id: members that a card does not have, such as `inputSchema`.
    schemas: dict[str, dict[str, Any]] = {}
    # Seconds after which the card is read again.
    refresh: float = 3600.0
    # The kind of the credential for it, and the header that carries it; the secret is elsewhere.
    credential: CredentialKind = ""
    credential_header: str = ""

    def is_repeatable(self, skill: str) -> bool:
        """Tell whether a task may be done twice that names a skill, or none (empty)."""
        return self.repeatable or skill in self.repeatable_skills


def serves(agent: Registered, requester: Principal) -> bool:
    """Tell whether an agent does tasks for a requester."""
    return not agent.callers or requester == agent.owner or requester.text in agent.callers


def named_callers(names: Sequence[str], owner: Principal) -> list[str]:
    """Return callers as texts of principals. A name without a tenant is in the owner's tenant;
    `@tenant/name` is in another, and `@/name` in none."""
    return [Principal.read(name, owner.tenant).text for name in names]


def voter(agent: Registered, requester: Principal) -> str:
    """Return whose vote an agent's answer is where several have to agree: one for each owner, who
    may have many agents. Agents of the requester and of the local user vote each for itself."""
    return agent.id if agent.owner in (LOCAL, requester) else agent.owner.text


def spread(agents: Sequence[Registered], requester: Principal) -> list[Registered]:
    """Return agents in their order, but the best of each voter before all others."""
    best = {voter(agent, requester): agent for agent in reversed(agents)}
    return sorted(agents, key=lambda agent: best[voter(agent, requester)] is not agent)
