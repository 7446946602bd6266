"""One message sent many times at once: one task, and the same answer for everyone.

Sent again after a crash, and through another process of the same store, it is still that task.
"""

import asyncio
import contextlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from proof.client import ConnectionGone, Frame, RpcConnection, message
from proof.crash.callers import at_rest
from proof.crash.checker import History, check, fold
from proof.results import Json, Progress, Result, Row, bound, silent, workplace
from proof.servers import Replicas, make_replicas


class IdempotencyResult(Result, kw_only=True):
    """What became of messages that were sent many times."""

    proof: str = "idempotency"
    processes: int
    # At once, for each message; and in all rounds together.
    sends: int
    answers: int
    messages: int
    # Tasks in the file: one for each message is what is promised.
    tasks: int
    # Answers that name another task, or that differ from the first answer of their round.
    differing: int
    differing_after_restart: int
    doubled: int

    def rows(self) -> list[Row]:
        """Return the promises."""
        return [
            Row(
                f"One message sent {self.sends} times at once",
                f"{self.tasks} tasks for {self.messages} messages",
                self.tasks == self.messages and not self.doubled,
                self.bound,
            ),
            Row(
                "Answers that differ",
                f"{self.differing} of {self.answers:,}",
                not self.differing,
                self.bound,
            ),
            Row(
                "Answers that differ after a crash",
                f"{self.differing_after_restart}",
                not self.differing_after_restart,
            ),
        ]


class _Rounds:
    """Sends messages many times over and counts what differs."""

    def __init__(self, replicas: Replicas, sends: int) -> None:
        self._replicas = replicas
        self._sends = sends
        self.history = History()
        self.answers = 0
        self.differing = 0
        self.findings: list[str] = []

    async def send(self, method: str, params: Json, *, expected: Json | None = None) -> Json:
        """Send one message many times at once; return the task everybody is to have seen."""
        many = await asyncio.gather(*(self._once(method, params) for _ in range(self._sends)))
        first = expected or many[0]
        for task in many:
            self.answers += 1
            if task != first:
                self.differing += 1
                what = "task" if task["id"] != first["id"] else "answer"
                self.findings.append(f"{params['message']['messageId']}: another {what}")
        return first

    async def begin_and_crash(self, params: Json) -> None:
        """Send one message many times at once and kill every server in the middle of it."""
        sending = [
            asyncio.ensure_future(self._once("SendMessage", params, patiently=False))
            for _ in range(self._sends)
        ]
        # Some are answered and some are not: that is the point.
        await asyncio.wait(sending, timeout=5.0, return_when=asyncio.FIRST_COMPLETED)
        self._replicas.kill_all()
        await asyncio.gather(*sending, return_exceptions=True)
        await restart(self._replicas)

    async def _once(self, method: str, params: Json, *, patiently: bool = True) -> Json:
        sent = self.history.invoke(method, params)
        while True:
            connection = RpcConnection(await self._replicas.port())
            try:
                if method == "SendMessage":
                    task: Json = (await connection.call(method, params))["task"]
                else:
                    task = await self._followed(connection, method, params)
            except ConnectionGone:
                if not patiently:
                    raise
                continue
            finally:
                connection.close()
            self.history.ack(sent, task)
            return task

    async def _followed(self, connection: RpcConnection, method: str, params: Json) -> Json:
        frames: list[Frame] = []
        async with contextlib.aclosing(connection.stream(method, params)) as stream:
            async for frame in stream:
                frames.append(frame)
        first, *events = frames
        task: Json = first.value["task"]
        self.history.saw_frames(task["id"], frames)
        return _comparable(fold(task, (event.value for event in events)))


def _comparable(task: Json) -> Json:
    """Return a task without what is only there if it is not empty."""
    return {name: value for name, value in task.items() if value != []}


async def restart(replicas: Replicas) -> None:
    """Kill every server and start it again."""
    replicas.kill_all()
    for server in replicas.servers:
        await replicas.start(server)


async def prove(
    sends: int,
    seed: int,
    *,
    folder: Path,
    processes: int = 2,
    environment: Mapping[str, str] | None = None,
    progress: Progress = silent,
) -> IdempotencyResult:
    """Run the proof in a folder, on servers with some settings of their own."""
    began = time.monotonic()
    kinds: Sequence[tuple[str, Json]] = (
        ("SendMessage", message("echo", "at once", f"{seed}-short")),
        ("SendMessage", message("steps", "5 40", f"{seed}-long")),
        ("SendMessage", message("ask", "what", f"{seed}-question")),
        ("SendStreamingMessage", message("mixed", "20 10", f"{seed}-stream")),
    )
    async with make_replicas(folder / "tasks.db", processes, environment) as replicas:
        rounds = _Rounds(replicas, sends)
        tasks: list[Json] = []
        for method, params in kinds:
            progress(f"{sends} times {params['message']['messageId']}")
            tasks.append(await rounds.send(method, params))
        before = rounds.differing
        await restart(replicas)
        for (method, params), task in zip(kinds, tasks, strict=True):
            progress(f"after a crash, {sends} times {params['message']['messageId']}")
            await rounds.send(method, params, expected=task)
        killed = message("steps", "6 50", f"{seed}-killed")
        progress(f"a crash in the middle of {sends} times {killed['message']['messageId']}")
        await rounds.begin_and_crash(killed)
        await rounds.send("SendMessage", killed)
        await at_rest(replicas.store)
        verdict = check(rounds.history, replicas.store)
    problems = verdict.lost + verdict.hanging + verdict.changed + verdict.gaps + verdict.torn
    return IdempotencyResult(
        seed=seed,
        seconds=round(time.monotonic() - began, 1),
        bound=bound(rounds.answers),
        processes=processes,
        sends=sends,
        answers=rounds.answers,
        messages=len(rounds.history.sent),
        tasks=verdict.tasks,
        differing=before + problems,
        differing_after_restart=rounds.differing - before,
        doubled=verdict.doubled,
        findings=[*rounds.findings[:10], *verdict.findings],
    )


def run(
    sends: int = 100, seed: int = 1, *, processes: int = 2, progress: Progress = silent
) -> IdempotencyResult:
    """Send messages many times at once and check that each is one task."""
    with workplace() as folder:
        return asyncio.run(
            prove(sends, seed, folder=folder, processes=processes, progress=progress)
        )
