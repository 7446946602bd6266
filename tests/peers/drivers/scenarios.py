"""What a Python client library is made to do, said once for all of them.

A driver gives its library the shape of `Peer`; everything here speaks the plain values below.
Runs inside a peer's environment, so only the standard library is at hand.
"""

import asyncio
import json
import sys
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol
from uuid import uuid4

EACH_WITHIN = 60.0
UNKNOWN_TASK = "00000000-0000-4000-8000-000000000000"


@dataclass(frozen=True)
class Card:
    name: str
    skills: int
    streaming: bool
    interfaces: list[tuple[str, str]]  # binding, major.minor


@dataclass(frozen=True)
class Part:
    text: str | None = None
    raw: bytes | None = None
    url: str | None = None
    data: Any = None  # JSON of any shape
    filename: str = ""
    media_type: str = ""


@dataclass(frozen=True)
class Artifact:
    id: str
    parts: list[Part]

    @property
    def text(self) -> str:
        return "".join(part.text or "" for part in self.parts)


@dataclass(frozen=True)
class Message:
    id: str
    role: str
    text: str


@dataclass(frozen=True)
class Task:
    id: str
    context: str
    state: str  # in the spelling of 0.3
    said: str = ""  # text of the status message
    history: list[Message] = field(default_factory=list)
    artifacts: list[Artifact] = field(default_factory=list)


@dataclass(frozen=True)
class Status:
    task: str
    state: str
    said: str


@dataclass(frozen=True)
class Chunk:
    task: str
    artifact: Artifact
    append: bool
    last: bool


Event = Task | Message | Status | Chunk


@dataclass(frozen=True)
class Receiver:
    """A push configuration."""

    id: str
    task: str
    url: str
    token: str = ""
    scheme: str = ""
    credentials: str = ""


@dataclass(frozen=True)
class Page:
    tasks: list[Task]
    token: str
    total: int


class Peer(Protocol):
    """A client library, bent into one shape and nothing more."""

    lists: bool
    lists_receivers: bool  # and deletes them
    # The error that the version has for an agent without one. Empty: it has one operation for both
    # cards, as 0.3 over gRPC, and gives the public one.
    extended_card_off: str
    # Whether who subscribes to a task that has ended gets the task: so the proto of 0.3 has it.
    shows_ended: bool

    async def card(self) -> Card: ...
    async def send(
        self, message_id: str, *, task: str = "", context: str = "", wait: bool = True
    ) -> Task | Message: ...
    def stream(
        self, message_id: str, *, task: str = ""
    ) -> AbstractAsyncContextManager[AsyncIterator[Event]]: ...
    def subscribe(self, task: str) -> AbstractAsyncContextManager[AsyncIterator[Event]]: ...
    async def get(self, task: str, history: int | None = None) -> Task: ...
    async def page(
        self, context: str, token: str = "", artifacts: bool = False, state: str = ""
    ) -> Page: ...
    async def cancel(self, task: str) -> Task: ...
    async def set_push(self, receiver: Receiver) -> Receiver: ...
    async def get_push(self, task: str, id: str) -> Receiver: ...
    async def list_push(self, task: str) -> list[Receiver]: ...
    async def delete_push(self, task: str, id: str) -> None: ...
    async def send_with_push(self, message_id: str, receiver: Receiver) -> Task: ...
    def posted(self, body: bytes) -> Event: ...
    async def extended_card(self) -> str: ...
    def meaning(self, error: Exception) -> str | None: ...


def message_id(prefix: str) -> str:
    return f"{prefix}-{uuid4().hex}"


def expect(what: str, found: object, wanted: object) -> None:
    if found != wanted:
        raise AssertionError(f"{what}: {found!r}, not {wanted!r}")


def expect_that(holds: bool, otherwise: str) -> None:
    if not holds:
        raise AssertionError(otherwise)


def a_task(reply: object) -> Task:
    expect_that(isinstance(reply, Task), f"the reply is not a task: {reply!r}")
    assert isinstance(reply, Task)
    return reply


