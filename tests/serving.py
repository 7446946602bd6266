"""Agents to talk to: in this process behind a real socket, or as the command a user types.

Every wait here has a bound, so a test that hangs fails instead.
"""

import asyncio
import itertools
import json
import os
import queue
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import httpx
import uvicorn

from dragoman import Agent, App, Settings

ROOT = Path(__file__).parent.parent
WAIT = 60.0
START_WITHIN = 30.0
V1 = {"A2A-Version": "1.0"}
T = TypeVar("T")
_numbers = itertools.count(1)


async def within(awaitable: Awaitable[T], seconds: float = WAIT) -> T:
    """Wait for something, but not for ever."""
    return await asyncio.wait_for(awaitable, seconds)


def message(text: str | None = None, **more: Any) -> dict[str, Any]:
    """Return a 1.0 message with an id of its own; `parts` replace the text."""
    parts = [] if text is None else [{"text": text}]
    return {
        "messageId": f"m-{os.getpid()}-{next(_numbers)}",
        "role": "ROLE_USER",
        "parts": parts,
        **more,
    }


def old_message(text: str, **more: Any) -> dict[str, Any]:
    """Return the same in 0.x."""
    parts = [{"kind": "text", "text": text}]
    return message(**more) | {"kind": "message", "role": "user", "parts": parts}


class Frame(NamedTuple):
    """One block of an event stream; a comment has only that."""

    data: Any = None
    id: str | None = None
    event: str | None = None
    comment: str | None = None

    @property
    def result(self) -> Any:
        """What a JSON-RPC event carries."""
        return self.data["result"]


async def frames(response: httpx.Response) -> AsyncIterator[Frame]:
    """Yield the blocks of a stream. The server promises one `data` line each, so more are wrong."""
    fields: dict[str, str] = {}
    async for line in _lines(response):
        if line.startswith(":"):
            yield Frame(comment=line[1:].strip())
        elif line:
            name, _, value = line.partition(": ")
            assert name not in fields, f"two {name} lines in one block"
            fields[name] = value
        elif fields:
            yield Frame(json.loads(fields["data"]), fields.get("id"), fields.get("event"))
            fields = {}


async def _lines(response: httpx.Response) -> AsyncIterator[str]:
    # Not the client's own lines: those also end at U+2028, which ends none in this format.
    rest = b""
    async for chunk in response.aiter_bytes():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line.decode()
    assert not rest, "the stream ended within a line"


class Site:
    """A served agent and a client for it."""

    def __init__(self, url: str, http: httpx.AsyncClient, app: App | None = None) -> None:
        self.url = url
        self.http = http
        self._app = app

    @property
    def app(self) -> App:
        assert self._app is not None
        return self._app

    async def post(
        self, body: Any, path: str = "/", headers: Mapping[str, str] | None = None
    ) -> httpx.Response:
        """Post a JSON-RPC body as it is."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        kind = {"content-type": "application/json"}
        return await self.http.post(path, content=content, headers=kind | dict(headers or {}))

    async def answer(
        self,
        method: str,
        params: Any = None,
        *,
        path: str = "/",
        id: Any = 1,
        headers: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Return the JSON-RPC answer to a call, success or not."""
        body = {"jsonrpc": "2.0", "id": id, "method": method, "params": params or {}}
        response = await self.post(body, path, headers)
        assert response.status_code == 200, response.text
        return response.json()

    async def call(self, method: str, params: Any = None, **more: Any) -> Any:
        """Return the result of a call that succeeds."""
        answer = await self.answer(method, params, **more)
        assert "result" in answer, answer
        return answer["result"]

    async def refusal(self, method: str, params: Any = None, **more: Any) -> dict[str, Any]:
        """Return the error of a call that fails."""
        answer = await self.answer(method, params, **more)
        assert "error" in answer, answer
        return answer["error"]

    async def send(self, text: str | None = None, **more: Any) -> Any:
        """Send a 1.0 message; return the task or the message it led to."""
        outer = {k: more.pop(k) for k in ("configuration", "metadata_") if k in more}
        params = {"message": message(text, **more)}
        if "configuration" in outer:
            params["configuration"] = outer["configuration"]
        result = await self.call("SendMessage", params)
        ((_, value),) = result.items()
        return value

    async def task(self, id: str) -> Any:
        return await self.call("GetTask", {"id": id})

    async def total(self) -> int:
        return (await self.call("ListTasks", {"pageSize": 1}))["totalSize"]

    @asynccontextmanager
    async def stream(
        self,
        method: str,
        params: Any,
        *,
        path: str = "/",
        headers: Mapping[str, str] | None = None,
    ) -> AsyncGenerator[AsyncIterator[Frame]]:
        """Open a JSON-RPC stream."""
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        async with self.http.stream("POST", path, json=body, headers=headers) as response:
            assert response.status_code == 200
            assert response.headers["content-type"] == "text/event-stream", await response.aread()
            yield frames(response)

    async def events(self, method: str, params: Any, **more: Any) -> list[Frame]:
        """Return all events of a stream that ends by itself."""
        async with asyncio.timeout(WAIT), self.stream(method, params, **more) as stream:
            return [frame async for frame in stream if frame.comment is None]


