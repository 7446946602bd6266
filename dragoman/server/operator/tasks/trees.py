"""The tree that a task is in: what other agents were given for it, and for whom it was made.

A log says whom its task went to. Who waits for a task, its first message says, as its caller
claims; such a claim is believed only where the log of the one that waits says the same.
"""

from datetime import datetime

import msgspec
from msgspec import UNSET

from dragoman.model.children import Child, children
from dragoman.model.events import Event
from dragoman.model.identity import TaskId
from dragoman.model.money import MICRO
from dragoman.model.task import Task
from dragoman.server.operator.shapes import Node, OneTask, TaskItem, Tree, instant
from dragoman.server.operator.table import OperatorAsk, OperatorRows
from dragoman.server.operator.tasks.endpoints import find
from dragoman.server.operator.tasks.items import items_of, priced
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
        tree = await _tree_of(ask, above)
        if _has(tree, head.task_id):
            return Tree(id=head.task_id, top=tree)
    return Tree(id=head.task_id, top=await _tree_of(ask, head))


async def _tree_of(ask: OperatorAsk, head: TaskRow) -> Node:
    """Return a task with all below it that a viewer may see; of others, what the tasks above know
    of them."""
    return await _Trees(ask).node(head, Child(head.task_id, "", head.scope.agent), 0)


class _Trees:
    """One tree on its way."""

    def __init__(self, ask: OperatorAsk) -> None:
        self._site = ask.site
        self._store = ask.store
        self._viewer = ask.viewer
        self._left = _LARGEST
        # Others choose the ids of their tasks, and may choose one from above.
        self._shown: set[str] = set()

    async def node(self, head: TaskRow, edge: Child, depth: int) -> Node:
        """Return a task with all below it."""
        (item,) = await priced(self._site, [head], await items_of(self._store, [head]))
        self._shown.add(head.task_id)
        below: list[Node] = []
        given = await children_of(self._store, head)
        for child in given:
            self._left -= 1
            if self._left < 0 or depth >= _DEEPEST:
                break
            below.append(await self._below(child, depth + 1))
        if item.to and len(below) == len(given) > 0:
            # A gateway's task does what the agent's does that has it now.
            below[-1] = _as_heard(below[-1], item)
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


def _as_heard(node: Node, above: TaskItem) -> Node:
    """Return a task that a gateway gave away with what the gateway's own task says of it."""
    seconds = 0.0
    if above.state.is_terminal and above.made_at:
        began, ended = (datetime.fromisoformat(at) for at in (above.made_at, above.status_at))
        seconds = (ended - began).total_seconds()
    state = above.state if node.task is UNSET else UNSET
    return msgspec.structs.replace(node, state=state, seconds=seconds, cost=above.cost)


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
