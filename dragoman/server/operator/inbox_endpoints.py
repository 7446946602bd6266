"""The inbox as endpoints."""

from collections.abc import Sequence

from msgspec import UNSET

from dragoman.errors import InvalidParams
from dragoman.model.requests import Request
from dragoman.server.operator.inbox import (
    inbox_item,
    open_questions,
    take_answer,
    waiting_request,
)
from dragoman.server.operator.pages import Pages
from dragoman.server.operator.shapes import (
    Answered,
    InboxAnswer,
    InboxItem,
    InboxItems,
    InboxQuery,
    OneTask,
)
from dragoman.server.operator.table import OperatorAsk, OperatorRows
from dragoman.server.operator.tasks.endpoints import given
from dragoman.server.operator.tasks.items import place_of, texts_of
from dragoman.stores.interface import TaskRow

ENDPOINTS = OperatorRows()


@ENDPOINTS.add("GET", "/inbox", query=InboxQuery)
async def list_inbox(ask: OperatorAsk) -> InboxItems:
    """List what waits for a person, the longest wait first."""
    query: InboxQuery = ask.query
    pages = Pages(ask, "inbox")
    after = await pages.start()
    asked = {"agent": query.agent, "tenant": given(query.tenant)}
    if ask.viewer.role != "caller":
        ask.record_read("console.inbox.list")
    found: list[tuple[TaskRow, Request]] = []
    async for head, requests in open_questions(ask.site, ask.viewer, after=after, **asked):
        # Requests of one task stay on one page.
        if len(found) >= query.limit:
            token = pages.token(place_of(found[-1][0]))
            return InboxItems(items=await _items(ask, found), next_page_token=token)
        found += [(head, one) for one in requests]
    return InboxItems(items=await _items(ask, found), next_page_token="")


async def _items(ask: OperatorAsk, found: Sequence[tuple[TaskRow, Request]]) -> list[InboxItem]:
    texts = await texts_of(ask.store, [head for head, _ in found])
    return [
        inbox_item(head, one, words=text.words, to=text.to)
        for (head, one), text in zip(found, texts, strict=True)
    ]


@ENDPOINTS.add("GET", "/inbox/{id}", query=OneTask)
async def view_request(ask: OperatorAsk) -> InboxItem:
    """Show one request that waits for a person: by its id, or by its task's if that has one."""
    query: OneTask = ask.query
    asked = {"agent": query.agent, "tenant": given(query.tenant), "owner": given(query.owner)}
    head, request = await waiting_request(ask.site, ask.viewer, ask.path["id"], **asked)
    if head.scope.principal != ask.request.caller.principal:
        ask.record_read("console.inbox.read", f"{head.scope.agent} {head.task_id}")
    (item,) = await _items(ask, [(head, request)])
    return item


@ENDPOINTS.add("POST", "/inbox", body=InboxAnswer, scope="tasks:write", may_be_missing=True)
async def answer_request(ask: OperatorAsk) -> Answered:
    """Answer a request, or decline it, in the name of its task's owner."""
    body: InboxAnswer = ask.body
    if body.value is UNSET and not body.decline:
        raise InvalidParams("has neither value nor decline", field="body")
    head, request = await waiting_request(ask.site, ask.viewer, body.id)
    ask.record("console.inbox.answer", f"{head.scope.agent} {head.task_id}")
    await take_answer(ask.site, head, request, body.value, body.decline)
    return Answered(task_id=head.task_id, result="answered")
