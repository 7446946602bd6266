"""A program that speaks JSON lines as an agent: an object on each line, both ways.

It is started for each message, as any program is, and reads the message as its first line:
`{"message": {"text": ..., "parts": [...], "metadata": {...}}, "taskId": ..., "contextId": ...}`.
Of the lines it prints, the member says what they are:

    {"text": "more"}          the next piece of the answer
    {"data": ...}             an answer, or a part of one, that is not text
    {"say": "..."}            how the work goes
    {"ask": "..."}            a question; the answer is its next line: {"answer": {"text": ...}}
    {"reject": "..."}         the task is refused, and why
    {"fail": "..."}           the task failed, in a sentence for the caller

Lines of another kind fail the task. Exit codes and stderr mean what they do for other programs.
"""

import asyncio
import contextlib
import logging
from pathlib import Path
from typing import Any, cast

import msgspec

from dragoman.agents.adapters.wrapping import RESPONSE
from dragoman.authoring.agent import Agent
from dragoman.authoring.program import check_exit, environment, kill, words_of
from dragoman.authoring.turn import ArtifactWriter, Turn
from dragoman.errors import ParseFailed, TaskFailed, TaskRejected
from dragoman.model.message import Message, Part
from dragoman.security.json_values import check_document

logger = logging.getLogger(__name__)

MAX_LINE = 1024 * 1024


def json_lines_agent(command: str) -> Agent:
    """Return the agent that runs a command line; raises `ConfigError` if there is no such program.

    The line is split as a shell would, and nothing else of a shell applies."""
    words = words_of(command)
    name = Path(words[0]).name
    agent = Agent(name, f"Runs {name}.")

    @agent.skill(id="run", tags=["program"], default=True)
    async def run(message: Message, turn: Turn) -> None:  # pyright: ignore[reportUnusedFunction]  # the agent has it
        """Gives the message to the program and returns what it answers."""
        process = await asyncio.create_subprocess_exec(
            *words,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=environment(turn),
            start_new_session=True,
            limit=MAX_LINE,
        )
        # A program may write before it reads: neither side waits for the other.
        feeding = asyncio.create_task(_send(process, _task_line(message, turn)))
        try:
            async with turn.artifact(name=RESPONSE) as answer:
                await _Conversation(name, process, turn, answer).listen()
            code = await process.wait()
        finally:
            feeding.cancel()
            kill(process)
        check_exit(name, code)

    return agent


class _Conversation:
    """The exchange of lines between a program and its task."""

    def __init__(
        self, name: str, process: asyncio.subprocess.Process, turn: Turn, answer: ArtifactWriter
    ) -> None:
        self._name = name
        self._process = process
        self._turn = turn
        self._answer = answer

    async def listen(self) -> None:
        """Handle each line until the program closes its output."""
        assert self._process.stdout is not None
        number = 0
        try:
            while line := await self._process.stdout.readline():
                number += 1
                if line.strip():
                    await self._do(line)
        except ValueError as error:
            logger.warning("%s, line %d of its answer: %s", self._name, number, error)
            raise TaskFailed(f"{self._name} said something that is not understood") from None

    async def _do(self, line: bytes) -> None:
        # Exactly one member: unpacking raises a ValueError otherwise.
        ((member, value),) = _decoded(line).items()
        if member == "data":
            await self._answer.write([Part(data=value)])
            return
        if not isinstance(value, str):
            raise ValueError("neither data nor a member with a text")
        match member:
            case "text":
                await self._answer.write(value)
            case "say":
                await self._turn.say(value)
            case "ask":
                reply = await self._turn.ask(value)
                await _send(self._process, {"answer": _shape(reply)})
            case "reject":
                raise TaskRejected(value)
            case "fail":
                raise TaskFailed(value)
            case _:
                raise ValueError(f"there is no {member!r}")


def _decoded(line: bytes) -> dict[str, Any]:
    try:
        check_document(line)
        value: Any = msgspec.json.decode(line)
    except (ParseFailed, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(str(error)) from None
    if not isinstance(value, dict):
        raise ValueError("not an object")
    return cast("dict[str, Any]", value)


def _task_line(message: Message, turn: Turn) -> dict[str, Any]:
    return {"message": _shape(message), "taskId": turn.task_id, "contextId": turn.context}


def _shape(message: Message) -> dict[str, Any]:
    return {"text": message.text, "parts": message.parts, "metadata": message.metadata}


async def _send(process: asyncio.subprocess.Process, line: dict[str, Any]) -> None:
    assert process.stdin is not None
    # A program need not read its input.
    with contextlib.suppress(ConnectionError):
        process.stdin.write(msgspec.json.encode(line) + b"\n")
        await process.stdin.drain()
