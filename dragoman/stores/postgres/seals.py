"""What of the database is sealed: the store's secret, receivers' credentials, notes, withheld
answers, and what agents are shown that a gateway calls.

Which key to seal with stands in the database. Each transaction that writes something sealed says or
reads it under a lock that a change of key takes alone: once another key is named, nothing is
written under the old one, whichever process writes. A store that was given no way to seal keeps
everything in clear, and refuses a database that is sealed.
"""

import asyncio
from secrets import token_bytes

import msgspec

from dragoman.errors import ConfigError, StoreUnavailable
from dragoman.model.push import PushConfig
from dragoman.stores.interface import Sealing
from dragoman.stores.named_sql import statements
from dragoman.stores.postgres.connections import Connection, DatabaseConnections, Deadlock
from dragoman.stores.sealed_values import (
    SEALED_ROWS,
    SECRET,
    SECRET_BYTES,
    OpenedValues,
    SealedRows,
    of_answer,
    of_credential,
    of_note,
    resealed,
)

_SQL = statements("dragoman.stores.postgres", "seals.sql")
_AT_ONCE = 100
_decode_config = msgspec.json.Decoder(PushConfig).decode


class Seals(OpenedValues):
    """Seals and opens the values of one database."""

    def __init__(self, sealing: Sealing | None) -> None:
        super().__init__(sealing)
        # The key that was current when we last looked; None: nothing is sealed.
        self.key: bytes | None = None

    async def prepare(self, connection: Connection) -> None:
        """Refuse a database whose keys we do not have; seal one that never was."""
        async with connection.transaction():
            used = await keys_of(connection)
            if self._sealing is None:
                if used:
                    raise ConfigError(
                        "store: the database is sealed: a process that writes to it needs its key "
                        "(sealing=)"
                    )
                return
            if not used:
                # Others that come first at the same moment are waited for.
                await connection.execute(_SQL["lock"])
                used = await keys_of(connection)
            # It may make a key file.
            first = await asyncio.to_thread(self._sealing.ready, used)
            self.key = used[0] if used else first
            if not used:
                await self._seal_all(connection, first)

    async def check_keys(self, connections: DatabaseConnections) -> None:
        """Refuse a database whose keys we do not have; change nothing."""
        await self.refresh(connections)
        if self.key is not None and self._sealing is not None:
            used = [id for (id,) in await connections.rows(_SQL["keys"])]
            await asyncio.to_thread(self._sealing.ready, used)

    async def refresh(self, connections: DatabaseConnections) -> None:
        """Learn which key is current."""
        keys = [id for (id,) in await connections.rows(_SQL["keys"])]
        self.key = keys[0] if keys else None

    async def secret(self, connections: DatabaseConnections) -> bytes:
        """Return the store's secret, made here unless another process was first."""

        async def find(connection: Connection) -> bytes:
            async with connection.transaction():
                found = await self._secret(connection)
                if found is None and connections.is_read_only:
                    # It seals what is handed out for as long as this process runs.
                    return token_bytes(SECRET_BYTES)
                if found is None:
                    made = token_bytes(SECRET_BYTES)
                    await self._keep_secret(connection, made, await self._current(connection))
                    found = await self._secret(connection)
            assert found is not None
            return found

        return await connections.patiently(find)

    # For writes in groups: the server checks that the key they say is the current one

    def note(self, task: int, body: bytes) -> bytes:
        """Return a note as it is kept: a message in it may answer a sensitive question."""
        return self._sealed(body, of_note(task), self.key)

    def answer(self, task: int, seq: int, body: bytes) -> bytes:
        """Return what is withheld from a log as it is kept."""
        return self._sealed(body, of_answer(task, seq), self.key)

    def push(self, task: int, config: PushConfig) -> tuple[bytes, bytes | None]:
        """Return a receiver in two pieces: what may be read, and its secrets if it has any."""
        return self._push(task, config, self.key)

    # For writes in transactions of their own

    async def push_in(
        self, connection: Connection, task: int, config: PushConfig
    ) -> tuple[bytes, bytes | None]:
        """Return the same, sealed with the key that is current in this transaction."""
        return self._push(task, config, await self._current(connection))

    async def credential(self, connection: Connection, shown: bytes, body: bytes) -> bytes:
        """Return what an agent is shown when it is called, as it is kept: sealed with the key that
        is current in this transaction."""
        return self._sealed(body, of_credential(shown), await self._current(connection))

    async def _current(self, connection: Connection) -> bytes | None:
        return await connection.fetchval(_SQL["current_key"])

    def _push(self, task: int, config: PushConfig, key: bytes | None) -> tuple[bytes, bytes | None]:
        self._check(key)
        return self.push_parts(task, config, lambda value, at: self._sealed(value, at, key))

    def _sealed(self, plain: bytes, context: bytes, key: bytes | None) -> bytes:
        self._check(key)
        if self._sealing is None or key is None:
            return plain
        return self._sealing.seal(plain, context, key)

    def _check(self, key: bytes | None) -> None:
        if key is not None and self._sealing is None:
            raise StoreUnavailable("the store was sealed meanwhile: its key is needed")

    # The whole database

    async def _secret(self, connection: Connection) -> bytes | None:
        found = dict(await connection.fetch(_SQL["secrets"]))
        if "sealed_secret" in found:
            return self.open(found["sealed_secret"], SECRET)
        return found.get("secret")

    async def _keep_secret(self, connection: Connection, secret: bytes, key: bytes | None) -> None:
        name = "secret" if key is None else "sealed_secret"
        await connection.execute(_SQL["add_fact"], name, self._sealed(secret, SECRET, key))

    async def _seal_all(self, connection: Connection, key: bytes) -> None:
        """Seal what was kept in clear. No other writes anything of it meanwhile."""
        assert self._sealing is not None
        await connection.execute(_SQL["add_key"], key)
        if secret := await self._secret(connection):
            await self._keep_secret(connection, secret, key)
            await connection.execute(_SQL["drop_clear_secret"])
        for number, task, body in await connection.fetch(_SQL["clear_pushes"]):
            shown, sealed = self.push(task, _decode_config(body))
            await connection.execute(_SQL["set_push"], shown, sealed, number)
        for table in await tables(connection):
            await reseal(connection, self._sealing, key, table)


