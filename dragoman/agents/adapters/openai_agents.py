"""An agent of the OpenAI Agents SDK as an agent of ours: each message is a run without session."""

from importlib import import_module
from typing import Any, cast

from dragoman.agents.adapters.functions import own_title
from dragoman.agents.adapters.wrapping import Response, wrapped
from dragoman.agents.models import text_of
from dragoman.authoring.agent import Agent
from dragoman.authoring.turn import Turn


def openai_agents_agent(found: Any, name: str) -> Agent:
    """Return an agent that runs an agent of the SDK, with its tools, handoffs and guardrails."""

    async def respond(turn: Turn, response: Response) -> None:
        runner: Any = import_module("agents").Runner
        run = runner.run_streamed(found, text_of(turn.message))
        try:
            async for event in run.stream_events():
                data = getattr(event, "data", None)
                kind = getattr(data, "type", "")
                if kind == "response.created":
                    # The model speaks again: what it said before it called a tool is not the end.
                    response.restart()
                elif kind == "response.output_text.delta":
                    await response.write(cast(Any, data).delta)
        finally:
            # Of a run that is over there is nothing left to stop.
            run.cancel()
        await response.finish(run.final_output)

    title = own_title(found, name)
    return wrapped(title, f"Answers as {title}.", respond)
