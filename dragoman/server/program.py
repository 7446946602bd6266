"""Any program as an agent: the message on its stdin, the artifact from its stdout.

The program is started without a shell, once for each message, and what it prints is shown as it
comes. It fails by its exit code; what it says on stderr stays with the server. Should its task be
canceled or the server end, it is killed with everything it started.
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

from dragoman.config import PREFIX, SECRETS
from dragoman.errors import ConfigError, TaskFailed
from dragoman.model.message import Message
from dragoman.server.agent import Agent
from dragoman.server.turn import Turn

_AT_ONCE = 64 * 1024
# What `dragoman send` and its like read, credentials among them.
_COMMAND_LINE = "A2ACLI_"
# What a chat model that is served beside it is called with. The keys of others it may need itself.
_CHAT_KEY = "CHAT_API_KEY"


def environment(turn: Turn) -> dict[str, str]:
    """Return what the program may know: its task, and all but the server's own secrets and those
    of the command line, which callers could have it print."""
    names = {f"{PREFIX}{name.upper()}" for name in SECRETS}
    ours = names | {f"{name}_FILE" for name in names} | {_CHAT_KEY}
    rest = {
        name: value
        for name, value in os.environ.items()
        if name not in ours and not name.startswith(_COMMAND_LINE)
    }
    return rest | {"A2A_TASK_ID": turn.task_id, "A2A_CONTEXT_ID": turn.context}


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
    """Raise `TaskFailed` if a program did not end well."""
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
        feeding = asyncio.create_task(_feed(process, said(message)))
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


def said(message: Message) -> bytes:
    """Return what a program reads of a message: texts as they are, data as a line of JSON each."""
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
    # A program need not read what it is told.
    with contextlib.suppress(ConnectionError):
        process.stdin.write(text)
        await process.stdin.drain()
        process.stdin.close()


def kill(process: asyncio.subprocess.Process) -> None:
    """End the program and whatever it left running."""
    if sys.platform == "win32":
        if process.returncode is None:
            process.kill()
        return
    # It leads a group of its own, which may outlive it.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
