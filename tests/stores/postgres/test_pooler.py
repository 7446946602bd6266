"""Behind a pooler that stops to answer while the server lives and our session is well, and a server
that lets us in and says no more."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from harness.waiting import eventually, within

from dragoman.errors import ConfigError, StoreUnavailable
from dragoman.stores.postgres import (
    Addresses,
    PostgresStore,
    connections,
    pooler_watch,
    workers,
)
from dragoman.testing.promises.samples import HERE, creation, head_of, write
from tests.stores.postgres.sharing_pooler import SharingPooler


@pytest.fixture
async def pooler(database: str) -> AsyncIterator[SharingPooler]:
    pooler = SharingPooler(database)
    yield pooler
    pooler.awake.set()
    await pooler.stop()


@pytest.fixture
async def store(
    database: str, pooler: SharingPooler, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[PostgresStore]:
    for module, name in (
        (pooler_watch, "LOOK_EVERY"),
        (pooler_watch, "ANSWER_WITHIN"),
        (connections, "READ_WITHIN"),
        (connections, "CONNECT_WITHIN"),
    ):
        monkeypatch.setattr(module, name, 0.5)
    store = PostgresStore(Addresses(await pooler.start(), database), grace=0)
    await store.open()
    yield store
    pooler.awake.set()
    await within(store.close())


async def parts(store: PostgresStore) -> list[str]:
    return [trouble.part for trouble in await store.troubles()]


async def test_a_frozen_pooler_is_said_and_reads_do_not_wait_for_ever(
    store: PostgresStore, pooler: SharingPooler
) -> None:
    await write(store, creation("t"))
    pooler.awake.clear()
    with pytest.raises(StoreUnavailable):
        await within(store.head(HERE, "t"))
    assert await eventually(lambda: parts(store)) == ["database"]
    pooler.awake.set()

    async def is_well() -> bool:
        return await parts(store) == []

    await eventually(is_well)
    await write(store, creation("u"))
    assert await head_of(store, "t") and await head_of(store, "u")


async def test_a_pooler_that_answers_is_left_alone(store: PostgresStore) -> None:
    looked = store._pooler_watch._looking._wake
    writer = await store._connections.writer()
    for _ in range(3):
        looked.set()
        await eventually(lambda: not looked.is_set())
    await write(store, creation("t"))
    assert await store._connections.writer() is writer and not await parts(store)


class Mute(SharingPooler):
    """Lets clients in, and answers nothing."""

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await self._greet(reader, writer)
            await reader.read()
        writer.close()


@pytest.fixture
async def mute(database: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    """Return the address of one."""
    monkeypatch.setattr(connections, "CONNECT_WITHIN", 0.5)
    monkeypatch.setattr(workers, "ANSWER_WITHIN", 0.5)
    mute = Mute(database)
    yield await mute.start()
    await mute.stop()


async def test_a_connection_that_is_silent_from_the_first_is_given_up(mute: str) -> None:
    """Nothing else would: it is not known to anybody yet."""
    with pytest.raises(ConfigError, match="cannot be reached"):
        await within(connections.DatabaseConnections(connections.Addresses(mute)).open(), 20)


async def test_a_session_that_is_silent_from_the_first_is_given_up(mute: str) -> None:
    ours = workers.Workers(connections.DatabaseConnections(connections.Addresses(mute)), 30.0)
    joining = asyncio.ensure_future(ours.join())
    await asyncio.wait({joining}, timeout=20)
    assert joining.done() and isinstance(joining.exception(), TimeoutError)
