"""Tasks: made, read, listed, answered, cancelled and followed.

A task is made by a message to the gateway's service, as every transport does. The caller does not
wait for its end.
"""

import hashlib
import math
from typing import Any

import msgspec

from dragoman.errors import (
    AgentOffline,
    InsufficientCredits,
    InvalidParams,
    TaskNotCancelable,
    UnsupportedOperation,
)
from dragoman.gateway.api import streams
from dragoman.gateway.api.asking import (
    idempotency_key,
    is_uuid,
    micro,
    no_agent,
    reading_of,
    row_of,
    scope_of,
    shown_task,
    task_id_of,
)
from dragoman.gateway.api.envelope import ApiRefused, Code
from dragoman.gateway.api.record import STATES, Status, TaskRecord, credit, status_of
from dragoman.gateway.api.table import Ask, Endpoint, EndpointTable
from dragoman.gateway.api.task_shapes import (
    CreatedTask,
    DashboardTask,
    NewTask,
    ReplyPart,
    TaskAnswer,
    TaskQuery,
    Tasks,
)
from dragoman.gateway.delivery.task_input import input_part
from dragoman.gateway.hops import TaskHops
from dragoman.gateway.registry.agent_keys import REQUESTER
from dragoman.gateway.registry.registered import Registered, serves
from dragoman.model import operations as ops
from dragoman.model.identity import MessageId, TaskId, new_id
from dragoman.model.message import Message, Part, Role
from dragoman.model.money import credits_text
from dragoman.service import Call, TaskReply
from dragoman.stores.interface.orders import OrderQuery

_MAKING: tuple[Code, ...] = (
    "AGENT_NOT_FOUND",
    "AGENT_OFFLINE",
    "INSUFFICIENT_CREDITS",
    "TRUST_THRESHOLD_NOT_MET",
    "PROTOCOL_ERROR",
)
ENDPOINTS = EndpointTable()

_fingerprint = msgspec.json.Encoder(order="deterministic").encode


@ENDPOINTS.add(
    "POST",
    "/api/v1/tasks",
    scope="tasks:write",
    status=202,
    body=NewTask,
    is_keyed=True,
    errors=_MAKING,
)
async def create_task(ask: Ask) -> TaskRecord:
    """Give a task to an agent; answered before anything is forwarded."""
    body: NewTask = ask.body
    agent = _assignee(ask, body.assigned_agent_id, "assignedAgentId")
    metadata: dict[str, Any] = {
        "agentId": agent.id,
        "title": body.title,
        "description": body.description,
        "timeoutSeconds": body.timeout_seconds,
    }
    if body.skill_id:
        metadata["skillId"] = body.skill_id
    if body.min_trust_score:
        metadata["minTrust"] = body.min_trust_score
    if body.max_budget_credits is not None:
        metadata["maxBudget"] = credits_text(micro(body.max_budget_credits))
    return await _begin(ask, agent, input_part(body.input), metadata, _fingerprint(body))


@ENDPOINTS.add(
    "POST",
    "/api/dashboard/tasks",
    scope="tasks:write",
    status=202,
    body=DashboardTask,
    is_keyed=True,
    errors=_MAKING,
)
async def create_dashboard_task(ask: Ask) -> CreatedTask:
    """Give a task to an agent as text."""
    body: DashboardTask = ask.body
    agent = _assignee(ask, body.agent_id, "agentId")
    part = Part(text=body.message)
    made = await _begin(ask, agent, part, {"agentId": agent.id}, _fingerprint(body))
    return CreatedTask(made.id)


def _assignee(ask: Ask, ref: str, field: str) -> Registered:
    """Return the agent of an id or a name, if it can be given a task."""
    agent = ask.gateway.registry.get(ref)
    if agent is None or not serves(agent, ask.principal):
        if is_uuid(ref):
            raise no_agent(ref)
        raise InvalidParams(
            "is neither the id of an agent, which is a UUID, nor the name of one", field=field
        )
    if agent.status == "offline":
        wait = ask.gateway.router.retry_in(agent, ask.principal)
        raise AgentOffline(agentId=agent.id, retryAfter=max(1, math.ceil(wait)))
    return agent


async def _begin(
    ask: Ask, agent: Registered, part: Part, metadata: dict[str, Any], fingerprint: bytes
) -> TaskRecord:
    message = Message(_message_id(ask, fingerprint), Role.USER, [part])
    if requester := ask.caller.agent:
        metadata[REQUESTER] = requester
    operation = ops.SendMessage(
        message=message, wait=False, metadata=metadata, tenant=ask.caller.tenant or ""
    )
    try:
        reply = await ask.gateway.service.answer(Call(operation=operation, caller=ask.caller))
    except InsufficientCredits as error:
        # No task was made: its price is held by the write that begins it.
        balance = await ask.gateway.ledger.balance(ask.principal)
        raise ApiRefused(
            "INSUFFICIENT_CREDITS",
            error.public,
            balance=credit(balance.available),
            cost=credit(agent.price),
        ) from None
    assert isinstance(reply, TaskReply), "everything forwarded is a task"
    return await shown_task(ask, reply.reading.task)


def _message_id(ask: Ask, fingerprint: bytes) -> MessageId:
    """Return the id of a message: the same for the same request under the same key, so that a
    repetition leads to the same task."""
    key = idempotency_key(ask)
    if not key:
        return MessageId(new_id())
    digest = hashlib.blake2b(key.encode() + b"\0" + fingerprint, digest_size=16)
    return MessageId(f"key-{digest.hexdigest()}")


