"""A replica that is killed while a stream runs and a question waits: our client, behind a proxy,
notices nothing but a reconnect."""

import asyncio
import os
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
from harness.waiting import eventually, within

from dragoman import Client
from dragoman.model.events import ArtifactUpdate, StatusUpdate
from dragoman.model.task import Task, TaskState
from tests.replicas.replicas import Replicas, busy, replicas

CHUNKS = 100


@pytest.fixture
async def three(tmp_path: Path, database: str) -> AsyncIterator[Replicas]:
    async with replicas(tmp_path, database, 3, DRAGOMAN_LEASE="5") as three:
        yield three


async def test_a_stream_goes_on_when_the_replica_that_runs_its_task_is_killed(
    three: Replicas,
) -> None:
    async with Client(three.proxy.url) as client:
        texts: list[str] = []
        state = None
        killed = False
        async with client.stream(f"{CHUNKS}", metadata={"skill": "counts"}) as stream:
            async for event in stream:
                if isinstance(event, ArtifactUpdate):
                    if not event.append:
                        # The code runs again elsewhere, and its output begins anew.
                        texts.clear()
                    texts += [part.text or "" for part in event.artifact.parts]
                elif isinstance(event, Task | StatusUpdate):
                    state = event.status.state
                if len(texts) >= 10 and not killed:
                    killed = True
                    await three.kill((await busy(three))[0])
        assert killed and state is TaskState.COMPLETED
        # Each chunk once, and in order.
        assert "".join(texts).split() == [str(n) for n in range(CHUNKS)]


async def test_a_question_survives_the_replica_that_asked_it(three: Replicas) -> None:
    async with Client(three.proxy.url) as client:
        asked = await within(client.send("a colour", metadata={"skill": "asks"}))
        assert asked.task is not None
        assert asked.task.status.state is TaskState.INPUT_REQUIRED
        # Whoever asked it: two of three are gone.
        await three.kill(0)
        answer = asyncio.create_task(client.send("blue", task_id=asked.task.id))
        await three.kill(1)
        done = await within(answer)
        assert done.task is not None and done.task.status.state is TaskState.COMPLETED
        assert done.text == "a colour, blue"


async def test_a_request_that_waits_is_answered_although_its_replica_is_killed(
    three: Replicas,
) -> None:
    async with Client(three.proxy.url) as client:
        gate = f"waits-{os.getpid()}"
        sending = asyncio.create_task(client.send(gate, metadata={"skill": "held"}))
        await eventually(partial(busy, three))
        await three.kill((await busy(three))[0])
        three.open(gate)
        done = await within(sending)
        assert done.task is not None and done.task.status.state is TaskState.COMPLETED
