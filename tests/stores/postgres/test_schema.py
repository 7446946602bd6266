"""Which databases a process makes its own, which it leaves alone, and in what words."""

import asyncio
import re
import signal
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from harness.certificates import LOOPBACK, SERVER, Authority
from harness.databases import Databases

from dragoman.errors import ConfigError
from dragoman.stores.interface import Survey, TaskWords
from dragoman.stores.postgres import Addresses, PostgresStore, schema
from dragoman.testing.promises.samples import creation, head_of, submit, write
from dragoman.testing.servers import PostgresServer
from tests.stores.postgres.conftest import Opener
from tests.stores.postgres.encrypting_proxy import EncryptingProxy
from tests.stores.postgres.sharing_pooler import SharingPooler


@pytest.fixture
async def bare(databases: Databases) -> str:
    """A database that we never saw."""
    return await asyncio.to_thread(databases.server.make_database)


async def run(databases: Databases, url: str, sql: str) -> str:
    return await asyncio.to_thread(databases.server.sql, sql, url.rpartition("/")[2])


async def refusal(url: str, **given: object) -> str:
    """Return in which words a store refuses to open."""
    with pytest.raises(ConfigError) as caught:
        await PostgresStore(Addresses(url), **given).open()  # pyright: ignore
    return str(caught.value)


async def test_an_empty_database_is_made_ready_by_one_of_many(opener: Opener, bare: str) -> None:
    stores = await asyncio.gather(*(opener.open(bare) for _ in range(4)))
    assert len({store.worker for store in stores}) == 4
    for n, store in enumerate(stores):
        await write(store, creation(f"t{n}"))
    assert await stores[0]._connections.rows("SELECT version FROM dragoman_schema") == [
        (schema.latest(),)
    ]


async def test_what_another_program_keeps_beside_ours_is_left_alone(
    databases: Databases, opener: Opener, bare: str
) -> None:
    await run(databases, bare, "CREATE TABLE invoices (id int); INSERT INTO invoices VALUES (7)")
    store = await opener.open(bare)
    await write(store, creation("t"))
    assert await run(databases, bare, "SELECT id FROM invoices") == "7"


@pytest.mark.parametrize(
    "taken",
    ["CREATE TABLE tasks (id int)", "CREATE VIEW events AS SELECT 1", "CREATE TABLE workers ()"],
)
async def test_a_name_that_another_program_uses_is_refused_and_nothing_is_changed(
    databases: Databases, bare: str, taken: str
) -> None:
    await run(databases, bare, taken)
    before = await run(databases, bare, "SELECT count(*) FROM pg_class")
    words = await refusal(bare)
    assert "another program uses this database" in words and "database of its own" in words
    assert await run(databases, bare, "SELECT count(*) FROM pg_class") == before


async def test_a_user_that_may_not_make_tables_is_told_so(databases: Databases, bare: str) -> None:
    name = bare.rpartition("/")[2]
    await run(databases, bare, f"CREATE ROLE guest_{name} LOGIN")
    words = await refusal(bare.replace("postgres@", f"guest_{name}@"))
    assert "may not make tables" in words


async def version(databases: Databases, url: str, number: int, oldest: int) -> None:
    sql = f"UPDATE dragoman_schema SET version = {number}, oldest = {oldest}"
    await run(databases, url, sql)


async def test_a_newer_schema_that_this_release_cannot_use_is_refused(
    databases: Databases, database: str
) -> None:
    await version(databases, database, 99, 99)
    words = await refusal(database)
    assert "a newer release made this database (schema 99" in words


async def test_a_newer_schema_that_this_release_can_use_is_used(
    databases: Databases, opener: Opener, database: str
) -> None:
    await version(databases, database, 99, schema.latest())
    store = await opener.open()
    await write(store, creation("t"))
    assert await run(databases, database, "SELECT version FROM dragoman_schema") == "99"


