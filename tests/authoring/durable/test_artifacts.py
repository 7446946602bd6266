"""What a dead attempt produced is replaced, and a cancel reaches code that waits."""

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from harness.waiting import eventually

from dragoman import Turn
from dragoman.model.message import Message, Role
from dragoman.model.task import TaskState
from tests.authoring.durable.world import World, made, results
from tests.engine.engines import House

S = TaskState


async def test_what_a_dead_attempt_produced_is_replaced_and_not_doubled(
    house: House, world: World
) -> None:
    async def work(text: str, turn: Turn) -> str:
        await turn.artifact(f"whole {turn.attempt}", name="whole")
        async with turn.artifact(name="chunks") as chunks:
            for n in range(3):
                await chunks.write(f"{n} of {turn.attempt} ")
                if n == 1:
                    await turn.step("half", world.do, "half")
                    if turn.attempt == 1:
                        await world.stop_here()
        return "result"

    await house.start(made(work))
    task = await house.send("go", wait=False)
    await world.is_reached()
    before = await house.get(task.id)
    assert results(before) == ["whole 1", "0 of 1 ", "1 of 1 "]
    await house.restart()
    done = await house.reaches(task.id, S.COMPLETED)
    assert results(done) == ["whole 2", "0 of 2 ", "1 of 2 ", "2 of 2 ", "result"]
    ids = [artifact.artifact_id for artifact in done.artifacts]
    assert ids[:2] == [artifact.artifact_id for artifact in before.artifacts]
    assert len(set(ids)) == 3


async def test_a_chunk_without_content_is_refused_before_it_is_recorded(house: House) -> None:
    async def work(text: str, turn: Turn) -> None:
        async with turn.artifact(name="chunks") as chunks:
            with pytest.raises(ValueError, match="a chunk needs content"):
                await chunks.write(Message("m", Role.AGENT, []))
            await chunks.write("some")

    await house.start(made(work))
    done = await house.send("go")
    assert done.status.state is S.COMPLETED
    assert results(done) == ["some"]


async def test_what_a_dead_generator_yielded_is_replaced(house: House, world: World) -> None:
    async def work(text: str, turn: Turn) -> AsyncIterator[str]:
        for n in range(3):
            yield f"{n}"
            if n == 1 and turn.attempt == 1:
                # Chunks are written behind the code; a step waits for them.
                await turn.step("wait", world.do, "wait")
                await world.stop_here()
        await turn.step("wait", world.do, "wait")

    await house.start(made(work))
    task = await house.send("go", wait=False)
    await world.is_reached()
    assert "".join(results(await house.get(task.id))) == "01"
    await house.restart()
    assert "".join(results(await house.reaches(task.id, S.COMPLETED))) == "012"


async def test_two_tasks_and_two_turns_have_artifacts_of_their_own(house: House) -> None:
    async def work(text: str, turn: Turn) -> str:
        await eventually(lambda: text != "one" or turn._worker.queued)
        return text

    await house.start(made(work))
    task = await house.send("one", wait=False)
    await house.send("two", task=task.id, wait=False)
    both = await house.reaches(task.id, S.COMPLETED)
    other = await house.send("three")
    ids = {a.artifact_id for t in (both, other) for a in t.artifacts}
    assert results(both) == ["one", "two"] and len(ids) == 3


# Cancelling


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("kind", ["async", "plain"])
@pytest.mark.parametrize("where", ["step", "sleep", "ask"])
async def test_a_cancel_reaches_code_that_waits(
    house: House, world: World, where: str, kind: str, restarts: bool
) -> None:
    async def forever() -> None:
        await world.stop_here()

    async def work(text: str, turn: Turn) -> None:
        await turn.step("first", world.do, "first")
        world.reached.release()
        deed: dict[str, Callable[[], Awaitable[Any]]] = {
            "step": lambda: turn.step("second", forever),
            "sleep": lambda: turn.sleep(timedelta(days=1)),
            "ask": lambda: turn.ask("Well?"),
        }
        await deed[where]()
        world.do("went on")

    def plain(text: str, turn: Any) -> None:
        turn.step("first", world.do, "first")
        world.reached.release()
        deed: dict[str, Callable[[], Any]] = {
            "step": lambda: turn.step("second", forever),
            "sleep": lambda: turn.sleep(timedelta(days=1)),
            "ask": lambda: turn.ask("Well?"),
        }
        deed[where]()
        world.do("went on")

    # Longer than any wait of the test: code that does not hear of the cancel is not saved by it.
    await house.start(made(work if kind == "async" else plain), cancel_grace=30)
    task = await house.send("go", wait=False)
    await world.is_reached()
    expected = S.INPUT_REQUIRED if where == "ask" else S.WORKING
    await house.reaches(task.id, expected)
    if restarts:
        await house.restart()
    assert (await house.cancel(task.id)).status.state is S.CANCELED
    assert world.deeds == ["first"]
