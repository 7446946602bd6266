"""An agent of selectools as an `Agent`: each message runs on a clone, which gets the texts and the
data of the message."""

import json
from typing import Any, Protocol

from msgspec import UNSET

from dragoman.agents.adapters.selectools_like import user_message
from dragoman.agents.adapters.wrapping import RESPONSE, Threads, sanitized
from dragoman.authoring.agent import Agent
from dragoman.authoring.turn import Turn
from dragoman.engine.running.worker import Plan
from dragoman.errors import InvalidParams
from dragoman.model.identity import ANONYMOUS, Caller
from dragoman.model.message import Message, Part
from dragoman.model.operations import SendMessage


class SelectoolsAgent(Protocol):
    """The used part of an agent. A clone's `run([message])` returns an object with `content`."""

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
    """Answers every message with a clone of one agent. The card shows the agent's tools as skills;
    the agent decides which of them it uses."""

    def __init__(self, agent: SelectoolsAgent, name: str, description: str, version: str) -> None:
        super().__init__(name, description, version=version, output_modes=["text/plain"])
        self._agent = agent
        threads = Threads()

        async def answer(message: Message, turn: Turn) -> None:
            # In a thread that the task does not wait for: an agent cannot be interrupted.
            with sanitized(turn):
                text = await threads.run(self._run, prompt_of(message))
            await turn.artifact([Part(text=text)], name=RESPONSE)

        for tool in {tool.name: tool for tool in agent.tools}.values():
            about = str(tool.description or tool.name)
            self.skill(id=tool.name, name=tool.name, description=about, tags=["tool"])(answer)
        if not self.skills:
            self.skill(id="answer", description=description)(answer)

    def _run(self, prompt: str) -> str:
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
        """Return the plan for a message; raises `InvalidParams` for one without content."""
        if not _chunks(operation.message):
            raise InvalidParams("must have a text or a data part", field="message.parts")
        return super().plan(operation, began, is_answer=is_answer, caller=caller)


def prompt_of(message: Message) -> str:
    """Return the prompt for the agent: texts, and data as JSON. Files are ignored."""
    return "\n".join(_chunks(message))


def _chunks(message: Message) -> list[str]:
    chunks: list[str] = []
    for part in message.parts:
        if isinstance(part.text, str):
            chunks.append(part.text)
        elif part.data is not UNSET:
            chunks.append(json.dumps(part.data, ensure_ascii=False))
    return chunks
