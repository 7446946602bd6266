"""Tasks of all agents and owners: found by filters, shown one by one, canceled."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from dragoman.dialects.v1_0 import V1_0
from dragoman.engine.reading import read_task
from dragoman.errors import InvalidParams, TaskNotFound
from dragoman.model import operations as ops
from dragoman.model.events import AttemptStarted, DeadlineSet, Forwarded
from dragoman.model.identity import ContextId
from dragoman.model.requests import open_requests
from dragoman.server.operator.inbox import inbox_item
from dragoman.server.operator.pages import Pages
from dragoman.server.operator.shapes import (
    OneTask,
    StateQuery,
    TaskAt,
    TaskItems,
    TaskSearch,
    TaskView,
    instant,
)
from dragoman.server.operator.table import OperatorAsk, OperatorRows
from dragoman.server.operator.tasks.deliveries import find_but_deliveries, without_deliveries
from dragoman.server.operator.tasks.items import items_of, place_of, priced
from dragoman.server.operator.tasks.words import agent_mark, search, words_of
from dragoman.service import Call, TaskReply
from dragoman.stores.interface import Survey, TaskRow

ENDPOINTS = OperatorRows()
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Events at the beginning and at the end of a log that say how the task is doing.
_FIRST = 20
_LATEST = 500
_TOLD = (b'{"attemptStarted"', b'{"deadlineSet"', b'{"forwarded"')


def given(value: Any) -> Any:
    """Return a parameter, or None if it was left out."""
    return None if value is UNSET else value


async def find(ask: OperatorAsk) -> TaskRow:
    """Return the task in the path. That of another owner is in the audit log."""
    query: OneTask = ask.query
    head = await ask.viewer.task(
        ask.store,
        ask.path["id"],
        agent=query.agent,
        owner=given(query.owner),
        tenant=given(query.tenant),
    )
    if head.scope.principal != ask.request.caller.principal:
        ask.record_read("console.task.read", f"{head.scope.agent} {head.task_id}")
    return head


@ENDPOINTS.add("GET", "/tasks", query=TaskSearch)
async def find_tasks(ask: OperatorAsk) -> TaskItems:
    """Find tasks by filters, the latest status first.

    By words, or by the agent that a gateway gave them to, the newest task is first."""
    query: TaskSearch = ask.query
    pages = Pages(ask, "tasks")
    after = await pages.start()
    if ask.viewer.role != "caller":
        ask.record_read("console.task.list", given(query.tenant) or "")
    words = words_of(query.text)
    wanted = [*words, agent_mark(query.to)] if query.to else words
    is_without = query.deliveries == "hide" and ask.site.is_delivery is not None
    survey = _survey(ask, query.limit + (not wanted), after)
    shown, token, is_partial = list[TaskRow](), "", False
    if survey is None or (query.text and not words):
        # None can be seen, or the text has no word.
        pass
    elif wanted:
        shown, below, is_partial = await search(ask.store, survey, wanted)
        shown = await without_deliveries(ask.site, shown) if is_without else shown
        token = pages.token((0, below)) if below else ""
    elif is_without:
        shown, place = await find_but_deliveries(ask.site, replace(survey, limit=query.limit))
        token = pages.token(place) if place else ""
    else:
        heads = await ask.store.survey(survey)
        shown, rest = heads[: query.limit], heads[query.limit :]
        token = pages.token(place_of(shown[-1])) if rest else ""
    items = await priced(ask.site, shown, await items_of(ask.store, shown))
    return TaskItems(items=items, next_page_token=token, is_partial=is_partial)


def _survey(ask: OperatorAsk, limit: int, after: tuple[int, int] | None) -> Survey | None:
    query: TaskSearch = ask.query
    return ask.viewer.survey(
        limit=limit,
        agent=query.agent,
        owner=given(query.owner),
        tenant=given(query.tenant),
        state=given(query.state),
        context_id=ContextId(query.context),
        status_since=milliseconds(query.since, "since") or 0,
        status_before=milliseconds(query.until, "until"),
        after=after,
    )


@ENDPOINTS.add("GET", "/tasks/{id}", query=OneTask)
async def view_task(ask: OperatorAsk) -> TaskView:
    """Show a task: where it stands, and what it waits for."""
    return await _view(ask, await find(ask))


async def _view(ask: OperatorAsk, head: TaskRow) -> TaskView:
    (item,) = await priced(ask.site, [head], await items_of(ask.store, [head]))
    attempt, deadline, why = 1, 0, ""
    # The deadline is among the first events; earlier attempts than these are seldom.
    last = head.standing.last_seq
    for after, limit in ((0, _FIRST), (max(_FIRST, last - _LATEST), _LATEST)):
        for recorded in await ask.store.read(head.number, after=after, limit=limit):
            # Judged by its bytes: most of a log is not decoded.
            if recorded.body.startswith(_TOLD):
                event = recorded.event
                if isinstance(event, AttemptStarted):
                    attempt = event.attempt
                elif isinstance(event, DeadlineSet):
                    deadline = event.at
                elif isinstance(event, Forwarded):
                    why = event.why or why
    has_left = head.standing.state.is_interrupted and not await ask.store.is_live(head.holder)
    return TaskView(
        task=item,
        has_process_left=has_left,
        is_ended=head.standing.state.is_terminal,
        attempt=attempt,
        deadline=instant(deadline),
        why=why,
        requests=[
            inbox_item(head, one, words=item.words, to=item.to)
            for one in await _requests(ask, head)
        ],
    )


async def _requests(ask: OperatorAsk, head: TaskRow) -> list[Any]:
    if not head.standing.state.is_interrupted:
        return []
    upto = head.standing.last_seq
    reading = await read_task(ask.store, head.number, upto=upto, artifacts=False)
    return [] if reading is None else list(open_requests(reading.task.status))


@ENDPOINTS.add("GET", "/tasks/{id}/state", query=StateQuery)
async def read_task_state(ask: OperatorAsk) -> TaskAt:
    """Read the task as of a position, or as it is, as A2A 1.0 has it."""
    head = await find(ask)
    upto = min(ask.query.at or head.standing.last_seq, head.standing.last_seq)
    reading = await read_task(ask.store, head.number, upto=upto)
    if reading is None:
        raise TaskNotFound(taskId=head.task_id)
    operation = ops.GetTask(task_id=head.task_id, tenant=head.scope.tenant)
    body = V1_0.encode_reply(operation, TaskReply(reading))
    return TaskAt(position=upto, task=msgspec.Raw(body))


@ENDPOINTS.add("POST", "/tasks/{id}/cancel", query=OneTask, scope="tasks:write")
async def cancel_task(ask: OperatorAsk) -> TaskView:
    """Cancel a task, in its owner's name."""
    head = await find(ask)
    service = ask.site.service_of(head.scope.agent)
    if service is None:
        raise TaskNotFound(taskId=head.task_id)
    ask.record("console.task.cancel", f"{head.scope.agent} {head.task_id}")
    operation = ops.CancelTask(task_id=head.task_id, tenant=head.scope.tenant)
    # By the service that callers have: it knows the rules.
    await service.answer(Call(operation=operation, caller=head.scope.caller()))
    return await _view(ask, await find(ask))


def milliseconds(text: str, field: str) -> int | None:
    """Return an instant of a query; None: there is none."""
    if not text:
        return None
    try:
        found = datetime.fromisoformat(text)
        if found.tzinfo is None:
            raise ValueError
        # A finer one than the store has rounds up to the next.
        return -(-(found - _EPOCH) // timedelta(milliseconds=1))
    except (ValueError, OverflowError):
        raise InvalidParams("is an instant of RFC 3339 with its zone", field=field) from None
