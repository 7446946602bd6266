"""The turn of plain functions, which run in a thread: the same names as those of `Turn`, but its
methods wait instead of being awaited. What only a loop can do (`follow`, chunks of an artifact)
takes an async function; a plain one yields its chunks."""

import asyncio
import concurrent.futures
import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    ParamSpec,
    TypeVar,
    Unpack,
    overload,
)

from msgspec import UNSET

from dragoman.authoring.budget import CallOptions
from dragoman.authoring.steps import (
    check_function,
    decode_result,
    encode_result,
    recall_step,
    record_failure,
    record_result,
    recorded_result,
)
from dragoman.authoring.turn import Turn, TurnView
from dragoman.engine.running.worker import Worker
from dragoman.model.content import Content
from dragoman.model.message import Message, Metadata
from dragoman.telemetry.observation import StepObservation

if TYPE_CHECKING:
    # Heavy: loaded with the first call of another agent.
    from dragoman.authoring.delegates import Ref
    from dragoman.client.answer import Answer
    from dragoman.client.content import Content as CallContent

P = ParamSpec("P")
T = TypeVar("T")
D = TypeVar("D")


class _Waiting(Generic[P, T]):
    """A method of `Turn` that is waited for: same arguments, and its result."""

    def __init__(self, method: Callable[Concatenate[Turn, P], Awaitable[T]]) -> None:
        self._method = method
        self.__doc__ = method.__doc__

    @overload
    def __get__(self, turn: None, owner: Any) -> "_Waiting[P, T]": ...
    @overload
    def __get__(self, turn: "SyncTurn", owner: Any) -> Callable[P, T]: ...
    def __get__(self, turn: "SyncTurn | None", owner: Any) -> Any:
        return self if turn is None else functools.partial(turn.wait_for, self._method)


class SyncTurn(TurnView):
    """One message given to one task, for code in a thread: every method waits for what it does."""

    say = _Waiting(Turn.say)
    artifact = _Waiting(Turn.artifact)
    sleep = _Waiting(Turn.sleep)
    authorize = _Waiting(Turn.authorize)
    choose = _Waiting(Turn.choose)
    confirm = _Waiting(Turn.confirm)
    credential = _Waiting(Turn.credential)

    def __init__(self, turn: Turn, worker: Worker, loop: asyncio.AbstractEventLoop) -> None:
        self._turn = turn
        self._worker = worker
        self._loop = loop
        # What the thread waits for. Only the loop reads and writes it, so nothing is missed.
        self._task: asyncio.Task[Any] | None = None
        self._is_let_go = False

    def let_go(self) -> None:
        """End the wait of code whose task is over: it gets no more answers and begins no steps."""
        self._is_let_go = True
        if self._task is not None:
            self._task.cancel()

    def wait_for(self, method: Callable[..., Awaitable[T]], *args: Any, **kwargs: Any) -> T:
        """Call a method of the turn on the loop, and wait for its result."""
        return self._wait(method, self._turn, *args, **kwargs)

    # The methods below have more than one shape, which a descriptor cannot pass on.

    @overload
    def ask(
        self,
        content: Content,
        *,
        sensitive: bool = False,
        metadata: Metadata | None = None,
        timeout: float | None = None,
    ) -> Message: ...
    @overload
    def ask(
        self,
        content: Content,
        *,
        sensitive: bool = False,
        metadata: Metadata | None = None,
        timeout: float | None = None,
        default: D,
    ) -> Message | D: ...
    def ask(self, content: Content, **more: Any) -> Any:
        """Ask the caller and wait for the answer, as `Turn.ask`."""
        return self._wait(self._turn.ask, content, **more)

    @overload
    def fill(
        self,
        content: Content,
        form: type[T],
        *,
        sensitive: bool = False,
        timeout: float | None = None,
    ) -> T: ...
    @overload
    def fill(
        self,
        content: Content,
        form: type[T],
        *,
        sensitive: bool = False,
        timeout: float | None = None,
        default: D,
    ) -> T | D: ...
    @overload
    def fill(
        self,
        content: Content,
        form: dict[str, Any],
        *,
        sensitive: bool = False,
        timeout: float | None = None,
        default: object = UNSET,
    ) -> object: ...
    def fill(self, content: Content, form: Any, **more: Any) -> Any:
        """Have the caller fill in a form, as `Turn.fill`."""
        return self._wait(self._turn.fill, content, form, **more)

    @overload
    def tool(
        self,
        name: str,
        args: object = None,
        *,
        schema: dict[str, Any] | None = None,
        timeout: float | None = None,
        default: object = UNSET,
    ) -> object: ...
    @overload
    def tool(
        self, name: str, args: object = None, *, returns: type[T], timeout: float | None = None
    ) -> T: ...
    @overload
    def tool(
        self,
        name: str,
        args: object = None,
        *,
        returns: type[T],
        timeout: float | None = None,
        default: D,
    ) -> T | D: ...
    def tool(self, name: str, args: object = None, **more: Any) -> Any:
        """Have the caller execute a tool of its own, as `Turn.tool`."""
        return self._wait(self._turn.tool, name, args, **more)

    @overload
    def call(
        self, agent: "Ref", content: "CallContent", **more: Unpack[CallOptions]
    ) -> "Answer": ...
    @overload
    def call(
        self,
        agent: "Ref",
        content: "CallContent",
        *,
        returns: type[T],
        **more: Unpack[CallOptions],
    ) -> T: ...
    def call(self, agent: "Ref", content: "CallContent", **more: Any) -> Any:
        """Call another agent and return its answer, as `Turn.call`."""
        return self._wait(self._turn.call, agent, content, **more)

    @overload
    def step(
        self, name: str, function: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> T: ...
    @overload
    def step(
        self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T: ...
    def step(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call a function once, as `Turn.step`, in the thread that asks for it: no second thread
        need be free."""
        check_function(function)
        index, done = self._wait(recall_step, self._worker, name)
        if done is not None:
            return recorded_result(self._worker, done, function)
        step = StepObservation(name)
        try:
            if inspect.iscoroutinefunction(function):
                result = self._wait(function, *args, **kwargs)
            else:
                result = function(*args, **kwargs)
                if inspect.isawaitable(result):
                    result = self._wait(_awaited, result)
            value = encode_result(name, result)
            result = decode_result(name, value, function)
        except BaseException as error:
            self._wait(record_failure, self._worker, index, name, error, step.end(error))
            raise
        self._wait(record_result, self._worker, index, name, value, step.end())
        return result

    def _wait(self, make: Any, *args: Any, **kwargs: Any) -> Any:
        work = self._on_loop(make, *args, **kwargs)
        try:
            waiting = asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:
            # The loop ended before its threads did.
            work.close()
            raise asyncio.CancelledError from None
        try:
            return waiting.result()
        except concurrent.futures.CancelledError:
            # As async code sees it: not an Exception, so it is not caught by accident.
            raise asyncio.CancelledError from None

    async def _on_loop(self, make: Any, *args: Any, **kwargs: Any) -> Any:
        passing = (Turn.say, Turn.artifact, record_result, record_failure)
        if self._is_let_go and make not in passing:
            for given in args:
                if inspect.iscoroutine(given):
                    # On purpose never begun: closing it avoids the warning.
                    given.close()
            raise asyncio.CancelledError
        self._task = asyncio.current_task()
        try:
            return await make(*args, **kwargs)
        finally:
            self._task = None


async def _awaited(work: Awaitable[Any]) -> Any:
    return await work
