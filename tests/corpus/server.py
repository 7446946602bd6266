"""The server under test, in process or behind a socket, and the good requests in between.

A good request proves that the last bad one left nothing broken; the total of ListTasks proves that
it left nothing behind.
"""

from __future__ import annotations

import http.client
import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from harness.serving import app_of

from dragoman.testing.processes import ServerProcess
from tests.corpus import agent as agent_module
from tests.corpus import asgi
from tests.corpus.answer import Answer
from tests.corpus.case import V1, Case, Expect, call, rpc, text

ANY = Expect(frozenset(), ids=(0,), accepted=True)
_numbers = itertools.count(1)


class Server:
    """One way to send a case; `send` is all the runner needs."""

    async def send(self, case: Case, *, blocks: int = 0) -> Answer:
        raise NotImplementedError

    @property
    def runs(self) -> int:
        """How often the agent ran; constant where that cannot be seen."""
        return 0

    async def call(self, method: str, params: Any) -> Any:
        """Return the result of a good 1.0 request; anything else is an assertion error."""
        body = text(call(method, params, 0))
        case = rpc(0, "good", method, body, ANY, headers=V1)
        answer = await self.send(case)
        value = json.loads(answer.body)
        assert answer.status == 200 and "result" in value, answer.body[:500]
        return value["result"]

    async def total(self) -> int:
        """Return how many tasks exist."""
        page = await self.call("ListTasks", {"pageSize": 1})
        return page["totalSize"]

    async def start(self, content: str, **more: Any) -> Any:
        """Return the task a fresh good message led to."""
        message = {
            "messageId": f"good-{next(_numbers)}-{os.getpid()}",
            "role": "ROLE_USER",
            "parts": [{"text": content}],
            **{k: v for k, v in more.items() if k in ("contextId", "taskId", "metadata")},
        }
        params = {"message": message, "configuration": more.get("configuration", {})}
        result = await self.call("SendMessage", params)
        return result["task"]

    async def echo(self) -> None:
        """Assert that a good message is still answered as it should be."""
        task = await self.start("still here")
        assert task["status"]["state"] == "TASK_STATE_COMPLETED", task
        assert task["artifacts"][0]["parts"][0]["text"] == "still here", task


class InProcess(Server):
    """The ASGI app called without a socket."""

    def __init__(self, app: asgi.AsgiApp) -> None:
        self.app = app

    async def send(self, case: Case, *, blocks: int = 0) -> Answer:
        return await asgi.request(self.app, case, blocks=blocks)

    @property
    def runs(self) -> int:
        return agent_module.runs


@asynccontextmanager
async def in_process() -> AsyncGenerator[InProcess]:
    """Run a fresh app on a memory store."""
    app = app_of(agent_module.agent)
    async with app.running():
        yield InProcess(app)


class OverSocket(Server):
    """A child process behind a real socket; one kept connection, reopened when it closes."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.host, self.port = parts.hostname or "127.0.0.1", parts.port or 80
        self.connection: http.client.HTTPConnection | None = None

    async def send(self, case: Case, *, blocks: int = 0) -> Answer:
        del blocks
        started = time.perf_counter()
        # A server may close between two requests; only a second refusal in a row is its fault.
        try:
            response = self._exchange(case)
        except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError):
            self.close()
            response = self._exchange(case)
        body = response.read()
        if response.will_close:
            self.close()
        headers = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, headers, body, time.perf_counter() - started)

    def _exchange(self, case: Case) -> http.client.HTTPResponse:
        if self.connection is None:
            self.connection = http.client.HTTPConnection(self.host, self.port, timeout=60)
        target = case.path + ("?" + case.query if case.query else "")
        headers = {name: value.encode() for name, value in case.headers}
        self.connection.request(case.method, target, body=case.body or None, headers=headers)
        return self.connection.getresponse()

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()
        self.connection = None


@contextmanager
def over_socket() -> Generator[OverSocket]:
    """Serve the agent file by the command a user would type."""
    words = ["serve", agent_module.__file__, "--listen", "127.0.0.1:0", "--store", "memory:"]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with ServerProcess([sys.executable, "-m", "dragoman", *words], log=log) as child:
            server = OverSocket(child.ready())
            try:
                yield server
            finally:
                server.close()
            code = child.process.poll()
            assert code is None, f"the server crashed: exit {code}"
        # Bad input is the caller's fault: it must not look like ours in the log.
        assert "Traceback" not in log.read_text()
