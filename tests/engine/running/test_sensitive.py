"""Answers to sensitive questions: the code gets them, also after a crash; nobody else ever does."""

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from harness.databases import new_database
from harness.waiting import eventually, within

from dragoman import Agent, Turn
from dragoman.config import Settings, StoreSettings
from dragoman.model.events import MessageAdded, StepRecorded
from dragoman.model.identity import Scope
from dragoman.model.message import Message, Part
from dragoman.model.record import encode
from dragoman.model.task import Task, TaskState
from dragoman.security.vault import vault_of
from dragoman.stores.interface import KeepReply, write
from dragoman.stores.memory import MemoryStore
from dragoman.stores.sqlite import SQLiteStore
from tests.engine.engines import House, message, postgres_store

S = TaskState
HUSH = "hush-7412"
WITHHELD = [Part(text="[withheld]", metadata={"sensitive": True})]


def bare(said: Message) -> bytes:
    """Return the key that a message has without a secret."""
    text = msgspec.json.encode([said, {}], order="deterministic")
    return hashlib.blake2b(text, digest_size=16).digest()


class World:
    """What the code was given, and a gate it may wait at."""

    def __init__(self) -> None:
        self.given: list[str] = []
        self.gate = asyncio.Event()


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def house(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[House]:
    path = tmp_path / "tasks.db"
    sealing = vault_of(Settings(stores=StoreSettings(location=str(path))))
    database = await new_database(request) if request.param == "postgres" else ""

    def make() -> Any:
        match request.param:
            case "memory":
                return MemoryStore()
            case "sqlite":
                return SQLiteStore(path, sealing=sealing)
            case _:
                return postgres_store(database, sealing=sealing)

    house = House(make, keeps_object=request.param == "memory")
    yield house
    await house.stop()
    if request.param == "sqlite":
        clear(path)


def clear(path: Path) -> None:
    """Check that nothing on disk has it."""
    for file in path.parent.iterdir():
        found = file.read_bytes()
        assert HUSH.encode() not in found, file.name


def made(function: Callable[..., Any]) -> Agent:
    agent = Agent("Tester", "Is tested.")
    agent.skill(id="work")(function)
    return agent


def logs_in(world: World) -> Agent:
    async def work(text: str, turn: Turn) -> str:
        answer = await turn.ask("Password?", sensitive=True)
        world.given.append(answer.text)
        await world.gate.wait()
        return f"{len(answer.text)} characters"

    return made(work)


async def asked(house: House, text: str = "go") -> Task:
    task = await house.send(text)
    assert task.status.state is S.INPUT_REQUIRED
    return task


async def is_asking(house: House, task: Task, question: str) -> bool:
    status = (await house.get(task.id)).status
    return status.message is not None and status.message.text == question


async def whole(house: House, task: Task) -> bytes:
    """Return everything that is shown of a task, and its log."""
    head = await house.store.head(Scope("tester", "", ""), task.id)
    assert head is not None
    events = await house.store.read(head.number, after=0, limit=1000)
    seen = [await house.get(task.id), *(await house.list(page_size=10)).tasks]
    return b"\n".join([repr(one).encode() for one in seen] + [one.body for one in events])


async def test_the_question_says_that_it_is_sensitive(house: House, world: World) -> None:
    await house.start(logs_in(world))
    task = await asked(house)
    assert task.status.message is not None
    assert task.status.message.metadata == {"sensitive": True}


async def test_the_code_gets_the_answer_and_everyone_else_a_placeholder(
    house: House, world: World
) -> None:
    world.gate.set()
    await house.start(logs_in(world))
    task = await asked(house)
    follower = house.subscribe(task.id)
    await follower.step()
    said = message(HUSH, task=task.id)
    said = msgspec.structs.replace(said, metadata={"why": HUSH}, extra={"x": HUSH})
    ended = await house.send(said)
    assert world.given == [HUSH] and ended.status.state is S.COMPLETED
    assert ended.artifacts[0].parts[0].text == "9 characters"
    shown = ended.history[-1]
    assert (shown.message_id, shown.parts) == (said.message_id, WITHHELD)
    assert shown.metadata == {} and shown.role is said.role
    await follower.rest()
    assert HUSH not in repr([encode(event) for event in follower.events])
    assert HUSH.encode() not in await whole(house, task)


async def test_a_crash_after_the_answer_leaves_it_to_the_code_that_runs_again(
    house: House, world: World
) -> None:
    await house.start(logs_in(world))
    task = await asked(house)
    await house.send(message(HUSH, task=task.id), wait=False)
    await eventually(lambda: world.given == [HUSH])
    await house.restart()
    await eventually(lambda: world.given == [HUSH, HUSH])
    assert HUSH.encode() not in await whole(house, task)
    world.gate.set()
    ended = await house.reaches(task.id, S.COMPLETED)
    assert ended.history[-1].parts == WITHHELD


async def test_an_answer_after_a_crash_is_withheld_although_the_code_has_not_asked_again(
    house: House, world: World
) -> None:
    world.gate.set()
    await house.start(logs_in(world))
    task = await asked(house)
    await house.restart()
    ended = await house.send(message(HUSH, task=task.id))
    assert ended.status.state is S.COMPLETED and world.given == [HUSH]
    assert HUSH.encode() not in await whole(house, task)


async def test_nothing_is_kept_once_the_task_has_ended(house: House, world: World) -> None:
    await house.start(logs_in(world))
    task = await asked(house)
    await house.send(message(HUSH, task=task.id), wait=False)
    await eventually(lambda: world.given)
    head = await house.store.head(Scope("tester", "", ""), task.id)
    assert head is not None
    assert HUSH.encode() in b"".join((await house.store.withheld(head.number)).values())
    await house.restart()
    world.gate.set()
    await house.reaches(task.id, S.COMPLETED)
    assert await house.store.withheld(head.number) == {}


async def test_a_cancelled_task_keeps_nothing_beyond_the_next_clean_up(
    house: House, world: World
) -> None:
    await house.start(logs_in(world))
    task = await asked(house)
    await house.send(message(HUSH, task=task.id), wait=False)
    await eventually(lambda: world.given)
    head = await house.store.head(Scope("tester", "", ""), task.id)
    assert head is not None
    await house.cancel(task.id)
    await house.store.prune(ended_before=0, keep=10)
    assert await house.store.withheld(head.number) == {}


async def test_a_repeated_answer_is_the_same_one_and_its_key_tells_nothing(
    house: House, world: World
) -> None:
    world.gate.set()
    await house.start(logs_in(world))
    task = await asked(house)
    said = message(HUSH, task=task.id)
    first = await house.send(said)
    again = await house.send(said)
    assert first.id == again.id and world.given == [HUSH]
    # Whoever has the file cannot try answers out against what it has of them.
    assert await house.store.known(Scope("tester", "", ""), bare(said)) is None


async def test_an_answer_that_an_earlier_release_took_is_not_taken_again(
    house: House, world: World
) -> None:
    """Its key was made without a secret."""
    await house.start(logs_in(world))
    said = message(HUSH, task=(await asked(house)).id)
    taken = message("taken")
    await write(house.store, KeepReply(Scope("tester", "", ""), bare(said), encode(taken)))
    if isinstance(house.store, SQLiteStore):
        # It knows all keys by heart.
        house.store._learn_keys(time.monotonic())
    assert await house.send(said) == taken
    assert not world.given


async def test_what_was_said_before_the_question_is_no_answer_to_it(
    house: House, world: World
) -> None:
    entered = asyncio.Event()

    async def work(text: str, turn: Turn) -> str:
        if text == "early":
            return "a turn of its own"
        entered.set()
        await world.gate.wait()
        answer = await turn.ask("Password?", sensitive=True)
        world.given.append(answer.text)
        return "done"

    await house.start(made(work))
    task = await house.send("go", wait=False)
    await within(entered.wait())
    await house.send(message("early", task=task.id), wait=False)
    world.gate.set()
    await house.reaches(task.id, S.INPUT_REQUIRED)
    ended = await house.send(message(HUSH, task=task.id))
    assert world.given == [HUSH] and ended.status.state is S.COMPLETED
    texts = [one.text for one in ended.history]
    assert "early" in texts and "[withheld]" in texts
    assert HUSH.encode() not in await whole(house, task)


async def test_an_ordinary_question_before_it_gets_an_ordinary_answer_and_one_after_it_does_not(
    house: House, world: World
) -> None:
    async def work(text: str, turn: Turn) -> str:
        questions = [("Name?", False), ("Password?", True), ("Amount?", False)]
        for question, is_sensitive in questions:
            world.given.append((await turn.ask(question, sensitive=is_sensitive)).text)
        return "done"

    await house.start(made(work))
    task = await asked(house)
    await house.send(message("Ada", task=task.id))
    await house.send(message(HUSH, task=task.id))
    world.given.clear()
    await house.restart()
    ended = await house.send(message("100", task=task.id))
    assert world.given == ["Ada", HUSH, "100"]
    texts = [one.text for one in ended.history]
    assert "Ada" in texts and HUSH not in texts and "100" not in texts
    # One event for an answer, sensitive or not.
    head = await house.store.head(Scope("tester", "", ""), task.id)
    assert head is not None
    events = [one.event for one in await house.store.read(head.number, after=0, limit=100)]
    assert [e.withheld for e in events if isinstance(e, MessageAdded)] == [False, True, True]
    assert sum(isinstance(event, StepRecorded) for event in events) == 6


@pytest.mark.parametrize("has_crashed", [False, True])
async def test_an_answer_said_again_while_the_code_goes_on_is_withheld_too(
    house: House, world: World, has_crashed: bool
) -> None:
    async def work(text: str, turn: Turn) -> str:
        if text == "go":
            world.given.append((await turn.ask("Password?", sensitive=True)).text)
            await world.gate.wait()
        return "done"

    await house.start(made(work))
    task = await asked(house)
    await house.send(message(HUSH, task=task.id), wait=False)
    await eventually(lambda: world.given == [HUSH])
    if has_crashed:
        await house.restart()
        await eventually(lambda: world.given == [HUSH, HUSH])
    await house.send(message(HUSH, task=task.id), wait=False)
    assert HUSH.encode() not in await whole(house, task)
    world.gate.set()
    ended = await house.reaches(task.id, S.COMPLETED)
    assert [one.parts for one in ended.history[-2:]] == [WITHHELD, WITHHELD]


async def test_an_answer_said_again_in_a_later_turn_is_withheld_too(
    house: House, world: World
) -> None:
    """What was queued before the question begins a turn that asks nothing."""
    entered, is_queued, is_later = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def work(text: str, turn: Turn) -> str:
        if text == "early":
            is_later.set()
            await world.gate.wait()
            return "a turn of its own"
        if text != "go":
            return "one more"
        entered.set()
        await is_queued.wait()
        world.given.append((await turn.ask("Password?", sensitive=True)).text)
        return "done"

    await house.start(made(work))
    task = await house.send("go", wait=False)
    await within(entered.wait())
    await house.send(message("early", task=task.id), wait=False)
    is_queued.set()
    await house.reaches(task.id, S.INPUT_REQUIRED)
    await house.send(message(HUSH, task=task.id), wait=False)
    await within(is_later.wait())
    await house.send(message(HUSH, task=task.id), wait=False)
    world.gate.set()
    await house.reaches(task.id, S.COMPLETED)
    assert world.given == [HUSH]
    assert HUSH.encode() not in await whole(house, task)


async def test_an_answer_said_twice_does_not_answer_the_next_sensitive_question(
    house: House, world: World
) -> None:
    async def work(text: str, turn: Turn) -> str:
        if text == HUSH:
            return "a turn of its own"
        world.given.append((await turn.ask("Password?", sensitive=True)).text)
        await world.gate.wait()
        world.given.append((await turn.ask("PIN?", sensitive=True)).text)
        return "done"

    await house.start(made(work))
    task = await asked(house)
    await house.send(message(HUSH, task=task.id), wait=False)
    await eventually(lambda: world.given)
    await house.send(message(HUSH, task=task.id), wait=False)
    world.gate.set()
    await eventually(lambda: is_asking(house, task, "PIN?"))
    await house.restart()
    await house.send(message("4711", task=task.id))
    await house.reaches(task.id, S.COMPLETED)
    assert world.given[-1] == "4711"
    assert HUSH.encode() not in await whole(house, task)


async def test_code_that_makes_its_question_sensitive_later_has_it_withheld(
    house: House, world: World
) -> None:
    async def open_(text: str, turn: Turn) -> str:
        return (await turn.ask("Password?")).text

    async def hidden(text: str, turn: Turn) -> str:
        world.given.append((await turn.ask("Password?", sensitive=True)).text)
        return "done"

    await house.start(made(open_))
    task = await asked(house)
    await house.restart(made(hidden))
    # The message wakes the code, which puts its question anew before it is given anything.
    ended = await house.send(message(HUSH, task=task.id))
    assert world.given == [HUSH] and ended.status.state is S.COMPLETED
    assert HUSH.encode() not in await whole(house, ended)


async def test_credentials_that_were_asked_for_are_withheld_too(house: House, world: World) -> None:
    def work(text: str, turn: Turn) -> str:
        answer = turn.authorize("Token?", sensitive=True)
        world.given.append(answer.text)
        return "done"

    agent = made(work)
    await house.start(agent)
    task = await house.send("go")
    assert task.status.state is S.AUTH_REQUIRED
    ended = await house.send(message(HUSH, task=task.id))
    assert world.given == [HUSH] and ended.history[-1].parts == WITHHELD
    assert agent.threads is not None
    await within(asyncio.to_thread(agent.threads.shutdown))


async def test_a_structured_answer_with_files_comes_back_as_it_was(
    house: House, world: World
) -> None:
    got: list[Message] = []

    async def work(text: str, turn: Turn) -> str:
        got.append(await turn.ask("Key?", sensitive=True))
        await world.gate.wait()
        return "done"

    await house.start(made(work))
    task = await asked(house)
    parts = [Part(data={"pin": HUSH}), Part(raw=HUSH.encode(), filename="id_rsa")]
    said = msgspec.structs.replace(message("", task=task.id), parts=parts)
    await house.send(said, wait=False)
    await eventually(lambda: len(got) == 1)
    await house.restart()
    await eventually(lambda: len(got) == 2)
    assert got[0].parts == got[1].parts == parts
    world.gate.set()
    await house.reaches(task.id, S.COMPLETED)


async def has_taken_in(house: House, task: Task, count: int) -> bool:
    """Tell whether so many answers are in the log."""
    return sum(one.parts == WITHHELD for one in (await house.get(task.id)).history) == count


async def test_an_answer_that_another_process_takes_in_is_sealed_on_its_way(
    tmp_path: Path, world: World
) -> None:
    path = tmp_path / "tasks.db"

    def make() -> Any:
        return SQLiteStore(
            path, sealing=vault_of(Settings(stores=StoreSettings(location=str(path))))
        )

    here, there = House(make, keeps_object=False), House(make, keeps_object=False)
    world.gate.set()
    await here.start(logs_in(world))
    task = await asked(here)
    await within(there.start(logs_in(world)))
    ended = await there.send(message(HUSH, task=task.id))
    assert world.given == [HUSH] and ended.status.state is S.COMPLETED
    # Its note is gone, and left nothing behind.
    clear(path)
    # Said twice, with the code past the question when the second one comes.
    world.gate.clear()
    task = await asked(here)
    await there.send(message(HUSH, task=task.id), wait=False)
    await eventually(lambda: len(world.given) == 2)
    await there.send(message(HUSH, task=task.id), wait=False)
    await eventually(lambda: has_taken_in(here, task, 2))
    assert HUSH.encode() not in await whole(here, task)
    await there.stop()
    await here.stop()
    clear(path)
