"""Any program as an agent: the message on its stdin, the artifact from its stdout.

The program is started without a shell, once for each message, and its output is streamed. It fails
by its exit code; its stderr stays with the server. When its task is canceled or the server ends, it
is killed with everything it started.
"""

import asyncio
import codecs
import contextlib
import os
import shlex
import shutil
import signal
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

import msgspec
from msgspec import UNSET

from dragoman.authoring.agent import Agent
from dragoman.authoring.turn import Turn
from dragoman.config import ADDRESSES, IN_FILES, PREFIX, SECRETS, without_password
from dragoman.errors import ConfigError, TaskFailed
from dragoman.model.message import Message

_AT_ONCE = 64 * 1024
# Prefix of what the client commands read, credentials among them.
_COMMAND_LINE = "A2ACLI_"
# The key of a chat model that this server calls. The program may need the keys of others itself.
_CHAT_KEY = "CHAT_API_KEY"


def environment(turn: Turn) -> dict[str, str]:
    """Return the program's environment: its task, and ours without the secrets of the server and
    of the command line, which a caller could have it print."""
    names = {f"{PREFIX}{name.upper()}" for name in SECRETS}
    names |= {f"{PREFIX}{name.upper()}" for name in ADDRESSES if _has_password(name)}
    ours = names | {f"{PREFIX}{name.upper()}_FILE" for name in IN_FILES} | {_CHAT_KEY}
    rest = {
        name: value
        for name, value in os.environ.items()
        if name not in ours and not name.startswith(_COMMAND_LINE)
    }
    return rest | {"A2A_TASK_ID": turn.task_id, "A2A_CONTEXT_ID": turn.context}


def _has_password(name: str) -> bool:
    address = os.environ.get(f"{PREFIX}{name.upper()}", "")
    return without_password(address) != address


def words_of(command: str) -> list[str]:
    """Return a command line split as a shell would; raises `ConfigError` if there is no such
    program."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ConfigError(f"--exec {command}: {error}") from None
    if not words or shutil.which(words[0]) is None:
        raise ConfigError(f"--exec {command}: there is no such program")
    return words


def check_exit(name: str, code: int) -> None:
    """Raise `TaskFailed` for an exit code that is not 0."""
    if code:
        how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
        raise TaskFailed(f"{name} {how}")


def program_agent(command: str) -> Agent:
    """Return the agent that runs a command line; raises `ConfigError` if there is no such program.

    The line is split as a shell would, and nothing else of a shell applies.
    """
    words = words_of(command)
    name = Path(words[0]).name
    agent = Agent(name, f"Runs {name}: the text of a message is its input.")

    @agent.skill(id="run", tags=["program"], default=True)
    async def run(message: Message, turn: Turn) -> AsyncGenerator[str]:  # pyright: ignore[reportUnusedFunction]  # the agent has it
        """Gives the message to the program and returns what it prints."""
        process = await asyncio.create_subprocess_exec(
            *words,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=environment(turn),
            start_new_session=True,
        )
        feeding = asyncio.create_task(_feed(process, program_input(message)))
        try:
            assert process.stdout is not None
            # A character may be cut by the end of a read.
            decoder = codecs.getincrementaldecoder("utf-8")("replace")
            while chunk := await process.stdout.read(_AT_ONCE):
                if text := decoder.decode(chunk):
                    yield text
            if text := decoder.decode(b"", final=True):
                yield text
            code = await process.wait()
        finally:
            feeding.cancel()
            kill(process)
        check_exit(name, code)

    return agent


def program_input(message: Message) -> bytes:
    """Return a message as a program reads it: texts as they are, data as a line of JSON each."""
    pieces: list[str] = []
    for part in message.parts:
        if isinstance(part.text, str):
            pieces.append(part.text)
        elif part.data is not UNSET:
            pieces.append(msgspec.json.encode(part.data).decode())
        elif isinstance(part.raw, bytes) and len(message.parts) == 1:
            return part.raw
    return "\n".join(pieces).encode()


async def _feed(process: asyncio.subprocess.Process, text: bytes) -> None:
    assert process.stdin is not None
    # A program may end without reading its input.
    with contextlib.suppress(ConnectionError):
        process.stdin.write(text)
        await process.stdin.drain()
        process.stdin.close()


def kill(process: asyncio.subprocess.Process) -> None:
    """End the program and everything that it left running."""
    if sys.platform == "win32":
        if process.returncode is None:
            process.kill()
        return
    # It leads a process group, which may outlive it.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
