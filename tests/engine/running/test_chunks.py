"""The last chunk of an artifact says itself that it is the last, and no reader waits for that."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from dragoman import Agent, Turn
from dragoman.engine.running import chunks as held
from dragoman.model.events import ArtifactUpdate, StatusUpdate
from dragoman.model.task import TaskState
from tests.engine.engines import House, Stream

LONG = 3600.0


def chunks_of(stream: Stream) -> list[ArtifactUpdate]:
    return [event for event in stream.events if isinstance(event, ArtifactUpdate)]


def texts(stream: Stream) -> list[tuple[Any, bool]]:
    return [(one.artifact.parts[0].text, one.last_chunk) for one in chunks_of(stream)]


def words(stream: Stream) -> list[str]:
    """What a reader is shown, in its order: chunks, and what was said."""
    found: list[str] = []
    for event in stream.events:
        if isinstance(event, ArtifactUpdate):
            found.append(f"{event.artifact.parts[0].text}{'.' if event.last_chunk else ''}")
        elif isinstance(event, StatusUpdate) and event.status.message is not None:
            found.append(event.status.message.text)
    return found


@pytest.fixture
def for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is released because of the time."""
    monkeypatch.setattr(held, "HOLD_FOR", LONG)


def counting() -> Agent:
    agent = Agent("Counter", "Counts.")

    @agent.skill
    async def slices(text: str) -> AsyncIterator[str]:
        for number in range(int(text)):
            yield f"{number} "
            await asyncio.sleep(0)

    @agent.skill
    async def at_once(text: str) -> AsyncIterator[str]:
        for number in range(int(text)):
            yield f"{number} "

    @agent.skill
    def threaded(text: str) -> Iterator[str]:
        for number in range(int(text)):
            yield f"{number} "

    return agent


@pytest.mark.parametrize("house", ["sqlite"], indirect=True)
@pytest.mark.parametrize("skill", ["slices", "at_once", "threaded"])
@pytest.mark.parametrize("count", [1, 2, 3, 40, 255, 256, 257, 300])
@pytest.mark.usefixtures("for_long")
async def test_the_last_chunk_of_a_generator_has_its_text(
    house: House, skill: str, count: int
) -> None:
    await house.start(counting())
    stream = await house.stream(str(count), skill=skill).rest()
    expected = [(f"{number} ", number == count - 1) for number in range(count)]
    assert texts(stream) == expected
    assert [one.append for one in chunks_of(stream)] == [False] + [True] * (count - 1)


async def test_chunks_that_wait_in_memory_share_what_is_empty(house: House) -> None:
    await house.start(counting())
    stream = await house.stream("5", skill="at_once").rest()
    later = [one for one in chunks_of(stream) if one.append]
    empty = [
        thing
        for one in later
        for thing in (one.metadata, one.extra, one.artifact.metadata, one.artifact.extra)
    ]
    assert {id(thing) for thing in empty} == {id(empty[0])}
    assert len({id(one.artifact.extensions) for one in later}) == 1


async def test_no_reader_waits_for_the_end_of_a_generator(house: House) -> None:
    agent = Agent("Slow", "Waits for its reader.")
    is_seen = asyncio.Event()

    @agent.skill
    async def wait(text: str) -> AsyncIterator[str]:
        yield "first"
        await is_seen.wait()

    await house.start(agent)
    stream = house.stream("x")
    await stream.until(lambda seen: ("first", False) in texts(seen))
    is_seen.set()
    await stream.rest()
    # It was out before anyone could know that it is the last.
    assert texts(stream) == [("first", False), ("", True)]


@pytest.mark.usefixtures("for_long")
async def test_a_chunk_is_out_with_the_next_one(house: House) -> None:
    agent = Agent("Slow", "Waits for its reader.")
    is_seen = asyncio.Event()

    @agent.skill
    async def wait(text: str) -> AsyncIterator[str]:
        yield "first"
        yield "second"
        await is_seen.wait()

    await house.start(agent)
    stream = house.stream("x")
    await stream.until(lambda seen: bool(texts(seen)))
    assert texts(stream) == [("first", False)]
    is_seen.set()
    await stream.rest()
    assert texts(stream) == [("first", False), ("second", True)]


@pytest.mark.usefixtures("for_long")
async def test_what_is_said_and_asked_stays_between_its_chunks(house: House) -> None:
    agent = Agent("Talker", "Says things between its chunks.")

    @agent.skill
    async def talk(text: str, turn: Turn) -> AsyncIterator[str]:
        yield "a"
        await turn.say("one")
        yield "b"
        await turn.ask("two?")
        yield "c"

    await house.start(agent)
    stream = await house.stream("x").rest()
    assert words(stream) == ["a", "one", "b", "two?"]
    answer = await house.stream("yes", task=stream.opening.id).rest()  # type: ignore[union-attr]
    assert words(answer) == ["c."]


