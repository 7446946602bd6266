"""Dragoman: any Python function as an A2A agent, any A2A agent as a Python call, every task kept.

Names are loaded when they are first used: calling an agent needs no server, and a server no client.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dragoman.authoring import hosting

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from dragoman.agents.local_tools import tool
    from dragoman.agents.loop import AgentLoop
    from dragoman.authoring.agent import Agent
    from dragoman.authoring.budget import Budget
    from dragoman.authoring.sync_turn import SyncTurn
    from dragoman.authoring.turn import Turn
    from dragoman.client.answer import Answer
    from dragoman.client.client import Client
    from dragoman.client.streams.stream import Stream
    from dragoman.config import Settings
    from dragoman.engine.event_hooks import EventContext, EventHooks
    from dragoman.errors import A2AError, BudgetExceeded, TaskFailed, TaskRejected
    from dragoman.model.artifact import Artifact
    from dragoman.model.card import AgentExtension, AgentProvider, AgentSkill
    from dragoman.model.events import ArtifactUpdate, StatusUpdate
    from dragoman.model.identity import Caller
    from dragoman.model.message import Message, Part
    from dragoman.model.push import PushConfig
    from dragoman.model.task import Task, TaskState
    from dragoman.security.bearer_tokens import BearerTokens
    from dragoman.server.app import App

__all__ = [
    "A2AError",
    "Agent",
    "AgentExtension",
    "AgentLoop",
    "AgentProvider",
    "AgentSkill",
    "Answer",
    "App",
    "Artifact",
    "ArtifactUpdate",
    "BearerTokens",
    "Budget",
    "BudgetExceeded",
    "Caller",
    "Client",
    "EventContext",
    "EventHooks",
    "Message",
    "Part",
    "PushConfig",
    "Settings",
    "StatusUpdate",
    "Stream",
    "SyncTurn",
    "Task",
    "TaskFailed",
    "TaskRejected",
    "TaskState",
    "Turn",
    "tool",
]
__version__ = "0.15.0"

_HOMES = {
    "tool": "agents.local_tools",
    "AgentLoop": "agents.loop",
    "Answer": "client.answer",
    "Client": "client.client",
    "Stream": "client.streams.stream",
    "Settings": "config",
    "EventContext": "engine.event_hooks",
    "EventHooks": "engine.event_hooks",
    "A2AError": "errors",
    "BudgetExceeded": "errors",
    "TaskFailed": "errors",
    "TaskRejected": "errors",
    "Artifact": "model.artifact",
    "AgentExtension": "model.card",
    "AgentProvider": "model.card",
    "AgentSkill": "model.card",
    "ArtifactUpdate": "model.events",
    "StatusUpdate": "model.events",
    "Caller": "model.identity",
    "Message": "model.message",
    "Part": "model.message",
    "PushConfig": "model.push",
    "Task": "model.task",
    "TaskState": "model.task",
    "BearerTokens": "security.bearer_tokens",
    "Agent": "authoring.agent",
    "Budget": "authoring.budget",
    "App": "server.app",
    "SyncTurn": "authoring.sync_turn",
    "Turn": "authoring.turn",
}


if not TYPE_CHECKING:
    # Hidden from type checkers: they would take every unknown name for one that is found here.
    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        # Found once, it is an attribute like any other.
        globals()[name] = value
        return value


def _make_app(agent: "Agent", settings: "Settings | None" = None) -> hosting.AsgiApp:
    from dragoman.server.app import agent_app

    return agent_app(agent, settings)


# An agent is an ASGI app by itself, but the room where it is written does not know the server.
def _join(agent: "Agent", gateway: str, **more: Any) -> "AbstractAsyncContextManager[str]":
    from dragoman.server.process.join_app import join_agent

    return join_agent(agent, gateway, **more)


hosting.make_app = _make_app
hosting.join = _join


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
