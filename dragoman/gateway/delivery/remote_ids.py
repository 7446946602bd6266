"""Ids of messages, tasks and contexts at the agents they are sent to.

To an agent all our callers are one, and two of them may have given their messages, or their tasks,
the same id. An agent that works once on a message would hand one caller's task to another caller
who knows its id. So the gateway makes the id, and the caller's id goes along in the metadata. The
owner of an agent that only one tenant uses may have message ids kept as they are.

A context's id is the agent's. In which one a caller's conversation goes on is read from the logs of
the caller's own tasks: the same after a restart and in every process, and of no other caller.
"""

import hashlib
import uuid

import msgspec

from dragoman.client.agent_connection import AgentConnection
from dragoman.dialects.house import Nexus
from dragoman.engine.log import TaskLog
from dragoman.engine.running.worker import Worker
from dragoman.gateway.delivery.context import DeliveryContext
from dragoman.gateway.registry.registered import Registered
from dragoman.model.events import Forwarded
from dragoman.model.identity import ContextId, MessageId, TaskId
from dragoman.model.message import Message
from dragoman.model.requests import as_answer, reply_to
from dragoman.stores.interface.store import Store
from dragoman.stores.interface.tasks import Query, TaskRow

# How many of a context's latest tasks are looked at, and how many events of each: an agent names
# its context with its first answer.
_LATEST = 20
_FIRST_EVENTS = 50
_fingerprint = msgspec.json.Encoder(order="deterministic").encode


def message_id_of(context: DeliveryContext, worker: Worker, agent: str = "") -> str:
    """Return our id of the message, the same however often it is sent; `agent` distinguishes
    agents that get it at the same time.

    With idempotent sends it does not depend on our task: it is the same if this process ends before
    the task is on disk, and the caller sends the message again."""
    scope = worker.log.scope
    message = msgspec.structs.replace(worker.message, task_id=TaskId(""), context_id=ContextId(""))
    is_once = context.settings.engine.idempotency and not worker.replay.turn
    which = "" if is_once else f"{worker.log.task_id} {worker.replay.turn}"
    facts = [context.gateway_id, scope.tenant, scope.owner, which, message, worker.metadata]
    return hashlib.blake2b(
        _fingerprint([*facts, agent] if agent else facts), digest_size=16
    ).hexdigest()


def remote_message(
    context: DeliveryContext,
    worker: Worker,
    agent: Registered,
    connection: AgentConnection,
    forwarded: Forwarded,
    message_id: str,
) -> Message:
    """Return the worker's message with the agent's ids, the same however often it is sent;
    `message_id` is ours for it.

    Agents of this process always get our message id: what they begin is counted by it, and no
    other caller may know it beforehand."""
    task_id = forwarded.task_id
    if not task_id and names_tasks(connection):
        task_id = _our_task_id(worker, message_id, is_ours=forwarded.is_ours)
    message = worker.message
    sent_id = MessageId(message_id)
    if agent.keep_message_ids:
        url = context.upstreams.of(agent).reached_at(forwarded.url)
        sent_id = sent_id if context.router.is_own(url) else message.message_id
    if forwarded.asks_plainly:
        message = as_answer(message, reply_to(message, ""))
    return msgspec.structs.replace(
        message,
        message_id=sent_id,
        task_id=TaskId(task_id),
        context_id=ContextId(forwarded.context_id),
        reference_task_ids=[],
    )


def _our_task_id(worker: Worker, message_id: str, *, is_ours: bool) -> str:
    """Return the id of a task at an agent that takes it from its caller: the one here, if we made
    that. Further messages of a task that has ended there begin other ones."""
    if is_ours and not worker.replay.turn:
        return worker.log.task_id
    return str(uuid.UUID(hex=message_id, version=4))


def names_tasks(connection: AgentConnection) -> bool:
    """Say whether the agent knows a task by the id that its caller gives it."""
    # The dialects are Protocols: asking one for its instances takes long.
    return type(connection.dialect) is Nexus


def may_repeat(connection: AgentConnection) -> bool:
    """Say whether an agent may get a message twice: it works on it once, or recognises the task by
    the id that we gave it."""
    return connection.works_once or names_tasks(connection)


async def earlier_context(store: Store, log: TaskLog, agent: str) -> Forwarded | None:
    """Return where the agent has the conversation that a new task belongs to; None: the agent has
    none, as far as the latest tasks say."""
    page = await store.page(Query(log.scope, _LATEST, context_id=log.context_id))
    for head in page.heads:
        if head.task_id == log.task_id:
            # It was not sent yet: to read that would be a look-up for nothing.
            continue
        found = await _forwarded(store, head)
        if found is not None and found.agent == agent and found.context_id:
            return found
    return None


async def _forwarded(store: Store, head: TaskRow) -> Forwarded | None:
    """Return where a task was sent."""
    found: Forwarded | None = None
    # The first event is the caller's message, which may be large.
    after, last = 1, 1 + _FIRST_EVENTS
    while after < last:
        batch = await store.read(head.number, after=after, limit=last - after, artifacts=False)
        if not batch:
            break
        for recorded in batch:
            if recorded.body.startswith(b'{"forwarded"'):
                event = recorded.event
                assert isinstance(event, Forwarded), "by its bytes it is"
                found = event
        after = batch[-1].seq
    return found
