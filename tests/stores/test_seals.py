"""A sealed file: it keeps the promises of a store, shows no secret, and changes its key at work."""

import asyncio
import shutil
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest
from harness.waiting import within

from dragoman.config import Settings, StoreSettings
from dragoman.errors import ConfigError, StoreUnavailable
from dragoman.model.record import encode
from dragoman.model.task import TaskState
from dragoman.security.vault import (
    Vault,
    key_file_of,
    key_id,
    new_key,
    read_key_file,
    vault_of,
    write_key_file,
)
from dragoman.stores.interface import Store
from dragoman.stores.interface.sealing import Rotated
from dragoman.stores.sqlite import SQLiteStore, rotation
from dragoman.stores.sqlite.files.backup import back_up
from dragoman.stores.sqlite.rotation import rotate, sealed_with
from dragoman.stores.sqlite.schema import migrations
from dragoman.stores.sqlite.seals import Seals, secret_of
from dragoman.testing.promises import StorePromises
from dragoman.testing.promises.samples import (
    addition,
    chunk,
    creation,
    head_of,
    note,
    receiver,
    submit,
    write,
)
from tests.stores.pair import Pair
from tests.stores.test_migrations import of_schema_1

# What a receiver of the promises has as secrets, and what is said in the tests here.
SECRETS = [b"s3cret", b'"token":"token"', b"c0nfided", b"n0ted"]


def store_on(path: Path) -> SQLiteStore:
    return SQLiteStore(path, sealing=vault_of(Settings(stores=StoreSettings(location=str(path)))))


class SealedPair(Pair):
    """Workers that seal, each with a vault of its own as processes have."""

    def make(self, *given: Any, **more: Any) -> SQLiteStore:
        store = super().make(*given, **more)
        store._seals._sealing = vault_of(Settings(stores=StoreSettings(location=str(self.path))))
        return store


class Promises(StorePromises):
    def __init__(self, pair: Pair) -> None:
        self._pair = pair

    async def successor(self, store: Store) -> Store:
        later = await self._pair.open()
        await self._pair.freeze(store)
        return later


# The others have nothing to do with what is sealed.
WORDS = ("receiver", "letter", "note", "withheld", "secret", "late")
NAMES = [name for name in dir(StorePromises) if any(word in name for word in WORDS)]


@pytest.mark.parametrize("name", NAMES)
async def test_a_sealed_file_keeps_the_promises_of_a_store(tmp_path: Path, name: str) -> None:
    pair = SealedPair(tmp_path / "tasks.db")
    await getattr(Promises(pair), name)(await pair.open())
    await pair.close()
    assert len(NAMES) >= 10


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SQLiteStore]:
    store = store_on(path)
    await store.open()
    yield store
    await within(store.close())


async def fill(store: Store, count: int = 3) -> None:
    """Put a secret into every place there is."""
    await store.prepare()
    assert len(store.secret) == 32
    for n in range(count):
        name = f"t{n}"
        pushes = [receiver("first", name)]
        number = await write(store, creation(name, state=TaskState.WORKING, pushes=pushes))
        await store.put_push(number, receiver("second", name), 1, most=5)
        head = await head_of(store, name)
        answer = addition(head, chunk(name, "x", append=False))
        await write(store, msgspec.structs.replace(answer, withheld=[(2, b'{"c0nfided":1}')]))
        await write(store, note(await head_of(store, name), b'{"n0ted":1}'))


async def check(store: Store, secret: bytes, count: int = 3) -> None:
    """Find everything as it was put there."""
    await store.prepare()
    assert store.secret == secret
    for n in range(count):
        name = f"t{n}"
        head = await head_of(store, name)
        configs = [push.config for push in await store.pushes(head.number)]
        assert configs == [receiver("first", name), receiver("second", name)]
        assert await store.withheld(head.number) == {2: b'{"c0nfided":1}'}
        assert [one.body for one in await store.notes(head.number)] == [b'{"n0ted":1}']


async def secrets_of(stores: list[SQLiteStore]) -> set[bytes]:
    await asyncio.gather(*(store.prepare() for store in stores))
    return {store.secret for store in stores}


