"""A2A agents as MCP tools: for each agent, one that calls it and one that reads a task.

An agent is called with the credentials of its client. Work that takes longer than the caller waits
goes on; a question of the agent is returned, to be answered by another call.
"""

import asyncio
import re
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from dragoman.client.answer import Answer
from dragoman.client.client import Client
from dragoman.errors import InvalidParams, TimedOut
from dragoman.mcp.offers import Document, ReportProgress, ToolOffer, ToolText, bounded
from dragoman.model.card import AgentCard
from dragoman.model.events import StatusUpdate
from dragoman.model.message import Part
from dragoman.model.task import TaskState

# Seconds.
WAIT, LONGEST_WAIT = 60, 3600
# Of 64 characters, what `agent__` and `__invoke` leave.
_LONGEST = 49
_MOST_SKILLS = 50


class AgentTools:
    """Agents, each by its client."""

    name = "dragoman-agents"
    about = (
        "Each tool agent__NAME__invoke has an agent do something. What it asks back is answered by "
        "another call with its taskId; contextId goes on with a conversation."
    )
    documents: Sequence[Document] = ()

    def __init__(self, clients: Sequence[Client]) -> None:
        self._clients = list(clients)
        self._tools: list[ToolOffer] = []
        self._reading = asyncio.Lock()

    async def tools(self) -> Sequence[ToolOffer]:
        """Return the tools of all agents, from the first cards that were read. Raises what the
        client raises if an agent has no card."""
        async with self._reading:
            if not self._tools:
                cards = await asyncio.gather(*(client.look() for client in self._clients))
                names: list[str] = []
                tools: list[ToolOffer] = []
                for client, card in zip(self._clients, cards, strict=True):
                    name = _free(_plain_name(card.name), names)
                    names.append(name)
                    tools += _RemoteAgent(client, card, name).tools()
                self._tools = tools
        return self._tools

    async def read(self, uri: str) -> Any:
        """Raise: there are no documents."""
        raise LookupError(uri)

    async def close(self) -> None:
        """Close the connections."""
        for client in self._clients:
            await client.close()


class _RemoteAgent:
    """One agent and its two tools."""

    def __init__(self, client: Client, card: AgentCard, name: str) -> None:
        self._client = client
        self._card = card
        self._name = name

    def tools(self) -> list[ToolOffer]:
        card, skills = self._card, self._card.skills[:_MOST_SKILLS]
        lines = [f"- {skill.id}: {skill.name}. {skill.description}" for skill in skills]
        about = "\n".join([card.description, *(["Its skills:", *lines] if lines else [])])
        return [
            ToolOffer(
                name=f"agent__{self._name}__invoke",
                title=card.name,
                description=about,
                schema=_invoke_schema([skill.id for skill in card.skills]),
                function=self._invoke,
            ),
            ToolOffer(
                name=f"agent__{self._name}__task",
                title=f"A task of {card.name}",
                description=f"Says how a task of {card.name} stands, and what came of it.",
                schema={
                    "type": "object",
                    "properties": {"taskId": {"type": "string"}},
                    "required": ["taskId"],
                    "additionalProperties": False,
                },
                function=self._task,
                reads_only=True,
            ),
        ]

    async def _invoke(self, given: dict[str, Any], report: ReportProgress) -> ToolText:
        parts = _parts(given)
        seconds = bounded(given.get("timeoutSeconds"), WAIT, LONGEST_WAIT)
        skill = given.get("skillId", "")
        stream = self._client.stream(
            parts,
            task_id=given.get("taskId", ""),
            context_id=given.get("contextId", ""),
            metadata={"skillId": skill} if skill else None,
        )
        try:
            async with asyncio.timeout(seconds), stream:
                async for event in stream:
                    if isinstance(event, StatusUpdate) and event.status.message is not None:
                        await report(event.status.message.text)
        except TimeoutError:
            if stream.task is None:
                raise TimedOut(f"{self._card.name} did not answer within {seconds} s") from None
        return self._result(stream.answer)

    async def _task(self, given: dict[str, Any], report: ReportProgress) -> ToolText:
        result = self._result(Answer(await self._client.get(given["taskId"])))
        # The tool did its work although the task failed.
        return msgspec.structs.replace(result, is_error=False)

    def _result(self, answer: Answer) -> ToolText:
        """Return the state of a task, or the message that is the whole answer."""
        state = answer.state
        data: dict[str, Any] = {"contextId": answer.context_id, "parts": _plain_parts(answer)}
        if state is None:
            return ToolText(answer.text, data)
        word = state.word.replace("_", "-")
        data |= {"taskId": answer.task_id, "state": word}
        text = answer.text
        if state.is_interrupted:
            hint = f"Answer by calling this tool again with taskId {answer.task_id}."
            return ToolText(f"{text or 'The agent waits for more.'}\n{hint}", data)
        if not state.is_terminal:
            reader = f"agent__{self._name}__task"
            return ToolText(
                f"The task {answer.task_id} is {word}; {reader} says when it ended.", data
            )
        is_done = state is TaskState.COMPLETED
        return ToolText(text or f"The task is {word}.", data, is_error=not is_done)


def _invoke_schema(skills: list[str]) -> dict[str, Any]:
    skill: dict[str, Any] = {"type": "string", "description": "Which of its skills."}
    if skills:
        skill["enum"] = skills
    return {
        "type": "object",
        "properties": {
            "message": {"type": "string", "description": "What the agent is to do, in words."},
            "data": {"type": "object", "description": "Arguments, for a skill that takes them."},
            "skillId": skill,
            "taskId": {"type": "string", "description": "A task that waits for this answer."},
            "contextId": {"type": "string", "description": "The conversation to go on with."},
            "timeoutSeconds": {
                "type": "integer",
                "minimum": 1,
                "maximum": LONGEST_WAIT,
                "description": f"How long to wait ({WAIT}). After that its id is returned.",
            },
        },
        "additionalProperties": False,
    }


def _parts(given: dict[str, Any]) -> list[Part]:
    parts: list[Part] = []
    if text := given.get("message"):
        parts.append(Part(text=text))
    if "data" in given:
        parts.append(Part(data=given["data"], media_type="application/json"))
    if not parts:
        raise InvalidParams("lacks message or data", field="arguments")
    return parts


def _plain_parts(answer: Answer) -> list[dict[str, Any]]:
    """Return the parts of an answer as plain JSON: of bytes only their number."""
    found: list[dict[str, Any]] = []
    for part in answer.parts:
        if isinstance(part.text, str):
            found.append({"text": part.text})
        elif part.data is not UNSET:
            found.append({"data": part.data})
        elif isinstance(part.raw, bytes):
            found.append({"file": part.filename, "type": part.media_type, "bytes": len(part.raw)})
        else:
            found.append({"url": part.url, "type": part.media_type})
    return found


def _plain_name(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")[:_LONGEST] or "agent"


def _free(name: str, taken: Sequence[str]) -> str:
    """Return a name that no other agent has."""
    found, number = name, 1
    while found in taken:
        number += 1
        found = f"{name[: _LONGEST - 4]}_{number}"
    return found
