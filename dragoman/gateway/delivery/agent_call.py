"""One call to one address of an agent: admission, and what its outcome says of the agent.

`Delivery` and `Race` call agents in this way only, so that every call has a slot of the agent's
bulkhead, and every outcome reaches its circuits and its health.
"""

import asyncio
import contextlib
import logging
import math
from contextlib import AbstractContextManager
from typing import Self

from dragoman.client.agent_connection import AgentConnection
from dragoman.engine.log import TaskLog
from dragoman.engine.running.worker import Worker
from dragoman.errors import A2AError, AgentOffline
from dragoman.gateway.delivery import retries
from dragoman.gateway.delivery.context import DeliveryContext
from dragoman.gateway.delivery.upstreams import Upstream
from dragoman.gateway.hops import RECORD
from dragoman.model.identity import Principal, TaskId
from dragoman.model.operations import CancelTask

logger = logging.getLogger("dragoman")

# Seconds an agent has to acknowledge what no caller waits for: a cancel, a push configuration.
NOTIFY_WITHIN = 10.0


class AgentCall:
    """A call, for as long as its context is open.

    Entering waits for a slot until the deadline, and raises `Overloaded` if there is none and
    `AgentOffline` if the circuit is open. A success may be noted early, and counts whatever comes
    after it. A class, because every forwarded message passes here."""

    __slots__ = ("_circuit", "_context", "_deadline", "_is_noted", "_upstream", "_url")

    def __init__(
        self,
        context: DeliveryContext,
        upstream: Upstream,
        url: str,
        requester: Principal,
        deadline: float | None = None,
    ) -> None:
        self._context = context
        self._upstream = upstream
        self._url = url
        self._deadline = deadline
        self._circuit = upstream.circuits.call(url, requester)
        self._is_noted = False

    async def __aenter__(self) -> Self:
        # Before a slot is taken: the calls that hold one may be waiting for the same dead agent.
        if wait := self._circuit.retry_in():
            raise AgentOffline(retryAfter=math.ceil(wait))
        upstream = self._upstream
        await upstream.bulkhead.acquire(self._deadline)
        if wait := self._circuit.admit():
            upstream.bulkhead.release()
            raise AgentOffline(retryAfter=math.ceil(wait))
        upstream.budget.requested()
        return self

    async def connection(self, worker: Worker) -> AgentConnection:
        """Return the connection for a task; what it carries is kept if the task asks for it, and
        its caller operates the gateway or owns the agent."""
        upstream, log = self._upstream, worker.log
        agent = upstream.agent
        observer = None
        if worker.operation.metadata.get(RECORD) is True and (
            worker.may_know or agent.owner == worker.caller.principal
        ):
            posts = self._context.push_inbox.url(log.scope, log.task_id)
            secrets = await upstream.secret(), posts
            observer = self._context.hops.observer(log.scope, log.task_id, agent.id, secrets)
        return await upstream.connection(self._url, observer)

    def succeeded(self) -> None:
        """Note that the agent answered."""
        self._is_noted = True
        self._circuit.succeeded()
        self._context.router.saw(self._upstream.agent.id)

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            if isinstance(error, A2AError | TimeoutError):
                self._failed(error)
            elif not self._is_noted:
                self._circuit.abandoned()
        finally:
            self._upstream.bulkhead.release()

    def _failed(self, error: A2AError | TimeoutError) -> None:
        if not retries.is_failing(error):
            self._circuit.succeeded()
            return
        self._circuit.failed(error)
        router, agent_id = self._context.router, self._upstream.agent.id
        if retries.is_absence(error) and len(self._upstream.urls) == 1:
            router.missed(agent_id)
        elif not retries.is_answer(error):
            # One of several addresses failed, or a message arrived before: only a probe can tell.
            router.doubted(agent_id)


def counted_for_caller(
    context: DeliveryContext, log: TaskLog, message_id: str, url: str
) -> AbstractContextManager[None]:
    """Let what a message begins at an agent of this process count for the task's caller, which was
    counted already. Agents elsewhere learn the id with the message, and could begin tasks by it."""
    if not context.router.is_own(url):
        return contextlib.nullcontext()
    return log.shares.calling(message_id, log.account.who, is_counted=True)


async def cancel_at_agent(context: DeliveryContext, agent_id: str, url: str, task_id: str) -> None:
    """Tell an agent that a task it has is canceled. A failure is logged: the task is over here."""
    agent = context.router.get(agent_id)
    if agent is None or not task_id:
        return
    try:
        async with asyncio.timeout(NOTIFY_WITHIN):
            connection = await context.upstreams.of(agent).connection(url)
            await connection.answer(CancelTask(task_id=TaskId(task_id)))
    except (A2AError, TimeoutError) as error:
        logger.info("%s could not be told that a task is canceled: %s", agent.name, error)