def bytes_of(*paths: Path) -> bytes:
    """Return all that is on disk of some stores, beside their keys."""
    return b"".join(
        file.read_bytes()
        for path in paths
        for file in path.parent.glob(f"{path.name}*")
        if not file.name.endswith(".key")
    )


def rows(path: Path, sql: str) -> list[Any]:
    connection = apsw.Connection(str(path))
    try:
        return connection.execute(sql).fetchall()
    finally:
        connection.close()


async def test_no_secret_is_on_disk_or_in_a_copy(
    store: SQLiteStore, path: Path, tmp_path: Path
) -> None:
    await fill(store)
    copy = tmp_path / "copy"
    back_up(path, copy)
    found = bytes_of(path, copy)
    assert not [secret for secret in [*SECRETS, store.secret] if secret in found]
    # A file without a key shows that the test would find them.
    plain = SQLiteStore(tmp_path / "plain.db")
    await plain.open()
    await fill(plain)
    clear = bytes_of(plain.path)
    assert all(secret in clear for secret in [*SECRETS, plain.secret])
    await plain.close()


async def test_a_copy_opens_with_the_key_of_the_original(store: SQLiteStore, path: Path) -> None:
    await fill(store)
    copy = path.with_name("copy")
    back_up(path, copy)
    with pytest.raises(ConfigError, match="put the key file of this store there"):
        await store_on(copy).open()
    assert not key_file_of(copy).exists()
    shutil.copy(key_file_of(path), key_file_of(copy))
    restored = store_on(copy)
    await restored.open()
    await check(restored, store.secret)
    await restored.close()


async def test_a_wrong_key_or_none_refuses_to_start_and_changes_nothing(path: Path) -> None:
    store = store_on(path)
    await store.open()
    await fill(store)
    secret = store.secret
    await store.close()
    before = path.read_bytes()
    for sealing in (None, Vault([new_key()]), Vault(file=path.with_name("other.key"))):
        with pytest.raises(ConfigError):
            await SQLiteStore(path, sealing=sealing).open()
    assert path.read_bytes() == before and not path.with_name("other.key").exists()
    store = store_on(path)
    await store.open()
    await check(store, secret)
    await store.close()


async def test_a_value_moved_to_another_row_does_not_open(store: SQLiteStore, path: Path) -> None:
    await fill(store)
    connection = apsw.Connection(str(path))
    connection.execute(
        "UPDATE pushes SET sealed = (SELECT sealed FROM pushes WHERE id = 'first' AND task = 1) "
        "WHERE id = 'first' AND task = 2"
    )
    connection.close()
    with pytest.raises(StoreUnavailable):
        await store.pushes(2)
    assert len(await store.pushes(1)) == 2


@pytest.mark.parametrize(
    ("found", "put"),
    [
        ("https://example.com/", "https://thief.example/"),
        ('"scheme":"Bearer"', '"scheme":"Basic"'),
        ('"id":"first"', '"id":"other"'),
    ],
)
async def test_secrets_are_sent_nowhere_but_where_their_caller_said(
    store: SQLiteStore, path: Path, found: str, put: str
) -> None:
    """Whoever can write the file, and lacks its key, edits what is in clear of a receiver."""
    await fill(store)
    connection = apsw.Connection(str(path))
    connection.execute(
        "UPDATE pushes SET config = CAST(replace(CAST(config AS TEXT), ?, ?) AS BLOB) "
        "WHERE number = 1 AND instr(CAST(config AS TEXT), ?)",
        (found, put, found),
    )
    assert connection.changes() == 1
    connection.close()
    with pytest.raises(StoreUnavailable):
        await store.pushes(1)
    # A change of key does not make it good.
    vault = changed(path)
    assert rotate(path, vault, vault.ids[0]).damaged == 1
    with pytest.raises(StoreUnavailable):
        await store.pushes(1)


