"""Workers frozen past their lease: others take their tasks over, and what they try to write when
they are thawed is refused.

The agent under test, which is in this file too, notes outside of the store whatever it tries to
say and in which process. The logs then tell who was heard.
"""

import asyncio
import contextlib
import os
import random
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import apsw

from dragoman import Agent, Turn
from proof.client import RpcConnection, message
from proof.crash.callers import at_rest
from proof.crash.checker import History, Stored, check, reading
from proof.results import Progress, Result, Row, Spread, bound, silent, spread, until, workplace
from proof.servers import Replicas, Server

PROCESSES = 3
LEASE = 1.0
# Seconds beyond a lease within which another process has to have a frozen one's tasks.
GRACE = 5.0
# Leases that a process is frozen for, at least.
FROZEN_FOR = 3
BATCH = 6
_CHUNKS = (40, 120)
_PAUSES_MS = (15, 40)
# Seconds a process works on its tasks before it is frozen.
_AT_WORK = (0.05, 0.5)
_TRIES_WITHIN = 3.0
# Of a lease, after which a lock that is still held is held by the frozen process.
_LOCK_WITHIN = 0.3
_TOLD = 10
_NOTES = "PROOF_NOTES"
_MARK = re.compile(rb"~(\d+)\.(\d+)\.(\d+)~")
_ATTEMPT = re.compile(rb'\{"attemptStarted":\{"attempt":(\d+)')
_UNFINISHED = (1, 2)

agent = Agent("Proof", "Is frozen while it works.")


