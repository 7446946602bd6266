"""Streams that are cut at random and gone on with by cursor, over restarts and processes.

Every reader holds the last position it saw and nothing else. In the end the log says what it
should have seen, and the task it was told of at first, folded with its events, has to be the task
that `GetTask` returns.
"""

import asyncio
import contextlib
import random
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from proof.client import CallRefused, ConnectionGone, Frame, RpcConnection, message
from proof.crash.callers import REST_WITHIN, at_rest, rests
from proof.crash.checker import differs, fold, is_public, reading, torn
from proof.grpc_client import GrpcConnection
from proof.results import Json, Progress, Result, Row, bound, silent, until, workplace
from proof.servers import Replicas, make_replicas

READERS = 16
# So many cuts for each kill.
CUTS_PER_KILL = 60
_LIVES = (0.3, 1.5)
# How readers speak with servers.
CONNECTIONS = {"jsonrpc": RpcConnection, "grpc": GrpcConnection}


class ResumeResult(Result, kw_only=True):
    """What readers saw of the streams they came back to."""

    proof: str = "resume"
    transport: str
    processes: int
    disconnects: int
    kills: int
    tasks: int
    events: int
    # Events no reader was shown, or was shown again.
    missing: int
    doubled: int
    # Streams that are no range of their log, and first tasks or folds that differ.
    torn: int
    differing: int

    def rows(self) -> list[Row]:
        """Return the promises."""
        cuts = f"in {self.disconnects:,} disconnects, {self.kills} kills, {self.events:,} events"
        over = "" if self.transport == "jsonrpc" else " over gRPC"
        return [
            Row(
                f"Events missed after a reconnect{over}",
                f"{self.missing} {cuts}",
                not self.missing,
                self.bound,
            ),
            Row(
                f"Events seen twice after a reconnect{over}",
                f"{self.doubled} {cuts}",
                not self.doubled,
                self.bound,
            ),
            Row(
                f"Streams{over} that are not a range of their log",
                f"{self.torn} of {self.tasks:,} tasks",
                not self.torn,
                self.bound,
            ),
            Row(
                f"Tasks that differ from what their stream{over} adds up to",
                f"{self.differing} of {self.tasks:,} tasks",
                not self.differing,
                self.bound,
            ),
        ]


class Stretch:
    """What one reader saw since it began without a position."""

    def __init__(self, opening: Frame) -> None:
        self.opening = opening
        self.task: Json = opening.value["task"]
        self.task_id: str = self.task["id"]
        self.seen: list[Frame] = []
        self.has_ended = False

    @property
    def position(self) -> int:
        """The last event it saw."""
        return (self.seen[-1] if self.seen else self.opening).seq or 0

    @property
    def folded(self) -> Json:
        """The task as this reader knows it."""
        return fold(self.task, (frame.value for frame in self.seen))


class Tally:
    """What all readers found so far."""

    def __init__(self, goal: int, transport: str) -> None:
        self.goal = goal
        self.connect = CONNECTIONS[transport]
        self.disconnects = 0
        self.kills = 0
        self.stretches: list[Stretch] = []
        self.torn = 0
        self.differing = 0
        self.findings: list[str] = []

    @property
    def is_enough(self) -> bool:
        """Whether enough was cut."""
        return self.disconnects >= self.goal

    def has_reached(self, disconnects: float) -> bool:
        """Whether so much was cut."""
        return self.disconnects >= disconnects

    def note(self, fact: str) -> None:
        """Keep the facts of a violation, if they are among the first."""
        if len(self.findings) < 20:
            self.findings.append(fact)


class Reader:
    """Follows one task after another and is cut off all the time."""

    def __init__(self, replicas: Replicas, tally: Tally, seed: int, number: int) -> None:
        self._replicas = replicas
        self._tally = tally
        self._seed = seed
        self._number = number
        self._chance = random.Random(f"{seed}/{number}")
        self._count = 0

    async def run(self) -> None:
        """Follow tasks until enough was cut."""
        while not self._tally.is_enough:
            await self._follow_one()

    async def _follow_one(self) -> None:
        """Follow a task to its end, over as many connections as it takes."""
        chance = self._chance
        self._count += 1
        text = f"{chance.randint(5, 60)} {chance.randint(0, 12)}"
        said = message("mixed", text, f"{self._seed}-{self._number}-{self._count}")
        stretch: Stretch | None = None
        deadline = time.monotonic() + 2 * REST_WITHIN
        while time.monotonic() < deadline:
            fresh = stretch is None or chance.random() < 0.1
            after = None if stretch is None or fresh else stretch.position
            method, params = "SubscribeToTask", {"id": stretch.task_id if stretch else ""}
            if stretch is None or (not fresh and chance.random() < 0.2):
                # The same message with a position attaches to its task just the same.
                method, params = "SendStreamingMessage", said
            try:
                stretch = await self._read(method, params, after, stretch)
            except ConnectionGone:
                self._tally.disconnects += 1
            except CallRefused:
                # Without a position there is nothing to follow once a task has ended.
                if not fresh:
                    raise
            if stretch is not None and stretch.has_ended:
                await self._compare(stretch)
                return
            if chance.random() < 0.5:
                # Mostly short, sometimes until the task is over.
                await asyncio.sleep(chance.choice([0.01, 0.1, 0.1, 0.8]) * chance.random())
        self._tally.note(f"task of {said['message']['messageId']} did not end")
        self._tally.torn += 1

    async def _read(
        self, method: str, params: Json, after: int | None, stretch: Stretch | None
    ) -> Stretch | None:
        """Read until the stream ends or the cut comes."""
        connection = self._tally.connect(await self._replicas.port())
        cut = self._chance.choice([0, 1, 2, 5, 10, 20, 40, 80])
        count = 0
        async with contextlib.aclosing(connection.stream(method, params, after=after)) as frames:
            async for frame in frames:
                if count == 0:
                    stretch = self._opened(frame, after, stretch)
                else:
                    assert stretch is not None, "the first frame is the task"
                    stretch.seen.append(frame)
                    stretch.has_ended = rests(frame)
                if count == cut and not (stretch and stretch.has_ended):
                    self._tally.disconnects += 1
                    return stretch
                count += 1
        return stretch

    def _opened(self, frame: Frame, after: int | None, stretch: Stretch | None) -> Stretch:
        """Take the first frame: where a reader comes back, it is the task as it knew it."""
        if after is None or stretch is None:
            stretch = Stretch(frame)
            self._tally.stretches.append(stretch)
            stretch.has_ended = rests(frame)
            return stretch
        if frame.seq != after:
            self._tally.torn += 1
            self._tally.note(f"{stretch.task_id}: asked for after {after}, got {frame.seq}")
        elif problem := differs(stretch.folded, frame.value["task"]):
            self._tally.differing += 1
            self._tally.note(f"{stretch.task_id}: first task at {after}: {problem}")
        # A task that has ended is not followed any further, whatever the reader has not seen.
        stretch.has_ended = rests(frame)
        return stretch

    async def _compare(self, stretch: Stretch) -> None:
        """Hold what the stream adds up to against the task."""
        while True:
            connection = self._tally.connect(await self._replicas.port())
            try:
                task: Any = await connection.call("GetTask", {"id": stretch.task_id})
                break
            except ConnectionGone:
                continue
            finally:
                connection.close()
        if problem := differs(stretch.folded, task):
            self._tally.differing += 1
            self._tally.note(f"{stretch.task_id}: fold and task: {problem}")