@ENDPOINTS.add("GET", "/api/v1/tasks/{id}", scope="tasks:read", errors=("TASK_NOT_FOUND",))
async def get_task(ask: Ask) -> TaskRecord:
    """Read a task."""
    reading = await reading_of(ask, task_id_of(ask))
    return await shown_task(ask, reading.task)


@ENDPOINTS.add("GET", "/api/v1/tasks/{id}/hops", scope="tasks:read", errors=("TASK_NOT_FOUND",))
async def get_task_hops(ask: Ask) -> TaskHops:
    """Read what was said to and by the agent for a task of yours, sent with `recordHops`."""
    task_id = task_id_of(ask)
    await reading_of(ask, task_id)
    sees_all = ask.gateway.may_know(ask.caller)

    def may_see(agent_id: str) -> bool:
        agent = ask.gateway.router.get(agent_id)
        return sees_all or (agent is not None and agent.owner == ask.principal)

    return ask.gateway.delivery.hops.of(scope_of(ask), task_id, may_see)


@ENDPOINTS.add("GET", "/api/v1/tasks", scope="tasks:read", query=TaskQuery)
async def list_tasks(ask: Ask) -> Tasks:
    """Read your own tasks, newest first."""
    query: TaskQuery = ask.query
    agent = ""
    if query.assigned_agent_id:
        found = ask.gateway.registry.get(query.assigned_agent_id)
        # A task outlives its agent: the id of an agent that was removed is still a filter.
        agent = found.id if found is not None else query.assigned_agent_id
    wanted = OrderQuery(agent=agent)
    status = query.status
    if status is not msgspec.UNSET:
        is_assigned = status == "assigned" if status in ("pending", "assigned") else None
        wanted = OrderQuery(agent=agent, states=STATES[status], is_assigned=is_assigned)
    rows, total = await ask.gateway.ledger.store.orders(
        scope_of(ask), wanted, limit=query.limit, offset=query.offset
    )
    shown: list[TaskRecord] = []
    for row in rows:
        try:
            reading = await reading_of(ask, TaskId(row.task_id))
        except ApiRefused:
            # Pruned since it was listed.
            continue
        shown.append(await shown_task(ask, reading.task, row))
    return Tasks(shown, total, query.limit, query.offset)


@ENDPOINTS.add("POST", "/api/v1/tasks/{id}/cancel", scope="tasks:write", errors=("TASK_NOT_FOUND",))
async def cancel_task(ask: Ask) -> TaskRecord:
    """Cancel a task; its agent is told."""
    task_id = task_id_of(ask)
    reading = await reading_of(ask, task_id)
    operation = ops.CancelTask(task_id=task_id, tenant=ask.caller.tenant or "")
    try:
        reply = await ask.gateway.service.answer(Call(operation=operation, caller=ask.caller))
    except TaskNotCancelable:
        reading = await reading_of(ask, task_id)
        status = status_of(reading.task, await row_of(ask, task_id))
        raise ApiRefused("VALIDATION_ERROR", f"Cannot cancel task with status: {status}") from None
    assert isinstance(reply, TaskReply), "a cancelled task is a task"
    return await shown_task(ask, reply.reading.task)


@ENDPOINTS.add(
    "POST",
    "/api/v1/tasks/{id}/reply",
    scope="tasks:write",
    body=TaskAnswer,
    is_keyed=True,
    errors=("TASK_NOT_FOUND", "PROTOCOL_ERROR"),
)
async def reply_to_task(ask: Ask) -> TaskRecord:
    """Send a further message to a task that is under way."""
    task_id = task_id_of(ask)
    body: TaskAnswer = ask.body
    reading = await reading_of(ask, task_id)
    if reading.task.status.state.is_terminal:
        raise _cannot_reply(status_of(reading.task, await row_of(ask, task_id)))
    parts = [Part(text=body.message)]
    for artifact in body.artifacts:
        named = {"name": artifact.name, "description": artifact.description}
        held = {name: value for name, value in named.items() if value}
        parts += [_part(part, held) for part in artifact.parts]
    message = Message(
        _message_id(ask, _fingerprint([task_id, body])), Role.USER, parts, task_id=task_id
    )
    operation = ops.SendMessage(message=message, wait=False, tenant=ask.caller.tenant or "")
    try:
        reply = await ask.gateway.service.answer(Call(operation=operation, caller=ask.caller))
    except UnsupportedOperation:
        # It ended after it was read.
        reading = await reading_of(ask, task_id)
        raise _cannot_reply(status_of(reading.task, await row_of(ask, task_id))) from None
    assert isinstance(reply, TaskReply), "what is said to a task is answered by the task"
    return await shown_task(ask, reply.reading.task)


def _part(part: ReplyPart, metadata: dict[str, Any]) -> Part:
    if part.type == "text" and isinstance(part.data, str):
        return Part(text=part.data, metadata=metadata)
    return Part(data=part.data, metadata=metadata)


def _cannot_reply(status: Status) -> ApiRefused:
    return ApiRefused("VALIDATION_ERROR", f"Cannot reply to task with status: {status}")


ENDPOINTS.rows.append(
    Endpoint(
        verb="GET",
        path="/api/v1/tasks/{id}/stream",
        scope="tasks:read",
        name="stream_task",
        summary="Follow a task by events: status, message, artifact, complete, error",
        answer=streams.follow,
        streams=True,
    )
)
