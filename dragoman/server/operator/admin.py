"""What operators may see and do with the tasks of all callers: `/admin/`, and `/metrics`.

An operator has the whole server, the admin of a tenant only that tenant: tasks of other tenants do
not exist for them. Every read of a task and every act is in the audit log.
"""

import asyncio
from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qs

import msgspec

from dragoman.dialects import errors
from dragoman.dialects.v1_0 import V1_0
from dragoman.engine.seal import seal_place, unseal_place
from dragoman.errors import A2AError, InvalidParams, PermissionDenied, TaskNotFound
from dragoman.http.documents import PRIVATE, denied, document
from dragoman.http.request import JSON, HttpRequest, check_type, read_body, read_value
from dragoman.http.routes import Answer
from dragoman.model import operations as ops
from dragoman.model.children import DEEPEST
from dragoman.model.clock import stamp
from dragoman.model.identity import ADMIN, OPERATOR, TaskId
from dragoman.model.record import encode
from dragoman.model.requests import Request
from dragoman.model.task import TaskState
from dragoman.server.operator.addresses import INBOX, METRICS, STATUS, TASKS
from dragoman.server.operator.inbox import (
    open_questions,
    take_answer,
    waiting_request,
)
from dragoman.server.operator.tasks.trees import children_of
from dragoman.server.operator.viewing import Viewer
from dragoman.server.site import Site
from dragoman.service import Call, Service
from dragoman.stores.interface import Survey, TaskRow
from dragoman.telemetry import page

_CANCEL = ":cancel"
_TREE = ":tree"
# Operations on one task: the suffix after its id, and the verb.
OPERATIONS = {"": "GET", _CANCEL: "POST", _TREE: "GET"}
_LARGEST_ANSWER = 1024 * 1024
# Tasks in one tree.
_LARGEST = 1000
_PAGE = 50
_MOST = 1000


