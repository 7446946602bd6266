"""The tree that a task is in: what other agents were given for it, and for whom it was made.

A log says whom its task went to. Who waits for a task, its first message says, as its caller
claims; such a claim is believed only where the log of the one that waits says the same.
"""

import msgspec

from dragoman.model.children import Child, children
from dragoman.model.events import Event
from dragoman.model.identity import TaskId
from dragoman.model.money import MICRO
from dragoman.model.task import Task
from dragoman.server.operator.shapes import Node, OneTask, Tree, instant
from dragoman.server.operator.table import OperatorAsk, OperatorRows
from dragoman.server.operator.tasks.endpoints import find
from dragoman.server.operator.tasks.items import items_of
from dragoman.server.operator.viewing import Viewer
from dragoman.stores.interface import Store, TaskRow

ENDPOINTS = OperatorRows()
# Deeper than any call may go; tasks in one tree; tasks above one that are looked at.
_DEEPEST = 32
_LARGEST = 1000
_ABOVE = 16
_READ = 1000
# What of a log tells of other agents.
_GIVEN = (b'{"delegated"', b'{"forwarded"')


@ENDPOINTS.add("GET", "/tasks/{id}/tree", query=OneTask)
async def read_tree(ask: OperatorAsk) -> Tree:
    """Read the tree that a task is in."""
    head = await find(ask)
    for above in await _waiting_for(ask, head):
        tree = await tree_of(ask.store, ask.viewer, above)
        if _has(tree, head.task_id):
            return Tree(id=head.task_id, top=tree)
    return Tree(id=head.task_id, top=await tree_of(ask.store, ask.viewer, head))


async def tree_of(store: Store, viewer: Viewer, head: TaskRow) -> Node:
    """Return a task with all below it that a viewer may see; of others, id and address only."""
    return await _Trees(store, viewer).node(head, Child(head.task_id, "", head.scope.agent), 0)


class _Trees:
    """One tree on its way."""

    def __init__(self, store: Store, viewer: Viewer) -> None:
        self._store = store
        self._viewer = viewer
        self._left = _LARGEST
        # Others choose the ids of their tasks, and may choose one from above.
        self._shown: set[str] = set()

    async def node(self, head: TaskRow, edge: Child, depth: int) -> Node:
        """Return a task with all below it."""
        (item,) = await items_of(self._store, [head])
        self._shown.add(head.task_id)
        below: list[Node] = []
        given = await children_of(self._store, head)
        for child in given:
            self._left -= 1
            if self._left < 0 or depth >= _DEEPEST:
                break
            below.append(await self._below(child, depth + 1))
        is_cut = len(below) < len(given)
        known = {"agent": item.agent, "task": item, "children": below, "is_cut": is_cut}
        return msgspec.structs.replace(_place(edge), **known)

    async def _below(self, child: Child, depth: int) -> Node:
        if child.task_id in self._shown:
            return _place(child)
        asked = TaskId(child.task_id)
        heads = await self._viewer.tasks(self._store, limit=1, task_id=asked)
        return await self.node(heads[0], child, depth) if heads else _place(child)


def _place(child: Child) -> Node:
    return Node(
        id=child.task_id,
        agent=child.agent,
        url=child.url,
        at=instant(child.at),
        seconds=child.seconds,
        cost=child.cost / MICRO,
    )


async def children_of(store: Store, head: TaskRow) -> list[Child]:
    """Return the tasks that other agents were given for one."""
    found: list[Event] = []
    after = 0
    while events := await store.read(head.number, after=after, limit=_READ, artifacts=False):
        found += [one.event for one in events if one.body.startswith(_GIVEN)]
        after = events[-1].seq
    return children(found)


async def _waiting_for(ask: OperatorAsk, head: TaskRow) -> list[TaskRow]:
    """Return the tasks that are said to wait for one, the topmost first."""
    first = await ask.store.read(head.number, after=0, limit=1)
    opening = first[0].event if first else None
    if not isinstance(opening, Task) or not opening.history:
        return []
    found: list[TaskRow] = []
    for task_id in opening.history[0].reference_task_ids[-_ABOVE:]:
        heads = await ask.viewer.tasks(ask.store, limit=1, task_id=TaskId(task_id))
        found += [one for one in heads if one.task_id != head.task_id]
    return found


def _has(node: Node, task_id: str) -> bool:
    return node.id == task_id or any(_has(child, task_id) for child in node.children)