async def _kill_now_and_then(replicas: Replicas, tally: Tally, chance: random.Random) -> None:
    goal = max(1, tally.goal // CUTS_PER_KILL)
    while tally.kills < goal and not tally.is_enough:
        due = tally.goal * (tally.kills + 1) / (goal + 1)
        await until(partial(tally.has_reached, due), 4 * REST_WITHIN)
        server = chance.choice(replicas.servers)
        server.kill()
        tally.kills += 1
        await asyncio.sleep(chance.uniform(0, 0.2))
        await replicas.start(server)
        await asyncio.sleep(chance.uniform(*_LIVES))


async def prove(
    disconnects: int,
    seed: int,
    *,
    folder: Path,
    processes: int = 2,
    transport: str = "jsonrpc",
    environment: Mapping[str, str] | None = None,
    progress: Progress = silent,
) -> ResumeResult:
    """Run the proof in a folder, on servers with some settings of their own."""
    began = time.monotonic()
    tally = Tally(disconnects, transport)
    async with make_replicas(folder / "tasks.db", processes, environment) as replicas:
        async with asyncio.TaskGroup() as group:
            for number in range(READERS):
                group.create_task(Reader(replicas, tally, seed, number).run())
            killing = group.create_task(_kill_now_and_then(replicas, tally, random.Random(seed)))
            while not tally.is_enough:
                progress(
                    f"{tally.disconnects:,} of {disconnects:,} disconnects, {tally.kills} kills, "
                    f"{len(tally.findings)} findings"
                )
                await asyncio.sleep(0.2)
            await killing
        await at_rest(replicas.store)
        progress("comparing what readers saw with the logs")
        missing, doubled, events = _compare_with_logs(replicas.store, tally)
    return ResumeResult(
        proof="resume" if transport == "jsonrpc" else f"resume-{transport}",
        seed=seed,
        transport=transport,
        seconds=round(time.monotonic() - began, 1),
        bound=bound(tally.disconnects),
        processes=processes,
        disconnects=tally.disconnects,
        kills=tally.kills,
        tasks=len({stretch.task_id for stretch in tally.stretches}),
        events=events,
        missing=missing,
        doubled=doubled,
        torn=tally.torn,
        differing=tally.differing,
        findings=tally.findings,
    )


def _compare_with_logs(store: Path, tally: Tally) -> tuple[int, int, int]:
    """Return how many events were missed, seen twice, and seen at all."""
    missing = doubled = total = 0
    with reading(store) as file:
        logs = {task.id: task.events for task in file.tasks()}
    for stretch in tally.stretches:
        log = logs.get(stretch.task_id, [])
        seen = [frame.seq or 0 for frame in stretch.seen]
        first = stretch.opening.seq or 0
        last = len(log) if stretch.has_ended else stretch.position
        expected = {seq for seq in range(first + 1, last + 1) if is_public(log[seq - 1])}
        if lacking := expected - set(seen):
            missing += len(lacking)
            tally.note(f"{stretch.task_id}: never saw {sorted(lacking)[:5]}")
        if again := len(seen) - len(set(seen)):
            doubled += again
            tally.note(f"{stretch.task_id}: saw {again} events again")
        elif problem := torn([stretch.opening, *stretch.seen], log):
            tally.torn += 1
            tally.note(f"{stretch.task_id}: {problem}")
        total += len(seen)
    return missing, doubled, total


def run(
    disconnects: int = 5000,
    seed: int = 1,
    *,
    processes: int = 2,
    transport: str = "jsonrpc",
    progress: Progress = silent,
) -> ResumeResult:
    """Cut streams at random and check that nothing was missed."""
    with workplace() as folder:
        return asyncio.run(
            prove(
                disconnects,
                seed,
                folder=folder,
                processes=processes,
                transport=transport,
                progress=progress,
            )
        )
