"""Who and what there is most of among the latest tasks: agents, callers, skills, errors.

They are counted by reading, so that a task costs nothing more when it is made. What was counted
holds for some seconds, for all who look.
"""

import time
from collections import Counter
from collections.abc import Mapping
from datetime import timedelta

from dragoman.model.task import TaskState
from dragoman.server.operator.shapes import TaskItem, TopItem, TopLists, TopQuery, instant
from dragoman.server.operator.table import OperatorAsk, OperatorRows
from dragoman.server.operator.tasks.deliveries import without_deliveries
from dragoman.server.operator.tasks.items import items_of, priced

ENDPOINTS = OperatorRows()
# Tasks that are counted, how many together, and how many of each kind are told.
_COUNTED = 1000
_AT_ONCE = 200
_TOLD = 5
# Seconds for which what was counted holds.
HOLDS = 10.0
_MINUTE = int(timedelta(minutes=1) / timedelta(milliseconds=1))
_BAD = frozenset({TaskState.FAILED, TaskState.REJECTED})


@ENDPOINTS.add("GET", "/top", query=TopQuery, is_for_operators=True)
async def read_top_lists(ask: OperatorAsk) -> TopLists:
    """Read who and what there is most of among the latest tasks.

    At most 1,000 of the last minutes are counted."""
    query: TopQuery = ask.query
    now = time.monotonic()
    kept = ask.live.top_lists.get(query.minutes)
    if kept is None or now - kept[0] > HOLDS:
        # Before it is counted: others that ask meanwhile get what was counted before, if anything.
        if kept is not None:
            ask.live.top_lists[query.minutes] = now, kept[1]
        kept = ask.live.top_lists[query.minutes] = now, await _counted(ask, query.minutes)
    return kept[1]


async def _counted(ask: OperatorAsk, minutes: int) -> TopLists:
    since = time.time_ns() // 1_000_000 - minutes * _MINUTE
    found: list[TaskItem] = []
    after: tuple[int, int] | None = None
    while len(found) < _COUNTED:
        heads = await ask.viewer.tasks(ask.store, limit=_AT_ONCE, status_since=since, after=after)
        if not heads:
            break
        after = heads[-1].standing.status_at, heads[-1].number
        heads = await without_deliveries(ask.site, heads)
        found += await priced(ask.site, heads, await items_of(ask.store, heads))
    return TopLists(
        since=instant(since),
        tasks=len(found),
        is_cut=len(found) >= _COUNTED,
        agents=_top(found, {one.id: one.to or one.agent for one in found}),
        callers=_top(found, {one.id: _caller(one) for one in found}),
        skills=_top(found, {one.id: one.skill for one in found}),
        errors=_top([one for one in found if one.error], {one.id: one.error for one in found}),
    )


def _caller(item: TaskItem) -> str:
    return f"{item.owner} @{item.tenant}" if item.tenant else item.owner


def _top(items: list[TaskItem], names: Mapping[str, str]) -> list[TopItem]:
    """Return those names that most tasks have, with how many failed and what they cost."""
    tasks, failed, costs = Counter[str](), Counter[str](), dict[str, float]()
    latest: dict[str, str] = {}
    for item in items:
        name = names[item.id]
        tasks[name] += 1
        failed[name] += item.state in _BAD
        costs[name] = costs.get(name, 0.0) + item.cost
        latest.setdefault(name, item.id)
    return [
        TopItem(name=name, tasks=count, failed=failed[name], cost=costs[name], task_id=latest[name])
        for name, count in tasks.most_common(_TOLD)
        if name
    ]
