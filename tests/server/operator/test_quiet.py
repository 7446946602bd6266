"""Which tasks under way are taken for quiet: their agents may hang."""

import time

import msgspec
import pytest

from dragoman.model.events import Forwarded, StepKind, StepRecorded
from dragoman.model.task import TaskState
from dragoman.server.operator.live import LiveFigures
from dragoman.server.operator.tasks.quiet import SILENT, UNANSWERED, QuietTasks
from dragoman.stores.interface import Survey
from dragoman.stores.memory import MemoryStore
from dragoman.telemetry.sampling import AgentFigures, SampledFigures
from dragoman.testing.promises.samples import addition, chunk, creation, head_of, write

# Milliseconds: when the tasks got their status.
BEGAN = 1_000_000


def sleeping(until: int) -> StepRecorded:
    return StepRecorded(StepKind.SLEEP, 0, "sleep", msgspec.Raw(msgspec.json.encode(until)))


LASTS = {
    "given to an agent": (Forwarded("a", "http://a.example"), UNANSWERED),
    "which has it": (Forwarded("a", "http://a.example", is_delivered=True), SILENT),
    "at work": (None, SILENT),
}


@pytest.mark.parametrize("case", LASTS)
async def test_a_task_is_quiet_once_nothing_was_heard_of_it_for_some_time(case: str) -> None:
    last, least = LASTS[case]
    store = MemoryStore()
    more = [] if last is None else [last]
    await write(store, creation("t", *more, state=TaskState.WORKING, at=BEGAN))
    quiet = QuietTasks(store)
    assert await quiet.look({}, BEGAN + least - 1) == []
    ((head, sign),) = await quiet.look({}, BEGAN + least)
    assert (head.task_id, sign.at, sign.is_unanswered) == ("t", BEGAN, least == UNANSWERED)


async def test_a_task_of_an_agent_that_takes_long_is_quiet_later() -> None:
    store = MemoryStore()
    await write(store, creation("t", state=TaskState.WORKING, at=BEGAN))
    quiet, now = QuietTasks(store), BEGAN + SILENT
    (head,) = [head for head, _ in await quiet.look({}, now)]
    assert await quiet.look({head.scope.agent: float(SILENT)}, now) == []


async def test_a_task_that_writes_or_sleeps_is_not_quiet() -> None:
    store, now = MemoryStore(), BEGAN + SILENT
    await write(store, creation("writes", state=TaskState.WORKING, at=BEGAN))
    await write(store, creation("sleeps", sleeping(now + 1), state=TaskState.WORKING, at=BEGAN))
    quiet = QuietTasks(store)
    head = await head_of(store, "writes")
    await write(store, addition(head, chunk("writes", "x")))
    assert await quiet.look({}, now) == []
    # What was written has no time: it counts from when it was seen.
    assert [head.task_id for head, _ in await quiet.look({}, now + SILENT)] == ["writes"]
    assert len(await quiet.look({}, now + SILENT + 1)) == 2


async def test_a_task_that_ended_or_waits_for_a_person_is_not_quiet() -> None:
    store = MemoryStore()
    for state in (TaskState.COMPLETED, TaskState.INPUT_REQUIRED):
        await write(store, creation(state.value, state=state, at=BEGAN))
    assert await QuietTasks(store).look({}, BEGAN + 100 * SILENT) == []


async def _all(_: Survey) -> float:
    return 1.0


async def test_a_task_at_a_gateway_is_quiet_as_late_as_those_of_its_agents() -> None:
    store, now = MemoryStore(), time.time_ns() // 1_000_000
    await write(store, creation("t", state=TaskState.WORKING, at=now - 2 * SILENT))
    (gateway,) = {head.scope.agent for head in [await head_of(store, "t")]}
    live = LiveFigures(store, _all)
    took = AgentFigures(started=0, ended=1, failed=0, p50=1.0, p99=10.0 * SILENT)
    names = SampledFigures._fields[:-1]
    live.ring.samples.append(SampledFigures(**dict.fromkeys(names, 0), agents={"remote": took}))
    assert await live.quiet_tasks([gateway]) == []
    # An agent of this process is judged by its own tasks alone.
    assert len(await live.quiet_tasks([gateway, "remote"])) == 1
