"""selectools' client on top of ours: the same methods and results, and one class of error. Features
that the original lacks have similar names: streams, lists, push notifications and the extended
card.
"""

import asyncio
import uuid
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from typing import Any, Concatenate, ParamSpec, TypeVar

import msgspec

from dragoman.client.answer import Answer
from dragoman.client.client import Client
from dragoman.client.streams.stream import Stream
from dragoman.compat.selectools.connection import SelectoolsConnection, run_sync, translated_errors
from dragoman.compat.selectools.records import A2AError, A2ATask, AgentCard, Json
from dragoman.dialects.v0_3_shapes import decode_part, decode_state, encode_message, encode_task
from dragoman.model.message import Part
from dragoman.model.push import PushConfig
from dragoman.model.task import Task

P = ParamSpec("P")
T = TypeVar("T")


def _waited(
    method: Callable[Concatenate["A2AClient", P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate["A2AClient", P], T]:
    """Return a method for code that is not async."""

    def run(self: "A2AClient", *args: P.args, **kwargs: P.kwargs) -> T:
        return run_sync(method(self, *args, **kwargs))

    run.__name__, run.__doc__ = f"{method.__name__}_sync", method.__doc__
    return run


class A2AClient:
    """Calls an agent at an address. `transport` is one of httpx, such as
    `httpx.ASGITransport(app=server)` for a server of this process.

    A refusal or an unreachable agent is an `A2AError`; a failure of the agent's work is a task in
    the state `failed`.
    """

    def __init__(
        self,
        base_url: str,
        auth_token: str | None = None,
        timeout: float = 30.0,
        transport: Any | None = None,
    ) -> None:
        self._timeout = timeout
        self._connection = SelectoolsConnection(base_url, auth_token, timeout, transport)

    # The card

    async def discover(self) -> AgentCard:
        """Return the agent's card, read anew."""
        with translated_errors():
            async with asyncio.timeout(self._timeout):
                return AgentCard.from_dict((await self._connection.read_card(fresh=True))[1])

    discover_sync = _waited(discover)

    async def extended_card(self) -> AgentCard:
        """Return the card for callers with a token."""
        card = await self._connection.call(lambda client: client.extended_card(), is_current=True)
        return AgentCard.from_dict(msgspec.to_builtins(card))

    extended_card_sync = _waited(extended_card)

    # Tasks

    async def send_task(
        self,
        text: str,
        context_id: str | None = None,
        extra_parts: list[Json] | None = None,
    ) -> A2ATask:
        """Send a text, and further parts in wire form; return the task once it rests."""

        async def send(client: Client) -> Answer:
            content = _content(text, extra_parts)
            return await client.send(
                content, context_id=context_id or "", message_id=uuid.uuid4().hex
            )

        return _shown(await self._connection.call(send))

    send_task_sync = _waited(send_task)

    async def get_task(self, task_id: str) -> A2ATask:
        """Return a task."""
        return _task(await self._connection.call(lambda client: client.get(task_id)))

    get_task_sync = _waited(get_task)

    async def cancel_task(self, task_id: str) -> A2ATask:
        """End a task before it is done."""
        return _task(await self._connection.call(lambda client: client.cancel(task_id)))

    cancel_task_sync = _waited(cancel_task)

    async def stream_task(
        self,
        text: str,
        context_id: str | None = None,
        extra_parts: list[Json] | None = None,
    ) -> AsyncGenerator[A2ATask]:
        """Send a text and yield the task after each event, until it rests."""

        def follow(client: Client) -> Stream:
            content = _content(text, extra_parts)
            return client.stream(content, context_id=context_id or "", message_id=uuid.uuid4().hex)

        async with aclosing(self._followed(follow)) as shown:
            async for task in shown:
                yield task

    async def resubscribe(self, task_id: str) -> AsyncGenerator[A2ATask]:
        """Yield a running task at once and after each event, until it rests."""
        async with aclosing(self._followed(lambda client: client.subscribe(task_id))) as shown:
            async for task in shown:
                yield task

    async def _followed(self, follow: Callable[[Client], Stream]) -> AsyncGenerator[A2ATask]:
        with translated_errors():
            # selectools' card never offers streams; the current card may.
            client = await self._connection.connected(is_current=True)
            try:
                stream = follow(client)
                async with aclosing(stream) as events:
                    async for _ in events:
                        yield _shown(stream.answer)
            finally:
                await client.close()

    async def list_tasks(
        self, context_id: str | None = None, state: str | None = None, limit: int = 50
    ) -> list[A2ATask]:
        """Return the latest tasks of the caller, in a conversation or a state (as in `TaskState`)
        if one is named."""

        async def read(client: Client) -> list[A2ATask]:
            wanted = decode_state(state, "state") if state else None
            found = client.list(
                context_id=context_id or "", state=wanted, page_size=min(limit, 50), artifacts=True
            )
            tasks: list[A2ATask] = []
            async with aclosing(found) as listed:
                async for task in listed:
                    tasks.append(_task(task))
                    if len(tasks) >= limit:
                        break
            return tasks

        if limit < 1:
            raise A2AError("limit is at least 1")
        return await self._connection.call(read, is_current=True)

    list_tasks_sync = _waited(list_tasks)

    # Push notifications

    async def set_push_config(
        self, task_id: str, url: str, token: str = "", config_id: str = ""
    ) -> Json:
        """Post a task's events to an address; return the configuration of the agent."""
        config = PushConfig(url=url, id=config_id, token=token)
        return _config(
            await self._connection.call(
                lambda client: client.create_push(task_id, config), is_current=True
            )
        )

    set_push_config_sync = _waited(set_push_config)

    async def get_push_config(self, task_id: str, config_id: str = "") -> Json:
        """Return a push configuration of a task."""
        return _config(
            await self._connection.call(
                lambda client: client.get_push(task_id, config_id), is_current=True
            )
        )

    get_push_config_sync = _waited(get_push_config)

    async def list_push_configs(self, task_id: str) -> list[Json]:
        """Return all push configurations of a task."""
        found = await self._connection.call(
            lambda client: client.list_push(task_id), is_current=True
        )
        return [_config(one) for one in found]

    list_push_configs_sync = _waited(list_push_configs)

    async def delete_push_config(self, task_id: str, config_id: str) -> None:
        """Stop posting to an address."""
        await self._connection.call(
            lambda client: client.delete_push(task_id, config_id), is_current=True
        )

    delete_push_config_sync = _waited(delete_push_config)


def _content(text: str, extra_parts: list[Json] | None) -> list[Part]:
    more = [
        decode_part(part, f"extra_parts[{index}]") for index, part in enumerate(extra_parts or [])
    ]
    return [Part(text=text), *more]


def _shown(answer: Answer) -> A2ATask:
    if answer.task is not None:
        return _task(answer.task)
    assert answer.message is not None, "an answer is a task or a message"
    return A2ATask.from_dict(encode_message(answer.message))


def _task(task: Task) -> A2ATask:
    return A2ATask.from_dict(encode_task(task))


def _config(config: PushConfig) -> Json:
    """Return a push configuration without its secrets."""
    return {"id": config.id, "taskId": config.task_id, "url": config.url}
