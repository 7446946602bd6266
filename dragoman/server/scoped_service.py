"""Scopes of agent keys for the operations of the protocol.

The REST API has scopes in its table, and other routes name theirs; this covers every other way to a
service. An operation that no scope names needs `*`.
"""

from collections.abc import AsyncGenerator

from dragoman.errors import PermissionDenied
from dragoman.model import operations as ops
from dragoman.security.keys.key_scopes import EVERYTHING, allows
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
    """A service that refuses operations beyond the scopes of the caller's key."""

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
    """Yield nothing: a stream raises its refusal when it is read."""
    raise refusal
    yield  # pragma: no cover - what makes it a generator
