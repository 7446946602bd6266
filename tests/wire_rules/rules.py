"""Short ways to ask the agent of these tests and to look through its answers."""

from collections.abc import Iterator
from typing import Any

from harness.serving import Site, message, old_message

UNKNOWN = "00000000-0000-7000-8000-000000000000"
CARD = "/.well-known/agent-card.json"
INVALID_PARAMS = -32602


def new(skill: str = "echo", text: str = "x", **more: Any) -> dict[str, Any]:
    """Return the parameters of a 1.0 send."""
    return {"message": message(text, **{"metadata": {"skillId": skill}} | more)}


def old(skill: str = "echo", text: str = "x", **more: Any) -> dict[str, Any]:
    """Return the parameters of a 0.3 send."""
    return {"message": old_message(text, **{"metadata": {"skillId": skill}} | more)}


def at_once(params: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters of the same 1.0 send, but without waiting."""
    return params | {"configuration": {"returnImmediately": True}}


async def task_of(site: Site, params: dict[str, Any], **more: Any) -> Any:
    """Send and return the task."""
    return (await site.call("SendMessage", params, **more))["task"]


async def code_of(site: Site, method: str, params: Any, **more: Any) -> int:
    """Return the code of the error that a call leads to."""
    return (await site.refusal(method, params, **more))["code"]


def state(task: Any) -> str:
    return task["status"]["state"]


def rpc(method: str, params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


def members(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield every member of every object in a value; what is in metadata is the caller's."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield name, item
            if name not in ("metadata", "data"):
                yield from members(item)
    elif isinstance(value, list):
        for item in value:
            yield from members(item)
