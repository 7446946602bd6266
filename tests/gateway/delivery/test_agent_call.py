"""A call to an agent: its slot is free again, whatever becomes of what is noted about it."""

from typing import Any, cast

import pytest

from dragoman.config import GatewaySettings, Settings
from dragoman.errors import AgentOffline, DeliveryUnknown, Unreachable
from dragoman.gateway.delivery.agent_call import AgentCall
from dragoman.gateway.delivery.context import DeliveryContext
from dragoman.gateway.delivery.upstreams import Upstream
from dragoman.gateway.registry.registered import Registered
from dragoman.model.identity import LOCAL

pytestmark = pytest.mark.anyio
URL = "http://agent.example/"


class BrokenRouter:
    """Cannot take note of any outcome."""

    def _fail(self, agent_id: str) -> None:
        raise OSError(f"{agent_id} cannot be noted")

    saw = missed = doubted = _fail


def upstream() -> Upstream:
    agent = Registered(id="a", name="maps", title="Maps", url=URL)
    settings = Settings(gateway=GatewaySettings(agent_concurrency=1, agent_queue=0))
    # Nothing is dialled here.
    return Upstream(agent, cast(Any, None), cast(Any, None), settings)


def call_to(agent: Upstream) -> AgentCall:
    nothing: Any = None
    router: Any = BrokenRouter()
    context = DeliveryContext("g", nothing, Settings(), nothing, router, nothing, nothing)
    return AgentCall(context, agent, URL, LOCAL)


@pytest.mark.parametrize("error", [Unreachable(), DeliveryUnknown(), TimeoutError()])
async def test_the_slot_is_released_although_a_failure_cannot_be_noted(error: Exception) -> None:
    agent = upstream()
    with pytest.raises(OSError, match="cannot be noted"):
        async with call_to(agent):
            assert agent.bulkhead.running == 1
            raise error
    assert agent.bulkhead.running == 0


async def test_the_slot_is_released_although_a_success_cannot_be_noted() -> None:
    agent = upstream()
    with pytest.raises(OSError, match="cannot be noted"):
        async with call_to(agent) as call:
            call.succeeded()
    assert agent.bulkhead.running == 0


async def test_no_slot_is_taken_while_the_circuit_is_open() -> None:
    agent = upstream()
    for _ in range(100):
        agent.circuits.call(URL, LOCAL).failed(Unreachable())
    with pytest.raises(AgentOffline):
        async with call_to(agent):
            pytest.fail("the circuit is open")
    assert agent.bulkhead.running == 0
