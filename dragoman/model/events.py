"""What can happen to a task. An event is never changed once it is recorded."""

import msgspec

from dragoman.model.artifact import Artifact
from dragoman.model.identity import ContextId, TaskId
from dragoman.model.message import Message, Metadata
from dragoman.model.task import Task, TaskStatus


class StatusUpdate(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", gc=False):
    """The task reached a state, or made progress in one."""

    task_id: TaskId
    context_id: ContextId
    status: TaskStatus
    metadata: Metadata = {}
    extra: Metadata = msgspec.field(name="~", default={})


class ArtifactUpdate(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", gc=False):
    """The task produced an artifact, or one more chunk of it."""

    task_id: TaskId
    context_id: ContextId
    artifact: Artifact
    append: bool = False
    last_chunk: bool = False
    metadata: Metadata = {}
    extra: Metadata = msgspec.field(name="~", default={})


class MessageAdded(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", gc=False):
    """The caller said something more. Part of the log and the history, not of any stream:
    the protocol has no event for it."""

    message: Message


class AttemptStarted(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", gc=False):
    """A worker took the task over from one that died. Not part of any stream."""

    attempt: int


# A Task opens every log and every stream; a Message is the whole of a stream without a task.
Event = Task | StatusUpdate | ArtifactUpdate | MessageAdded | AttemptStarted | Message
