"""Skills a test can watch and hold up, and what it reads of their tasks."""

import asyncio
from collections.abc import AsyncIterator

from dragoman import Agent, Message, Turn
from dragoman.engine.lifecycle import evolve
from dragoman.model.task import Task, TaskState
from tests.engine.engines import House, Stream


class Stage:
    """Skills a test can watch and hold up."""

    def __init__(self) -> None:
        self.runs: list[str] = []
        self.started = asyncio.Event()
        self.go_on = asyncio.Event()
        self.agent = Agent("Stage", "Does as it is told.")
        skill = self.agent.skill

        @skill
        async def echo(text: str) -> str:
            self.runs.append(text)
            return text

        @skill
        async def held(text: str, turn: Turn) -> str:
            self.runs.append(text)
            self.started.set()
            await self.go_on.wait()
            return text

        @skill
        async def chunks(text: str) -> AsyncIterator[str]:
            for n in range(int(text)):
                yield f"{n} "

        @skill
        async def reply(text: str, turn: Turn) -> Message:
            self.runs.append(text)
            self.started.set()
            if text == "held":
                await self.go_on.wait()
            return turn.reply(f"hello {text}")

        @skill
        async def asks(text: str, turn: Turn) -> str:
            self.runs.append(text)
            answer = await turn.ask("which?")
            return f"{text}, {answer.text}"

        @skill
        async def authorizes(text: str, turn: Turn) -> str:
            answer = await turn.authorize("sign in")
            return f"{text}, {answer.text}"

        @skill
        async def story(text: str, turn: Turn) -> str:
            """Everything a log can hold, over three turns."""
            await turn.say("once")
            async with turn.artifact(name="tale") as tale:
                for word in ("upon", "a", "time"):
                    await tale.write(word)
            first = await turn.ask("and then?")
            await turn.say(first.text)
            await turn.artifact("ever", name="tale 2")
            second = await turn.authorize("prove it")
            async with turn.artifact(name="tale 3") as tale:
                for n in range(30):
                    await tale.write(f"{n} ")
            return second.text


def text_of(task: Task) -> str:
    return "".join(str(part.text) for artifact in task.artifacts for part in artifact.parts)


def drafted(house: House, task: Task) -> TaskState | None:
    """Return the state a task has reached, be it written or not."""
    log = house.engine._live.get(house.scope, task.id)
    return log.draft.state if log is not None and log.draft is not None else None


async def says(house: House, task: Task, count: int) -> bool:
    return len((await house.get(task.id)).history) == count


def fold(stream: Stream) -> Task:
    """Return the task as a reader of the stream knows it; history is not in streams."""
    assert stream.opening is not None
    task = stream.opening
    for event in stream.events:
        task = evolve(task, event)
    return task
