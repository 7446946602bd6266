"""The receivers of a task's events: the push configurations that callers create, read and delete.

Posting is not done here: a `PushRegistry` is told which receivers come and go.
"""

import asyncio
from typing import Protocol

import msgspec

from dragoman.engine.log import TaskLog
from dragoman.errors import (
    A2AError,
    HoldRefused,
    InsufficientCredits,
    InvalidParams,
    Overloaded,
    PushConfigNotFound,
    PushNotSupported,
    StoreFull,
    StoreReadOnly,
    StoreRefused,
    StoreUnavailable,
    TaskNotFound,
)
from dragoman.model import operations as ops
from dragoman.model.identity import Scope, TaskId, new_id
from dragoman.model.money import credits_text
from dragoman.model.push import PushConfig
from dragoman.service import Nothing, PushPage
from dragoman.stores.interface import Push, Store, TaskRow

MAX_PUSHES = 10
# Seconds until a store that was away is read again.
_AWAY_PAUSE = 1.0
Operation = ops.CreatePush | ops.GetPush | ops.ListPush | ops.DeletePush

# Seconds after which what a server refuses that only reads may be tried again.
_READ_ONLY = 30


class PushRegistry(Protocol):
    """Posts a task's events to the receivers that its caller named."""

    def check(self, config: PushConfig) -> None:
        """Raise `InvalidParams` if nothing would ever be posted there."""
        ...

    def add(self, push: Push) -> None:
        """Begin to deliver."""
        ...

    def drop(self, push: Push) -> None:
        """Deliver no more."""
        ...


class Receivers:
    """The receivers of an agent's tasks."""

    def __init__(self, store: Store, postings: PushRegistry | None) -> None:
        self._store = store
        # None: push is off.
        self._postings = postings

    async def answer(self, scope: Scope, operation: Operation) -> PushConfig | PushPage | Nothing:
        """Return the one reply to an operation on a task's receivers."""
        if isinstance(operation, ops.CreatePush):
            self.check(operation.config)
        elif self._postings is None:
            raise PushNotSupported
        head = await self._store.head(scope, operation.task_id)
        if head is None:
            raise TaskNotFound(taskId=operation.task_id)
        match operation:
            case ops.CreatePush():
                return await self.put(head, operation.config)
            case ops.GetPush():
                for config in await self._configs(head):
                    if operation.config_id in ("", config.id):
                        return config
                facts = {"configId": operation.config_id} if operation.config_id else {}
                raise PushConfigNotFound(taskId=operation.task_id, **facts)
            case ops.ListPush():
                configs = await self._configs(head)
                rest = [config for config in configs if config.id > operation.page_token]
                page = rest[: operation.page_size]
                return PushPage(page, page[-1].id if len(rest) > len(page) else "")
            case ops.DeletePush():
                return await self._drop(head, operation.config_id)

    def check(self, config: PushConfig) -> PushRegistry:
        """Raise `PushNotSupported` or `InvalidParams` if nothing would ever be posted there."""
        if self._postings is None:
            raise PushNotSupported
        self._postings.check(config)
        return self._postings

    async def put(self, head: TaskRow, config: PushConfig) -> PushConfig:
        """Store a receiver for the events of a task from here on, and begin to deliver."""
        postings = self.check(config)
        config = with_ids(config, head.task_id)
        existing = await self._store.pushes(head.number)
        try:
            push = await self._store.put_push(
                head.number, config, head.standing.last_seq, most=MAX_PUSHES
            )
        except StoreRefused as error:
            raise refused(error) from None
        if push is None:
            raise InvalidParams(f"a task has at most {MAX_PUSHES} of these", field="id")
        for before in existing:
            if before.config.id == config.id:
                postings.drop(before)
        postings.add(push)
        return config

    async def add_repeated(self, scope: Scope, task_id: TaskId, config: PushConfig) -> None:
        """Store the receiver that a repeated message names, unless the task has it."""
        head = await self._store.head(scope, task_id)
        if head is None:
            return
        for push in await self._store.pushes(head.number):
            same = msgspec.structs.replace(config, id=push.config.id, task_id=task_id)
            if push.config == same:
                return
        await self.put(head, config)

    async def deliver(self, log: TaskLog) -> None:
        """Begin to deliver a task whose first write carries its receivers, if there comes one."""
        try:
            await log.durable(1)
        except StoreRefused:
            return
        while self._postings is not None:
            try:
                for push in await self._store.pushes(log.number):
                    self._postings.add(push)
            except StoreUnavailable:
                # They are ours, so no other process looks after them.
                await asyncio.sleep(_AWAY_PAUSE)
            else:
                return

    async def _drop(self, head: TaskRow, config_id: str) -> Nothing:
        existing = await self._store.pushes(head.number)
        try:
            await self._store.drop_push(head.number, config_id)
        except StoreRefused as error:
            raise refused(error) from None
        for push in existing:
            if push.config.id == config_id and self._postings is not None:
                self._postings.drop(push)
        return Nothing()

    async def _configs(self, head: TaskRow) -> list[PushConfig]:
        return [push.config.masked() for push in await self._store.pushes(head.number)]


def refused(error: StoreRefused) -> A2AError:
    """Return the error that a caller gets for a write that did not happen."""
    if isinstance(error, HoldRefused):
        balance, needed = credits_text(error.balance), credits_text(error.needed)
        return InsufficientCredits(balance=balance, needed=needed)
    if isinstance(error, StoreFull):
        return Overloaded("There is no space left to store tasks", reason="STORAGE_FULL")
    if isinstance(error, StoreReadOnly):
        return Overloaded(
            "This server only reads at present", reason="READ_ONLY", retryAfter=str(_READ_ONLY)
        )
    if isinstance(error, StoreUnavailable):
        return Overloaded("The store does not answer at present", reason="STORE_UNAVAILABLE")
    return Overloaded()


def with_ids(config: PushConfig, task_id: TaskId) -> PushConfig:
    """Return a configuration with its ids. In 0.x, whose callers know only one, a second one
    without an id replaces the first."""
    chosen = config.id or (new_id() if config.version == "1.0" else task_id)
    return msgspec.structs.replace(config, id=chosen, task_id=task_id)
