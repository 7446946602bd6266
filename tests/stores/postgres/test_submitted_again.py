"""Groups that reach the server more than once, and answers that never reach us: nothing is lost,
and nothing is there twice."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from harness.waiting import within

from dragoman.model.task import TaskState
from dragoman.stores.interface import Query, Store
from dragoman.stores.postgres import PostgresStore
from dragoman.stores.postgres import writer as writer_module
from dragoman.testing.promises import StorePromises
from dragoman.testing.promises.samples import (
    HERE,
    WriteOutcome,
    addition,
    chunk,
    creation,
    head_of,
    log_of,
    note,
    opening,
    receiver,
    snapshot_of,
    status,
    submit,
    walk,
)
from tests.stores.postgres.conftest import Opener
from tests.stores.postgres.cutting_proxy import CuttingProxy


class Twice:
    """A connection that hands each group to the server twice: at once, or after each other."""

    def __init__(self, store: PostgresStore, connection: Any) -> None:
        self._store, self._connection = store, connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    async def fetchval(self, sql: str, *all: Any) -> Any:
        if "write_group" not in sql:
            return await self._connection.fetchval(sql, *all)
        worker, group, *given = all
        if group % 2:
            await self._connection.fetchval(sql, worker, group, *given)
            return await self._connection.fetchval(sql, worker, group, *given)
        # The second waits for the first, and finds it written or refused.
        first, second = await asyncio.gather(
            self._connection.fetchval(sql, worker, group, *given),
            self._store._connections.rows(sql, worker, group, *given),
            return_exceptions=True,
        )
        assert isinstance(first, BaseException) == isinstance(second, BaseException)
        if isinstance(first, BaseException):
            raise first
        return first


class TestTwice(StorePromises):
    @pytest.fixture(autouse=True)
    def opens(self, opener: Opener) -> None:
        self._opener = opener

    @pytest.fixture
    async def store(self, opener: Opener) -> Store:
        return _doubled(await opener.open())

    async def successor(self, store: Store) -> Store:
        assert isinstance(store, PostgresStore)
        return _doubled(await self._opener.successor(store))


def _doubled(store: PostgresStore) -> PostgresStore:
    made = store._connections.writer

    async def writer() -> Any:
        return Twice(store, await made())

    store._connections.writer = writer
    return store


# Answers that are taken away


@pytest.fixture
async def proxy(opener: Opener, database: str) -> AsyncIterator[CuttingProxy]:
    proxy = CuttingProxy(database)
    yield proxy
    # While the proxy is there: a store gives back what it holds.
    await opener.close()
    await proxy.stop()


CUTS = 40


async def test_what_was_committed_before_the_answer_was_cut_is_there_once(
    opener: Opener, proxy: CuttingProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks with keys, receivers, notes and answers; refusals stay refusals."""
    monkeypatch.setattr(writer_module, "_BETWEEN_TRIES", 0.0)
    store = await opener.open(await proxy.start())
    direct = await opener.open()
    proxy.cuts_left = CUTS
    made = 0
    while proxy.cuts_left:
        ids = [f"t{made + n}" for n in range(4)]
        made += 4
        outcomes = await within(submit(store, *(_full(id) for id in ids), _full(ids[0])), 120)
        assert [outcome.is_refused for outcome in outcomes] == [False] * 4 + [True]
        heads = [await head_of(direct, id) for id in ids]
        assert [head.number for head in heads] == [outcome.number for outcome in outcomes[:4]]
        outcomes = await within(submit(store, *(_step(head) for head in heads)), 120)
        assert [outcome.error for outcome in outcomes] == [None] * 4
        outcomes = await within(submit(store, *(note(head, b"{}") for head in heads)), 120)
        assert [outcome.error for outcome in outcomes] == [None] * 4
    assert proxy.cuts == CUTS and made >= CUTS // 4
    await _check(direct, made)
    assert store.worker == (await head_of(direct, "t0")).holder and not store.lapses


def _full(id: str) -> Any:
    return creation(id, keys=[id.encode()], pushes=[receiver("r", id)], deadline=1 << 50)


def _step(head: Any) -> Any:
    return addition(head, chunk(head.task_id, "x"), state=TaskState.WORKING, at=2000)


async def _check(store: PostgresStore, made: int) -> None:
    heads = await walk(store, Query(HERE, 500))
    assert len(heads) == len({head.task_id for head in heads}) == made
    assert (await store.page(Query(HERE, 1, state=TaskState.WORKING))).total == made
    for head in heads:
        assert [one.seq for one in await log_of(store, head)] == [1, 2]
        assert len(await store.notes(head.number)) == len(await store.pushes(head.number)) == 1
        known = await store.known(HERE, head.task_id.encode())
        assert known is not None and known.task_id == head.task_id


async def test_a_short_task_of_one_write_is_there_once(
    opener: Opener, proxy: CuttingProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many callers at once, each told once."""
    monkeypatch.setattr(writer_module, "_BETWEEN_TRIES", 0.0)
    store = await opener.open(await proxy.start())
    proxy.cuts_left = 10
    told: list[WriteOutcome] = []
    for first in range(0, 200, 20):
        writes = [
            creation(
                f"t{n}",
                status(f"t{n}", TaskState.COMPLETED),
                state=TaskState.COMPLETED,
                keys=[b"%d" % n],
                snapshot=snapshot_of(opening(f"t{n}"), 2),
            )
            for n in range(first, first + 20)
        ]
        told += await within(submit(store, *writes), 120)
    assert proxy.cuts == 10
    assert [outcome.error for outcome in told] == [None] * 200
    assert len({outcome.number for outcome in told}) == 200
    assert len(await walk(store, Query(HERE, 500))) == 200