class Admin:
    """Answers operators."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._store = site.store

    @property
    def answers(self) -> dict[str, Answer]:
        """What answers each path."""
        return {
            STATUS: self._answering(self._show_status, "GET"),
            INBOX: self._answering(self._inbox),
            f"{INBOX}/*": self._answering(self._item, "GET"),
            TASKS: self._answering(self._list, "GET"),
            f"{TASKS}/*": self._answering(self._task),
            METRICS: self._answering(_metrics, "GET"),
        }

    def _answering(self, answer: Answer, verb: str = "") -> Answer:
        async def answering(request: HttpRequest) -> None:
            if verb and request.verb != verb:
                await request.refuse_verb(verb)
                return
            try:
                await answer(request)
            except PermissionDenied as error:
                await denied(request, error)
            except A2AError as error:
                status, content = errors.rest(error)
                await document(request, content, PRIVATE, status=status)

        return answering

    async def _show_status(self, request: HttpRequest) -> None:
        troubles = await self._site.store.troubles()
        parts = [{"part": one.part, "reason": one.reason} for one in troubles]
        await document(request, self._site.status() | {"troubles": parts}, PRIVATE)

    async def _list(self, request: HttpRequest) -> None:
        query = _query(request)
        limit = _number(query.get("limit", str(_PAGE)), "limit", most=_MOST)
        await self._store.prepare()
        tenant, secret = _tenant(request, query.get("tenant")), self._store.secret
        state, token = _state(query.get("status")), query.pop("pageToken", "")
        query.pop("limit", None)
        # Sealed: task numbers would show the admin of one tenant how many tasks others have.
        bound = encode(["survey", tenant, sorted(query.items())])
        self._record(request, "admin.task.list", tenant or "")
        heads = await self._store.survey(
            Survey(
                limit=limit + 1,
                agent=query.get("agent", ""),
                tenant=tenant,
                owner=query.get("owner"),
                state=state,
                after=unseal_place(token, secret, bound) if token else None,
            )
        )
        items, rest = heads[:limit], heads[limit:]
        token = seal_place(_place(items[-1]), secret, bound) if rest else ""
        found = {"items": [_task_summary(head) for head in items], "nextPageToken": token}
        await document(request, found, PRIVATE)

    async def _task(self, request: HttpRequest) -> None:
        """Show one task, or the tree of tasks below it, or end it."""
        name = request.path.removeprefix(f"{TASKS}/")
        operation_name = next((one for one in OPERATIONS if one and name.endswith(one)), "")
        if request.verb != OPERATIONS[operation_name]:
            await request.refuse_verb(OPERATIONS[operation_name])
            return
        if operation_name == _TREE:
            await self._show_tree(request, TaskId(name.removesuffix(_TREE)))
            return
        ends = operation_name == _CANCEL
        head, service = await self._find(request, TaskId(name.removesuffix(_CANCEL)))
        operation: ops.CancelTask | ops.GetTask
        if ends:
            operation = ops.CancelTask(task_id=head.task_id, tenant=head.scope.tenant)
        else:
            operation = ops.GetTask(task_id=head.task_id, tenant=head.scope.tenant)
        act = "admin.task.cancel" if ends else "admin.task.read"
        self._record(request, act, f"{head.scope.agent} {head.task_id}")
        # In its owner's name, by the service that callers have: it knows the rules.
        owner = head.scope.caller()
        reply = await service.answer(Call(operation=operation, caller=owner))
        body = V1_0.encode_reply(operation, reply)
        headers = [(b"content-type", JSON), (b"content-length", b"%d" % len(body)), PRIVATE]
        await request.respond(200, headers, body)

    # What waits for a person

    async def _inbox(self, request: HttpRequest) -> None:
        """Show what waits for a person, or take an answer in the name of the task's owner."""
        if request.verb == "GET":
            limit = _number(_query(request).get("limit", str(_MOST)), "limit", most=_MOST)
            items: list[dict[str, Any]] = []
            found = open_questions(self._site, _viewer(request), **_filters(request))
            async for head, requests in found:
                items += [_inbox_item(head, one) for one in requests]
                if len(items) >= limit:
                    break
            self._record(request, "admin.inbox.list", "")
            await document(request, {"items": items[:limit]}, PRIVATE)
        elif request.verb == "POST":
            await self._take_answer(request)
        else:
            await request.refuse_verb("GET, POST")

    async def _item(self, request: HttpRequest) -> None:
        """Show one request that waits for a person: by its id, or by its task's if that has one."""
        head, question = await waiting_request(
            self._site,
            _viewer(request),
            request.path.removeprefix(f"{INBOX}/"),
            **_filters(request),
        )
        self._record(request, "admin.inbox.read", f"{head.scope.agent} {head.task_id}")
        await document(request, _inbox_item(head, question), PRIVATE)

    async def _take_answer(self, request: HttpRequest) -> None:
        check_type(request)
        given = _read_answer(await read_value(await read_body(request, _LARGEST_ANSWER)))
        head, question = await waiting_request(
            self._site, _viewer(request), given.id, **_filters(request)
        )
        self._record(request, "admin.inbox.answer", f"{head.scope.agent} {head.task_id}")
        await take_answer(self._site, head, question, given.value, given.decline)
        await document(request, {"taskId": head.task_id, "result": "answered"}, PRIVATE)

    async def _show_tree(self, request: HttpRequest, task_id: TaskId) -> None:
        head, _ = await self._find(request, task_id)
        self._record(request, "admin.task.read", f"{head.scope.agent} {head.task_id}")
        left = [_LARGEST]
        tenant = _tenant(request, _query(request).get("tenant"))
        await document(request, await self._tree(head, tenant, left, 0), PRIVATE)

    async def _tree(
        self, head: TaskRow, tenant: str | None, left: list[int], depth: int
    ) -> dict[str, Any]:
        """Return a task with the tasks below it; of those in other stores, id and address only."""
        below: list[dict[str, Any]] = []
        for child in await children_of(self._store, head):
            left[0] -= 1
            if left[0] < 0 or depth > DEEPEST:
                break
            survey = Survey(limit=1, task_id=TaskId(child.task_id), tenant=tenant)
            found = await self._store.survey(survey)
            place = {"id": child.task_id, "agent": child.agent, "url": child.url}
            if found:
                place |= await self._tree(found[0], tenant, left, depth + 1)
            below.append(place)
        return {**_task_summary(head), "children": below}

    def _record(self, request: HttpRequest, act: str, object: str) -> None:
        self._site.audit.record(
            act,
            outcome="allowed",
            who=request.caller.principal.text,
            object=object,
            address=request.address,
        )

    async def _find(self, request: HttpRequest, task_id: TaskId) -> tuple[TaskRow, Service]:
        query = _query(request)
        survey = Survey(
            limit=2,
            task_id=task_id,
            agent=query.get("agent", ""),
            tenant=_tenant(request, query.get("tenant")),
            owner=query.get("owner"),
        )
        heads = await self._store.survey(survey) if task_id else []
        if len(heads) > 1:
            raise InvalidParams("several tasks have this id", field="agent, tenant or owner")
        service = self._site.service_of(heads[0].scope.agent) if heads else None
        if service is None:
            raise TaskNotFound(taskId=task_id)
        return heads[0], service


