"""An agent of plain functions: their turn waits, and is never awaited."""

from collections.abc import Iterator, Mapping
from typing import assert_type

from dragoman import Agent, Answer, Message, SyncTurn, tool

agent = Agent("Library", "Lends books.")


async def look_up(title: str) -> list[str]:
    return [title]


@agent.skill(default=True)
def lend(title: str, turn: SyncTurn) -> str:
    assert_type(turn.say("One moment"), None)
    assert_type(turn.step("look up", look_up, title), list[str])
    assert_type(turn.step("length", len, title), int)
    assert_type(turn.call("http://localhost:8001", title), Answer)
    assert_type(turn.call("http://localhost:8001", title, returns=dict[str, int]), dict[str, int])
    assert_type(turn.choose("Which?", ["this", "that"]), str)
    assert_type(turn.confirm("Sure?", timeout=60, default=False), bool)
    assert_type(turn.ask("For how long?"), Message)
    assert_type(turn.artifact(title, name="title"), str)
    assert_type(turn.attempt, int)
    assert_type(turn.tool("scan", {"title": title}, returns=list[str]), list[str])
    assert_type(turn.tool("scan", returns=int, timeout=1, default=None), int | None)
    assert_type(turn.tool("scan"), object)
    assert_type(turn.fill("Who?", dict[str, str], timeout=1, default=None), dict[str, str] | None)
    assert_type(turn.metadata, Mapping[str, object])
    turn.sleep(0.1)
    return title


@agent.skill
def pages(count: int) -> Iterator[str]:
    yield from map(str, range(count))


@tool(description="Adds two numbers.")
def add(one: int, two: int) -> int:
    return one + two


assert_type(add(1, 2), int)
assert_type(list(pages(2)), list[str])
