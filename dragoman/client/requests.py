"""What an agent asks its caller while a task waits, and who answers: functions that are its tools,
or one function for whatever is asked.
"""

import asyncio
import inspect
import logging
from collections.abc import Callable, Mapping
from typing import Any, cast

from dragoman.client.answer import Answer
from dragoman.errors import RequestFailed
from dragoman.model.message import Part
from dragoman.model.requests import Request, open_requests
from dragoman.model.task import Task
from dragoman.security import handoff

logger = logging.getLogger("dragoman")

# By name. What a function raises as `RequestFailed` is told to the agent, of anything else only
# that there is no result.
Tools = Mapping[str, Callable[..., Any]]
# Returns the answer, or None to leave a request open.
OnRequest = Callable[[Request], Any]


def no_answer(request: Request) -> None:
    """Leave every request open."""


def requests_of(task: Task | Answer | None) -> list[Request]:
    """Return what a task waits for, in order; empty where it does not wait."""
    found = task.task if isinstance(task, Answer) else task
    return open_requests(found.status) if found is not None else []


def answer_parts(request: Request, result: Any) -> list[Part]:
    """Return the parts of a message that answers a request: a credential is encrypted to the
    request's key, so that only the agent that asked can read it. Raises `ValueError` for one that
    cannot be handed over."""
    if request.kind == "credential" and request.handoff is None:
        raise ValueError("the request has no key that a credential may be encrypted to")
    if request.handoff is None:
        return request.answered(result)
    if not isinstance(result, str):
        raise ValueError("a credential is a text")
    return request.answered(handoff.sealed(request.handoff, result))


class Attendant:
    """Answers requests."""

    def __init__(self, tools: Tools, on_request: OnRequest | None) -> None:
        self._tools = tools
        self._on_request = on_request

    async def parts(self, answer: Answer) -> list[Part]:
        """Return the answers to those requests that can be answered here, all at once."""
        found = await asyncio.gather(*(self._answer(one) for one in requests_of(answer)))
        return [part for parts in found for part in parts]

    async def _answer(self, request: Request) -> list[Part]:
        tool = self._tools.get(request.name) if request.kind == "tool" else None
        try:
            if tool is not None:
                return answer_parts(request, await _call(tool, request.args))
            if self._on_request is None:
                return []
            result = self._on_request(request)
            result = await result if inspect.isawaitable(result) else result
        except RequestFailed as error:
            return request.failed(error.public)
        except Exception:
            if tool is None:
                raise
            logger.exception("the tool %s failed", request.name)
            return request.failed("The tool failed.")
        return [] if result is None else answer_parts(request, result)


async def _call(tool: Callable[..., Any], args: Any) -> Any:
    """Call a function with what the agent says: by name where that is an object."""
    given: list[Any] = [] if args is None or isinstance(args, dict) else [args]
    named = cast("dict[str, Any]", args) if isinstance(args, dict) else {}
    if inspect.iscoroutinefunction(tool):
        return await tool(*given, **named)

    def call() -> Any:
        try:
            return tool(*given, **named)
        except StopIteration as error:
            # A future refuses it, and would never be done.
            raise RuntimeError("the tool raised StopIteration") from error

    # It may block, and others wait beside it.
    result = await asyncio.to_thread(call)
    return await result if inspect.isawaitable(result) else result
