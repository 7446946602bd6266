"""The server of PyPI a2a-lite: 1.0 over JSON-RPC and REST, one skill that takes the whole message.

The skill has a task, whose only artifact is the text it returns. With `streaming` it is a generator
instead: each text it yields is what the agent says while it works, and there is no artifact.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence

import playing
from a2a_lite import Agent, TaskContext
from announcing import serve
from starlette.applications import Starlette


class Stage:
    """A task of this library: its artifact is a text."""

    def __init__(self, task: TaskContext) -> None:
        self.task = task
        self.text = ""

    async def reply(self, text: str) -> None:
        raise NotImplementedError("a skill with a task answers with tasks only")

    async def work(self) -> None:
        await self.task.update("working", "Working")

    async def artifact(
        self, parts: Sequence[playing.Part], *, append: bool = False, last: bool = True
    ) -> None:
        for part in parts:
            assert part.text is not None, "the library's skills answer with text only"
            self.text += part.text

    async def complete(self) -> None:
        pass

    async def ask(self, question: str) -> None:
        asked.add(self.task.task_id)
        await self.task.update("input-required", question)

    async def fail(self, reason: str) -> None:
        raise RuntimeError(reason)

    async def canceled(self) -> None:
        await asyncio.Event().wait()


agent = Agent(name="Player", description="Does what the text says.")
# A skill is not told that a message is an answer.
asked: set[str] = set()

if sys.argv[1:] == ["streaming"]:

    @agent.skill("play", streaming=True)
    async def play(message: str) -> AsyncIterator[str]:
        """Says the words of a text, one by one."""
        for word in message.split():
            yield f"{word} "
            await asyncio.sleep(playing.BETWEEN_CHUNKS)

else:

    @agent.skill("play", task=True)
    async def play(message: str, task: TaskContext) -> str:
        """Does what the text says."""
        stage = Stage(task)
        parts = [playing.Part(text=message)]
        await playing.play(parts, stage, answering=task.task_id in asked)
        return stage.text


def make_app(address: str) -> Starlette:
    agent.url = address
    return agent.get_app()


if __name__ == "__main__":
    serve(make_app)
