"""An engine to talk to, over each store, that can be stopped and started on the same data."""

import asyncio
import inspect
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

from dragoman.config import Settings
from dragoman.engine.engine import Engine
from dragoman.model import operations as ops
from dragoman.model.clock import Clock, SystemClock
from dragoman.model.events import Event
from dragoman.model.identity import Caller, ContextId, MessageId, Scope, TaskId
from dragoman.model.message import Message, Part, Role
from dragoman.model.record import Recorded
from dragoman.model.task import Task, TaskState
from dragoman.service import Batch, Call, Opening, TaskPage, TaskReply
from dragoman.stores.interface import Done, Store, Write
from dragoman.stores.memory import MemoryStore
from dragoman.stores.sqlite import SQLiteStore
from dragoman.stores.sqlite.workers import machine_time

WITHIN = 60.0
T = TypeVar("T")
_ids = itertools.count(1)


async def within(awaitable: Awaitable[T], seconds: float = WITHIN) -> T:
    """Wait for something, but not for ever."""
    return await asyncio.wait_for(awaitable, seconds)


async def eventually(is_so: Callable[[], Any]) -> None:
    """Let others run until something is so: a bound on turns of the loop and on time."""
    until = asyncio.get_running_loop().time() + WITHIN
    for _ in range(1_000_000):
        found = is_so()
        if await found if inspect.isawaitable(found) else found:
            return
        assert asyncio.get_running_loop().time() < until, "it never was so"
        await asyncio.sleep(0)
    raise AssertionError("it never was so")


def message(
    text: str,
    *,
    id: str = "",
    task: str = "",
    context: str = "",
    skill: str = "",
    role: Role = Role.USER,
) -> Message:
    """Return a message of the caller's; without an id it gets one of its own."""
    return Message(
        MessageId(id or f"m{next(_ids)}"),
        role,
        [Part(text=text)],
        context_id=ContextId(context),
        task_id=TaskId(task),
        metadata={"skill": skill} if skill else {},
    )


class Stream:
    """What one reader of a stream has seen."""

    def __init__(self, batches: AsyncIterator[Batch]) -> None:
        self._batches = batches
        self.opening: Task | None = None
        self.opened_at = 0
        self.reply: Message | None = None
        self.recorded: list[Recorded] = []

    async def step(self) -> bool:
        """Read one batch; tell whether there was one."""
        try:
            batch = await within(anext(self._batches))
        except StopAsyncIteration:
            return False
        match batch:
            case Opening():
                assert self.opening is None and not self.recorded
                self.opening = batch.reply.reading.task
                self.opened_at = batch.reply.reading.seq
            case Message():
                assert self.reply is None
                self.reply = batch
            case _:
                assert self.opening is not None
                self.recorded += batch
        return True

    async def rest(self) -> "Stream":
        """Read to the end."""
        while await self.step():
            pass
        return self

    async def until(self, enough: Callable[["Stream"], bool]) -> "Stream":
        """Read until something is seen."""
        while not enough(self):
            assert await self.step(), "the stream ended before that"
        return self

    async def close(self) -> None:
        await self._batches.aclose()  # type: ignore[attr-defined]

    @property
    def seqs(self) -> list[int]:
        return [recorded.seq for recorded in self.recorded]

    @property
    def events(self) -> list[Event]:
        return [recorded.event for recorded in self.recorded]


class GatedStore(MemoryStore):
    """A store that keeps its writers waiting while the gate is shut, as a slow disk does."""

    def __init__(self) -> None:
        super().__init__()
        self._waiting: list[tuple[Write, Done]] | None = None

    def shut(self) -> None:
        self._waiting = []

    def lift(self) -> None:
        waiting, self._waiting = self._waiting or [], None
        for write, done in waiting:
            super().submit(write, done)

    def submit(self, write: Write, done: Done) -> None:
        if self._waiting is None:
            super().submit(write, done)
        else:
            self._waiting.append((write, done))


