"""An agent over a store in memory, whose process can die."""

import asyncio
import time
from collections.abc import Awaitable, Callable

from dragoman import Agent, Settings
from dragoman.config import EngineSettings
from dragoman.engine.engine import Engine
from dragoman.engine.running.isolation import Isolation
from dragoman.model.identity import MessageId, TaskId, new_id
from dragoman.model.message import Message, Part, Role
from dragoman.model.operations import GetTask, SendMessage
from dragoman.model.task import TaskState
from dragoman.service import Call, TaskReply
from dragoman.stores.memory import MemoryStore

# Seconds that a check waits for something, and a suspect has where nothing waits for its end.
WITHIN = 1.5
LONG = 300.0


def message(text: str, skill: str = "") -> SendMessage:
    """Return what begins a task."""
    metadata = {"skill": skill} if skill else {}
    message = Message(MessageId(new_id()), Role.USER, [Part(text=text)], metadata=metadata)
    return SendMessage(message=message, wait=False)


class Process:
    """The process of an agent; what it stored is there after its death."""

    def __init__(
        self, agent: Agent, seconds: float = LONG, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._agent = agent
        self._store = MemoryStore()
        self._settings = Settings(engine=EngineSettings(suspect_seconds=seconds))
        self._now = now
        self._engine: Engine | None = None

    @property
    def engine(self) -> Engine:
        """What answers at present."""
        assert self._engine is not None, "it was started"
        return self._engine

    async def start(self) -> None:
        """Begin, with what others left."""
        await self._store.open()
        turns = Isolation(self._settings.engine.suspect_seconds, self._now)
        self._engine = Engine(self._agent, self._store, self._settings, isolation=turns)
        await self.engine.sweep()

    async def die(self) -> None:
        """End without letting anything go, and come back."""
        await self.engine.stop()
        await self.start()

    async def send(self, text: str, skill: str = "") -> TaskId:
        """Begin a task."""
        reply = await self.engine.answer(Call(operation=message(text, skill)))
        assert isinstance(reply, TaskReply)
        return reply.reading.task.id

    async def state(self, task_id: TaskId) -> TaskState:
        """Return the state of a task."""
        reply = await self.engine.answer(Call(operation=GetTask(task_id=task_id)))
        assert isinstance(reply, TaskReply)
        return reply.reading.task.status.state


async def comes(is_so: Callable[[], Awaitable[bool] | bool]) -> bool:
    """Tell whether something comes to be so in time."""
    until = time.monotonic() + WITHIN
    while time.monotonic() < until:
        found = is_so()
        if found if isinstance(found, bool) else await found:
            return True
        await asyncio.sleep(0.005)
    return False
