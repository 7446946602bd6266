"""The processes that share the database: which of them live, and that we do.

Three layers. An advisory lock of our session is free at once when we die. A beat, by the server's
clock, tells when we are frozen or cut off. The mark `gone_at` in our row is the truth: it is set
under the lock that our writes take, and from then on nothing of ours is accepted.

A session that is lost is opened again, and we go on under our number if we were not marked gone
meanwhile: a restart of the server costs no attempt of a task. For the same reason others are judged
with care. A restart or a failover ends all sessions at once: the free lock of a worker that was not
heard since then counts only once our own session is older than a grace. A server that was frozen or
away makes all beats late at once, so those of others count only once ours have come steadily for as
long as their lease: in that time the living were heard too. Only the server's clock is asked, and
only the mark ends a lease: whether a worker lives is whether it is not marked.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime, timedelta
from importlib.metadata import version

from dragoman.errors import StoreSuperseded
from dragoman.stores.named_sql import statements
from dragoman.stores.postgres.connections import (
    LOST,
    Connection,
    DatabaseConnections,
    NoConnection,
    ServerError,
    plain,
    state_of,
)
from dragoman.stores.postgres.schema import latest

logger = logging.getLogger("dragoman")

_SQL = statements("dragoman.stores.postgres", "workers.sql")
# Seconds between two signs of life, at most, and until one that is not answered counts as lost.
BEAT_EVERY = 0.3
ANSWER_WITHIN = 3.0
# Seconds between two looks at who has no session, and that a worker has to open its own again: a
# killed one is found within the sum of both.
LOOK_EVERY = 0.1
REOPEN_WITHIN = 0.25
# Seconds between two beats at most, for them to be steady.
_STEADY_WITHIN = 3.0
# Milliseconds that two clocks may differ and count as one.
_CLOCKS_AGREE = 2000
# Seconds that living workers have after a restart of the server to open their sessions again.
GRACE = 10.0
_BETWEEN_TRIES = 0.2
# Raised by the database to who does not know its schema.
_SUPERSEDED = "DR005"

# Signs of life do not wait for a standby: a frozen one would make all of us seem dead. The server
# lets go of a session whose client cannot be reached; until then its lock says that we live. If
# nothing is sent, the second probe that is not answered ends it, after two seconds. A wake-up that
# is sent just before begins the time anew, once, so it may take twice as long: together with the
# looks and the takeover that has to stay below five seconds.
_SESSION = """
SET synchronous_commit = local;
SET tcp_keepalives_idle = 1;
SET tcp_keepalives_interval = 1;
SET tcp_keepalives_count = 2;
SET tcp_user_timeout = 1900
"""

SessionOpened = Callable[[Connection], Awaitable[None]]


class Workers:
    """Our place among the workers."""

    def __init__(
        self, connections: DatabaseConnections, lease: float, grace: float = GRACE
    ) -> None:
        self._connections = connections
        self._lease = timedelta(seconds=lease)
        self._beat_every = min(BEAT_EVERY, lease / 4)
        self._look_every = min(LOOK_EVERY, self._beat_every)
        self._steady_within = timedelta(seconds=min(_STEADY_WITHIN, lease / 3))
        self._grace = grace
        self.number = 0
        # How often others had taken us for dead.
        self.lapses = 0
        # Milliseconds by which the server's clock is ahead of ours.
        self.clock_offset = 0
        self._session: Connection | None = None
        # Set when the session ends, so that the next one is opened before others miss it.
        self._lost = asyncio.Event()
        self._opened_at = 0.0
        self._beat_at = 0.0
        # Workers without a session, each with when it was last heard: since when we see that.
        self._absent: dict[tuple[int, datetime], float] = {}
        self._keeping: asyncio.Task[None] | None = None
        # A session does one thing at a time.
        self._using = asyncio.Lock()
        # Called with every new session, and when others died or we were taken for dead.
        self.on_session: list[SessionOpened] = []
        self.on_deaths: list[Callable[[], None]] = []
        # Set once we may not be a worker any more: a newer release changed the schema.
        self.superseded = asyncio.Event()

    async def join(self) -> None:
        """Become a worker; from here on the others know of us."""
        await self._open_session()
        await self._become()
        self._keeping = asyncio.get_running_loop().create_task(self._keep())

    async def leave(self) -> None:
        """Give back everything in good order."""
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)
        if self._session is not None:
            # If the server does not answer, others find out by our lock.
            with contextlib.suppress(*LOST, ServerError):
                async with asyncio.timeout(ANSWER_WITHIN), self._using:
                    await self._session.fetchval(_SQL["leave"], self.number)
            self._drop_session()

    async def vanish(self) -> None:
        """End as a crash would: nothing is given back. For tests."""
        # Before its task: a statement that is cancelled is called off at the server.
        self._drop_session()
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)
        self._drop_session()

    @property
    def session(self) -> Connection | None:
        """The session, if there is one at present."""
        return self._session

    @property
    def judges_sessions(self) -> bool:
        """Whether a free lock of another tells that it is dead, though it was not heard since the
        server's sessions began."""
        return time.monotonic() >= self._opened_at + self._grace

    async def is_live(self, number: int) -> bool:
        """Tell whether a worker's lease is valid."""
        if not number:
            return False
        rows = await self._connections.rows(_SQL["is_live"], number)
        return bool(rows[0][0])

    async def lead(self, duty: str) -> bool:
        """Have a duty unless another worker that lives has it."""
        ((is_ours, is_taken),) = await self._connections.rows(_SQL["leads"], duty, self.number)
        if is_ours or is_taken:
            return bool(is_ours)
        ((is_ours,),) = await self._connections.rows(_SQL["lead"], duty, self.number)
        return bool(is_ours)

    async def renew(self) -> None:
        """Give a sign of life, and mark the dead gone. Becomes another worker if we were."""
        async with asyncio.timeout(ANSWER_WITHIN), self._using:
            session = self._session
            if session is None:
                raise NoConnection("there is no session at present")
            is_worker, has_lock = await self._beat(session, self.number)
            if not is_worker:
                await self._lapse()
            elif not has_lock:
                await self._lock_again(session)
            self._beat_at = time.monotonic()
            dead = await session.fetch(_SQL["reap"], self.number, self.judges_sessions)
        if dead:
            self._tell_deaths()

    async def _look(self) -> None:
        """Mark those gone that have no session for longer than one that lives takes to open it
        again. The time is that of our own looks: how long before its end a worker was last heard
        says nothing."""
        async with asyncio.timeout(ANSWER_WITHIN), self._using:
            session = self._session
            if session is None:
                return
            now = time.monotonic()
            found = await session.fetch(_SQL["absent"], self.number)
            before = self._absent
            self._absent = {
                (number, heard_at): before.get((number, heard_at), now)
                for number, heard_at in found
            }
            absent = [
                number
                for (number, _), since in self._absent.items()
                if now - since >= REOPEN_WITHIN
            ]
            if not absent:
                return
            dead = await session.fetch(_SQL["bury_absent"], absent, self.judges_sessions)
        if dead:
            self._tell_deaths()

    async def rejoin(self, former: int) -> None:
        """Become another worker, unless we did since: what the former held may be another's."""
        async with self._using:
            if self.number == former:
                await self._lapse()

    async def _lapse(self) -> None:
        former = self.number
        await self._become()
        self.lapses += 1
        logger.warning("worker %d was taken for dead; going on as %d", former, self.number)
        self._tell_deaths()

    def _tell_deaths(self) -> None:
        for heard in self.on_deaths:
            heard()

    async def _become(self) -> None:
        session = self._session or await self._open_session()
        number = await self._joined(session)
        await session.fetchval(_SQL["lock"], number)
        await self._beat(session, number)
        self.number = number

    async def _joined(self, session: Connection) -> int:
        """Return a number of ours; raises `StoreSuperseded`."""
        try:
            return await session.fetchval(_SQL["join"], version("dragoman"), latest(), self._lease)
        except ServerError as error:
            if state_of(error) != _SUPERSEDED:
                raise
            self.superseded.set()
            raise StoreSuperseded(plain(error)) from None

    async def _lock_again(self, session: Connection) -> None:
        """Take our lock after a lost session. If it is not to be had yet, the next sign of life
        tries again: until a whole grace has passed, no other worker minds."""
        await session.fetch(_SQL["end_former"], self.number)
        await session.fetchval(_SQL["lock"], self.number)

    async def _beat(self, session: Connection, number: int) -> tuple[bool, bool]:
        """Give a sign of life; tell whether we are a worker, and whether our session has our
        lock."""
        before = _now()
        row = await session.fetchrow(_SQL["beat"], number, self._steady_within)
        is_worker, has_lock, theirs = row
        # As of the middle of the way there and back; a small difference is that of the way.
        offset = theirs - (before + _now()) // 2
        self.clock_offset = offset if abs(offset) > _CLOCKS_AGREE else 0
        return is_worker, has_lock

    async def _open_session(self) -> Connection:
        session = await self._connections.session()
        try:
            # Bounded: without signs of life nothing would notice that it is silent.
            async with asyncio.timeout(ANSWER_WITHIN):
                await session.execute(_SESSION)
                self._lost.clear()
                session.add_termination_listener(self._session_ended)
                self._session = session
                self._opened_at = time.monotonic()
                for heard in self.on_session:
                    await heard(session)
        except BaseException:
            session.terminate()
            raise
        return session

    def _session_ended(self, session: Connection) -> None:
        if session is self._session:
            self._lost.set()

    def _drop_session(self) -> None:
        if self._session is not None:
            self._session.terminate()
            self._session = None

    async def _keep(self) -> None:
        """Give signs of life and look at the others; open the session again when it is lost."""
        while True:
            with contextlib.suppress(TimeoutError):
                pause = until_next_look(self._absent.values(), time.monotonic(), self._look_every)
                async with asyncio.timeout(pause):
                    await self._lost.wait()
            try:
                is_lost = self._session is None or self._session.is_closed()
                if is_lost:
                    async with self._using:
                        await self._open_session()
                if is_lost or time.monotonic() >= self._beat_at + self._beat_every:
                    await self.renew()
                await self._look()
            except StoreSuperseded:
                self._drop_session()
                return
            except Exception as error:
                # Whatever it was: all that we hold depends on the next sign of life.
                if not isinstance(error, LOST):
                    logger.exception("a sign of life failed; trying again")
                else:
                    logger.warning("the session with PostgreSQL was lost (%s)", plain(error))
                self._drop_session()
                if isinstance(error, TimeoutError):
                    # Cut off: the other connections would wait for ever.
                    self._connections.drop()
                await asyncio.sleep(_BETWEEN_TRIES)


def until_next_look(absent_since: Iterable[float], now: float, every: float) -> float:
    """Return the seconds until the next look: it comes sooner where a worker has had its time to
    open a session by then. One that is still there after that is looked at as ever."""
    left = (since + REOPEN_WITHIN - now for since in absent_since)
    return min((seconds for seconds in left if 0 < seconds < every), default=every)


def _now() -> int:
    return time.time_ns() // 1_000_000
