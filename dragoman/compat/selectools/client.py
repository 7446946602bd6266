"""selectools' client over ours: the same methods and results, and one class of error for
everything that fails. What selectools' own client lacks is here as well, under names like its own:
streams, lists, posts and the extended card.
"""

import asyncio
import uuid
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

import msgspec

from dragoman.client.answer import Answer
from dragoman.client.client import Client
from dragoman.client.stream import Stream
from dragoman.compat.selectools.connection import Connection, told, waited
from dragoman.compat.selectools.records import A2AError, A2ATask, AgentCard, Json
from dragoman.dialects.v0_3 import decode_part, decode_state, encode_message, encode_task
from dragoman.model.message import Part
from dragoman.model.push import PushConfig
from dragoman.model.task import Task


class A2AClient:
    """Talks to an agent at an address. `transport` is one of httpx, such as
    `httpx.ASGITransport(app=server)` for a server of this process.

    What the agent refuses and what cannot be reached is an `A2AError`; what the agent tried and
    could not do is a task whose state is `failed`.
    """

    def __init__(
        self,
        base_url: str,
        auth_token: str | None = None,
        timeout: float = 30.0,
        transport: Any | None = None,
    ) -> None:
        self._timeout = timeout
        self._line = Connection(base_url, auth_token, timeout, transport)

    # The card

    async def discover(self) -> AgentCard:
        """Return the agent's card, read anew."""
        with told():
            async with asyncio.timeout(self._timeout):
                return AgentCard.from_dict((await self._line.look(fresh=True))[1])

    def discover_sync(self) -> AgentCard:
        """Return the agent's card, read anew, in code that is not async."""
        return waited(self.discover())

    async def extended_card(self) -> AgentCard:
        """Return the card that only callers with a token see."""

        async def read(client: Client) -> AgentCard:
            card: Json = msgspec.to_builtins(await client.extended_card())
            return AgentCard.from_dict(card)

        return await self._line.call(read, by_todays_card=True)

    def extended_card_sync(self) -> AgentCard:
        """Return the card that only callers with a token see, in code that is not async."""
        return waited(self.extended_card())

    # Tasks

    async def send_task(
        self,
        text: str,
        context_id: str | None = None,
        extra_parts: list[Json] | None = None,
    ) -> A2ATask:
        """Send a text, and more parts as they are on the wire; return the task once it rests."""

        async def send(client: Client) -> A2ATask:
            content = _content(text, extra_parts)
            answer = await client.send(
                content, context_id=context_id or "", message_id=uuid.uuid4().hex
            )
            return _shown(answer)

        return await self._line.call(send)

    def send_task_sync(
        self,
        text: str,
        context_id: str | None = None,
        extra_parts: list[Json] | None = None,
    ) -> A2ATask:
        """Send a text in code that is not async."""
        return waited(self.send_task(text, context_id=context_id, extra_parts=extra_parts))

    async def get_task(self, task_id: str) -> A2ATask:
        """Return a task as it stands."""

        async def get(client: Client) -> A2ATask:
            return _task(await client.get(task_id))

        return await self._line.call(get)

    def get_task_sync(self, task_id: str) -> A2ATask:
        """Return a task as it stands in code that is not async."""
        return waited(self.get_task(task_id))

    async def cancel_task(self, task_id: str) -> A2ATask:
        """End a task before it is done."""

        async def cancel(client: Client) -> A2ATask:
            return _task(await client.cancel(task_id))

        return await self._line.call(cancel)

    def cancel_task_sync(self, task_id: str) -> A2ATask:
        """End a task before it is done, in code that is not async."""
        return waited(self.cancel_task(task_id))

    async def stream_task(
        self,
        text: str,
        context_id: str | None = None,
        extra_parts: list[Json] | None = None,
    ) -> AsyncGenerator[A2ATask]:
        """Send a text and yield the task each time that something came of it, until it rests."""

        def follow(client: Client) -> Stream:
            content = _content(text, extra_parts)
            return client.stream(content, context_id=context_id or "", message_id=uuid.uuid4().hex)

        async with aclosing(self._followed(follow)) as shown:
            async for task in shown:
                yield task

    async def resubscribe(self, task_id: str) -> AsyncGenerator[A2ATask]:
        """Yield a task that is under way as it stands, and each time that something came of it,
        until it rests."""
        async with aclosing(self._followed(lambda client: client.subscribe(task_id))) as shown:
            async for task in shown:
                yield task

    async def _followed(self, follow: Callable[[Client], Stream]) -> AsyncGenerator[A2ATask]:
        with told():
            # selectools' card knows of no streams; that of today does, where there are some.
            client = await self._line.connected(by_todays_card=True)
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
        return await self._line.call(read, by_todays_card=True)

    def list_tasks_sync(
        self, context_id: str | None = None, state: str | None = None, limit: int = 50
    ) -> list[A2ATask]:
        """Return the latest tasks in code that is not async."""
        return waited(self.list_tasks(context_id, state, limit))

    # Posts

    async def set_push_config(
        self, task_id: str, url: str, token: str = "", config_id: str = ""
    ) -> Json:
        """Have a task's events posted to an address; return what the agent made of it."""

        async def create(client: Client) -> Json:
            config = PushConfig(url=url, id=config_id, token=token)
            return _config(await client.create_push(task_id, config))

        return await self._line.call(create, by_todays_card=True)

    def set_push_config_sync(
        self, task_id: str, url: str, token: str = "", config_id: str = ""
    ) -> Json:
        """Have a task's events posted, in code that is not async."""
        return waited(self.set_push_config(task_id, url, token, config_id))

    async def get_push_config(self, task_id: str, config_id: str = "") -> Json:
        """Return where a task's events are posted to."""

        async def get(client: Client) -> Json:
            return _config(await client.get_push(task_id, config_id))

        return await self._line.call(get, by_todays_card=True)

    def get_push_config_sync(self, task_id: str, config_id: str = "") -> Json:
        """Return where a task's events are posted to, in code that is not async."""
        return waited(self.get_push_config(task_id, config_id))

    async def list_push_configs(self, task_id: str) -> list[Json]:
        """Return all addresses that a task's events are posted to."""

        async def read(client: Client) -> list[Json]:
            return [_config(one) for one in await client.list_push(task_id)]

        return await self._line.call(read, by_todays_card=True)

    def list_push_configs_sync(self, task_id: str) -> list[Json]:
        """Return all addresses that a task's events are posted to, in code that is not async."""
        return waited(self.list_push_configs(task_id))

    async def delete_push_config(self, task_id: str, config_id: str) -> None:
        """Stop posting to an address."""

        async def delete(client: Client) -> None:
            await client.delete_push(task_id, config_id)

        await self._line.call(delete, by_todays_card=True)

    def delete_push_config_sync(self, task_id: str, config_id: str) -> None:
        """Stop posting to an address, in code that is not async."""
        waited(self.delete_push_config(task_id, config_id))


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
    """Return where a task's events go, but for what the receiver knows them by."""
    return {"id": config.id, "taskId": config.task_id, "url": config.url}
