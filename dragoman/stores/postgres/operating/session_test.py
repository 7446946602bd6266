"""Whether an address leads to a session of our own: locks and LISTEN belong to a session.

A pooler that shares sessions by transaction takes both without a word, and loses them. So the
session is tried at start, while another one is in a transaction: what we heard, locked and were
called before has to be ours still. Where a pooler has an address of its own, both have to lead to
one database: the lock is looked for by the other way.
"""

import asyncio
from secrets import randbits, token_hex
from typing import Any

from dragoman.errors import ConfigError
from dragoman.stores.named_sql import statements
from dragoman.stores.postgres.connections import (
    LOST,
    Connection,
    DatabaseConnections,
    ServerError,
    unreachable,
)

# Seconds until a ring counts as lost.
HEARD_WITHIN = 5.0
_SQL = statements("dragoman.stores.postgres.operating", "session_test.sql")


async def check_session(connections: DatabaseConnections) -> None:
    """Refuse an address behind which sessions are shared, and one of another database; raises
    `ConfigError`."""
    try:
        session = await connections.session()
    except (*LOST, ServerError, ValueError) as error:
        name = "store_session_url" if connections.is_pooled else "store"
        raise unreachable(error, name) from None
    try:
        other = await connections.session()
    except BaseException:
        session.terminate()
        raise
    try:
        async with asyncio.timeout(HEARD_WITHIN):
            is_own = await _is_own(session, other)
            if is_own and connections.is_pooled:
                await _check_same(connections, session)
    except (*LOST, ServerError):
        is_own = False
    finally:
        session.terminate()
        other.terminate()
    if not is_own:
        raise ConfigError(
            "store: a pooler before PostgreSQL shares sessions by transaction, so that locks and "
            "wake-ups are lost; give the server's own address as store_session_url"
        )


async def _check_same(connections: DatabaseConnections, session: Connection) -> None:
    key = randbits(31)
    await session.fetchval(_SQL["lock"], key)
    ((is_seen,),) = await connections.rows(_SQL["sees_lock"], key)
    if not is_seen:
        raise ConfigError(
            "store_session_url: this is another database than that of the store; give the address "
            "by which the store's own database is reached without the pooler"
        )


async def _is_own(session: Connection, other: Connection) -> bool:
    heard, channel, key = asyncio.Event(), f"dragoman_{token_hex(8)}", randbits(31)

    def listener(*_: Any) -> None:
        heard.set()

    pid = await session.fetchval(_SQL["pid"])
    await session.add_listener(channel, listener)
    await session.fetchval(_SQL["lock"], key)
    async with other.transaction():
        # A pooler gives it the session that was used last: ours, if it can.
        is_same = await other.fetchval(_SQL["pid"]) != pid == await session.fetchval(_SQL["pid"])
        has_lock = await session.fetchval(_SQL["has_lock"], key)
    await other.execute(_SQL["notify"], channel)
    await heard.wait()
    return is_same and has_lock
