"""Requests and replies of megabytes: they are read and written off the loop, if there is memory."""

from collections.abc import Callable
from typing import Any

from dragoman.dialects.dialect import Dialect
from dragoman.model import operations as ops
from dragoman.service import Reply, TaskPage, TaskReply, off_loop, reserve

# Bytes that are taken for each of a large reply while it is written.
_MEMORY = 6


async def decoded(dialect: Dialect, method: str, params: Any) -> ops.Operation:
    """Return the operation that a large request asks for."""
    return await off_loop(dialect.decode_request, method, params)


async def encoded(size: int, write: Callable[[], bytes]) -> bytes:
    """Return a large reply as it is written."""
    reserve(_MEMORY * size)
    return await off_loop(write)


def size_of(reply: Reply) -> int:
    """Return about how many bytes a reply has, as far as that is known."""
    if type(reply) is TaskReply:
        return reply.reading.size
    if isinstance(reply, TaskPage):
        return sum([task.reading.size for task in reply.tasks])
    return 0
