"""The SQLite store: writes through one thread, point reads on the loop, scans on a second thread.

A point read is an index look-up in a local file and takes microseconds, less than handing it to a
thread would.
"""

import asyncio
import contextlib
import functools
import logging
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import apsw
import msgspec

from dragoman.config import make_data_folder
from dragoman.errors import ConfigError, StoreBroken, StoreDamaged, StoreLost, StoreRefused
from dragoman.model.identity import ContextId, Principal, Scope, TaskId
from dragoman.model.push import PushConfig
from dragoman.model.record import Recorded, TaskReading
from dragoman.stores.interface import (
    READ_BYTES,
    DeadLetter,
    Done,
    Found,
    Head,
    KeepReply,
    Known,
    Note,
    Push,
    Query,
    Sealing,
    Snapshot,
    Standing,
    Survey,
    Write,
)
from dragoman.stores.sqlite.filter import KeyFilter
from dragoman.stores.sqlite.generations import Generations, check_log, has_log
from dragoman.stores.sqlite.leftovers import check_leftovers, is_served_without_log
from dragoman.stores.sqlite.opening import absolute, check_writable, explaining, without_log
from dragoman.stores.sqlite.pushes import Pushes
from dragoman.stores.sqlite.schema import Row, check, close, connect, migrate, queries, rows_of, run
from dragoman.stores.sqlite.seals import Seals
from dragoman.stores.sqlite.watch import FileWatch, Loss, Part
from dragoman.stores.sqlite.workers import Workers, machine_time
from dragoman.stores.sqlite.writer import (
    MAX_SEQ,
    SEQ_BITS,
    STATE_NUMBERS,
    Bookkeeping,
    Chore,
    Writer,
    keep,
    scope_number,
)

logger = logging.getLogger("dragoman")

T = TypeVar("T")

_STATES = {number: state for state, number in STATE_NUMBERS.items()}
_PRUNE_STEP = 200
_EVERYTHING = 1 << 62
_CHUNK = b'{"artifactUpdate"'
# Seconds between two looks: for others who want in, and for what others wrote.
_LOOK_ALONE = 0.1
_LOOK_SHARED = 0.02
# And for others who ended.
_BURY_EVERY = 0.5
# Seconds before the file is looked at again that could not be.
_AFTER_TROUBLE = 1.0
# How often a loss has to be seen before it is one, and seconds between two looks.
_LOOKS = 3
_BETWEEN_LOOKS = 0.05
# How often a newcomer looks whether a process that ends has gone.
_CLOSING_TRIES = 10
# Seconds until the secret is looked for though nobody needs it yet.
_PREPARE_AFTER = 1.0


