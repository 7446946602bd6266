"""The turn: what an author's code sees of the task it works on.

Code written as a plain function runs in a thread and gets a `SyncTurn`: the same names, but its
methods wait instead of being awaited.
"""

import asyncio
import contextvars
import functools
import inspect
from collections.abc import Awaitable, Callable, Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, TypeVar, Unpack, cast, overload

import msgspec

from dragoman.authoring.budget import CallOptions, Delegation
from dragoman.authoring.credentials import CredentialQuestioner
from dragoman.authoring.steps import (
    check_function,
    decode_result,
    encode_result,
    is_given_up,
    recall_step,
    record_failure,
    record_result,
    recorded_result,
)
from dragoman.engine.running.turn_ends import TaskCompleted
from dragoman.engine.running.worker import Worker
from dragoman.errors import TaskRejected
from dragoman.model.artifact import Artifact
from dragoman.model.content import Content, parts_of
from dragoman.model.events import StepKind
from dragoman.model.identity import Caller, ContextId, TaskId
from dragoman.model.message import Message, Metadata, Part, agent_message
from dragoman.telemetry.observation import StepObservation

if TYPE_CHECKING:
    # Heavy: loaded with the first call of another agent.
    from collections.abc import AsyncGenerator

    from dragoman.authoring.delegates import Ref
    from dragoman.authoring.delegation import Calls
    from dragoman.client.answer import Answer
    from dragoman.client.content import Content as CallContent
    from dragoman.client.streams.shown_task import Shown

P = ParamSpec("P")
T = TypeVar("T")


class TurnView:
    """What code may read of its turn, and how it may leave it, in a loop or in a thread."""

    _worker: Worker

    @property
    def task_id(self) -> TaskId:
        """The task's id."""
        return self._worker.log.task_id

    @property
    def context(self) -> ContextId:
        """The id of the conversation the task belongs to."""
        return self._worker.log.context_id

    @property
    def message(self) -> Message:
        """The message being worked on."""
        return self._worker.message

    @property
    def metadata(self) -> Mapping[str, object]:
        """The metadata of the request, besides the message's own. A caller may send anything."""
        return self._worker.metadata

    @property
    def caller(self) -> Caller:
        """The caller of the task."""
        return self._worker.caller

    @property
    def attempt(self) -> int:
        """1, or more if an earlier worker died on this task."""
        return self._worker.attempt

    @property
    def deadline(self) -> datetime | None:
        """When the task has to have ended, if it has a deadline."""
        at = self._worker.deadline
        return datetime.fromtimestamp(at / 1000, UTC) if at else None

    @property
    def history(self) -> list[Message]:
        """What was said in this task so far, oldest first, this message included."""
        draft = self._worker.log.draft
        if draft is None or draft.is_light:
            return [self.message]
        return draft.task().history

    @property
    def cancelled(self) -> bool:
        """Whether the caller asked to stop. Code that waits also gets `CancelledError`."""
        return self._worker.is_cancelled

    def complete(self, content: Content = None) -> NoReturn:
        """End the task as completed here, with a last word if there is one."""
        raise TaskCompleted([] if content is None else parts_of(content))

    def reject(self, reason: str) -> NoReturn:
        """Refuse the task; the caller sees the reason."""
        raise TaskRejected(reason)

    def reply(self, content: Content, *, metadata: Metadata | None = None) -> Message:
        """Return a message to answer with directly, without a task.

        For skills whose return annotation mentions `Message`."""
        return agent_message(parts_of(content), context_id=self.context, metadata=metadata)


