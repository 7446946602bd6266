"""selectools' A2A package under its own names: serve an agent of selectools, or call one.

    from dragoman.compat.selectools import A2AClient, A2AServer

The names, arguments and results are those of selectools 1.3. Nothing of selectools is imported: an
agent is any object with `config.name`, `tools` and `clone_for_isolation().run(...)`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dragoman.compat.selectools.client import A2AClient
    from dragoman.compat.selectools.records import (
        A2AError,
        A2ATask,
        AgentCard,
        AgentSkill,
        TaskState,
    )
    from dragoman.compat.selectools.server import A2AServer

__all__ = [
    "A2AClient",
    "A2AError",
    "A2AServer",
    "A2ATask",
    "AgentCard",
    "AgentSkill",
    "TaskState",
]

_HOMES = {"A2AClient": "client", "A2AServer": "server"}


if not TYPE_CHECKING:
    # Hidden from type checkers: they would take every unknown name for one that is found here.
    def __getattr__(name: str) -> Any:
        # Loaded when used: a caller needs no server, and a server no client.
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{_HOMES.get(name, 'records')}"), name)