async def test_a_receiver_that_cannot_be_opened_keeps_no_other_from_being_told(
    tmp_path: Path,
) -> None:
    pair = SealedPair(tmp_path / "tasks.db")
    first = await pair.open()
    await fill(first, 2)
    connection = apsw.Connection(str(pair.path))
    connection.execute("UPDATE pushes SET sealed = x'0102' WHERE number = 1")
    connection.close()
    later = await pair.open()
    await pair.freeze(first)
    claimed = await later.claim_pushes(10)
    assert sorted(push.number for push in claimed) == [2, 3, 4]
    await pair.close()


def of_schema_2(path: Path) -> None:
    """Make a file as 0.3.0 left it, with receivers, one of them forgotten, and a note."""
    of_schema_1(path)
    connection = apsw.Connection(str(path))
    connection.execute("BEGIN")
    connection.execute(migrations()[1][1])
    connection.pragma("user_version", 2)
    into = (
        "INSERT INTO pushes (task, id, config, holder, is_open, cursor, tries, due_at, "
        "failing_since, problem) VALUES (?, ?, ?, 0, 1, 1, 0, 0, 0, '')"
    )
    for id in ("kept", "gone"):
        connection.execute(into, (2, id, encode(receiver(id, "open"))))
    connection.execute(into, (2, "bare", b'{"url":"https://a.example/","id":"bare"}'))
    connection.execute("INSERT INTO notes (task, body) VALUES (2, ?)", (b'{"n0ted":1}',))
    connection.execute("COMMIT")
    connection.execute("DELETE FROM pushes WHERE id = 'gone'")
    connection.close()


async def test_a_file_of_an_earlier_release_is_sealed_and_scrubbed_when_it_is_opened(
    path: Path,
) -> None:
    of_schema_2(path)
    assert b"s3cret" in bytes_of(path) and b"s" * 32 in bytes_of(path)
    store = store_on(path)
    await store.open()
    try:
        found = bytes_of(path)
        assert not [secret for secret in [*SECRETS, b"s" * 32] if secret in found]
        await store.prepare()
        assert store.secret == b"s" * 32
        bare, kept = await store.pushes(2)
        assert kept.config == receiver("kept", "open") and bare.config.id == "bare"
        assert [one.body for one in await store.notes(2)] == [b'{"n0ted":1}']
        assert rows(path, "SELECT sealed FROM pushes WHERE id = 'bare'") == [(None,)]
    finally:
        await store.close()
    assert rows(path, "PRAGMA integrity_check") == [("ok",)]


async def test_many_processes_may_be_the_first(path: Path) -> None:
    of_schema_2(path)
    stores = [store_on(path) for _ in range(4)]
    await asyncio.wait_for(asyncio.gather(*(store.open() for store in stores)), 60)
    assert len(read_key_file(key_file_of(path))) == 1
    assert await secrets_of(stores) == {b"s" * 32}
    for store in stores:
        await store.close()


async def test_the_secret_is_made_once_by_whoever_needs_it(path: Path) -> None:
    stores = [store_on(path) for _ in range(3)]
    for store in stores:
        await store.open()
    found = secret_of(path, vault_of(Settings(stores=StoreSettings(location=str(path)))))
    assert len(found) == 32 and await secrets_of(stores) == {found}
    for store in stores:
        await store.close()


# Changing the key


def changed(path: Path) -> Vault:
    """Put a new key before the old one, as the command does."""
    vault = vault_of(Settings(stores=StoreSettings(location=str(path))))
    vault.add()
    return vault


async def test_everything_is_sealed_anew_while_a_server_writes(
    store: SQLiteStore, path: Path
) -> None:
    await fill(store)
    secret, old = store.secret, sealed_with(path)
    vault = changed(path)
    done = await asyncio.to_thread(rotate, path, vault, vault.ids[0])
    # The store's secret, and of each task two receivers, an answer and a note.
    assert done == Rotated(1 + 3 * 4, 0, is_cleared=True)
    assert sealed_with(path) == [vault.ids[0]] != old
    assert old[0] not in b"".join(
        bytes(value)
        for table in ("sealed FROM pushes", "body FROM notes", "body FROM withheld")
        for (value,) in rows(path, f"SELECT {table}")
    )
    vault.set_aside_others(vault.ids[0])
    await check(store, secret)
    # A server that ran all the while goes on with the new key.
    await store.put_push(1, receiver("third", "t0"), 1, most=5)
    (sealed,) = rows(path, "SELECT sealed FROM pushes WHERE id = 'third'")[0]
    assert bytes(sealed)[1:9] == vault.ids[0]
    await store.close()
    fresh = store_on(path)
    await fresh.open()
    await fresh.drop_push(1, "third")
    await check(fresh, secret)
    await fresh.close()
    await store.open()


