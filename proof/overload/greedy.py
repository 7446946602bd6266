"""One caller with tasks that stream without end, by an agent of the server and by one behind a
gateway: what others see of it, what it takes in memory, and how it ends.

Rounds with it and without it take turns, since no machine is the same for a minute. The server has
one processor to itself where there are two; the load and the agents behind the gateway have the
other. The agent behind the gateway that streams without end is a script in this process: it costs
no disk, and waits while its stream is not read. Others call another one.
"""

import asyncio
import contextlib
import itertools
import random
import statistics
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import msgspec

from dragoman.errors import ConfigError
from dragoman.testing.load import HOST
from proof.client import ANSWER_WITHIN, CallRefused, ConnectionGone, RpcConnection, message
from proof.crash import agent as proof_agent
from proof.crash.checker import reading
from proof.gateway.callers import Account
from proof.gateway.site import FixedServer, GatewayServer, ask
from proof.overload.machine import Interruptions
from proof.overload.overload import own_processor, serving
from proof.overload.volley import SendTally, open_loop, sends
from proof.results import Json, Progress, Result, Row, Spread, silent, spread, until, workplace
from proof.scripted import WORKING, Answer, listening, task
from proof.servers import Server

STREAMS = 24
# What others may notice: p99 with it, over that without it.
SLOWER = 2.0
# A difference below so many milliseconds counts as none, whatever the ratio.
UNNOTICED = 5.0
MOST_GROWTH = 128 * 1024 * 1024
# What the greedy caller may store where its share ends, and what the file may have for it.
SHARE = 16 * 1024 * 1024
_FILE_RATIO = 3
_ROUNDS = 6
_WARMUP = 1.0
_RATE, _CONNECTIONS = 40.0, 8
_BETWEEN_PROBES = 0.02
_END_WITHIN = 120.0
_CHUNK_BYTES = 200
_GREEDY, _OTHER = "a-token-of-a-greedy-caller", "a-token-of-another-caller"
# Chunks that the agent behind a gateway writes in one go.
_AT_ONCE = 32


class Scene(msgspec.Struct, kw_only=True):
    """What others saw, with the greedy caller and without."""

    name: str
    sends_without: Spread
    sends_beside: Spread
    health_without: Spread
    health_beside: Spread
    # The middle of the rounds' ratios of p99.
    sends_ratio: float
    health_ratio: float
    failed: int
    # Events the greedy caller's tasks had meanwhile, per second; and what it cost in memory.
    events: float
    growth: int | None

    def rows(self) -> list[Row]:
        """Return the promises."""
        found: list[Row] = []
        for what, ratio, beside, without in (
            ("sends", self.sends_ratio, self.sends_beside, self.sends_without),
            ("/healthz", self.health_ratio, self.health_beside, self.health_without),
        ):
            found.append(
                Row(
                    f"p99 of others' {what} beside {STREAMS} endless streams of one caller, "
                    f"{self.name}, times that without (at most {SLOWER:g})",
                    f"{ratio:.2f}: {beside.p99:.1f} ms, {without.p99:.1f} ms; {self.failed} failed,"
                    f" {self.events:,.0f} events/s",
                    (ratio <= SLOWER or beside.p99 - without.p99 <= UNNOTICED) and not self.failed,
                )
            )
        size = "not measured" if self.growth is None else f"{self.growth / 1e6:.0f} MB"
        found.append(
            Row(
                f"Memory that they cost, {self.name}",
                f"{size} (limit {MOST_GROWTH / 1e6:.0f} MB)",
                self.growth is None or self.growth <= MOST_GROWTH,
            )
        )
        return found


class GreedyResult(Result, kw_only=True):
    """What a greedy caller takes."""

    proof: str = "greedy"
    streams: int
    scenes: list[Scene]
    # Where the caller's share of the store ends: its tasks, those that ended with the reason, bytes
    # of the file, whether one more was refused and another caller served.
    ended: int
    stored: int
    is_refused: bool
    is_other_served: bool

    def rows(self) -> list[Row]:
        """Return the promises."""
        limit = _FILE_RATIO * SHARE
        return [
            *(row for scene in self.scenes for row in scene.rows()),
            Row(
                "Tasks that ended, and said why, when their caller's share of the store was full",
                f"{self.ended} of {self.streams}",
                self.ended == self.streams,
            ),
            Row(
                f"The file, for a share of {SHARE / 1e6:.0f} MB",
                f"{self.stored / 1e6:.0f} MB (limit {limit / 1e6:.0f} MB)",
                self.stored <= limit,
            ),
            Row(
                "One more task of that caller is refused, and another caller served",
                "yes" if self.is_refused and self.is_other_served else "no",
                self.is_refused and self.is_other_served,
            ),
        ]


# Callers


