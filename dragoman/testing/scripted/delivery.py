"""Sends the answers of a scripted agent: whole, as a stream, broken, or not at all."""

from dragoman.dialects.v1_0 import V1_0
from dragoman.model.events import Event, StatusUpdate
from dragoman.model.task import Task, TaskState
from dragoman.testing.scripted.connection import Headers, ScriptedConnection
from dragoman.testing.scripted.script import ScriptStep
from dragoman.testing.scripted.stage import Cut, ScriptedFault, Stage, StageEvent, filled
from dragoman.testing.scripted.wire import ScriptedWire
from dragoman.transports import sse


async def misbehave(
    connection: ScriptedConnection, wire: ScriptedWire, step: ScriptStep, words: dict[str, str]
) -> None:
    """Answer with an error, with anything, or with nothing."""
    if step.verb == "drop":
        await connection.break_off(at_once=not connection.is_open)
    if step.verb == "raw":
        body = filled(step.raw or "", words).encode()
        if connection.is_open:
            await connection.write(body)
        else:
            kind = step.type or wire.kind
            await connection.answer(step.http or 200, body, kind, more_headers(step))
        return
    status, body, headers = wire.scripted(step, words)
    if connection.is_open:
        await connection.write(sse.error_frame(body))
    else:
        headers = [*headers, *more_headers(step)]
        await connection.answer(status, body, step.type or wire.kind, headers)


def more_headers(step: ScriptStep) -> Headers:
    """Return the headers a step names."""
    return [(name.lower().encode(), value.encode()) for name, value in step.headers.items()]


class Streaming:
    """One stream of a task's events."""

    def __init__(
        self,
        connection: ScriptedConnection,
        wire: ScriptedWire,
        stage: Stage,
        *,
        is_send: bool,
        with_ids: bool,
    ) -> None:
        self._connection = connection
        self._wire = wire
        self._stage = stage
        self._closes_on_input = is_send or wire.dialect is not V1_0
        self._with_ids = with_ids
        self._cut: Cut | None = None
        self._shown = 0

    async def run(self, index: int, opening: bytes = b"") -> None:
        """Write the events from an index on, until the stream ends, breaks or its reader leaves."""
        await self._connection.write_until_gone(self._pump(index, opening))

    async def _pump(self, index: int, opening: bytes) -> None:
        entries = self._stage.follow(index)
        entry = None if opening else await anext(entries, None)
        if entry is not None and entry.fault is not None and index == 0:
            # Before the first event it is a whole answer, not a broken stream.
            await self._fault(entry.fault)
            return
        self._cut = _next_cut(self._stage)
        if self._cut is not None:
            self._connection.cut_at = self._cut.byte
        await self._connection.open(self._wire.headers)
        if opening:
            await self._show(opening)
            entry = await anext(entries, None)
        position = index
        while entry is not None:
            position += 1
            if entry.fault is not None:
                if await self._fault(entry.fault):
                    break
            elif entry.event is not None:
                await self._show(self._wire.event(entry, entry.event, with_id=self._with_ids))
                # Events that a script adds after the end are in the log by then.
                if self._is_last(entry.event) and position >= len(self._stage.entries):
                    break
            entry = await anext(entries, None)
        await self._connection.close()

    async def _show(self, frame: bytes) -> None:
        await self._connection.write(frame)
        self._shown += 1
        if self._cut is not None and self._shown == self._cut.events:
            await self._connection.break_off()

    async def _fault(self, fault: ScriptedFault) -> bool:
        """Apply a fault to the reader; say whether the stream is over."""
        if fault.left == 0:
            return False
        fault.left -= 1
        step = fault.step
        match step.verb:
            case "close":
                return True
            case "event":
                await self._connection.write(self._wire.any_event(step.event))
                return False
            case "cut":
                await self._connection.break_off()
                return True
            case _:
                words: dict[str, str] = {"task": self._stage.id}
                await misbehave(self._connection, self._wire, step, words)
                return step.verb == "error"

    def _is_last(self, event: Event) -> bool:
        if not isinstance(event, StatusUpdate | Task):
            return False
        state = event.status.state
        return state.is_terminal or (state is TaskState.INPUT_REQUIRED and self._closes_on_input)


async def write_single_event(
    connection: ScriptedConnection, wire: ScriptedWire, event: Event
) -> None:
    """Write a stream of one event that belongs to no task."""
    await connection.open(wire.headers)
    await connection.write(wire.event(StageEvent(0), event, with_id=False))
    await connection.close()


def _next_cut(stage: Stage) -> Cut | None:
    """Take the next cut of a task's streams, if one is left."""
    for cut in stage.cuts:
        if cut.left:
            cut.left -= 1
            return cut
    return None
