"""Whether a message becomes a task or is only answered, where the agent's code may do either."""

import asyncio

import msgspec

from dragoman.model.message import Message


# A struct, because one is made for each message to such code.
class ReplyDecision(msgspec.Struct, eq=False):
    """One decision, made by the code of one message, and the callers that wait for it."""

    # A struct would print its fields, and with them what the agent says.
    __repr__ = object.__repr__

    # Whether it is decided that there is a task.
    has_task: bool = False
    _is_made: bool = False
    _reply: Message | None = None
    # Why there is neither a task nor a reply.
    _why_neither: Exception | None = None
    _waiting: list[asyncio.Future[None]] = []

    async def made(self) -> Message | None:
        """Wait for it; return the reply if there is no task. Raises why there is neither."""
        if not self._is_made:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            await future
        if self._why_neither is not None:
            raise self._why_neither
        return self._reply

    def make(self, reply: Message | None = None) -> None:
        """Decide for a reply, or without one for a task."""
        self._is_made = True
        self._reply = reply
        self.has_task = reply is None
        for future in self._waiting:
            if not future.done():
                future.set_result(None)

    def refuse(self, why_neither: Exception) -> None:
        """Decide that there is neither."""
        self.make()
        self.has_task, self._why_neither = False, why_neither


# Of code that makes a task of every message; never changed.
A_TASK = ReplyDecision(has_task=True, _is_made=True)
