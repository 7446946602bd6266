"""Our own agent of the same behaviours, for `dragoman serve`: every version and binding."""

import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from dragoman import Agent, Message, Part, TaskFailed, Turn

sys.path.insert(0, str(Path(__file__).parent))
import playing

agent = Agent("Player", "Does what the text says.", input_modes=["*/*"], output_modes=["*/*"])


def plain(part: Part) -> playing.Part:
    text = part.text if isinstance(part.text, str) else None
    if text and text.startswith('{"skill": '):
        # So says the client of a2a-lite, which calls skills by name.
        text = json.loads(text)["params"]["message"]
    return playing.Part(
        text,
        part.raw if isinstance(part.raw, bytes) else None,
        part.data,
        part.filename,
        part.media_type,
    )


def ours(part: playing.Part) -> Part:
    if part.raw is not None:
        return Part(raw=part.raw, filename=part.filename, media_type=part.media_type)
    return Part(data=part.data) if part.text is None else Part(text=part.text)


class Stage:
    """A task of ours; it completes when the skill returns."""

    def __init__(self, turn: Turn) -> None:
        self.turn = turn
        self.message: Message | None = None

    async def reply(self, text: str) -> None:
        self.message = self.turn.reply(text)

    async def work(self) -> None:
        await self.turn.say("Working")

    async def artifact(
        self, parts: Sequence[playing.Part], *, append: bool = False, last: bool = True
    ) -> None:
        given = [ours(part) for part in parts]
        await self.turn.artifact(given, id="result", append=append, last=last)

    async def complete(self) -> None:
        pass

    async def ask(self, question: str) -> None:
        answer = await self.turn.ask(question)
        await playing.finish(self, f"got {answer.text}")

    async def fail(self, reason: str) -> None:
        raise TaskFailed(reason)

    async def canceled(self) -> None:
        await asyncio.Event().wait()


@agent.skill(tags=["test"], default=True)
async def player(message: Message, turn: Turn) -> Message | None:
    """Does what the text says."""
    stage = Stage(turn)
    await playing.play([plain(part) for part in message.parts], stage, answering=False)
    return stage.message
