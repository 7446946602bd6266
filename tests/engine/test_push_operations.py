"""Push configurations as the engine keeps them, over each store."""

import asyncio
from typing import Any

import pytest
from harness.waiting import eventually

from dragoman import Agent, Turn
from dragoman.config import Settings
from dragoman.engine.engine import Engine
from dragoman.errors import InvalidParams, Overloaded, StoreUnavailable
from dragoman.model import operations as ops
from dragoman.model.identity import TaskId
from dragoman.model.push import PushConfig
from dragoman.service import Call
from dragoman.stores.interface import Push
from tests.engine.engines import House, message

URL = "https://example.com/hook"


class Desk:
    """Notes who is delivered to."""

    def __init__(self) -> None:
        self.running: dict[int, PushConfig] = {}

    def check(self, config: PushConfig) -> None:
        pass

    def add(self, push: Push) -> None:
        self.running[push.number] = push.config

    def drop(self, push: Push) -> None:
        self.running.pop(push.number, None)


@pytest.fixture
async def desk(house: House) -> Desk:
    agent, desk = Agent("Asker", "Asks."), Desk()

    @agent.skill
    async def ask(text: str, turn: Turn) -> str:
        return (await turn.ask("which?")).text

    await house.start(agent)
    await house.engine.stop()
    house._engine = Engine(agent, house.store, Settings(), postings=desk)
    return desk


async def create(house: House, task: str, url: str = URL, id: str = "r") -> Any:
    operation = ops.CreatePush(task_id=TaskId(task), config=PushConfig(url, id))
    return await house.engine.answer(Call(operation=operation))


async def test_a_replacement_that_could_not_be_stored_leaves_the_receiver_as_it_is(
    house: House, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = await house.send("hi")
    await create(house, task.id)

    async def full(*_: Any, **__: Any) -> None:
        raise StoreUnavailable("full")

    with monkeypatch.context() as patched:
        patched.setattr(house.store, "put_push", full)
        patched.setattr(house.store, "drop_push", full)
        with pytest.raises(Overloaded):
            await create(house, task.id, "https://example.net/")
        delete = ops.DeletePush(task_id=task.id, config_id="r")
        with pytest.raises(Overloaded):
            await house.engine.answer(Call(operation=delete))
    assert [config.url for config in desk.running.values()] == [URL]
    await create(house, task.id, "https://example.net/")
    assert [config.url for config in desk.running.values()] == ["https://example.net/"]
    await house.engine.answer(Call(operation=delete))
    assert desk.running == {}


async def test_a_task_has_at_most_ten_receivers_however_many_are_added_at_once(
    house: House, desk: Desk
) -> None:
    task = await house.send("hi")
    outcomes = await asyncio.gather(
        *(create(house, task.id, id=f"r{n}") for n in range(30)), return_exceptions=True
    )
    assert sum(isinstance(outcome, InvalidParams) for outcome in outcomes) == 20
    assert len(desk.running) == 10


async def test_a_repeated_message_may_name_another_receiver_and_the_same_one_is_not_doubled(
    house: House, desk: Desk
) -> None:
    said = message("hi")
    for url in (URL, URL, "https://example.net/"):
        operation = ops.SendMessage(message=said, push=PushConfig(url))
        await house.engine.answer(Call(operation=operation))
    await eventually(lambda: len(desk.running) == 2)
    assert sorted(c.url for c in desk.running.values()) == [URL, "https://example.net/"]
    assert await house.count() == 1