async def refused(peer: Peer, call: Awaitable[object], wanted: str) -> None:
    """Hold the library to raising the error of that meaning."""
    try:
        answer = await call
    except Exception as error:
        expect(f"meaning of {error!r}", peer.meaning(error), wanted)
    else:
        raise AssertionError(f"{wanted} was not raised; the answer was {answer!r}")


async def follow(
    opened: AbstractAsyncContextManager[AsyncIterator[Event]],
) -> list[Event]:
    async with opened as events:
        return [event async for event in events]


async def finished_task(peer: Peer) -> Task:
    return a_task(await peer.send(message_id("tck-complete-task")))


async def running_task(peer: Peer) -> Task:
    """Start a task that works for a few seconds, without waiting for it."""
    return a_task(await peer.send(message_id("test-resubscribe-message-id"), wait=False))


async def card(peer: Peer) -> None:
    found = await peer.card()
    expect_that(bool(found.name), "the card has no name")
    expect_that(found.skills > 0, "the card has no skill")
    expect_that(found.streaming, "the card does not offer streaming")


async def send_completes(peer: Peer) -> None:
    sent = message_id("tck-complete-task")
    task = a_task(await peer.send(sent))
    expect("state", task.state, "completed")
    expect("status message", task.said, "Hello from TCK")
    expect_that(bool(task.id and task.context), f"an id is missing: {task!r}")
    expect("first message", (task.history[0].id, task.history[0].role), (sent, "user"))


async def send_returns_an_artifact(peer: Peer) -> None:
    task = a_task(await peer.send(message_id("tck-artifact-text")))
    expect("state", task.state, "completed")
    expect("artifacts", [a.text for a in task.artifacts], ["Generated text content"])


async def send_returns_files_and_data(peer: Peer) -> None:
    found: dict[str, Part] = {}
    for kind in ("file", "file-url", "data"):
        task = a_task(await peer.send(message_id(f"tck-artifact-{kind}")))
        (artifact,) = task.artifacts
        (found[kind],) = artifact.parts
    raw, url, data = found["file"], found["file-url"], found["data"]
    expect_that(bool(raw.raw), f"the file has no bytes: {raw!r}")
    expect("name and type of bytes", (raw.filename, raw.media_type), ("output.txt", "text/plain"))
    expect("address", url.url, "https://example.com/output.txt")
    expect("name and type of url", (url.filename, url.media_type), ("output.txt", "text/plain"))
    expect("data", data.data, {"key": "value", "count": 42})


async def send_returns_a_message(peer: Peer) -> None:
    reply = await peer.send(message_id("tck-message-response"))
    expect_that(isinstance(reply, Message), f"the reply is not a message: {reply!r}")
    assert isinstance(reply, Message)
    expect("reply", (reply.role, reply.text), ("agent", "Direct message response"))


async def send_is_rejected(peer: Peer) -> None:
    task = a_task(await peer.send(message_id("tck-reject-task")))
    expect("state", task.state, "rejected")


async def send_does_not_wait(peer: Peer) -> None:
    task = await running_task(peer)
    expect_that(task.state in ("submitted", "working"), f"the task rests already: {task!r}")
    await peer.cancel(task.id)


async def stream_in_order(peer: Peer) -> None:
    events = await follow(peer.stream(message_id("tck-stream-001")))
    first, *rest = events
    task = a_task(first)
    expect("tasks of the events", {e.task for e in rest if not isinstance(e, Task)}, {task.id})
    expect("tasks in the stream", sum(isinstance(e, Task) for e in events), 1)
    steps = [e.state if isinstance(e, Status) else type(e).__name__ for e in rest]
    if task.state == "working":
        steps.insert(0, "working")
    # A server may tell more than one step of work; what matters is what comes after what.
    expect("steps", list(dict.fromkeys(steps)), ["working", "Chunk", "completed"])
    expect("last step", steps[-1], "completed")
    stored = await peer.get(task.id)
    texts = [e.artifact.text for e in rest if isinstance(e, Chunk)]
    expect("stored artifacts", [a.text for a in stored.artifacts], ["".join(texts)])