def with_one_more(monkeypatch: pytest.MonkeyPatch, script: str) -> int:
    """Have this release know one more migration."""
    number = schema.latest() + 1
    known = (*schema.migrations(), (number, script))
    monkeypatch.setattr(schema, "migrations", lambda: known)
    return number


async def test_a_change_that_older_processes_can_live_with_is_made_while_they_work(
    opener: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = await opener.open()
    with_one_more(monkeypatch, "-- compatible\nCREATE TABLE novelties (id int)")
    newer = await opener.open()
    await write(older, creation("old"))
    await write(newer, creation("new"))
    assert await newer._connections.rows("SELECT * FROM novelties") == []


def test_replicas_of_the_last_release_go_on_with_the_present_schema() -> None:
    """0.11.0 knows 8 migrations. One after them that it could not use would have all replicas
    stopped for an upgrade by one minor version."""
    later = [script for number, script in schema.migrations() if number > 8]
    assert later and all(script.startswith(schema.COMPATIBLE) for script in later)


async def test_any_other_change_waits_for_older_processes_to_end(
    opener: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = await opener.open()
    with_one_more(monkeypatch, "CREATE TABLE novelties (id int)")
    words = await refusal(opener.url)
    assert re.search(r"1 process\(es\) of an older release still use it; stop them first", words)
    await write(older, creation("t"))
    await older.close()
    newer = await opener.open()
    await head_of(newer, "t")


async def test_an_older_process_that_died_keeps_no_one_waiting_and_never_writes_again(
    opener: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dead without a mark: there was no other to make it. If it was only frozen, it wakes up to a
    database that takes nothing from it, under any number."""
    older = await opener.open(lease=0.2)
    await older._workers.vanish()

    async def is_dead() -> bool:
        rows = await older._connections.rows(
            "SELECT NOT has_session($1) AND at + lease < clock_timestamp() "
            "FROM workers JOIN beats ON worker = number WHERE number = $1",
            older.worker,
        )
        return rows == [(True,)]

    async with asyncio.timeout(60):
        while not await is_dead():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    with monkeypatch.context() as newer_release:
        number = with_one_more(newer_release, "CREATE TABLE novelties (id int)")
        newer = await opener.open()
    outcomes = await asyncio.wait_for(submit(older, creation("t")), 60)
    assert outcomes[0].error is not None
    rows = await newer._connections.rows("SELECT number FROM workers WHERE gone_at IS NULL")
    assert rows == [(newer.worker,)]
    assert await newer._connections.rows("SELECT oldest FROM dragoman_schema") == [(number,)]
    await newer.close()
    await older._workers.vanish()


# The server


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("ALTER ROLE {role} SET synchronous_commit = off", "synchronous_commit = off: a crash"),
        ("ALTER DATABASE {name} SET synchronous_commit = off", "synchronous_commit = off"),
        ("ALTER ROLE {role} SET default_transaction_read_only = on", "is set to read only"),
        ("ALTER ROLE {role} SET search_path = nowhere", "no schema of this user's search_path"),
    ],
)
async def test_a_role_or_a_database_that_cannot_keep_what_is_acknowledged_is_refused(
    databases: Databases, database: str, setting: str, words: str
) -> None:
    name = database.rpartition("/")[2]
    role = f"owner_{name}"
    await run(databases, database, f"CREATE ROLE {role} LOGIN SUPERUSER")
    await run(databases, database, setting.format(role=role, name=name))
    assert words in await refusal(database.replace("postgres@", f"{role}@"))


async def test_a_database_in_another_encoding_is_refused(databases: Databases) -> None:
    await asyncio.to_thread(
        databases.server.sql,
        "CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0",
    )
    assert "not in UTF8" in await refusal(databases.server.url("latin"))


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="dragoman-tests-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.parametrize("name", ["fsync", "full_page_writes"])
async def test_a_server_that_a_power_cut_would_damage_is_refused(folder: Path, name: str) -> None:
    server = PostgresServer(folder / "unsafe", **{name: "off"})
    await asyncio.to_thread(server.start)
    try:
        assert f"{name} = off: a power cut could damage" in await refusal(server.url())
    finally:
        await asyncio.to_thread(server.stop, signal.SIGQUIT)


async def test_the_connection_is_encrypted_and_the_server_known_as_the_address_says(
    database: str, tmp_path: Path
) -> None:
    """What encrypts stands before the server, whose build here cannot."""
    authority, stranger = Authority(), Authority()
    files = authority.issue(LOOPBACK, uses=[SERVER]).save_files(tmp_path, "server")
    root, other = tmp_path / "root.pem", tmp_path / "other.pem"
    root.write_bytes(authority.pem)
    other.write_bytes(stranger.pem)
    proxy = EncryptingProxy(database, files)
    address = await proxy.start()
    verified = f"{address}?sslmode=verify-full&sslrootcert="
    try:
        for url in (f"{address}?sslmode=require", verified + quote(str(root))):
            store = PostgresStore(Addresses(url))
            await store.open()
            await write(store, creation(f"t{proxy.encrypted}"))
            await store.close()
        assert proxy.encrypted > 4
        assert "cannot be reached" in await refusal(verified + quote(str(other)))
        assert "cannot be reached" in await refusal(f"{database}?sslmode=require")
    finally:
        await proxy.stop()


async def test_a_pooler_that_takes_no_settings_is_named_as_one(database: str) -> None:
    """As PgBouncer does, unless it is told to ignore them."""

    class Strict(SharingPooler):
        async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1)
            said = b"SFATAL\0C08P01\0Munsupported startup parameter: jit\0\0"
            writer.write(b"E" + struct.pack("!I", len(said) + 4) + said)
            raise ConnectionError

    pooler = Strict(database)
    pooled = await pooler.start()
    try:
        # Without a question for TLS, which it would answer first.
        words = await refusal(f"{pooled}?sslmode=disable")
        assert "a pooler" in words and "store_session_url" in words
    finally:
        await pooler.stop()


async def test_an_address_of_the_server_that_leads_nowhere_is_refused_in_words(
    database: str,
) -> None:
    with pytest.raises(ConfigError, match=r"^store_session_url: PostgreSQL cannot be reached"):
        await PostgresStore(Addresses(database, "postgresql://postgres@127.0.0.1:1/x")).open()


async def test_an_address_of_the_server_that_leads_to_another_database_is_refused_in_words(
    database: str, databases: Databases
) -> None:
    other = databases.make()
    store = PostgresStore(Addresses(other))
    await store.open()
    await store.close()
    with pytest.raises(ConfigError, match=r"^store_session_url: this is another database"):
        await PostgresStore(Addresses(database, session=other)).open()


async def test_a_pooler_that_shares_sessions_is_refused_unless_the_server_has_an_address_too(
    database: str,
) -> None:
    pooler = SharingPooler(database)
    pooled = await pooler.start()
    try:
        words = await refusal(pooled)
        assert "shares sessions by transaction" in words and "store_session_url" in words
        store = PostgresStore(Addresses(pooled, session=database))
        await store.open()
        await write(store, creation("t"))
        await head_of(store, "t")
        await store.close()
    finally:
        await pooler.stop()


@pytest.mark.parametrize("has_agents", [False, True])
async def test_words_are_indexed_anew_where_a_gateway_gave_tasks_away(
    databases: Databases, opener: Opener, bare: str, has_agents: bool
) -> None:
    """Their index does not have the agents yet."""
    store = await opener.open(bare)
    await write(store, creation("t"))
    head = await head_of(store, "t")
    await store.index_words([TaskWords(head.number, frozenset(["word"]), is_final=True)])
    assert await store.unindexed(1) == []
    if has_agents:
        await run(databases, bare, "INSERT INTO agents VALUES ('1', 'x', '{}', 'online', 0, 0, 1)")
    await run(databases, bare, dict(schema.migrations())[10])
    assert [one.task_id for one in await store.unindexed(1)] == ["t"] * has_agents
    found = await store.search(Survey(limit=1), ["word"])
    assert [one.task_id for one in found.heads] == ["t"]
