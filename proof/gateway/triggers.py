"""`kill -9` of gateways at every step of a trigger's run: each due time and each post begins one
task, whatever is killed in between.

Once with one process on a SQLite file, once with two on PostgreSQL. Each process is told at which
step it is to die, and another is begun in its place. For schedules a minute passes in half a
second, posts are sent again until they are answered, and triggers are edited meanwhile. The agent
that does the tasks is not hurt: what it was told is counted too.
"""

import asyncio
import contextlib
import random
import signal
import subprocess
import sys
import time
from base64 import b64encode
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from os import kill as send_signal
from pathlib import Path

import msgspec

from dragoman.errors import ConfigError
from dragoman.model.clock import stamp
from dragoman.testing import watchdog
from dragoman.testing.load import HOST
from dragoman.testing.processes import CannotStart, ServerProcess, clean_environment
from dragoman.testing.servers import PostgresServer, free_port
from proof.cluster.database import Database
from proof.crash.callers import at_rest
from proof.crash.checker import Stored, reading
from proof.gateway import agent as gateway_agent
from proof.gateway.mortal_gateway import SPEED, Life, Moment
from proof.gateway.site import ask
from proof.results import Json, Progress, Result, Row, Violations, bound, silent, workplace
from proof.servers import Server

# Steps of a run, by what is asked of store and engine, and how often it is asked before, at most.
STEPS: dict[str, tuple[str, Moment, int]] = {
    "before the duty is asked for": ("lead", "before", 3),
    "with the duty": ("lead", "after", 3),
    "before the look for what is due": ("due", "before", 3),
    "between the look and the tasks": ("due", "after", 3),
    "before a task": ("answer", "before", 4),
    "while a task is recorded": ("answer", "during", 4),
    "after a task, before the trigger has it": ("answer", "after", 4),
    "before the due time moves on": ("change", "before", 3),
    "while the due time moves on": ("change", "during", 3),
    "after the due time moved on": ("change", "after", 3),
    "at any time": ("", "before", 0),
}
_SCHEDULES = 3
_MINUTE = 60_000
# Seconds that a process lives which is killed at any time, and those between two posts and renames.
_LIVES = (0.05, 1.5)
_BETWEEN_POSTS, _BETWEEN_EDITS = (0.0, 0.15), (0.1, 0.6)
_AGAIN = 0.05
# Seconds in which a step has to be reached, and everything has to rest.
_DIES_WITHIN, _REST_WITHIN = 60.0, 120.0
_BEGUN = {"TASK_STATE_SUBMITTED", "TASK_STATE_WORKING", "TASK_STATE_COMPLETED"}


class TriggerCounts(Violations, kw_only=True):
    """What became of triggers on one store."""

    processes: int
    kills: dict[str, int] = msgspec.field(default_factory=dict[str, int])
    # Due times and posts that were to begin a task.
    due: int = 0
    posts: int = 0
    # Of both: those without a task, and tasks that are one too many.
    lost: int = 0
    doubled: int = 0
    # Tasks of a time that is none of a schedule, or of no post.
    foreign: int = 0
    # Tasks that the agent has twice, or that did not complete.
    repeated: int = 0
    unfinished: int = 0


class TriggersResult(Result, kw_only=True):
    """What became of due times and posts, by store."""

    proof: str = "triggers"
    stores: dict[str, TriggerCounts]

    def rows(self) -> list[Row]:
        """Return the promises."""
        rows: list[Row] = []
        for store, found in self.stores.items():
            kills, all_ = sum(found.kills.values()), found.due + found.posts
            of = f"of {found.due:,} due times and {found.posts:,} posts"
            hurt = f"{kills:,} kills at {len(found.kills)} steps"
            who = "one process" if found.processes == 1 else f"{found.processes} processes"
            late = f"{found.repeated} and {found.unfinished} of {all_:,}"
            more = found.doubled + found.foreign
            rows += [
                Row(
                    f"{store}, {who}: due times and posts without a task",
                    f"{found.lost} {of}, {hurt}",
                    not found.lost and all_ > 0,
                    bound(all_),
                ),
                Row(
                    f"{store}: more tasks than due times and posts",
                    f"{more} {of}",
                    not more,
                    bound(all_),
                ),
                Row(
                    f"{store}: tasks that an agent got twice, or that did not complete",
                    late,
                    not found.repeated + found.unfinished,
                    bound(all_),
                ),
            ]
        return rows


