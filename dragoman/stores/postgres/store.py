"""The PostgreSQL store: tasks and their logs for any number of processes on any machines."""

from collections.abc import Sequence

import msgspec

from dragoman.config import make_data_folder
from dragoman.errors import StoreBroken, StoreSuperseded, StoreUnavailable
from dragoman.stores.interface import (
    Done,
    Duty,
    Heard,
    Note,
    Rung,
    Sealing,
    StoreSize,
    StoreTrouble,
    Survey,
    TaskRow,
    TasksFound,
    TaskWords,
    Write,
)
from dragoman.stores.interface.inspection import WorkerFacts
from dragoman.stores.postgres.bus import bus_of, rung_for
from dragoman.stores.postgres.connections import LOST, Addresses, DatabaseConnections, plain
from dragoman.stores.postgres.limits import Limits
from dragoman.stores.postgres.operating.inspection import DatabaseInspection
from dragoman.stores.postgres.operating.session_test import check_session
from dragoman.stores.postgres.operating.troubles import read_only_troubles, troubles
from dragoman.stores.postgres.pooler_watch import PoolerWatch
from dragoman.stores.postgres.pruning import prune
from dragoman.stores.postgres.pushes import PushRows
from dragoman.stores.postgres.reads import TaskReads
from dragoman.stores.postgres.schema import check_present, check_server, latest, migrate
from dragoman.stores.postgres.scopes import Scopes
from dragoman.stores.postgres.seals import Seals
from dragoman.stores.postgres.words import DatabaseWords
from dragoman.stores.postgres.workers import GRACE, Workers
from dragoman.stores.postgres.writer import Writer
from dragoman.stores.refusing import RefusingWriter


