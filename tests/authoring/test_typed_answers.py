"""Answers of other agents in a type, and arguments that do not fit theirs."""

from dataclasses import dataclass

import pytest
from harness.serving import app_of, serving

from dragoman import Agent, Client, SyncTurn, Turn
from dragoman.errors import InvalidAgentResponse, InvalidParams


@dataclass
class Forecast:
    city: str
    degrees: float


def weather() -> Agent:
    agent = Agent("Weather", "Tells the weather.")

    @agent.skill
    def forecast(city: str) -> Forecast:
        return Forecast(city, 7.5)

    @agent.skill
    def double(number: int) -> int:
        return 2 * number

    return agent


def traveller(url: str) -> Agent:
    agent = Agent("Traveller", "Looks at the weather.")

    @agent.skill
    async def awaited(city: str, turn: Turn) -> str:
        found = await turn.call(url, city, returns=Forecast)
        return f"{found.city} {found.degrees}"

    @agent.skill
    def waited(city: str, turn: SyncTurn) -> str:
        found = turn.call(url, city, returns=Forecast)
        return f"{found.city} {found.degrees}"

    @agent.skill
    async def misread(city: str, turn: Turn) -> str:
        try:
            await turn.call(url, city, returns=list[int])
        except InvalidAgentResponse as error:
            return str(error)
        return "it fitted"

    return agent


async def test_an_answer_has_the_type_that_was_asked_for() -> None:
    async with serving(weather()) as there, Client(app=app_of(traveller(there.url))) as client:
        for skill in ("awaited", "waited"):
            answer = await client.send("Oslo", metadata={"skillId": skill})
            assert answer.text == "Oslo 7.5"
        told = await client.send("Oslo", metadata={"skillId": "misread"})
        assert told.text.startswith("The answer is not of type list: Expected `array`")


async def test_an_argument_that_does_not_fit_is_told_with_what_was_wanted_and_given() -> None:
    async with Client(app=app_of(weather())) as client:
        with pytest.raises(InvalidParams, match=r"number: .*Expected `int`, got `str`"):
            await client.send("seven", metadata={"skillId": "double"})
