"""How an agent becomes an ASGI app by itself: `uvicorn my_agent:agent`, or a loop that is invoked.

The server is above this room and must not be imported here. `dragoman/__init__` binds `make_app`:
it runs before every other module of the package, and it may name every room.
"""

from collections.abc import Awaitable, Callable
from typing import Any

AsgiApp = Callable[[Any, Any, Any], Awaitable[None]]


def _unbound(*given: Any) -> AsgiApp:
    raise AssertionError("dragoman/__init__ binds it")


# Takes an agent, and settings unless those of the environment apply; returns its app.
# Nothing of ours is named in its type: every import of the package loads this module.
make_app: Callable[..., AsgiApp] = _unbound
