"""Call an agent, whichever version of A2A it speaks.

    dragoman serve examples/weather.py
    python examples/calling.py localhost:8000 Oslo

Any other agent will do as well: a host, a URL or a card file.
"""

import asyncio
import sys

from dragoman import A2AError, Client, TaskState


async def ask(reference: str, city: str) -> None:
    """Ask for the weather, once at once and once as it comes."""
    async with Client(reference) as agent:
        print(f"{agent.card.name} speaks {agent.version}")

        answer = await agent.send(city)
        print(answer.text)

        async for text in agent.stream_text(city):
            print(text)

        # A task that asks back is answered under its id.
        if answer.state is TaskState.INPUT_REQUIRED:
            answer = await agent.send("yes", task_id=answer.task_id)


if __name__ == "__main__":
    try:
        asyncio.run(ask(*sys.argv[1:3]))
    except A2AError as error:
        sys.exit(f"{type(error).__name__}: {error}")
