"""Names the requesting agent in each task: the agent whose key the message came with."""

from collections.abc import AsyncGenerator

import msgspec

from dragoman.gateway.registry.agent_keys import REQUESTER
from dragoman.model import operations as ops
from dragoman.service import Batch, Call, Reply, Service


class RequesterService:
    """A service whose messages name the agent whose key they came with."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def answer(self, call: Call) -> Reply:
        """Return the one reply to a call."""
        return await self._service.answer(_with_requester(call))

    def follow(self, call: Call) -> AsyncGenerator[Batch]:
        """Return the stream of a call."""
        return self._service.follow(_with_requester(call))


def _with_requester(call: Call) -> Call:
    """Return a call that names the agent whose key it came with, or no agent."""
    operation, agent = call.operation, call.caller.agent
    if not isinstance(operation, ops.SendMessage):
        return call
    if not agent and REQUESTER not in operation.metadata:
        return call
    metadata = {name: one for name, one in operation.metadata.items() if name != REQUESTER}
    if agent:
        metadata[REQUESTER] = agent
    operation = msgspec.structs.replace(operation, metadata=metadata)
    return msgspec.structs.replace(call, operation=operation)
