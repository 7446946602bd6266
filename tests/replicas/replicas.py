"""Real `dragoman` processes on one database, and a proxy in front of them that picks the next one
for each connection."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.processes import running
from harness.serving import Site, client
from harness.stub_servers import listening
from harness.waiting import WAIT

from dragoman.testing.processes import ServerProcess

# Says where it runs, and goes on when a file of its task's name exists: in any process.
AGENT = """
import asyncio, os
from pathlib import Path
from dragoman import Agent, Turn

agent = Agent("Shared", "Is served by several processes.")

async def opened(name: str) -> None:
    while not Path(name).exists():
        await asyncio.sleep(0.005)

@agent.skill(default=True)
async def quick(text: str):
    return text

@agent.skill
async def held(text: str, turn: Turn):
    await turn.say(f"{os.getpid()} {turn.attempt}")
    await opened(text)
    await turn.say(f"{os.getpid()} ends")
    return str(os.getpid())

@agent.skill
async def asks(text: str, turn: Turn):
    return f"{text}, {(await turn.ask('which?')).text}"

@agent.skill
async def counts(text: str, turn: Turn):
    # One line for each number, once however often the code runs again.
    for n in range(int(text)):
        yield f"{n} "
        await turn.sleep(0.02)

@agent.skill
async def noted(text: str, turn: Turn):
    async def note():
        with open("done", "a") as file:
            file.write(f"{text}\\n")
    await turn.step("note", note)
    return text
"""
_PIECE = 1 << 16


class Proxy:
    """Passes connections on, each to the next address that takes it."""

    def __init__(self) -> None:
        self.targets: list[int] = []
        self.url = ""
        self._next = 0
        # Connections that no target took.
        self.refused = 0

    async def relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry one connection to its end."""
        opened = await self._connect()
        if opened is None:
            self.refused += 1
            return
        theirs, to_them = opened
        ways = [
            asyncio.ensure_future(_carry(reader, to_them)),
            asyncio.ensure_future(_carry(theirs, writer)),
        ]
        try:
            # What a server closes is closed for its client, and the other way round.
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            for end in (writer, to_them):
                end.close()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        self._next += 1
        # Each connection goes round by itself: with a common place, two that come at the same time
        # would both miss a target.
        first = self._next % len(self.targets)
        for port in (*self.targets[first:], *self.targets[:first]):
            with contextlib.suppress(OSError):
                return await asyncio.open_connection("127.0.0.1", port)
        return None


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(_PIECE):
            writer.write(data)
            await writer.drain()


@contextlib.asynccontextmanager
async def proxying() -> AsyncGenerator[Proxy]:
    """Run a proxy without targets."""
    proxy = Proxy()
    async with listening(proxy.relay) as port:
        proxy.url = f"http://127.0.0.1:{port}"
        yield proxy


class Replicas:
    """Some servers of one database, and the proxy in front of them."""

    def __init__(
        self, folder: Path, command: Sequence[str | Path], env: Mapping[str, str], proxy: Proxy
    ) -> None:
        self.folder = folder
        self.proxy = proxy
        self._command = command
        self._env = env
        self._stack = contextlib.AsyncExitStack()
        self.servers: list[ServerProcess] = []
        self.sites: list[Site] = []

    def begin(self, program: str = "") -> ServerProcess:
        """Start one more process, of another program than `dragoman` if one is named."""
        command = (str(self.folder / program),) if program else ()
        return self._stack.enter_context(
            running(*self._command, cwd=self.folder, env=self._env, command=command)
        )

    async def join(self, server: ServerProcess, place: int | None = None) -> Site:
        """Wait until a process serves, and have the proxy know it, in the place of another."""
        url = await asyncio.to_thread(server.ready)
        site = Site(url, await self._stack.enter_async_context(client(url)))
        if place is None:
            self.servers.append(server)
            self.sites.append(site)
            self.proxy.targets.append(server.port)
        else:
            self.servers[place], self.sites[place] = server, site
            self.proxy.targets[place] = server.port
        return site

    def open(self, name: str) -> None:
        """Let the tasks of a name go on."""
        (self.folder / name).touch()

    async def held(self, name: str, by: int = 0) -> Any:
        """Return a task that runs in one of them until its name is opened."""
        task = await self.sites[by].send(
            name, metadata={"skill": "held"}, configuration={"returnImmediately": True}
        )
        pid = self.servers[by].pid
        await self.until(by, task["id"], lambda task: f"{pid} 1" in said(task))
        return task

    async def until(self, by: int, id: str, is_so: Any) -> Any:
        """Ask one of them until a task is as it should be."""
        async with asyncio.timeout(WAIT):
            # Only an outside look tells what another process can see.
            while not is_so(task := await self.sites[by].task(id)):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        return task

    async def kill(self, place: int) -> None:
        """End one as a crash would."""
        await asyncio.to_thread(self.servers[place].kill)

    async def aclose(self) -> None:
        """End all of them, at the same time."""
        for server in self.servers:
            server.signal(signal.SIGTERM)
        await self._stack.aclose()


@contextlib.asynccontextmanager
async def replicas(
    folder: Path, store: str, count: int, *arguments: str | Path, **env: str
) -> AsyncIterator[Replicas]:
    """Serve the agent from so many processes."""
    (folder / "shared_agent.py").write_text(AGENT)
    command = ("serve", "shared_agent.py", "--listen", "127.0.0.1:0", "--store", store, *arguments)
    async with proxying() as proxy:
        # Cards name the proxy, so that clients come back to any of them.
        made = Replicas(folder, command, {"DRAGOMAN_PUBLIC_URL": proxy.url, **env}, proxy)
        async with contextlib.aclosing(made):
            # All come up at the same moment.
            for server in [made.begin() for _ in range(count)]:
                await made.join(server)
            yield made


async def busy(three: Replicas) -> list[int]:
    """Return which of them work on a task."""
    pages = await asyncio.gather(*(site.http.get("/metrics") for site in three.sites))
    return [
        place
        for place, page in enumerate(pages)
        for line in page.text.splitlines()
        if line.startswith("dragoman_tasks_running") and not line.endswith(" 0")
    ]


def said(task: Any) -> list[str]:
    """Return every text of a task of 1.0."""
    spoken = [*task.get("history", []), task["status"].get("message") or {"parts": []}]
    return [part.get("text", "") for message in spoken for part in message["parts"]]


def state(task: Any) -> str:
    """Return a task's state, whatever the dialect: in lower case, without a prefix."""
    found = task["status"]["state"].removeprefix("TASK_STATE_").lower().replace("_", "-")
    return "canceled" if found == "cancelled" else found


def result(task: Any) -> str:
    """Return the text of a task's artifacts."""
    return "".join(
        part.get("text", "") for one in task.get("artifacts", []) for part in one["parts"]
    )
