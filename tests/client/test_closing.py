"""What becomes of calls when their client is closed, over sockets and in process."""

import asyncio
import contextlib
import gc
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import pytest
from harness.serving import app_of, serving
from harness.waiting import WAIT, within

from dragoman import Agent, Client, Turn
from dragoman.client.asgi import InProcess
from dragoman.client.streams.stream import Stream
from dragoman.egress.errors import EgressClosed, EgressFailed
from dragoman.errors import A2AError, ConfigError, DeliveryUnknown, Unreachable
from dragoman.model.task import Task, TaskState
from tests.client import stub


def waiting(begun: asyncio.Event) -> Agent:
    """An agent whose tasks never end by themselves; it says when one has begun."""
    agent = Agent("Waiting", "Begins.")

    @agent.skill
    async def wait(text: str, turn: Turn) -> str:
        await turn.say("Working on it")
        begun.set()
        await asyncio.Event().wait()
        return text

    return agent


@pytest.fixture
def begun() -> asyncio.Event:
    return asyncio.Event()


@pytest.fixture(params=["socket", "process"])
async def client(request: pytest.FixtureRequest, begun: asyncio.Event) -> AsyncIterator[Client]:
    async with contextlib.AsyncExitStack() as stack:
        if request.param == "socket":
            made = Client((await stack.enter_async_context(serving(waiting(begun)))).url)
        else:
            made = Client(app=app_of(waiting(begun)))
        await made.connect()
        yield made
        await made.close()


class Reading:
    """A task that reads a stream, and when it has read the first events."""

    def __init__(self, stream: Stream, events: int = 2) -> None:
        self.stream = stream
        self.shown: list[Any] = []
        self.begun = asyncio.Event()
        self._events = events
        self.task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for event in self.stream:
            self.shown.append(event)
            if len(self.shown) >= self._events:
                self.begun.set()


async def test_a_stream_that_is_read_ends_with_its_client(client: Client) -> None:
    reading = Reading(client.stream("x"))
    await within(reading.begun.wait())
    began = time.monotonic()
    await within(client.close())
    with pytest.raises(Unreachable, match="closed") as raised:
        await within(reading.task)
    assert time.monotonic() - began < WAIT / 2
    assert raised.value.facts["taskId"] == reading.stream.task_id
    # The task was known, so nothing is in doubt.
    assert not isinstance(raised.value, DeliveryUnknown)


async def test_a_subscription_ends_with_its_client(client: Client) -> None:
    task = await within(client.send("x", wait=False))
    reading = Reading(client.subscribe(task.task_id), events=1)
    await within(reading.begun.wait())
    await within(client.close())
    with pytest.raises(Unreachable, match="closed"):
        await within(reading.task)


async def test_streamed_text_ends_with_its_client(client: Client, begun: asyncio.Event) -> None:
    async def read() -> None:
        async for _ in client.stream_text("x"):
            pass

    reading = asyncio.create_task(read())
    await within(begun.wait())
    await within(client.close())
    with pytest.raises(Unreachable, match="closed"):
        await within(reading)


async def test_a_send_under_way_may_have_arrived_and_says_so(
    client: Client, begun: asyncio.Event
) -> None:
    sending = asyncio.create_task(client.send("x"))
    await within(begun.wait())
    await within(client.close())
    with pytest.raises(DeliveryUnknown, match="closed"):
        await within(sending)


async def test_every_call_after_closing_is_refused(client: Client) -> None:
    early = client.stream("x")
    task = await within(anext(early))
    assert isinstance(task, Task)
    left = client.stream("y")
    await within(client.close())
    calls = [
        client.connect,
        client.look,
        lambda: client.send("x"),
        lambda: client.get(task.id),
        lambda: client.cancel(task.id),
        lambda: client.wait(task.id),
        client.page,
        lambda: client.list_push(task.id),
        lambda: anext(client.list()),
        lambda: anext(client.stream_text("x")),
        lambda: anext(left),
    ]
    for call in calls:
        with pytest.raises(ConfigError, match="the client is closed"):
            await within(call())
    for make in (lambda: client.stream("x"), lambda: client.subscribe(task.id)):
        with pytest.raises(ConfigError, match="the client is closed"):
            make()
    with pytest.raises(ConfigError, match="the client is closed"):
        client.sync  # noqa: B018 - that it raises is the test
    with pytest.raises(Unreachable, match="closed"):
        await within(anext(early))
    # What is known of the agent stays known.
    assert client.card.name == "Waiting"


async def test_a_stream_that_nobody_reads_is_left_before_its_client_goes(client: Client) -> None:
    stream = client.stream("x")
    pieces = client.stream_text("y")
    await within(anext(stream))
    problems: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: problems.append(context))
    try:
        await within(client.close())
        with pytest.raises(Unreachable):
            await within(anext(stream))
        await within(pieces.aclose())
        del stream
        gc.collect()
        await asyncio.sleep(0)
    finally:
        loop.set_exception_handler(None)
    assert not problems


async def test_closing_twice_is_fine(client: Client) -> None:
    await within(client.close())
    await within(client.close())


async def test_a_closed_client_leaves_no_task_of_its_app_behind(begun: asyncio.Event) -> None:
    before = asyncio.all_tasks()
    client = Client(app=app_of(waiting(begun)))
    reading = Reading(client.stream("x"))
    await within(reading.begun.wait())
    await within(client.close())
    with pytest.raises(Unreachable):
        await within(reading.task)
    assert not asyncio.all_tasks() - before