class MortalGateway:
    """One process of a gateway after the other, at one address."""

    def __init__(self, folder: Path, name: str, store: str, epoch: int) -> None:
        self.port = free_port()
        self._epoch = epoch
        self._words = ["gateway", "--listen", f"{HOST}:{self.port}", "--store", store]
        self._environment = clean_environment() | {
            "DRAGOMAN_ALLOW": HOST,
            "DRAGOMAN_LEASE": "2",
            "DRAGOMAN_MAX_ATTEMPTS": "1000",
            # Tasks that were under way in two kills would run one at a time, and others wait.
            "DRAGOMAN_SUSPECT_SECONDS": "0.05",
            # Processes share the key that seals secrets in their store.
            "DRAGOMAN_STORE_KEY": b64encode(random.Random(str(folder)).randbytes(32)).decode(),
            "XDG_DATA_HOME": str(folder),
        }
        command = [sys.executable, "-m", "proof.gateway.mortal_gateway"]
        self._process = ServerProcess(
            command, log=folder / f"{name}.log", stdin=subprocess.PIPE, cwd=Path.cwd()
        )
        self._pid = 0

    async def begin(self, asked: str = "", moment: Moment = "before", count: int = 1) -> None:
        """Begin a process that dies at a step, or nowhere; wait until it serves or is dead."""
        life = Life(
            words=self._words,
            environment=self._environment,
            epoch=self._epoch,
            asked=asked,
            moment=moment,
            count=count,
        )
        stdin = self._process.process.stdin
        assert stdin is not None
        stdin.write(msgspec.json.encode(life).decode() + "\n")
        stdin.flush()
        began = await asyncio.to_thread(self._process.line, "Began: ")
        self._pid = int(began.removeprefix("Began: "))
        watchdog.watch(self._pid)
        # A step may be reached before it serves.
        line = ""
        while not line.startswith(("Ready: ", "Ended: ")):
            line = await asyncio.to_thread(self._process.line)
        if line.startswith("Ended: "):
            self._ended(line)

    async def dead(self) -> None:
        """Wait until it is dead."""
        if self._pid:
            self._ended(await asyncio.to_thread(self._process.line, "Ended: ", _DIES_WITHIN))

    def _ended(self, line: str) -> None:
        self._pid = 0
        if line != f"Ended: {-signal.SIGKILL}":
            raise CannotStart(f"a gateway was not killed: {line}\n{self._process.log[-4000:]}")

    async def kill(self) -> None:
        """Kill it from outside."""
        if self._pid:
            with contextlib.suppress(ProcessLookupError):
                send_signal(self._pid, signal.SIGKILL)
            await self.dead()

    async def close(self) -> None:
        """End it all."""
        await self.kill()
        await asyncio.to_thread(self._process.stop)


