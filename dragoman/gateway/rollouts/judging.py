"""Looks at samples: has the new version do a copy of each task, compares the answers, and asks the
owner's check. What it returns is counted by `rollouts.py`."""

import contextlib
import logging
from collections.abc import Iterable

from msgspec.structs import replace

from dragoman.engine.engine import Engine
from dragoman.engine.reading import read_task
from dragoman.engine.running.replay import Replay, read_replay
from dragoman.errors import A2AError, Overloaded, RateLimited, StoreRefused, TaskNotFound
from dragoman.gateway.registry.registered import Registered
from dragoman.gateway.rollouts.comparison import compare
from dragoman.gateway.rollouts.copies import copy_of, milliseconds, question, reason_of, verdict
from dragoman.gateway.rollouts.definition import MOST_OPEN, OpenSample, Result, RolloutDefinition
from dragoman.gateway.routing import routing_options
from dragoman.model import operations as ops
from dragoman.model.identity import Caller, ContextId, Principal, TaskId
from dragoman.model.message import Metadata
from dragoman.model.task import Task, TaskState
from dragoman.service import Call, TaskPage, TaskReply
from dragoman.stores.interface import Store
from dragoman.stores.interface.rollouts import RolloutRow

logger = logging.getLogger("dragoman")


class _Gone(Exception):
    """A task cannot be copied: it is not stored any more, was more than one message, or is not safe
    to repeat."""


