"""The registry in PostgreSQL on several processes: what one changes the others know soon."""

import asyncio

import pytest
from harness.waiting import eventually, within

from dragoman.errors import StoreUnavailable
from dragoman.stores.interface import Rung
from dragoman.stores.postgres.gateway import PostgresGatewayStore
from dragoman.testing.promises.agent_keys import key
from dragoman.testing.promises.agents import agent, stored
from dragoman.testing.promises.workflows import ANN, workflow
from tests.stores.postgres.gateways import Opening


def deafen(store: PostgresGatewayStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have nobody hear what a store rings for."""

    def lost(rung: Rung) -> None:
        pass

    monkeypatch.setattr(store, "ring", lost)


@pytest.mark.parametrize("is_deaf", [False, True])
async def test_a_key_that_one_process_revokes_is_known_to_the_others(
    opening: Opening, monkeypatch: pytest.MonkeyPatch, is_deaf: bool
) -> None:
    """By its ring, and by a look where that is lost."""
    one, other = await opening(), await opening()
    if is_deaf:
        deafen(one, monkeypatch)
    await stored(one, agent("a"))
    await one.agent_keys.put(key("1"), most=9)
    await eventually(lambda: list(other.agent_keys.changed(0)) == [key("1")])
    await one.agent_keys.revoke("1", 5000)
    ended = key("1")._replace(revoked_at=5000)
    assert list(one.agent_keys.changed(0)) == [ended], "at once where it was revoked"
    await eventually(lambda: list(other.agent_keys.changed(0)) == [ended])


async def test_a_revoked_key_that_could_not_be_read_at_first_is_read_later(
    opening: Opening, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No other wake-up comes for the same change, and the key is good here until then."""
    one, other = await opening(), await opening()
    await stored(one, agent("a"))
    await one.agent_keys.put(key("1"), most=9)
    await eventually(lambda: list(other.agent_keys.changed(0)) == [key("1")])
    refresh, tries = other.agent_keys.refresh, iter([StoreUnavailable("away")])

    async def tried() -> None:
        for error in tries:
            raise error
        await refresh()

    monkeypatch.setattr(other.agent_keys, "refresh", tried)
    await one.agent_keys.revoke("1", 5000)
    ended = key("1")._replace(revoked_at=5000)
    await eventually(lambda: list(other.agent_keys.changed(0)) == [ended])


@pytest.mark.parametrize("is_deaf", [False, True])
async def test_an_agent_that_one_process_changes_is_told_to_the_others(
    opening: Opening, monkeypatch: pytest.MonkeyPatch, is_deaf: bool
) -> None:
    one, other = await opening(), await opening()
    if is_deaf:
        deafen(one, monkeypatch)
    told: list[int] = []
    other.listen(lambda rung: told.append(rung.agents) if rung else None)
    row = await stored(one, agent("a"))
    await eventually(lambda: row.version in told)
    version = await one.agents.remove("a", 5)
    await eventually(lambda: version in told)


async def test_versions_come_in_the_order_of_commits(opening: Opening) -> None:
    """A reader that has seen a version has seen all before it, whoever wrote them."""
    stores = [await opening() for _ in range(3)]
    reader = await opening()
    ended = asyncio.Event()

    async def write(place: int) -> None:
        for n in range(20):
            await stored(stores[place], agent(f"{place}-{n}", f"{place}-{n}"))

    async def follow() -> set[str]:
        seen: set[str] = set()
        version = 0
        while not ended.is_set():
            version = await take(seen, version)
        await take(seen, version)
        return seen

    async def take(seen: set[str], version: int) -> int:
        found = await reader.agents.changes(version)
        seen.update(row.id for row in found.agents)
        return found.version

    following = asyncio.get_running_loop().create_task(follow())
    await within(asyncio.gather(*map(write, range(3))))
    ended.set()
    assert len(await within(following)) == 60


async def test_two_processes_that_change_an_agent_at_once_do_not_both(opening: Opening) -> None:
    one, other = await opening(), await opening()
    row = await stored(one, agent("a"))
    written = await asyncio.gather(
        *(store.agents.put(row._replace(body=b"[%d]" % n)) for n, store in enumerate((one, other)))
    )
    assert sorted(each is None for each in written) == [False, True]


async def test_names_limits_and_keys_hold_over_processes(opening: Opening) -> None:
    one, other = await opening(), await opening()
    rows = await asyncio.gather(
        *(stored(store, agent(id)) for store, id in ((one, "a"), (other, "b")))
    )
    assert {row.name for row in rows} == {"maps", "maps-2"}
    keys = [
        store.agent_keys.put(key(f"{place}-{n}"), most=3)
        for place, store in enumerate((one, other))
        for n in range(3)
    ]
    assert sorted(await asyncio.gather(*keys)).count("stored") == 3
    puts = [
        store.workflows.put(ANN, workflow(f"{place}-{n}"), most=3)
        for place, store in enumerate((one, other))
        for n in range(3)
    ]
    assert sum(await asyncio.gather(*puts)) == 3
