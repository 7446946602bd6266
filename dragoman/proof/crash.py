"""`kill -9` under load: what was acknowledged is there, comes to an end, and is there once.

Clients send, stream, cancel, repeat and answer without pause while servers are killed and started
again on the same file. A request whose outcome is not known is sent again as it was.
"""

import asyncio
import contextlib
import random
import time
from collections import Counter, deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from dragoman.proof.checker import (
    RESTING,
    History,
    Sent,
    Verdict,
    check,
    check_logs,
    differs,
    fold,
    reading,
)
from dragoman.proof.harness import (
    Busy,
    Frame,
    Gone,
    House,
    Json,
    Line,
    Progress,
    Refused,
    Result,
    Row,
    Spread,
    bound,
    make_house,
    message,
    silent,
    spread,
    until,
    workplace,
)

CALLERS = 20
# Seconds a server lives before it is killed.
LIVES = (0.05, 1.5)
# Seconds a caller thinks between two requests, at most.
PAUSE = 0.08
# Everything acknowledged has to rest by then, once nobody sends any more.
REST_WITHIN = 45.0
RESUMED_WITHIN_MS = 1000.0
# A lease and five seconds: a process that is dead is noticed far sooner than one that is frozen.
TAKEN_OVER_WITHIN_MS = 35_000.0
_WATCHED = 6
_WATCH_FOR = 40.0
_SAMPLE = 1000
_PAGE = 100


class CrashResult(Result, kw_only=True):
    """What became of acknowledged messages."""

    proof: str = "crash"
    processes: int
    kills: int
    # Tasks of which some sender read a success, the messages that led to them, the tasks stored.
    acked: int
    messages: int
    tasks: int
    lost: int
    hanging: int
    changed: int
    doubled: int
    # Logs with a hole, streams that are no contiguous range of their log, folds that differ.
    gaps: int
    torn: int
    # Durable steps that were taken again although they were recorded.
    repeated: int
    # The slowest first sign of life of a task that was unfinished at a kill, after `Ready`.
    resumed_ms: float
    resumed: Spread
    # The same after the kill, where another process was there to take over.
    taken_over: Spread
    starting: Spread
    unknown: int
    refused: dict[str, int]
    bound_per_kill: float | None = None

    def rows(self) -> list[Row]:
        """Return the promises."""
        of = f"of {self.acked:,} acknowledged, {self.kills:,} kills"
        seen = self.resumed.count + self.taken_over.count
        return [
            *(
                Row(promise, f"{count} {of}", not count, self.bound)
                for promise, count in (
                    ("Tasks lost when the server is killed", self.lost),
                    ("Tasks left hanging", self.hanging),
                    ("Ended tasks that changed", self.changed),
                    ("Messages recorded twice", self.doubled),
                    ("Recorded steps taken again", self.repeated),
                )
            ),
            Row(
                "Logs with gaps, streams that differ from their log",
                f"{self.gaps} and {self.torn} of {self.tasks:,} tasks",
                not self.gaps + self.torn,
                bound(self.tasks),
            ),
            Row(
                "First resumed task after the restarted server is ready",
                _times(self.resumed),
                # Servers that never live to resume anything show nothing either.
                self.resumed.max <= RESUMED_WITHIN_MS and (seen > 0 or self.kills < _WATCHED),
            ),
            *self._takeovers(),
        ]

    def _takeovers(self) -> list[Row]:
        if self.processes == 1:
            return []
        promise = "First resumed task after a kill, by another process"
        return [Row(promise, _times(self.taken_over), self.taken_over.max <= TAKEN_OVER_WITHIN_MS)]


def _times(times: Spread) -> str:
    shown = f"p50 {times.p50:.0f} ms, p99 {times.p99:.0f} ms, max {times.max:.0f} ms"
    return f"{shown} ({times.count} seen)"


