"""The SQLite store: one thread writes, the loop reads single rows, a second thread scans."""

import asyncio
import contextlib
import functools
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import apsw
import msgspec

from dragoman.config import make_data_folder
from dragoman.errors import ConfigError, StoreBroken, StoreDamaged, StoreRefused
from dragoman.model.push import PushConfig
from dragoman.stores.columns import receiver_line
from dragoman.stores.interface import (
    LATEST,
    DeadLetter,
    Done,
    Duty,
    Heard,
    Note,
    Push,
    Rung,
    Sealing,
    StoreSize,
    StoreTrouble,
    Survey,
    TaskRow,
    TasksFound,
    TaskWords,
    Write,
    write,
)
from dragoman.stores.interface.inspection import WorkerFacts
from dragoman.stores.refusing import RefusingWriter
from dragoman.stores.sqlite.files.generations import Generations, check_log, has_log
from dragoman.stores.sqlite.files.guard import FileGuard
from dragoman.stores.sqlite.files.leftovers import check_leftovers, is_served_without_log
from dragoman.stores.sqlite.files.opening import absolute, check_writable, explaining, without_log
from dragoman.stores.sqlite.files.watch import FileWatch, Loss, StoreFilePart
from dragoman.stores.sqlite.inspection import Inspection, check_schema, open_to_read
from dragoman.stores.sqlite.message_keys import READ_AT_ONCE, has_fresh_keys, index_keys
from dragoman.stores.sqlite.pruning import prune
from dragoman.stores.sqlite.pushes import Pushes
from dragoman.stores.sqlite.reads import FileReads
from dragoman.stores.sqlite.schema import (
    Row,
    check,
    close,
    connect,
    create,
    executor,
    migrate,
    migrations,
    queries,
    run,
    transaction,
)
from dragoman.stores.sqlite.seals import Seals
from dragoman.stores.sqlite.secret import StoreSecret
from dragoman.stores.sqlite.words import FileWords
from dragoman.stores.sqlite.workers import Workers, machine_time
from dragoman.stores.sqlite.writer import Chore, TaskOrderWrites, Writer

logger = logging.getLogger("dragoman")

T = TypeVar("T")

# Seconds between two looks at the file: for processes that join, and for what others wrote.
_LOOK_ALONE = 0.1
_LOOK_SHARED = 0.02
# And for processes that ended.
_REAP_EVERY = 0.5
# Seconds until the next look after one that failed.
_AFTER_TROUBLE = 1.0
# How often a newcomer looks whether a process that closes the file has gone.
_CLOSING_TRIES = 10
# Seconds after the start until the secret is read though no caller needs it yet.
_PREPARE_AFTER = 1.0


