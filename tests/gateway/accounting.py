"""Errands as a gateway writes them, for tests of what is told about them."""

from msgspec.structs import replace

from dragoman.model.errand import Errand
from dragoman.model.identity import Principal, Scope
from dragoman.model.money import MICRO
from dragoman.model.task import TaskState
from dragoman.stores.sqlite import SQLiteStore
from dragoman.testing.stores import addition, creation, head_of, status, write

TEN = 10 * MICRO


def scope_of(owner: str) -> Scope:
    return Scope("gateway", "", owner)


async def begin(
    store: SQLiteStore, task_id: str, price: int = TEN, requester: str = "alice", at: int = 1000
) -> None:
    """Begin a task of the agent `a1`, which is bob's."""
    errand = Errand(
        agent="a1",
        requester=Principal.read(requester),
        payee=Principal.read("bob"),
        price=price,
        held=price,
    )
    await write(store, replace(creation(task_id, scope=scope_of(requester), at=at), errand=errand))


async def end(
    store: SQLiteStore,
    task_id: str,
    state: TaskState = TaskState.COMPLETED,
    requester: str = "alice",
    at: int = 2000,
) -> None:
    """End it."""
    head = await head_of(store, task_id, scope_of(requester))
    await write(store, addition(head, status(task_id, state, at), state=state, at=at))


async def done(store: SQLiteStore, task_id: str, price: int = TEN, at: int = 2000) -> None:
    """Have a task done."""
    await begin(store, task_id, price, at=at)
    await end(store, task_id, at=at)
