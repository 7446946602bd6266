"""Where an agent is served: its mount, with the card that callers read before they call it."""

from dragoman.authoring.agent import Agent
from dragoman.config import Settings
from dragoman.http.mount import Mount
from dragoman.http.request import HttpRequest
from dragoman.server.cards import CardRack, offered_extensions
from dragoman.service import Service


class AgentMount(Mount):
    """One agent, what answers its calls, and its cards."""

    agent: Agent
    cards: CardRack


def agent_mount(
    agent: Agent, service: Service, cards: CardRack, prefix: str, settings: Settings
) -> AgentMount:
    """Return the mount of an agent at a prefix."""
    offered = frozenset(one.uri for one in offered_extensions(agent, settings))
    return AgentMount(agent.name, service, prefix, offered, agent, cards)


def mount_of(request: HttpRequest) -> AgentMount:
    """Return the mount of a request to a path that only agents have."""
    mount = request.mount
    assert isinstance(mount, AgentMount), "cards are served where agents are"
    return mount
