"""Mistakes that a type checker has to find: each suppression is an error where nothing is wrong."""

import dragoman
from dragoman import Agent, SyncTurn, Turn
from dragoman.compat import selectools

agent = Agent("Careless", "Makes mistakes.")


def double(number: int) -> int:
    return 2 * number


async def mistaken(turn: Turn) -> None:
    print(dragoman.Klient)  # type: ignore
    print(selectools.A2AKlient)  # type: ignore
    await turn.sey("hello")  # type: ignore
    await turn.step("double", double, "2")  # type: ignore
    text: str = await turn.step("double", double, 2)  # type: ignore
    number: int = await turn.call("http://localhost:1", "hi", returns=str)  # type: ignore
    looked: str = await turn.tool("look")  # type: ignore
    kind: str = turn.metadata["kind"]  # type: ignore
    print(text, number, looked, kind)


def mistaken_in_thread(turn: SyncTurn) -> None:
    number: str = turn.step("double", double, 2)  # type: ignore
    turn.follow("http://localhost:1", "hi")  # type: ignore
    print(number)


@agent.skill
def greet(name: str) -> str:
    return name


greet(7)  # type: ignore
