"""An engine to talk to, over each store, that can be stopped and started on the same data."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest
from harness.databases import buried
from harness.waiting import WAIT, within

from dragoman.config import load_settings
from dragoman.engine.engine import Engine
from dragoman.errors import StoreFull
from dragoman.model import operations as ops
from dragoman.model.clock import Clock, SystemClock
from dragoman.model.events import Event
from dragoman.model.identity import Caller, ContextId, MessageId, Scope, TaskId
from dragoman.model.message import Message, Part, Role
from dragoman.model.record import Recorded
from dragoman.model.task import Task, TaskState
from dragoman.service import Batch, Call, Opening, TaskPage, TaskReply
from dragoman.stores.interface import Done, Known, Sealing, Store, Survey, Write
from dragoman.stores.memory import MemoryStore
from dragoman.stores.postgres import Addresses, PostgresStore
from dragoman.stores.sqlite import SQLiteStore
from dragoman.stores.sqlite.workers import machine_time

WITHIN = 60.0
T = TypeVar("T")
_ids = itertools.count(1)


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


def state(task: Task) -> TaskState:
    """Return the state of a task."""
    return task.status.state


def sentence(task: Task) -> str:
    """Return the text of its status."""
    return task.status.message.text if task.status.message else ""


def texts(task: Task) -> list[str]:
    """Return the texts of its history."""
    return [said.text for said in task.history]


def result(task: Task) -> Any:
    """Return the text of its last artifact."""
    return task.artifacts[-1].parts[0].text


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


class LateStore(GatedStore):
    """A store whose answers about events and messages arrive late while they are held, as over a
    network: what is written meanwhile is not in them."""

    def __init__(self) -> None:
        super().__init__()
        self.released: asyncio.Event | None = None
        self.is_asked = asyncio.Event()

    def hold(self) -> None:
        self.released = asyncio.Event()
        self.is_asked.clear()

    async def read(self, number: int, **options: Any) -> list[Recorded]:
        return await self._late(await super().read(number, **options))

    async def known(self, scope: Scope, key: bytes) -> Known | None:
        return await self._late(await super().known(scope, key))

    async def _late(self, answer: T) -> T:
        released = self.released
        self.is_asked.set()
        if released is not None:
            await released.wait()
        return answer


class FullDisk:
    """Refuses what is written to a store: the first writes, or all while it is full."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, store: Store, times: int = 1 << 30) -> None:
        self.refused = 0
        self.is_full = True
        self._times = times
        self._submit = store.submit
        monkeypatch.setattr(store, "submit", self._refuse)

    def _refuse(self, write: Write, done: Done) -> None:
        if not self.is_full or self.refused == self._times:
            self._submit(write, done)
            return
        self.refused += 1
        asyncio.get_running_loop().call_soon(done, StoreFull("no space left"), 0)


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
        # The number of the worker that died here last.
        self._dead = 0
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
        if isinstance(self._store, PostgresStore) and self._dead:
            await buried(self.store, self._dead)
        self._engine = Engine(agent, self.store, load_settings({}, **settings), clock=self.clock)
        taken = await self.engine.sweep()
        if isinstance(self._store, PostgresStore):
            # Its writes are lost if it dies under them; a test that restarts twice counts attempts.
            for log in self.engine._live.logs:
                await within(log.durable(log.seq))
        return taken

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
            if isinstance(self._store, PostgresStore):
                self._dead = self._store.worker
                await self._store.vanish()

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
        elif isinstance(self._store, PostgresStore):
            former = self._store
            self._former.append(former)
            self._store = self._make()
            await self.store.open()
            # Marked by hand: its session is there and its signs of life go on.
            await former._connections.rows("SELECT bury($1)", former.worker)
        if not isinstance(self._store, PostgresStore):
            await self.store.open()
        self._engine = Engine(self._agent, self.store, load_settings({}, **self._settings))
        async with asyncio.timeout(WAIT):
            # The first one may have come back to life in between, as often as it likes.
            while not await self.engine.sweep():
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
        names_task: bool = False,
        **given: Any,
    ) -> Any:
        """Send a message; return the task or the message that answers it. `names_task`: the id of
        its task may be one of the caller's choice."""
        said = text if isinstance(text, Message) else message(text, **given)
        operation = ops.SendMessage(message=said, wait=wait)
        call = Call(
            operation=operation,
            caller=Caller(owner),
            patience=patience,
            client_task_id=names_task,
        )
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

    async def first_number(self) -> int:
        """Return the number of the first task of the store."""
        return min(head.number for head in await self.store.survey(Survey(limit=1000)))

    async def has_notes(self) -> bool:
        """Tell whether something was left for the holder of the first task."""
        return bool(await self.store.notes(await self.first_number()))

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
    """Houses on one store: to each other they are what processes are. The time of the leases stands
    still until a test moves it."""

    lease = 30.0

    def __init__(self) -> None:
        self.houses: list[House] = []

    def _make(self) -> Store:
        raise NotImplementedError

    async def advance(self, seconds: float) -> None:
        """Let time pass, by the clock that leases go by."""
        raise NotImplementedError

    async def _end_lease(self, store: Store) -> None:
        """Let time pass until the lease of a store that does nothing has ended."""
        await self.advance(self.lease)

    async def _stop(self, store: Store) -> None:
        """Have a store do nothing any more by itself."""
        raise NotImplementedError

    async def _go_on(self, store: Store) -> None:
        raise NotImplementedError

    def deafen(self, house: House) -> None:
        """Let no ring reach a house any more."""
        raise NotImplementedError

    async def stop_looking(self, house: House) -> None:
        """Let a house see nothing of the others by itself, unless it renews its lease."""
        self.deafen(house)

    async def open(self, agent: Any, **settings: Any) -> House:
        """Open one more."""
        house = House(self._make, keeps_object=False)
        await within(house.start(agent, **settings))
        self.houses.append(house)
        return house

    async def freeze(self, house: House) -> None:
        """Let a house's lease end; the others take over what is unfinished."""
        await self._stop(house.store)
        await self._end_lease(house.store)
        await self.look_after(*(other for other in self.houses if other is not house))

    async def wake(self, house: House) -> None:
        """Let a frozen house go on where it was."""
        await self._go_on(house.store)
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


