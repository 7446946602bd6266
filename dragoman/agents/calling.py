"""Calls of tools as durable steps, so many beside each other.

Steps are found by the order in which they begin. Calls therefore begin in the order the model gave
them, take one place of the log each and go on beside each other; whatever needs more places waits
until all of them are there, and goes in the same order.
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import msgspec

from dragoman.agents.hooks import Hooks
from dragoman.agents.tools import ToolCall, ToolProvider, ToolResult, Unfinished
from dragoman.agents.watching import span
from dragoman.engine.worker import TaskCompleted
from dragoman.errors import BudgetExceeded, TaskFailed, TaskRejected
from dragoman.server.turn import Turn

logger = logging.getLogger("dragoman.agents")

# Not a tool's failure: the author ends the task.
_ENDS = (TaskCompleted, TaskRejected)
# What calls of other agents are refused with before they do anything.
_AT_ONCE = (TaskFailed, BudgetExceeded)


class Planned(msgspec.Struct, frozen=True):
    """A call, and who makes it: decided with the model's answer and recorded with it, so that a
    turn that goes on after a crash asks no provider for its list."""

    call: ToolCall
    # None: nobody has such a tool, or none that was offered.
    provider: int | None = None
    records_itself: bool = False


class Prepared(msgspec.Struct, frozen=True):
    """A call as the hooks want it, or a result instead of it."""

    call: ToolCall
    result: ToolResult | None = None


class Caller:
    """Makes the calls of a loop."""

    def __init__(
        self,
        providers: Sequence[ToolProvider],
        hooks: Hooks,
        *,
        parallel: int,
        timeout: float | None,
        max_result: int,
    ) -> None:
        self._providers = providers
        self._hooks = hooks
        self._parallel = parallel
        self._timeout = timeout
        self._max_result = max_result

    async def results(self, calls: Sequence[Planned], turn: Turn) -> list[ToolResult]:
        """Return the results of calls, in their order; so many are made at once."""
        found: list[ToolResult] = []
        for start in range(0, len(calls), self._parallel):
            found += await self._batch(calls[start : start + self._parallel], turn)
        return found

    async def _batch(self, batch: Sequence[Planned], turn: Turn) -> list[ToolResult]:
        ready = [Prepared(planned.call) for planned in batch]
        has_own = any(planned.records_itself for planned in batch)
        if has_own:
            # What the hooks decide must be the same in a second run.
            ready = await turn.step("prepare tools", self._prepare, batch, turn)
        # Made at once: their first slices, in which each takes its place, follow one another with
        # nothing in between.
        tasks = [
            asyncio.ensure_future(self._one(planned, prepared, turn))
            for planned, prepared in zip(batch, ready, strict=True)
        ]
        try:
            outcomes = list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if any(isinstance(outcome, Exception) for outcome in outcomes):
            await _note_failure(turn)
        for place, outcome in enumerate(outcomes):
            while isinstance(outcome, Unfinished):
                outcome = await _gone_on(outcome, turn)
            outcomes[place] = outcome
        if has_own:
            return await turn.step("conclude tools", self._conclude, batch, outcomes, turn)
        return [result for result in outcomes if isinstance(result, ToolResult)]

    async def _one(
        self, planned: Planned, prepared: Prepared, turn: Turn
    ) -> ToolResult | Unfinished | Exception:
        if not planned.records_itself:
            return await turn.step(f"tool {planned.call.name}", self._execute, planned, turn)
        if prepared.result is not None:
            return prepared.result
        assert planned.provider is not None, "a tool that records itself is someone's"
        try:
            with _traced(prepared.call, "agent.invoke"):
                return await self._providers[planned.provider].execute(prepared.call, turn)
        except _ENDS:
            raise
        except Exception as error:
            if type(error) in _AT_ONCE:
                # The next call may be of the same name, and begins before anything else can.
                await _note_failure(turn)
            return error

    async def _prepare(self, batch: Sequence[Planned], turn: Turn) -> list[Prepared]:
        """Return what the hooks make of calls that record themselves."""
        ready: list[Prepared] = []
        for planned in batch:
            call = planned.call
            if not planned.records_itself:
                ready.append(Prepared(call))
                continue
            try:
                made = await self._hooks.before_tool(call, turn)
            except _ENDS:
                raise
            except Exception as error:
                made = ToolResult(_text(error), is_error=True)
            if isinstance(made, ToolResult):
                ready.append(Prepared(call, made))
            else:
                ready.append(Prepared(made))
        return ready

    async def _execute(self, planned: Planned, turn: Turn) -> ToolResult:
        """Make one call, as a step; whatever a tool raises becomes a result."""
        call = planned.call
        if planned.provider is None:
            return ToolResult(f"There is no tool {call.name}.", is_error=True)
        if call.broken:
            return ToolResult("The arguments are not a JSON object.", is_error=True)
        outcome: ToolResult | Unfinished | Exception
        try:
            made = await self._hooks.before_tool(call, turn)
            outcome = (
                made if isinstance(made, ToolResult) else await self._made(planned, made, turn)
            )
        except _ENDS:
            raise
        except Exception as error:
            outcome = error
        return await self._finished(outcome, call, turn)

    async def _made(self, planned: Planned, call: ToolCall, turn: Turn) -> ToolResult | Unfinished:
        assert planned.provider is not None, "asked before"
        limit = asyncio.timeout(self._timeout)
        try:
            with _traced(call, "tool.execute"):
                async with limit:
                    return await self._providers[planned.provider].execute(call, turn)
        except TimeoutError:
            if not limit.expired():
                raise
            raise TimeoutError(f"no result in {self._timeout:g} s") from None

    async def _conclude(
        self,
        batch: Sequence[Planned],
        outcomes: Sequence[ToolResult | Unfinished | Exception],
        turn: Turn,
    ) -> list[ToolResult]:
        """Return the results of a batch; those of steps are finished already."""
        return [
            await self._finished(outcome, planned.call, turn)
            if planned.records_itself or not isinstance(outcome, ToolResult)
            else outcome
            for planned, outcome in zip(batch, outcomes, strict=True)
        ]

    async def _finished(
        self, outcome: ToolResult | Unfinished | Exception, call: ToolCall, turn: Turn
    ) -> ToolResult:
        """Return what the model is told of a call."""
        try:
            if isinstance(outcome, Unfinished):
                outcome = RuntimeError("the tool goes on after its step: let it record itself")
            if isinstance(outcome, Exception):
                logger.info("tool %s failed: %s", call.name, type(outcome).__name__)
                outcome = await self._hooks.on_tool_error(outcome, call, turn)
            result = await self._hooks.after_tool(outcome, call, turn)
        except _ENDS:
            raise
        except Exception as error:
            # A hook's own: the call is over, and its result nothing to go by.
            result = ToolResult(_text(error), is_error=True)
        if len(result.content) <= self._max_result:
            return result
        cut = f"{result.content[: self._max_result]}\n[cut: {len(result.content)} characters]"
        return msgspec.structs.replace(result, content=cut)


def _traced(call: ToolCall, name: str) -> AbstractContextManager[Any]:
    return span(name, {"agent.tool.name": call.name, "agent.tool.call_id": call.id})


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


async def _gone_on(left: Unfinished, turn: Turn) -> ToolResult | Unfinished | Exception:
    try:
        return await left.go_on()
    except _ENDS:
        raise
    except Exception as error:
        await _note_failure(turn)
        return error


async def _note_failure(turn: Turn) -> None:
    """Have a step that failed recorded as failed: another of its name would be taken for its
    repetition, and get its place."""
    await turn.step("failed", _nothing)


async def _nothing() -> None:
    pass
