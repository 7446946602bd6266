"""Other agents as tools: `agent__<name>__invoke`, which takes one `prompt`.

A call is like `turn.call`: a task at the other agent, linked to this one, canceled with it and
continued after a crash. Status messages of the other agent are relayed, and its questions go to
this task's caller.
"""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, cast

from dragoman.agents.tools import MAX_DESCRIPTION, Tool, ToolCall, ToolResult, Unfinished, tool_name
from dragoman.authoring.budget import CallOptions
from dragoman.authoring.delegates import Ref, guarded_client
from dragoman.authoring.turn import Turn
from dragoman.client.answer import Answer
from dragoman.client.client import Client
from dragoman.client.streams.replay_filter import ReplayFilter
from dragoman.errors import A2AError, ConfigError
from dragoman.model.card import AgentCard
from dragoman.model.events import StatusUpdate
from dragoman.model.message import Message
from dragoman.model.requests import open_requests
from dragoman.model.task import TaskState

# Seconds that reading a card may take; without one the tool is described by its name alone.
CARD_WITHIN = 5.0
# 64 characters less `agent__` and `__invoke`.
_LONGEST = 49
# Limits of a path that another agent reports: steps, and characters of each.
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

    Names are given and not read from cards: a turn that continues after a crash needs them even if
    the other agent is unreachable."""

    def __init__(self, agents: Mapping[str, Ref] | None = None, **more: Ref) -> None:
        self._agents: dict[str, tuple[str, Ref]] = {}
        for name, ref in {**(agents or {}), **more}.items():
            tool = f"agent__{tool_name(name)[:_LONGEST]}__invoke"
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
        """Call an agent."""
        name, ref = self._agents[call.name]
        prompt = call.arguments.get("prompt")
        if not isinstance(prompt, str) or call.arguments.keys() != {"prompt"}:
            raise ValueError("give one argument, the text prompt")
        return await _call(turn, name, ref, prompt)

    async def close(self) -> None:
        """Nothing to close: the turn owns the clients."""


async def _call(
    turn: Turn, name: str, ref: Ref, content: Any, task_id: str = ""
) -> ToolResult | Unfinished:
    """Return an agent's answer, or an unfinished call if it asks a question."""
    seen = ReplayFilter()
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
        state = task.status.state.word
        return ToolResult(answer.text or f"The task is {state}.", is_error=not is_done)
    status = task.status

    async def go_on() -> ToolResult | Unfinished:
        is_auth = status.state is TaskState.AUTH_REQUIRED
        ask = turn.authorize if is_auth else turn.ask
        question = status.message.parts if status.message is not None else _WAITS
        # An answer that is secret for the other agent is secret here.
        is_sensitive = any(request.sensitive for request in open_requests(status))
        reply = await ask(question, sensitive=is_sensitive)
        return await _call(turn, name, ref, reply.parts, task.id)

    return Unfinished(go_on)


async def _say(turn: Turn, name: str, event: StatusUpdate) -> None:
    """Relay a status message of an agent, with the path it came by."""
    message = event.status.message
    if message is not None:
        facts = {"parentTaskId": turn.task_id, "path": [f"agent:{name}", *_path(message)]}
        await turn.say(message.parts, metadata=facts)


def _path(message: Message) -> list[str]:
    """Return the path that the agent reports for a message, shortened."""
    value: Any = message.metadata.get("path")
    steps = cast("list[Any]", value) if isinstance(value, list) else []
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
        client = guarded_client(ref)
        try:
            return await client.look()
        finally:
            await client.close()