class _Run:
    """One run on one store."""

    def __init__(self, folder: Path, seed: int, stores: Sequence[str]) -> None:
        """`stores` has the store once for each process."""
        self.epoch = time.time_ns() // 1_000_000
        self.chance = random.Random(seed)
        self.counts = TriggerCounts(processes=len(stores))
        # In a folder of its own, which its name seeds.
        self.gateways = [
            MortalGateway(folder, f"gateway-{n}", store, self.epoch)
            for n, store in enumerate(stores)
        ]
        self.agent = Server(folder / "agent.db", agent=Path(gateway_agent.__file__), name="agent")
        self.stopping = asyncio.Event()
        # By id: when a schedule was due first.
        self.schedules: dict[str, int] = {}
        self.webhook: Json = {}
        self.posts: dict[str, str] = {}

    def now(self) -> int:
        """Return the time of triggers."""
        return self.epoch + (time.time_ns() // 1_000_000 - self.epoch) * SPEED

    async def ask(self, verb: str, path: str, body: Json | None = None) -> Json:
        """Ask any gateway until one answers."""
        async with asyncio.timeout(_REST_WITHIN):
            while True:
                port = self.chance.choice(self.gateways).port
                with contextlib.suppress(OSError, ConfigError, TimeoutError, IndexError):
                    return await ask(port, verb, path, None, body)
                await asyncio.sleep(_AGAIN)

    async def open(self) -> None:
        """Start everything, and make the triggers."""
        await self.agent.start()
        for gateway in self.gateways:
            await gateway.begin()
        endpoint = f"http://{HOST}:{self.agent.port}"
        made = await self.ask("POST", "/api/v1/agents", {"endpoint": endpoint, "name": "teller"})
        common: Json = {"agentId": made["data"]["id"]}
        for number in range(_SCHEDULES):
            schedule = {"cron": "* * * * *", "missed": "all"}
            said = {"name": f"s{number}", "text": f"s{number} {{due}}", "schedule": schedule}
            record = (await self.ask("POST", "/api/v1/triggers", common | said))["data"]
            self.schedules[record["id"]] = 0
        said = {"name": "hook", "text": "post {/n}", "webhook": True}
        self.webhook = (await self.ask("POST", "/api/v1/triggers", common | said))["data"]
        for id in self.schedules:
            record = (await self.ask("GET", f"/api/v1/triggers/{id}"))["data"]
            # What was due since is counted by its runs.
            self.schedules[id] = _read(record["nextDueAt"]) - record["runs"] * _MINUTE

    async def post(self) -> None:
        """Post one thing after the other, each until it is answered."""
        chance = random.Random(f"{self.chance.random()}/posts")
        number = 0
        while not self.stopping.is_set():
            number += 1
            first = await self._posted(number)
            if chance.random() < 0.2 and await self._posted(number) != first:
                self.counts.add("doubled", f"post {number} was answered with two tasks")
            await asyncio.sleep(chance.uniform(*_BETWEEN_POSTS))

    async def _posted(self, number: int) -> str:
        """Post one thing until it is answered; return the task."""
        self.posts.setdefault(str(number), "")
        body = b'{"n": %d}' % number
        head = (
            f"POST {self.webhook['webhook']} HTTP/1.1\r\nHost: {HOST}\r\n"
            f"Authorization: Bearer {self.webhook['secret']}\r\nIdempotency-Key: {number}\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        ).encode()
        async with asyncio.timeout(_REST_WITHIN):
            while True:
                port = self.chance.choice(self.gateways).port
                with contextlib.suppress(OSError, TimeoutError):
                    answer = await _exchange(port, head + body)
                    if answer.startswith(b"HTTP/1.1 202"):
                        said = msgspec.json.decode(answer.partition(b"\r\n\r\n")[2])
                        self.posts[str(number)] = said["data"]["taskId"]
                        return self.posts[str(number)]
                await asyncio.sleep(_AGAIN)

    async def edit(self) -> None:
        """Say other words in triggers, which moves no due time."""
        chance = random.Random(f"{self.chance.random()}/edits")
        count = 0
        while not self.stopping.is_set():
            count += 1
            number, id = chance.choice(list(enumerate(self.schedules)))
            said = {"text": f"s{number} {{due}} edit {count}"}
            await self.ask("PATCH", f"/api/v1/triggers/{id}", said)
            await asyncio.sleep(chance.uniform(*_BETWEEN_EDITS))

    async def hurt(self, gateway: MortalGateway, steps: list[str], done: Progress) -> None:
        """Let processes die at steps, one after the other, until there are none left."""
        kills = self.counts.kills
        while steps:
            step = steps.pop()
            asked, moment, most = STEPS[step]
            await gateway.kill()
            await gateway.begin(asked, moment, self.chance.randint(1, most) if asked else 1)
            if asked:
                await gateway.dead()
            else:
                await asyncio.sleep(self.chance.uniform(*_LIVES))
                await gateway.kill()
            kills[step] = kills.get(step, 0) + 1
            done(f"{sum(kills.values())} kills, {len(self.posts)} posts")

    async def settle(self) -> int:
        """Wait until what is due by now was begun; return until when."""
        until = self.now() // _MINUTE * _MINUTE
        async with asyncio.timeout(_REST_WITHIN):
            for id in self.schedules:
                path = f"/api/v1/triggers/{id}"
                while True:
                    if _read((await self.ask("GET", path))["data"]["nextDueAt"]) > until:
                        break
                    await asyncio.sleep(_AGAIN)
                await self.ask("PATCH", path, {"enabled": False})
        return until

    async def close(self) -> None:
        """End everything."""
        for gateway in self.gateways:
            await gateway.close()
        self.agent.kill()


async def _exchange(port: int, request: bytes) -> bytes:
    async with asyncio.timeout(_DIES_WITHIN):
        reader, writer = await asyncio.open_connection(HOST, port)
        try:
            writer.write(request)
            return await reader.read()
        finally:
            writer.close()


def _read(when: str) -> int:
    """Return a time of the API in milliseconds."""
    return round(datetime.fromisoformat(when).timestamp() * 1000)


def check(
    counts: TriggerCounts,
    tasks: Sequence[Stored],
    schedules: Sequence[int],
    until: int,
    posts: Sequence[str],
) -> None:
    """Hold the tasks of a gateway against what was due and posted: schedules are by the time they
    were due first, and those that begin later than `until` may be there or not."""
    told = Counter(text_of(task) for task in tasks)
    wanted = {f"post {number}" for number in posts}
    allowed: set[str] = set()
    for number, first in enumerate(schedules):
        wanted |= {f"s{number} {stamp(at * 1000)}" for at in range(first, until + 1, _MINUTE)}
        after = (f"s{number} {stamp((until + n * _MINUTE) * 1000)}" for n in range(1, 1000))
        allowed |= {*after}
    counts.posts = len(posts)
    counts.due = len(wanted) - len(posts)
    for text in sorted(wanted - told.keys()):
        counts.add("lost", f"there is no task for {text!r}")
    for text, count in told.items():
        if text not in wanted | allowed:
            counts.add("foreign", f"there is a task for {text!r}")
        elif count > 1:
            counts.add("doubled", f"there are {count} tasks for {text!r}")
    for task in tasks:
        # One that is due later may have begun while the gateways were ended.
        fine = _BEGUN if text_of(task) in allowed else {"TASK_STATE_COMPLETED"}
        if task.state not in fine:
            counts.add("unfinished", f"task {task.id} ({text_of(task)!r}) is {task.state}")


def text_of(task: Stored) -> str:
    """Return what a task was begun for: a trigger and its time, or a post."""
    said = msgspec.json.decode(task.events[0])["task"]["history"][0]
    # What follows was edited meanwhile.
    return " ".join(said["parts"][0]["text"].split()[:2])


async def prove_store(
    kills: int,
    seed: int,
    *,
    folder: Path,
    database: Database | None = None,
    steps: Sequence[str] = tuple(STEPS),
    progress: Progress = silent,
) -> TriggerCounts:
    """Kill one process on a file, or two on a database, so often at each step."""
    path = folder / "gateway.db"
    where = str(path) if database is None else database.server.url(database.name)
    run = _Run(folder, seed, [where] * (1 if database is None else 2))
    left = list(steps) * kills
    run.chance.shuffle(left)
    try:
        await run.open()
        async with asyncio.TaskGroup() as group:
            others = [group.create_task(run.post()), group.create_task(run.edit())]
            await asyncio.gather(*(run.hurt(one, left, progress) for one in run.gateways))
            # Not before: one that lives would keep the duty from those that are to die with it.
            for gateway in run.gateways:
                await gateway.begin()
            run.stopping.set()
            await asyncio.wait(others)
        until = await run.settle()
        await _at_rest(path, database)
    finally:
        await run.close()
    tasks = list(_stored(path)) if database is None else await database.tasks()
    check(run.counts, tasks, list(run.schedules.values()), until, list(run.posts))
    agents = Counter(text_of(task) for task in _stored(run.agent.store))
    for text, count in agents.items():
        if count > 1:
            run.counts.add("repeated", f"the agent has {count} tasks for {text!r}")
    return run.counts


async def _at_rest(path: Path, database: Database | None) -> None:
    if database is None:
        await at_rest(path, _REST_WITHIN)
    else:
        await database.at_rest(_REST_WITHIN)


def _stored(path: Path) -> list[Stored]:
    with reading(path) as file:
        return list(file.tasks())


async def prove(kills: int, seed: int, *, folder: Path, progress: Progress) -> TriggersResult:
    """Run the proof on both stores."""
    began = time.monotonic()
    stores: dict[str, TriggerCounts] = {}
    for name in ("SQLite", "PostgreSQL"):
        place = folder / name.lower()
        place.mkdir()

        def tell(text: str, name: str = name) -> None:
            progress(f"{name}: {text}")

        if name == "SQLite":
            stores[name] = await prove_store(kills, seed, folder=place, progress=tell)
            continue
        server = PostgresServer(folder / "postgres")
        try:
            await asyncio.to_thread(server.start)
            url = await asyncio.to_thread(server.make_database)
            database = Database(server, url.rpartition("/")[2])
            stores[name] = await prove_store(
                kills, seed, folder=place, database=database, progress=tell
            )
        finally:
            await asyncio.to_thread(server.kill)
    findings = [f"{name}: {text}" for name, one in stores.items() for text in one.findings]
    return TriggersResult(
        seed=seed,
        seconds=round(time.monotonic() - began, 1),
        bound=bound(sum(one.due + one.posts for one in stores.values())),
        stores=stores,
        findings=findings,
    )


def run(kills: int = 20, seed: int = 1, *, progress: Progress = silent) -> TriggersResult:
    """Kill gateways at every step of their triggers, and count tasks."""
    with workplace() as folder:
        return asyncio.run(prove(kills, seed, folder=folder, progress=progress))