@pytest.mark.usefixtures("for_long")
async def test_a_step_is_not_on_record_before_what_was_yielded_until_then(house: House) -> None:
    agent = Agent("Saver", "Keeps what it said.")

    @agent.skill
    async def save(text: str, turn: Turn) -> AsyncIterator[str]:
        yield "a"
        yield "b"
        await turn.step("save", lambda: "saved")

    await house.start(agent)
    assert texts(await house.stream("x").rest()) == [("a", False), ("b", False), ("", True)]


@pytest.mark.usefixtures("for_long")
async def test_what_was_yielded_before_a_failure_is_recorded(house: House) -> None:
    agent = Agent("Breaker", "Breaks.")

    @agent.skill
    async def broken(text: str) -> AsyncIterator[str]:
        yield "a"
        yield "b"
        raise RuntimeError("no")

    await house.start(agent)
    stream = await house.stream("x").rest()
    assert texts(stream) == [("a", False), ("b", False)]
    assert (await house.get(stream.opening.id)).status.state is TaskState.FAILED  # type: ignore[union-attr]


async def test_a_chunk_that_cannot_be_recorded_fails_its_task(house: House) -> None:
    agent = Agent("Half", "Says half a character, and is silent.")
    never = asyncio.Event()

    @agent.skill
    async def half(text: str) -> AsyncIterator[str]:
        yield "\ud800"
        await never.wait()

    await house.start(agent)
    task = await house.send("x")
    assert task.status.state is TaskState.FAILED and "Incident" in task.status.message.text


@pytest.mark.usefixtures("for_long")
async def test_data_says_that_it_is_the_last_too(house: House) -> None:
    agent = Agent("Rows", "Has rows.")

    @agent.skill
    async def rows(text: str) -> AsyncIterator[dict[str, int]]:
        yield {"row": 1}
        yield {"row": 2}

    await house.start(agent)
    found = chunks_of(await house.stream("x").rest())
    assert [(one.artifact.parts[0].data, one.last_chunk) for one in found] == [
        ({"row": 1}, False),
        ({"row": 2}, True),
    ]


@pytest.mark.usefixtures("for_long")
async def test_artifacts_written_side_by_side_keep_their_order_and_their_ends(house: House) -> None:
    agent = Agent("Two", "Writes two things.")

    @agent.skill
    async def two(text: str, turn: Turn) -> None:
        async with turn.artifact(name="left") as left, turn.artifact(name="right") as right:
            for number in range(3):
                await left.write(f"l{number}")
                await right.write(f"r{number}")
        await turn.artifact("whole", name="third")

    await house.start(agent)
    stream = await house.stream("x").rest()
    lasts = [text for text, is_last in texts(stream) if is_last]
    assert sorted(lasts) == ["l2", "r2", "whole"] and len(texts(stream)) == 7
    task = await house.get(stream.opening.id)  # type: ignore[union-attr]
    assert [artifact.name for artifact in task.artifacts] == ["left", "right", "third"]
    assert ["".join(str(part.text) for part in one.parts) for one in task.artifacts] == [
        "l0l1l2",
        "r0r1r2",
        "whole",
    ]


@pytest.mark.usefixtures("for_long")
async def test_what_is_held_back_is_limited(house: House) -> None:
    agent = Agent("Many", "Writes many things.")
    most, done = held.MAX_HELD, asyncio.Event()

    @agent.skill
    async def many(text: str, turn: Turn) -> None:
        writers = [turn.artifact(name=f"{number}") for number in range(2 * most)]
        for writer in writers:
            await writer.write("first")
        for writer in writers:
            await writer.write("second")
        await done.wait()

    await house.start(agent)
    stream = house.stream("x")
    await stream.until(lambda seen: len(texts(seen)) >= 3 * most)
    assert [text for text, _ in texts(stream)] == ["first"] * 2 * most + ["second"] * most
    done.set()
    await stream.rest()
    assert len(texts(stream)) == 4 * most


@pytest.mark.usefixtures("for_long")
async def test_a_chunk_that_was_held_when_the_process_died_is_made_again(house: House) -> None:
    agent = Agent("Reborn", "Is run twice.")
    attempts: list[int] = []
    never = asyncio.Event()

    @agent.skill
    async def reborn(text: str, turn: Turn) -> AsyncIterator[str]:
        attempts.append(turn.attempt)
        yield "a"
        yield "b"
        if len(attempts) == 1:
            await never.wait()
        yield "c"

    await house.start(agent)
    stream = house.stream("x")
    await stream.until(lambda seen: bool(texts(seen)))
    await stream.close()
    assert stream.opening is not None
    assert await house.restart() == 1
    task = await house.reaches(stream.opening.id, TaskState.COMPLETED)
    assert [part.text for part in task.artifacts[0].parts] == ["a", "b", "c"]
    assert len(attempts) == 2
    resumed = await house.subscribe(task.id, after=stream.seqs[-1]).rest()
    assert texts(resumed) == [("a", False), ("b", False), ("c", True)]
