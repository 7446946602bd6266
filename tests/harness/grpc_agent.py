"""An agent for tests of gRPC: what it does is the first word of its message."""

import asyncio

from dragoman import Agent, Turn

agent = Agent("Talker", "Does what the first word says.")


@agent.skill
async def talk(text: str, turn: Turn) -> str | None:
    word, _, rest = text.partition(" ")
    match word:
        case "count":
            for number in range(int(rest)):
                await turn.say(str(number))
            return "counted"
        case "pour":
            # Megabytes, as one artifact.
            async with turn.artifact("poured") as artifact:
                for _ in range(int(rest) * 256):
                    await artifact.write("x" * 4096)
            return None
        case "hold":
            await asyncio.Event().wait()
            return None
        case "ask":
            return await turn.ask("Which one?")
        case _:
            return text