class FileStreet(Street):
    """Houses on one file."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._path = folder / "tasks.db"
        self._now = 1_000_000

    def _make(self) -> Store:
        return SQLiteStore(self._path, lease=self.lease, clock=lambda: self._now)

    async def advance(self, seconds: float) -> None:
        self._now += int(seconds * 1000)

    async def _stop(self, store: Store) -> None:
        assert isinstance(store, SQLiteStore)
        for chore in store._chores:
            chore.cancel()
        await asyncio.gather(*store._chores, return_exceptions=True)

    async def _go_on(self, store: Store) -> None:
        assert isinstance(store, SQLiteStore)
        store._chores = [asyncio.get_running_loop().create_task(store._watch_peers())]

    async def stop_looking(self, house: House) -> None:
        await self._stop(house.store)

    def deafen(self, house: House) -> None:
        assert isinstance(house.store, SQLiteStore)
        house.store._listeners.clear()


class DatabaseStreet(Street):
    """Houses on one database. Time passes there by dating back the signs of life."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._url = url

    def _make(self) -> Store:
        return postgres_store(self._url, self.lease)

    async def advance(self, seconds: float) -> None:
        await self._date_back("UPDATE beats SET at = at - $1::interval", seconds)

    async def _end_lease(self, store: Store) -> None:
        # The others were heard all the while.
        await self._date_back("UPDATE beats SET steady_since = steady_since - $1::interval")
        frozen = f"UPDATE beats SET at = at - $1::interval WHERE worker = {store.worker}"
        await self._date_back(frozen)

    async def _date_back(self, sql: str, seconds: float = Street.lease) -> None:
        store = self.houses[0].store
        assert isinstance(store, PostgresStore)
        await store._connections.rows(sql, timedelta(seconds=seconds))

    async def _stop(self, store: Store) -> None:
        assert isinstance(store, PostgresStore)
        keeping = store._workers._keeping
        assert keeping is not None
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)

    async def _go_on(self, store: Store) -> None:
        assert isinstance(store, PostgresStore)
        workers = store._workers
        workers._keeping = asyncio.get_running_loop().create_task(workers._keep())

    def deafen(self, house: House) -> None:
        assert isinstance(house.store, PostgresStore)
        house.store._bus._listeners.clear()

    async def kill(self, house: House) -> None:
        dead = house.store.worker
        self.houses.remove(house)
        await house.die()
        if self.houses:
            await buried(self.houses[0].store, dead)
        await self.look_after(*self.houses)


def postgres_store(url: str, lease: float = 30.0, sealing: Sealing | None = None) -> PostgresStore:
    """Return a worker that judges the sessions of others from its first moment: the server does not
    restart."""
    # A call that is cancelled while it connects leaves no question for TLS unanswered.
    addresses = Addresses(f"{url}?sslmode=disable")
    return PostgresStore(addresses, lease=lease, grace=0, sealing=sealing)


def house_over(kind: str, folder: Path, database: str = "") -> House:
    if kind == "postgres":
        return House(lambda: postgres_store(database), keeps_object=False)
    if kind == "sqlite":
        return House(lambda: SQLiteStore(folder / "tasks.db"), keeps_object=False)
    if kind == "gated":
        return House(GatedStore, keeps_object=True)
    return House(MemoryStore, keeps_object=True)
