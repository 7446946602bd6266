"""Agents to talk to in this process, behind a real socket, and a client for them."""

import asyncio
import itertools
import json
import os
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, nullcontext, suppress
from typing import Any, NamedTuple

import httpx
import uvicorn

from dragoman import Agent, App
from dragoman.config import load_settings
from dragoman.http.connections import Connections
from dragoman.http.grpc.front import GrpcFront
from dragoman.http.protocol import protocol
from dragoman.server.process.grpc_serving import grpc_of
from harness.waiting import WAIT, eventually, within

V1 = {"A2A-Version": "1.0"}
AT_WORK = ("TASK_STATE_SUBMITTED", "TASK_STATE_WORKING")
_numbers = itertools.count(1)


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

    async def task_when(self, id: str, is_so: Callable[[Any], Any]) -> Any:
        """Return a task once something is true of it."""

        async def found() -> Any:
            task = await self.task(id)
            return task if is_so(task) else None

        return await eventually(found)

    async def rested(self, id: str) -> Any:
        """Return a task once no code works on it."""
        return await self.task_when(id, lambda task: task["status"]["state"] not in AT_WORK)

    async def tasks(self) -> Any:
        """Return the newest tasks."""
        return (await self.call("ListTasks", {}))["tasks"]

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
    """A server inside a test: signals are the test runner's, and it ends as soon as it is told.

    The original looks ten times a second whether it is to end and whether its connections have
    closed. There are thousands of servers in a run.
    """

    def __init__(self, config: uvicorn.Config, ours: Connections | None) -> None:
        super().__init__(config)
        self._ours = ours
        self.is_up = asyncio.Event()
        self._is_told = asyncio.Event()

    def capture_signals(self) -> Any:
        return nullcontext()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.is_up.set()

    def end(self) -> None:
        self.should_exit = True
        self._is_told.set()

    async def main_loop(self) -> None:
        ticking = asyncio.create_task(super().main_loop())
        await self._is_told.wait()
        ticking.cancel()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        if self._ours is not None:
            await self._ours.close(self.config.timeout_graceful_shutdown or WAIT)
        state = self.server_state
        for connection in list(state.connections):
            connection.shutdown()
        with suppress(AssertionError):
            await eventually(
                lambda: not state.connections and not state.tasks,
                self.config.timeout_graceful_shutdown or WAIT,
            )
        for task in state.tasks:
            task.cancel()
        await self.lifespan.shutdown()


@asynccontextmanager
async def hosting(
    asgi: Any, *, lifespan: str = "on", port: int = 0, is_ours: bool = False
) -> AsyncGenerator[str]:
    """Serve any ASGI app on a free port of this machine; the value is its address. With `is_ours`
    connections are those that a process of ours has."""
    # asyncio turns Nagle off only for sockets that say they are TCP.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    grpc = _grpc(asgi)
    ours = _connections(asgi, grpc) if grpc is not None or is_ours else None
    config = uvicorn.Config(
        asgi,
        lifespan=lifespan,  # type: ignore[arg-type]
        log_config=None,
        access_log=False,
        http="httptools" if ours is None else _protocol(asgi, ours),
        timeout_graceful_shutdown=1,
        # A client of a busy machine may use a connection again just as the usual 5 s end.
        timeout_keep_alive=int(WAIT),
    )
    server = _Quiet(config, ours)
    running = asyncio.create_task(server.serve([listener]))
    try:
        await within(server.is_up.wait())
        assert server.started, "the server did not start"
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        if isinstance(asgi, App):
            asgi.end_streams()
        if grpc is not None:
            await grpc.stop(1)
        server.end()
        await within(running)
        listener.close()


def _grpc(asgi: Any) -> GrpcFront | None:
    """Return what takes gRPC on the port of an app whose settings name it."""
    is_named = isinstance(asgi, App) and "grpc" in asgi.settings.dialects.transport
    return grpc_of(asgi) if is_named else None


def _connections(app: App, grpc: GrpcFront | None) -> Connections:
    """Return the connections of an app as a process of ours has them."""
    connections = Connections(app.settings)
    connections.grpc = grpc
    app.site.discovery.grpc.is_served = grpc is not None
    return connections


def _protocol(app: App, connections: Connections) -> Any:
    """Return what makes connections of ours where uvicorn makes its own."""
    make = protocol(app, connections)
    return lambda **_: make()


def app_of(*agents: Agent, **settings: Any) -> App:
    """Return an app as users of the command set it up; tasks are in memory unless told."""
    return App(*agents, settings=load_settings({}, **{"store": "memory:"} | settings))


@asynccontextmanager
async def serving(*agents: Agent, **settings: Any) -> AsyncGenerator[Site]:
    """Serve agents in this process; tasks are in memory unless a store is named."""
    app = app_of(*agents, **settings)
    async with hosting(app) as url, client(url) as http:
        yield Site(url, http, app)


def client(url: str) -> httpx.AsyncClient:
    """Return a client that trusts nothing of the environment and never waits for ever."""
    limits = httpx.Limits(max_connections=None)
    # Reading the certificates of the machine takes longer than most tests.
    return httpx.AsyncClient(
        base_url=url, timeout=WAIT, trust_env=False, limits=limits, verify=False
    )
