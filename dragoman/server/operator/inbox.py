"""What waits for a person, over all agents, and the answers."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, NamedTuple

import msgspec

from dragoman.engine.reading import read_task
from dragoman.errors import InvalidParams, TaskNotFound
from dragoman.model import operations as ops
from dragoman.model.events import Delegated, Forwarded
from dragoman.model.identity import MessageId, TaskId, new_id
from dragoman.model.message import Message, Role
from dragoman.model.requests import Request, open_requests
from dragoman.model.task import INTERRUPTED, Task
from dragoman.server.operator.shapes import InboxItem, instant
from dragoman.server.operator.viewing import Viewer
from dragoman.server.site import Site
from dragoman.service import Call
from dragoman.stores.interface import Store, TaskRow

# Tasks that are found together, and logs that are read together: the last events of each.
_AT_ONCE = 1000
_READ_AT_ONCE = 50
_LAST = 4


def inbox_item(head: TaskRow, request: Request, *, words: str, to: str) -> InboxItem:
    """Return a request that waits for a person, as lists show it. `words`: the first of its task;
    `to`: the id of the agent that a gateway gave its task to, if any."""
    handoff = request.handoff
    return InboxItem(
        id=request.request_id,
        kind=request.kind,
        prompt=request.prompt,
        task_id=head.task_id,
        context_id=head.context_id,
        words=words,
        agent=head.scope.agent,
        to=to,
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


class _Outer(NamedTuple):
    """A task that waits because another one does."""

    head: TaskRow
    # Whether the code of an agent called the other one; else a gateway forwarded it.
    is_caller: bool


async def relayed(store: Store, heads: Sequence[TaskRow]) -> dict[TaskId, _Outer]:
    """Return tasks that wait, by the ids of the tasks that they wait with: where an agent of the
    same store asks, both have its question, and that of the outer one has to be answered."""
    found: dict[TaskId, _Outer] = {}
    for begin in range(0, len(heads), _READ_AT_ONCE):
        some = heads[begin : begin + _READ_AT_ONCE]
        # Which agent has it is recorded just before the question.
        places = [(head.number, max(0, head.standing.last_seq - _LAST)) for head in some]
        for head, log in zip(some, await store.read_many(places, limit=_LAST), strict=True):
            for recorded in log:
                if recorded.body.startswith((b'{"forwarded"', b'{"delegated"')):
                    event = recorded.event
                    assert isinstance(event, Forwarded | Delegated), "by its bytes it is"
                    found[TaskId(event.task_id)] = _Outer(head, isinstance(event, Delegated))
        # A file is read without waiting.
        await asyncio.sleep(0)
    return found


async def open_questions(
    site: Site, viewer: Viewer, *, after: tuple[int, int] | None = None, **asked: Any
) -> AsyncIterator[tuple[TaskRow, list[Request]]]:
    """Yield the tasks that wait for a person, the longest first, with what each waits for. One
    question is there once, although a gateway or an agent passed it on. `after` is the place of
    the last one before."""
    heads = await waiting_tasks(site.store, viewer, **asked)
    # Only beside others may agents of the same store have their questions too.
    above = await relayed(site.store, heads) if len(site.agents) > 1 else {}
    for head in heads:
        if after is not None and (head.standing.status_at, head.number) <= after:
            continue
        requests = await requests_in(site.store, head)
        outer = above.get(head.task_id)
        if outer is not None:
            requests = await _not_passed_on(site.store, head, requests, outer)
        if requests:
            yield head, requests


async def _not_passed_on(
    store: Store, head: TaskRow, requests: list[Request], outer: _Outer
) -> list[Request]:
    """Return the requests of a task that the one which waits with it has not as well."""
    theirs = await requests_in(store, outer.head)
    if not outer.is_caller:
        # An agent elsewhere may claim any id, but does not know the ids of its requests.
        ids = {one.request_id for one in theirs}
        return [one for one in requests if one.request_id not in ids]
    # Passed on by an agent's code it has another id. The log of the caller names the task, and the
    # task its caller: an agent elsewhere that claims its id cannot have it say that.
    (log,) = await store.read_many([(head.number, 0)], limit=1)
    first = log[0].event if log else None
    named = first.history[:1] if isinstance(first, Task) else []
    if not any(outer.head.task_id in one.reference_task_ids for one in named):
        return requests
    prompts = {one.prompt for one in theirs}
    return [one for one in requests if one.prompt not in prompts]


async def requests_in(store: Store, head: TaskRow) -> list[Request]:
    """Return what a task waits for."""
    upto = head.standing.last_seq
    read = await read_task(store, head.number, upto=upto, artifacts=False)
    return open_requests(read.task.status) if read is not None else []


async def waiting_request(
    site: Site, viewer: Viewer, name: str, **asked: Any
) -> tuple[TaskRow, Request]:
    """Return the request with an id, or the only one of the task with it."""
    found = [one async for one in _requests_of(site, viewer, name, **asked)]
    if len(found) > 1:
        ids = ", ".join(one.request_id for _, one in found)
        raise InvalidParams(f"waits for several answers; name one of {ids}", field="id")
    if not found:
        raise TaskNotFound(taskId=name)
    return found[0]


async def _requests_of(
    site: Site, viewer: Viewer, name: str, **asked: Any
) -> AsyncIterator[tuple[TaskRow, Request]]:
    store = site.store
    heads = await viewer.tasks(store, limit=_AT_ONCE, task_id=TaskId(name), **asked)
    for head in heads:
        if head.standing.state.is_interrupted:
            for one in await requests_in(store, head):
                yield head, one
    if heads:
        return
    async for head, requests in open_questions(site, viewer, **asked):
        for one in requests:
            if one.request_id == name:
                yield head, one
                return
    # One that was passed on has another id above, or the page of its own task leads here.
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
