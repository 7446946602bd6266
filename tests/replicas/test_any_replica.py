"""Any replica answers any call about any task, whoever holds it."""

import asyncio
import os
from collections.abc import AsyncIterator

import pytest
from harness.databases import Databases
from harness.waiting import WAIT, within

from tests.replicas.replicas import Replicas, replicas, result, state
from tests.replicas.wires import WIRES, Wire, body_of

RECEIVER = "http://127.0.0.1:9/hook"


@pytest.fixture(scope="module")
async def three(
    databases: Databases, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Replicas]:
    store = await asyncio.to_thread(databases.make)
    folder = tmp_path_factory.mktemp("replicas")
    async with replicas(folder, store, 3, "--allow-private") as three:
        yield three


@pytest.fixture(params=WIRES, ids=lambda wire: wire.name)
def wire(request: pytest.FixtureRequest) -> Wire:
    return request.param


def name(wire: Wire, test: str) -> str:
    """Return the name of a gate that no other test opens."""
    return f"{test}-{wire.is_old:d}{wire.is_rest:d}-{os.getpid()}"


async def test_a_task_of_one_is_read_and_listed_by_the_others(three: Replicas, wire: Wire) -> None:
    a, b, c = three.sites
    done = await wire.send(a, wire.message("hello", "quick"))
    assert state(done) == "completed"
    there = await wire.get(a, done["id"])
    for other in (b, c):
        assert await wire.get(other, done["id"]) == there
        assert done["id"] in await wire.ids(other)
    running = await three.held(name(wire, "read"))
    assert state(await wire.get(c, running["id"])) == "working"
    three.open(name(wire, "read"))
    await three.until(1, running["id"], lambda task: state(task) == "completed")


async def test_a_question_is_answered_at_another(three: Replicas, wire: Wire) -> None:
    a, b, c = three.sites
    asked = await wire.send(a, wire.message("a colour", "asks"))
    assert state(asked) == "input-required"
    answer = wire.message("blue", "asks", taskId=asked["id"], contextId=asked["contextId"])
    done = await wire.send(b, answer)
    assert (state(done), done["id"]) == ("completed", asked["id"])
    assert result(await wire.get(c, asked["id"])) == "a colour, blue"


async def test_a_task_is_cancelled_at_another(three: Replicas, wire: Wire) -> None:
    _, b, c = three.sites
    running = await three.held(name(wire, "cancel"))
    ended = await wire.cancel(b, running["id"])
    assert state(ended) == "canceled"
    assert state(await wire.get(c, running["id"])) == "canceled"


async def test_a_task_is_followed_at_another(three: Replicas, wire: Wire) -> None:
    gate = name(wire, "follow")
    running = await three.held(gate)
    async with asyncio.timeout(WAIT), wire.subscribed(three.sites[1], running["id"]) as stream:
        first = await anext(stream)
        assert body_of(first)["id"] == running["id"]
        three.open(gate)
        rest = [frame async for frame in stream if frame.comment is None]
    assert state(body_of(rest[-1])) == "completed"
    seen = int(first.id or 0)
    assert [int(frame.id or 0) for frame in rest] == list(range(seen + 1, seen + 1 + len(rest)))


async def test_a_stream_goes_on_at_another_from_the_last_event_its_reader_has(
    three: Replicas, wire: Wire
) -> None:
    _, b, c = three.sites
    gate = name(wire, "resume")
    running = await three.held(gate)
    async with asyncio.timeout(WAIT), wire.subscribed(b, running["id"]) as stream:
        seen = (await anext(stream)).id
    assert seen is not None
    async with asyncio.timeout(WAIT), wire.subscribed(c, running["id"], after=seen) as stream:
        first = await anext(stream)
        three.open(gate)
        ids = [int(frame.id or 0) async for frame in stream if frame.comment is None]
    # The task as the reader has it, and then each event once, none left out.
    assert first.id == seen
    assert ids == list(range(int(seen) + 1, int(seen) + 1 + len(ids)))
    assert ids


async def test_receivers_of_a_task_are_kept_at_another(three: Replicas, wire: Wire) -> None:
    a, b, c = three.sites
    gate = name(wire, "receivers")
    running = await three.held(gate)
    id = running["id"]
    await wire.add_receiver(b, id, "one", RECEIVER)
    found = await wire.receiver(c, id, "one")
    assert found.get("pushNotificationConfig", found)["url"] == RECEIVER
    assert len(await wire.receivers(a, id)) == 1
    await wire.drop_receiver(c, id, "one")
    assert await wire.receivers(b, id) == []
    three.open(gate)
    await three.until(1, id, lambda task: state(task) == "completed")


async def test_one_message_given_to_three_at_once_is_one_task(three: Replicas, wire: Wire) -> None:
    for n in range(10):
        text = f"{name(wire, 'once')}-{n}"
        said = wire.message(text, "noted")
        tasks = await within(asyncio.gather(*(wire.send(site, said) for site in three.sites)), WAIT)
        assert len({task["id"] for task in tasks}) == 1, tasks
        assert {state(task) for task in tasks} == {"completed"}
        lines = (three.folder / "done").read_text().splitlines()
        assert lines.count(text) == 1
