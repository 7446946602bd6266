"""How an agent is served by itself: `uvicorn my_agent:agent`, a loop that is invoked, or `join`.

The server is above this room and must not be imported here. `dragoman/__init__` binds what is here:
it runs before every other module of the package, and it may name every room.
"""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

AsgiApp = Callable[[Any, Any, Any], Awaitable[None]]


def _unbound(*given: Any, **named: Any) -> Any:
    raise AssertionError("dragoman/__init__ binds it")


# Takes an agent, and settings unless those of the environment apply; returns its app.
# Nothing of ours is named in its type: every import of the package loads this module.
make_app: Callable[..., AsgiApp] = _unbound
# Takes an agent and a gateway; serves the agent from there for as long as the block lasts.
join: Callable[..., AbstractAsyncContextManager[str]] = _unbound
