"""Code with annotations that only a type checker understands: it is served all the same."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest
from harness.serving import serving

from dragoman import Agent
from dragoman.agents.adapters.classes import instance_of
from dragoman.agents.adapters.langgraph import _entry
from dragoman.engine.event_hooks import EventHook

CODE = """
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from somewhere import Money


async def price(goods: str, limit: Money = 5) -> str:
    return f"{goods} for at most {limit}"


def hook(event: Money, context: Money) -> None: ...


class Shop:
    def __init__(self, money: Money = 1) -> None: ...


class State(TypedDict):
    amount: Money
    topic: str
"""


@pytest.fixture(
    params=["as texts", "as names"] if sys.version_info >= (3, 14) else ["as texts"],
)
def code(request: pytest.FixtureRequest) -> SimpleNamespace:
    head = "from __future__ import annotations\n" if request.param == "as texts" else ""
    names: dict[str, Any] = {"__name__": __name__}
    exec(compile(head + CODE, "code", "exec", dont_inherit=True), names)
    return SimpleNamespace(**names)


async def test_a_skill_is_served(code: SimpleNamespace) -> None:
    agent = Agent("Shop", "Sells.")
    agent.skill(code.price)
    async with serving(agent) as site:
        task = await site.send(None, parts=[{"data": {"goods": "bees"}}])
        assert task["artifacts"][0]["parts"] == [{"text": "bees for at most 5"}]


def test_a_hook_a_class_and_a_graph_are_understood(code: SimpleNamespace) -> None:
    assert EventHook(code.hook, 1.0).takes_context
    assert isinstance(instance_of(code.Shop, "Shop"), code.Shop)
    graph = SimpleNamespace(builder=SimpleNamespace(input_schema=code.State))
    assert _entry(graph, "state") == "amount"
