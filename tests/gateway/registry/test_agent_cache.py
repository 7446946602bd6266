"""Agents in memory while several processes write: an edit is made again, but not for ever."""

import apsw
import pytest
from msgspec.structs import replace

from dragoman.errors import StoreUnavailable
from dragoman.gateway.registry.agent_cache import _TRIES, AgentCache
from dragoman.gateway.registry.registered import Registered
from dragoman.gateway.registry.registration import Registration
from dragoman.model.identity import Principal
from tests.gateway.registry.registries import Desk

pytestmark = pytest.mark.anyio
OWNER = Principal.read("alice")


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