class SQLiteStore(FileReads):
    """Tasks and their logs in one file, which several processes of one machine may share.

    A process that is alone knows all keys there are; one that shares the file asks the file.
    """

    is_far = False
    # All workers are on this machine.
    clock_offset = 0

    def __init__(
        self,
        path: str | Path,
        *,
        lease: float = 30.0,
        synchronous: str = "full",
        clock: Callable[[], int] = machine_time,
        sealing: Sealing | None = None,
        orders: TaskOrderWrites | None = None,
        makes_folder: bool = False,
        is_new: bool = False,
        is_read_only: bool = False,
    ) -> None:
        """`makes_folder`: it is in the user's data folder, which is ours to make. `is_new`: the
        operator wants an empty store where one was that is gone. `is_read_only`: it is no worker of
        the file, and has no connection that could write."""
        super().__init__(queries())
        self.path = absolute(path)
        self._makes_folder = makes_folder
        self._is_new = is_new
        self.is_read_only = is_read_only
        self._orders = orders
        self._synchronous = synchronous
        self._seals = Seals(sealing)
        self._secret = StoreSecret(self.path, self._seals, synchronous, is_read_only=is_read_only)
        self._words = FileWords(self, self._sql, self._head)
        self.worker = 0
        self.knows_all = False
        # Each process counts for itself.
        self.limits = None
        self._workers = Workers(self.path, lease, clock)
        self._clock = clock
        self._generations = Generations(self.path)
        # Trouble with the key of what is sealed, as it was last logged.
        self._trouble = ""
        self._patience = lease + 5.0
        self._chores: list[asyncio.Task[None]] = []
        self._listeners: list[Heard] = []
        self._seen: int | None = None
        self._reaped_at = 0.0

    async def open(self) -> None:
        """Create or migrate the file and become one of its workers."""
        with explaining(self.path):
            await (self._open_to_read() if self.is_read_only else self._open())

    async def _open(self) -> None:
        await self._check_files()
        had_log = has_log(self.path)
        # Never opened if it is there: closing it would drop the locks of other connections in this
        # process.
        with contextlib.suppress(FileExistsError):
            create(self.path)
        check(str(self.path))
        connection = connect(str(self.path), self._synchronous)
        try:
            migrate(connection)
            self._seals.prepare(connection)
            self._workers.join(connection)
            self.worker = self._workers.number
            await self._find_peers(connection)
            if has_fresh_keys(connection, self._sql):
                # Of a process that was killed, or is frozen.
                with transaction(connection):
                    index_keys(connection, self._sql)
            if self.knows_all:
                self._generations.begin(connection, self._workers.lock, had_log=had_log)
            else:
                self._generations.join(connection)
        except BaseException:
            self._workers.close()
            connection.close()
            raise
        self._writer: Writer | RefusingWriter = Writer(
            connection, self.worker, self._seals, self._keys
        )
        self._writer.orders = self._orders
        self._scanner = ThreadPoolExecutor(1, "dragoman-reader")
        self._reader = connect(str(self.path))
        self._execute = executor(self._reader)
        run(self._reader, "PRAGMA query_only = on")
        self._scans = connect(str(self.path))
        run(self._scans, "PRAGMA query_only = on")
        self._pushes = Pushes(
            self._reader, self._sql, self._part, self._do, self.worker, self._seals, self.prepare
        )
        watch = FileWatch(self.path, self._generations.current, self._workers.files())
        self._guard = FileGuard(
            watch, self._generations, self._workers, self._writer, self._reader, self.read_tx
        )
        self._writer.on_trouble = self._guard.check_soon
        loop = asyncio.get_running_loop()
        self._chores.append(loop.create_task(self._watch_peers()))
        self._chores.append(loop.create_task(self._prepare_soon()))

    async def _open_to_read(self) -> None:
        self._reader = open_to_read(self.path)
        try:
            check_schema(self._reader, self.path)
            self._seals.check_keys(self._reader)
            self._scans = open_to_read(self.path)
        except BaseException:
            self._reader.close()
            raise
        self._writer = RefusingWriter()
        self._scanner = ThreadPoolExecutor(1, "dragoman-reader")
        self._execute = executor(self._reader)
        self._pushes = Pushes(
            self._reader, self._sql, self._part, self._do, self.worker, self._seals, self.prepare
        )
        self._chores.append(asyncio.get_running_loop().create_task(self._watch_writers()))

    async def _watch_writers(self) -> None:
        """Ring for what other processes wrote."""
        seen = None
        while True:
            ((version,),) = run(self._reader, "PRAGMA data_version")
            if version != seen:
                seen = version
                self._ring()
            await asyncio.sleep(_LOOK_ALONE)

    async def _close_read_only(self) -> None:
        await self._secret.close()
        await asyncio.to_thread(self._scanner.shutdown)
        self._reader.close()
        self._scans.close()

    async def _check_files(self) -> None:
        """Refuse a place where no store can be, or where another one was, before SQLite touches
        it."""
        if self._makes_folder:
            make_data_folder()
        check_leftovers(self.path, is_new=self._is_new)
        check_writable(self.path)
        for _ in range(_CLOSING_TRIES):
            if not is_served_without_log(self.path):
                check_log(self.path)
                return
            # A process that ends in good order takes its log along.
            await asyncio.sleep(_LOOK_ALONE)
        raise ConfigError(without_log(self.path))

    @property
    def secret(self) -> bytes:
        """What the store seals with what it hands out; `prepare` reads or makes it."""
        if not self._secret.value:
            # Never an empty secret: page tokens and signatures are made of it.
            raise RuntimeError("prepare() comes before the secret")
        return self._secret.value

    async def prepare(self) -> None:
        """Have `secret` in memory; the loop does not wait for the cipher and the disk."""
        if not self._secret.value:
            await self._secret.prepare()

    async def _prepare_soon(self) -> None:
        """Prepare once the start is over: until then everything else is more urgent."""
        await asyncio.sleep(_PREPARE_AFTER)
        try:
            await self._guard.check(is_alone=self.knows_all)
            await self.prepare()
            await self._empty_log()
            await self._guard.check(is_alone=self.knows_all)
        except StoreBroken:
            return
        except Exception:
            # A caller that needs it tries again, and gets the error.
            logger.exception("the store's secret cannot be read")

    async def _empty_log(self) -> None:
        """Bring the log into the file as far as others let us: from then on the file itself tells
        whether it is still ours."""
        await self.read_tx(lambda scans: run(scans, "PRAGMA wal_checkpoint(passive)"))

    async def _find_peers(self, connection: apsw.Connection) -> None:
        """Find out whether other processes use the file; if so, wait until they know of us."""
        until = asyncio.get_running_loop().time() + self._patience
        while True:
            living = [n for n in self._workers.others(connection) if not self._reap(connection, n)]
            if not living and self._workers.try_alone():
                self.knows_all = True
                return
            # A process that has not noticed us for a whole lease is frozen: its lease has ended.
            if self._workers.try_shared() or asyncio.get_running_loop().time() > until:
                return
            await asyncio.sleep(_LOOK_ALONE / 2)

    def _reap(self, connection: apsw.Connection, number: int) -> bool:
        self._workers.reap(connection, number)
        return number not in self._workers.others(connection)

    async def close(self) -> None:
        """Finish pending writes, release what this worker holds and close the file."""
        for chore in self._chores:
            chore.cancel()
        await asyncio.gather(*self._chores, return_exceptions=True)
        self._chores.clear()
        if self.is_read_only:
            await self._close_read_only()
            return
        await self._guard.close()
        await self._secret.close()
        # If the disk does not take it, others find out by our locks.
        with contextlib.suppress(StoreRefused):
            await self._do(self._workers.leave)
            await self.index_keys()
        await self._writer.close(keeps_log=self._guard.keeps_log)
        # Before the log goes with the last connection: a missing log tells of a live process.
        self._workers.close()
        await asyncio.to_thread(self._scanner.shutdown)
        close(self._reader, keeps_log=self._guard.keeps_log)
        close(self._scans, keeps_log=self._guard.keeps_log)
        self.knows_all = False
        self._keys.forget()

    # Other processes

    async def _watch_peers(self) -> None:
        """Notice processes that come and go, and what they write."""
        while True:
            began = time.monotonic()
            pause = 0.0
            try:
                if self.knows_all:
                    # Others may have come and gone while we were frozen.
                    if self._workers.others(self._reader) or not self._is_listed():
                        await self._share()
                    else:
                        self._learn_keys(began)
                        if self._keys.has_many_fresh:
                            await self.index_keys()
                else:
                    await self._follow_peers()
            except Exception:
                # Whatever it was: followers of other processes' tasks depend on the next look.
                if self._writer.fault is not None:
                    return
                logger.exception("the file could not be looked at; trying again")
                self._guard.check_soon()
                pause = _AFTER_TROUBLE
            pause = max(pause, 4 * (time.monotonic() - began))
            await asyncio.sleep(max(_LOOK_ALONE if self.knows_all else _LOOK_SHARED, pause))

    def _learn_keys(self, looked_at: float) -> None:
        """Read some keys that the file had before, and rely on those that are read until the next
        look: no other process wrote before this one."""
        keys = self._keys
        if not keys.is_complete:
            keys.read(self._rows("keys_after", (*keys.last, READ_AT_ONCE)))
        keys.trust(looked_at)

    async def index_keys(self) -> None:
        """Bring the keys that are beside their index into it."""
        moved = self._keys.begin_indexing()
        await self._do(functools.partial(index_keys, sql=self._sql))
        self._keys.end_indexing(moved)

    async def _follow_peers(self) -> None:
        """Ring for what other processes wrote, and reap those that ended: their tasks wait."""
        version = self._writer.version
        # While our writes wait, another process writes.
        if version != self._seen or self._writer.is_waiting:
            self._seen = version
            if not self._is_listed():
                await self._do(self._workers.renew)
            self._ring()
            # The woken followers read before the next look.
            await asyncio.sleep(0)
        if time.monotonic() > self._reaped_at + _REAP_EVERY:
            self._reaped_at = time.monotonic()
            await self._reap_workers()

    async def _reap_workers(self) -> None:
        for number in self._workers.others(self._reader):
            if not self._workers.is_live(self._reader, number):
                await self._do(functools.partial(self._workers.reap, number=number))
                self._ring(Rung(freed=True))

    def _is_listed(self) -> bool:
        return self._workers.is_listed(self._reader)

    async def _share(self) -> None:
        """Stop relying on being alone, then let the newcomer in."""
        self.knows_all = False
        # Others may add keys to the file. From here on ours go into the index, where they look.
        self._keys.forget()
        # Behind all that was queued before.
        await self.index_keys()
        self._workers.try_shared()

    async def renew(self) -> None:
        """Prolong our lease, reap dead workers, and notice when no other is left, or when the file
        is lost."""
        if self.is_read_only:
            return
        await self._guard.check(is_alone=self.knows_all)
        try:
            if self.knows_all and not self._is_listed():
                await self._share()
            await self._do(self._renew_in)
        except (StoreDamaged, apsw.CorruptError, apsw.NotADBError) as error:
            await self._guard.give_up(Loss(StoreFilePart.FILE, f"{self.path} is damaged ({error})"))
        # Once more: what we have just written tells a log of another file.
        await self._guard.check(is_alone=self.knows_all)
        self._check_keys()
        if self.knows_all:
            return
        await self._reap_workers()
        if not self._workers.others(self._reader) and self._workers.try_alone():
            # No process can have begun to write since: a newcomer waits for us to notice it.
            self.knows_all = True
            # The last ring for what the others wrote: alone, this process looks no more.
            self._ring()
        elif not self.knows_all:
            # Trying in vain gave up the lock we had.
            self._workers.try_shared()

    def _check_keys(self) -> None:
        """Tell, once, what would keep the next process from opening the file."""
        trouble = self._seals.trouble(self._reader)
        if trouble and trouble != self._trouble:
            logger.error("%s", trouble)
        self._trouble = trouble

    def _renew_in(self, connection: apsw.Connection) -> None:
        self._workers.renew(connection)
        self._generations.count_renewal(connection)

    @property
    def lapses(self) -> int:
        """How often other workers had taken this one for dead."""
        return self._workers.lapses

    async def is_live(self, worker: int) -> bool:
        """Tell whether a worker's lease is valid."""
        return self._workers.is_live(self._reader, worker)

    async def lead(self, duty: Duty) -> bool:
        """Have a duty unless another worker that lives has it."""
        if self.is_read_only:
            return False
        leader = self._workers.leader(self._reader, duty)
        if leader:
            return leader == self.worker
        return await self.write_tx(lambda connection: self._workers.take_duty(connection, duty))

    def listen(self, heard: Heard) -> None:
        """Have a function called when another process may have written."""
        self._listeners.append(heard)

    def ring(self, rung: Rung) -> None:
        """The others see by themselves that the file changed."""

    def _ring(self, rung: Rung | None = None) -> None:
        # The file tells that it changed, not what changed in it.
        for heard in self._listeners:
            heard(rung)

    async def troubles(self) -> Sequence[StoreTrouble]:
        """Return nothing: a file that fails is broken, and does not come back."""
        return ()

    async def size(self) -> StoreSize:
        """Return the bytes of the file and its journal, and what is left beside them."""
        return await asyncio.to_thread(_size, self.path)

    async def broken(self) -> StoreBroken:
        """Return why, when the disk lost a write or the file is lost."""
        await self._writer.broken.wait()
        assert self._writer.fault is not None
        return self._writer.fault

    # Writing

    def submit(self, write: Write, done: Done) -> None:
        """Queue the write for the next commit."""
        self._writer.submit(write, done)

    async def withheld(self, number: int) -> dict[int, bytes]:
        """Return what a task's log does not show."""
        if rows := self._rows("withheld", (number,)):
            await self.prepare()
        return {seq: self._seals.answered(number, seq, body) for seq, body in rows}

    # Leases

    async def workers(self) -> list[WorkerFacts]:
        """Return the workers that have a row."""
        return await Inspection(self._reader, self.path, 0, self._clock, self.worker).workers()

    async def claim(self, agent: str, limit: int) -> list[tuple[TaskRow, int]]:
        """Take over tasks of dead workers; most often there are none, which one look-up tells."""
        if self.is_read_only or not self._rows("abandoned", {"agent": agent, "limit": 1}):
            return []
        claimed: list[Row] = []
        # Workers that died with more than one task under way.
        crowds: set[int] = set()

        def claim(connection: apsw.Connection) -> None:
            claimed.extend(
                run(connection, self._sql["abandoned"], {"agent": agent, "limit": limit})
            )
            holders = msgspec.json.encode([row[-1] for row in claimed]).decode()
            run(connection, self._sql["note_crowds"], (holders,))
            crowds.update(number for (number,) in run(connection, self._sql["crowds"]))
            run(
                connection,
                self._sql["claim"],
                (self.worker, msgspec.json.encode([row[0] for row in claimed]).decode()),
            )
            run(connection, self._sql["forget_crowds"])

        await self._do(claim)
        return [
            (
                msgspec.structs.replace(head, fence=head.fence + 1, holder=self.worker),
                -head.holder if head.holder in crowds else head.holder,
            )
            for head in (self._head(row) for row in claimed)
        ]

    async def notes(self, number: int) -> list[Note]:
        """Return what was left for the holder of a task."""
        if rows := self._rows("notes", (number,)):
            await self.prepare()
        return [Note(note, self._seals.noted(number, body)) for note, body in rows]

    async def noted(self, agent: str) -> list[TaskRow]:
        """Return the tasks we hold that have notes."""
        return [self._head(row) for row in self._rows("noted", (self.worker, agent))]

    async def overdue(self, agent: str, now: int) -> list[TaskRow]:
        """Return the tasks that should have ended; forget the deadlines of those that did."""
        met = [row[0] for row in self._rows("met_deadlines", (now,))]
        if met:
            numbers = msgspec.json.encode(met).decode()
            await self._do(lambda c: run(c, self._sql["drop_deadlines"], (numbers,)))
        return [self._head(row) for row in self._rows("overdue", (now, agent))]

    # Pushes

    async def put_push(
        self, number: int, config: PushConfig, after: int, *, most: int
    ) -> Push | None:
        """Keep a receiver."""
        return await self._pushes.put(number, config, after, most)

    async def drop_push(self, number: int, config_id: str) -> None:
        """Forget a receiver."""
        await self._pushes.drop(number, config_id)

    async def pushes(self, number: int) -> list[Push]:
        """Return a task's receivers."""
        return self._pushes.of(number)

    async def claim_pushes(self, limit: int) -> list[Push]:
        """Take over receivers of dead workers."""
        return await self._pushes.claim(limit)

    async def settle(self, push: Push, letter: DeadLetter | None = None) -> None:
        """Record how far a receiver is."""
        await self._pushes.settle(push, letter)

    async def drop_letter(self, push: int, seq: int) -> None:
        """Forget a dead letter."""
        await self._do(lambda c: run(c, self._sql["drop_letter"], (push, seq)))

    async def reopen_push(self, push: int) -> None:
        """Have a receiver that was given up delivered to again."""
        await self._do(lambda c: run(c, self._sql["reopen_push"], (push,)))

    async def dead_letters(
        self, limit: int, *, before: tuple[int, int, int] | None = None
    ) -> list[DeadLetter]:
        """Return what was never taken."""
        return self._pushes.dead_letters(limit, before)

    async def letters_of(self, number: int) -> list[DeadLetter]:
        """Return what receivers of a task never took."""
        return self._pushes.letters_of(number)

    async def receivers(
        self, *, limit: int, before: int = 0, failing: bool = False
    ) -> list[tuple[Push, int]]:
        """Return receivers of all tasks, latest first."""
        values = {"before": before or LATEST, "failing": int(failing), "limit": limit}
        query, loop = self._sql["receivers"], asyncio.get_running_loop()
        rows = await loop.run_in_executor(self._scanner, run, self._scans, query, values)
        lines = [receiver_line(row) for row in rows]
        return [(push.without_secrets(), last) for push, last in lines]

    # Forgetting

    async def prune(self, *, ended_before: int, keep: int) -> int:
        """Forget in small transactions, so that no writer waits long for one of them."""
        return await prune(self, self._sql, self._words, ended_before, keep)

    # Words

    async def unindexed(self, limit: int, *, newest: bool = False) -> list[TaskRow]:
        """Return tasks whose words the index does not have as they are now."""
        return await self._words.unindexed(limit, newest)

    async def index_words(self, tasks: Sequence[TaskWords]) -> None:
        """Record the words of tasks."""
        await self._words.add(tasks)

    async def search(self, survey: Survey, words: Sequence[str]) -> TasksFound:
        """Return tasks by their words."""
        return await self._words.search(survey, words)

    # For the parts of the store beside tasks

    async def write_tx(self, deed: Callable[[apsw.Connection], T]) -> T:
        """Run a function in a write transaction of its own; return what it returns."""
        results: list[T] = []

        def chore(connection: apsw.Connection) -> None:
            results.append(deed(connection))

        await self._do(chore)
        return results[-1]

    @property
    def seals(self) -> Seals:
        """Seals and opens secrets."""
        return self._seals

    async def _do(self, chore: Chore) -> None:
        """Run a chore on the writer's thread in a transaction of its own."""
        await write(self._writer, chore)


def _size(path: Path) -> StoreSize:
    used = 0
    for suffix in ("", "-wal"):
        with contextlib.suppress(FileNotFoundError):
            used += path.with_name(path.name + suffix).stat().st_size
    import shutil

    return StoreSize(used, shutil.disk_usage(path.parent).free, migrations()[-1][0])