class _Quiet(uvicorn.Server):
    """A server inside a test: signals are the test runner's."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.is_up = asyncio.Event()

    def capture_signals(self) -> Any:
        return nullcontext()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.is_up.set()


@asynccontextmanager
async def hosting(asgi: Any, *, lifespan: str = "on", port: int = 0) -> AsyncGenerator[str]:
    """Serve any ASGI app on a free port of this machine; the value is its address."""
    # asyncio turns Nagle off only for sockets that say they are TCP.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    config = uvicorn.Config(
        asgi,
        lifespan=lifespan,  # type: ignore[arg-type]
        log_config=None,
        access_log=False,
        http="httptools",
        timeout_graceful_shutdown=1,
    )
    server = _Quiet(config)
    running = asyncio.create_task(server.serve([listener]))
    try:
        await within(server.is_up.wait())
        assert server.started, "the server did not start"
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        if isinstance(asgi, App):
            asgi.end_streams()
        server.should_exit = True
        await within(running)
        listener.close()


@asynccontextmanager
async def serving(*agents: Agent, **settings: Any) -> AsyncGenerator[Site]:
    """Serve agents in this process; tasks are in memory unless a store is named."""
    app = App(*agents, settings=Settings(**{"store": "memory:"} | settings))
    async with hosting(app) as url, client(url) as http:
        yield Site(url, http, app)


def client(url: str) -> httpx.AsyncClient:
    """Return a client that trusts nothing of the environment and never waits for ever."""
    limits = httpx.Limits(max_connections=None)
    # Reading the certificates of the machine takes longer than most tests.
    return httpx.AsyncClient(
        base_url=url, timeout=WAIT, trust_env=False, limits=limits, verify=False
    )


class Child:
    """A `dragoman` process and what it said."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self.process = process
        self._log = log
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.url = ""

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as stdout:
            for line in stdout:
                self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    @property
    def log(self) -> str:
        return self._log.read_text()

    def line(self, starts: str = "", seconds: float = START_WITHIN) -> str:
        """Return the next line of its output that starts so; fails when it ends or is late."""
        while True:
            line = self._lines.get(timeout=seconds)
            assert line is not None, f"exit {self.process.wait(WAIT)}:\n{self.log}"
            if line.startswith(starts):
                return line

    def ready(self) -> str:
        """Wait until it serves; return its address."""
        self.url = self.line("Ready: ").removeprefix("Ready: ")
        return self.url

    def end(self, seconds: float = WAIT) -> int:
        """Ask it to end; return its exit code."""
        self.process.terminate()
        code = self.process.wait(seconds)
        self._reader.join(WAIT)
        return code


@contextmanager
def running(
    *arguments: str | Path,
    cwd: Path,
    env: Mapping[str, str] | None = None,
    command: tuple[str, ...] = ("-m", "dragoman"),
) -> Generator[Child]:
    """Run `dragoman` with arguments in a folder that also holds its data."""
    log = cwd / f"log-{next(_numbers)}"
    with log.open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, *command, *map(str, arguments)],
            cwd=cwd,
            env=environment(cwd) | dict(env or {}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
    child = Child(process, log)
    try:
        yield child
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(WAIT)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(WAIT)
        child._reader.join(WAIT)


def run(
    *arguments: str | Path, cwd: Path, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `dragoman` to its end."""
    return subprocess.run(
        [sys.executable, "-m", "dragoman", *map(str, arguments)],
        cwd=cwd,
        env=environment(cwd) | dict(env or {}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=START_WITHIN,
    )


def environment(folder: Path) -> dict[str, str]:
    """Return an environment that knows no setting of the user's and writes only to a folder."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DRAGOMAN_")}
    return kept | {"XDG_DATA_HOME": str(folder / "data"), "PYTHONPATH": str(ROOT)}
