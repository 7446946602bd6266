"""Code that calls agents."""

from dataclasses import dataclass
from typing import assert_type

from dragoman import Agent, Answer, App, Client, Task


@dataclass
class Forecast:
    city: str
    degrees: float


async def in_process(agent: Agent) -> str:
    async with Client(app=App(agent)) as client:
        return (await client.send("Oslo")).text


async def ask() -> str:
    async with Client("http://localhost:8000") as agent:
        answer = await agent.send("Oslo")
        assert_type(answer, Answer)
        assert_type(answer.convert(Forecast), Forecast)
        assert_type(answer.data, object)
        assert_type(await agent.get(answer.task_id), Task)
        return answer.text
