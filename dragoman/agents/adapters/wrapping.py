"""What all wrapped agents share: the agent around an object, its answer and how it fails.

Of an exception a caller learns the type and nothing else; the operator's log has the rest. What is
written as an answer is shown at once, and the task ends with exactly what the framework returned.
"""

import asyncio
import contextlib
import contextvars
import copy
import hashlib
import logging
import threading
from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Any, TypeVar

import msgspec

from dragoman.engine.author_code import for_future
from dragoman.engine.log import LogIsFull
from dragoman.engine.replay import CodeChanged
from dragoman.engine.worker import Ended
from dragoman.errors import A2AError, AuthorError, ConfigError, StoreRefused, TaskFailed
from dragoman.model.content import parts_of
from dragoman.model.message import Message
from dragoman.server.agent import Agent
from dragoman.server.turn import ArtifactWriter, Turn

logger = logging.getLogger(__name__)

T = TypeVar("T")
RESPONSE = "response"
# As many as an agent's own blocking code may use.
THREADS = 32


class Response:
    """The answer in the making. It is one artifact, whatever a framework changes its mind about."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._writer: ArtifactWriter = turn.artifact(name=RESPONSE)
        self._text = ""

    async def write(self, text: str) -> None:
        """Show some more of the answer."""
        if text:
            await self._writer.write(text)
            self._text += text

    def restart(self) -> None:
        """Have what is written next replace what was shown: it was not the answer yet."""
        if self._text:
            self._writer = self._turn.artifact(id=self._writer.id, name=RESPONSE)
            self._text = ""

    async def finish(self, result: Any) -> None:
        """End with what the framework returned, should anything else have been shown."""
        if isinstance(result, str) and result == self._text:
            self._writer.close()
        elif result is not None and parts_of(result):
            await self._turn.artifact(result, id=self._writer.id, name=RESPONSE)


Respond = Callable[[Turn, Response], Awaitable[None]]


def wrapped(
    name: str, description: str, respond: Respond, tools: Sequence[tuple[str, str]] = ()
) -> Agent:
    """Return an agent that answers with a function. Its tools, as names and descriptions, are told
    as skills: whichever a caller names, it is the wrapped agent that decides."""
    agent = Agent(name, description)

    async def run(message: Message, turn: Turn) -> None:
        with sanitized(turn):
            await respond(turn, Response(turn))

    for tool, about in dict(tools).items():
        agent.skill(id=tool, name=tool, description=about or tool, tags=["tool"])(run)
    if not agent.skills:
        agent.skill(id="run", description=description, tags=["agent"])(run)
    return agent


@contextlib.contextmanager
def sanitized(turn: Turn) -> Generator[None]:
    """Turn what a framework raises into a failure that names its type."""
    try:
        yield
    except (A2AError, AuthorError, StoreRefused, Ended, LogIsFull, CodeChanged):
        # Of our own making: the engine knows what they mean.
        raise
    except Exception as error:
        kind = type(error).__name__
        logger.warning("task %s: the agent raised %s", turn.task_id, kind, exc_info=True)
        raise TaskFailed(f"Agent execution failed ({kind})") from None


def conversation(turn: Turn) -> str:
    """Return the id of the turn's conversation for a framework's own memory.

    It is made of who asks as well: a caller that learns another's contextId is not in it."""
    caller = turn.caller
    parts = msgspec.json.encode([caller.tenant, caller.owner, turn.context])
    return hashlib.sha256(parts).hexdigest()[:32]


def cloning(found: Any, what: str) -> Callable[[], Any]:
    """Return what makes a copy of an object for each request; raises `ConfigError` if nothing can.

    An object that is meant to be shared says so with a `clone_for_isolation` that returns it."""
    if callable(getattr(found, "clone_for_isolation", None)):
        return found.clone_for_isolation
    try:
        copy.deepcopy(found)
    except Exception as error:
        raise ConfigError(
            f"{what} cannot be copied ({type(error).__name__}), and each request gets a copy of its"
            " own; give it a method clone_for_isolation() that returns what one request may use"
        ) from error
    return lambda: copy.deepcopy(found)


class Threads:
    """Runs blocking calls of a framework, a bounded number at a time.

    A framework cannot be interrupted in the middle of a call. When its task is canceled, nobody
    waits for it any more: the thread ends by itself, and does not keep the process alive."""

    def __init__(self, count: int = THREADS) -> None:
        self._free = asyncio.Semaphore(count)

    async def run(self, function: Callable[..., T], *args: Any) -> T:
        """Call a function in a thread of its own and wait for it."""
        await self._free.acquire()
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        context = contextvars.copy_context()

        def settle(result: Any, error: BaseException | None) -> None:
            self._free.release()
            if done.cancelled():
                return
            if error is None:
                done.set_result(result)
            else:
                done.set_exception(for_future(error))

        def work() -> None:
            result, error = None, None
            try:
                result = context.run(function, *args)
            except BaseException as raised:
                error = raised
            # The loop may have ended before its threads did.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(settle, result, error)

        threading.Thread(target=work, name="dragoman-adapter", daemon=True).start()
        return await done