class Judging:
    """The copies and checks of all rollouts of a gateway."""

    def __init__(self, engine: Engine, store: Store) -> None:
        """`engine` runs `Shadows`."""
        self.engine = engine
        self._store = store
        # The tasks of copies and checks, by the ids of their messages.
        self._begun: dict[str, TaskId] = {}

    async def judge(
        self, row: RolloutRow, found: RolloutDefinition, sample: OpenSample, agent: Registered
    ) -> RolloutDefinition:
        """Return a rollout of an agent after a look at one of its samples."""
        try:
            if sample.is_answered:
                return await self._look_at_check(row, found, sample, agent)
            return await self._look_at_copy(row, found, sample, agent)
        except _Gone:
            return found.without(sample, skipped=1)
        except (Overloaded, RateLimited, StoreRefused) as error:
            logger.info("a copy for the rollout %s has to wait: %s", row.id, error)
            return found
        except A2AError as error:
            # The gateway refused it: the new version was not asked.
            logger.warning("no copy of a task for the rollout %s: %s", row.id, error)
            return found.without(sample, dropped=1)

    async def _look_at_copy(
        self, row: RolloutRow, found: RolloutDefinition, sample: OpenSample, agent: Registered
    ) -> RolloutDefinition:
        copy = await self._copy(row, found, sample, agent)
        if not copy.status.state.is_resting:
            return found
        took, is_done = milliseconds(copy), copy.status.state is TaskState.COMPLETED
        found = found.seen_new(took, is_done=is_done)
        if not is_done:
            return found.judged(sample, "failed", reason_of(copy))
        compared = compare(await self._original(sample), copy)
        result: Result = "agreed"
        if not compared.same_structure:
            result = "structure"
        elif compared.distance > found.max_distance:
            result = "text"
        sample = replace(sample, distance=compared.distance)
        if result != "agreed" or not found.check_agent:
            return found.judged(sample, result)
        return found.replaced(replace(sample, is_answered=True))

    async def _look_at_check(
        self, row: RolloutRow, found: RolloutDefinition, sample: OpenSample, agent: Registered
    ) -> RolloutDefinition:
        """Ask the owner's check: about the answers of both, or about a canary's alone."""
        name = f"check-{row.id}-{sample.task}"
        check = await self._known(row, name)
        if check is None:
            before = after = await self._original(sample)
            if not sample.is_canary:
                after = await self._copy(row, found, sample, agent)
            asked = (await self._replay(sample)).began.message
            about = None if sample.is_canary else before
            message = question(name, asked, about, after)
            check = await self._begin(
                row, found, found.check_agent, ops.SendMessage(message=message)
            )
        if not check.status.state.is_resting:
            return found
        agrees = verdict(check)
        if agrees is None:
            return found.judged(sample, "check", "the check told neither yes nor no")
        return found.judged(sample, "agreed" if agrees else "check")

    # Tasks

    async def _replay(self, sample: OpenSample) -> Replay:
        """Return what a task began with; raises `_Gone` if a copy could not be the same."""
        replay = await read_replay(self._store, sample.task)
        if replay is None or len(replay.messages) > 1:
            raise _Gone
        return replay

    async def _original(self, sample: OpenSample) -> Task:
        reading = await read_task(self._store, sample.task)
        if reading is None:
            raise _Gone
        return reading.task

    async def _copy(
        self, row: RolloutRow, found: RolloutDefinition, sample: OpenSample, agent: Registered
    ) -> Task:
        """Return the copy of a task, begun if it was not."""
        name = f"shadow-{row.id}-{sample.task}"
        copy = await self._known(row, name)
        if copy is None:
            replay = await self._replay(sample)
            if replay.forwarded is not None and replay.forwarded.continues:
                # The new version did not hear what was said before.
                raise _Gone
            if not agent.is_repeatable(routing_options.read(replay.began).skill):
                # Withdrawn meanwhile, or the gateway only supposed the skill by the words.
                raise _Gone
            copied = copy_of(replay, name)
            copy = await self._begin(row, found, found.candidate, copied)
        return copy

    async def _known(self, row: RolloutRow, name: str) -> Task | None:
        """Return a task that this process began, or looked at before."""
        task_id = self._begun.get(name)
        if task_id is None:
            return None
        operation = ops.GetTask(task_id=task_id)
        try:
            reply = await self.engine.answer(Call(operation=operation, caller=_caller(row.owner)))
        except TaskNotFound:
            return None
        assert isinstance(reply, TaskReply), "a task is read as a task"
        return reply.reading.task

    async def _begin(
        self, row: RolloutRow, found: RolloutDefinition, agent: str, sent: ops.SendMessage
    ) -> Task:
        """Begin a copy or a check; return it. A message that was sent before leads to its task."""
        metadata: Metadata = {**sent.metadata, "agentId": agent, "timeoutSeconds": found.timeout}
        operation = replace(
            sent,
            message=replace(sent.message, context_id=ContextId(row.id)),
            metadata=metadata,
            wait=False,
        )
        reply = await self.engine.answer(Call(operation=operation, caller=_caller(row.owner)))
        assert isinstance(reply, TaskReply), "everything forwarded is a task"
        self._begun[sent.message.message_id] = reply.reading.task.id
        return reply.reading.task

    def keep(self, open: Iterable[tuple[str, int]]) -> None:
        """Forget the tasks of all samples but these, by rollout and task."""
        names = {f"{kind}-{id}-{task}" for id, task in open for kind in ("shadow", "check")}
        self._begun = {name: task for name, task in self._begun.items() if name in names}

    async def clear(self, row: RolloutRow) -> None:
        """Cancel the copies of a rollout that ended. They are found by their context, which is the
        rollout: another process may have begun them."""
        listed = ops.ListTasks(
            context_id=ContextId(row.id),
            state=TaskState.WORKING,
            page_size=MOST_OPEN,
        )
        with contextlib.suppress(A2AError, StoreRefused):
            page = await self.engine.answer(Call(operation=listed, caller=_caller(row.owner)))
            assert isinstance(page, TaskPage), "a list is answered with a page"
            for task in page.tasks:
                operation = ops.CancelTask(task_id=task.reading.task.id)
                with contextlib.suppress(A2AError):
                    await self.engine.answer(Call(operation=operation, caller=_caller(row.owner)))


def _caller(owner: Principal) -> Caller:
    """Return whom the copies of an owner's rollouts belong to: no credential is of that name, so
    no caller's list has them, and they use no caller's quota."""
    return Caller(f"rollout:{owner.text}", authenticated=True)
