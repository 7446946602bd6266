"""Steps that fail: code that went on from a failure goes the same way again."""

import asyncio

from harness.waiting import within

from dragoman import Agent, Turn
from dragoman.model.task import TaskState
from tests.authoring.durable.world import AGENTS, World
from tests.engine.engines import House

S = TaskState


class Flaky(Exception):
    """What an agent's own code may raise and catch."""


async def test_code_that_went_on_from_a_failure_goes_the_same_way_again(house: House) -> None:
    agent, world = Agent("Fallback", "Has another way."), World()
    AGENTS.append(agent)

    async def primary() -> str:
        world.do("primary")
        raise Flaky("not today")

    @agent.skill
    async def work(text: str, turn: Turn) -> str:
        try:
            done = await turn.step("primary", primary)
        except Flaky as error:
            done = f"{error}, {await turn.step('fallback', world.do_async, 'fallback')}"
        await turn.step("wait", world.stop_here)
        return done

    await house.start(agent)
    task = await house.send("hi", wait=False)
    await within(asyncio.to_thread(world.reached.acquire))
    await house.restart()
    world.gate.set()
    world.opened.set()
    done = await house.reaches(task.id, S.COMPLETED)
    assert done.artifacts[-1].parts[0].text == "not today, fallback done"
    assert world.deeds == ["primary", "fallback"]


async def test_a_step_that_ran_out_of_time_does_so_again(quick: House) -> None:
    agent, world = Agent("Patient", "Not for ever."), World()
    AGENTS.append(agent)

    async def endless() -> None:
        world.do("endless")
        await asyncio.Event().wait()

    @agent.skill
    async def work(text: str, turn: Turn) -> str:
        try:
            await asyncio.wait_for(turn.step("endless", endless), 1)
        except TimeoutError:
            await turn.step("instead", world.do_async, "instead")
        await turn.step("wait", world.stop_here)
        return "done"

    await quick.start(agent)
    task = await quick.send("hi", wait=False)
    await within(asyncio.to_thread(world.reached.acquire))
    await quick.restart()
    world.gate.set()
    world.opened.set()
    await quick.reaches(task.id, S.COMPLETED)
    assert world.deeds == ["endless", "instead"]


async def test_a_step_that_failed_is_tried_again_under_its_name(quick: House) -> None:
    agent, world = Agent("Stubborn", "Tries again."), World()
    AGENTS.append(agent)

    async def flaky() -> str:
        world.do("try")
        if len(world.deeds) < 3:
            raise Flaky
        return "at last"

    @agent.skill
    async def work(text: str, turn: Turn) -> str:
        while True:
            try:
                done = await turn.step("flaky", flaky)
                break
            except Flaky:
                await turn.sleep(0)
        await turn.step("wait", world.stop_here)
        return done

    await quick.start(agent)
    task = await quick.send("hi", wait=False)
    await within(asyncio.to_thread(world.reached.acquire))
    await quick.restart()
    world.gate.set()
    world.opened.set()
    done = await quick.reaches(task.id, S.COMPLETED)
    assert done.artifacts[-1].parts[0].text == "at last"
    assert world.deeds == ["try"] * 3