class _Probes:
    """Asks now and then whether the server is healthy."""

    def __init__(self, port: int) -> None:
        self._port = port
        # When each was answered, and after how many seconds.
        self.times: list[tuple[float, float]] = []
        self.failed = 0

    async def ask(self, seconds: float) -> None:
        ends = time.perf_counter() + seconds
        while (began := time.perf_counter()) < ends:
            try:
                async with asyncio.timeout(ANSWER_WITHIN):
                    await self._one()
            except (OSError, TimeoutError):
                self.failed += 1
            now = time.perf_counter()
            self.times.append((now, now - began))
            await asyncio.sleep(_BETWEEN_PROBES)

    async def _one(self) -> None:
        reader, writer = await asyncio.open_connection(HOST, self._port)
        try:
            writer.write(f"GET /healthz HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
            await reader.readuntil(b"\r\n\r\n")
        finally:
            writer.close()


class _Measurement:
    """What others saw for a while."""

    def __init__(self, sends: SendTally, probes: _Probes, interrupted: Interruptions) -> None:
        spans = interrupted.quiet(sends.began, sends.began + sends.seconds)
        self.sends = [took * 1000 for took in sends.within(spans).accepted]
        self.health = [
            took * 1000
            for at, took in probes.times
            if any(begin <= at < end for begin, end in spans)
        ]
        self.failed = sum(sends.answers.values()) - len(sends.accepted) + probes.failed


class _Stage:
    """A server, its callers, and the paths of the agents that others and the greedy one call."""

    def __init__(
        self, server: Server, path: str, interrupted: Interruptions, *, greedy_path: str = ""
    ) -> None:
        self.server = server
        self._path = path
        self._greedy_path = greedy_path or path
        self._interrupted = interrupted
        self._count = itertools.count()

    async def look(self, seconds: float) -> _Measurement:
        """See what others see."""
        probes = _Probes(self.server.port)

        async def probe() -> None:
            await asyncio.sleep(_WARMUP)
            await probes.ask(seconds)

        tally, _ = await asyncio.gather(
            open_loop(
                self.server.port, sends(_OTHER, self._path), _RATE, seconds, _CONNECTIONS, _WARMUP
            ),
            probe(),
        )
        return _Measurement(tally, probes, self._interrupted)

    async def begin(self) -> list[str]:
        """Begin all endless tasks; return their ids."""
        connection = RpcConnection(self.server.port, path=self._greedy_path, token=_GREEDY)
        tasks: list[str] = []
        try:
            for _ in range(STREAMS):
                id = f"greedy-{next(self._count)}"
                text = f"1000000000 {_CHUNK_BYTES}"
                params = message("flood", text, id, immediately=True)
                tasks.append((await connection.call("SendMessage", params))["task"]["id"])
        finally:
            connection.close()
        return tasks

    async def end(self, tasks: list[str]) -> None:
        """Cancel them."""
        connection = RpcConnection(self.server.port, path=self._greedy_path, token=_GREEDY)
        try:
            for task in tasks:
                with contextlib.suppress(CallRefused, ConnectionGone):
                    await connection.call("CancelTask", {"id": task})
        finally:
            connection.close()

    async def task(self, id: str) -> Json:
        """Return a task of the greedy caller's."""
        connection = RpcConnection(self.server.port, path=self._path, token=_GREEDY)
        try:
            return await connection.call("GetTask", {"id": id, "historyLength": 0})
        finally:
            connection.close()

    async def is_refused(self, token: str) -> bool:
        """Tell whether a caller may not begin a task."""
        connection = RpcConnection(self.server.port, path=self._path, token=token)
        try:
            await connection.call("SendMessage", message("echo", "hi", f"more-{next(self._count)}"))
        except CallRefused:
            return True
        finally:
            connection.close()
        return False


async def _scene(name: str, stage: _Stage, seconds: float, progress: Progress) -> Scene:
    """Compare rounds with the greedy caller and without."""
    await stage.look(_WARMUP)
    before = stage.server.memory()
    peak = before or 0
    without: list[_Measurement] = []
    beside: list[_Measurement] = []
    events = spent = 0.0
    for number in range(_ROUNDS):
        without.append(await stage.look(seconds))
        tasks = await stage.begin()
        began = time.monotonic()
        beside.append(await stage.look(seconds))
        peak = max(peak, stage.server.memory() or 0)
        await stage.end(tasks)
        spent += time.monotonic() - began
        events += _events(stage.server.store, tasks)
        progress(f"{name}, round {number + 1} of {_ROUNDS}")
    return Scene(
        name=name,
        sends_without=spread([took for look in without for took in look.sends]),
        sends_beside=spread([took for look in beside for took in look.sends]),
        health_without=spread([took for look in without for took in look.health]),
        health_beside=spread([took for look in beside for took in look.health]),
        sends_ratio=_ratio([(b.sends, a.sends) for b, a in zip(beside, without, strict=True)]),
        health_ratio=_ratio([(b.health, a.health) for b, a in zip(beside, without, strict=True)]),
        failed=sum(look.failed for look in beside),
        events=round(events / spent, 1),
        growth=None if before is None else max(0, peak - before),
    )


def _ratio(rounds: list[tuple[list[float], list[float]]]) -> float:
    found = [
        spread(beside).p99 / max(spread(without).p99, 0.1)
        for beside, without in rounds
        if beside and without
    ]
    if not found:
        raise ConfigError("others have the processors of this machine all the time")
    return round(statistics.median(found), 2)


def _events(store: Path, tasks: list[str]) -> int:
    wanted = set(tasks)
    with reading(store) as file:
        rows = file.rows("SELECT id, last_seq FROM tasks")
        return sum(last for id, last in rows if id in wanted)


# Servers


def _settings(folder: Path) -> dict[str, str]:
    tokens = folder / "tokens.toml"
    tokens.touch(mode=0o600)
    tokens.write_text(f'[greedy]\ntoken = "{_GREEDY}"\n[other]\ntoken = "{_OTHER}"\n')
    return {"DRAGOMAN_AUTH_TOKENS": str(tokens), "DRAGOMAN_ALLOW": HOST}


class _Behind(FixedServer):
    """The agent behind the gateway."""

    agent = Path(proof_agent.__file__)


@contextlib.asynccontextmanager
async def _gateway(
    folder: Path, seed: int, processor: int | None, interrupted: Interruptions
) -> AsyncGenerator[_Stage]:
    """Serve a gateway with an agent behind it for others, and one for the greedy caller."""
    chance = random.Random(f"{seed}/ports")
    behind = _Behind(folder / "behind.db", chance)
    front = GatewayServer(folder / "gateway.db", chance, environment=_settings(folder))
    async with listening(_flood) as url, serving(behind, None), serving(front, processor):
        await _register(front.port, endpoint=behind.url, name="behind")
        await _register(front.port, endpoint=url, name="flooding")
        yield _Stage(front, "/a2a/behind", interrupted, greedy_path="/a2a/flooding")


async def _flood(answer: Answer, method: str) -> None:
    """Stream chunks without end."""
    if method in ("SendStreamingMessage", "SubscribeToTask"):
        id = answer.params.get("id") or answer.params["message"]["messageId"]
        parts = [{"text": "x" * _CHUNK_BYTES}]
        update = {"taskId": id, "contextId": "c-1", "append": True}
        update["artifact"] = {"artifactId": "a-1", "parts": parts}
        chunks = answer.framed({"artifactUpdate": update}) * _AT_ONCE
        await answer.head()
        await answer.event(WORKING, id)
        await answer.piece(answer.framed({"artifactUpdate": update | {"append": False}}))
        while True:
            await answer.piece(chunks)
    elif method == "CancelTask":
        await answer.whole(result=task("TASK_STATE_CANCELED", answer.params["id"]))
    else:
        await answer.whole(result=task(WORKING, answer.params["id"]))


async def _register(port: int, **said: Any) -> None:
    await ask(port, "POST", "/api/v1/agents", Account("other", _OTHER), said)


async def _share_ends(folder: Path, processor: int | None) -> tuple[int, int, bool, bool]:
    """Let endless tasks go on until their caller's share of the store ends."""
    settings = _settings(folder) | {"DRAGOMAN_MAX_STORED_BYTES": str(SHARE)}
    async with serving(Server(folder / "share.db", environment=settings), processor) as server:
        stage = _Stage(server, "/", Interruptions())
        tasks = await stage.begin()
        await until(lambda: _is_at_rest(server.store), _END_WITHIN)
        shown = [(await stage.task(task))["status"] for task in tasks]
        ended = sum("share of the store" in str(status.get("message")) for status in shown)
        stored = _size(server.store)
        refused = await stage.is_refused(_GREEDY)
        return ended, stored, refused, not await stage.is_refused(_OTHER)


def _is_at_rest(store: Path) -> bool:
    with reading(store) as file:
        return not file.unfinished()


def _size(store: Path) -> int:
    return sum(path.stat().st_size for path in store.parent.glob(f"{store.name}*"))


async def prove(
    seconds: float, seed: int, *, folder: Path, progress: Progress = silent
) -> GreedyResult:
    """Run the proof in a folder."""
    began = time.monotonic()
    interrupted = Interruptions()
    each = max(1.0, seconds / _ROUNDS)
    scenes: list[Scene] = []
    with own_processor() as processor:
        async with interrupted.watched():
            local = Server(folder / "tasks.db", environment=_settings(folder))
            async with serving(local, processor) as server:
                stage = _Stage(server, "/", interrupted)
                scenes.append(await _scene("of its own agent", stage, each, progress))
            async with _gateway(folder, seed, processor, interrupted) as stage:
                scenes.append(await _scene("through a gateway", stage, each, progress))
            progress("until the share ends")
            ended, stored, is_refused, is_other_served = await _share_ends(folder, processor)
    return GreedyResult(
        seed=seed,
        seconds=round(time.monotonic() - began, 1),
        streams=STREAMS,
        scenes=scenes,
        ended=ended,
        stored=stored,
        is_refused=is_refused,
        is_other_served=is_other_served,
    )


def run(seconds: int = 30, seed: int = 1, *, progress: Progress = silent) -> GreedyResult:
    """Let one caller begin tasks that stream without end, and see what others notice."""
    import uvloop

    with workplace() as folder:
        return uvloop.run(prove(seconds, seed, folder=folder, progress=progress))