async def stream_in_chunks(peer: Peer) -> None:
    events = await follow(peer.stream(message_id("tck-stream-artifact-chunked")))
    chunks = [event for event in events if isinstance(event, Chunk)]
    expect("texts", [chunk.artifact.text for chunk in chunks], ["chunk-1 ", "chunk-2"])
    expect("append", [chunk.append for chunk in chunks], [False, True])
    expect("last", [chunk.last for chunk in chunks], [False, True])
    expect("artifact ids", len({chunk.artifact.id for chunk in chunks}), 1)
    stored = await peer.get(a_task(events[0]).id)
    expect("stored artifacts", [a.text for a in stored.artifacts], ["chunk-1 chunk-2"])


async def stream_a_message(peer: Peer) -> None:
    (reply,) = await follow(peer.stream(message_id("tck-message-response")))
    expect_that(isinstance(reply, Message), f"the event is not a message: {reply!r}")


async def get_with_history(peer: Peer) -> None:
    first, second = message_id("tck-input-required"), message_id("tck-input-required")
    asked = a_task(await peer.send(first))
    await peer.send(second, task=asked.id)
    whole = await peer.get(asked.id)
    by_user = [message.id for message in whole.history if message.role == "user"]
    expect("messages of the user", by_user, [first, second])
    expect("none asked for", (await peer.get(asked.id, history=0)).history, [])
    expect("the latest", (await peer.get(asked.id, history=1)).history, whole.history[-1:])
    expect("more than all", (await peer.get(asked.id, history=1000)).history, whole.history)


async def list_in_pages(peer: Peer) -> None:
    first = a_task(await peer.send(message_id("tck-artifact-text")))
    context = first.context
    ids = [first.id]
    for _ in range(2):
        task = a_task(await peer.send(message_id("tck-artifact-text"), context=context))
        expect("context", task.context, context)
        ids.append(task.id)
    await finished_task(peer)

    pages = [await peer.page(context)]
    while pages[-1].token and len(pages) < 10:
        pages.append(await peer.page(context, pages[-1].token))
    expect("sizes of the pages", [len(page.tasks) for page in pages], [1, 1, 1])
    expect("totals", [page.total for page in pages], [3, 3, 3])
    listed = [task for page in pages for task in page.tasks]
    expect("tasks, latest first", [task.id for task in listed], ids[::-1])
    expect("artifacts unasked", [task.artifacts for task in listed], [[], [], []])

    (asked,) = (await peer.page(context, artifacts=True)).tasks
    expect("artifacts asked for", [a.text for a in asked.artifacts], ["Generated text content"])
    expect("failed ones", (await peer.page(context, state="failed")).tasks, [])
    expect("completed ones", (await peer.page(context, state="completed")).total, 3)
    expect("a foreign context", (await peer.page(uuid4().hex)).tasks, [])


async def cancel_a_running_task(peer: Peer) -> None:
    task = await running_task(peer)
    canceled = await peer.cancel(task.id)
    expect("answer", (canceled.id, canceled.state), (task.id, "canceled"))
    expect("state", (await peer.get(task.id)).state, "canceled")


async def subscribe_after_a_lost_stream(peer: Peer) -> None:
    async with peer.stream(message_id("test-resubscribe-message-id")) as events:
        task = a_task(await anext(events))
        await anext(events)
    snapshot, *rest = await follow(peer.subscribe(task.id))
    expect("task subscribed to", a_task(snapshot).id, task.id)
    expect_that(any(isinstance(event, Chunk) for event in rest), f"no artifact came: {rest!r}")
    expect("last event", getattr(rest[-1], "state", rest[-1]), "completed")
    expect("state", (await peer.get(task.id)).state, "completed")


