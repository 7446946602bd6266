"""What a server may say instead of an answer, and what becomes of the writes and reads then."""

import asyncio
import gc
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from harness.databases import Databases
from harness.waiting import within

from dragoman.errors import ConfigError, StoreFull, StoreUnavailable
from dragoman.model.identity import Scope, TaskId
from dragoman.model.task import TaskState
from dragoman.stores.interface import Query
from dragoman.stores.postgres import Addresses, PostgresStore, connections
from dragoman.stores.postgres import writer as writer_module
from dragoman.stores.postgres.connections import Connection, DatabaseConnections
from dragoman.stores.postgres.deeds import do
from dragoman.testing.promises.samples import (
    HERE,
    WriteOutcome,
    addition,
    chunk,
    creation,
    head_of,
    log_of,
    receiver,
    submit,
    walk,
    write,
)
from dragoman.testing.servers import PostgresServer
from tests.stores.postgres.conftest import Opener


async def becomes_true(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait for something that a server tells only when it is asked."""
    async with asyncio.timeout(60):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def waits(store: PostgresStore) -> bool:
    """Tell whether a statement waits for another's transaction."""
    sql = "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event = 'transactionid'"
    return (await store._connections.rows(sql))[0][0]


async def test_a_group_that_lost_a_deadlock_is_written_after_all(
    opener: Opener, store: PostgresStore
) -> None:
    await submit(store, creation("a"), creation("b"))
    first, second = await head_of(store, "a"), await head_of(store, "b")
    other = await opener.open()
    lock = "SELECT 1 FROM tasks WHERE number = $1 FOR UPDATE"
    async with other._connections.transaction() as stranger:
        # Against the order that all of ours keep to.
        await stranger.execute(lock, second.number)
        both = (addition(head, chunk(head.task_id, "x")) for head in (first, second))
        written = asyncio.ensure_future(submit(store, *both))
        await becomes_true(lambda: waits(other))
        await stranger.execute("SET LOCAL deadlock_timeout = '60s'")
        await within(stranger.execute(lock, first.number), 60)
    outcomes = await within(written, 60)
    assert [outcome.error for outcome in outcomes] == [None, None]
    assert [len(await log_of(store, head)) for head in (first, second)] == [2, 2]


async def test_a_full_disk_refuses_writes_by_its_name_until_there_is_room(
    store: PostgresStore,
) -> None:
    await store._connections.rows("""
        CREATE FUNCTION no_room() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN RAISE EXCEPTION 'could not extend file' USING ERRCODE = '53100'; END $$""")
    await store._connections.rows(
        "CREATE TRIGGER full_disk BEFORE INSERT ON tasks FOR EACH ROW EXECUTE FUNCTION no_room()"
    )
    (outcome,) = await submit(store, creation("t", keys=[b"k"]))
    assert isinstance(outcome.error, StoreFull) and "extend" in str(outcome.error)
    assert await store.known(HERE, b"k") is None
    await store._connections.rows("DROP TRIGGER full_disk ON tasks")
    await write(store, creation("t", keys=[b"k"]))


async def test_a_full_disk_is_said_by_its_name_beside_the_writes_of_tasks(
    store: PostgresStore,
) -> None:
    """A receiver whose place cannot be recorded is waited for, and not posted to again."""
    await write(store, creation("t", pushes=[receiver("r", "t")]))
    (push,) = await store.pushes((await head_of(store, "t")).number)
    await store._connections.rows("""
        CREATE FUNCTION no_room() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN RAISE EXCEPTION 'could not extend file' USING ERRCODE = '53100'; END $$""")
    await store._connections.rows(
        "CREATE TRIGGER full_disk BEFORE INSERT OR UPDATE ON pushes "
        "FOR EACH ROW EXECUTE FUNCTION no_room()"
    )
    with pytest.raises(StoreFull, match="extend"):
        await store.settle(push)
    with pytest.raises(StoreFull, match="extend"):
        await store.put_push(push.task, receiver("another", "t"), 1, most=9)

    async def deed(connection: Connection) -> None:
        await connection.execute("UPDATE pushes SET tries = 1")

    with pytest.raises(StoreFull, match="extend"):
        await do(store._connections, deed)

    async def slow(connection: Connection) -> None:
        await connection.execute("SET LOCAL statement_timeout = '10ms'")
        await connection.execute("SELECT pg_sleep(60)")

    with pytest.raises(StoreUnavailable, match="statement timeout"):
        await store._connections.at_one_moment(slow)


@pytest.mark.parametrize("id", ["a\0b", "a\ud800b"])
async def test_what_no_row_can_hold_is_refused_alone(store: PostgresStore, id: str) -> None:
    """A NUL and half a surrogate pair are no text to the server; other writes of the moment are
    made."""
    scope = Scope("agent", "", id)
    outcomes = await submit(
        store,
        creation("first"),
        creation(id),
        creation("odd scope", scope=scope),
        creation("context", context=id),
        creation("last"),
    )
    refused = [isinstance(outcome.error, StoreUnavailable) for outcome in outcomes]
    assert refused == [False, True, True, True, False]
    assert outcomes[0].error is outcomes[-1].error is None
    with pytest.raises(StoreUnavailable):
        await store.head(HERE, TaskId(id))
    with pytest.raises(StoreUnavailable):
        await store.page(Query(scope, 10))
    assert len(await walk(store, Query(HERE, 10))) == 2


async def test_numbers_out_of_range_are_refused_and_the_store_goes_on(
    store: PostgresStore,
) -> None:
    (outcome,) = await submit(store, creation("t", at=1 << 70))
    assert isinstance(outcome.error, StoreUnavailable)
    assert await store.read(1 << 40, after=1 << 80, limit=10) == []
    with pytest.raises(StoreUnavailable):
        await store.read(1 << 70, after=0, limit=10)
    await write(store, creation("t"))


# A server of its own, which the test restarts


@pytest.fixture
async def own(server: PostgresServer) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(Addresses(await asyncio.to_thread(server.make_database)))
    await store.open()
    yield store
    await within(store.close())


async def busy(store: PostgresStore, until: asyncio.Event) -> list[str]:
    """Make tasks and end them without a pause; return the ids of those that were acknowledged."""
    acknowledged: list[str] = []

    async def one(n: int) -> None:
        made = 0
        while not until.is_set():
            id = f"t{n}-{made}"
            made += 1
            outcomes: list[WriteOutcome] = await within(submit_long(store, creation(id)), 120)
            if outcomes[0].error is None:
                acknowledged.append(id)

    await asyncio.gather(*(one(n) for n in range(8)))
    return acknowledged


async def submit_long(store: PostgresStore, one: object) -> list[WriteOutcome]:
    told: asyncio.Future[WriteOutcome] = asyncio.get_running_loop().create_future()
    store.submit(one, lambda *said: told.set_result(WriteOutcome(*said)))  # pyright: ignore
    return [await told]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT])
