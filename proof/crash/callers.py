"""Callers that send, stream, cancel, repeat and answer, and never give a message up.

A request whose outcome is not known is sent again as it was; a stream that was cut is gone on with
from the position it had. All of them share one history of what they were told.
"""

import asyncio
import contextlib
import random
from collections import Counter, deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from proof.client import CallRefused, ConnectionGone, Frame, RpcConnection, ServerBusy, message
from proof.crash.checker import RESTING, History, Sent, reading
from proof.results import Json, until
from proof.servers import Replicas

CALLERS = 20
# Seconds a caller thinks between two requests, at most.
PAUSE = 0.08
# Everything acknowledged has to rest by then, once no caller sends any more.
REST_WITHIN = 45.0


class Load:
    """The callers and what they share."""

    def __init__(self, replicas: Replicas, seed: int, pause: float) -> None:
        self.replicas = replicas
        self.seed = seed
        self.pause = pause
        self.history = History()
        # Requests that were cut off, and those a server would not take.
        self.unknown = 0
        self.busy = 0
        # Streams that were cut without a word, and those a server ended before their task did.
        self.broken_streams = 0
        self.ended_streams = 0
        self.refused: Counter[str] = Counter()
        # Messages to send again, streams to go on with, tasks that wait for an answer.
        self.again: deque[Sent] = deque()
        self.cut: deque[tuple[str, int]] = deque()
        self.questions: deque[str] = deque()
        # Tasks that were begun since the last kill and take a while.
        self.fresh: list[str] = []
        self._gate = asyncio.Event()
        self._gate.set()
        self._busy = 0
        self._quiet = asyncio.Event()
        self._quiet.set()

    @asynccontextmanager
    async def paused(self) -> AsyncGenerator[None]:
        """Keep the callers from sending; begins once the last one has its answer."""
        self._gate.clear()
        try:
            await asyncio.wait_for(self._quiet.wait(), 2 * REST_WITHIN)
            yield
        finally:
            self._gate.set()

    async def act(self, deed: Callable[[], Awaitable[None]]) -> None:
        """Let a caller do one thing, unless all are to be quiet."""
        await self._gate.wait()
        self._busy += 1
        self._quiet.clear()
        try:
            await deed()
        except ServerBusy:
            self.busy += 1
        except ConnectionGone:
            self.unknown += 1
        except CallRefused as error:
            self.refused[f"{error.code} {error}"] += 1
        finally:
            self._busy -= 1
            if not self._busy:
                self._quiet.set()


