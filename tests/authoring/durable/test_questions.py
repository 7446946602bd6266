"""Questions outlive the process that asked them."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from harness.waiting import eventually, within

from dragoman import Turn
from dragoman.model.task import TaskState
from tests.authoring.durable.world import World, leave, made, results
from tests.engine.engines import House, sentence

S = TaskState


def questions(world: World, kind: str) -> Callable[..., Any]:
    async def work(amount: int, turn: Turn) -> str:
        await turn.say("thinking")
        await turn.step("look up", world.do, "look up")
        sure = await turn.ask(f"Pay {amount}?")
        assert turn.message is sure
        token = await turn.authorize("A token, please.")
        done = await turn.step("pay", world.do, f"pay with {token.text}")
        return f"{sure.text}: {done} in attempt {turn.attempt}"

    def plain(amount: int, turn: Any) -> str:
        turn.say("thinking")
        turn.step("look up", world.do, "look up")
        sure = turn.ask(f"Pay {amount}?")
        token = turn.authorize("A token, please.")
        done = turn.step("pay", world.do, f"pay with {token.text}")
        return f"{sure.text}: {done} in attempt {turn.attempt}"

    return work if kind == "async" else plain


@pytest.mark.parametrize("kind", ["async", "plain"])
@pytest.mark.parametrize("how", ["killed", "ended"])
async def test_questions_outlive_the_process_that_asked_them(
    house: House, world: World, kind: str, how: str
) -> None:
    await house.start(made(questions(world, kind)))
    task = await house.send("100")
    assert task.status.state is S.INPUT_REQUIRED and sentence(task) == "Pay 100?"
    for _ in range(3):
        await leave(house, how)
        waiting = await house.get(task.id)
        assert waiting.status == task.status
    # No amount: were it taken for the beginning of a turn, it would be refused.
    asked = await house.send("yes", task=task.id)
    assert asked.status.state is S.AUTH_REQUIRED and sentence(asked) == "A token, please."
    await leave(house, how)
    done = await house.send("t0ken", task=task.id)
    assert results(done) == ["yes: pay with t0ken done in attempt 1"]
    assert world.deeds == ["look up", "pay with t0ken"]
    said = [message.text for message in done.history]
    assert said == ["100", "thinking", "Pay 100?", "yes", "A token, please.", "t0ken"]


async def test_an_answer_given_before_the_crash_is_the_answer_after_it(
    house: House, world: World
) -> None:
    async def work(text: str, turn: Turn) -> str:
        answer = await turn.ask("Sure?")
        await world.stop_here()
        return f"{answer.text} at {turn.attempt}"

    await house.start(made(work))
    task = await house.send("go")
    await house.send("yes", task=task.id, wait=False)
    await world.is_reached()
    await house.restart()
    await world.is_reached()
    world.open()
    done = await house.reaches(task.id, S.COMPLETED)
    assert results(done) == ["yes at 2"]
    assert [message.text for message in done.history] == ["go", "Sure?", "yes"]


async def test_many_questions_are_answered_over_as_many_processes(house: House) -> None:
    async def work(text: str, turn: Turn) -> str:
        answers = [(await turn.ask(f"{n}?")).text for n in range(5)]
        return " ".join(answers)

    await house.start(made(work))
    task = await house.send("go")
    for n in range(5):
        assert task.status.state is S.INPUT_REQUIRED and sentence(task) == f"{n}?"
        await house.restart()
        task = await house.send(f"a{n}", task=task.id)
    assert results(task) == ["a0 a1 a2 a3 a4"]


@pytest.mark.parametrize("restarts", [False, True])
async def test_questions_beside_each_other_are_answered_in_their_order(
    house: House, restarts: bool
) -> None:
    async def work(number: int, turn: Turn) -> str:
        first, second = await asyncio.gather(turn.ask("First?"), turn.authorize("Second?"))
        return f"{first.text} {second.text}"

    await house.start(made(work))
    task = await house.send("1")
    assert task.status.state is S.AUTH_REQUIRED
    if restarts:
        await house.restart()
    task = await house.send("one", task=task.id)
    # The one that is left stands again.
    assert task.status.state is S.AUTH_REQUIRED and sentence(task) == "Second?"
    if restarts:
        await house.restart()
    task = await house.send("two", task=task.id)
    assert results(task) == ["one two"]


async def test_a_question_may_be_given_up(house: House) -> None:
    async def work(text: str, turn: Turn) -> str:
        try:
            answer = await asyncio.wait_for(turn.ask("Quick?"), 0.01)
        except TimeoutError:
            answer = await turn.ask("Take your time?")
        return answer.text

    await house.start(made(work))
    task = await house.send("go")
    task = await house.reaches(task.id, S.INPUT_REQUIRED)

    async def is_asked_again() -> bool:
        return sentence(await house.get(task.id)) == "Take your time?"

    await eventually(is_asked_again)
    assert results(await house.send("fine", task=task.id)) == ["fine"]


async def test_a_question_that_is_given_up_leaves_one_beside_it_alone(house: House) -> None:
    given_up = asyncio.Event()

    async def quick(turn: Turn) -> None:
        try:
            await asyncio.wait_for(turn.ask("Quick?"), 0.01)
        except TimeoutError:
            given_up.set()

    async def work(text: str, turn: Turn) -> str:
        answer, _ = await asyncio.gather(turn.ask("Slow?"), quick(turn))
        return answer.text

    await house.start(made(work))
    task = await house.send("go")
    await within(given_up.wait())
    assert results(await house.send("fine", task=task.id)) == ["fine"]


async def test_what_is_said_beside_a_question_does_not_answer_it(house: House) -> None:
    tick = asyncio.Event()

    async def work(number: int, turn: Turn) -> str:
        async def remind() -> None:
            await tick.wait()
            await turn.say("still waiting")

        answer, _ = await asyncio.gather(turn.ask("Well?"), remind())
        await turn.say("going on")
        return answer.text

    await house.start(made(work))
    task = await house.send("1")
    tick.set()

    async def is_said() -> bool:
        return sentence(await house.get(task.id)) == "still waiting"

    await eventually(is_said)
    assert (await house.get(task.id)).status.state is S.INPUT_REQUIRED
    # No number: taken for anything but the answer, it would be refused.
    done = await house.send("yes", task=task.id)
    assert results(done) == ["yes"] and done.status.state is S.COMPLETED