class House:
    """An agent's engine over a store."""

    def __init__(self, make: Callable[[], Store], *, keeps_object: bool) -> None:
        self._make = make
        self._keeps_object = keeps_object
        self._store: Store | None = None
        self._engine: Engine | None = None
        self._agent: Any = None
        self._settings: dict[str, Any] = {}
        self._former: list[Store] = []
        self.clock: Clock = SystemClock()

    @property
    def engine(self) -> Engine:
        assert self._engine is not None
        return self._engine

    @property
    def store(self) -> Store:
        assert self._store is not None
        return self._store

    async def start(self, agent: Any, **settings: Any) -> int:
        """Serve an agent; return how many tasks were taken over."""
        self._agent, self._settings = agent, settings
        if self._store is None or not self._keeps_object:
            self._store = self._make()
        await self.store.open()
        self._engine = Engine(agent, self.store, Settings(**settings), clock=self.clock)
        return await self.engine.sweep()

    async def stop(self) -> None:
        """End in good order: what runs is let go."""
        if self._engine is not None:
            await self._engine.stop()
            await within(self.store.close())
            self._engine = None
            for store in self._former:
                await within(store.close())
            self._former.clear()

    async def die(self) -> None:
        """End as a killed process does: what runs is left where it is."""
        if isinstance(self._store, SQLiteStore):
            self._store._workers.leave = lambda connection: None  # type: ignore[method-assign]
            await self.stop()
        elif self._engine is not None:
            await self._engine.stop()
            self._engine = None

    async def restart(self, agent: Any = None, **settings: Any) -> int:
        """Die and come back."""
        await self.die()
        return await self.start(agent or self._agent, **(settings or self._settings))

    async def succeed(self) -> Engine:
        """Let another engine take everything over while the first, thought dead, lives on; return
        the first."""
        before = self.engine
        if isinstance(self._store, SQLiteStore):
            # Half a minute later by its clock, the first one's lease has ended.
            self._former.append(self._store)
            path = self._store.path
            self._store = SQLiteStore(path, clock=lambda: machine_time() + 3_600_000, lease=0.2)
        await self.store.open()
        self._engine = Engine(self._agent, self.store, Settings(**self._settings))
        for _ in range(100):
            # The first one may have come back to life in between, as often as it likes.
            if await self.engine.sweep():
                break
            await self.store.renew()
        return before

    @property
    def scope(self) -> Scope:
        """Where tasks are whose owner is not named."""
        return Scope(self._agent.name)

    # Calls

    async def send(
        self,
        text: str | Message,
        *,
        wait: bool = True,
        owner: str = "",
        patience: float = 0.0,
        **given: Any,
    ) -> Any:
        """Send a message; return the task or the message that answers it."""
        said = text if isinstance(text, Message) else message(text, **given)
        operation = ops.SendMessage(message=said, wait=wait)
        call = Call(operation=operation, caller=Caller(owner), patience=patience)
        reply = await within(self.engine.answer(call))
        return reply.reading.task if isinstance(reply, TaskReply) else reply

    def stream(
        self,
        text: str | Message,
        *,
        after: int | None = None,
        closes_on_input: bool = True,
        **given: Any,
    ) -> Stream:
        said = text if isinstance(text, Message) else message(text, **given)
        operation = ops.StreamMessage(message=said)
        call = Call(operation=operation, after=after, closes_on_input=closes_on_input)
        return Stream(self.engine.follow(call))

    def subscribe(
        self,
        task_id: str,
        after: int | None = None,
        *,
        closes_on_input: bool = False,
        owner: str = "",
    ) -> Stream:
        operation = ops.SubscribeToTask(task_id=TaskId(task_id))
        call = Call(
            operation=operation,
            caller=Caller(owner),
            after=after,
            closes_on_input=closes_on_input,
        )
        return Stream(self.engine.follow(call))

    async def get(self, task_id: str, owner: str = "") -> Task:
        operation = ops.GetTask(task_id=TaskId(task_id))
        reply = await within(self.engine.answer(Call(operation=operation, caller=Caller(owner))))
        assert isinstance(reply, TaskReply)
        return reply.reading.task

    async def cancel(self, task_id: str, owner: str = "") -> Task:
        operation = ops.CancelTask(task_id=TaskId(task_id))
        reply = await within(self.engine.answer(Call(operation=operation, caller=Caller(owner))))
        assert isinstance(reply, TaskReply)
        return reply.reading.task

    async def list(self, owner: str = "", **query: Any) -> TaskPage:
        operation = ops.ListTasks(**query)
        reply = await within(self.engine.answer(Call(operation=operation, caller=Caller(owner))))
        assert isinstance(reply, TaskPage)
        return reply

    async def count(self) -> int:
        return (await self.list(page_size=1)).total_size

    async def reaches(self, task_id: str, state: TaskState) -> Task:
        """Wait until a task is in a state, woken by its log."""
        stream = self.subscribe(task_id, 1)
        await stream.until(
            lambda s: any(
                getattr(getattr(event, "status", None), "state", None) is state
                for event in [s.opening, *s.events]
            )
        )
        await stream.close()
        return await self.get(task_id)


class Street:
    """Houses on one file: to each other they are what processes are. The machine's time stands
    still until a test moves it."""

    def __init__(self, folder: Path, *, lease: float = 30.0) -> None:
        self._path = folder / "tasks.db"
        self._lease = lease
        self.now = 1_000_000
        self.houses: list[House] = []

    async def open(self, agent: Any, **settings: Any) -> House:
        """Open one more."""
        house = House(
            lambda: SQLiteStore(self._path, lease=self._lease, clock=lambda: self.now),
            keeps_object=False,
        )
        await within(house.start(agent, **settings))
        self.houses.append(house)
        return house

    async def freeze(self, house: House) -> None:
        """Let a house's lease end; the others take over what is unfinished."""
        store = house.store
        assert isinstance(store, SQLiteStore)
        for chore in store._chores:
            chore.cancel()
        await asyncio.gather(*store._chores, return_exceptions=True)
        self.now += int(self._lease * 1000)
        await self.look_after(*(other for other in self.houses if other is not house))

    async def wake(self, house: House) -> None:
        """Let a frozen house go on where it was."""
        store = house.store
        assert isinstance(store, SQLiteStore)
        store._chores = [asyncio.get_running_loop().create_task(store._keep_company())]
        await self.look_after(house)

    async def kill(self, house: House) -> None:
        """End a house without a word; the others take over."""
        self.houses.remove(house)
        await house.die()
        await self.look_after(*self.houses)

    async def look_after(self, *houses: House) -> None:
        """Do what a server does every second."""
        for house in houses:
            await within(house.store.renew())
        for house in houses:
            await within(house.engine.sweep())

    async def close(self) -> None:
        for house in self.houses:
            await house.stop()


def house_over(kind: str, folder: Path) -> House:
    if kind == "sqlite":
        return House(lambda: SQLiteStore(folder / "tasks.db"), keeps_object=False)
    if kind == "gated":
        return House(GatedStore, keeps_object=True)
    return House(MemoryStore, keeps_object=True)