SEALED = (
    "SELECT value FROM facts WHERE name = 'sealed_secret' UNION ALL SELECT sealed FROM pushes "
    "UNION ALL SELECT body FROM notes UNION ALL SELECT body FROM withheld"
)


async def test_what_the_old_key_sealed_is_gone_from_the_files_while_a_server_runs(
    store: SQLiteStore, path: Path
) -> None:
    await fill(store)
    old = [bytes(value) for (value,) in rows(path, SEALED)]
    assert len(old) == 13 and all(value in bytes_of(path) for value in old)
    vault = changed(path)
    assert rotate(path, vault, vault.ids[0]).is_cleared
    found = bytes_of(path)
    assert not [value for value in old if value in found]


async def test_a_reader_that_keeps_the_log_of_writes_from_being_emptied_is_told(
    store: SQLiteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rotation, "_PATIENCE_MS", 10)
    await fill(store)
    connection = apsw.Connection(str(path))
    connection.execute("BEGIN")
    connection.execute("SELECT count(*) FROM pushes").fetchall()
    vault = changed(path)
    done = rotate(path, vault, vault.ids[0])
    connection.execute("ROLLBACK")
    connection.close()
    assert (done.damaged, done.is_cleared) == (0, False)
    assert sealed_with(path) == [vault.ids[0]]


