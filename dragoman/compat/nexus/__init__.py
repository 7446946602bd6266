"""NEXUS' SDK in Python's spelling: a gateway's agents, tasks, trust, credits and workflows.

    from dragoman.compat.nexus import NexusClient

Unlike NEXUS' own it takes answers out of their envelope, and speaks of things as the API does.
"""

from dragoman.compat.nexus.client import NexusClient
from dragoman.compat.nexus.line import NexusError
from dragoman.compat.nexus.services import TaskEvent

__all__ = ["NexusClient", "NexusError", "TaskEvent"]
