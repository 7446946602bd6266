"""What every peer's agent does, by the words of the user's text; how is the library's business.

    echo X      one text artifact X              message X   a message, no task
    chunks N    an artifact in N chunks          ask         asks; the answer completes the task
    slow N      works for N tenths of a second   fail        fails, and says why
    file        an artifact of a file and data   describe    tells which files and data came
    text-file   an artifact of a text in a file  array       an artifact of data that is an array
    cancelme    works until it is canceled

Only the standard library is imported: it runs in the environments of all peers.
"""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

# Long enough that a stream can be cut or joined between two chunks.
BETWEEN_CHUNKS = 0.02
QUESTION = "Which city?"
REASON = "It went wrong, as asked."


@dataclass(frozen=True)
class Part:
    """A part of a message or artifact: exactly one of text, raw and data."""

    text: str | None = None
    raw: bytes | None = None
    data: Any = None
    filename: str = ""
    media_type: str = ""


class Stage(Protocol):
    """The task of one library, as far as an agent acts on it."""

    async def reply(self, text: str) -> None:
        """Answer with a message instead of a task."""

    async def work(self) -> None:
        """Say that it is working."""

    async def artifact(
        self, parts: Sequence[Part], *, append: bool = False, last: bool = True
    ) -> None:
        """Produce the task's artifact, or a chunk of it."""

    async def complete(self) -> None:
        """Complete the task."""

    async def ask(self, question: str) -> None:
        """Wait for the user."""

    async def fail(self, reason: str) -> None:
        """Fail the task."""

    async def canceled(self) -> None:
        """Return when the task has been canceled."""


FILE = Part(raw=b"\x00\x01 bytes \xff", filename="report.bin", media_type="application/x-report")
# Its text is base64 itself: whoever decodes once too often has another one.
TEXT_FILE = Part(raw=b"aGVsbG8=", filename="hello.txt", media_type="text/plain")
DATA = Part(data={"city": "Graz", "tags": ["a", "b"]})
ARRAY = Part(data=["Graz", {"tags": ["a"]}])


async def play(parts: Sequence[Part], stage: Stage, *, answering: bool) -> None:
    """Do what the text says, or complete with it if it is an answer."""
    text = "".join(part.text or "" for part in parts)
    word, _, rest = text.partition(" ")
    if answering:
        await finish(stage, f"got {text}")
    elif word == "message":
        await stage.reply(rest)
    elif word == "chunks":
        await chunks(stage, int(rest))
    elif word == "ask":
        await stage.ask(QUESTION)
    elif word == "fail":
        await stage.fail(REASON)
    elif word == "slow":
        await stage.work()
        await asyncio.sleep(int(rest) * 0.1)
        await finish(stage, "done")
    elif word == "file":
        await stage.artifact([FILE, DATA])
        await stage.complete()
    elif word in ("text-file", "array"):
        await stage.artifact([TEXT_FILE if word == "text-file" else ARRAY])
        await stage.complete()
    elif word == "describe":
        await finish(stage, "\n".join(described(part) for part in parts if part.text is None))
    elif word == "cancelme":
        await stage.work()
        await stage.canceled()
    else:
        await finish(stage, rest)


async def finish(stage: Stage, text: str) -> None:
    await stage.artifact([Part(text=text)])
    await stage.complete()


async def chunks(stage: Stage, count: int) -> None:
    await stage.work()
    for i in range(count):
        await stage.artifact([Part(text=f"c{i} ")], append=i > 0, last=i == count - 1)
        await asyncio.sleep(BETWEEN_CHUNKS)
    await stage.complete()


def described(part: Part) -> str:
    if part.raw is not None:
        return f"file {part.filename} {part.media_type} {shown(part.raw)}"
    return f"data {json.dumps(part.data, separators=(',', ':'))}"


def shown(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.hex()
