"""Replicas of two releases beside each other: one after the other is replaced by a newer one, and
both understand what the other leaves for it."""

import asyncio
import re
from pathlib import Path

import pytest
from harness.databases import Databases
from harness.waiting import WAIT, within

from dragoman.testing.processes import CannotStart
from tests.replicas.replicas import Replicas, replicas, result, said, state
from tests.replicas.test_rolling import Load, restart

# The next release, as far as others can tell: its schema has more, and so have its rings and notes.
NEWER = """
import msgspec

plain = msgspec.json.encode

def encode(value, **more):
    if isinstance(value, tuple) and type(value[-1]).__name__ == "Rung":
        open("rang", "a").close()
        value = (*value[:-1], {**msgspec.to_builtins(value[-1]), "later": [1]})
    return plain(value, **more)

msgspec.json.encode = encode

from dragoman.stores import named_sql

known = named_sql.migrations

def migrations(package):
    found = known(package)
    if package != "dragoman.stores.postgres":
        return found
    return (*found, (found[-1][0] + 1, SCRIPT))

named_sql.migrations = migrations

from dragoman.engine import notes

def encoded(body):
    open("noted", "a").close()
    return plain({**msgspec.to_builtins(body), "later": {}})

notes.NoteBody.encoded = encoded

from dragoman.cli.main import main

main()
"""
COMPATIBLE = "-- compatible\\nALTER TABLE tasks ADD COLUMN later int"
BREAKING = "ALTER TABLE tasks RENAME COLUMN context TO conversation"


def write_newer(folder: Path, script: str) -> Path:
    path = folder / "newer.py"
    path.write_text(f'SCRIPT = "{script}"\n{NEWER}')
    return path


async def upgrade(both: Replicas, place: int) -> None:
    """Replace one by the next release."""
    await restart(both, place, "newer.py")


async def test_releases_one_step_apart_serve_the_same_tasks(tmp_path: Path, database: str) -> None:
    write_newer(tmp_path, COMPATIBLE)
    async with replicas(tmp_path, database, 2) as both:
        load = Load(both.proxy.url)
        callers = [asyncio.create_task(load.run(f"c{n}")) for n in range(2)]
        waiting = await both.sites[0].send("a colour", metadata={"skill": "asks"})
        await within(upgrade(both, 1))
        older, newer = both.sites

        # What the older asked is answered at the newer, and the other way round.
        done = await newer.send("blue", taskId=waiting["id"])
        assert result(done) == "a colour, blue"
        asked = await newer.send("a size", metadata={"skill": "asks"})
        assert result(await older.send("small", taskId=asked["id"])) == "a size, small"

        # Each cancels and follows what runs at the other.
        held = [await both.held(f"gate-{place}", by=place) for place in range(2)]
        for place, site in enumerate((newer, older)):
            ended = await site.call("CancelTask", {"id": held[place]["id"]})
            assert state(ended) == "canceled"
        assert (tmp_path / "noted").exists() and (tmp_path / "rang").exists()

        # Tasks of the last older one go on at newer ones.
        left = await both.held("left", by=0)
        await within(upgrade(both, 0))
        pids = {f"{server.pid} 1" for server in both.servers}
        await both.until(1, left["id"], lambda task: pids & set(said(task)))
        both.open("left")
        await both.until(0, left["id"], lambda task: state(task) == "completed")
        load.is_over = True
        await within(asyncio.gather(*callers))
        assert load.failures == []
        assert sorted((tmp_path / "done").read_text().splitlines()) == sorted(load.sent)

        # A release that is one step older may come back.
        await within(restart(both, 0))
        assert await both.sites[0].total() == await both.sites[1].total()


async def test_a_schema_that_older_replicas_could_not_use_waits_for_them_to_end(
    tmp_path: Path, database: str
) -> None:
    write_newer(tmp_path, BREAKING)
    async with replicas(tmp_path, database, 1) as one:
        server = one.begin(program="newer.py")
        with pytest.raises(CannotStart, match=re.compile("older release", re.DOTALL)):
            await asyncio.to_thread(server.ready)
        # The older one goes on.
        assert state(await one.sites[0].send("hi")) == "completed"


async def test_a_replica_that_a_newer_release_was_not_waiting_for_ends_and_says_why(
    tmp_path: Path, database: str, databases: Databases
) -> None:
    """It was frozen, and no other lived to take it for dead before the schema was changed."""
    async with replicas(tmp_path, database, 1) as one:
        process = one.servers[0].process
        databases.server.sql(
            "UPDATE dragoman_schema SET version = 99, oldest = 99; "
            "UPDATE workers SET gone_at = now()",
            database.rpartition("/")[2],
        )
        assert await asyncio.to_thread(process.wait, WAIT) != 0
        logged = one.servers[0].log
        assert "a newer release changed the database" in logged
        assert "Traceback" not in logged
