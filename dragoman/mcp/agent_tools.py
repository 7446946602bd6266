"""A2A agents as MCP tools: for each, one that has it do something and one that looks at a task.

An agent is called with the credentials that its client has. Work that takes longer than the caller
waits goes on; what an agent asks back is returned, to be answered by another call.
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
from dragoman.mcp.offers import Document, Offer, Said, Tell, whole
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
        self._offers: list[Offer] = []
        self._reading = asyncio.Lock()

    async def offers(self) -> Sequence[Offer]:
        """Return the tools of all agents, as their cards described them first. Raises what the
        client raises if one has no card."""
        async with self._reading:
            if not self._offers:
                cards = await asyncio.gather(*(client.look() for client in self._clients))
                names: list[str] = []
                offers: list[Offer] = []
                for client, card in zip(self._clients, cards, strict=True):
                    name = _free(_plain_name(card.name), names)
                    names.append(name)
                    offers += _RemoteAgent(client, card, name).offers()
                self._offers = offers
        return self._offers

    async def read(self, uri: str) -> Any:
        """There is nothing to read."""
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

    def offers(self) -> list[Offer]:
        card, skills = self._card, self._card.skills[:_MOST_SKILLS]
        lines = [f"- {skill.id}: {skill.name}. {skill.description}" for skill in skills]
        about = "\n".join([card.description, *(["Its skills:", *lines] if lines else [])])
        return [
            Offer(
                name=f"agent__{self._name}__invoke",
                title=card.name,
                description=about,
                schema=_invoking([skill.id for skill in card.skills]),
                do=self._invoke,
            ),
            Offer(
                name=f"agent__{self._name}__task",
                title=f"A task of {card.name}",
                description=f"Says how a task of {card.name} stands, and what came of it.",
                schema={
                    "type": "object",
                    "properties": {"taskId": {"type": "string"}},
                    "required": ["taskId"],
                    "additionalProperties": False,
                },
                do=self._task,
                reads_only=True,
            ),
        ]

    async def _invoke(self, given: dict[str, Any], tell: Tell) -> Said:
        parts = _parts(given)
        seconds = whole(given.get("timeoutSeconds"), WAIT, LONGEST_WAIT)
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
                        await tell(event.status.message.text)
        except TimeoutError:
            if stream.task is None:
                raise TimedOut(f"{self._card.name} did not answer within {seconds} s") from None
        return self._told(stream.answer)

    async def _task(self, given: dict[str, Any], tell: Tell) -> Said:
        said = self._told(Answer(await self._client.get(given["taskId"])))
        # That a task failed is what was asked for, and no failure to say so.
        return msgspec.structs.replace(said, is_error=False)

    def _told(self, answer: Answer) -> Said:
        """Return how a task stands, or the message that is all of the answer."""
        state = answer.state
        data: dict[str, Any] = {"contextId": answer.context_id, "parts": _shown(answer)}
        if state is None:
            return Said(answer.text, data)
        word = state.name.lower().replace("_", "-")
        data |= {"taskId": answer.task_id, "state": word}
        text = answer.text
        if state.is_interrupted:
            hint = f"Answer by calling this tool again with taskId {answer.task_id}."
            return Said(f"{text or 'The agent waits for more.'}\n{hint}", data)
        if not state.is_terminal:
            look = f"agent__{self._name}__task"
            return Said(f"The task {answer.task_id} is {word}; {look} says when it ended.", data)
        is_done = state is TaskState.COMPLETED
        return Said(text or f"The task is {word}.", data, is_error=not is_done)


def _invoking(skills: list[str]) -> dict[str, Any]:
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


def _shown(answer: Answer) -> list[dict[str, Any]]:
    """Return the parts of an answer as plain JSON: bytes are told by their number."""
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