async def test_once_a_key_is_named_nothing_is_sealed_with_the_old_one(
    store: SQLiteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also what a server writes between two steps."""
    await fill(store)
    vault = changed(path)
    step, loop = rotation._step, asyncio.get_running_loop()
    monkeypatch.setattr(rotation, "_AT_ONCE", 1)
    written: list[str] = []

    def between(*given: Any) -> Any:
        id = f"w{len(written)}"
        written.append(id)
        put = store.put_push(1, receiver(id, "t0"), 1, most=100)
        asyncio.run_coroutine_threadsafe(put, loop).result(15)
        return step(*given)

    monkeypatch.setattr(rotation, "_step", between)
    await asyncio.to_thread(rotate, path, vault, vault.ids[0])
    assert len(written) > 10
    keys = {bytes(sealed)[1:9] for (sealed,) in rows(path, "SELECT sealed FROM pushes")}
    assert keys == {vault.ids[0]}
    assert len(await store.pushes(1)) == 2 + len(written)


@pytest.mark.parametrize("cut", range(0, 17, 4))
async def test_cut_off_anywhere_all_is_readable_and_doing_it_again_finishes(
    path: Path, monkeypatch: pytest.MonkeyPatch, cut: int
) -> None:
    class Cut(Exception):
        pass

    store = store_on(path)
    await store.open()
    await fill(store)
    secret = store.secret
    await store.close()
    vault = changed(path)
    step, left = rotation._step, cut

    def counted(*given: Any) -> Any:
        nonlocal left
        if left == 0:
            raise Cut
        left -= 1
        return step(*given)

    with monkeypatch.context() as patch:
        patch.setattr(rotation, "_AT_ONCE", 1)
        patch.setattr(rotation, "_step", counted)
        with pytest.raises(Cut):
            rotate(path, vault, vault.ids[0])
    assert len(sealed_with(path)) == 2
    store = store_on(path)
    await store.open()
    await check(store, secret)
    await store.close()
    rotate(path, vault, vault.ids[0])
    vault.set_aside_others(vault.ids[0])
    store = store_on(path)
    await store.open()
    await check(store, secret)
    await store.close()


async def test_what_cannot_be_opened_keeps_its_key_on_the_list(
    store: SQLiteStore, path: Path
) -> None:
    await fill(store)
    connection = apsw.Connection(str(path))
    connection.execute("UPDATE pushes SET sealed = CAST(sealed || x'00' AS BLOB) WHERE number = 1")
    connection.close()
    vault = changed(path)
    assert rotate(path, vault, vault.ids[0]).damaged == 1
    assert len(sealed_with(path)) == 2


async def test_a_server_without_the_new_key_says_so_and_other_writes_of_the_moment_go_on(
    path: Path,
) -> None:
    """Keys in the environment cannot be looked up again."""
    old, new = new_key(), new_key()
    store = SQLiteStore(path, sealing=Vault([old]))
    await store.open()
    await fill(store, 1)
    rotate(path, Vault([new, old]), key_id(new))
    with pytest.raises(StoreUnavailable, match="DRAGOMAN_STORE_KEY"):
        await store.put_push(1, receiver("late", "t0"), 1, most=9)
    refused, done = await submit(store, creation("a", pushes=[receiver("p", "a")]), creation("b"))
    assert isinstance(refused.error, StoreUnavailable) and done.error is None
    await store.close()


async def test_a_file_of_an_earlier_release_has_no_key_to_change(path: Path) -> None:
    of_schema_2(path)
    with pytest.raises(ConfigError, match="dragoman store migrate"):
        sealed_with(path)


async def test_a_key_file_put_back_opens_the_store(path: Path) -> None:
    store = store_on(path)
    await store.open()
    await fill(store)
    secret = store.secret
    await store.close()
    keys = read_key_file(key_file_of(path))
    key_file_of(path).unlink()
    with pytest.raises(ConfigError):
        await store_on(path).open()
    write_key_file(key_file_of(path), keys)
    store = store_on(path)
    await store.open()
    await check(store, secret)
    await store.close()


# When


async def test_whoever_needs_the_secret_waits_for_it_and_the_loop_does_not(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_on(path)
    await store.open()
    threads: list[str] = []
    make = Seals.make_secret

    def noted(self: Seals, connection: apsw.Connection) -> bytes:
        threads.append(threading.current_thread().name)
        return make(self, connection)

    monkeypatch.setattr(Seals, "make_secret", noted)
    try:
        await within(asyncio.gather(store.prepare(), store.prepare()))
        assert len(threads) == 1 and threads[0] != threading.main_thread().name
        assert len(store.secret) == 32
    finally:
        await within(store.close())
    again = store_on(path)
    await again.open()
    await again.prepare()
    assert again.secret == store.secret and len(threads) == 1
    await within(again.close())


async def test_the_secret_is_there_soon_after_the_start_though_nobody_needs_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.stores.sqlite.store._PREPARE_AFTER", 0.0)
    store = store_on(path)
    await store.open()
    assert not store._secret.value, "no start waits for it"
    async with asyncio.timeout(60):
        # A thread finds it, which tells nobody here.
        while not store._secret.value:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await store.close()


async def test_a_store_that_closes_while_its_secret_is_made_waits_for_that(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_on(path)
    await store.open()
    make, is_begun, go_on = Seals.make_secret, threading.Event(), threading.Event()

    def slow(self: Seals, connection: apsw.Connection) -> bytes:
        is_begun.set()
        assert go_on.wait(15)
        return make(self, connection)

    monkeypatch.setattr(Seals, "make_secret", slow)
    preparing = asyncio.create_task(store.prepare())
    assert await asyncio.to_thread(is_begun.wait, 15)
    closing = asyncio.create_task(store.close())
    done, _ = await asyncio.wait([closing], timeout=0.2)
    go_on.set()
    await within(asyncio.gather(closing, preparing))
    assert not done
    assert len(store.secret) == 32


async def test_a_secret_that_could_not_be_read_is_read_the_next_time(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_on(path)
    await store.open()
    with monkeypatch.context() as broken:

        def refuse(*given: object) -> bytes:
            raise StoreUnavailable("not this time")

        broken.setattr(Seals, "make_secret", refuse)
        with pytest.raises(StoreUnavailable):
            await store.prepare()
    await store.prepare()
    assert len(store.secret) == 32
    await within(store.close())