class Caller:
    """One client: does one thing after another and gives no message up."""

    def __init__(self, load: Load, number: int) -> None:
        self._load = load
        self._number = number
        self._chance = random.Random(f"{load.seed}/{number}")
        self._connection: RpcConnection | None = None
        self._count = 0

    async def run(self) -> None:
        """Go on until cancelled."""
        deeds: list[Callable[[], Awaitable[None]]] = []
        for weight, deed in (
            (62, self._short),
            (6, self._journey),
            (10, self._long),
            (6, self._stream),
            (4, self._cancel),
            (6, self._twice),
            (6, self._question),
        ):
            deeds += [deed] * weight
        try:
            while True:
                await self._load.act(self._leftover() or self._chance.choice(deeds))
                await asyncio.sleep(self._chance.uniform(0, self._load.pause))
        finally:
            self._hang_up()

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _id(self) -> str:
        self._count += 1
        return f"{self._load.seed}-{self._number}-{self._count}"

    def _leftover(self) -> Callable[[], Awaitable[None]] | None:
        """Return what an earlier crash left to do, if it is its turn."""
        load = self._load
        if load.again:
            sent = load.again.popleft()
            return lambda: self._send(sent)
        if load.cut:
            task_id, after = load.cut.popleft()
            return lambda: self._resume(task_id, after)
        # Some questions wait for a few crashes before they are answered.
        if load.questions and self._chance.random() < 0.05:
            task_id = load.questions.popleft()
            return lambda: self._answer(task_id)
        return None

    # What callers do

    async def _short(self) -> None:
        id = self._id()
        await self._new("SendMessage", message("echo", f"echo {id}", id))

    async def _long(self) -> None:
        await self._begin(self._chance.randint(2, 6), self._chance.randint(40, 120))

    async def _journey(self) -> None:
        immediately = self._chance.random() < 0.5
        said = message("journey", "go", self._id(), immediately=immediately)
        await self._new("SendMessage", said)

    async def _begin(self, count: int, pause: int) -> str:
        said = message("steps", f"{count} {pause}", self._id(), immediately=True)
        sent = await self._new("SendMessage", said)
        self._load.fresh.append(sent.task_id)
        return sent.task_id

    async def _stream(self) -> None:
        count = self._chance.randint(2, 10)
        said = message("mixed", f"{count} {self._chance.randint(5, 60)}", self._id())
        await self._new("SendStreamingMessage", said)

    async def _cancel(self) -> None:
        task_id = await self._begin(20, 100)
        await asyncio.sleep(self._chance.uniform(0, 0.3))
        task = await self._call("CancelTask", {"id": task_id})
        self._load.history.saw(task_id, task["status"]["state"])

    async def _twice(self) -> None:
        """Send the same message on two connections at once, and again afterwards."""
        id = self._id()
        sent = self._load.history.invoke("SendMessage", message("steps", "1 20", id))
        other = RpcConnection(await self._load.replicas.port())
        try:
            await asyncio.gather(
                self._send(sent), self._attempt(other, sent), return_exceptions=True
            )
        finally:
            other.close()
        await self._send(sent)

    async def _question(self) -> None:
        id = self._id()
        sent = await self._new("SendMessage", message("ask", f"question {id}", id))
        if self._chance.random() < 0.5:
            await self._answer(sent.task_id)
        else:
            self._load.questions.append(sent.task_id)

    async def _answer(self, task_id: str) -> None:
        id = self._id()
        await self._new("SendMessage", message("ask", f"answer {id}", id, task_id=task_id))

    # How

    async def _connected(self) -> RpcConnection:
        if self._connection is None:
            self._connection = RpcConnection(await self._load.replicas.port())
        return self._connection

    async def _call(self, method: str, params: Json) -> Any:
        connection = await self._connected()
        try:
            return await connection.call(method, params)
        except ConnectionGone:
            self._hang_up()
            raise

    async def _new(self, method: str, params: Json) -> Sent:
        sent = self._load.history.invoke(method, params)
        await self._send(sent)
        return sent

    async def _send(self, sent: Sent) -> None:
        connection = await self._connected()
        try:
            await self._attempt(connection, sent)
        except ConnectionGone:
            self._hang_up()
            if not sent.is_acked:
                self._load.again.append(sent)
            raise

    async def _attempt(self, connection: RpcConnection, sent: Sent) -> None:
        if sent.method == "SendMessage":
            answer = await connection.call(sent.method, sent.params)
            self._load.history.ack(sent, answer["task"])
            return
        await self._follow(connection, sent.method, sent.params, sent=sent)

    async def _resume(self, task_id: str, after: int) -> None:
        connection = await self._connected()
        try:
            await self._follow(connection, "SubscribeToTask", {"id": task_id}, after=after)
        except ConnectionGone:
            self._hang_up()
            raise

    async def _follow(
        self,
        connection: RpcConnection,
        method: str,
        params: Json,
        *,
        after: int | None = None,
        sent: Sent | None = None,
    ) -> None:
        """Read a stream; one that is cut is left to be gone on with."""
        frames: list[Frame] = []
        task_id = params.get("id", "")
        try:
            async with contextlib.aclosing(
                connection.stream(method, params, after=after)
            ) as stream:
                async for frame in stream:
                    frames.append(frame)
                    if len(frames) == 1:
                        task = frame.value["task"]
                        task_id = task["id"]
                        if sent is not None:
                            self._load.history.ack(sent, task)
                        if after is not None and frame.seq != after:
                            fact = f"stream of {task_id} after {after} begins at {frame.seq}"
                            self._load.history.told.add("torn", fact)
            if frames and not rests(frames[-1]):
                self._load.ended_streams += 1
                self._load.cut.append((task_id, frames[-1].seq or 0))
        except ConnectionGone:
            last = frames[-1].seq if frames else after
            if frames:
                self._load.broken_streams += 1
            if task_id and last is not None:
                self._load.cut.append((task_id, last))
            raise
        finally:
            if frames:
                self._load.history.saw_frames(task_id, frames)


def rests(frame: Frame) -> bool:
    """Whether a stream may end with this event."""
    value = frame.value
    shown = value.get("statusUpdate") or value.get("task")
    return shown is not None and shown["status"]["state"] in RESTING


async def at_rest(path: Path, within: float = REST_WITHIN) -> bool:
    """Wait until every task rests."""

    def all_rest() -> bool:
        with reading(path) as file:
            return not file.unfinished()

    return await until(all_rest, within)


async def finish(load: Load) -> None:
    """Let the callers send again what is open, and answer what waits, before they stop."""
    await until(lambda: not (load.again or load.cut), REST_WITHIN)
    async with load.paused():
        pass