async def _metrics(request: HttpRequest) -> None:
    # In a thread: it reads what other workers counted.
    body = await asyncio.to_thread(page.render)
    headers = [(b"content-type", page.CONTENT_TYPE.encode()), (b"cache-control", b"no-store")]
    await request.respond(200, [*headers, (b"content-length", b"%d" % len(body))], body)


class _InboxAnswer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An answer to a request, or why it is declined."""

    # Of the request, or of its task if that has only one.
    id: str
    value: Any = msgspec.UNSET
    decline: str = ""


def _read_answer(body: Any) -> _InboxAnswer:
    try:
        answer = msgspec.convert(body, _InboxAnswer)
    except msgspec.ValidationError as error:
        raise InvalidParams(str(error), field="body") from None
    if answer.value is msgspec.UNSET and not answer.decline:
        raise InvalidParams("has neither value nor decline", field="body")
    return answer


def _inbox_item(head: TaskRow, request: Request) -> dict[str, Any]:
    """Return a request that waits for a person, as lists show it."""
    fields = msgspec.to_builtins(request)
    fields.pop("~", None)
    about = _task_summary(head)
    return {
        **fields,
        "id": request.request_id,
        "kind": request.kind,
        "taskId": head.task_id,
        **{name: about[name] for name in ("contextId", "agent", "tenant", "owner")},
        "since": about["statusAt"],
    }


def _viewer(request: HttpRequest) -> Viewer:
    """Return the operator, or the admin of a tenant, as a viewer of tasks."""
    return Viewer(request.caller, "operator" if _is_operator(request) else "admin")


def _filters(request: HttpRequest) -> dict[str, Any]:
    query = _query(request)
    return {"agent": query.get("agent", ""), "tenant": _tenant(request, query.get("tenant"))}


def _is_operator(request: HttpRequest) -> bool:
    """Tell whether a caller may see the whole server."""
    return OPERATOR in request.caller.scopes


def _tenant(request: HttpRequest, tenant: str | None) -> str | None:
    """Return the tenant to look in; None: all of them."""
    if _is_operator(request):
        return tenant
    own = request.caller.tenant
    if own is None:
        # An admin without a tenant may see no task.
        raise PermissionDenied(scope=ADMIN)
    if tenant not in (None, own):
        raise TaskNotFound
    return own


def _query(request: HttpRequest) -> dict[str, str]:
    try:
        values = parse_qs(request.scope["query_string"].decode("latin-1"), max_num_fields=20)
    except ValueError:
        raise InvalidParams("there are too many parameters", field="query") from None
    return {name: found[0] for name, found in values.items()}


def _number(text: str, field: str, *, most: int) -> int:
    number = int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0
    if not 1 <= number <= most:
        raise InvalidParams(f"is a number from 1 to {most}", field=field)
    return number


def _state(text: str | None) -> TaskState | None:
    if not text:
        return None
    try:
        return TaskState(text)
    except ValueError:
        known: Sequence[str] = [state.value for state in TaskState]
        raise InvalidParams(f"is one of {', '.join(known)}", field="status") from None


def _place(head: TaskRow) -> tuple[int, int]:
    """Return the place of a task in the order of a survey."""
    return head.standing.status_at, head.number


def _task_summary(head: TaskRow) -> dict[str, Any]:
    return {
        "id": head.task_id,
        "contextId": head.context_id,
        "agent": head.scope.agent,
        "tenant": head.scope.tenant,
        "owner": head.scope.owner,
        "state": head.standing.state.value,
        "statusAt": stamp(head.standing.status_at * 1000),
        "events": head.standing.last_seq,
    }
