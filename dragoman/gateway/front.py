"""How registered agents are served: each at an address of its own, with a card that names it.

A mount of the server has an agent, a service and cards. Here the agent is only what a card is made
of, and the service is the gateway's, told whom the task is for.
"""

import time
from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING

import msgspec

from dragoman.config import Settings
from dragoman.gateway.agents import Registered
from dragoman.gateway.forwarding import DISCOVERY
from dragoman.gateway.registration import card_of
from dragoman.model.card import AgentSkill
from dragoman.model.operations import ListTasks, SendMessage
from dragoman.security.authentication import Authenticator
from dragoman.server.agent import Agent
from dragoman.server.cards import CardRack, offered_extensions
from dragoman.server.request import Mount
from dragoman.server.skill import Skill
from dragoman.service import Batch, Call, Reply, Service

if TYPE_CHECKING:
    # Loaded where a setting names a key for it.
    from dragoman.server.signing import Signer

PREFIX = "/a2a/"
# What stands below `/a2a` for something else, and is no agent's name.
RESERVED = frozenset({"tasks"})
_MOST = 10_000


class Addressed:
    """The gateway at the address of one agent: whatever is sent there is for that agent."""

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
            # A task that the caller names may be one that does not exist yet.
            operation.message.task_id and not call.client_task_id
        ):
            return call
        metadata = {**operation.metadata, "agentId": self._agent}
        message = operation.message
        if "agentId" in message.metadata:
            # The address counts, whatever the message says.
            said = {name: one for name, one in message.metadata.items() if name != "agentId"}
            message = msgspec.structs.replace(message, metadata=said)
        operation = msgspec.structs.replace(operation, metadata=metadata, message=message)
        return msgspec.structs.replace(call, operation=operation)


async def _elsewhere(text: str) -> str:
    """Stands in for a skill whose code is another agent's."""
    raise AssertionError("the gateway forwards what is for this skill")


def _skills(skills: Sequence[AgentSkill]) -> dict[str, Skill]:
    return {skill.id: Skill(_elsewhere, skill, is_default=False) for skill in skills}


def front_agent() -> Agent:
    """Return what the gateway says of itself."""
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
    """The mounts of registered agents, made when they are first asked for."""

    def __init__(
        self,
        settings: Settings,
        ways: Sequence[Authenticator],
        service: Service,
        signer: "Signer | None" = None,
    ) -> None:
        self._settings = settings
        self._ways = ways
        self._service = service
        self._signer = signer
        self._mounts: dict[str, tuple[Registered, Mount]] = {}

    def mount(self, agent: Registered) -> Mount:
        """Return where an agent is served."""
        found = self._mounts.get(agent.id)
        if found is not None and _is_same(found[0], agent):
            return found[1]
        if len(self._mounts) >= _MOST:
            self._mounts.clear()
        mount = self._new(agent)
        self._mounts[agent.id] = agent, mount
        return mount

    def _new(self, registered: Registered) -> Mount:
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
        )
        shown.name = registered.name
        # What their skills ask for is asked by the agent itself, of the gateway.
        skills = card.skills or registered.skills
        open_ = [msgspec.structs.replace(skill, security_requirements=[]) for skill in skills]
        shown.skills = _skills(open_)
        rack = CardRack(shown, self._settings, time.time(), ways=self._ways, signer=self._signer)
        offered = frozenset(one.uri for one in offered_extensions(shown, self._settings))
        service = Addressed(self._service, registered.id)
        return Mount(shown, service, rack, PREFIX + registered.name, offered)


def _is_same(before: Registered, now: Registered) -> bool:
    """Whether the card is made of the same; who is online changes all the time."""
    return before is now or (
        before.name,
        before.card,
        before.title,
        before.description,
        before.skills,
    ) == (now.name, now.card, now.title, now.description, now.skills)
