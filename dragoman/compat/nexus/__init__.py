"""NEXUS' SDK in Python's spelling: a gateway's agents, tasks, trust, credits and workflows.

    from dragoman.compat.nexus import NexusClient

Unlike the original it unwraps answers, and uses the names of the API.
"""

from dragoman.compat.nexus.client import NexusClient
from dragoman.compat.nexus.connection import NexusError
from dragoman.compat.nexus.services import TaskEvent

__all__ = ["NexusClient", "NexusError", "TaskEvent"]
