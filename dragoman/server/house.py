"""How the dialects of single systems are served: who is known to speak one, and what they do that
official callers do not. The operations themselves are answered by `server/endpoints.py`."""

import contextlib
from collections.abc import AsyncGenerator
from typing import Any

import msgspec

from dragoman.config import Settings
from dragoman.dialects import house, negotiate
from dragoman.dialects.dialect import Dialect
from dragoman.dialects.house import House, nexus, r, selectools
from dragoman.dialects.v0_2 import V0_2
from dragoman.dialects.v0_3 import V0_3, V0_3_OBJECTS
from dragoman.errors import TaskNotFound
from dragoman.model import operations as ops
from dragoman.model.identity import TaskId
from dragoman.server.request import Request
from dragoman.service import Batch, Call, Opening, Reply, Service, TaskReply
from dragoman.transports.jsonrpc import Envelope

# Tasks of one message's references that are looked at.
_MOST_REFERENCES = 16
_SENDS = ("SendMessage", "SendStreamingMessage")


class Houses:
    """The house dialects that are served."""

    def __init__(self, settings: Settings) -> None:
        self._served = settings.houses()
        self._door = nexus.NEXUS if settings.nexus_sync else nexus.NEXUS_DOOR
        self._needs_text = settings.require_text_part

    def paths(self) -> list[str]:
        """Return where houses take JSON-RPC on paths of their own."""
        places = {"nexus": nexus.PATH, "r": r.PATH}
        return [path for name, path in places.items() if name in self._served]

    def serves(self, name: str) -> bool:
        """Tell whether a house is served."""
        return name in self._served

    # Who speaks

    def at(self, path: str) -> House | None:
        """Return the house whose path this is: it answers what cannot be read."""
        if path == nexus.PATH:
            return self._door
        return r.RX if path == r.PATH else None

    def by_request(self, request: Request, envelope: Envelope) -> House | None:
        """Return the house that makes such a request at a path of everybody's."""
        if request.path == nexus.PATH:
            return self._door
        is_old = negotiate.error_version(*request.version, envelope.method) != "1.0"
        if not is_old or request.path == r.PATH:
            return None
        found = house.by_request(envelope.method, envelope.params, self._served)
        if found is house.FASTA2A and any(request.version):
            # Its client names none; whoever does is answered in that one.
            found = None
        if found in (None, selectools.SELECTOOLS) and self._needs_text:
            is_here = "selectools" in self._served and request.path in selectools.PATHS
            return selectools.SELECTOOLS_TEXT if is_here else found
        return found

    def at_home(self, dialect: Dialect, request: Request) -> Dialect:
        """Return the dialect that a house speaks at its own path for a version of the protocol."""
        return r.RX if request.path == r.PATH and dialect.version != "1.0" else dialect

    def over_rest(self, dialect: Dialect, method: str) -> Dialect:
        """Return the dialect of a REST call of 0.3, whose body is that of its JSON schema: only
        one house sends these."""
        is_core = dialect in (V0_3, V0_2) and method in _SENDS
        return r.RX_REST if is_core and "r" in self._served else dialect

    def mirrored(
        self, dialect: Dialect, request: Request, reply: Reply, id: str | int | None
    ) -> Dialect:
        """Return the dialect in which to show a task that was asked for by its id alone, in a
        request that itself has some id or, as that of one client, null."""
        is_plain = dialect in (V0_3, V0_3_OBJECTS) and not any(request.version)
        if not is_plain or not isinstance(reply, TaskReply):
            return dialect
        found = house.by_origin(reply.reading.task, self._served)
        if found is None and id is None and "fasta2a" in self._served:
            found = house.FASTA2A
        return dialect if found is None else found

    # What only they do

    async def resumed(
        self, request: Request, operation: ops.Operation, dialect: Dialect
    ) -> ops.Operation:
        """Return a message that answers a question of a task it refers to, as one to that task."""
        if not isinstance(dialect, r.R) or not isinstance(operation, ops.SendMessage):
            return operation
        message = operation.message
        named = r.answers(message)
        if message.task_id or not named or not message.reference_task_ids:
            return operation
        waiting: list[TaskId] = []
        for reference in dict.fromkeys(message.reference_task_ids[:_MOST_REFERENCES]):
            task_id = TaskId(reference)
            get = ops.GetTask(task_id=task_id, tenant=request.caller.tenant or "")
            try:
                found = await request.mount.service.answer(
                    Call(operation=get, caller=request.caller, extensions=request.extensions)
                )
            except TaskNotFound:
                continue
            assert isinstance(found, TaskReply), "the answer to a reading"
            task = found.reading.task
            if any(said.message_id == message.message_id for said in task.history):
                # It was said before, and the task has gone on since.
                return _to(operation, task_id)
            if asked := r.request_ids(task.status):
                waiting.append(task_id)
                if len(waiting) > 1 or not {*asked} & {*named}:
                    return operation
        return _to(operation, waiting[0]) if waiting else operation

    def reconnecting(
        self, request: Request, operation: ops.Operation, dialect: Dialect, params: Any
    ) -> ops.Operation:
        """Return the reading of a task as the wish to follow it, where that is how a reader who
        can follow comes back."""
        accept = request.headers.get(b"accept", b"")
        is_back = isinstance(dialect, r.R) and isinstance(operation, ops.GetTask)
        if not is_back or "taskId" not in params or b"text/event-stream" not in accept:
            return operation
        assert isinstance(operation, ops.GetTask)
        return ops.SubscribeToTask(task_id=operation.task_id, tenant=operation.tenant)


def _to(operation: ops.SendMessage, task_id: TaskId) -> ops.SendMessage:
    message = msgspec.structs.replace(operation.message, task_id=task_id)
    return msgspec.structs.replace(operation, message=message)


async def reconnected(service: Service, call: Call) -> AsyncGenerator[Batch]:
    """Yield a task from where it stands: first its status, and of one that has ended nothing
    more."""
    operation = call.operation
    assert isinstance(operation, ops.SubscribeToTask)
    if call.after is None:
        get = ops.GetTask(task_id=operation.task_id, tenant=operation.tenant)
        found = await service.answer(msgspec.structs.replace(call, operation=get))
        assert isinstance(found, TaskReply), "the answer to a reading"
        # A position: with one, a task that has ended can be followed too.
        call = msgspec.structs.replace(call, after=found.reading.seq)
    async with contextlib.aclosing(service.follow(call)) as batches:
        async for batch in batches:
            yield r.as_status(batch) if isinstance(batch, Opening) else batch