@pytest.mark.parametrize("way", ["stream", "wait", "send", "poll"])
async def test_a_pause_between_two_tries_ends_with_the_client(way: str) -> None:
    asked = asyncio.Event()

    def answer(request: stub.Asked) -> stub.Said:
        asked.set()
        if way == "poll":
            return stub.got(request, stub.task())
        return stub.Said(status=503, headers={**stub.JSON, "retry-after": "30"})

    client = stub.client(stub.Stub(answer), stub.card())

    async def call() -> None:
        if way == "stream":
            async for _ in client.stream("x"):
                pass
        elif way in ("wait", "poll"):
            await client.wait("t-1", poll_interval=300)
        else:
            await client.send("x")

    calling = asyncio.create_task(call())
    await within(asked.wait())
    # From the answer to the pause.
    for _ in range(20):
        await asyncio.sleep(0)
    began = time.monotonic()
    await client.close()
    with pytest.raises(Unreachable, match="closed"):
        await within(calling)
    assert time.monotonic() - began < WAIT / 2


async def test_a_limit_of_time_around_a_call_is_still_that() -> None:
    def answer(request: stub.Asked) -> stub.Said:
        return stub.Said(hangs=True)

    client = stub.client(stub.Stub(answer), stub.card())
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await client.send("x")
    await client.close()


async def test_an_error_of_the_agent_is_not_taken_for_closing() -> None:
    client = stub.client(stub.Stub(lambda asked: stub.error(asked, -32001)), stub.card())
    with pytest.raises(A2AError) as raised:
        await within(client.get("t-1"))
    assert not isinstance(raised.value, Unreachable)
    await client.close()


async def test_a_copy_outlives_the_client_it_was_made_from() -> None:
    async with serving(waiting(asyncio.Event())) as site:
        first = Client(site.url)
        await first.connect()
        second = first.copy()
        await first.close()
        assert (await within(second.send("x", wait=False))).state in (
            TaskState.SUBMITTED,
            TaskState.WORKING,
        )
        await second.close()


class TestInProcess:
    """The carrier by itself."""

    is_asked = asyncio.Event()

    @classmethod
    async def endless(cls, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            raise RuntimeError("none")
        if scope["path"] == "/silent":
            cls.is_asked.set()
            await asyncio.Event().wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while True:
            await send({"type": "http.response.body", "body": b"x", "more_body": True})
            await asyncio.sleep(0)

    async def test_a_body_that_is_read_breaks_off(self) -> None:
        carrier = InProcess(self.endless)
        async with carrier.open("GET", "http://localhost/", headers={}) as reply:
            chunks: AsyncGenerator[bytes] = reply.chunks()
            assert await within(anext(chunks)) == b"x"
            await within(carrier.close())
            with pytest.raises(EgressFailed) as raised:
                await within(anext(chunks))
        assert raised.value.reason == "the client was closed" and raised.value.is_sent

    async def test_a_head_that_is_waited_for_does_not_come(self) -> None:
        carrier = InProcess(self.endless)

        async def ask() -> None:
            async with carrier.open("GET", "http://localhost/silent", headers={}):
                pass

        asking = asyncio.create_task(ask())
        await within(self.is_asked.wait())
        await within(carrier.close())
        with pytest.raises(EgressFailed):
            await within(asking)

    async def test_an_app_without_a_lifespan_is_served_and_that_is_logged(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO, "dragoman")
        carrier = InProcess(self.endless)
        async with carrier.open("GET", "http://localhost/", headers={}) as reply:
            assert reply.status == 200
            await within(carrier.close())
        assert "the app has no lifespan: it raised RuntimeError('none')" in caplog.text

    async def test_an_app_that_raises_at_its_end_is_logged_as_a_failure(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def app(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "lifespan":
                await receive()
                await send({"type": "lifespan.startup.complete"})
                await receive()
                raise RuntimeError("could not close")
            await send({"type": "http.response.start", "status": 204, "headers": []})
            await send({"type": "http.response.body"})

        carrier = InProcess(app)
        async with carrier.open("GET", "http://localhost/", headers={}) as reply:
            assert reply.status == 204
        await within(carrier.close())
        (record,) = [one for one in caplog.records if one.levelno == logging.ERROR]
        assert record.getMessage() == "the app raised while it ran or ended"
        assert record.exc_info is not None and "could not close" in str(record.exc_info[1])

    async def test_a_closed_one_starts_no_app(self) -> None:
        carrier = InProcess(self.endless)
        await carrier.close()
        with pytest.raises(EgressClosed):
            async with carrier.open("GET", "http://localhost/", headers={}):
                pass
        assert carrier._life is None

    async def test_headers_are_the_bytes_that_a_socket_carries(self) -> None:
        seen: list[tuple[bytes, bytes]] = []

        async def app(scope: Any, receive: Any, send: Any) -> None:
            seen.extend(scope.get("headers", ()))
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b""})

        carrier = InProcess(app)
        async with carrier.open("GET", "http://localhost/", headers={"x": "☃"}):
            pass
        await carrier.close()
        assert (b"x", "☃".encode()) in seen
