"""Other agents as tools: `agent__<name>__invoke`, which takes one `prompt`.

A call is what `turn.call` is: a task of its own there, linked to this one, canceled with it and
taken up again after a crash. What the other agent says on its way is said here too, and its
questions go to this task's caller.
"""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, cast

from dragoman.agents.tools import MAX_DESCRIPTION, Tool, ToolCall, ToolResult, Unfinished, humanized
from dragoman.client.answer import Answer
from dragoman.client.client import Client
from dragoman.client.seen import Seen
from dragoman.errors import A2AError, ConfigError
from dragoman.model.card import AgentCard
from dragoman.model.events import StatusUpdate
from dragoman.model.message import Message
from dragoman.model.requests import open_requests
from dragoman.model.task import TaskState
from dragoman.server.budget import CallOptions
from dragoman.server.delegates import Ref, guarded
from dragoman.server.turn import Turn

# Seconds that reading a card may take; without one the tool is described by its name alone.
CARD_WITHIN = 5.0
# Of 64 characters, what `agent__` and `__invoke` leave.
_LONGEST = 49
# Of what other agents say of their way: so many steps, and characters of each.
_DEEPEST = 16
_LONGEST_STEP = 256
_WAITS = "The agent waits for more."
_SCHEMA = {
    "type": "object",
    "properties": {"prompt": {"type": "string", "description": "What the agent is to do."}},
    "required": ["prompt"],
    "additionalProperties": False,
}


class RemoteAgents:
    """Agents by the names their tools have: `RemoteAgents(weather="https://weather.example.com")`.

    Names are given and not read from cards: a turn that goes on after a crash must find them
    though the other agent may be away."""

    def __init__(self, agents: Mapping[str, Ref] | None = None, **more: Ref) -> None:
        self._agents: dict[str, tuple[str, Ref]] = {}
        for name, ref in {**(agents or {}), **more}.items():
            tool = f"agent__{humanized(name)[:_LONGEST]}__invoke"
            if tool in self._agents:
                raise ConfigError(f"two agents would be called {tool}; rename one")
            self._agents[tool] = (name, ref)

    async def list_tools(self) -> Sequence[Tool]:
        """Return a tool for each agent, described by its card."""
        described = (_described(name, ref) for name, ref in self._agents.values())
        texts = await asyncio.gather(*described)
        return [
            Tool(name=tool, description=text, schema=_SCHEMA, records_itself=True)
            for tool, text in zip(self._agents, texts, strict=True)
        ]

    async def execute(self, call: ToolCall, turn: Turn) -> ToolResult | Unfinished:
        """Have an agent do something."""
        name, ref = self._agents[call.name]
        prompt = call.arguments.get("prompt")
        if not isinstance(prompt, str) or call.arguments.keys() != {"prompt"}:
            raise ValueError("give one argument, the text prompt")
        return await _asked(turn, name, ref, prompt)

    async def close(self) -> None:
        """The clients are the turn's."""


async def _asked(
    turn: Turn, name: str, ref: Ref, content: Any, task_id: str = ""
) -> ToolResult | Unfinished:
    """Return what an agent answers, or what is left to do where it asks back."""
    seen = Seen()
    message: Message | None = None
    more = CallOptions(task_id=task_id) if task_id else CallOptions()
    async with contextlib.aclosing(turn.follow(ref, content, **more)) as events:
        async for event in events:
            if isinstance(event, Message):
                message = event
                continue
            seen.apply(event)
            if isinstance(event, StatusUpdate) and event.status.state is TaskState.WORKING:
                await _say(turn, name, event)
    task = seen.task()
    answer = Answer(task) if task is not None else Answer(message=message)
    if task is None:
        return ToolResult(answer.text)
    if not task.status.state.is_interrupted:
        is_done = task.status.state is TaskState.COMPLETED
        state = task.status.state.name.lower()
        return ToolResult(answer.text or f"The task is {state}.", is_error=not is_done)
    status = task.status

    async def go_on() -> ToolResult | Unfinished:
        is_auth = status.state is TaskState.AUTH_REQUIRED
        ask = turn.authorize if is_auth else turn.ask
        said = status.message.parts if status.message is not None else _WAITS
        # What is a secret there is none of anybody's business here.
        is_sensitive = any(request.sensitive for request in open_requests(status))
        reply = await ask(said, sensitive=is_sensitive)
        return await _asked(turn, name, ref, reply.parts, task.id)

    return Unfinished(go_on)


async def _say(turn: Turn, name: str, event: StatusUpdate) -> None:
    """Pass on what an agent says while it works, and by whom it was said."""
    said = event.status.message
    if said is not None:
        facts = {"parentTaskId": turn.task_id, "path": [f"agent:{name}", *_path(said)]}
        await turn.say(said.parts, metadata=facts)


def _path(said: Message) -> list[str]:
    """Return by whom else it came, as far as the agent tells that."""
    value: Any = said.metadata.get("path")
    steps = cast("list[Any]", value) if isinstance(value, list) else []
    # Not how long somebody else's list is.
    return [step[:_LONGEST_STEP] for step in steps[:_DEEPEST] if isinstance(step, str)]


async def _described(name: str, ref: Ref) -> str:
    text = f"Has the agent {name} do something."
    try:
        card = ref if isinstance(ref, AgentCard) else await _card(ref)
    except (A2AError, ConfigError, TimeoutError):
        return text
    return f"{text} {card.description}"[:MAX_DESCRIPTION]


async def _card(ref: str | Client) -> AgentCard:
    async with asyncio.timeout(CARD_WITHIN):
        if isinstance(ref, Client):
            return await ref.look()
        client = guarded(ref)
        try:
            return await client.look()
        finally:
            await client.close()
