"""Tasks under way that show nothing: their agent may hang.

A gateway's task is quiet once its agent has not answered the message for some seconds; any other
one once nothing was recorded of it for a minute, and for longer than its agent usually takes. A
task that sleeps until a time is not quiet.
"""

from collections.abc import Iterable

import msgspec

from dragoman.model.events import Forwarded, StepKind, StepRecorded
from dragoman.model.record import Recorded
from dragoman.model.task import TaskState
from dragoman.stores.interface import Store, Survey, TaskRow
from dragoman.telemetry.sampling import SampledFigures

# Milliseconds: without any answer of the agent, and without a sign of a task that it has.
UNANSWERED = 5_000
SILENT = 60_000
# How much longer than nearly all messages of its agent a task may take.
_USUAL = 2.0
# Tasks that are looked at: as many that are quiet for a short time, and as many for a long one.
_MOST = 100
_STATES = (TaskState.SUBMITTED, TaskState.WORKING)


class LastSign(msgspec.Struct, frozen=True):
    """The last event of a task, and what it says of its agent."""

    position: int
    # Milliseconds: when it was recorded, or first seen where it has no time of its own.
    at: int
    is_unanswered: bool
    # Until when the task sleeps.
    sleeps_until: int = 0


class QuietTasks:
    """Remembers the last sign of tasks that have been under way for some time."""

    def __init__(self, store: Store) -> None:
        self._store = store
        # By the task's number.
        self._signs: dict[int, LastSign] = {}

    async def look(self, usual: dict[str, float], now: int) -> list[tuple[TaskRow, LastSign]]:
        """Return the quiet ones, the longest first. `usual` are milliseconds by agent."""
        heads = {head.number: head for head in await self._under_way(now)}
        await self._read_signs(heads.values(), now)
        found = [
            (head, sign)
            for number, head in heads.items()
            if (sign := self._signs.get(number)) is not None
            and _is_quiet(sign, usual.get(head.scope.agent, 0.0), now)
        ]
        return sorted(found, key=lambda one: one[1].at)

    async def _under_way(self, now: int) -> list[TaskRow]:
        found: list[TaskRow] = []
        for state in _STATES:
            for age in (UNANSWERED, SILENT):
                survey = Survey(limit=_MOST, state=state, status_before=now - age + 1)
                found += await self._store.survey(survey)
        return found

    async def _read_signs(self, heads: Iterable[TaskRow], now: int) -> None:
        """Read the last event of tasks that have another one than before."""
        before, self._signs = self._signs, {}
        fresh: list[TaskRow] = []
        for head in heads:
            known = before.get(head.number)
            if known is not None and known.position == head.standing.last_seq:
                self._signs[head.number] = known
            else:
                fresh.append(head)
        places = [(head.number, head.standing.last_seq - 1) for head in fresh]
        logs = await self._store.read_many(places, limit=1) if places else []
        for head, log in zip(fresh, logs, strict=True):
            if log:
                self._signs[head.number] = _sign(head, log[0], now)


def _sign(head: TaskRow, last: Recorded, now: int) -> LastSign:
    position, changed_at = head.standing.last_seq, head.standing.status_at
    # Judged by its bytes: most events are artifacts, and are not decoded.
    if last.body.startswith(b'{"forwarded"') and isinstance(event := last.event, Forwarded):
        return LastSign(position, changed_at, is_unanswered=not event.is_delivered)
    if last.body.startswith(b'{"stepRecorded"') and isinstance(event := last.event, StepRecorded):
        until = msgspec.json.decode(event.value, type=int) if event.kind is StepKind.SLEEP else 0
        return LastSign(position, now, is_unanswered=False, sleeps_until=until)
    is_status = last.body.startswith((b'{"statusUpdate"', b'{"task"'))
    return LastSign(position, changed_at if is_status else now, is_unanswered=False)


def _is_quiet(sign: LastSign, usual: float, now: int) -> bool:
    least = UNANSWERED if sign.is_unanswered else max(SILENT, _USUAL * usual)
    return now - max(sign.at, sign.sleeps_until) >= least


def usual_milliseconds(samples: Iterable[SampledFigures]) -> dict[str, float]:
    """Return what nearly all messages of each agent took at most, in the last minutes."""
    found: dict[str, float] = {}
    for sample in samples:
        for name, figures in sample.agents.items():
            found[name] = max(found.get(name, 0.0), figures.p99)
    return found
