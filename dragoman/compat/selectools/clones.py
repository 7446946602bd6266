"""An agent of selectools as an agent of ours: each message runs on a clone of its own, and of a
message the agent reads the texts and the data."""

import json
from collections.abc import Iterable
from typing import Any, Protocol

from msgspec import UNSET

from dragoman.agents.adapters.selectools_like import user_message
from dragoman.agents.adapters.wrapping import RESPONSE, Threads, sanitized
from dragoman.engine.worker import Plan
from dragoman.errors import InvalidParams
from dragoman.model.identity import ANONYMOUS, Caller
from dragoman.model.message import Message, Part
from dragoman.model.operations import SendMessage
from dragoman.server.agent import Agent
from dragoman.server.turn import Turn


class SelectoolsAgent(Protocol):
    """What is used of an agent. A clone's `run([message])` returns an object with `content`."""

    @property
    def config(self) -> Any:
        """Has a `name`."""
        ...

    @property
    def tools(self) -> Any:
        """Each has a `name` and a `description`."""
        ...

    def clone_for_isolation(self) -> Any:
        """Return a copy without history, memory and usage."""
        ...


class Clones(Agent):
    """Answers every message with a clone of one agent. Its skills are the agent's tools, for the
    card: whichever is named, it is the agent that decides."""

    def __init__(self, agent: SelectoolsAgent, name: str, description: str, version: str) -> None:
        super().__init__(name, description, version=version, output_modes=["text/plain"])
        self._agent = agent
        threads = Threads()

        async def answer(message: Message, turn: Turn) -> None:
            # Awaited here and not run as a plain function: nothing that an agent does can notice
            # that it should stop, and its task must not wait for it.
            with sanitized(turn):
                text = await threads.run(self._answered, prompt_of(message))
            await turn.artifact([Part(text=text)], name=RESPONSE)

        for tool in _unlike(agent.tools):
            said = str(tool.description or tool.name)
            register = self.skill(id=tool.name, name=tool.name, description=said, tags=["tool"])
            register(answer)
        if not self.skills:
            self.skill(id="answer", description=description)(answer)

    def _answered(self, prompt: str) -> str:
        result = self._agent.clone_for_isolation().run([user_message(prompt)])
        return str(result.content or "")

    def plan(
        self,
        operation: SendMessage,
        began: SendMessage | None = None,
        *,
        is_answer: bool = False,
        caller: Caller = ANONYMOUS,
    ) -> Plan:
        """Return what will be done; raises `InvalidParams` for a message that says nothing."""
        if not _chunks(operation.message):
            raise InvalidParams("must have a text or a data part", field="message.parts")
        return super().plan(operation, began, is_answer=is_answer, caller=caller)


def prompt_of(message: Message) -> str:
    """Return what the agent is asked: texts, and data as JSON. Files are taken and not read."""
    return "\n".join(_chunks(message))


def _chunks(message: Message) -> list[str]:
    chunks: list[str] = []
    for part in message.parts:
        if isinstance(part.text, str):
            chunks.append(part.text)
        elif part.data is not UNSET:
            chunks.append(json.dumps(part.data, ensure_ascii=False))
    return chunks


def _unlike(tools: Iterable[Any]) -> list[Any]:
    """Return tools by name, each once."""
    return list({tool.name: tool for tool in tools}.values())