class PostgresStore(TaskReads, PushRows):
    """An open store is one worker."""

    # Others may write at any time.
    knows_all = False
    is_far = True

    def __init__(
        self,
        addresses: Addresses,
        *,
        lease: float = 30.0,
        grace: float = GRACE,
        sealing: Sealing | None = None,
        makes_folder: bool = False,
        bus: str = "",
        is_read_only: bool = False,
    ) -> None:
        """`makes_folder`: the key file is in the user's data folder, which is ours to make. `bus`:
        the address of NATS; empty: workers ring each other through the database. `is_read_only`:
        it is no worker, and the server takes no write of its connections."""
        if is_read_only:
            # A pooler takes no settings, and this one is what keeps us from writing.
            addresses = Addresses(addresses.session or addresses.url, "")
        connections = DatabaseConnections(addresses, is_read_only=is_read_only)
        self.is_read_only = is_read_only
        super().__init__(connections, Scopes(connections))
        self._words = DatabaseWords(connections)
        self._workers = Workers(self._connections, lease, grace)
        self._bus = bus_of(bus, self._connections, self._workers)
        self._pooler_watch = PoolerWatch(self._connections)
        self._seals = Seals(sealing)
        self._makes_folder = makes_folder
        # What is counted over all replicas is written.
        self.limits = (
            None if is_read_only else Limits(self._connections, lambda: self._workers.number)
        )
        self._secret = b""

    async def open(self) -> None:
        """Migrate the database if that is due, and become one of its workers."""
        if self._makes_folder:
            make_data_folder()
        await self._connections.open()
        if self.is_read_only:
            await self._open_to_read()
            return
        try:
            connection = await self._connections.writer()
            await check_server(connection)
            await migrate(connection)
            await self._seals.prepare(connection)
            await check_session(self._connections)
            await self._workers.join()
            await self._bus.open()
        except BaseException:
            await self._connections.close()
            raise
        self._writer: Writer | RefusingWriter = Writer(
            self._connections,
            self._scopes,
            self._workers,
            self._seals,
            committed=self._ring_for,
            rotated=self._rotated,
        )
        self._pooler_watch.start()

    async def _open_to_read(self) -> None:
        try:
            await check_present(await self._connections.writer())
            await self._seals.check_keys(self._connections)
        except BaseException:
            await self._connections.close()
            raise
        self._writer = RefusingWriter()

    async def close(self) -> None:
        """Finish pending writes, give back what this worker holds, and disconnect."""
        if self.is_read_only:
            await self._connections.close()
            return
        await self._writer.close()
        await self._pooler_watch.stop()
        await self._workers.leave()
        self._bus.ring(Rung(freed=True))
        await self._bus.close()
        await self._connections.close()

    async def vanish(self) -> None:
        """End as a crash would: nothing is finished and nothing is given back. For tests."""
        self._connections.drop_writer()
        await self._writer.close(within=0)
        await self._pooler_watch.stop()
        await self._bus.close()
        await self._workers.vanish()
        await self._connections.close()

    @property
    def worker(self) -> int:
        """Our number among the workers."""
        return self._workers.number

    @property
    def secret(self) -> bytes:
        """What the store seals with what it hands out; `prepare` reads or makes it."""
        if not self._secret:
            # Never an empty secret: page tokens and signatures are made of it.
            raise RuntimeError("prepare() comes before the secret")
        return self._secret

    async def prepare(self) -> None:
        """Have `secret` in memory."""
        if not self._secret:
            self._secret = await self._seals.secret(self._connections)

    async def troubles(self) -> Sequence[StoreTrouble]:
        """Return which of database, session, standby and bus does not answer."""
        if isinstance(self._writer, RefusingWriter):
            return await read_only_troubles(self._connections)
        return await troubles(self._connections, self._workers, self._writer, self._bus)

    async def size(self) -> StoreSize:
        """Return the bytes of the database; only its server knows what is left there."""
        ((used,),) = await self._rows("size")
        return StoreSize(used, None, latest())

    async def broken(self) -> StoreBroken:
        """Wait until a newer release changed the schema. Nothing else is final: a server that is
        away may come back, and one that lost what it had acknowledged cannot be told by its
        clients."""
        await self._workers.superseded.wait()
        return StoreSuperseded(
            "a newer release changed the database, and this one cannot use it; run a release that "
            "knows it"
        )

    async def _rotated(self) -> None:
        """Learn which key is current, after a change of key."""
        await self._seals.refresh(self._connections)

    # Writing

    def submit(self, write: Write, done: Done) -> None:
        """Queue the write for the next group."""
        self._writer.submit(write, done)

    async def prune(self, *, ended_before: int, keep: int) -> int:
        """Forget in small transactions, so that no writer waits long for one of them."""
        return await prune(self._connections, lambda: self.worker, ended_before, keep)

    # Words

    async def unindexed(self, limit: int, *, newest: bool = False) -> list[TaskRow]:
        """Return tasks whose words the index does not have as they are now."""
        return await self._task_rows(await self._words.unindexed(limit, newest))

    async def index_words(self, tasks: Sequence[TaskWords]) -> None:
        """Record the words of tasks."""
        await self._words.add(tasks)

    async def search(self, survey: Survey, words: Sequence[str]) -> TasksFound:
        """Return tasks by their words."""
        rows, rest = await self._words.search(survey, words)
        found = [head for head in await self._task_rows(rows) if survey.covers(head)]
        if len(found) > survey.limit:
            found = found[: survey.limit]
            rest = found[-1].number
        return TasksFound(found, rest)

    # Leases

    @property
    def clock_offset(self) -> int:
        """By how much the server's clock is ahead of ours."""
        return self._workers.clock_offset

    @property
    def lapses(self) -> int:
        """How often other workers had taken this one for dead."""
        return self._workers.lapses

    async def renew(self) -> None:
        """Give a sign of life."""
        if self.is_read_only:
            return
        try:
            await self._workers.renew()
        except LOST as error:
            raise StoreUnavailable(plain(error)) from error

    async def is_live(self, worker: int) -> bool:
        """Tell whether a worker's lease is valid."""
        return await self._workers.is_live(worker)

    async def lead(self, duty: Duty) -> bool:
        """Have a duty; it ends with this worker's life. What two must not do is fenced in SQL."""
        return not self.is_read_only and await self._workers.lead(duty)

    async def workers(self) -> list[WorkerFacts]:
        """Return the workers that were not marked gone."""
        return await DatabaseInspection(self._connections, 0).workers()

    async def claim(self, agent: str, limit: int) -> list[tuple[TaskRow, int]]:
        """Take over tasks of dead workers; most often there are none, which one look-up tells."""
        if self.is_read_only:
            return []
        found = await self._rows("claimable", agent, limit)
        if not found:
            return []
        numbers, fences, holders = [list(column) for column in zip(*found, strict=True)]
        rows = await self._rows("claim", self.worker, numbers, fences, holders)
        heads = await self._task_rows(rows)
        return [
            (msgspec.structs.replace(head, holder=self.worker), row[-1])
            for head, row in zip(heads, rows, strict=True)
        ]

    async def notes(self, number: int) -> list[Note]:
        """Return what was left for the holder of a task."""
        rows = await self._rows("notes", number)
        return [Note(note, self._seals.noted(number, body)) for note, body in rows]

    async def noted(self, agent: str) -> list[TaskRow]:
        """Return the tasks we hold that have notes."""
        return await self._task_rows(await self._rows("noted", self.worker, agent))

    async def withheld(self, number: int) -> dict[int, bytes]:
        """Return what a task's log does not show."""
        rows = await self._rows("withheld", number)
        return {seq: self._seals.answered(number, seq, body) for seq, body in rows}

    # The bus

    def listen(self, heard: Heard) -> None:
        """Have a function called when another worker wrote."""
        self._bus.listen(heard)

    def ring(self, rung: Rung) -> None:
        """Tell the other workers."""
        if self.is_read_only:
            return
        self._bus.ring(rung)

    def _ring_for(self, writes: Sequence[Write], numbers: Sequence[int]) -> None:
        self._bus.ring(rung_for(writes, numbers))
