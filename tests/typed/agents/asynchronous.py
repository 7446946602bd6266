"""An agent of async functions: steps, calls and questions have the types of what they return."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import assert_type

from dragoman import Agent, Answer, Budget, EventContext, Message, StatusUpdate, Turn

agent = Agent("Travel", "Plans a trip.", budget=Budget(calls=3))


@dataclass
class Trip:
    city: str
    days: int


async def price(city: str, *, days: int) -> float:
    return len(city) * float(days)


def rate(currency: str) -> int:
    return len(currency)


@agent.skill(tags=["travel"], examples=["Three days in Oslo"])
async def plan(trip: Trip, turn: Turn) -> str:
    assert_type(await turn.step("price", price, trip.city, days=trip.days), float)
    assert_type(await turn.step("rate", rate, "NOK"), int)
    assert_type(await turn.call("http://localhost:8001", "hello"), Answer)
    assert_type(await turn.call("http://localhost:8001", "hello", returns=Trip), Trip)
    assert_type(await turn.call("http://localhost:8001", "hi", returns=list[str]), list[str])
    assert_type(await turn.ask("When?"), Message)
    assert_type(await turn.ask("When?", timeout=1, default=None), Message | None)
    assert_type(await turn.fill("Where to?", Trip), Trip)
    assert_type(await turn.fill("Where to?", Trip, timeout=1, default=None), Trip | None)
    assert_type(await turn.fill("Where to?", {"type": "object"}), object)
    assert_type(await turn.tool("map", {"of": trip.city}, returns=Trip), Trip)
    assert_type(await turn.tool("map", returns=Trip, timeout=1, default=None), Trip | None)
    assert_type(await turn.tool("map"), object)
    assert_type(turn.metadata, Mapping[str, object])
    assert_type(await turn.choose("How?", ["train", "ship"]), str)
    assert_type(await turn.confirm("Book it?"), bool)
    await turn.say(f"{trip.city} it is")
    async with turn.artifact(name="plan") as writer:
        await writer.write("Day one")
    return trip.city


@agent.skill
async def count(upto: int) -> AsyncIterator[str]:
    for number in range(upto):
        yield str(number)


@agent.on_event
async def observe(event: StatusUpdate, context: EventContext) -> None:
    print(context.task_id, event.status.state)


# A decorator leaves a function what it is.
async def call_directly(turn: Turn) -> None:
    assert_type(await plan(Trip("Oslo", 3), turn), str)
