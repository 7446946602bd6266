"""Executes tool calls as durable steps, several at the same time.

Steps are identified by the order in which they begin. Calls therefore begin in the model's order,
take one position of the log each and run concurrently. A call that needs more positions waits until
all of the batch have begun, and continues in the same order.
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import msgspec

from dragoman.agents.hooks import LoopHooks
from dragoman.agents.model_metrics import span
from dragoman.agents.tools import ToolCall, ToolProvider, ToolResult, Unfinished
from dragoman.authoring.turn import Turn
from dragoman.engine.running.turn_ends import TaskCompleted
from dragoman.errors import BudgetExceeded, TaskFailed, TaskRejected

logger = logging.getLogger("dragoman.agents")

# Not failures of a tool: the author ends the task.
_TASK_ENDS = (TaskCompleted, TaskRejected)
# Errors that refuse a call of another agent before it does anything.
_REFUSALS = (TaskFailed, BudgetExceeded)


class PlannedCall(msgspec.Struct, frozen=True):
    """A call and its provider. Recorded with the model's reply, so that a turn that continues after
    a crash asks no provider for its list of tools."""

    call: ToolCall
    # The index of the provider; None: there is no such tool, or it was not offered.
    provider: int | None = None
    records_itself: bool = False


class PreparedCall(msgspec.Struct, frozen=True):
    """A call after the hooks, or a result instead of it."""

    call: ToolCall
    result: ToolResult | None = None


class ToolCaller:
    """Executes the tool calls of a loop."""

    def __init__(
        self,
        providers: Sequence[ToolProvider],
        hooks: LoopHooks,
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

    async def results(self, calls: Sequence[PlannedCall], turn: Turn) -> list[ToolResult]:
        """Return the results of calls, in their order."""
        found: list[ToolResult] = []
        for start in range(0, len(calls), self._parallel):
            found += await self._batch(calls[start : start + self._parallel], turn)
        return found

    async def _batch(self, batch: Sequence[PlannedCall], turn: Turn) -> list[ToolResult]:
        ready = [PreparedCall(planned.call) for planned in batch]
        has_own = any(planned.records_itself for planned in batch)
        if has_own:
            # The hooks' decision must be the same in a second run.
            ready = await turn.step("prepare tools", self._prepare, batch, turn)
        # Created together: each takes its position of the log before its first await, so nothing
        # comes in between.
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
        for index, outcome in enumerate(outcomes):
            while isinstance(outcome, Unfinished):
                outcome = await _continue(outcome, turn)
            outcomes[index] = outcome
        if has_own:
            return await turn.step("conclude tools", self._conclude, batch, outcomes, turn)
        return [result for result in outcomes if isinstance(result, ToolResult)]

    async def _one(
        self, planned: PlannedCall, prepared: PreparedCall, turn: Turn
    ) -> ToolResult | Unfinished | Exception:
        if not planned.records_itself:
            return await turn.step(f"tool {planned.call.name}", self._execute, planned, turn)
        if prepared.result is not None:
            return prepared.result
        assert planned.provider is not None, "a tool that records itself has a provider"
        try:
            with _traced(prepared.call, "agent.invoke"):
                return await self._providers[planned.provider].execute(prepared.call, turn)
        except _TASK_ENDS:
            raise
        except Exception as error:
            if type(error) in _REFUSALS:
                # The next call may have the same name, and begins before anything else can.
                await _note_failure(turn)
            return error

    async def _prepare(self, batch: Sequence[PlannedCall], turn: Turn) -> list[PreparedCall]:
        """Run the hooks before calls that record themselves."""
        ready: list[PreparedCall] = []
        for planned in batch:
            call = planned.call
            if not planned.records_itself:
                ready.append(PreparedCall(call))
                continue
            try:
                made = await self._hooks.before_tool(call, turn)
            except _TASK_ENDS:
                raise
            except Exception as error:
                # Only this call is refused.
                made = _refused_by_hook(call, error)
            if isinstance(made, ToolResult):
                ready.append(PreparedCall(call, made))
            else:
                ready.append(PreparedCall(made))
        return ready

    async def _execute(self, planned: PlannedCall, turn: Turn) -> ToolResult:
        """Execute one call, as a step; an exception of the tool becomes a result."""
        call = planned.call
        if planned.provider is None:
            return ToolResult(f"There is no tool {call.name}.", is_error=True)
        if call.broken:
            return ToolResult("The arguments are not a JSON object.", is_error=True)
        outcome: ToolResult | Unfinished | Exception
        try:
            made = await self._hooks.before_tool(call, turn)
            outcome = (
                made if isinstance(made, ToolResult) else await self._call(planned, made, turn)
            )
        except _TASK_ENDS:
            raise
        except Exception as error:
            # The model is told of it, by the result of the call.
            outcome = error
        return await self._finished(outcome, call, turn)

    async def _call(
        self, planned: PlannedCall, call: ToolCall, turn: Turn
    ) -> ToolResult | Unfinished:
        assert planned.provider is not None, "checked by the caller"
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
        batch: Sequence[PlannedCall],
        outcomes: Sequence[ToolResult | Unfinished | Exception],
        turn: Turn,
    ) -> list[ToolResult]:
        """Return the results of a batch; results of steps are final already."""
        return [
            await self._finished(outcome, planned.call, turn)
            if planned.records_itself or not isinstance(outcome, ToolResult)
            else outcome
            for planned, outcome in zip(batch, outcomes, strict=True)
        ]

    async def _finished(
        self, outcome: ToolResult | Unfinished | Exception, call: ToolCall, turn: Turn
    ) -> ToolResult:
        """Return the result of a call as the model gets it."""
        try:
            if isinstance(outcome, Unfinished):
                outcome = RuntimeError("the tool goes on after its step: let it record itself")
            if isinstance(outcome, Exception):
                logger.info("tool %s failed: %s", call.name, type(outcome).__name__)
                outcome = await self._hooks.on_tool_error(outcome, call, turn)
            result = await self._hooks.after_tool(outcome, call, turn)
        except _TASK_ENDS:
            raise
        except Exception as error:
            # The result of the call is not used.
            result = _refused_by_hook(call, error)
        if len(result.content) <= self._max_result:
            return result
        cut = f"{result.content[: self._max_result]}\n[cut: {len(result.content)} characters]"
        return msgspec.structs.replace(result, content=cut)


def _traced(call: ToolCall, name: str) -> AbstractContextManager[Any]:
    return span(name, {"agent.tool.name": call.name, "agent.tool.call_id": call.id})


def _refused_by_hook(call: ToolCall, error: Exception) -> ToolResult:
    kind = type(error).__name__
    logger.info("a hook refused the tool %s: %s", call.name, kind)
    return ToolResult(f"{kind}: {error}", is_error=True)


async def _continue(call: Unfinished, turn: Turn) -> ToolResult | Unfinished | Exception:
    try:
        return await call.go_on()
    except _TASK_ENDS:
        raise
    except Exception as error:
        # The model is told of it, by the result of the call.
        await _note_failure(turn)
        return error


async def _note_failure(turn: Turn) -> None:
    """Record a step after a failed one: the next step of the same name would otherwise be taken for
    its repetition, and get its position."""
    await turn.step("failed", _no_op)


async def _no_op() -> None:
    pass