class Load:
    """The callers and what they share."""

    def __init__(self, house: House, seed: int, pause: float) -> None:
        self.house = house
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
        except Busy:
            self.busy += 1
        except Gone:
            self.unknown += 1
        except Refused as error:
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
        self._line: Line | None = None
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
        if self._line is not None:
            self._line.close()
            self._line = None

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
        other = Line(await self._load.house.port())
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

    async def _connected(self) -> Line:
        if self._line is None:
            self._line = Line(await self._load.house.port())
        return self._line

    async def _call(self, method: str, params: Json) -> Any:
        line = await self._connected()
        try:
            return await line.call(method, params)
        except Gone:
            self._hang_up()
            raise

    async def _new(self, method: str, params: Json) -> Sent:
        sent = self._load.history.invoke(method, params)
        await self._send(sent)
        return sent

    async def _send(self, sent: Sent) -> None:
        line = await self._connected()
        try:
            await self._attempt(line, sent)
        except Gone:
            self._hang_up()
            if not sent.is_acked:
                self._load.again.append(sent)
            raise

    async def _attempt(self, line: Line, sent: Sent) -> None:
        if sent.method == "SendMessage":
            answer = await line.call(sent.method, sent.params)
            self._load.history.ack(sent, answer["task"])
            return
        await self._follow(line, sent.method, sent.params, sent=sent)

    async def _resume(self, task_id: str, after: int) -> None:
        line = await self._connected()
        try:
            await self._follow(line, "SubscribeToTask", {"id": task_id}, after=after)
        except Gone:
            self._hang_up()
            raise

    async def _follow(
        self,
        line: Line,
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
            async with contextlib.aclosing(line.stream(method, params, after=after)) as stream:
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
        except Gone:
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


async def first_resumed(port: int, candidates: list[str], since: float) -> float | None:
    """Return how long after a moment some task of a dead process goes on, in milliseconds.

    None if there was none to go on with, or the server asked did not live to see it."""
    waiting = candidates[-_WATCHED:]
    line = Line(port)
    deadline = time.monotonic() + _WATCH_FOR
    try:
        while waiting and time.monotonic() < deadline:
            for task_id in list(waiting):
                task = await line.call("GetTask", {"id": task_id})
                if _goes_on(task):
                    return max(0.0, time.monotonic() - since) * 1000
                if task["status"]["state"] in RESTING:
                    waiting.remove(task_id)
            await asyncio.sleep(0.002)
        return _WATCH_FOR * 1000 if waiting else None
    except (Gone, Refused):
        return None
    finally:
        line.close()


def _goes_on(task: Json) -> bool:
    """Whether an attempt after the first has said something."""
    texts = [part.get("text", "") for a in task.get("artifacts", []) for part in a["parts"]]
    return any(text[:1].isdigit() and not text.startswith("1.") for text in texts)


async def at_rest(path: Path, within: float = REST_WITHIN) -> bool:
    """Wait until every task rests."""

    def all_rest() -> bool:
        with reading(path) as file:
            return not file.unfinished()

    return await until(all_rest, within)


async def through_the_api(
    house: House, history: History, verdict: Verdict, chance: random.Random
) -> None:
    """Hold what the API says of every task to what its clients were told before."""
    line = Line(await house.port())
    listed: dict[str, str] = {}
    token = ""
    try:
        while True:
            page = await line.call("ListTasks", {"pageSize": _PAGE, "pageToken": token})
            listed |= {task["id"]: task["status"]["state"] for task in page["tasks"]}
            token = page.get("nextPageToken", "")
            if not token:
                break
        for task_id in history.acked:
            if task_id not in listed:
                verdict.add("lost", f"task {task_id} is not listed")
        for task_id, state in history.ends.items():
            if listed.get(task_id, state) != state:
                fact = f"task {task_id} was shown as {state}, is listed as {listed[task_id]}"
                verdict.add("changed", fact)
        sample = set(chance.sample(sorted(listed), min(_SAMPLE, len(listed))))
        with reading(house.store) as file:
            logs = {task.id: task.events for task in file.tasks() if task.id in sample}
        for task_id, log in logs.items():
            task = await line.call("GetTask", {"id": task_id})
            first, *events = [msgspec.json.decode(body) for body in log]
            if problem := differs(fold(first["task"], events), task):
                verdict.add("torn", f"task {task_id} is not the fold of its log: {problem}")
    finally:
        line.close()


async def prove(
    kills: int,
    seed: int,
    *,
    folder: Path,
    processes: int = 1,
    environment: Mapping[str, str] | None = None,
    progress: Progress = silent,
    pause: float = PAUSE,
    check_every: int | None = None,
) -> CrashResult:
    """Run the proof in a folder, on servers with some settings of their own."""
    began = time.monotonic()
    chance = random.Random(seed)
    resumed: list[float] = []
    taken_over: list[float] = []
    starting: list[float] = []
    early = Verdict()
    checked = 0
    every = check_every or max(10, kills // 40)
    async with (
        make_house(folder / "tasks.db", processes, environment) as house,
        asyncio.TaskGroup() as group,
    ):
        load = Load(house, seed, pause)
        callers = [group.create_task(Caller(load, n).run()) for n in range(CALLERS)]
        try:
            for kill in range(1, kills + 1):
                await asyncio.sleep(chance.uniform(*LIVES))
                victims = [chance.choice(house.servers)]
                if chance.random() < 0.2:
                    victims = list(house.servers)
                fresh, load.fresh = load.fresh, []
                for server in victims:
                    server.kill()
                if up := [server for server in house.servers if server.is_up]:
                    # Whoever is left takes over, and need not wait for anybody's restart.
                    watch = first_resumed(up[0].port, fresh, time.monotonic())
                    group.create_task(_note(watch, taken_over))
                for server in victims:
                    await house.start(server)
                    starting.append(server.starting * 1000)
                if not up:
                    watch = first_resumed(victims[0].port, fresh, victims[0].ready_at)
                    group.create_task(_note(watch, resumed))
                if kill % every == 0:
                    async with load.paused():
                        await at_rest(house.store)
                        found, checked = await asyncio.to_thread(check_logs, house.store, checked)
                        early.findings += found.findings
                progress(
                    f"kill {kill}/{kills}, {load.history.messages:,} acknowledged, "
                    f"{len(load.again)} to send again, {len(early.findings)} findings"
                )
            await finish(load)
        finally:
            for caller in callers:
                caller.cancel()
        progress("waiting for every task to rest")
        await at_rest(house.store)
        progress("comparing what clients were told with what is stored")
        verdict = await asyncio.to_thread(check, load.history, house.store)
        await through_the_api(house, load.history, verdict, chance)
    history = load.history
    acked = len(history.acked)
    verdict.torn += history.told.torn
    times = spread(resumed)
    return CrashResult(
        seed=seed,
        seconds=round(time.monotonic() - began, 1),
        bound=bound(acked),
        bound_per_kill=bound(kills),
        processes=processes,
        kills=kills,
        acked=acked,
        messages=history.messages,
        tasks=verdict.tasks,
        lost=verdict.lost,
        hanging=verdict.hanging,
        changed=verdict.changed,
        doubled=verdict.doubled,
        gaps=verdict.gaps,
        torn=verdict.torn,
        repeated=verdict.repeated,
        resumed_ms=times.max,
        resumed=times,
        taken_over=spread(taken_over),
        starting=spread(starting),
        unknown=load.unknown,
        refused=dict(load.refused.most_common(10)),
        findings=[*verdict.findings, *early.findings],
    )


async def _note(watch: Awaitable[float | None], times: list[float]) -> None:
    taken = await watch
    if taken is not None:
        times.append(taken)


async def finish(load: Load) -> None:
    """Let the callers send again what is open, and answer what waits, before they stop."""
    await until(lambda: not (load.again or load.cut), REST_WITHIN)
    async with load.paused():
        pass


def run(
    kills: int = 100,
    seed: int = 1,
    *,
    processes: int = 1,
    progress: Progress = silent,
    pause: float = PAUSE,
) -> CrashResult:
    """Kill servers under load and check everything that was promised."""
    with workplace() as folder:
        return asyncio.run(
            prove(kills, seed, folder=folder, processes=processes, progress=progress, pause=pause)
        )
