"""What no agent runtime can go below on this machine: the same answers without a runtime.

    python limits.py PORT [FILE]

An ASGI function that reads JSON-RPC with msgspec and answers with a task made on the spot, on the
same server and loop as the others. With a file every task is first a row in SQLite
(`synchronous=FULL`); tasks of one turn of the loop share a commit. Nothing is checked, nobody is
asked who they are, and nothing can be done with a task but get it.
"""

import asyncio
import sys
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import apsw
import msgspec
import uvicorn

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode
_HEAD = {
    "type": "http.response.start",
    "status": 200,
    "headers": [(b"content-type", b"application/json")],
}


class Echo:
    """Answers sends, messages and gets."""

    def __init__(self, path: str = "") -> None:
        self._tasks: dict[str, bytes] = {}
        self._database: apsw.Connection | None = None
        self._waiting: list[tuple[str, bytes, asyncio.Future[None]]] = []
        if path:
            self._database = database = apsw.Connection(path)
            for pragma in ("journal_mode = wal", "synchronous = full"):
                database.execute(f"PRAGMA {pragma}")
            database.execute("CREATE TABLE tasks (id TEXT PRIMARY KEY, body BLOB) WITHOUT ROWID")

    async def __call__(
        self, scope: Any, receive: Any, send: Callable[[Any], Awaitable[None]]
    ) -> None:
        if scope["type"] != "http":
            return
        body = b"{}"
        if scope["method"] == "POST":
            body = b""
            more = True
            while more:
                event = await receive()
                body += event.get("body", b"")
                more = event.get("more_body", False)
            body = await self._answer(_decode(body))
        await send(_HEAD)
        await send({"type": "http.response.body", "body": body})

    async def _answer(self, request: dict[str, Any]) -> bytes:
        id, params = _encode(request["id"]), request["params"]
        if request["method"] == "GetTask":
            return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (id, self._get(params["id"]))
        message = params["message"]
        if message["metadata"]["skillId"] == "reply":
            said = {"messageId": uuid.uuid4().hex, "role": "ROLE_AGENT", "parts": message["parts"]}
            return b'{"jsonrpc":"2.0","id":%b,"result":{"message":%b}}' % (id, _encode(said))
        name = uuid.uuid4().hex
        task = _encode(
            {
                "id": name,
                "contextId": uuid.uuid4().hex,
                "status": {"state": "TASK_STATE_COMPLETED"},
                "artifacts": [{"artifactId": "a", "parts": message["parts"]}],
                "history": [message],
            }
        )
        await self._keep(name, task)
        return b'{"jsonrpc":"2.0","id":%b,"result":{"task":%b}}' % (id, task)

    def _get(self, name: str) -> bytes:
        if self._database is None:
            return self._tasks[name]
        rows: Any = self._database.execute("SELECT body FROM tasks WHERE id = ?", (name,))
        return rows.fetchall()[0][0]

    async def _keep(self, name: str, task: bytes) -> None:
        if self._database is None:
            self._tasks[name] = task
            return
        loop = asyncio.get_running_loop()
        written: asyncio.Future[None] = loop.create_future()
        if not self._waiting:
            loop.call_soon(self._commit, self._database)
        self._waiting.append((name, task, written))
        await written

    def _commit(self, database: apsw.Connection) -> None:
        waiting, self._waiting = self._waiting, []
        with database:
            rows = [(name, task) for name, task, _ in waiting]
            database.executemany("INSERT INTO tasks VALUES (?, ?)", rows)
        for *_, written in waiting:
            written.set_result(None)


if __name__ == "__main__":
    port, *path = sys.argv[1:]
    uvicorn.run(
        Echo(*path), host="127.0.0.1", port=int(port), log_level="warning", loop="uvloop",
        http="httptools",
    )  # fmt: skip
