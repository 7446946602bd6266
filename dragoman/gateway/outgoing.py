"""What of a request goes on to an agent: what was said, and nothing that lets anyone in here.

Headers never do: the client makes its own. In the metadata of a request, a message and its parts
whatever is named like a credential is left out, and so is what only the gateway reads.
"""

from typing import Any, cast

import msgspec

from dragoman.client.line import Line
from dragoman.engine.worker import Worker
from dragoman.gateway import hops, task_input
from dragoman.gateway.agent_keys import REQUESTER
from dragoman.gateway.naming import CALLERS_ID
from dragoman.model.message import Message, Metadata
from dragoman.model.operations import SendMessage, StreamMessage
from dragoman.security.secret_names import holds_secret, words

# What callers tell the gateway about a task; see `gateway.wishes`.
OWN = frozenset(
    {
        "agentId",
        "assignedAgentId",
        "title",
        "description",
        "timeoutSeconds",
        "timeoutMs",
        "minTrust",
        "maxPrice",
        "maxBudget",
        "policy",
        "race",
        "quorum",
        "sourceAgent",
        REQUESTER,
    }
)
# What proxies say of their caller, which an agent could take for what the gateway says.
_FORWARDED = ("x", "forwarded")
_DEPTH = 16


def outgoing(
    worker: Worker, message: Message, own_id: str, line: Line, *, wait: bool = False
) -> SendMessage:
    """Return the operation to forward a message with, and to wait for the whole answer if so.
    Raises `TaskFailed` if its time is over."""
    operation, card = worker.operation, line.card
    if task_input.is_input(message):
        skill = operation.metadata.get("skillId")
        message = task_input.suited(message, card, line.dialect, str(skill or ""))
    metadata = {name: value for name, value in operation.metadata.items() if name not in OWN}
    onward = hops.depart(clean(metadata), own_id, worker.deadline or None)
    changes: dict[str, Any] = {"metadata": _with_callers_id(worker, message)}
    # Most messages have none of these.
    if any(part.metadata for part in message.parts):
        changes["parts"] = [
            msgspec.structs.replace(part, metadata=clean(part.metadata)) if part.metadata else part
            for part in message.parts
        ]
    if message.extensions:
        declared = {extension.uri for extension in card.capabilities.extensions}
        changes["extensions"] = [uri for uri in message.extensions if uri in declared]
    message = msgspec.structs.replace(message, **changes)
    kind = StreamMessage if card.capabilities.streaming and not wait else SendMessage
    return kind(
        message=message,
        accepted_output_modes=operation.accepted_output_modes,
        wait=wait,
        metadata=onward,
    )


def _with_callers_id(worker: Worker, message: Message) -> Metadata:
    """Return the metadata of a message with the id that it had here, unless it keeps that."""
    said = worker.message
    metadata = clean(message.metadata) if message.metadata else {}
    if message.message_id == said.message_id:
        return metadata
    if hops.HOPS in worker.operation.metadata and isinstance(metadata.get(CALLERS_ID), str):
        # Another gateway wrote down what the first caller called it.
        return metadata
    return {**metadata, CALLERS_ID: said.message_id}


def clean(metadata: Metadata) -> Metadata:
    """Return metadata without what is named like a credential, however deep."""
    return cast("Metadata", _clean(metadata, 0))


def _clean(value: Any, depth: int) -> Any:
    if depth > _DEPTH:
        # Nobody means anything by that.
        return None
    if isinstance(value, dict):
        members = cast("dict[str, Any]", value)
        return {
            name: _clean(member, depth + 1)
            for name, member in members.items()
            if not _is_secret(name, member)
        }
    if isinstance(value, list):
        return [_clean(item, depth + 1) for item in cast("list[Any]", value)]
    return value


def _is_secret(name: str, value: Any) -> bool:
    if holds_secret(name, value, "metadata"):
        return True
    # Few names begin so, and each of a request is asked for.
    return name[:1] in "xX" and words(name)[:2] == _FORWARDED
