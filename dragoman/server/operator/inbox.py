"""What waits for a person, over all agents, and the answers."""

from collections.abc import AsyncIterator
from typing import Any

import msgspec

from dragoman.engine.reading import read_task
from dragoman.errors import InvalidParams, TaskNotFound
from dragoman.model import operations as ops
from dragoman.model.identity import MessageId, TaskId, new_id
from dragoman.model.message import Message, Role
from dragoman.model.requests import Request, open_requests
from dragoman.model.task import INTERRUPTED
from dragoman.server.operator.shapes import InboxItem, instant
from dragoman.server.operator.viewing import Viewer
from dragoman.server.site import Site
from dragoman.service import Call
from dragoman.stores.interface import Store, TaskRow

# Tasks that are found together.
_AT_ONCE = 1000


def inbox_item(head: TaskRow, request: Request) -> InboxItem:
    """Return a request that waits for a person, as lists show it."""
    handoff = request.handoff
    return InboxItem(
        id=request.request_id,
        kind=request.kind,
        prompt=request.prompt,
        task_id=head.task_id,
        context_id=head.context_id,
        agent=head.scope.agent,
        tenant=head.scope.tenant,
        owner=head.scope.owner,
        since=instant(head.standing.status_at),
        sensitive=request.sensitive,
        choices=request.choices,
        schema=request.schema,
        name=request.name,
        args=request.args,
        due=request.due,
        problem=request.problem,
        handoff=None if handoff is None else msgspec.to_builtins(handoff),
    )


async def waiting_tasks(store: Store, viewer: Viewer, **asked: Any) -> list[TaskRow]:
    """Return all tasks that wait for a person, the longest first: no limit hides one."""
    found: list[TaskRow] = []
    for state in INTERRUPTED:
        after: tuple[int, int] | None = None
        while True:
            heads = await viewer.tasks(store, limit=_AT_ONCE, state=state, after=after, **asked)
            found += heads
            if len(heads) < _AT_ONCE:
                break
            after = heads[-1].standing.status_at, heads[-1].number
    return sorted(found, key=lambda head: (head.standing.status_at, head.number))


async def requests_in(store: Store, head: TaskRow) -> list[Request]:
    """Return what a task waits for."""
    upto = head.standing.last_seq
    read = await read_task(store, head.number, upto=upto, artifacts=False)
    return open_requests(read.task.status) if read is not None else []


async def waiting_request(
    store: Store, viewer: Viewer, name: str, **asked: Any
) -> tuple[TaskRow, Request]:
    """Return the request with an id, or the only one of the task with it."""
    found = [one async for one in _named(store, viewer, name, **asked)]
    if len(found) > 1:
        ids = ", ".join(one.request_id for _, one in found)
        raise InvalidParams(f"waits for several answers; name one of {ids}", field="id")
    if not found:
        raise TaskNotFound(taskId=name)
    return found[0]


async def _named(
    store: Store, viewer: Viewer, name: str, **asked: Any
) -> AsyncIterator[tuple[TaskRow, Request]]:
    heads = await viewer.tasks(store, limit=_AT_ONCE, task_id=TaskId(name), **asked)
    for head in heads:
        if head.standing.state.is_interrupted:
            for one in await requests_in(store, head):
                yield head, one
    if heads:
        return
    for head in await waiting_tasks(store, viewer, **asked):
        for one in await requests_in(store, head):
            if one.request_id == name:
                yield head, one
                return


async def take_answer(
    site: Site, head: TaskRow, request: Request, value: Any, decline: str
) -> None:
    """Answer a request in the name of the task's owner, or say why there is no answer."""
    service = site.service_of(head.scope.agent)
    if service is None:
        raise TaskNotFound(taskId=head.task_id)
    parts = request.failed(decline) if decline else request.answered(value)
    message = Message(MessageId(new_id()), Role.USER, parts, task_id=head.task_id)
    operation = ops.SendMessage(message=message, wait=False, tenant=head.scope.tenant)
    await service.answer(Call(operation=operation, caller=head.scope.caller()))