class Turn(TurnView, CredentialQuestioner):
    """One message given to one task."""

    def __init__(self, worker: Worker, threads: ThreadPoolExecutor, delegation: Delegation) -> None:
        self._worker = worker
        self._threads = threads
        self._delegation = delegation
        self._calls: Calls | None = None

    async def say(self, content: Content, *, metadata: Metadata | None = None) -> None:
        """Tell the caller how the work goes. Code that runs again does not repeat what stands
        before a recorded step or question."""
        if self._worker.replay.is_behind:
            return
        self._worker.say(parts_of(content), metadata)
        if self._worker.log.is_full:
            await self._worker.keep_pace()

    def artifact(
        self,
        content: Content = None,
        *,
        name: str = "",
        description: str = "",
        id: str = "",
        append: bool = False,
        last: bool = True,
        metadata: Metadata | None = None,
    ) -> "ArtifactWriter":
        """Produce an artifact: await it with its content, or write chunks in `async with`."""
        chunk = Artifact(
            artifact_id=id or self._worker.artifact_id(),
            parts=[] if content is None else parts_of(content),
            name=name,
            description=description,
            metadata=metadata or {},
        )
        return ArtifactWriter(self._worker, chunk, append, last)

    @overload
    async def step(
        self, name: str, function: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> T: ...
    @overload
    async def step(
        self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T: ...
    async def step(
        self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Any:
        """Call a function once: code that runs again after a crash gets the recorded result.

        The result is what JSON makes of it, in the type the function is annotated with. A function
        that was under way when the process died is called again, so it should be idempotent."""
        check_function(function)
        index, done = await recall_step(self._worker, name)
        if done is not None:
            if is_given_up(done):
                # The code around it cancelled it, and will again.
                await asyncio.get_running_loop().create_future()
            return recorded_result(self._worker, done, function)
        step = StepObservation(name)
        try:
            value = encode_result(name, await self._call(function, args, kwargs))
            result = decode_result(name, value, function)
        except BaseException as error:
            await record_failure(self._worker, index, name, error, step.end(error))
            raise
        await record_result(self._worker, index, name, value, step.end())
        return result

    async def _call(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call a function, in one of the agent's threads if it is a plain one."""
        if inspect.iscoroutinefunction(function):
            return await function(*args, **kwargs)
        call = functools.partial(contextvars.copy_context().run, function, *args, **kwargs)
        result = await asyncio.get_running_loop().run_in_executor(self._threads, call)
        return await result if inspect.isawaitable(result) else result

    @overload
    async def call(
        self, agent: "Ref", content: "CallContent", **more: Unpack[CallOptions]
    ) -> "Answer": ...
    @overload
    async def call(
        self,
        agent: "Ref",
        content: "CallContent",
        *,
        returns: type[T],
        **more: Unpack[CallOptions],
    ) -> T: ...
    async def call(
        self,
        agent: "Ref",
        content: "CallContent",
        *,
        returns: type[T] | None = None,
        **more: Unpack[CallOptions],
    ) -> "Answer | T":
        """Call another agent and return its answer: a task of its own there, linked to this one and
        canceled with it. `agent` is an address, a card or a client.

        Code that runs again after a crash gets the answer, or waits on for the task that is under
        way: nothing is sent twice. What the other agent asks back goes to this task's caller,
        unless `relay` is off: then the answer is the question, and another call with its `task_id`
        answers it. With `returns` the result is the answer in that type, as `Answer.convert`
        makes it. Raises what the client raises, and `BudgetExceeded`."""
        answer = await self._all_calls().call(agent, content, **more)
        return answer if returns is None else answer.convert(returns)

    def follow(
        self, agent: "Ref", content: "CallContent", **more: Unpack[CallOptions]
    ) -> "AsyncGenerator[Shown]":
        """Yield what another agent does, as it does it; otherwise as `call` without `relay`. Code
        that runs again sees the task as it ended where the call was done."""
        return self._all_calls().follow(agent, content, **more)

    def withdraw(self) -> None:
        """Cancel tasks of other agents that wait for an answer."""
        if self._calls is not None:
            self._calls.withdraw()

    def _all_calls(self) -> "Calls":
        if self._calls is None:
            from dragoman.authoring.delegation import Calls

            self._calls = Calls(self, self._worker, self._delegation)
        return self._calls

    async def sleep(self, duration: float | timedelta, *, name: str = "sleep") -> None:
        """Wait until a time that stays the same if the process ends meanwhile."""
        given = cast("object", duration)
        if not isinstance(given, int | float | timedelta):
            raise TypeError(f"sleep takes seconds or a timedelta, not {type(given).__name__}")
        clock = self._worker.clock
        seconds = duration.total_seconds() if isinstance(duration, timedelta) else duration
        index, done = self._worker.recall(StepKind.SLEEP, name)
        if done is None:
            until = clock.now() + round(seconds * 1000)
            value = msgspec.Raw(msgspec.json.encode(until))
            await self._worker.remember(StepKind.SLEEP, index, name, value)
        else:
            until = msgspec.json.decode(done.value, type=int)
        if self._worker.span is not None:
            self._worker.span.event("sleep")
        await clock.wait_until(until)


class ArtifactWriter(msgspec.Struct, eq=False):
    """An artifact in the making: awaitable as a whole, or written chunk by chunk."""

    _worker: Worker
    _artifact: Artifact
    _append: bool
    _last: bool
    # The parts of the latest chunk; empty: none was written.
    _latest: list[Part] = []

    @property
    def id(self) -> str:
        """The artifact's id."""
        return self._artifact.artifact_id

    def __await__(self) -> Generator[Any, None, str]:
        if (waiting := self.record()) is not None:
            yield from waiting.__await__()
        return self._artifact.artifact_id

    def record(self) -> Awaitable[None] | None:
        """Record it as a whole; return what the code has to wait for, if it is too far ahead."""
        if not self._artifact.parts:
            raise ValueError("an artifact needs content, or chunks in `async with`")
        worker = self._worker
        worker.artifact(self._artifact, append=self._append, last=self._last)
        return worker.keep_pace() if worker.log.is_full else None

    async def __aenter__(self) -> "ArtifactWriter":
        if self._artifact.parts:
            self._emit_chunk(self._artifact.parts)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: object, traceback: object
    ) -> None:
        if kind is None:
            self.close()

    async def write(self, content: Content) -> None:
        """Add a chunk."""
        if (waiting := self.add(content)) is not None:
            await waiting

    def add(self, content: Content) -> Awaitable[None] | None:
        """Add a chunk; return what the code has to wait for, if it is too far ahead."""
        parts, worker = parts_of(content), self._worker
        if self._latest and parts:
            worker.next_chunk(self._artifact.artifact_id, parts)
            self._latest = parts
        else:
            self._emit_chunk(parts)
        return worker.keep_pace() if worker.log.is_full else None

    def _emit_chunk(self, parts: list[Part]) -> None:
        artifact = self._artifact
        if not parts:
            raise ValueError("a chunk needs content")
        if self._append:
            self._worker.next_chunk(artifact.artifact_id, parts)
        else:
            chunk = Artifact(
                artifact_id=artifact.artifact_id,
                parts=parts,
                name=artifact.name,
                description=artifact.description,
                metadata=artifact.metadata,
            )
            self._worker.chunk(chunk, append=False)
        self._latest = parts

    def close(self) -> None:
        """Mark the end: on the last chunk, or with an empty text if that chunk is out already.

        Chunks that are not text get no such mark: an empty part would change the result."""
        if not self._latest or self._worker.close_artifact(self.id):
            return
        if isinstance(self._latest[-1].text, str):
            end = Artifact(artifact_id=self.id, parts=[Part(text="")])
            self._worker.artifact(end, append=True, last=True)
