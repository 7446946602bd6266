"""A sealed database: it keeps the promises of a store, shows no secret, and changes its key at
work."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from harness.databases import Databases

from dragoman.errors import ConfigError, StoreUnavailable
from dragoman.security.vault import Vault, key_id, new_key, read_key_file
from dragoman.stores.interface import Store
from dragoman.stores.postgres import Addresses, PostgresStore, seals
from dragoman.stores.postgres.operating.rotation import rotate, sealed_with
from dragoman.testing.promises import StorePromises
from dragoman.testing.promises.samples import creation, receiver, submit
from tests.stores.postgres.conftest import Opener
from tests.stores.test_seals import NAMES, SECRETS, check, fill

EVERYTHING = (
    "SELECT value FROM facts UNION ALL SELECT config FROM pushes UNION ALL SELECT sealed "
    "FROM pushes UNION ALL SELECT body FROM notes UNION ALL SELECT body FROM withheld"
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "store.key"


@pytest.fixture
async def store(opener: Opener, file: Path) -> PostgresStore:
    return await opener.open(sealing=Vault(file=file))


async def rows(store: PostgresStore, sql: str, *values: Any) -> list[Any]:
    return await store._connections.rows(sql, *values)


class Promises(StorePromises):
    def __init__(self, opener: Opener, file: Path) -> None:
        self._opener, self._file = opener, file

    async def successor(self, store: Store) -> Store:
        assert isinstance(store, PostgresStore)
        return await self._opener.successor(store, sealing=Vault(file=self._file))


@pytest.mark.parametrize("name", NAMES)
async def test_a_sealed_database_keeps_the_promises_of_a_store(
    opener: Opener, store: PostgresStore, file: Path, name: str
) -> None:
    await getattr(Promises(opener, file), name)(store)


async def test_no_secret_is_in_a_dump(
    store: PostgresStore, opener: Opener, databases: Databases
) -> None:
    await fill(store)
    dump = await asyncio.to_thread(databases.server.call, "pg_dump", "--inserts", "-d", opener.url)
    values = b"".join(value for (value,) in await rows(store, EVERYTHING) if value is not None)
    for secret in [*SECRETS, store.secret]:
        assert secret not in values and secret.hex() not in dump
    assert b"https://example.com/".hex() in dump


async def test_without_the_key_a_process_refuses_to_start(
    store: PostgresStore, opener: Opener, file: Path
) -> None:
    await fill(store)
    other = file.with_name("other.key")
    for sealing, words in (
        (None, "needs its key"),
        (Vault([new_key()]), "DRAGOMAN_STORE_KEY"),
        (Vault(file=other), "put the key file of this store there"),
    ):
        with pytest.raises(ConfigError, match=words):
            await opener.open(sealing=sealing)
    assert not other.exists()
    again = await opener.open(sealing=Vault(file=file))
    await check(again, store.secret)


async def test_many_processes_may_be_the_first(opener: Opener, file: Path) -> None:
    stores = await asyncio.gather(*(opener.open(sealing=Vault(file=file)) for _ in range(4)))
    assert len(read_key_file(file)) == 1
    await asyncio.gather(*(one.prepare() for one in stores))
    assert len({one.secret for one in stores}) == 1


async def test_a_database_in_clear_is_sealed_when_a_process_has_a_key(
    opener: Opener, file: Path
) -> None:
    before = await opener.open()
    await fill(before)
    clear = b"".join(value for (value,) in await rows(before, EVERYTHING) if value is not None)
    assert all(secret in clear for secret in SECRETS)
    store = await opener.open(sealing=Vault(file=file))
    await check(store, before.secret)
    found = b"".join(value for (value,) in await rows(store, EVERYTHING) if value is not None)
    assert not [secret for secret in [*SECRETS, before.secret] if secret in found]
    # The process that cannot seal says so, and writes nothing more in clear.
    with pytest.raises(StoreUnavailable, match="its key is needed"):
        await before.put_push(await number_of(before, "t0"), receiver("late", "t0"), 1, most=9)
    refused, done = await submit(before, creation("a", pushes=[receiver("p", "a")]), creation("b"))
    assert isinstance(refused.error, StoreUnavailable) and done.error is None


async def number_of(store: PostgresStore, task_id: str) -> int:
    ((number,),) = await rows(store, "SELECT number FROM tasks WHERE id = $1", task_id)
    return number


async def test_a_value_moved_to_another_row_does_not_open(store: PostgresStore) -> None:
    await fill(store)
    one, other = await number_of(store, "t0"), await number_of(store, "t1")
    await rows(
        store,
        "UPDATE pushes SET sealed = (SELECT sealed FROM pushes WHERE id = 'first' AND task = $1) "
        "WHERE id = 'first' AND task = $2",
        *(one, other),
    )
    with pytest.raises(StoreUnavailable):
        await store.pushes(other)
    assert len(await store.pushes(one)) == 2


async def test_a_receiver_that_cannot_be_opened_keeps_no_other_from_being_told(
    opener: Opener, store: PostgresStore, file: Path
) -> None:
    await fill(store, 2)
    await rows(store, "UPDATE pushes SET sealed = '\\x0102' WHERE number = 1")
    later = await opener.successor(store, sealing=Vault(file=file))
    claimed = await later.claim_pushes(10)
    assert sorted(push.number for push in claimed) == [2, 3, 4]


# Changing the key


async def change(opener: Opener, file: Path) -> tuple[Vault, Any]:
    vault = Vault(file=file)
    key = vault.add()
    return vault, await rotate(Addresses(opener.url), vault, key)


async def test_everything_is_sealed_anew_while_a_server_writes(
    store: PostgresStore, opener: Opener, file: Path
) -> None:
    await fill(store)
    secret, old = store.secret, await sealed_with(Addresses(opener.url))
    vault, done = await change(opener, file)
    # The store's secret, and of each task two receivers, an answer and a note.
    assert (done.values, done.damaged) == (1 + 3 * 4, 0)
    assert await sealed_with(Addresses(opener.url)) == [vault.ids[0]] != old
    assert not [value for (value,) in await rows(store, EVERYTHING) if value and old[0] in value]
    vault.set_aside_others(vault.ids[0])
    # A server that ran all the while goes on with the new key.
    await check(store, secret)
    first = await number_of(store, "t0")
    await store.put_push(first, receiver("third", "t0"), 1, most=5)
    (late,) = await submit(store, creation("t9", pushes=[receiver("fourth", "t9")]))
    assert late.error is None
    sealed = await rows(store, "SELECT sealed FROM pushes WHERE id IN ('third', 'fourth')")
    assert [value[1:9] for (value,) in sealed] == [vault.ids[0]] * 2
    await store.drop_push(first, "third")
    fresh = await opener.open(sealing=Vault(file=file))
    await check(fresh, secret)


async def test_once_a_key_is_named_nothing_is_sealed_with_the_old_one(
    store: PostgresStore, opener: Opener, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also what a server writes between two steps, and what it had begun before."""
    await fill(store)
    step, written = seals._step, 0
    monkeypatch.setattr(seals, "_AT_ONCE", 1)

    async def between(*given: Any) -> Any:
        nonlocal written
        name = f"w{written}"
        written += 1
        outcomes = await submit(store, creation(name, pushes=[receiver("p", name)]))
        assert outcomes[0].error is None
        await store.put_push(outcomes[0].number, receiver("q", name), 1, most=9)
        return await step(*given)

    monkeypatch.setattr(seals, "_step", between)
    vault, _ = await change(opener, file)
    assert written > 10
    keys = {value[1:9] for (value,) in await rows(store, "SELECT sealed FROM pushes")}
    assert keys == {vault.ids[0]}