async def keys_of(connection: Connection) -> list[bytes]:
    """Return the keys that values in a database are sealed with, the one to seal with first."""
    return [id for (id,) in await connection.fetch(_SQL["keys"])]


async def tables(connection: Connection) -> list[SealedRows]:
    """Return where sealed values are; only a gateway's database has credentials of agents."""
    has_credentials = await connection.fetchval(_SQL["has_credentials"])
    return [one for one in SEALED_ROWS if has_credentials or one.rows != "credential_rows"]


async def reseal(
    connection: Connection, sealing: Sealing, key: bytes, table: SealedRows
) -> tuple[int, int]:
    """Seal the rows of a table anew, some in a transaction; return how many, and how many cannot
    be opened."""
    place, values, damaged = (0, -1), 0, 0
    while True:
        try:
            found = await _step(connection, sealing, key, table, place)
        except Deadlock:
            # Rolled back, for the sake of a server.
            continue
        if found is None:
            return values, damaged
        place = found[0]
        values += found[1]
        damaged += found[2]


async def _step(
    connection: Connection, sealing: Sealing, key: bytes, table: SealedRows, after: tuple[int, int]
) -> tuple[tuple[int, int], int, int] | None:
    """Seal some rows anew; return the place of the last one, or None if there are no more."""
    values = damaged = 0
    async with connection.transaction():
        rows = await connection.fetch(_SQL[table.rows], *after, key, _AT_ONCE)
        for value, first, second, shown in rows:
            fresh = resealed(sealing, key, value, table.context(first, second, shown))
            if fresh is None:
                damaged += 1
                continue
            await connection.execute(_SQL[table.update], fresh, first, second)
            values += 1
    return ((rows[-1][1], rows[-1][2]), values, damaged) if rows else None
