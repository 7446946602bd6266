"""A key that is not among those in memory is not looked up in the file, and none is ever missed."""

from pathlib import Path

import pytest

from dragoman.model.identity import TaskId
from dragoman.stores.interface import Known
from dragoman.stores.sqlite import SQLiteStore, message_keys
from dragoman.stores.sqlite.message_keys import READ_AT_ONCE, TRUSTED_FOR, MessageKeys
from dragoman.testing.promises.samples import HERE, creation, write
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
    assert all(keys.may_have(key) for _, key in rows)
    others = numbered(10_000, after=len(rows))
    assert sum(keys.may_have(key) for _, key in others) < 3_000


def test_until_all_keys_were_read_the_file_may_have_any() -> None:
    keys = MessageKeys()
    keys.read(numbered(READ_AT_ONCE))
    keys.trust(message_keys.time.monotonic())
    assert keys.may_have(b"another")
    keys.read([])
    keys.trust(message_keys.time.monotonic())
    assert not keys.may_have(b"another")


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