async def test_a_change_of_key_waits_for_what_is_being_written_under_the_old_one(
    store: PostgresStore, opener: Opener, file: Path
) -> None:
    await fill(store, 1)
    number = await number_of(store, "t0")
    async with store._connections.transaction() as connection:
        shown, sealed = await store._seals.push_in(connection, number, receiver("slow", "t0"))
        changing = asyncio.create_task(change(opener, file))
        waits = (
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = (-3)::oid "
            "AND NOT granted"
        )
        async with asyncio.timeout(60):
            while not await connection.fetchval(waits):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await connection.execute(
            "INSERT INTO pushes (task, id, config, sealed, holder, cursor) "
            "VALUES ($1, 'slow', $2, $3, 1, 0)",
            *(number, shown, sealed),
        )
    vault, done = await changing
    assert done.damaged == 0
    vault.set_aside_others(vault.ids[0])
    fresh = await opener.open(sealing=Vault(file=file))
    assert len(await fresh.pushes(number)) == 3


@pytest.mark.parametrize("cut", range(0, 17, 4))
async def test_cut_off_anywhere_all_is_readable_and_doing_it_again_finishes(
    store: PostgresStore, opener: Opener, file: Path, monkeypatch: pytest.MonkeyPatch, cut: int
) -> None:
    class Cut(Exception):
        pass

    await fill(store)
    step, left = seals._step, cut

    async def counted(*given: Any) -> Any:
        nonlocal left
        if left == 0:
            raise Cut
        left -= 1
        return await step(*given)

    with monkeypatch.context() as patch:
        patch.setattr(seals, "_AT_ONCE", 1)
        patch.setattr(seals, "_step", counted)
        with pytest.raises(Cut):
            await change(opener, file)
    assert len(await sealed_with(Addresses(opener.url))) == 2
    await check(await opener.open(sealing=Vault(file=file)), store.secret)
    vault = Vault(file=file)
    vault.reload()
    await rotate(Addresses(opener.url), vault, vault.ids[0])
    vault.set_aside_others(vault.ids[0])
    await check(await opener.open(sealing=Vault(file=file)), store.secret)


