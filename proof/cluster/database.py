"""What is stored, read with PostgreSQL's own program and none of the store's code, so that a
mistake there cannot hide itself."""

import asyncio
import time
from itertools import groupby

from dragoman.testing.processes import CannotStart
from dragoman.testing.servers import PostgresServer
from proof.crash.checker import Stored, stored

_AGAIN = 0.1
_TASKS = "SELECT number, id, state, last_seq FROM tasks ORDER BY number"
_EVENTS = "SELECT task, last, n, encode(bodies, 'hex') FROM events ORDER BY task, last"
_UNFINISHED = "SELECT count(*) FROM tasks WHERE state IN (1, 2)"


class Database:
    """One database of a server that may be another one later."""

    def __init__(self, server: PostgresServer, name: str) -> None:
        self.server = server
        self.name = name

    async def rows(self, sql: str) -> list[list[str]]:
        """Return the rows of a statement as texts."""
        text = await asyncio.to_thread(self.server.sql, sql, self.name)
        return [line.split("|") for line in text.splitlines()]

    async def number(self, sql: str) -> int:
        """Return the one number that a statement finds."""
        ((value,),) = await self.rows(sql)
        return int(value or 0)

    async def at_rest(self, within: float) -> bool:
        """Wait until every task rests; tell whether they came to."""
        until = time.monotonic() + within
        while time.monotonic() < until:
            try:
                if not await self.number(_UNFINISHED):
                    return True
            except CannotStart:
                # It starts, or is about to.
                pass
            await asyncio.sleep(_AGAIN)
        return False

    async def tasks(self) -> list[Stored]:
        """Return every task with its log."""
        logs: dict[str, list[tuple[int, int, bytes]]] = {}
        for number, rows in groupby(await self.rows(_EVENTS), lambda row: row[0]):
            logs[number] = [(int(last), int(n), bytes.fromhex(body)) for _, last, n, body in rows]
        return [
            stored(int(number), id, int(state), int(last), logs.get(number, []))
            for number, id, state, last in await self.rows(_TASKS)
        ]
