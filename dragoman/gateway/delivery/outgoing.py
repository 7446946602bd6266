"""Which parts of a request go on to an agent: the message, but no credential.

Headers are never forwarded: the client makes its own. From the metadata of a request, a message and
its parts, every member named like a credential is left out, and so is what only the gateway reads.
"""

from typing import Any, cast

import msgspec

from dragoman.client.agent_connection import AgentConnection
from dragoman.engine.running.worker import Worker
from dragoman.gateway.delivery import task_input
from dragoman.gateway.hops import RECORD
from dragoman.gateway.registry.agent_keys import REQUESTER
from dragoman.gateway.routing import hop_limit
from dragoman.model.message import Message, Metadata
from dragoman.model.operations import SendMessage, StreamMessage
from dragoman.model.request_metadata import CALLERS_ID, HOPS
from dragoman.security.secret_names import holds_secret, words

# Routing options and other members that only the gateway reads.
GATEWAY_ONLY = frozenset(
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
        RECORD,
    }
)
# Members that proxies add about their caller: an agent could take them for the gateway's.
_FORWARDED = ("x", "forwarded")
_DEPTH = 16


def outgoing(
    worker: Worker,
    message: Message,
    gateway_id: str,
    connection: AgentConnection,
    *,
    wait: bool = False,
) -> SendMessage:
    """Return the operation that forwards a message; `wait`: for the whole answer. Raises
    `TaskFailed` if the task's deadline has passed."""
    operation, card = worker.operation, connection.card
    if task_input.is_input(message):
        skill = operation.metadata.get("skillId")
        message = task_input.adapted(message, card, connection.dialect, str(skill or ""))
    metadata = {
        name: value for name, value in operation.metadata.items() if name not in GATEWAY_ONLY
    }
    ends = worker.deadline or None
    onward = hop_limit.depart(clean(metadata), gateway_id, ends, worker.clock.now)
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
    """Return the metadata of a message with its caller's id, unless the message keeps that id."""
    callers_id = worker.message.message_id
    metadata = clean(message.metadata) if message.metadata else {}
    if message.message_id == callers_id:
        return metadata
    if HOPS in worker.operation.metadata and isinstance(metadata.get(CALLERS_ID), str):
        # Another gateway before this one recorded the first caller's id.
        return metadata
    return {**metadata, CALLERS_ID: callers_id}


def clean(metadata: Metadata) -> Metadata:
    """Return metadata without members named like a credential, at any depth."""
    cleaned: Metadata = _clean(metadata, 0)
    return cleaned


def _clean(value: Any, depth: int) -> Any:
    if depth > _DEPTH:
        # No agent reads metadata this deep.
        return None
    if isinstance(value, dict):
        members = cast("dict[str, Any]", value)
        return {
            # Most members are texts, which stay as they are.
            name: member if type(member) is str and depth < _DEPTH else _clean(member, depth + 1)
            for name, member in members.items()
            if not _is_secret(name, member)
        }
    if isinstance(value, list):
        return [_clean(item, depth + 1) for item in cast("list[Any]", value)]
    return value


def _is_secret(name: str, value: Any) -> bool:
    if holds_secret(name, value, "metadata"):
        return True
    # The first letter is checked first: this runs for every member of a request.
    return name[:1] in "xX" and words(name)[:2] == _FORWARDED