async def test_what_cannot_be_opened_keeps_its_key_on_the_list(
    store: PostgresStore, opener: Opener, file: Path
) -> None:
    await fill(store)
    await rows(store, "UPDATE pushes SET sealed = sealed || '\\x00'::bytea WHERE number = 1")
    _, done = await change(opener, file)
    assert done.damaged == 1
    assert len(await sealed_with(Addresses(opener.url))) == 2


async def test_a_server_without_the_new_key_says_so_and_other_writes_of_the_moment_go_on(
    opener: Opener,
) -> None:
    """Keys in the environment cannot be looked up again."""
    old, new = new_key(), new_key()
    store = await opener.open(sealing=Vault([old]))
    await fill(store, 1)
    await rotate(Addresses(opener.url), Vault([new, old]), key_id(new))
    number = await number_of(store, "t0")
    with pytest.raises(StoreUnavailable, match="DRAGOMAN_STORE_KEY"):
        await store.put_push(number, receiver("late", "t0"), 1, most=9)
    refused, done = await submit(store, creation("a", pushes=[receiver("p", "a")]), creation("b"))
    assert isinstance(refused.error, StoreUnavailable) and done.error is None


async def test_two_changes_of_key_at_once_are_refused(
    store: PostgresStore, opener: Opener, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(store, 1)
    step = seals._step

    async def meanwhile(*given: Any) -> Any:
        with pytest.raises(ConfigError, match="another change"):
            await rotate(Addresses(opener.url), Vault(file=file), store._seals.key or b"")
        return await step(*given)

    monkeypatch.setattr(seals, "_step", meanwhile)
    _, done = await change(opener, file)
    assert done.damaged == 0


async def test_what_agents_are_shown_is_sealed_for_its_place(store: PostgresStore) -> None:
    async with store._connections.transaction() as connection:
        kept = await store._seals.credential(connection, b"agent at a", b"s3cret")
    assert b"s3cret" not in kept
    assert store._seals.credentialed(b"agent at a", kept) == b"s3cret"
    with pytest.raises(StoreUnavailable):
        store._seals.credentialed(b"agent at b", kept)


async def test_a_database_that_no_server_made_ready_has_no_key_to_change(
    databases: Databases,
) -> None:
    bare = await asyncio.to_thread(databases.server.make_database)
    with pytest.raises(ConfigError, match="start a server on it once"):
        await sealed_with(Addresses(bare))
