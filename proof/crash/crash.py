"""`kill -9` under load: what was acknowledged is there, comes to an end, and is there once.

Clients send, stream, cancel, repeat and answer without pause while servers are killed and started
again on the same file. A request whose outcome is not known is sent again as it was.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Mapping
from pathlib import Path

import msgspec

from proof.client import CallRefused, ConnectionGone, RpcConnection
from proof.crash.callers import CALLERS, PAUSE, Caller, Load, at_rest, finish
from proof.crash.checker import (
    RESTING,
    History,
    Verdict,
    check,
    check_logs,
    differs,
    fold,
    reading,
)
from proof.results import Json, Progress, Result, Row, Spread, bound, silent, spread, workplace
from proof.servers import Replicas, make_replicas

# Seconds a server lives before it is killed.
LIVES = (0.05, 1.5)
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


async def first_resumed(port: int, candidates: list[str], since: float) -> float | None:
    """Return how long after a moment some task of a dead process goes on, in milliseconds.

    None if there was none to go on with, or the server asked did not live to see it."""
    waiting = candidates[-_WATCHED:]
    connection = RpcConnection(port)
    deadline = time.monotonic() + _WATCH_FOR
    try:
        while waiting and time.monotonic() < deadline:
            for task_id in list(waiting):
                task = await connection.call("GetTask", {"id": task_id})
                if _goes_on(task):
                    return max(0.0, time.monotonic() - since) * 1000
                if task["status"]["state"] in RESTING:
                    waiting.remove(task_id)
            await asyncio.sleep(0.002)
        return _WATCH_FOR * 1000 if waiting else None
    except (ConnectionGone, CallRefused):
        return None
    finally:
        connection.close()


def _goes_on(task: Json) -> bool:
    """Whether an attempt after the first has said something."""
    texts = [part.get("text", "") for a in task.get("artifacts", []) for part in a["parts"]]
    return any(text[:1].isdigit() and not text.startswith("1.") for text in texts)


async def through_the_api(
    replicas: Replicas, history: History, verdict: Verdict, chance: random.Random
) -> None:
    """Hold what the API says of every task to what its clients were told before."""
    connection = RpcConnection(await replicas.port())
    listed: dict[str, str] = {}
    token = ""
    try:
        while True:
            page = await connection.call("ListTasks", {"pageSize": _PAGE, "pageToken": token})
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
        with reading(replicas.store) as file:
            logs = {task.id: task.events for task in file.tasks() if task.id in sample}
        for task_id, log in logs.items():
            task = await connection.call("GetTask", {"id": task_id})
            first, *events = [msgspec.json.decode(body) for body in log]
            if problem := differs(fold(first["task"], events), task):
                verdict.add("torn", f"task {task_id} is not the fold of its log: {problem}")
    finally:
        connection.close()


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
        make_replicas(folder / "tasks.db", processes, environment) as replicas,
        asyncio.TaskGroup() as group,
    ):
        load = Load(replicas, seed, pause)
        callers = [group.create_task(Caller(load, n).run()) for n in range(CALLERS)]
        try:
            for kill in range(1, kills + 1):
                await asyncio.sleep(chance.uniform(*LIVES))
                victims = [chance.choice(replicas.servers)]
                if chance.random() < 0.2:
                    victims = list(replicas.servers)
                fresh, load.fresh = load.fresh, []
                for server in victims:
                    server.kill()
                if up := [server for server in replicas.servers if server.is_up]:
                    # A server that is left takes over, and need not wait for a restart.
                    watch = first_resumed(up[0].port, fresh, time.monotonic())
                    group.create_task(_note(watch, taken_over))
                for server in victims:
                    await replicas.start(server)
                    starting.append(server.starting * 1000)
                    if not up and server is victims[0]:
                        watch = first_resumed(server.port, fresh, server.ready_at)
                        group.create_task(_note(watch, resumed))
                if kill % every == 0:
                    async with load.paused():
                        await at_rest(replicas.store)
                        found, checked = await asyncio.to_thread(
                            check_logs, replicas.store, checked
                        )
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
        await at_rest(replicas.store)
        progress("comparing what clients were told with what is stored")
        verdict = await asyncio.to_thread(check, load.history, replicas.store)
        await through_the_api(replicas, load.history, verdict, chance)
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
