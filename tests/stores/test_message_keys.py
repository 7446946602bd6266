"""A key that is not among those in memory is not looked up in the file, and none is ever missed."""

import asyncio
from contextlib import closing
from pathlib import Path

import pytest

from dragoman.errors import StoreConflict, StoreUnavailable
from dragoman.model.identity import ContextId, TaskId
from dragoman.model.message import Part, agent_message
from dragoman.model.record import encode
from dragoman.stores.copying.files import FileReader
from dragoman.stores.copying.tables import TABLES
from dragoman.stores.interface import KeepReply, Known
from dragoman.stores.sqlite import SQLiteStore, message_keys
from dragoman.stores.sqlite import store as sqlite_store
from dragoman.stores.sqlite.message_keys import READ_AT_ONCE, TRUSTED_FOR, MessageKeys
from dragoman.stores.sqlite.schema import connect, run
from dragoman.testing.promises.samples import HERE, WITHIN, creation, submit, write
from tests.stores.pair import Pair


@pytest.fixture
def pair(path: Path) -> Pair:
    return Pair(path)


def numbered(count: int, after: int = 0) -> list[tuple[int, bytes]]:
    return [(1, b"%016d" % n) for n in range(after, after + count)]


def whole(rows: list[tuple[int, bytes]]) -> MessageKeys:
    keys = MessageKeys()
    for n in range(0, len(rows) + 1, READ_AT_ONCE):
        keys.read(rows[n : n + READ_AT_ONCE])
        keys.trust(message_keys.time.monotonic())
    return keys


def test_every_key_is_known_however_many_there_are_and_few_others_are() -> None:
    rows = numbered(200_000)
    keys = whole(rows)
    assert not any(keys.is_new(key) for _, key in rows)
    others = numbered(10_000, after=len(rows))
    assert sum(keys.is_new(key) for _, key in others) > 7_000


def test_until_all_keys_were_read_the_file_may_have_any() -> None:
    keys = MessageKeys()
    keys.read(numbered(READ_AT_ONCE))
    keys.trust(message_keys.time.monotonic())
    assert not keys.is_new(b"another")
    keys.read([])
    keys.trust(message_keys.time.monotonic())
    assert keys.is_new(b"another")


async def test_a_new_key_is_not_looked_up_in_the_file(pair: Pair) -> None:
    store = await pair.open()
    store._learn_keys(message_keys.time.monotonic())
    await write(store, creation("t", keys=[b"key"]))
    asked: list[object] = []
    execute = store._execute
    store._execute = lambda *call: (asked.append(call), execute(*call))[1]
    assert await store.known(HERE, b"new") is None
    assert not asked
    assert await store.known(HERE, b"key") == Known(task_id=TaskId("t"))
    assert asked
    await pair.close()


