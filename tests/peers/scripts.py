"""What our client is asked to do with every peer, written once: a script knows no library.

Each takes a way to connect and asserts what its caller would see. What the peers do with the texts
is written in `servers/playing.py`.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from dragoman import Client, Part
from dragoman.errors import TaskNotFound, VersionNotSupported
from dragoman.model.events import ArtifactUpdate, StatusUpdate
from dragoman.model.message import Message
from dragoman.model.push import PushConfig
from dragoman.model.task import Task, TaskState

# How a script gets its client: arguments are those of Client, besides what the side speaks.
Connect = Callable[..., AbstractAsyncContextManager[Client]]
Script = Callable[[Connect], Awaitable[None]]

SCRIPTS: dict[str, Script] = {}

CHUNKS = 6
WHOLE = "".join(f"c{i} " for i in range(CHUNKS))
UNKNOWN = "00000000-0000-4000-8000-000000000000"
HOOK = "http://127.0.0.1:9/hook"


def script(function: Script) -> Script:
    SCRIPTS[function.__name__.replace("_", "-")] = function
    return function


def text_of(task: Task) -> str:
    parts = [part for artifact in task.artifacts for part in artifact.parts]
    return "".join(part.text for part in parts if isinstance(part.text, str))


@script
async def connect_from_the_host(connect: Connect) -> None:
    async with connect() as agent:
        card = await agent.connect()
        assert card.name
        assert agent.card == card
        assert agent.raw_card["name"] == card.name
        assert agent.interface.url.startswith("http://127.0.0.1:")


@script
async def send(connect: Connect) -> None:
    async with connect() as agent:
        answer = await agent.send("echo hello")
    assert (answer.state, answer.text) == (TaskState.COMPLETED, "hello")
    assert answer.task is not None and text_of(answer.task) == "hello"
    assert len(answer.artifacts) == 1
    assert answer.task_id == answer.task.id
    assert answer.context_id == answer.task.context_id


@script
async def send_text_of_any_script(connect: Connect) -> None:
    said = 'größe 漢字 \U0001f409\u2028 "quoted" \\ \n end'
    async with connect() as agent:
        answer = await agent.send(f"echo {said}")
    assert answer.text == said


@script
async def direct_message(connect: Connect) -> None:
    async with connect() as agent:
        answer = await agent.send("message hello")
    assert answer.task is None
    assert answer.message is not None and answer.message.text == "hello"
    assert answer.text == "hello"


@script
async def stream_a_direct_message(connect: Connect) -> None:
    async with connect() as agent:
        events = [event async for event in agent.stream("message hello")]
    assert [type(event) for event in events] == [Message]
    assert events[0].text == "hello"


@script
async def stream(connect: Connect) -> None:
    async with connect() as agent:
        follow = agent.stream(f"chunks {CHUNKS}")
        async for _ in follow:
            pass
        assert follow.task is not None
        assert (follow.answer.state, text_of(follow.task)) == (TaskState.COMPLETED, WHOLE)
        assert text_of(await agent.get(follow.task.id)) == WHOLE


@script
async def stream_events_in_order(connect: Connect) -> None:
    async with connect() as agent:
        events: list[Any] = [event async for event in agent.stream(f"chunks {CHUNKS}")]
    assert isinstance(events[0], Task)
    states = [event.status.state for event in events if isinstance(event, StatusUpdate)]
    assert states[-1] is TaskState.COMPLETED
    assert set(states[:-1]) <= {TaskState.SUBMITTED, TaskState.WORKING}
    chunks = [event for event in events if isinstance(event, ArtifactUpdate)]
    texts = [chunk.artifact.parts[0].text for chunk in chunks]
    assert texts == [f"c{i} " for i in range(CHUNKS)]
    assert [chunk.append for chunk in chunks] == [False] + [True] * (CHUNKS - 1)
    assert isinstance(events[-1], StatusUpdate)


@script
async def stream_text(connect: Connect) -> None:
    async with connect() as agent:
        pieces = [piece async for piece in agent.stream_text(f"chunks {CHUNKS}")]
    assert "".join(pieces) == WHOLE


@script
async def get(connect: Connect) -> None:
    async with connect() as agent:
        sent = await agent.send("echo hello")
        task = await agent.get(sent.task_id)
    assert (task.id, task.context_id) == (sent.task_id, sent.context_id)
    assert task.status.state is TaskState.COMPLETED
    assert text_of(task) == "hello"


@script
async def wait_for_what_was_not_waited_for(connect: Connect) -> None:
    async with connect() as agent:
        sent = await agent.send("slow 2", wait=False)
        assert sent.state in (TaskState.SUBMITTED, TaskState.WORKING)
        answer = await agent.wait(sent.task_id, poll_interval=0.1)
    assert (answer.task_id, answer.state) == (sent.task_id, TaskState.COMPLETED)
    assert answer.text == "done"


@script
async def ask_and_answer(connect: Connect) -> None:
    async with connect() as agent:
        asked = await agent.send("ask")
        assert asked.state is TaskState.INPUT_REQUIRED
        assert asked.task is not None and asked.task.status.message is not None
        assert asked.task.status.message.text == "Which city?"
        answer = await agent.send("Graz", task_id=asked.task_id, context_id=asked.context_id)
    assert (answer.task_id, answer.state) == (asked.task_id, TaskState.COMPLETED)
    assert answer.text == "got Graz"


@script
async def ask_and_answer_in_streams(connect: Connect) -> None:
    async with connect() as agent:
        asked = agent.stream("ask")
        async for _ in asked:
            pass
        assert asked.answer.state is TaskState.INPUT_REQUIRED
        to = {"task_id": asked.answer.task_id, "context_id": asked.answer.context_id}
        pieces = [piece async for piece in agent.stream_text("Graz", **to)]
    assert "".join(pieces) == "got Graz"


@script
async def failure_is_data(connect: Connect) -> None:
    async with connect() as agent:
        answer = await agent.send("fail")
    assert answer.state is TaskState.FAILED
    assert answer.artifacts == []


@script
async def failure_says_why(connect: Connect) -> None:
    async with connect() as agent:
        answer = await agent.send("fail")
    assert answer.task is not None and answer.task.status.message is not None
    assert answer.task.status.message.text == "It went wrong, as asked."


@script
async def cancel(connect: Connect) -> None:
    async with connect() as agent:
        sent = await agent.send("cancelme", wait=False)
        task = await agent.cancel(sent.task_id)
        assert task.id == sent.task_id
        # A peer may answer before it is done with canceling.
        answer = await agent.wait(sent.task_id, poll_interval=0.1)
    assert answer.state is TaskState.CANCELED


@script
async def subscribe_to_a_running_task(connect: Connect) -> None:
    async with connect() as agent:
        # So many that some are left on a machine that has much else to do.
        task_id = await begun(agent, 40)
        rest = agent.subscribe(task_id)
        events = [event async for event in rest]
        assert (rest.answer.task_id, rest.answer.state) == (task_id, TaskState.COMPLETED)
    # It joined while chunks were still to come, and got them as they came.
    assert sum(isinstance(event, ArtifactUpdate) for event in events) > 3
    assert isinstance(events[-1], StatusUpdate)


@script
async def subscribing_leaves_a_task_as_it_is(connect: Connect) -> None:
    async with connect() as agent:
        task_id = await begun(agent, 10)
        async for _ in agent.subscribe(task_id):
            pass
        assert text_of(await agent.get(task_id)) == "".join(f"c{i} " for i in range(10))


async def begun(agent: Client, chunks: int) -> str:
    """Begin a task that streams, and leave it after its first chunk."""
    async with agent.stream(f"chunks {chunks}") as first:
        async for event in first:
            if isinstance(event, ArtifactUpdate):
                break
        return first.task_id


@script
async def list_by_context(connect: Connect) -> None:
    async with connect() as agent:
        first = await agent.send("echo one")
        second = await agent.send("echo two", context_id=first.context_id)
        found = [task async for task in agent.list(context_id=first.context_id, page_size=1)]
        page = await agent.page(context_id=first.context_id, artifacts=True)
    assert {task.id for task in found} == {first.task_id, second.task_id}
    assert sorted(text_of(one.reading.task) for one in page.tasks) == ["one", "two"]


@script
async def push_configurations(connect: Connect) -> None:
    async with connect() as agent:
        sent = await agent.send("ask")
        made = await agent.create_push(sent.task_id, PushConfig(url=HOOK, id="one", token="t"))
        assert (made.id, made.url) == ("one", HOOK)
        shown = await agent.get_push(sent.task_id, "one")
        assert (shown.id, shown.url) == ("one", HOOK)


@script
async def push_configurations_are_listed_and_deleted(connect: Connect) -> None:
    async with connect() as agent:
        sent = await agent.send("ask")
        for name in ("one", "two"):
            await agent.create_push(sent.task_id, PushConfig(url=f"{HOOK}/{name}", id=name))
        assert {one.id for one in await agent.list_push(sent.task_id)} == {"one", "two"}
        await agent.delete_push(sent.task_id, "one")
        assert [one.id for one in await agent.list_push(sent.task_id)] == ["two"]


@script
async def file_and_data_out(connect: Connect) -> None:
    async with connect() as agent:
        answer = await agent.send("file")
    (file,) = answer.files
    assert (file.raw, file.filename) == (b"\x00\x01 bytes \xff", "report.bin")
    assert file.media_type == "application/x-report"
    assert answer.data == {"city": "Graz", "tags": ["a", "b"]}


@script
async def file_and_data_in(connect: Connect) -> None:
    file = Part(raw=b"some notes", filename="notes.txt", media_type="text/plain")
    async with connect() as agent:
        answer = await agent.send(["describe", file, {"city": "Graz"}])
    assert answer.text == 'file notes.txt text/plain some notes\ndata {"city":"Graz"}'


@script
async def text_file_out(connect: Connect) -> None:
    async with connect() as agent:
        answer = await agent.send("text-file")
        events = [event async for event in agent.stream("text-file")]
    (file,) = answer.files
    assert (file.raw, file.media_type) == (b"aGVsbG8=", "text/plain")
    streamed = [
        part.raw for e in events if isinstance(e, ArtifactUpdate) for part in e.artifact.parts
    ]
    assert streamed == [b"aGVsbG8="] or not streamed


@script
async def files_in(connect: Connect) -> None:
    binary = Part(raw=b"\x00\x01\xfe\xff", media_type="application/x-report")
    # Base64 itself, and of a length that base64 may have.
    text = Part(raw=b"aGVsbG8=", media_type="text/plain")
    plain = Part(raw="größe".encode(), media_type="text/plain")
    async with connect() as agent:
        answers = [await agent.send(["describe", one]) for one in (binary, text, plain)]
    shown = [answer.text.split()[-1] for answer in answers]
    assert shown == ["0001feff", "aGVsbG8=", "größe"]


@script
async def array_out(connect: Connect) -> None:
    async with connect() as agent:
        answer = await agent.send("array")
    assert answer.data == ["Graz", {"tags": ["a"]}]


@script
async def array_in(connect: Connect) -> None:
    # What its author sees: the array, or an object around it where the library knows objects alone.
    seen = ('data ["Graz",{"tags":["a"]}]', 'data {"value":["Graz",{"tags":["a"]}]}')
    array = Part(data=["Graz", {"tags": ["a"]}])
    async with connect() as agent:
        for _ in range(2):
            assert (await agent.send(["describe", array])).text in seen
        events = [event async for event in agent.stream(["describe", array])]
    assert events


@script
async def unknown_task(connect: Connect) -> None:
    async with connect() as agent:
        with pytest.raises(TaskNotFound):
            await agent.get(UNKNOWN)


@script
async def unknown_task_in_other_operations(connect: Connect) -> None:
    async with connect() as agent:
        with pytest.raises(TaskNotFound):
            await agent.cancel(UNKNOWN)
        with pytest.raises(TaskNotFound):
            async for _ in agent.subscribe(UNKNOWN):
                pass


@script
async def sync(connect: Connect) -> None:
    async with connect() as agent:
        # In the loop's own thread, which is where it would block if it shared the loop.
        assert agent.sync.send("echo hello").text == "hello"
        sent = agent.sync.send("echo again")
        assert text_of(agent.sync.get(sent.task_id)) == "again"


@script
async def many_at_once(connect: Connect) -> None:
    async with connect() as agent:
        await agent.connect()
        answers = await asyncio.gather(*(agent.send(f"echo {i}") for i in range(8)))
    assert [answer.text for answer in answers] == [str(i) for i in range(8)]


@script
async def version_that_is_not_offered(connect: Connect) -> None:
    with pytest.raises(VersionNotSupported):
        async with connect(version="7.0"):
            pass
