"""Dragoman: any Python function as an A2A agent, every task a durable log."""

from dragoman.config import Settings
from dragoman.errors import TaskFailed, TaskRejected
from dragoman.model.artifact import Artifact
from dragoman.model.card import AgentExtension, AgentProvider, AgentSkill
from dragoman.model.identity import Caller
from dragoman.model.message import Message, Part
from dragoman.server.agent import Agent
from dragoman.server.app import App
from dragoman.server.turn import Turn

__all__ = [
    "Agent",
    "AgentExtension",
    "AgentProvider",
    "AgentSkill",
    "App",
    "Artifact",
    "Caller",
    "Message",
    "Part",
    "Settings",
    "TaskFailed",
    "TaskRejected",
    "Turn",
]
__version__ = "0.2.0"
