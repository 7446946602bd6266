"""An agent of Pydantic AI as an agent of ours: each message is a run without history."""

from collections.abc import AsyncIterable
from typing import Any

from dragoman.agents.adapters.functions import own_title
from dragoman.agents.adapters.wrapping import Response, wrapped
from dragoman.agents.models import text_of
from dragoman.authoring.agent import Agent
from dragoman.authoring.turn import Turn


def pydantic_ai_agent(found: Any, name: str) -> Agent:
    """Return an agent that runs a Pydantic AI agent; its output may be any type."""

    async def respond(turn: Turn, response: Response) -> None:
        async def show(_: Any, events: AsyncIterable[Any]) -> None:
            async for event in events:
                await _show_text(event, response)

        result = await found.run(text_of(turn.message), event_stream_handler=show)
        await response.finish(result.output)

    title = own_title(found, name)
    return wrapped(title, f"Answers as {title}.", respond)


async def _show_text(event: Any, response: Response) -> None:
    """Show the text of an event. Each answer of the model begins anew: what it said before it
    called a tool is not the result."""
    kind = getattr(event, "event_kind", "")
    if kind == "part_start":
        if event.index == 0:
            response.restart()
        if event.part.part_kind == "text":
            await response.write(event.part.content)
    elif kind == "part_delta" and event.delta.part_delta_kind == "text":
        await response.write(event.delta.content_delta)
