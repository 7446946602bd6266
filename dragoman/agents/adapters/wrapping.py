"""What all adapters share: the agent around an object, its answer and its failures.

Of an exception a caller learns only the type; the operator's log has the rest. Text of an answer is
streamed at once, and the task ends with exactly what the framework returned.
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

from dragoman.authoring.agent import Agent
from dragoman.authoring.turn import ArtifactWriter, Turn
from dragoman.engine.log import LogIsFull
from dragoman.engine.running.author_code import for_future
from dragoman.engine.running.replay import CodeChanged
from dragoman.engine.running.turn_ends import Ended
from dragoman.errors import A2AError, AuthorError, ConfigError, StoreRefused, TaskFailed
from dragoman.model.content import parts_of
from dragoman.model.message import Message

logger = logging.getLogger(__name__)

T = TypeVar("T")
RESPONSE = "response"
# As many as an agent's own blocking code may use.
THREADS = 32


class Response:
    """The answer while it is written: one artifact, even if a framework begins it anew."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._writer: ArtifactWriter = turn.artifact(name=RESPONSE)
        self._text = ""

    async def write(self, text: str) -> None:
        """Stream more of the answer."""
        if text:
            await self._writer.write(text)
            self._text += text

    def restart(self) -> None:
        """Let the next text replace what was streamed: it was not the answer."""
        if self._text:
            self._writer = self._turn.artifact(id=self._writer.id, name=RESPONSE)
            self._text = ""

    async def finish(self, result: Any) -> None:
        """End with the framework's result; it replaces streamed text that differs."""
        if isinstance(result, str) and result == self._text:
            self._writer.close()
        elif result is not None and parts_of(result):
            await self._turn.artifact(result, id=self._writer.id, name=RESPONSE)


Respond = Callable[[Turn, Response], Awaitable[None]]


def wrapped(
    name: str, description: str, respond: Respond, tools: Sequence[tuple[str, str]] = ()
) -> Agent:
    """Return an agent that answers with a function. Its tools, as names and descriptions, are shown
    as skills; the wrapped agent decides which of them it uses."""
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
    """Turn an exception of a framework into a failure that names its type."""
    try:
        yield
    except (A2AError, AuthorError, StoreRefused, Ended, LogIsFull, CodeChanged):
        # Raised by this library: the engine handles them.
        raise
    except Exception as error:
        kind = type(error).__name__
        logger.warning("task %s: the agent raised %s", turn.task_id, kind, exc_info=True)
        raise TaskFailed(f"Agent execution failed ({kind})") from None


def conversation(turn: Turn) -> str:
    """Return the id of the turn's conversation for a framework's memory.

    It depends on the caller too: another caller that learns the contextId does not share it."""
    caller = turn.caller
    parts = msgspec.json.encode([caller.tenant, caller.owner, turn.context])
    return hashlib.sha256(parts).hexdigest()[:32]


def cloning(found: Any, what: str) -> Callable[[], Any]:
    """Return a function that copies an object for a request; raises `ConfigError` if none can.

    An object that is meant to be shared has a `clone_for_isolation` that returns itself."""
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

    A call of a framework cannot be interrupted. When its task is canceled, its result is dropped:
    the thread ends by itself, and does not keep the process alive."""

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
                # Raised where the call is awaited.
                error = raised
            # The loop may have ended before its threads did.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(settle, result, error)

        threading.Thread(target=work, name="dragoman-adapter", daemon=True).start()
        return await done
