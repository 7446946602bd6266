"""The requests the bench sends, as finished bytes with a hole for a fresh id.

A server is spoken to in the dialect it answers with the least work: A2A 1.0 for Dragoman and
a2a-sdk, the method names of its own for fasta2a, whose 1.0 names are a translation on top.
"""

import itertools
import json
import re
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

HOLE = "\0hole\0"
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


def request(method: str, params: dict[str, Any], *, hole: int = len(HOLE)) -> bytes:
    """One HTTP request; `hole` is the length of what will replace each hole."""
    envelope = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    # Without spaces, as the clients of both SDKs write it.
    body = json.dumps(envelope, separators=(",", ":"))
    body = body.replace(json.dumps(HOLE)[1:-1], HOLE)
    length = len(body) + body.count(HOLE) * (hole - len(HOLE))
    head = (
        "POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"A2A-Version: 1.0\r\nContent-Length: {length}\r\n\r\n"
    )
    return (head + body).encode()


def message(dialect: Dialect, skill: str, text: str, message_id: str) -> dict[str, Any]:
    return {
        "message": {
            "messageId": message_id,
            "role": dialect.role,
            "parts": [{"text": text}],
            "metadata": {"skillId": skill},
        }
    }


def sends(dialect: Dialect, skill: str) -> Iterator[tuple[bytes, bytes]]:
    """Endless send requests, each with an id that its reply must contain."""
    run = secrets.token_hex(4)
    whole = request(dialect.send, message(dialect, skill, f"echo {HOLE}", HOLE), hole=18)
    first, second, third = whole.split(HOLE.encode())
    for number in itertools.count():
        fresh = b"%s%010d" % (run.encode(), number)
        yield b"".join((first, fresh, second, fresh, third)), fresh


def gets(dialect: Dialect, ids: Sequence[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Endless get requests over the ids in turn."""
    requests = [(request(dialect.get, {"id": task.decode()}), task) for task in ids]
    return itertools.cycle(requests)


def lists(dialect: Dialect, size: int) -> Iterator[tuple[bytes, bytes]]:
    """Endless requests for the first page of `size` tasks."""
    return itertools.repeat((request(dialect.list, {"pageSize": size}), b'"totalSize"'))


def stream(dialect: Dialect, skill: str, text: str) -> bytes:
    """One streaming send with a fresh message id."""
    return request(dialect.stream, message(dialect, skill, text, secrets.token_hex(8)))


def subscription(dialect: Dialect, task: bytes) -> bytes:
    return request(dialect.subscribe, {"id": task.decode()})
