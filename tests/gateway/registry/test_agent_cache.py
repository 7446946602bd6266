"""Agents in memory while several processes write: an edit is made again, but not for ever."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import apsw
import pytest
from harness.waiting import eventually
from msgspec.structs import replace

from dragoman.errors import StoreUnavailable
from dragoman.gateway.registry.agent_cache import _TRIES, AgentCache
from dragoman.gateway.registry.registered import Registered
from dragoman.gateway.registry.registration import Registration
from dragoman.model.identity import Principal
from dragoman.stores.interface import Heard, Rung
from tests.gateway.registry.registries import Desk

pytestmark = pytest.mark.anyio
OWNER = Principal.read("alice")


R = TypeVar("R")


class OtherProcess:
    """Changes an agent in the file whenever somebody has just read it, so many times."""

    def __init__(self, desk: Desk, times: int) -> None:
        self._connection = apsw.Connection(str(desk.path))
        self._connection.set_busy_timeout(30_000)
        self._left = times
        self.reads = 0

    def edit(self, agent: Registered) -> Registered:
        self.reads += 1
        # Without a bound in the cache this ends the test.
        assert self.reads <= 2 * _TRIES, "the edit is tried for ever"
        if self._left > 0:
            self._left -= 1
            self._connection.execute(
                "UPDATE agents SET version = (SELECT version + 1 FROM agents_watch) WHERE id = ?",
                (agent.id,),
            )
            self._connection.execute("UPDATE agents_watch SET version = version + 1")
        return replace(agent, description="Changed.")


async def cache_of(desk: Desk) -> tuple[AgentCache, Registered]:
    peer, registry = await desk.peer(name="Maps"), await desk.registry()
    agent = await registry.register(Registration(url=peer.url), OWNER)
    cache = AgentCache(await desk.store(), desk.clock, desk.audit)
    await cache.open()
    return cache, agent


async def test_an_edit_is_made_again_when_another_process_was_first(there: Desk) -> None:
    cache, agent = await cache_of(there)
    other = OtherProcess(there, times=3)
    assert (await cache.edit(agent.id, other.edit)).description == "Changed."
    assert other.reads == 4


async def test_an_edit_that_never_gets_its_turn_is_given_up(there: Desk) -> None:
    cache, agent = await cache_of(there)
    other = OtherProcess(there, times=10 * _TRIES)
    with pytest.raises(StoreUnavailable, match="keep changing the agent"):
        await cache.edit(agent.id, other.edit)
    assert other.reads == _TRIES


def away_once(deed: Callable[..., Awaitable[R]]) -> Callable[..., Awaitable[R]]:
    """Return what does a deed, but not the first time."""
    tries = 0

    async def tried(*given: object) -> R:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise StoreUnavailable("away")
        return await deed(*given)

    return tried


async def test_a_status_that_could_not_be_written_is_written_later(
    there: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There may be no other news of the agent for long, and other processes believe what is
    stored."""
    cache, agent = await cache_of(there)
    monkeypatch.setattr(cache._rows, "put_health", away_once(cache._rows.put_health))
    cache.set_health(replace(agent, status="offline"), is_urgent=False)

    async def is_stored() -> bool:
        row = await cache._rows.find(agent.id)
        return row is not None and row.status == "offline"

    await eventually(is_stored)


async def test_changes_of_others_that_could_not_be_read_are_read_later(
    there: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One wake-up comes for a change, and no other."""
    cache, agent = await cache_of(there)
    store = await there.store()
    listening: list[Heard] = []
    monkeypatch.setattr(store, "listen", listening.append)
    other = AgentCache(store, there.clock, there.audit)
    await other.open()
    monkeypatch.setattr(other._rows, "changes", away_once(other._rows.changes))
    await cache.remove(agent, OWNER)
    (heard,) = listening
    heard(Rung(agents=1))
    await eventually(lambda: other.get(agent.id) is None)