async def two_subscribers_see_the_same(peer: Peer) -> None:
    task = await running_task(peer)
    have_some = [asyncio.Event(), asyncio.Event()]

    async def watch(has_some: asyncio.Event) -> list[Event]:
        seen: list[Event] = []
        async with peer.subscribe(task.id) as events:
            async for event in events:
                seen.append(event)
                if len(seen) > 2:
                    has_some.set()
        return seen

    async def end() -> None:
        for has_some in have_some:
            await has_some.wait()
        await peer.cancel(task.id)

    *both, _ = await asyncio.gather(*map(watch, have_some), end())
    expect("tasks subscribed to", [a_task(events[0]).id for events in both], [task.id] * 2)
    # One may have come later and find more in its snapshot; from there on they are equal.
    shorter, longer = sorted((events[1:] for events in both), key=len)
    expect("events", longer[-len(shorter) :], shorter)
    expect("last event", getattr(shorter[-1], "state", shorter[-1]), "canceled")


async def multi_turn(peer: Peer) -> None:
    asked = a_task(await peer.send(message_id("tck-input-required")))
    expect("state", asked.state, "input-required")
    again = a_task(await peer.send(message_id("tck-input-required"), task=asked.id))
    expect("second turn", (again.id, again.state), (asked.id, "input-required"))
    done = a_task(
        await peer.send(message_id("tck-complete-task"), task=asked.id, context=asked.context)
    )
    expect("third turn", (done.id, done.state), (asked.id, "completed"))
    expect("context", done.context, asked.context)


async def multi_turn_in_streams(peer: Peer) -> None:
    first, second = message_id("tck-input-required"), message_id("tck-complete-task")
    asked = await follow(peer.stream(first))
    expect("end of the first stream", getattr(asked[-1], "state", asked[-1]), "input-required")
    task = a_task(asked[0]).id
    done = await follow(peer.stream(second, task=task))
    opening = a_task(done[0])
    expect("task of the second stream", opening.id, task)
    by_user = [message.id for message in opening.history if message.role == "user"]
    expect("messages of the user", by_user, [first, second])
    expect("beginning of the second stream", opening.state, "working")
    expect("end of the second stream", getattr(done[-1], "state", done[-1]), "completed")


async def unknown_task(peer: Peer) -> None:
    await refused(peer, peer.get(UNKNOWN_TASK), "TaskNotFound")
    await refused(peer, peer.cancel(UNKNOWN_TASK), "TaskNotFound")
    await refused(peer, follow(peer.subscribe(UNKNOWN_TASK)), "TaskNotFound")
    follow_up = peer.send(message_id("tck-complete-task"), task=UNKNOWN_TASK)
    await refused(peer, follow_up, "TaskNotFound")


async def finished_task_stays_finished(peer: Peer) -> None:
    task = await finished_task(peer)
    await refused(peer, peer.cancel(task.id), "TaskNotCancelable")
    if peer.shows_ended:
        (shown,) = await follow(peer.subscribe(task.id))
        expect("task subscribed to", a_task(shown).id, task.id)
    else:
        await refused(peer, follow(peer.subscribe(task.id)), "UnsupportedOperation")
    follow_up = peer.send(message_id("tck-complete-task"), task=task.id)
    await refused(peer, follow_up, "UnsupportedOperation")
    expect("task", await peer.get(task.id), task)


async def push_is_not_supported(peer: Peer) -> None:
    task = await finished_task(peer)
    wanted = Receiver("", task.id, "https://example.com/hook")
    await refused(peer, peer.set_push(wanted), "PushNotificationNotSupported")


async def push_configurations(peer: Peer) -> None:
    task = await finished_task(peer)
    first = Receiver("first", task.id, "http://127.0.0.1:9/1", "t", "Bearer", "hunter2")
    second = Receiver("second", task.id, "http://127.0.0.1:9/2")
    expect("answer", await peer.set_push(first), first)
    shown = replace(first, credentials="")
    expect("without credentials", await peer.get_push(task.id, "first"), shown)
    await refused(peer, peer.get_push(UNKNOWN_TASK, "first"), "TaskNotFound")
    await peer.set_push(second)
    moved = replace(second, url="http://127.0.0.1:9/3")
    expect("the same id again", await peer.set_push(moved), moved)
    expect("replaced", await peer.get_push(task.id, "second"), moved)
    if not peer.lists_receivers:
        return
    expect("list", await peer.list_push(task.id), [shown, moved])
    await peer.delete_push(task.id, "first")
    await peer.delete_push(task.id, "first")
    expect("rest", await peer.list_push(task.id), [moved])


