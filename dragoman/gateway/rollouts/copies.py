"""What new versions and checks of owners are sent, and what they answer. Pure."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from dragoman.engine.running.replay import Replay
from dragoman.gateway.delivery.outgoing import GATEWAY_ONLY
from dragoman.gateway.rollouts.comparison import answer_parts
from dragoman.model import operations as ops
from dragoman.model.identity import ContextId, MessageId, TaskId, made_at
from dragoman.model.message import Json, Message, Metadata, Part, Role
from dragoman.model.request_metadata import DEADLINE
from dragoman.model.task import Task, TaskState


def copy_of(replay: Replay, name: str) -> ops.SendMessage:
    """Return what a task began with, as a message of its own. What only the gateway reads is left
    out, or a caller could say where its copy goes."""
    began = replay.began
    message = replace(
        began.message,
        message_id=MessageId(name),
        task_id=TaskId(""),
        context_id=ContextId(""),
        reference_task_ids=[],
        metadata=_for_agents(began.message.metadata),
    )
    return ops.SendMessage(
        message=message,
        accepted_output_modes=began.accepted_output_modes,
        metadata=_for_agents(began.metadata),
    )


def _for_agents(metadata: Metadata) -> Metadata:
    return {
        name: value
        for name, value in metadata.items()
        if name not in GATEWAY_ONLY and name != DEADLINE
    }


def question(name: str, asked: Message, before: Task | None, after: Task) -> Message:
    """Return what the owner's check is asked."""
    data: Json = {
        "asked": _said([asked.parts]),
        "before": None if before is None else _said(answer_parts(before)),
        "after": _said(answer_parts(after)),
    }
    return Message(MessageId(name), Role.USER, [Part(data=data)])


def _said(pieces: Sequence[Sequence[Part]]) -> Json:
    parts = [part for piece in pieces for part in piece]
    texts = [part.text for part in parts if isinstance(part.text, str)]
    return {
        "text": "\n".join(texts),
        "data": [part.data for part in parts if part.data is not msgspec.UNSET],
        "files": sum(isinstance(part.raw, bytes) or isinstance(part.url, str) for part in parts),
    }


def verdict(check: Task) -> bool | None:
    """Return what a check says; None: neither yes nor no."""
    if check.status.state is not TaskState.COMPLETED:
        return None
    for part in (part for parts in answer_parts(check) for part in parts):
        value: Any = part.text if isinstance(part.text, str) else part.data
        if isinstance(value, dict):
            value = cast("dict[str, Any]", value).get("agrees")
        if isinstance(value, str):
            value = {"yes": True, "true": True, "no": False, "false": False}.get(
                value.strip().lower()
            )
        if isinstance(value, bool):
            return value
    return None


def reason_of(shadow: Task) -> str:
    if shadow.status.state.is_interrupted:
        return "it asked back"
    message = shadow.status.message
    return message.text if message is not None else shadow.status.state.value


def milliseconds(task: Task) -> int:
    """Return the milliseconds that a copy took: our ids begin with the time."""
    ended = int(datetime.fromisoformat(task.status.timestamp).timestamp() * 1000)
    return max(ended - (made_at(task.id) or ended), 0)
