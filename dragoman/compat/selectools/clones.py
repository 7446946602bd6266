"""An agent of selectools as an agent of ours: each message runs on a clone of its own, and of a
message the agent reads the texts and the data."""

import asyncio
import contextvars
import json
import logging
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from msgspec import UNSET

from dragoman.engine.worker import Plan
from dragoman.errors import InvalidParams, TaskFailed
from dragoman.model.identity import ANONYMOUS, Caller
from dragoman.model.message import Message, Part
from dragoman.model.operations import SendMessage
from dragoman.server.agent import Agent
from dragoman.server.turn import Turn

logger = logging.getLogger(__name__)

# The result of a task.
RESPONSE = "response"


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


@dataclass
class UserMessage:
    """What an agent that is not selectools' own is given, with the members it knows."""

    role: str
    content: str


class Clones(Agent):
    """Answers every message with a clone of one agent. Its skills are the agent's tools, for the
    card: whichever is named, it is the agent that decides."""

    def __init__(self, agent: SelectoolsAgent, name: str, description: str, version: str) -> None:
        super().__init__(name, description, version=version, output_modes=["text/plain"])
        self._agent = agent

        async def answer(message: Message, turn: Turn) -> None:
            # Awaited here and not run as a plain function: nothing that an agent does can notice
            # that it should stop, and its task must not wait for it.
            run = partial(self._answered, prompt_of(message), turn.task_id)
            context = contextvars.copy_context()
            running = asyncio.get_running_loop().run_in_executor(
                self.threads, lambda: context.run(run)
            )
            text = await running
            await turn.artifact([Part(text=text)], name=RESPONSE)

        for tool in _unlike(agent.tools):
            said = str(tool.description or tool.name)
            register = self.skill(id=tool.name, name=tool.name, description=said, tags=["tool"])
            register(answer)
        if not self.skills:
            self.skill(id="answer", description=description)(answer)

    def _answered(self, prompt: str, task_id: str) -> str:
        try:
            result = self._agent.clone_for_isolation().run([_message(prompt)])
            return str(result.content or "")
        except Exception as error:
            kind = type(error).__name__
            logger.warning("A2A task %s failed: %s: %s", task_id, kind, error, exc_info=True)
            # What an exception says may hold addresses and paths of ours.
            raise TaskFailed(f"Agent execution failed ({kind})") from None

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


def _message(prompt: str) -> Any:
    """Return the prompt as selectools' own message. An agent of selectools has loaded the class;
    where it is not loaded, the agent is somebody else's."""
    theirs = sys.modules.get("selectools.types")
    if theirs is None:
        return UserMessage("user", prompt)
    return theirs.Message(role=theirs.Role.USER, content=prompt)


def _unlike(tools: Iterable[Any]) -> list[Any]:
    """Return tools by name, each once."""
    return list({tool.name: tool for tool in tools}.values())