async def push_arrives(peer: Peer) -> None:
    posts: list[tuple[dict[str, str], bytes]] = []
    is_over = asyncio.Event()

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        fields = (line.partition(": ") for line in head[1:] if line)
        headers = {name.lower(): value for name, _, value in fields}
        posts.append((headers, await reader.readexactly(int(headers["content-length"]))))
        writer.write(b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n")
        await writer.drain()
        writer.close()
        if getattr(peer.posted(posts[-1][1]), "state", "") == "completed":
            is_over.set()

    async with await asyncio.start_server(take, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/hook"
        wanted = Receiver("", "", url, "t-0ken", "Bearer", "hunter2")
        task = await peer.send_with_push(message_id("tck-artifact-text"), wanted)
        await is_over.wait()
    events = [peer.posted(body) for _, body in posts]
    first = a_task(events[0])
    expect("first post", (first.id, first.state), (task.id, "submitted"))
    ids = {event.id if isinstance(event, Task) else getattr(event, "task", "") for event in events}
    expect("tasks of the posts", ids, {task.id})
    for headers, _ in posts:
        expect("credentials", headers.get("authorization"), "Bearer hunter2")
        expect("token", headers.get("x-a2a-notification-token"), "t-0ken")


async def extended_card_is_off(peer: Peer) -> None:
    if peer.extended_card_off:
        await refused(peer, peer.extended_card(), peer.extended_card_off)
    else:
        expect("card", await peer.extended_card(), (await peer.card()).name)


SCENARIOS: dict[str, Callable[[Peer], Awaitable[None]]] = {
    "card": card,
    "send-completes": send_completes,
    "send-returns-an-artifact": send_returns_an_artifact,
    "send-returns-files-and-data": send_returns_files_and_data,
    "send-returns-a-message": send_returns_a_message,
    "send-is-rejected": send_is_rejected,
    "send-does-not-wait": send_does_not_wait,
    "stream-in-order": stream_in_order,
    "stream-in-chunks": stream_in_chunks,
    "stream-a-message": stream_a_message,
    "get-with-history": get_with_history,
    "list-in-pages": list_in_pages,
    "cancel-a-running-task": cancel_a_running_task,
    "subscribe-after-a-lost-stream": subscribe_after_a_lost_stream,
    "two-subscribers-see-the-same": two_subscribers_see_the_same,
    "multi-turn": multi_turn,
    "multi-turn-in-streams": multi_turn_in_streams,
    "unknown-task": unknown_task,
    "finished-task-stays-finished": finished_task_stays_finished,
    "push-is-not-supported": push_is_not_supported,
    "push-configurations": push_configurations,
    "push-arrives": push_arrives,
    "extended-card-is-off": extended_card_is_off,
}


# Against the server that has it.
WITH_PUSH = {"push-configurations", "push-arrives"}


async def outcome(scenario: str, peer: Peer) -> dict[str, object]:
    try:
        async with asyncio.timeout(EACH_WITHIN):
            await SCENARIOS[scenario](peer)
    except TimeoutError:
        detail = f"not over within {EACH_WITHIN:.0f} s\n{traceback.format_exc(limit=-3)}"
        return {"scenario": scenario, "ok": False, "detail": detail}
    except Exception:
        return {"scenario": scenario, "ok": False, "detail": traceback.format_exc(limit=-4)}
    return {"scenario": scenario, "ok": True, "detail": ""}


def main(connect: Callable[[str, str], AbstractAsyncContextManager[Peer]]) -> None:
    """Run the scenarios the command line names after addresses and version, a JSON line for
    each."""

    async def run(address: str, pushing: str, version: str, *chosen: str) -> None:
        async with connect(address, version) as peer, connect(pushing, version) as other:
            for scenario in chosen:
                asked = other if scenario in WITH_PUSH else peer
                print(json.dumps(await outcome(scenario, asked)), flush=True)

    asyncio.run(run(*sys.argv[1:]))
