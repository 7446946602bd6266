"""The connections of one process: one that writes, a few that read, one session.

The session is a connection of its own for what belongs to a session: the advisory lock of a worker
and LISTEN. A pooler may stand between us and the server for the others, never for the session.
After any error of a connection it is dropped: what became of its last statement is unknown.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from typing import Any, NamedTuple, TypeVar, cast
from urllib.parse import urlsplit

import asyncpg  # pyright: ignore[reportMissingTypeStubs]  # it has none

from dragoman.errors import ConfigError, StoreFull, StoreReadOnly, StoreUnavailable
from dragoman.stores.named_sql import statements

logger = logging.getLogger("dragoman")

T = TypeVar("T")
Row = tuple[Any, ...]
# asyncpg's own types say too little for a strict checker.
Connection = Any

ServerError = asyncpg.PostgresError
NoConnection = asyncpg.InterfaceError
Deadlock = asyncpg.DeadlockDetectedError
LockTimeout = asyncpg.LockNotAvailableError
# A value that no row can have: a NUL in a text, a number out of range, a text too long to be found.
BadValue = (asyncpg.DataError, asyncpg.ProgramLimitExceededError)
# Rolled back for the sake of another transaction.
_ROLLED_BACK = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError)

# The disk or the memory of the server is full, or a timeout of the role ended the statement:
# nothing was done.
_UNABLE = (asyncpg.InsufficientResourcesError, asyncpg.QueryCanceledError)

# Connections that read, at most.
READERS = 8
# Seconds for a connection to come about, and for a read to be tried again on others.
CONNECT_WITHIN = 5.0
READ_WITHIN = 10.0
_BETWEEN_TRIES = 0.1
# Compiling a plan takes longer than any of ours runs.
_SETTINGS = {
    "application_name": "dragoman",
    "jit": "off",
    # What a machine that was cut off had locked is free again soon.
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "3",
}
_READ_ONLY = {"default_transaction_read_only": "on"}
# A commit that waits for a standby must not be given up: it is there already, and not at the
# standby. Whatever the role or the database says, nothing ends our writes but the server's end.
_NO_TIMEOUTS = statements("dragoman.stores.postgres", "connections.sql")["no_timeouts"]
# How PgBouncer refuses a client that brings settings: no server says so.
_POOLER = "unsupported startup parameter"
# What says that a connection is of no more use, or that the server is not (yet) a primary.
LOST = (
    OSError,
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    # A connection that was killed in the midst of a statement.
    asyncpg.InternalClientError,
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.ReadOnlySQLTransactionError,
    asyncpg.TooManyConnectionsError,
    asyncio.TimeoutError,
)


class CannotStore(StoreUnavailable):
    """Something is nothing that the server can store or look for."""


class Addresses(NamedTuple):
    """Where the database is. `session`: the same without a pooler; empty: there is none."""

    url: str
    session: str = ""

    @property
    def is_pooled(self) -> bool:
        """Whether statements of one connection may reach different sessions."""
        return bool(self.session) and self.session != self.url


class _Reader(asyncpg.Connection):  # pyright: ignore[reportUntypedBaseClass]
    """A connection of the pool. It needs no reset between two uses: nothing of ours outlives its
    transaction."""

    def get_reset_query(self) -> str:
        """Return nothing to say when it is given back."""
        return ""


class DatabaseConnections:
    """Opens, shares and drops connections."""

    def __init__(
        self, addresses: Addresses, *, readers: int = READERS, is_read_only: bool = False
    ) -> None:
        self._addresses = addresses
        # Whether the server is told to take no write of these connections.
        self.is_read_only = is_read_only
        self._readers = readers
        self._is_open = False
        self._pool: Any = None
        # One at a time makes the pool.
        self._making = asyncio.Lock()
        self._writer: Connection | None = None
        # Connections that are being opened for a task that was cancelled meanwhile.
        self._unwanted: set[asyncio.Task[Connection]] = set()
        # Whether a pooler is known not to answer.
        self.is_silent = False

    @property
    def is_pooled(self) -> bool:
        """Whether a pooler stands before the server."""
        return self._addresses.is_pooled

    async def open(self) -> None:
        """Connect once, to find out whether the address is right; raises `ConfigError`."""
        self._is_open = True
        try:
            self._writer = await self._connect_writer()
        except (*LOST, ServerError, ValueError) as error:
            await self.close()
            raise unreachable(error) from None

    async def close(self) -> None:
        """End all connections."""
        self._is_open = False
        self.drop()
        await asyncio.gather(*self._unwanted, return_exceptions=True)

    def drop(self) -> None:
        """Drop the connections at once, so that all that waits on one is told."""
        self.drop_writer()
        if self._pool is not None:
            self._pool.terminate()
            self._pool = None

    async def writer(self) -> Connection:
        """Return the connection that writes, made anew if it was dropped."""
        if self._writer is None or self._writer.is_closed():
            self._writer = await self._connect_writer()
        return self._writer

    async def _connect_writer(self) -> Connection:
        writer = await self._connect(self._addresses.url)
        if not self._addresses.is_pooled:
            try:
                # Bounded: what could drop it does not know of it yet.
                await writer.execute(_NO_TIMEOUTS, timeout=CONNECT_WITHIN)
            except BaseException:
                writer.terminate()
                raise
        return writer

    def drop_writer(self) -> None:
        """Drop the connection that writes."""
        if self._writer is not None:
            self._writer.terminate()
            self._writer = None

    async def session(self) -> Connection:
        """Return a new connection that no pooler shares."""
        return await self._connect(
            self._addresses.session or self._addresses.url, statement_cache_size=100
        )

    async def pooled(self) -> Connection:
        """Return a new connection to the pooler."""
        return await self._connect(self._addresses.url)

    async def rows(self, sql: str, *values: Any) -> list[Row]:
        """Return the rows of a statement that changes nothing, or does the same when repeated."""

        async def fetch(connection: Connection) -> list[Row]:
            return await connection.fetch(sql, *values)

        return await self.patiently(fetch)

    async def patiently(self, deed: Callable[[Connection], Awaitable[T]]) -> T:
        """Do something on one of the connections that read, again on another one while the server
        is away. The deed changes nothing, or does the same when it is repeated."""
        loop = asyncio.get_running_loop()
        until = loop.time() + READ_WITHIN
        while True:
            try:
                async with self._reader() as connection:
                    return await deed(connection)
            except (*LOST, *_ROLLED_BACK) as error:
                self._check_read_only(error)
                self.lost(error)
                if loop.time() > until or not self._is_open:
                    raise StoreUnavailable(f"PostgreSQL: {plain(error)}") from error
                await asyncio.sleep(_BETWEEN_TRIES)
            except BadValue as error:
                raise CannotStore(f"PostgreSQL: {plain(error)}") from error
            except _UNABLE as error:
                raise _unable(error) from error

    async def at_one_moment(self, read: Callable[[Connection], Awaitable[T]]) -> T:
        """Have all that is read be of the same moment; of a later one, from the beginning, if the
        server was away meanwhile."""

        async def deed(connection: Connection) -> T:
            async with connection.transaction(isolation="repeatable_read", readonly=True):
                return await read(connection)

        return await self.patiently(deed)

    def _check_read_only(self, error: BaseException) -> None:
        if self.is_read_only and isinstance(error, asyncpg.ReadOnlySQLTransactionError):
            raise StoreReadOnly from None

    def lost(self, error: BaseException) -> None:
        """Hear what a connection was lost by. A server that takes no writes is no primary any
        more: nothing stays connected to it."""
        if isinstance(error, asyncpg.ReadOnlySQLTransactionError):
            self.drop()

    @contextlib.asynccontextmanager
    async def _reader(self) -> AsyncGenerator[Connection]:
        pool = self._pool or await self._made_pool()
        async with pool.acquire(timeout=CONNECT_WITHIN) as connection:
            try:
                yield connection
            except (*BadValue, asyncio.CancelledError):
                # A statement may have been begun and not sent whole; there is no reset to end it.
                connection.terminate()
                raise

    async def _made_pool(self) -> Any:
        async with self._making:
            if not self._is_open:
                raise StoreUnavailable("PostgreSQL: the store is closed")
            if self._pool is None:
                create_pool = cast("Callable[..., Awaitable[Any]]", asyncpg.create_pool)  # pyright: ignore[reportUnknownMemberType]
                self._pool = await create_pool(
                    self._addresses.url,
                    min_size=0,
                    max_size=self._readers,
                    max_inactive_connection_lifetime=300.0,
                    connection_class=_Reader,
                    connect=self._open_connection,
                    **self._options(self._addresses.url),
                )
            return self._pool

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncGenerator[Connection]:
        """Do what follows whole or not at all. Raises `StoreUnavailable` where the connection was
        lost: then it is unknown whether it happened; and what the server raises where it was
        rolled back, also for the sake of another."""
        try:
            async with (
                self._reader() as connection,
                connection.transaction(),
            ):
                yield connection
        except LOST as error:
            self._check_read_only(error)
            self.lost(error)
            raise StoreUnavailable(f"PostgreSQL: {plain(error)}") from error
        except BadValue as error:
            raise CannotStore(f"PostgreSQL: {plain(error)}") from error
        except _UNABLE as error:
            raise _unable(error) from error

    async def _connect(self, url: str, **options: Any) -> Connection:
        return await self._open_connection(url, **{**self._options(url), **options})

    async def _open_connection(self, url: str, **options: Any) -> Connection:
        """Open a connection. If its opener is cancelled, it is opened to its end and dropped:
        asyncpg, called off at a certain moment, leaves an error behind that no task can catch."""
        connect = cast("Callable[..., Coroutine[Any, Any, Connection]]", asyncpg.connect)  # pyright: ignore[reportUnknownMemberType]
        opening = asyncio.get_running_loop().create_task(connect(url, **options))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            self._unwanted.add(opening)
            opening.add_done_callback(self._drop_unwanted)
            raise

    def _drop_unwanted(self, opening: asyncio.Task[Connection]) -> None:
        self._unwanted.discard(opening)
        if not opening.cancelled() and opening.exception() is None:
            opening.result().terminate()

    def _options(self, url: str) -> dict[str, Any]:
        options: dict[str, Any] = {"timeout": CONNECT_WITHIN}
        if _names_several(url) and not self.is_read_only:
            # Of several servers, the one that takes writes.
            options["target_session_attrs"] = "read-write"
        if self._addresses.is_pooled:
            # A prepared statement stays with the session that a pooler takes away, and a pooler
            # takes no settings.
            options["statement_cache_size"] = 0
        else:
            options["server_settings"] = _SETTINGS | (_READ_ONLY if self.is_read_only else {})
        return options


def unreachable(error: BaseException, name: str = "store") -> ConfigError:
    """Return what to say of an address, by the error of the first connection."""
    if _POOLER in str(error):
        return ConfigError(
            f"{name}: a pooler before PostgreSQL does not pass our settings on; give the address "
            "of the pooler as store and the server's own as store_session_url"
        )
    return ConfigError(
        f"{name}: PostgreSQL cannot be reached ({plain(error)}); check the address, the user and "
        "whether the server runs"
    )


def _unable(error: ServerError) -> StoreUnavailable:
    kind = StoreFull if isinstance(error, asyncpg.DiskFullError) else StoreUnavailable
    return kind(f"PostgreSQL: {plain(error)}")


def _names_several(url: str) -> bool:
    """Tell whether an address has several hosts, and does not say which of them is meant."""
    parts = urlsplit(url)
    hosts = parts.netloc.rpartition("@")[2]
    return "," in hosts and "target_session_attrs=" not in parts.query


def state_of(error: ServerError) -> str:
    """Return the SQLSTATE of an error."""
    return str(getattr(error, "sqlstate", "") or "")


def plain(error: BaseException) -> str:
    """Return what an error says in one line, without the address's password."""
    text = str(error).splitlines()
    return text[0] if text else type(error).__name__
