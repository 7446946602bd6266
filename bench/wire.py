"""The requests the bench sends, as finished bytes with a hole for a fresh id.

A server is spoken to in the dialect it answers with the least work: A2A 1.0 for Dragoman and
a2a-sdk, the method names of its own for fasta2a, whose 1.0 names are a translation on top.
"""

import itertools
import re
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dragoman.testing.load import HOLE, Request, fresh, rpc

TASK_ID = re.compile(rb'"id":\s*"([^"]+)"')


@dataclass(frozen=True)
class Dialect:
    """Method names and the spellings by which a reply is recognised."""

    send: str
    stream: str
    get: str
    list: str
    subscribe: str
    role: str
    completed: bytes
    # fasta2a answers a send as soon as the task is queued; there is no blocking send.
    blocking: bool = True


V1 = Dialect(
    send="SendMessage",
    stream="SendStreamingMessage",
    get="GetTask",
    list="ListTasks",
    subscribe="SubscribeToTask",
    role="ROLE_USER",
    completed=b"TASK_STATE_COMPLETED",
)
FASTA2A = Dialect(
    send="message/send",
    stream="message/stream",
    get="tasks/get",
    list="tasks/list",
    subscribe="tasks/resubscribe",
    role="user",
    completed=b'"state":"completed"',
    blocking=False,
)


def message(dialect: Dialect, skill: str, text: str, message_id: str) -> dict[str, Any]:
    return {
        "message": {
            "messageId": message_id,
            "role": dialect.role,
            "parts": [{"text": text}],
            "metadata": {"skillId": skill},
        }
    }


def sends(dialect: Dialect, skill: str, path: str = "/") -> Iterator[Request]:
    """Endless send requests, each with an id that its reply must contain."""
    params = message(dialect, skill, f"echo {HOLE}", HOLE)
    return fresh(rpc(dialect.send, params, path=path))


def gets(dialect: Dialect, ids: Sequence[bytes]) -> Iterator[Request]:
    """Endless get requests over the ids in turn."""
    requests = [(rpc(dialect.get, {"id": task.decode()}), task) for task in ids]
    return itertools.cycle(requests)


def lists(dialect: Dialect, size: int) -> Iterator[Request]:
    """Endless requests for the first page of `size` tasks."""
    return itertools.repeat((rpc(dialect.list, {"pageSize": size}), b'"totalSize"'))


def stream(dialect: Dialect, skill: str, text: str) -> bytes:
    """One streaming send with a fresh message id."""
    return rpc(dialect.stream, message(dialect, skill, text, secrets.token_hex(8)))


def subscription(dialect: Dialect, task: bytes) -> bytes:
    return rpc(dialect.subscribe, {"id": task.decode()})
