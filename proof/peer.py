"""The same probes on Dragoman and on the reference SDK, in one run.

The SDK lives in an environment of its own, made on first use; where that cannot be made, the
result says so. It promises no durable execution: the figures say what its users can rely on, not
that it is broken.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path

from dragoman.testing.processes import CannotStart
from proof.client import CallRefused, ConnectionGone, Frame, RpcConnection, message
from proof.crash.checker import TERMINAL
from proof.environments import EnvironmentFailed, python_with
from proof.results import Json, Progress, until, workplace
from proof.servers import Server
from proof.wire.slow_reader import stalled

PEER = "a2a-sdk 1.3.0 with its DatabaseTaskStore on SQLite"
NOTE = "It does not claim durable execution; the figures say what its users can rely on."
# Those of the bench, so that there is one environment for both.
_REQUIREMENTS = (
    "a2a-sdk[http-server,sqlite]==1.3.0",
    "aiosqlite==0.22.1",
    "uvicorn==0.54.0",
    "uvloop==0.23.0",
    "httptools==0.9.0",
)
_TASKS = 50
_AFTER_RESTART = 15.0
_EVENTS = 30
_REPEATS = 10
_STALL_FOR = 45.0


class PeerServer(Server):
    """The reference SDK on a database file."""

    def __init__(self, store: Path, python: Path) -> None:
        super().__init__(store, name="peer")
        self._python = python

    def command(self) -> list[str]:
        """Return what is run."""
        script = Path(__file__).with_name("peer_server.py")
        return [str(self._python), str(script), str(self.store)]


# The probes; each returns its figures by name.

Figures = dict[str, int]


async def _crash(server: Server) -> Figures:
    """Tasks of ten seconds are acknowledged, the server is killed, started and given time."""

    async def begin(n: int) -> str:
        connection = RpcConnection(server.port)
        try:
            said = message("steps", "100 100", f"crash-{n}", immediately=True)
            return (await connection.call("SendMessage", said))["task"]["id"]
        finally:
            connection.close()

    ids = await asyncio.gather(*(begin(n) for n in range(_TASKS)))
    await asyncio.sleep(0.5)
    server.kill()
    await server.start()
    states: dict[str, str] = {}
    connection = RpcConnection(server.port)
    deadline = asyncio.get_running_loop().time() + _AFTER_RESTART
    while (
        asyncio.get_running_loop().time() < deadline
        and not TERMINAL >= set(states.values()) > set()
    ):
        await asyncio.sleep(0.5)
        for id in ids:
            try:
                states[id] = (await connection.call("GetTask", {"id": id}))["status"]["state"]
            except CallRefused:
                states[id] = "lost"
    connection.close()
    hanging = sum(state not in TERMINAL and state != "lost" for state in states.values())
    lost = sum(state == "lost" for state in states.values())
    return {"acked": len(ids), "hanging": hanging, "lost": lost}


async def _resume(server: Server) -> Figures:
    """A reader leaves after a few events and is back a second later with its cursor."""
    seen: set[str] = set()
    positions: list[int] = []

    def take(frame: Frame) -> None:
        if frame.seq is not None:
            positions.append(frame.seq)
        update = frame.value.get("artifactUpdate")
        if update is not None:
            seen.update(part["text"].strip() for part in update["artifact"]["parts"])

    task_id = ""
    said = message("steps", f"{_EVENTS} 100", "resume")
    first = RpcConnection(server.port).stream("SendStreamingMessage", said)
    async with contextlib.aclosing(first) as frames:
        async for frame in frames:
            opening: Json | None = frame.value.get("task")
            if opening is not None:
                task_id = opening["id"]
            take(frame)
            if len(seen) == 7:
                break
    await asyncio.sleep(1.0)
    after = positions[-1] if positions else len(seen)
    again = RpcConnection(server.port).stream("SubscribeToTask", {"id": task_id}, after=after)
    async with contextlib.aclosing(again) as frames:
        async for frame in frames:
            take(frame)
    seen.discard("")
    return {"events": _EVENTS, "missed": _EVENTS - len(seen), "with a position": len(positions)}


async def _idempotency(server: Server) -> Figures:
    """One message, sent ten times."""
    said = message("steps", "3 50", "twice")

    async def once() -> str:
        connection = RpcConnection(server.port)
        try:
            return (await connection.call("SendMessage", said))["task"]["id"]
        finally:
            connection.close()

    ids = await asyncio.gather(*(once() for _ in range(_REPEATS)))
    return {"sends": len(ids), "tasks": len(set(ids))}


async def _slow_reader(server: Server) -> Figures:
    """One reader asks for a flood and never reads it."""
    before = server.memory()
    with stalled() as reader:
        said = message("flood", "1000000 4096", "flood")
        reader.attach(server.port, "SendStreamingMessage", said)
        await until(reader.are_attached, 10.0)
        await asyncio.sleep(_STALL_FOR)
        after = server.memory()
    if before is None or after is None:
        return {}
    return {"megabytes grown": round(max(0, after - before) / 1e6)}


Probe = Callable[[Server], Awaitable[Figures]]
_CRASH = (f"{_TASKS} running tasks, kill -9, restart, {_AFTER_RESTART:.0f} s later", _crash)
_RESUME = ("Reader away for 1 s in a stream of 30 events", _resume)
_TWICE = (f"One message sent {_REPEATS} times", _idempotency)
_STALL = (f"One reader that never reads, {_STALL_FOR:.0f} s", _slow_reader)
# Which probes belong to which proof.
_PROBES: dict[str, tuple[tuple[str, Probe], ...]] = {
    "crash": (_CRASH, _RESUME, _TWICE),
    "resume": (_RESUME,),
    "idempotency": (_TWICE,),
    "slow-reader": (_STALL,),
}


def compare(proof: str, progress: Progress) -> Json:
    """Return what the probes of a proof find on ours and on the peer."""
    result: Json = {"peer": PEER, "note": NOTE, "rows": []}
    try:
        progress("preparing the environment of a2a-sdk")
        python = python_with(*_REQUIREMENTS)
    except EnvironmentFailed as error:
        return result | {"note": f"Its environment could not be made: {error}"}
    for title, probe in _PROBES[proof]:
        progress(f"{title}: ours")
        ours = _probed(lambda store: Server(store), probe)
        progress(f"{title}: a2a-sdk")
        theirs = _probed(lambda store: PeerServer(store, python), probe)
        result["rows"].append(
            {
                "probe": title,
                "ours": _text(ours),
                "theirs": _text(theirs),
                "figures": {"ours": ours, "theirs": theirs},
            }
        )
    return result


def _text(figures: Figures | str) -> str:
    if isinstance(figures, str):
        return figures
    return ", ".join(f"{value} {name}" for name, value in figures.items()) or "not measured"


def _probed(make: Callable[[Path], Server], probe: Probe) -> Figures | str:
    async def on_a_server(server: Server) -> Figures | str:
        try:
            await server.start()
            return await probe(server)
        except (CannotStart, ConnectionGone, CallRefused, TimeoutError) as error:
            return f"failed: {str(error)[-200:]}"
        finally:
            server.kill()

    with workplace() as folder:
        return asyncio.run(on_a_server(make(folder / "tasks.db")))
