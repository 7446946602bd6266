"""The tree that a task is in: what other agents were given for it, and for whom it was made.

A log says whom its task went to. Who waits for a task, its first event says, as its caller claims:
an agent names its task there, and a gateway itself. Which task of a gateway it is, is looked up by
what gateways gave away. A claim is believed only where the log of the one that waits says the same;
where that is in another store, the claim is told as one.
"""

from datetime import datetime
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from dragoman.model.children import DEEPEST, Child, children
from dragoman.model.events import Event, TraceJoined
from dragoman.model.identity import TaskId
from dragoman.model.money import MICRO
from dragoman.model.request_metadata import CALLERS_ID, claimed_hops
from dragoman.model.task import Task, TaskState
from dragoman.server.operator.shapes import Node, OneTask, Origin, TaskItem, Tree, instant
from dragoman.server.operator.table import OperatorAsk, OperatorRows
from dragoman.server.operator.tasks.endpoints import find
from dragoman.server.operator.tasks.items import items_of, priced
from dragoman.server.operator.tasks.words import search, task_mark
from dragoman.server.operator.viewing import Viewer
from dragoman.stores.interface import Store, TaskRow

ENDPOINTS = OperatorRows()
# Tasks in one tree; tasks above one that are looked at.
_LARGEST = 1000
_ABOVE = 16
_READ = 1000
# Tasks of one id, of several agents and owners, that are looked at.
_NAMESAKES = 4
# A gateway's task under way may be indexed before its agent named a task: of the latest of each of
# these states as many are looked at, and of each as many events.
_UNDER_WAY = (TaskState.WORKING, TaskState.INPUT_REQUIRED, TaskState.AUTH_REQUIRED)
_LATEST = 200
_FIRST = 20
# A caller that is an agent says how many agents the task passed; references of others may be any.
_DEPTH = "depth"
# What of a log tells of other agents.
_GIVEN = (b'{"delegated"', b'{"forwarded"')


@ENDPOINTS.add("GET", "/tasks/{id}/tree", query=OneTask)
async def read_tree(ask: OperatorAsk) -> Tree:
    """Read the tree that a task is in."""
    head = await find(ask)
    above = await _waiting_for(ask, head)
    # All above may be more than one tree shows.
    for top in reversed([head, *above]):
        tree = await _tree_of(ask, top)
        if top is head or _has(tree, head.task_id):
            return Tree(id=head.task_id, top=tree, origin=await _origin(ask, top))
    raise AssertionError("a task is in its own tree")


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
        self._shown: set[int] = set()

    async def node(self, head: TaskRow, edge: Child, depth: int) -> Node:
        """Return a task with all below it."""
        (item,) = await priced(self._site, [head], await items_of(self._store, [head]))
        self._shown.add(head.number)
        below: list[Node] = []
        given = await children_of(self._store, head)
        for child in given:
            self._left -= 1
            if self._left < 0 or depth >= DEEPEST:
                break
            below.append(await self._below(child, depth + 1))
        if item.to and len(below) == len(given) > 0:
            # A gateway's task does what the agent's does that has it now.
            below[-1] = _as_heard(below[-1], item)
        is_cut = len(below) < len(given)
        known = {"agent": item.agent, "task": item, "children": below, "is_cut": is_cut}
        return msgspec.structs.replace(_place(edge), **known)

    async def _below(self, child: Child, depth: int) -> Node:
        heads = await _namesakes(self._viewer, self._store, child.task_id)
        head = next((one for one in heads if one.number not in self._shown), None)
        return await self.node(head, child, depth) if head is not None else _place(child)


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


async def _namesakes(viewer: Viewer, store: Store, task_id: str) -> list[TaskRow]:
    """Return the tasks of an id that a viewer may see."""
    return await viewer.tasks(store, limit=_NAMESAKES, task_id=TaskId(task_id))


async def _waiting_for(ask: OperatorAsk, head: TaskRow) -> list[TaskRow]:
    """Return the tasks that wait for one, the nearest first."""
    found = [head]
    while len(found) <= DEEPEST:
        above = await _caller_of(ask, found[-1])
        # Ids are chosen by others: they may make a circle.
        if above is None or any(one.number == above.number for one in found):
            break
        found.append(above)
    return found[1:]


async def _caller_of(ask: OperatorAsk, head: TaskRow) -> TaskRow | None:
    """Return the task that had another one begun, where both logs say so."""
    opening = await _opening(ask.store, head)
    if opening is None:
        return None
    for task_id in reversed(_references(opening)):
        for one in await _namesakes(ask.viewer, ask.store, task_id):
            if one.number != head.number and await _gave(ask.store, one, head):
                return one
    return await _gateways_task(ask, head) if claimed_hops(opening.metadata) else None


async def _gateways_task(ask: OperatorAsk, head: TaskRow) -> TaskRow | None:
    """Return the task for which a gateway gave one to its agent."""
    survey = ask.viewer.survey(limit=_NAMESAKES)
    assert survey is not None, "nothing is asked for that a viewer may not see"
    found, _, _ = await search(ask.store, survey, [task_mark(head.task_id)])
    for state in _UNDER_WAY if not found else ():
        some = await ask.viewer.tasks(ask.store, limit=_LATEST, state=state)
        logs = await ask.store.read_many([(one.number, 0) for one in some], limit=_FIRST)
        found += [
            one
            for one, log in zip(some, logs, strict=True)
            if any(_is_given(recorded.body, head.task_id) for recorded in log)
        ]
    for one in found:
        if one.number != head.number and await _gave(ask.store, one, head):
            return one
    return None


def _is_given(body: bytes, task_id: str) -> bool:
    """Tell whether an event may name a task as that of an agent; most are not decoded."""
    return body.startswith(_GIVEN) and task_id.encode() in body


async def _gave(store: Store, above: TaskRow, head: TaskRow) -> bool:
    return any(child.task_id == head.task_id for child in await children_of(store, above))


async def _opening(store: Store, head: TaskRow) -> Task | None:
    (log,) = await store.read_many([(head.number, 0)], limit=1)
    first = log[0].event if log else None
    return first if isinstance(first, Task) else None


def _references(opening: Task) -> list[str]:
    """Return the tasks that its first message refers to, the nearest last."""
    return opening.history[0].reference_task_ids[-_ABOVE:] if opening.history else []


async def _origin(ask: OperatorAsk, top: TaskRow) -> Origin | UnsetType:
    """Return who ordered a task, as far as only its caller says."""
    log = await ask.store.read(top.number, after=0, limit=2)
    opening = log[0].event if log else None
    if not isinstance(opening, Task) or not opening.history:
        return UNSET
    depth: Any = opening.metadata.get(_DEPTH)
    tasks = _references(opening) if type(depth) is int and depth > 1 else []
    gateways = claimed_hops(opening.metadata)
    if not tasks and not gateways:
        return UNSET
    message_id: Any = opening.history[0].metadata.get(CALLERS_ID)
    joined = log[1].event if len(log) > 1 else None
    return Origin(
        gateways=gateways,
        task_ids=tasks,
        message_id=message_id if isinstance(message_id, str) else "",
        trace=joined.parent.split("-")[1] if isinstance(joined, TraceJoined) else "",
    )


def _has(node: Node, task_id: str) -> bool:
    return node.id == task_id or any(_has(child, task_id) for child in node.children)