class SQLiteStore:
    """Tasks and their logs in one file, which several processes of one machine may share.

    A process that is alone knows all keys there are; one that shares the file asks the file.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        lease: float = 30.0,
        synchronous: str = "full",
        clock: Callable[[], int] = machine_time,
        sealing: Sealing | None = None,
        books: Bookkeeping | None = None,
        makes_folder: bool = False,
        is_new: bool = False,
    ) -> None:
        """`makes_folder`: it is in the user's data folder, which is ours to make. `is_new`: the
        operator wants an empty store where one was that is gone."""
        self.path = absolute(path)
        self._makes_folder = makes_folder
        self._is_new = is_new
        self._books = books
        self._synchronous = synchronous
        self._seals = Seals(sealing)
        self._secret = b""
        self._preparing: asyncio.Task[None] | None = None
        self.worker = 0
        self.is_alone = False
        self._sql = queries()
        self._scopes: dict[Scope, int] = {}
        self._parts: dict[int, Scope] = {}
        self._workers = Workers(self.path, lease, clock)
        self._generations = Generations(self.path)
        self._watch: FileWatch | None = None
        self._noticing: asyncio.Task[None] | None = None
        self._keeps_log = False
        # With the key of what is sealed, as it was last told.
        self._trouble = ""
        self._patience = lease + 5.0
        # Which keys there may be. Exact in saying no, while no other process writes the file.
        self._filter: KeyFilter | None = None
        self._arriving: list[bytes] = []
        self._learning = 0
        self._chores: list[asyncio.Task[None]] = []
        self._listeners: list[Callable[[], None]] = []
        self._seen: int | None = None
        self._buried_at = 0.0

    async def open(self) -> None:
        """Create or migrate the file and join those who work on it."""
        with explaining(self.path):
            await self._open()

    async def _open(self) -> None:
        await self._check_files()
        had_log = has_log(self.path)
        # What callers said is nobody else's on this machine. Never opened if it is there: to close
        # it would drop the locks of other connections in this process.
        with contextlib.suppress(FileExistsError):
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        check(str(self.path))
        connection = connect(str(self.path), self._synchronous)
        try:
            migrate(connection)
            self._seals.prepare(connection)
            self._workers.join(connection)
            self.worker = self._workers.number
            await self._find_company(connection)
            if self.is_alone:
                self._generations.begin(connection, self._workers.lock, had_log=had_log)
            else:
                self._generations.join(connection)
        except BaseException:
            self._workers.close()
            connection.close()
            raise
        self._writer = Writer(connection, self.worker, self._seals)
        self._writer.books = self._books
        self._writer.on_trouble = self._look_soon
        self._scanner = ThreadPoolExecutor(1, "dragoman-reader")
        self._reader = connect(str(self.path))
        run(self._reader, "PRAGMA query_only = on")
        self._scans = connect(str(self.path))
        run(self._scans, "PRAGMA query_only = on")
        self._pushes = Pushes(
            self._reader, self._sql, self._part, self._do, self.worker, self._seals, self.prepare
        )
        self._watch = FileWatch(self.path, self._generations.current, self._workers.files())
        loop = asyncio.get_running_loop()
        if self.is_alone:
            self._chores.append(loop.create_task(self._learn_keys()))
        self._chores.append(loop.create_task(self._keep_company()))
        self._chores.append(loop.create_task(self._prepare_soon()))

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
        """What we seal with what we hand out. Made and opened after the start, or when it is first
        needed: that takes longer than all the rest of a start."""
        if not self._secret:
            self._find_secret()
        return self._secret

    def _find_secret(self) -> None:
        # A connection of its own: this may run in a thread.
        connection = connect(str(self.path), self._synchronous)
        try:
            self._secret = self._seals.secret(connection) or self._seals.make_secret(connection)
        finally:
            connection.close()

    async def prepare(self) -> None:
        """Have `secret` at hand, without keeping the loop waiting for the cipher and the disk."""
        if self._secret:
            return
        if self._preparing is None:
            finding = asyncio.to_thread(self._find_secret)
            self._preparing = asyncio.get_running_loop().create_task(finding)
            self._preparing.add_done_callback(self._prepared)
        # Others may wait for it too.
        await asyncio.shield(self._preparing)

    def _prepared(self, _: asyncio.Task[None]) -> None:
        self._preparing = None

    async def _prepare_soon(self) -> None:
        """Prepare once the start is over: until then everything else is more urgent."""
        await asyncio.sleep(_PREPARE_AFTER)
        try:
            await self._notice()
            await self.prepare()
            await self._empty_log()
            await self._notice()
        except StoreBroken:
            return
        except Exception:
            # Whoever needs it tries again, and is told.
            logger.exception("the store's secret cannot be read")

    async def _empty_log(self) -> None:
        """Bring the log into the file as far as others let us: from then on the file itself tells
        whether it is still ours."""
        await self.look(lambda scans: run(scans, "PRAGMA wal_checkpoint(passive)"))

    async def _find_company(self, connection: apsw.Connection) -> None:
        """Find out whether anyone else lives here; if so, wait until they know of us."""
        until = asyncio.get_running_loop().time() + self._patience
        while True:
            living = [n for n in self._workers.others(connection) if not self._bury(connection, n)]
            if not living and self._workers.try_alone():
                self.is_alone = True
                return
            # Someone who has not noticed us for a whole lease is frozen, and its lease has ended.
            if self._workers.try_shared() or asyncio.get_running_loop().time() > until:
                return
            await asyncio.sleep(_LOOK_ALONE / 2)

    def _bury(self, connection: apsw.Connection, number: int) -> bool:
        self._workers.bury(connection, number)
        return number not in self._workers.others(connection)

    async def close(self) -> None:
        """Finish pending writes, give back what we hold and let go of the file."""
        for chore in self._chores:
            chore.cancel()
        await asyncio.gather(*self._chores, return_exceptions=True)
        self._chores.clear()
        if self._noticing is not None:
            await asyncio.gather(self._noticing, return_exceptions=True)
        if self._preparing is not None:
            await asyncio.gather(self._preparing, return_exceptions=True)
        # If the disk does not take it, others find out by our locks.
        with contextlib.suppress(StoreRefused):
            await self._do(self._workers.leave)
        await self._writer.close(keeps_log=self._keeps_log)
        # Before the log goes with the last connection: a log is missing only of those who live.
        self._workers.close()
        await asyncio.to_thread(self._scanner.shutdown)
        close(self._reader, keeps_log=self._keeps_log)
        close(self._scans, keeps_log=self._keeps_log)
        self.is_alone, self._filter = False, None

    # Company

    async def _keep_company(self) -> None:
        """Notice others who come and go, and what they write."""
        while True:
            began = time.monotonic()
            pause = 0.0
            try:
                if self.is_alone:
                    # Others may have come and gone while we were frozen.
                    if self._workers.others(self._reader) or not self._is_listed():
                        await self._share()
                else:
                    await self._look_around()
            except Exception:
                # Whatever it was, whoever waits for others' writes depends on the next look.
                if self._writer.fault is not None:
                    return
                logger.exception("the file could not be looked at; trying again")
                self._look_soon()
                pause = _AFTER_TROUBLE
            pause = max(pause, 4 * (time.monotonic() - began))
            await asyncio.sleep(max(_LOOK_ALONE if self.is_alone else _LOOK_SHARED, pause))

    async def _look_around(self) -> None:
        """Tell of what others wrote, and bury those who ended: their tasks wait."""
        version = self._writer.version
        # While ours wait, somebody writes.
        if version != self._seen or self._writer.is_waiting:
            self._seen = version
            if not self._is_listed():
                await self._do(self._workers.renew)
            for changed in self._listeners:
                changed()
            # Whoever is woken reads: give them their time before the next look.
            await asyncio.sleep(0)
        if time.monotonic() > self._buried_at + _BURY_EVERY:
            self._buried_at = time.monotonic()
            await self._bury_dead()

    async def _bury_dead(self) -> None:
        for number in self._workers.others(self._reader):
            if not self._workers.is_live(self._reader, number):
                await self._do(functools.partial(self._workers.bury, number=number))

    def _is_listed(self) -> bool:
        return self._workers.is_listed(self._reader)

    async def _share(self) -> None:
        """Stop relying on being alone, then let the newcomer in."""
        self.is_alone = False
        self._filter = None
        await self._writer.flush()
        self._workers.try_shared()

    async def renew(self) -> None:
        """Prolong our lease, bury the dead, and notice when nobody else is left, or when the file
        is lost."""
        await self._notice()
        try:
            if self.is_alone and not self._is_listed():
                await self._share()
            await self._do(self._renew_in)
        except (StoreDamaged, apsw.CorruptError, apsw.NotADBError) as error:
            await self._give_up(Loss(Part.FILE, f"{self.path} is damaged ({error})"))
        # Once more: what we have just written tells a log of another file.
        await self._notice()
        self._check_keys()
        if self.is_alone:
            return
        await self._bury_dead()
        if not self._workers.others(self._reader) and self._workers.try_alone():
            # Nobody can have begun to write since: a newcomer waits for us to notice it.
            self.is_alone = True
            self._chores = [chore for chore in self._chores if not chore.done()]
            self._chores.append(asyncio.get_running_loop().create_task(self._learn_keys()))
            # Nobody looks any more: what the others wrote last is told here.
            for changed in self._listeners:
                changed()
        elif not self.is_alone:
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

    async def _notice(self) -> None:
        """Look whether the files are still those we opened; raises `StoreBroken` if not."""
        if self._writer.fault is not None:
            raise self._writer.fault
        loss = await self._loss()
        if loss is not None:
            await self._give_up(loss)
        elif self.is_alone and self._watch is not None and self._watch.is_settled:
            # On a full disk the next renewal does it.
            with contextlib.suppress(OSError):
                self._generations.settle(self._workers.lock)

    async def _loss(self) -> Loss | None:
        """Return what is lost. More than one look has to see it: another process may be bringing
        the log into the file, or beginning it anew."""
        loss = None
        for _ in range(_LOOKS):
            loss = self._watch.loss(self._reader) if self._watch is not None else None
            if loss is None:
                return None
            await asyncio.sleep(_BETWEEN_LOOKS)
        return loss

    async def _rescue(self) -> bool:
        """Bring the log that lost its name into the file; true: the file has everything."""
        try:
            (found,) = await self.look(lambda scans: run(scans, "PRAGMA wal_checkpoint(full)"))
            is_busy, frames, kept = found
            is_whole = not is_busy and frames == kept
            if is_whole:
                self._generations.close_whole(self._workers.lock)
        except (apsw.Error, OSError):
            return False
        return is_whole

    async def _give_up(self, loss: Loss) -> NoReturn:
        """Acknowledge nothing more, save what can be, and tell."""
        self._writer.refuse_all(StoreLost(loss.sentence()))
        # What has the names now is not ours to change or to delete.
        self._keeps_log = loss.part is not Part.LOCK
        is_rescued = loss.part is Part.LOG_NAME and await self._rescue()
        fault = StoreLost(loss.sentence(is_rescued=is_rescued))
        self._writer.give_up(fault)
        raise fault

    def _look_soon(self) -> None:
        """Look at the files before the next renewal: something went wrong."""
        if self._noticing is None or self._noticing.done():
            self._noticing = asyncio.get_running_loop().create_task(self._look_again())

    async def _look_again(self) -> None:
        with contextlib.suppress(StoreBroken):
            await self._notice()

    @property
    def lapses(self) -> int:
        """How often others had taken us for dead."""
        return self._workers.lapses

    def is_live(self, worker: int) -> bool:
        """Tell whether a worker's lease is valid."""
        return self._workers.is_live(self._reader, worker)

    def listen(self, changed: Callable[[], None]) -> None:
        """Have a function called when another process may have written."""
        self._listeners.append(changed)

    async def broken(self) -> StoreBroken:
        """Return why, when the disk lost a write or the file is lost."""
        await self._writer.broken.wait()
        assert self._writer.fault is not None
        return self._writer.fault

    # Writing

    def submit(self, write: Write, done: Done) -> None:
        """Queue the write for the next commit."""
        if self.is_alone:
            self._note_keys(write)
        self._writer.submit(write, done)

    def _note_keys(self, write: Write) -> None:
        keys = [write.key] if isinstance(write, KeepReply) else write.keys
        if self._filter is None:
            self._arriving.extend(keys)
        else:
            for key in keys:
                self._filter.add(key)

    async def _learn_keys(self) -> None:
        """Learn all keys in the background; until then every look-up asks the file."""
        self._learning += 1
        learning = self._learning
        self._arriving.clear()
        loop = asyncio.get_running_loop()
        # What is on its way may be missed by the scan.
        await self._writer.flush()
        known = await loop.run_in_executor(self._scanner, self._scan_keys)
        if not self.is_alone or learning != self._learning:
            # Others came meanwhile, and may have gone again: a later scan knows more.
            return
        for key in self._arriving:
            known.add(key)
        self._arriving.clear()
        self._filter = known

    def _scan_keys(self) -> KeyFilter:
        known = KeyFilter()
        for (key,) in rows_of(self._scans, self._sql["keys"], ()):
            known.add(key)
        return known

    async def known(self, scope: Scope, key: bytes) -> Known | None:
        """Return what a key stands for."""
        number = self._scope(scope)
        if number is None or (self._filter is not None and key not in self._filter):
            return None
        rows = self._rows("known", (number, key))
        if not rows:
            return None
        task_id, reply = rows[0]
        return Known(TaskId(task_id or ""), reply or b"")

    async def head(self, scope: Scope, task_id: TaskId) -> Head | None:
        """Return a task's row."""
        number = self._scope(scope)
        if number is None:
            return None
        rows = self._rows("head", (task_id, number))
        return self._head(rows[0]) if rows else None

    async def at_rest(
        self, scope: Scope, task_id: TaskId
    ) -> tuple[Head, TaskReading | None] | None:
        """Return a task's row and, if it rests, the task."""
        number = self._scope(scope)
        if number is None:
            return None
        rows = self._rows("at_rest", (task_id, number))
        if not rows:
            return None
        *columns, seq, head, artifacts = rows[0]
        reading = None
        if seq is not None:
            reading = TaskReading(seq, body=Snapshot(seq, head, artifacts).whole())
        return self._head(tuple(columns)), reading

    async def read(
        self,
        number: int,
        *,
        after: int,
        limit: int,
        artifacts: bool = True,
        size: int = READ_BYTES,
    ) -> list[Recorded]:
        """Return the events after a position."""
        first = number << SEQ_BITS
        name = "read" if artifacts else "read_without_artifacts"
        rows = rows_of(
            self._reader, self._sql[name], (first | min(after, MAX_SEQ), first | MAX_SEQ)
        )
        events: list[Recorded] = []
        with contextlib.closing(rows):
            for last, count, bodies in rows:
                # The first row may begin before the position asked for.
                for seq, body in enumerate(bodies.split(b"\n"), last - count + 1):
                    if seq > after and (artifacts or not body.startswith(_CHUNK)):
                        events.append(Recorded(seq, body=body))
                        size -= len(body)
                        if len(events) >= limit or size <= 0:
                            return events
        return events

    async def snapshot(self, number: int, *, artifacts: bool = True) -> TaskReading | None:
        """Return the task at its last resting point."""
        rows = self._rows("snapshot" if artifacts else "snapshot_head", (number,))
        if not rows:
            return None
        snapshot = Snapshot(*rows[0])
        return TaskReading(snapshot.seq, body=snapshot.whole() if artifacts else snapshot.head)

    async def withheld(self, number: int) -> dict[int, bytes]:
        """Return what a task's log does not show."""
        if rows := self._rows("withheld", (number,)):
            await self.prepare()
        return {seq: self._seals.answered(number, seq, body) for seq, body in rows}

    async def stored(self, principal: Principal) -> int:
        """Return how many bytes the logs of a principal's tasks have."""
        whose = principal.tenant, *principal.owners()
        rows = await self.look(lambda connection: run(connection, self._sql["stored"], whose))
        return int(rows[0][0])

    async def page(self, query: Query) -> Found:
        """Return one page; totals without a filter come from counters."""
        number = self._scope(query.scope)
        if number is None:
            return Found([], 0)
        values: dict[str, Any] = {
            "scope": number,
            "context": query.context_id,
            "state": STATE_NUMBERS[query.state] if query.state is not None else None,
            "since": 0 if query.status_since is None else query.status_since,
            "status_at": query.after[0] if query.after else _EVERYTHING,
            "number": query.after[1] if query.after else _EVERYTHING,
            "limit": query.limit,
            "agent": query.errand_for,
        }
        if query.errand_for:
            page, total = "page_of_agent", "total_of_agent"
        elif query.context_id:
            page, total = "page_of_context", "total_of_context"
        else:
            page = "page" if query.state is None else "page_of_state"
            total = "total" if query.status_since is None else "total_since"
        loop = asyncio.get_running_loop()
        rows, count = await loop.run_in_executor(
            self._scanner, self._scan, self._sql[page], self._sql[total], values
        )
        return Found([self._head(row) for row in rows], count)

    async def survey(self, survey: Survey) -> list[Head]:
        """Return tasks whoever they belong to, in the order of their numbers."""
        values: dict[str, Any] = {
            "id": survey.task_id,
            "agent": survey.agent,
            "tenant": survey.tenant,
            "owner": survey.owner,
            "state": STATE_NUMBERS[survey.state] if survey.state is not None else None,
            "before": survey.before or _EVERYTHING,
            "limit": survey.limit,
        }
        query = self._sql["survey_of_id" if survey.task_id else "survey"]
        loop = asyncio.get_running_loop()
        rows = await loop.run_in_executor(self._scanner, run, self._scans, query, values)
        return [self._head(row) for row in rows]

    def _scan(self, page: str, total: str, values: dict[str, Any]) -> tuple[list[Row], int]:
        # One transaction, so that the page and its total speak of the same moment.
        run(self._scans, "BEGIN")
        try:
            rows = run(self._scans, page, values)
            ((count,),) = run(self._scans, total, values)
        finally:
            run(self._scans, "COMMIT")
        return rows, count

    # Leases

    async def claim(self, agent: str, limit: int) -> list[tuple[Head, int]]:
        """Take over what the dead left; most often nothing, which one look tells."""
        if not self._rows("abandoned", {"agent": agent, "limit": 1}):
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

    async def noted(self, agent: str) -> list[Head]:
        """Return the tasks we hold that have notes."""
        return [self._head(row) for row in self._rows("noted", (self.worker, agent))]

    async def overdue(self, agent: str, now: int) -> list[Head]:
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
        """Take over receivers nobody delivers to."""
        return await self._pushes.claim(limit)

    async def settle(self, push: Push, letter: DeadLetter | None = None) -> None:
        """Record how far a receiver is."""
        await self._pushes.settle(push, letter)

    async def dead_letters(self, limit: int) -> list[DeadLetter]:
        """Return what was never taken."""
        return self._pushes.dead_letters(limit)

    # Forgetting

    async def prune(self, *, ended_before: int, keep: int) -> int:
        """Forget in small transactions, so that writers wait for none of them long."""
        forgotten = 0
        while step := await self._prune_step(ended_before, keep):
            forgotten += step
        await self._do(lambda c: run(c, self._sql["forget_keys"], (ended_before,)))
        await self._do(lambda c: run(c, self._sql["forget_withheld_of_ended"]))
        return forgotten

    async def _prune_step(self, ended_before: int, keep: int) -> int:
        doomed: list[Row] = []

        def forget(connection: apsw.Connection) -> None:
            sql = self._sql
            doomed.extend(run(connection, sql["doomed_by_age"], (ended_before, _PRUNE_STEP)))
            surplus = run(connection, sql["ended"], ())[0][0] - len(doomed) - keep
            if surplus > 0 and not doomed:
                limit = min(surplus, _PRUNE_STEP)
                doomed.extend(run(connection, sql["doomed_by_number"], (limit,)))
            if not doomed:
                return
            last = run(connection, sql["last_number"], ())[0][0]
            retired = run(connection, sql["retired_number"], ())
            highest = max([last, *(row[0] for row in retired)])
            run(connection, sql["set_fact"], ("retired_number", highest))
            for number, scope, state in doomed:
                first = number << SEQ_BITS
                run(connection, sql["forget_events"], (first, first | MAX_SEQ))
                run(connection, sql["forget_snapshot"], (number,))
                run(connection, sql["forget_notes"], (number,))
                run(connection, sql["forget_deadline"], (number,))
                run(connection, sql["forget_withheld"], (number,))
                run(connection, sql["forget_letters"], (number,))
                run(connection, sql["forget_pushes"], (number,))
                run(connection, sql["forget_task"], (number,))
                run(
                    connection,
                    "UPDATE counts SET n = n - 1 WHERE scope = ? AND state = ?",
                    (scope, state),
                )

        await self._do(forget)
        return len(doomed)

    # For those who keep more than tasks in the file

    async def change(self, deed: Callable[[apsw.Connection], T]) -> T:
        """Do something in a transaction of its own; return what it returns."""
        results: list[T] = []

        def chore(connection: apsw.Connection) -> None:
            results.append(deed(connection))

        await self._do(chore)
        return results[-1]

    @property
    def seals(self) -> Seals:
        """What such readers and writers seal and open secrets with."""
        return self._seals

    async def look(self, reading: Callable[[apsw.Connection], T]) -> T:
        """Read something, however long that takes; nobody else waits for it."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._scanner, reading, self._scans)

    def glance(self, reading: Callable[[apsw.Connection], T]) -> T:
        """Read something small at once: everybody waits for it."""
        return reading(self._reader)

    async def _do(self, chore: Chore) -> None:
        """Run a chore on the writer's thread in a transaction of its own."""
        finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(error: Exception | None, _: int) -> None:
            if finished.done():
                return
            if error is None:
                finished.set_result(None)
            else:
                finished.set_exception(error)

        self._writer.submit(chore, done)
        await finished

    def _rows(self, name: str, values: tuple[Any, ...] | dict[str, Any]) -> list[Row]:
        return run(self._reader, self._sql[name], values)

    def _scope(self, scope: Scope) -> int | None:
        number = self._scopes.get(scope)
        if number is None:
            number = scope_number(self._reader, self._sql, scope)
            if number is not None:
                keep(self._scopes, scope, number)
        return number

    def _part(self, scope: int) -> Scope:
        found = self._parts.get(scope)
        if found is None:
            found = Scope(*self._rows("scope_parts", (scope,))[0])
            keep(self._parts, scope, found)
        return found

    def _head(self, row: Row) -> Head:
        number, task_id, context, scope, state, status_at, last_seq, fence, holder = row
        return Head(
            number,
            TaskId(task_id),
            ContextId(context),
            self._part(scope),
            Standing(_STATES[state], status_at, last_seq),
            fence,
            holder,
        )