async def test_a_server_that_restarts_under_load_loses_and_doubles_nothing(
    server: PostgresServer, own: PostgresStore, how: int
) -> None:
    """In good order or not; the worker stays who it is, and its tasks stay its own."""
    worker, until = own.worker, asyncio.Event()
    working = asyncio.ensure_future(busy(own, until))
    for _ in range(2):
        before = (await own.page(Query(HERE, 1))).total

        async def goes_on(before: int = before) -> bool:
            return (await own.page(Query(HERE, 1))).total > before + 50

        await becomes_true(goes_on)
        await asyncio.to_thread(server.stop, how)
        await asyncio.to_thread(server.start)
    until.set()
    acknowledged = await within(working, 120)
    found = await walk(own, Query(HERE, 500))
    ids = [head.task_id for head in found]
    assert len(ids) == len(set(ids)) and set(acknowledged) <= set(ids)
    assert {head.holder for head in found} == {worker} and not own.lapses


async def test_a_server_that_takes_no_writes_any_more_is_left_and_found_again(
    server: PostgresServer, own: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a failover: what was connected to the former primary is dropped, and what waits is
    written once there is a primary."""
    # However long the machine takes.
    monkeypatch.setattr(writer_module, "PATIENCE", 120.0)
    await write(own, creation("before"))
    before = await own._connections.writer()

    async def set_read_only(value: str) -> None:
        sql = f"ALTER SYSTEM SET default_transaction_read_only = {value}"
        await asyncio.to_thread(server.sql, sql)
        await asyncio.to_thread(server.sql, "SELECT pg_reload_conf()")

    async def is_read_only() -> bool:
        # Each session reads the settings anew by itself.
        return await before.fetchval("SHOW default_transaction_read_only") == "on"

    async def is_dropped() -> bool:
        return before.is_closed()

    await set_read_only("on")
    await becomes_true(is_read_only)
    written = asyncio.ensure_future(submit_long(own, creation("during")))
    await becomes_true(is_dropped)
    await set_read_only("off")
    (outcome,) = await within(written, 60)
    assert outcome.error is None
    assert (await head_of(own, "during")).standing.state is TaskState.SUBMITTED


async def test_a_deed_that_lost_a_deadlock_is_done_again(
    opener: Opener, store: PostgresStore
) -> None:
    await submit(store, creation("a"), creation("b"))
    first, second = await head_of(store, "a"), await head_of(store, "b")
    other = await opener.open()
    lock = "SELECT 1 FROM tasks WHERE number = $1 FOR UPDATE"
    tries: list[Connection] = []

    async def deed(connection: Connection) -> str:
        tries.append(connection)
        await connection.execute(lock, first.number)
        await connection.execute(lock, second.number)
        return "done"

    async with other._connections.transaction() as stranger:
        await stranger.execute("SET LOCAL deadlock_timeout = '1min'")
        await stranger.execute(lock, second.number)
        doing = asyncio.ensure_future(do(store._connections, deed))
        await becomes_true(lambda: waits(other))
        await stranger.execute(lock, first.number)
    assert await within(doing) == "done" and len(tries) == 2


async def test_while_the_server_is_away_new_work_is_refused_and_work_under_way_waits(
    server: PostgresServer, own: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "PATIENCE", 0.5)
    monkeypatch.setattr(connections, "READ_WITHIN", 0.5)
    await write(own, creation("runs"))
    head = await head_of(own, "runs")
    await asyncio.to_thread(server.stop, signal.SIGQUIT)
    append = asyncio.ensure_future(submit_long(own, addition(head, chunk("runs", "x"))))
    # At the same moment, and later.
    refusals = await within(
        asyncio.gather(submit_long(own, creation("new")), submit_long(own, creation("newer"))), 60
    )
    assert all(isinstance(one.error, StoreUnavailable) for (one,) in refusals)
    (refused,) = await within(submit_long(own, creation("new")), 60)
    assert isinstance(refused.error, StoreUnavailable) and not append.done()
    with pytest.raises(StoreUnavailable):
        await own.head(HERE, TaskId("runs"))
    await asyncio.to_thread(server.start)
    (done,) = await within(append, 60)
    assert done.error is None
    assert len(await log_of(own, head)) == 2


async def test_one_that_refused_all_while_the_server_was_away_is_well_without_a_write(
    server: PostgresServer, own: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica that is not ready gets no calls, and so nothing to write."""
    monkeypatch.setattr(writer_module, "PATIENCE", 0.5)
    await write(own, creation("t"))
    await asyncio.to_thread(server.stop, signal.SIGQUIT)
    await becomes_true(lambda: has_troubles(own))
    (refused,) = await within(submit_long(own, creation("new")), 60)
    assert isinstance(refused.error, StoreUnavailable)
    await asyncio.to_thread(server.start)

    async def is_well() -> bool:
        return not await has_troubles(own)

    await becomes_true(is_well)


async def has_troubles(store: PostgresStore) -> bool:
    return bool(await store.troubles())


async def test_an_address_where_no_server_is_is_refused_in_words(databases: Databases) -> None:
    for url, words in (
        ("postgresql://postgres@127.0.0.1:1/x", "cannot be reached"),
        (databases.server.url("no_such"), 'database "no_such" does not exist'),
        ("postgresql://postgres@127.0.0.1:port/x", "cannot be reached"),
    ):
        with pytest.raises(ConfigError, match=words):
            await PostgresStore(Addresses(url)).open()


async def test_a_read_that_is_cancelled_leaves_nothing_to_the_next(store: PostgresStore) -> None:
    """Wherever it was: before, while or after its statement was prepared."""
    await write(store, creation("t"))
    for n in range(60):
        reading = asyncio.ensure_future(store._connections.rows(f"SELECT {n}, pg_sleep(0.001)"))
        for _ in range(n % 20):
            await asyncio.sleep(0)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        assert (await store.page(Query(HERE, 10))).total == 1


async def test_a_connection_whose_opening_is_called_off_leaves_no_error_behind(
    database: str,
) -> None:
    """At any moment of it. No task could catch such an error: the loop reports it."""
    opener = DatabaseConnections(Addresses(database))
    await opener.open()
    reported: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: reported.append(context))
    for turns in range(30):
        opening = asyncio.ensure_future(opener.session())
        for _ in range(turns):
            await asyncio.sleep(0)
        opening.cancel()
        for opened in await asyncio.gather(opening, return_exceptions=True):
            if not isinstance(opened, BaseException):
                opened.terminate()
    await opener.close()
    del opening
    gc.collect()
    assert reported == []
    assert not opener._unwanted
