"""Serves registered agents: each at an address of its own, with a card that names it.

A mount of the server has an agent, a service and cards. Here the agent is only the content of a
card, and the service is the gateway's, with the agent's id added to each request.
"""

import time
from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from dragoman.authoring.agent import Agent
from dragoman.authoring.skill import Skill
from dragoman.config import Settings
from dragoman.gateway.delivery.forwarding import DISCOVERY
from dragoman.gateway.registry.registered import Registered
from dragoman.gateway.registry.registration import card_of
from dragoman.model.card import SCHEMAS_URI, AgentSkill
from dragoman.model.operations import ListTasks, SendMessage
from dragoman.security.authentication import Authenticator
from dragoman.server.cards import CardRack, GrpcPlace
from dragoman.server.mounts import AgentMount, agent_mount
from dragoman.service import Batch, Call, Reply, Service

if TYPE_CHECKING:
    # Loaded where a setting names a key for it.
    from dragoman.server.signing import Signer

PREFIX = "/a2a/"
# Paths below `/a2a` that are not names of agents.
RESERVED = frozenset({"tasks"})
_MOST_MOUNTS = 10_000


class AddressedService:
    """The gateway at the address of one agent: every request there is for that agent."""

    def __init__(self, service: Service, agent: str) -> None:
        self._service = service
        self._agent = agent

    async def answer(self, call: Call) -> Reply:
        """Return the one reply to a call."""
        return await self._service.answer(self._addressed(call))

    def follow(self, call: Call) -> AsyncGenerator[Batch]:
        """Return the stream of a call."""
        return self._service.follow(self._addressed(call))

    def _addressed(self, call: Call) -> Call:
        operation = call.operation
        if isinstance(operation, ListTasks):
            listed = msgspec.structs.replace(operation, agent=self._agent)
            return msgspec.structs.replace(call, operation=listed)
        if not isinstance(operation, SendMessage) or (
            # A task id that the caller chose may belong to a new task.
            operation.message.task_id and not call.client_task_id
        ):
            return call
        metadata = {**operation.metadata, "agentId": self._agent}
        message = operation.message
        if "agentId" in message.metadata:
            # The address takes precedence over the message.
            rest = {name: one for name, one in message.metadata.items() if name != "agentId"}
            message = msgspec.structs.replace(message, metadata=rest)
        operation = msgspec.structs.replace(operation, metadata=metadata, message=message)
        return msgspec.structs.replace(call, operation=operation)


async def _remote_skill(text: str) -> Any:
    """Placeholder for a skill that another agent implements."""
    raise AssertionError("the gateway forwards requests for this skill")


def _skills(skills: Sequence[AgentSkill]) -> dict[str, Skill]:
    return {skill.id: Skill(_remote_skill, skill, is_default=False) for skill in skills}


def front_agent() -> Agent:
    """Return the agent that describes the gateway."""
    agent = Agent(
        "Dragoman gateway",
        "Finds agents and has them do tasks: name one in metadata.agentId or a skill in "
        "metadata.skillId, or leave the choice to the gateway.",
    )
    agent.name = "gateway"
    agent.skills = _skills(
        [
            AgentSkill(
                id="task-delegation",
                name="Task delegation",
                description="Has a registered agent do a task, and keeps it through crashes.",
                tags=["gateway"],
            ),
            AgentSkill(
                id=DISCOVERY,
                name="Agent discovery",
                description="Finds registered agents by what they can do.",
                tags=["gateway"],
            ),
        ]
    )
    return agent


class Front:
    """The mounts of registered agents, made on their first request."""

    def __init__(
        self,
        settings: Settings,
        ways: Sequence[Authenticator],
        service: Service,
        signer: "Signer | None" = None,
        grpc: GrpcPlace | None = None,
    ) -> None:
        self._grpc = grpc
        self._settings = settings
        self._ways = ways
        self._service = service
        self._signer = signer
        self._mounts: dict[str, tuple[Registered, AgentMount]] = {}

    def mount(self, agent: Registered) -> AgentMount:
        """Return the mount of an agent."""
        found = self._mounts.get(agent.id)
        if found is not None and _has_same_card(found[0], agent):
            return found[1]
        if len(self._mounts) >= _MOST_MOUNTS:
            self._mounts.clear()
        mount = self._new(agent)
        self._mounts[agent.id] = agent, mount
        return mount

    def _new(self, registered: Registered) -> AgentMount:
        card = card_of(registered)
        shown = Agent(
            card.name,
            card.description or registered.description or card.name,
            version=card.version or "1.0.0",
            provider=card.provider,
            documentation_url=card.documentation_url,
            icon_url=card.icon_url,
            input_modes=card.default_input_modes or ["*/*"],
            output_modes=card.default_output_modes or ["*/*"],
            # Of its skills, which are the same here.
            extensions=[
                msgspec.structs.replace(one, required=False)
                for one in card.capabilities.extensions
                if one.uri == SCHEMAS_URI
            ],
        )
        shown.name = registered.name
        # The agent requires these of the gateway, not of the gateway's callers.
        skills = card.skills or registered.skills
        public = [msgspec.structs.replace(skill, security_requirements=[]) for skill in skills]
        shown.skills = _skills(public)
        rack = CardRack(
            shown,
            self._settings,
            time.time(),
            ways=self._ways,
            signer=self._signer,
            grpc=self._grpc,
        )
        service = AddressedService(self._service, registered.id)
        return agent_mount(shown, service, rack, PREFIX + registered.name, self._settings)


def _has_same_card(before: Registered, now: Registered) -> bool:
    """Whether the card has the same content; the status changes all the time."""
    return before is now or (
        before.name,
        before.card,
        before.title,
        before.description,
        before.skills,
    ) == (now.name, now.card, now.title, now.description, now.skills)
