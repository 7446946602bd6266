"""The tasks of a scripted agent, in memory, and the operations on them."""

import msgspec

from dragoman.dialects.dialect import Dialect
from dragoman.errors import (
    InvalidParams,
    PushConfigNotFound,
    TaskNotCancelable,
    TaskNotFound,
    UnsupportedOperation,
)
from dragoman.model import operations as ops
from dragoman.model.identity import new_id
from dragoman.model.message import Message
from dragoman.model.push import PushConfig
from dragoman.model.record import TaskReading
from dragoman.service import Nothing, PushPage, Reply, TaskPage, TaskReply
from dragoman.testing.scripted.posting import ScriptedPushes
from dragoman.testing.scripted.script import Existing, ScriptStep
from dragoman.testing.scripted.stage import Stage


class ScriptedTasks:
    """All tasks of an agent."""

    def __init__(self, existing: list[Existing]) -> None:
        self.stages: dict[str, Stage] = {}
        self.postings = ScriptedPushes()
        for group in existing:
            for i in range(1, group.count + 1):
                self._add(group, i)

    def _add(self, group: Existing, number: int) -> None:
        stage = Stage(new_id(), group.context or new_id(), None)
        step = ScriptStep(artifact="answer", text=group.text)
        stage.add_artifact(step, {"i": str(number), "task": stage.id})
        stage.set_state(group.state)
        stage.is_done = True
        self.stages[stage.id] = stage

    def get(self, task_id: str) -> Stage:
        """Return a task; raises `TaskNotFound`."""
        stage = self.stages.get(task_id)
        if stage is None:
            raise TaskNotFound(taskId=task_id)
        return stage

    def continued(self, message: Message) -> Stage:
        """Return the task that a message continues; raises if it cannot."""
        stage = self.get(message.task_id)
        if stage.state.is_terminal:
            raise UnsupportedOperation("The task has ended", taskId=stage.id)
        if message.context_id and message.context_id != stage.task.context_id:
            raise InvalidParams("is not the context of the task", field="message.contextId")
        return stage

    def reply(self, operation: ops.Operation, dialect: Dialect) -> Reply:
        """Return the reply to an operation on tasks."""
        match operation:
            case ops.GetTask():
                return reply_of(self.get(operation.task_id), operation.history)
            case ops.CancelTask():
                return reply_of(self._canceled(self.get(operation.task_id)), None)
            case ops.ListTasks():
                return self._page(operation)
            case ops.CreatePush():
                stage = self.get(operation.task_id)
                return self.configure(stage, operation.config, dialect, len(stage.entries))
            case ops.GetPush():
                return self._config(operation)
            case ops.ListPush():
                return PushPage(list(self.get(operation.task_id).configs.values()))
            case ops.DeletePush():
                self.get(operation.task_id).configs.pop(operation.config_id, None)
                return Nothing()
            case _:
                raise UnsupportedOperation

    def _canceled(self, stage: Stage) -> Stage:
        if stage.state.is_terminal:
            raise TaskNotCancelable(taskId=stage.id, state=stage.state.value)
        if stage.player is not None:
            stage.player.cancel()
        stage.set_state("canceled")
        return stage

    def _page(self, wanted: ops.ListTasks) -> TaskPage:
        found = [stage for stage in self.stages.values() if _is_wanted(stage, wanted)]
        found.sort(key=lambda stage: stage.changed_at, reverse=True)
        if wanted.page_token and not wanted.page_token.isdecimal():
            raise InvalidParams("is not a page token of ours", field="pageToken")
        begin = int(wanted.page_token or 0)
        shown = found[begin : begin + wanted.page_size]
        end = begin + len(shown)
        tasks = [stage.task for stage in shown]
        if not wanted.include_artifacts:
            tasks = [msgspec.structs.replace(task, artifacts=[]) for task in tasks]
        return TaskPage(
            [TaskReply(TaskReading(0, task), wanted.history) for task in tasks],
            str(end) if end < len(found) else "",
            len(shown),
            len(found),
            wanted.include_artifacts,
        )

    def configure(
        self, stage: Stage, config: PushConfig, dialect: Dialect, index: int
    ) -> PushConfig:
        """Post a task's entries from an index on."""
        config = msgspec.structs.replace(config, id=config.id or new_id(), task_id=stage.id)
        is_new = config.id not in stage.configs
        stage.configs[config.id] = config
        if is_new:
            self.postings.begin(stage, config.id, dialect, index)
        return config

    def _config(self, operation: ops.GetPush) -> PushConfig:
        configs = self.get(operation.task_id).configs
        wanted = operation.config_id or next(iter(configs), "")
        if wanted not in configs:
            raise PushConfigNotFound(taskId=operation.task_id)
        return configs[wanted]


def reply_of(stage: Stage, history: int | None) -> TaskReply:
    """Return a task as a reply."""
    return TaskReply(TaskReading(stage.seq, stage.task), history)


def _is_wanted(stage: Stage, wanted: ops.ListTasks) -> bool:
    return (
        (not wanted.context_id or stage.task.context_id == wanted.context_id)
        and (wanted.state is None or stage.state is wanted.state)
        and (wanted.status_since is None or stage.changed_at >= wanted.status_since)
    )
