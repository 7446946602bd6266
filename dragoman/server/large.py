"""Requests and replies of megabytes: they are read and written off the loop, if there is memory."""

from typing import Any

from dragoman.dialects.dialect import Dialect
from dragoman.model import operations as ops
from dragoman.server.request import Request
from dragoman.service import LARGE_BYTES, Call, Reply, TaskPage, TaskReply, off_loop, reserve

# Bytes that are taken for each of a large reply while it is written.
_MEMORY = 6


async def decoded(request: Request, dialect: Dialect, method: str, params: Any) -> ops.Operation:
    """Return the operation that a request asks for."""
    if request.size > LARGE_BYTES:
        return await off_loop(dialect.decode_request, method, params)
    return dialect.decode_request(method, params)


async def encoded(call: Call, dialect: Dialect, operation: ops.Operation, reply: Reply) -> bytes:
    """Return a reply as the dialect writes it. It may repeat the call."""
    size = max(call.size, _size(reply))
    if size <= LARGE_BYTES:
        return dialect.encode_reply(operation, reply)
    reserve(_MEMORY * size)
    return await off_loop(dialect.encode_reply, operation, reply)


def _size(reply: Reply) -> int:
    """Return about how many bytes a reply has, as far as that is known."""
    if isinstance(reply, TaskReply):
        return reply.reading.size
    if isinstance(reply, TaskPage):
        return sum([task.reading.size for task in reply.tasks])
    return 0
