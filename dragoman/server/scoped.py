"""What the keys of agents open through the protocol's own operations: what their scopes name.

The REST API asks its table, and routes of their own say which scopes open them; here are all other
ways to a service. An operation that no scope names needs `*`.
"""

from collections.abc import AsyncGenerator

from dragoman.errors import PermissionDenied
from dragoman.model import operations as ops
from dragoman.security.key_scopes import EVERYTHING, allows
from dragoman.service import Batch, Call, Reply, Service

_SCOPES: dict[type[ops.Operation], str] = {
    ops.GetTask: "tasks:read",
    ops.ListTasks: "tasks:read",
    ops.SubscribeToTask: "tasks:read",
    ops.GetPush: "tasks:read",
    ops.ListPush: "tasks:read",
    ops.SendMessage: "tasks:write",
    ops.StreamMessage: "tasks:write",
    ops.CancelTask: "tasks:write",
    ops.CreatePush: "tasks:write",
    ops.DeletePush: "tasks:write",
}


class ScopedService:
    """A service whose callers are held to the scopes of the key they came by."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def answer(self, call: Call) -> Reply:
        """Return the one reply to a call."""
        refusal = _refusal(call)
        if refusal is not None:
            raise refusal
        return await self._service.answer(call)

    def follow(self, call: Call) -> AsyncGenerator[Batch]:
        """Return the stream of a call."""
        refusal = _refusal(call)
        return self._service.follow(call) if refusal is None else _refused(refusal)


def _refusal(call: Call) -> PermissionDenied | None:
    if call.caller.key_scopes is None:
        return None
    scope = _SCOPES.get(type(call.operation), EVERYTHING)
    if allows(call.caller, scope):
        return None
    return PermissionDenied("The key is not for this", scope=scope)


async def _refused(refusal: PermissionDenied) -> AsyncGenerator[Batch]:
    """Yield nothing: streams tell of a refusal when they are read."""
    raise refusal
    yield  # pragma: no cover - what makes it a generator
