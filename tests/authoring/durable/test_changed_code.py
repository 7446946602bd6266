"""Code that changed between two processes is refused, with the difference."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from harness.waiting import eventually

from dragoman import TaskFailed, Turn
from dragoman.errors import UnsupportedOperation
from dragoman.model.task import TaskState
from tests.authoring.durable.world import World, made, recorded, results
from tests.engine.engines import House, sentence

S = TaskState


async def before(text: str, turn: Turn) -> str:
    await turn.step("reserve", str, "r")
    await turn.step("charge", str, "c")
    await asyncio.Event().wait()
    return "never"


async def renamed(text: str, turn: Turn) -> str:
    await turn.step("reserve", str, "r")
    await turn.step("bill", str, "c")
    return "silent"


async def inserted(text: str, turn: Turn) -> str:
    await turn.step("reserve", str, "r")
    await turn.step("check", str, "x")
    await turn.step("charge", str, "c")
    return "silent"


async def removed(text: str, turn: Turn) -> str:
    await turn.step("charge", str, "c")
    return "silent"


async def cut(text: str, turn: Turn) -> str:
    await turn.step("reserve", str, "r")
    return "silent"


async def completes(text: str, turn: Turn) -> str:
    turn.complete("silent")


async def rejects(text: str, turn: Turn) -> str:
    await turn.step("reserve", str, "r")
    turn.reject("not any more")


async def sleeps(text: str, turn: Turn) -> str:
    await turn.sleep(0, name="reserve")
    return "silent"


async def asks(text: str, turn: Turn) -> str:
    await turn.ask("Well?")
    return "silent"


async def swallows(text: str, turn: Turn) -> str:
    for name in ("bill", "refund", "beyond what is recorded"):
        try:
            await turn.step(name, TOUCHED.append, name)
        except TaskFailed:
            await turn.say("never mind")
    return "silent"


async def hides(text: str, turn: Turn) -> str:
    try:
        await turn.step("bill", str, "c")
    except Exception as error:
        raise RuntimeError("something else") from error
    return "silent"


async def swallows_and_rejects(text: str, turn: Turn) -> str:
    try:
        await turn.step("bill", str, "c")
    except Exception:
        turn.reject("sorry")
    return "silent"


def in_thread(text: str, turn: Any) -> str:
    turn.step("reserve", str, "r")
    turn.step("bill", str, "c")
    return "silent"


async def yields(text: str, turn: Turn) -> AsyncIterator[str]:
    yield "chunk"
    await turn.step("bill", str, "c")


def yields_in_thread(text: str, turn: Any) -> Iterator[str]:
    yield "chunk"
    turn.step("bill", str, "c")


def a_number() -> int:
    return 1


async def retyped(text: str, turn: Turn) -> str:
    await turn.step("reserve", a_number)
    return "silent"


# What code that is refused did all the same.
TOUCHED: list[str] = []


@pytest.mark.parametrize(
    ("after", "difference"),
    [
        (renamed, 'step 2 was step "charge" and is step "bill"'),
        (inserted, 'step 2 was step "charge" and is step "check"'),
        (removed, 'step 1 was step "reserve" and is step "charge"'),
        (cut, 'step 2 was step "charge" and is not reached any more'),
        (completes, 'step 1 was step "reserve" and is not reached any more'),
        (rejects, 'step 2 was step "charge" and is not reached any more'),
        (sleeps, 'step 1 was step "reserve" and is sleep "reserve"'),
        (asks, 'step 1 was step "reserve" and is ask'),
        (swallows, 'step 1 was step "reserve" and is step "bill"'),
        (hides, 'step 1 was step "reserve" and is step "bill"'),
        (swallows_and_rejects, 'step 1 was step "reserve" and is step "bill"'),
        (in_thread, 'step 2 was step "charge" and is step "bill"'),
        (yields, 'step 1 was step "reserve" and is step "bill"'),
        (yields_in_thread, 'step 1 was step "reserve" and is step "bill"'),
        (retyped, "the result of step reserve does not fit"),
    ],
    ids=lambda value: getattr(value, "__name__", "difference"),
)
async def test_code_that_changed_fails_its_task_with_the_difference(
    quick: House, after: Callable[..., Any], difference: str
) -> None:
    house = quick
    await house.start(made(before))
    task = await house.send("go", wait=False)

    async def is_recorded() -> bool:
        return len(await recorded(house, task)) == 2

    await eventually(is_recorded)
    await house.restart(made(after))
    failed = await house.reaches(task.id, S.FAILED)
    start = "The agent's code changed while the task was under way: "
    assert sentence(failed).startswith(start + difference), sentence(failed)
    assert len(await recorded(house, task)) == 2 and TOUCHED == []


async def test_code_may_change_after_what_is_recorded(house: House, world: World) -> None:
    async def longer(text: str, turn: Turn) -> str:
        await turn.say("an inserted word")
        await turn.step("reserve", str, "r")
        await turn.step("charge", str, "c")
        return await turn.step("ship", world.do, "ship")

    await house.start(made(before))
    task = await house.send("go", wait=False)

    async def is_recorded() -> bool:
        return len(await recorded(house, task)) == 2

    await eventually(is_recorded)
    await house.restart(made(longer))
    assert results(await house.reaches(task.id, S.COMPLETED)) == ["ship done"]


async def test_a_question_that_became_a_step_fails_its_task(house: House) -> None:
    await house.start(made(asks))
    task = await house.send("go")
    assert task.status.state is S.INPUT_REQUIRED
    await house.restart(made(removed))
    # The code is refused before it can be given the answer.
    with pytest.raises(UnsupportedOperation, match="The task has ended"):
        await house.send("yes", task=task.id)
    failed = await house.reaches(task.id, S.FAILED)
    assert 'step 1 was ask and is step "charge"' in sentence(failed)
