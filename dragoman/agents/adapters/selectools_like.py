"""An object with the contract of selectools: `clone_for_isolation().run([message]).content`.

Each message runs on a clone without history, memory and usage. A clone that has `astream` streams
its answer; otherwise it runs in a thread. The skills are the agent's tools.
"""

import contextlib
import inspect
import sys
from dataclasses import dataclass
from typing import Any

from dragoman.agents.adapters.functions import own_title
from dragoman.agents.adapters.wrapping import Response, Threads, wrapped
from dragoman.agents.models import text_of
from dragoman.authoring.agent import Agent
from dragoman.authoring.turn import Turn


@dataclass
class UserMessage:
    """The message for an agent that is not of selectools, with the same members."""

    role: str
    content: str


def selectools_agent(found: Any, name: str) -> Agent:
    """Return an agent that answers each message with a clone."""
    threads = Threads()

    async def respond(turn: Turn, response: Response) -> None:
        clone = found.clone_for_isolation()
        messages = [user_message(text_of(turn.message))]
        if _streams(clone):
            await _streamed(clone, messages, response)
        elif inspect.iscoroutinefunction(clone.run):
            await response.finish(_content(await clone.run(messages)))
        else:
            await response.finish(_content(await threads.run(clone.run, messages)))

    title = own_title(getattr(found, "config", None), name)
    tools = [
        (str(tool.name), str(getattr(tool, "description", "") or ""))
        for tool in getattr(found, "tools", None) or ()
    ]
    # Never the agent's instructions: every caller reads the card.
    return wrapped(title, f"Answers as {title}.", respond, tools)


def _streams(clone: Any) -> bool:
    """Tell whether a clone can stream: it needs the method, and a provider that supports it."""
    provider = getattr(clone, "provider", None)
    is_able = provider is None or bool(getattr(provider, "supports_async", False))
    return is_able and inspect.isasyncgenfunction(getattr(clone, "astream", None))


async def _streamed(clone: Any, messages: list[Any], response: Response) -> None:
    result = None
    async with contextlib.aclosing(clone.astream(messages)) as pieces:
        async for piece in pieces:
            message = getattr(piece, "message", None)
            if message is not None or not hasattr(piece, "content"):
                # The last item is the whole result.
                result = piece
            elif getattr(piece, "tool_calls", None):
                response.restart()
            else:
                await response.write(str(piece.content or ""))
    if result is not None:
        await response.finish(_content(result))


def _content(result: Any) -> Any:
    content = getattr(result, "content", result)
    return "" if content is None else content


def user_message(prompt: str) -> Any:
    """Return the prompt as a message of selectools, if that is loaded: an agent of selectools has
    loaded it."""
    theirs = sys.modules.get("selectools.types")
    if theirs is None:
        return UserMessage("user", prompt)
    return theirs.Message(role=theirs.Role.USER, content=prompt)