async def test_a_process_that_slept_looks_up_every_key(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await pair.open()
    store._learn_keys(message_keys.time.monotonic())
    await write(store, creation("t"))
    await pair.stop(store)
    other = await pair.open(patience=0.0)
    await write(other, creation("u", keys=[b"theirs"]))
    # It wakes, and has not looked at the file yet.
    later = message_keys.time.monotonic() + TRUSTED_FOR
    monkeypatch.setattr(message_keys.time, "monotonic", lambda: later)
    assert await store.known(HERE, b"theirs") == Known(task_id=TaskId("u"))
    monkeypatch.undo()
    await pair.close()


def test_a_newcomer_waits_for_longer_than_keys_are_trusted(path: Path) -> None:
    assert SQLiteStore(path, lease=0.001)._patience > 2 * TRUSTED_FOR


# Beside the index


def places(path: Path) -> tuple[list[bytes], list[bytes]]:
    """Return the keys that are beside the index, and those that are in it."""
    with closing(connect(str(path))) as connection:
        fresh, indexed = (
            run(connection, f"SELECT key FROM {name} ORDER BY rowid")
            for name in ("fresh_keys", "keys")
        )
    return [key for (key,) in fresh], [key for (key,) in indexed]


async def is_refused(store: SQLiteStore, key: bytes) -> bool:
    """Tell whether a store refuses another task for a key."""
    (outcome,) = await submit(store, creation("another", keys=[key]))
    return isinstance(outcome.error, StoreConflict)


async def alone(pair: Pair) -> SQLiteStore:
    """Return a store that knows all keys, and that none is written by others."""
    store = await pair.open()
    await pair.stop(store)
    store._learn_keys(message_keys.time.monotonic())
    return store


async def test_a_new_key_is_put_beside_the_index_and_moved_with_many_others(
    pair: Pair, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_keys, "INDEXED_AT_ONCE", 2)
    store = await alone(pair)
    await write(store, creation("t", keys=[b"2"]))
    assert not store._keys.has_many_fresh
    body = encode(agent_message([Part("hi")], context_id=ContextId("c")))
    await write(store, KeepReply(HERE, b"1", body))
    assert places(path) == ([b"2", b"1"], [])
    assert store._keys.has_many_fresh

    async def check() -> None:
        assert await store.known(HERE, b"2") == Known(task_id=TaskId("t"))
        assert await store.known(HERE, b"1") == Known(reply=body)
        for key in (b"1", b"2"):
            assert await is_refused(store, key)

    await check()
    await store.index_keys()
    assert places(path) == ([], [b"1", b"2"])
    assert not store._keys.has_many_fresh
    await check()
    await pair.close()


async def test_a_store_moves_its_keys_by_itself(
    pair: Pair, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_keys, "INDEXED_AT_ONCE", 1)
    moved = asyncio.Event()
    end = MessageKeys.end_indexing
    monkeypatch.setattr(
        MessageKeys, "end_indexing", lambda keys, those: (end(keys, those), moved.set())
    )
    store = await pair.open()
    store._learn_keys(message_keys.time.monotonic())
    await write(store, creation("t", keys=[b"key"]))
    await asyncio.wait_for(moved.wait(), WITHIN)
    assert places(path)[1] == [b"key"]
    await pair.close()


async def test_a_key_that_is_on_its_way_into_the_index_is_found(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await alone(pair)
    await write(store, creation("t", keys=[b"key"]))
    store._keys.begin_indexing()
    assert await store.known(HERE, b"key") == Known(task_id=TaskId("t"))
    assert await is_refused(store, b"key")
    await pair.close()


async def test_a_key_whose_move_began_while_another_one_ended_is_found(pair: Pair) -> None:
    store = await alone(pair)
    await write(store, creation("t", keys=[b"1"]))
    first = store._keys.begin_indexing()
    await write(store, creation("u", keys=[b"2"]))
    store._keys.begin_indexing()
    store._keys.end_indexing(first)
    assert await store.known(HERE, b"2") == Known(task_id=TaskId("u"))
    assert await is_refused(store, b"2")
    await pair.close()


async def test_a_key_that_could_not_be_moved_before_others_came_is_found_once_they_are_gone(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await alone(pair)
    await write(store, creation("t", keys=[b"key"]))

    def refuse(*_: object, **__: object) -> None:
        raise StoreUnavailable("not now")

    monkeypatch.setattr(sqlite_store, "index_keys", refuse)
    with pytest.raises(StoreUnavailable):
        await store._share()
    monkeypatch.undo()
    await store.renew()
    assert store.knows_all
    store._learn_keys(message_keys.time.monotonic())
    assert await store.known(HERE, b"key") == Known(task_id=TaskId("t"))
    assert await is_refused(store, b"key")
    await pair.close()


async def test_one_who_reads_only_finds_keys_beside_the_index(pair: Pair, path: Path) -> None:
    store = await alone(pair)
    await write(store, creation("t", keys=[b"key"]))
    await pair.kill(store)
    reader = SQLiteStore(path, is_read_only=True)
    await reader.open()
    assert await reader.known(HERE, b"key") == Known(task_id=TaskId("t"))
    await reader.close()


async def test_a_key_of_a_write_that_was_refused_can_be_used(pair: Pair) -> None:
    store = await alone(pair)
    await write(store, creation("t"))
    (refused,) = await submit(store, creation("t", keys=[b"key"]))
    assert isinstance(refused.error, StoreConflict)
    assert await store.known(HERE, b"key") is None
    await write(store, creation("u", keys=[b"key"]))
    assert await store.known(HERE, b"key") == Known(task_id=TaskId("u"))
    await pair.close()


async def test_one_key_is_used_once_in_a_group_of_writes(pair: Pair) -> None:
    store = await alone(pair)
    outcomes = await submit(store, *(creation(name, keys=[b"key"]) for name in ("a", "b")))
    assert [type(outcome.error) for outcome in outcomes] == [type(None), StoreConflict]
    await pair.close()


async def test_a_key_that_a_killed_process_left_beside_the_index_is_found(
    pair: Pair, path: Path
) -> None:
    store = await alone(pair)
    await write(store, creation("t", keys=[b"key"]))
    await pair.kill(store)
    assert places(path) == ([b"key"], [])
    later = await pair.open()
    assert places(path) == ([], [b"key"])
    assert await later.known(HERE, b"key") == Known(task_id=TaskId("t"))
    await pair.close()


@pytest.mark.parametrize("is_frozen", [False, True])
async def test_a_newcomer_finds_all_keys_in_the_index(
    pair: Pair, path: Path, *, is_frozen: bool
) -> None:
    store = await pair.open()
    store._learn_keys(message_keys.time.monotonic())
    await write(store, creation("t", keys=[b"key"]))
    if is_frozen:
        await pair.stop(store)
    assert places(path)[0] == [b"key"]
    other = await pair.open(patience=0.0 if is_frozen else WITHIN)
    assert places(path) == ([], [b"key"])
    assert await other.known(HERE, b"key") == Known(task_id=TaskId("t"))
    assert await is_refused(other, b"key")
    await pair.close()


async def test_a_newcomer_is_let_in_once_all_that_was_queued_is_in_the_index(
    pair: Pair, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await alone(pair)
    found: list[tuple[list[bytes], list[bytes]]] = []
    monkeypatch.setattr(store._workers, "try_shared", lambda: found.append(places(path)))
    await write(store, creation("t", keys=[b"1"]))
    queued = asyncio.ensure_future(write(store, creation("u", keys=[b"2"])))
    await asyncio.sleep(0)
    await store._share()
    ((fresh, indexed),) = found
    assert (fresh, sorted(indexed)) == ([], [b"1", b"2"])
    await queued
    monkeypatch.undo()
    await pair.close()


async def test_what_shares_a_file_puts_no_key_beside_the_index(pair: Pair, path: Path) -> None:
    store = await pair.open()
    store._learn_keys(message_keys.time.monotonic())
    other = await pair.open()
    await write(store, creation("t", keys=[b"ours"]))
    await write(other, creation("u", keys=[b"theirs"]))
    assert places(path) == ([], [b"ours", b"theirs"])
    await pair.close()


async def test_a_process_that_slept_puts_no_key_beside_the_index(
    pair: Pair, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await alone(pair)
    later = message_keys.time.monotonic() + TRUSTED_FOR
    monkeypatch.setattr(message_keys.time, "monotonic", lambda: later)
    await write(store, creation("t", keys=[b"key"]))
    monkeypatch.undo()
    assert places(path) == ([], [b"key"])
    await pair.close()


async def test_a_store_leaves_no_key_beside_the_index(pair: Pair, path: Path) -> None:
    store = await alone(pair)
    await write(store, creation("t", keys=[b"key"]))
    await pair.close()
    assert places(path) == ([], [b"key"])


async def test_old_keys_are_forgotten_wherever_they_are(pair: Pair, path: Path) -> None:
    store = await alone(pair)
    await write(store, KeepReply(HERE, b"key", b"{}"))
    await store.prune(ended_before=1 << 50, keep=10)
    assert places(path) == ([], [])
    await pair.close()


async def test_a_copy_has_the_keys_that_are_beside_the_index(pair: Pair, path: Path) -> None:
    store = await alone(pair)
    for key in (b"2", b"4"):
        await write(store, KeepReply(HERE, key, b"{}"))
    await store.index_keys()
    for key in (b"1", b"3"):
        await write(store, KeepReply(HERE, key, b"{}"))
    (table,) = (table for table in TABLES if table.name == "keys")
    with closing(connect(str(path))) as connection:
        reader = FileReader(connection, path)
        assert await reader.count(table) == 4
        rows = await reader.rows(table, None)
        assert [row[1] for row in rows] == [b"1", b"2", b"3", b"4"]
        assert [row[1] for row in await reader.rows(table, rows[1][:2])] == [b"3", b"4"]
    await pair.close()
