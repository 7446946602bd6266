"""An agent or a runner of Google's Agent Development Kit as an agent of ours.

An agent gets a runner and a session for each message. A runner has the author's session service,
so it remembers: the session is the caller's conversation.
"""

import contextlib
from importlib import import_module
from typing import Any

from dragoman.agents.adapters.functions import titled
from dragoman.agents.adapters.wrapping import Response, conversation, wrapped
from dragoman.agents.models import text_of
from dragoman.authoring.agent import Agent
from dragoman.authoring.turn import Turn

# A session of an unknown caller needs a user too.
_ANONYMOUS = "anonymous"


class AdkFailed(Exception):
    """The agent ended with an event that says it failed."""


def adk_agent(found: Any, name: str) -> Agent:
    """Return an agent that runs an agent of the kit, without state between messages."""

    async def respond(turn: Turn, response: Response) -> None:
        in_memory: Any = import_module("google.adk.runners").InMemoryRunner
        runner = in_memory(agent=found, app_name=str(found.name))
        try:
            await _run(runner, turn.task_id, turn, response)
        finally:
            await runner.close()

    return _wrapped(found, name, respond)


def adk_runner(found: Any, name: str) -> Agent:
    """Return an agent that uses a runner's sessions, one for each conversation."""

    async def respond(turn: Turn, response: Response) -> None:
        await _run(found, conversation(turn), turn, response)

    return _wrapped(found.agent, name, respond)


def _wrapped(found: Any, name: str, respond: Any) -> Agent:
    title = titled(str(getattr(found, "name", "") or name))
    about = getattr(found, "description", None)
    return wrapped(title, about or f"Answers as {title}.", respond)


async def _run(runner: Any, session_id: str, turn: Turn, response: Response) -> None:
    running: Any = import_module("google.adk.agents.run_config")
    types: Any = import_module("google.genai.types")
    user = turn.caller.principal.text or _ANONYMOUS
    sessions, key = runner.session_service, {"app_name": runner.app_name, "user_id": user}
    if await sessions.get_session(**key, session_id=session_id) is None:
        await sessions.create_session(**key, session_id=session_id)
    message = types.Content(role="user", parts=[types.Part(text=text_of(turn.message))])
    config = running.RunConfig(streaming_mode=running.StreamingMode.SSE)
    events = runner.run_async(
        user_id=user, session_id=session_id, new_message=message, run_config=config
    )
    result = None
    async with contextlib.aclosing(events):
        async for event in events:
            if event.error_code:
                raise AdkFailed(f"{event.error_code}: {event.error_message}")
            text = _text(event)
            if event.partial:
                if result is not None:
                    # Another agent of the tree answers.
                    response.restart()
                    result = None
                await response.write(text)
            elif text and event.is_final_response():
                result = text
            elif not event.partial:
                response.restart()
    await response.finish(result)


def _text(event: Any) -> str:
    """Return the text of an event, without the model's thoughts."""
    parts: list[Any] = (event.content and event.content.parts) or []
    return "".join(part.text for part in parts if part.text and not getattr(part, "thought", False))