@agent.skill(tags=["proof"], default=True)
async def work(text: str, turn: Turn) -> None:
    """Say chunk after chunk, each noted before it is tried: `COUNT MILLISECONDS`."""
    count, pause = (int(word) for word in text.split()[:2])
    notes = os.open(os.environ[_NOTES], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        async with turn.artifact(name="work") as writer:
            for n in range(count):
                mark = f"{os.getpid()} {turn.attempt} {n}"
                os.write(notes, f"{turn.task_id} {mark} {time.monotonic_ns()}\n".encode())
                await writer.write(f"~{mark.replace(' ', '.')}~")
                await asyncio.sleep(pause / 1000)
    finally:
        os.close(notes)


class FencingResult(Result, kw_only=True):
    """What became of the writes of frozen workers."""

    proof: str = "fencing"
    processes: int
    lease: float
    pauses: int
    # Chunks that thawed workers tried to write to tasks that others had, and those in a log.
    tried: int
    accepted: int
    takeovers: int
    # From the freeze on; a lease may have been renewed a third of it before.
    takeover_ms: Spread
    # Rows whose fence fell, or whose holder changed while it did not rise.
    unfenced: int
    tasks: int
    lost: int
    hanging: int
    changed: int
    gaps: int
    # Further freezes, in the middle of a commit: no worker can take over what cannot be written to,
    # so that these are only held to what is checked in the end.
    in_commit: int

    def rows(self) -> list[Row]:
        """Return the promises."""
        times = self.takeover_ms
        limit = (self.lease + GRACE) * 1000
        broken = self.lost + self.hanging + self.changed + self.gaps
        return [
            Row(
                "Writes of workers that were frozen past their lease",
                f"{self.accepted} accepted of {self.tried:,} tried, {self.pauses} pauses",
                not self.accepted and self.tried > 0,
                self.bound,
            ),
            Row(
                f"Tasks of a frozen worker are taken over within {limit / 1000:g} s",
                f"p50 {times.p50:.0f} ms, max {times.max:.0f} ms ({self.takeovers:,} seen)",
                self.takeovers > 0 and times.max <= limit,
            ),
            Row(
                "Takeovers that did not raise the fence",
                f"{self.unfenced} of {self.takeovers:,}",
                not self.unfenced,
                bound(self.takeovers),
            ),
            Row(
                "Tasks lost, hanging, changed after their end or with gaps",
                f"{broken} of {self.tasks:,}",
                not broken,
                bound(self.tasks),
            ),
        ]


class Note(NamedTuple):
    """Something the agent tried to say."""

    task_id: str
    pid: int
    attempt: int
    n: int
    at: int


class _Held(NamedTuple):
    """A task's row."""

    fence: int
    holder: int
    is_finished: bool


class Freezer:
    """Freezes one server after another and counts what comes of it."""

    def __init__(self, replicas: Replicas, seed: int, notes: Path, lease: float) -> None:
        self._replicas = replicas
        self._seed = seed
        self._notes = notes
        self._lease = lease
        self._chance = random.Random(seed)
        self._count = 0
        self._rows: dict[str, _Held] = {}
        self.history = History()
        self.pauses = 0
        self.in_commit = 0
        self.tried = 0
        self.takeovers: list[float] = []
        self.unfenced = 0
        self.findings: list[str] = []

    def note(self, fact: str) -> None:
        """Keep the facts of a violation, if they are among the first."""
        if len(self.findings) < _TOLD:
            self.findings.append(fact)

    async def pause(self) -> None:
        """Freeze a server at work until others have its tasks, and see what it does when thawed."""
        victim = self._chance.choice(self._replicas.servers)
        for server in self._replicas.servers:
            await self._begin(server, BATCH if server is victim else 1)
        await asyncio.sleep(self._chance.uniform(*_AT_WORK))
        pid = victim.pid
        victim.freeze()
        frozen_at = time.monotonic()
        try:
            if await self._is_in_commit():
                self.in_commit += 1
                await asyncio.sleep(FROZEN_FOR * self._lease)
                return
            attempts = self._attempts(pid)
            held = self._held_by(pid)
            if not held:
                return
            taken = await self._watch(held, frozen_at)
            rest = frozen_at + FROZEN_FOR * self._lease - time.monotonic()
            await asyncio.sleep(max(0.0, rest))
            self._look()
        finally:
            thawed_at = time.monotonic_ns()
            victim.thaw()
        self.pauses += 1

        def stale() -> list[Note]:
            return [
                note
                for note in self._read_notes()
                if note.pid == pid
                and note.at > thawed_at
                and note.task_id in taken
                and note.attempt <= attempts.get(note.task_id, 1)
            ]

        await until(lambda: {note.task_id for note in stale()} >= taken, _TRIES_WITHIN)
        self._look()
        self.tried += len(stale())

    async def _begin(self, server: Server, count: int) -> None:
        connection = RpcConnection(server.port)
        try:
            for _ in range(count):
                self._count += 1
                chunks = self._chance.randint(*_CHUNKS)
                text = f"{chunks} {self._chance.randint(*_PAUSES_MS)}"
                said = message("work", text, f"{self._seed}-{self._count}", immediately=True)
                sent = self.history.invoke("SendMessage", said)
                self.history.ack(sent, (await connection.call("SendMessage", said))["task"])
        finally:
            connection.close()

    async def _is_in_commit(self) -> bool:
        """Tell whether the frozen process holds the lock of the file."""

        def is_free() -> bool:
            connection = apsw.Connection(str(self._replicas.store))
            try:
                # apsw's own types say too little for a strict checker.
                execute = cast("Any", connection).execute
                execute("BEGIN IMMEDIATE")
                execute("ROLLBACK")
            except apsw.BusyError:
                return False
            finally:
                connection.close()
            return True

        return not await until(is_free, _LOCK_WITHIN * self._lease)

    def _attempts(self, pid: int) -> dict[str, int]:
        """Return which attempt of each task a process was at."""
        return {note.task_id: note.attempt for note in self._read_notes() if note.pid == pid}

    def _held_by(self, pid: int) -> set[str]:
        """Return the unfinished tasks that a process works on, as far as it said anything."""
        rows = self._look()
        # Not simply the last to speak for a task: one that lost it speaks on until it finds out.
        speakers = {(note.task_id, note.attempt): note.pid for note in self._read_notes()}
        with reading(self._replicas.store) as file:
            attempts = {task.id: _attempt(task) for task in file.tasks()}
        return {
            id
            for id, row in rows.items()
            if not row.is_finished and speakers.get((id, attempts[id])) == pid
        }

    async def _watch(self, held: set[str], frozen_at: float) -> set[str]:
        """Wait until others have a frozen process's tasks; return which they took over."""
        before = {id: self._rows[id].fence for id in held}
        taken: set[str] = set()

        def are_taken() -> bool:
            rows = self._look()
            for id in held - taken:
                if rows[id].fence > before[id]:
                    taken.add(id)
                    self.takeovers.append((time.monotonic() - frozen_at) * 1000)
            # One whose last write was on its way may have ended.
            return all(id in taken or rows[id].is_finished for id in held)

        if not await until(are_taken, 2 * (self._lease + GRACE)):
            for id in held - taken:
                self.takeovers.append((time.monotonic() - frozen_at) * 1000)
                self.note(f"task {id} was not taken over")
        return taken

    def _look(self) -> dict[str, _Held]:
        """Read all rows, and hold their fences against those of the last look."""
        with reading(self._replicas.store) as file:
            rows = {
                id: _Held(fence, holder, state not in _UNFINISHED)
                for id, fence, holder, state in file.rows(
                    "SELECT id, fence, holder, state FROM tasks"
                )
            }
        for id, row in rows.items():
            before = self._rows.get(id, row)
            if row.fence < before.fence or (
                row.holder != before.holder and row.fence == before.fence
            ):
                self.unfenced += 1
                self.note(f"task {id} went from {before} to {row}")
        self._rows = rows
        return rows

    def _read_notes(self) -> list[Note]:
        notes: list[Note] = []
        with contextlib.suppress(FileNotFoundError):
            for line in self._notes.read_text().splitlines():
                task_id, *numbers = line.split()
                notes.append(Note(task_id, *map(int, numbers)))
        return notes


def _attempt(task: Stored) -> int:
    """Return at which attempt a task is, by its log."""
    begun = [int(found[1]) for body in task.events if (found := _ATTEMPT.match(body))]
    return begun[-1] if begun else 1


def accepted(task: Stored) -> list[str]:
    """Return what a log has of attempts that were over, or of two processes in one attempt."""
    found: list[str] = []
    attempt, author = 1, b""
    for seq, body in enumerate(task.events, 1):
        if begun := _ATTEMPT.match(body):
            attempt, author = int(begun[1]), b""
        for pid, of, n in _MARK.findall(body):
            author = author or pid
            if int(of) != attempt or pid != author:
                fact = f"task {task.id}: event {seq} is chunk {int(n)} of attempt {int(of)}"
                found.append(f"{fact}, in attempt {attempt}")
    return found


async def prove(
    pauses: int,
    seed: int,
    *,
    folder: Path,
    processes: int = PROCESSES,
    lease: float = LEASE,
    environment: Mapping[str, str] | None = None,
    progress: Progress = silent,
) -> FencingResult:
    """Run the proof in a folder, on servers with some settings of their own."""
    began = time.monotonic()
    notes = folder / "notes"
    settings = {
        "DRAGOMAN_LEASE": f"{lease:g}",
        # Being frozen often is not the code's fault.
        "DRAGOMAN_MAX_ATTEMPTS": "1000",
        _NOTES: str(notes),
        **(environment or {}),
    }
    names = [f"server-{n}" for n in range(processes)]
    servers: Sequence[Server] = [
        Server(folder / "tasks.db", agent=Path(__file__), name=name, environment=settings)
        for name in names
    ]
    async with Replicas(servers) as replicas:
        freezer = Freezer(replicas, seed, notes, lease)
        while freezer.pauses < pauses:
            await freezer.pause()
            progress(
                f"pause {freezer.pauses}/{pauses}, {len(freezer.takeovers)} takeovers, "
                f"{freezer.tried} stale writes tried, {len(freezer.findings)} findings"
            )
        await at_rest(replicas.store)
        verdict = check(freezer.history, replicas.store)
        with reading(replicas.store) as file:
            stale = [fact for task in file.tasks() for fact in accepted(task)]
    return FencingResult(
        seed=seed,
        seconds=round(time.monotonic() - began, 1),
        bound=bound(freezer.tried),
        processes=processes,
        lease=lease,
        pauses=freezer.pauses,
        tried=freezer.tried,
        accepted=len(stale),
        takeovers=len(freezer.takeovers),
        takeover_ms=spread(freezer.takeovers),
        unfenced=freezer.unfenced,
        tasks=verdict.tasks,
        lost=verdict.lost + verdict.doubled,
        hanging=verdict.hanging,
        changed=verdict.changed,
        gaps=verdict.gaps,
        in_commit=freezer.in_commit,
        findings=[*stale[:_TOLD], *freezer.findings, *verdict.findings],
    )


def run(pauses: int = 20, seed: int = 1, *, progress: Progress = silent) -> FencingResult:
    """Freeze workers past their lease and check that nothing they try afterwards is accepted."""
    with workplace() as folder:
        return asyncio.run(prove(pauses, seed, folder=folder, progress=progress))
