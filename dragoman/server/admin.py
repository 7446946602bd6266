"""What operators may see and do whoever a task belongs to: `/admin/`.

An operator has the whole server, the admin of a tenant what is in that tenant; for them, what is
elsewhere does not exist. Every look at a task and every act is in the audit log.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qs

import msgspec

from dragoman.dialects import errors
from dragoman.dialects.v1_0 import V1_0
from dragoman.engine.log import read_task
from dragoman.engine.seal import seal_place, unseal_place
from dragoman.errors import A2AError, InvalidParams, PermissionDenied, TaskNotFound
from dragoman.model import operations as ops
from dragoman.model.children import Child, children
from dragoman.model.events import Event
from dragoman.model.identity import ADMIN, OPERATOR, MessageId, TaskId, new_id
from dragoman.model.instant import stamp
from dragoman.model.message import Message, Role
from dragoman.model.record import encode
from dragoman.model.requests import Request as Asked
from dragoman.model.requests import open_requests
from dragoman.model.task import INTERRUPTED, TaskState
from dragoman.security.audit import Audit
from dragoman.server.discovery import denied, document
from dragoman.server.request import JSON, Mount, Request, check_type, read_body, read_value
from dragoman.server.routes import Access, Answer, Routes
from dragoman.service import Call
from dragoman.stores.interface import Head, Store, Survey

_TASKS = "/admin/tasks"
_INBOX = "/admin/inbox"
_CANCEL = ":cancel"
_TREE = ":tree"
# What can be done with one task: what follows its id, and the verb.
OPERATIONS = {"": "GET", _CANCEL: "POST", _TREE: "GET"}
# Deeper than any call may go; and tasks in one answer.
_DEEPEST = 32
_LARGEST_ANSWER = 1024 * 1024
_LARGEST = 1000
_PAGE = 50
_MOST = 1000
_PRIVATE = (b"cache-control", b"private, no-store")


class Admin:
    """Answers operators."""

    def __init__(
        self,
        store: Store,
        mounts: Mapping[str, Mount],
        audit: Audit,
        status: Callable[[], dict[str, Any]],
    ) -> None:
        self._store = store
        self._mounts = mounts
        self._audit = audit
        self._status = status

    def add_to(self, routes: Routes) -> None:
        """Serve all of it."""
        routes.add("/admin/status", self._answering(self._tell), Access.OPERATOR)
        routes.add(_INBOX, self._answering(self._inbox), Access.ADMIN)
        routes.add(f"{_INBOX}/*", self._answering(self._item), Access.ADMIN)
        routes.add(_TASKS, self._answering(self._list), Access.ADMIN)
        routes.add(f"{_TASKS}/*", self._answering(self._task), Access.ADMIN)

    def _answering(self, answer: Answer) -> Answer:
        async def answering(request: Request) -> None:
            try:
                await answer(request)
            except PermissionDenied as error:
                await denied(request, error)
            except A2AError as error:
                status, content = errors.rest(error)
                await document(request, content, _PRIVATE, status=status)

        return answering

    async def _tell(self, request: Request) -> None:
        if request.verb != "GET":
            await request.refuse_verb("GET")
            return
        await document(request, self._status(), _PRIVATE)

    async def _list(self, request: Request) -> None:
        if request.verb != "GET":
            await request.refuse_verb("GET")
            return
        asked = _query(request)
        limit = _number(asked.get("limit", str(_PAGE)), "limit", most=_MOST)
        await self._store.prepare()
        tenant, secret = _tenant(request, asked.get("tenant")), self._store.secret
        state, token = _state(asked.get("status")), asked.pop("pageToken", "")
        asked.pop("limit", None)
        # Whoever looks into one tenant must not read from it how many tasks there are elsewhere.
        bound = encode(["survey", tenant, sorted(asked.items())])
        self._note(request, "admin.task.list", tenant or "")
        heads = await self._store.survey(
            Survey(
                limit=limit + 1,
                agent=asked.get("agent", ""),
                tenant=tenant,
                owner=asked.get("owner"),
                state=state,
                before=unseal_place(token, secret, bound)[0] if token else 0,
            )
        )
        items, rest = heads[:limit], heads[limit:]
        token = seal_place((items[-1].number, 0), secret, bound) if rest else ""
        found = {"items": [_shown(head) for head in items], "nextPageToken": token}
        await document(request, found, _PRIVATE)

    async def _task(self, request: Request) -> None:
        """Show one task, or what others were given for it, or end it."""
        name = request.path.removeprefix(f"{_TASKS}/")
        asked = next((one for one in OPERATIONS if one and name.endswith(one)), "")
        if request.verb != OPERATIONS[asked]:
            await request.refuse_verb(OPERATIONS[asked])
            return
        if asked == _TREE:
            await self._show_tree(request, TaskId(name.removesuffix(_TREE)))
            return
        ends = asked == _CANCEL
        head, mount = await self._find(request, TaskId(name.removesuffix(_CANCEL)))
        operation: ops.CancelTask | ops.GetTask
        if ends:
            operation = ops.CancelTask(task_id=head.task_id, tenant=head.scope.tenant)
        else:
            operation = ops.GetTask(task_id=head.task_id, tenant=head.scope.tenant)
        act = "admin.task.cancel" if ends else "admin.task.read"
        self._note(request, act, f"{head.scope.agent} {head.task_id}")
        # In its owner's name: what there is to know about ending a task, its agent's service knows.
        owner = head.scope.caller()
        reply = await mount.service.answer(Call(operation=operation, caller=owner))
        body = V1_0.encode_reply(operation, reply)
        headers = [(b"content-type", JSON), (b"content-length", b"%d" % len(body)), _PRIVATE]
        await request.respond(200, headers, body)

    # What waits for a person

    async def _inbox(self, request: Request) -> None:
        """Show what waits for a person, or take an answer in the name of whoever was asked."""
        if request.verb == "GET":
            limit = _number(_query(request).get("limit", str(_MOST)), "limit", most=_MOST)
            items: list[dict[str, Any]] = []
            for head in await self._resting(request):
                items += [_asked(head, one) for one in await self._open_in(head)]
                if len(items) >= limit:
                    break
            self._note(request, "admin.inbox.list", "")
            await document(request, {"items": items[:limit]}, _PRIVATE)
        elif request.verb == "POST":
            await self._take_answer(request)
        else:
            await request.refuse_verb("GET, POST")

    async def _item(self, request: Request) -> None:
        """Show one thing that waits for a person: by its id, or by its task's where that waits for
        one thing only."""
        if request.verb != "GET":
            await request.refuse_verb("GET")
            return
        head, asked = await self._only(request, request.path.removeprefix(f"{_INBOX}/"))
        self._note(request, "admin.inbox.read", f"{head.scope.agent} {head.task_id}")
        await document(request, _asked(head, asked), _PRIVATE)

    async def _resting(self, request: Request) -> list[Head]:
        """Return all tasks that wait, the longest first: however many came after it, none is out of
        sight."""
        query = _query(request)
        tenant, agent = _tenant(request, query.get("tenant")), query.get("agent", "")
        found: list[Head] = []
        for state in INTERRUPTED:
            before = 0
            while True:
                survey = Survey(limit=_MOST, agent=agent, tenant=tenant, state=state, before=before)
                heads = await self._store.survey(survey)
                found += heads
                if len(heads) < _MOST:
                    break
                before = heads[-1].number
        return sorted(found, key=lambda head: head.standing.status_at)

    async def _open_in(self, head: Head) -> list[Asked]:
        upto = head.standing.last_seq
        read = await read_task(self._store, head.number, upto=upto, artifacts=False)
        return open_requests(read.task.status) if read is not None else []

    async def _named(self, request: Request, name: str) -> list[tuple[Head, Asked]]:
        """Return what is meant by the id of a request, or of a task."""
        heads = await self._resting(request)
        if own := [head for head in heads if head.task_id == name]:
            return [(head, one) for head in own for one in await self._open_in(head)]
        for head in heads:
            for one in await self._open_in(head):
                if one.request_id == name:
                    return [(head, one)]
        return []

    async def _only(self, request: Request, name: str) -> tuple[Head, Asked]:
        """Return the one request that is meant by its id, or by that of its task."""
        named = await self._named(request, name)
        if len(named) > 1:
            ids = ", ".join(one.request_id for _, one in named)
            raise InvalidParams(f"waits for several answers; name one of {ids}", field="id")
        if not named:
            raise TaskNotFound(taskId=name)
        return named[0]

    async def _take_answer(self, request: Request) -> None:
        check_type(request)
        said = _answer_of(await read_value(await read_body(request, _LARGEST_ANSWER)))
        head, asked = await self._only(request, said.id)
        mount = self._mounts.get(head.scope.agent)
        if mount is None:
            raise TaskNotFound(taskId=said.id)
        self._note(request, "admin.inbox.answer", f"{head.scope.agent} {head.task_id}")
        parts = asked.failed(said.decline) if said.decline else asked.answered(said.value)
        message = Message(MessageId(new_id()), Role.USER, parts, task_id=head.task_id)
        operation = ops.SendMessage(message=message, wait=False, tenant=head.scope.tenant)
        owner = head.scope.caller()
        await mount.service.answer(Call(operation=operation, caller=owner))
        await document(request, {"taskId": head.task_id, "result": "answered"}, _PRIVATE)

    async def _show_tree(self, request: Request, task_id: TaskId) -> None:
        head, _ = await self._find(request, task_id)
        self._note(request, "admin.task.read", f"{head.scope.agent} {head.task_id}")
        left = [_LARGEST]
        tenant = _tenant(request, _query(request).get("tenant"))
        await document(request, await self._tree(head, tenant, left, 0), _PRIVATE)

    async def _tree(
        self, head: Head, tenant: str | None, left: list[int], depth: int
    ) -> dict[str, Any]:
        """Return a task with all below it that is in this store; of others, what they are called
        where they are."""
        below: list[dict[str, Any]] = []
        for task_id, url, agent in await children_of(self._store, head):
            left[0] -= 1
            if left[0] < 0 or depth > _DEEPEST:
                break
            survey = Survey(limit=1, task_id=TaskId(task_id), tenant=tenant)
            found = await self._store.survey(survey)
            place = {"id": task_id, "agent": agent, "url": url}
            if found:
                place |= await self._tree(found[0], tenant, left, depth + 1)
            below.append(place)
        return {**_shown(head), "children": below}

    def _note(self, request: Request, act: str, object: str) -> None:
        self._audit.record(
            act,
            outcome="allowed",
            who=request.caller.principal.text,
            object=object,
            address=request.address,
        )

    async def _find(self, request: Request, task_id: TaskId) -> tuple[Head, Mount]:
        asked = _query(request)
        survey = Survey(
            limit=2,
            task_id=task_id,
            agent=asked.get("agent", ""),
            tenant=_tenant(request, asked.get("tenant")),
            owner=asked.get("owner"),
        )
        heads = await self._store.survey(survey) if task_id else []
        if len(heads) > 1:
            raise InvalidParams("several have this id; say which", field="agent, tenant or owner")
        mount = self._mounts.get(heads[0].scope.agent) if heads else None
        if mount is None:
            raise TaskNotFound(taskId=task_id)
        return heads[0], mount


class _Said(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An answer, or why there is none."""

    # Of the request, or of its task where that waits for one thing only.
    id: str
    value: Any = msgspec.UNSET
    decline: str = ""


def _answer_of(body: Any) -> _Said:
    try:
        said = msgspec.convert(body, _Said)
    except msgspec.ValidationError as error:
        raise InvalidParams(str(error), field="body") from None
    if said.value is msgspec.UNSET and not said.decline:
        raise InvalidParams("has neither value nor decline", field="body")
    return said


def _asked(head: Head, asked: Asked) -> dict[str, Any]:
    """Return what waits for a person, as a list has it."""
    told = msgspec.to_builtins(asked)
    told.pop("~", None)
    about = _shown(head)
    return {
        **told,
        "id": asked.request_id,
        "kind": asked.kind,
        "taskId": head.task_id,
        **{name: about[name] for name in ("contextId", "agent", "tenant", "owner")},
        "since": about["statusAt"],
    }


async def children_of(store: Store, head: Head) -> list[Child]:
    """Return what other agents call the tasks they were given for one."""
    found: list[Event] = []
    after = 0
    while events := await store.read(head.number, after=after, limit=_MOST, artifacts=False):
        found += [recorded.event for recorded in events if not recorded.is_public]
        after = events[-1].seq
    return children(found)


def _is_operator(request: Request) -> bool:
    """Tell whether the whole server is open to a caller."""
    return OPERATOR in request.caller.scopes


def _tenant(request: Request, asked: str | None) -> str | None:
    """Return the tenant to look in; None: all of them."""
    if _is_operator(request):
        return asked
    own = request.caller.tenant
    if own is None:
        # An admin of no tenant has nothing to look at.
        raise PermissionDenied(scope=ADMIN)
    if asked not in (None, own):
        raise TaskNotFound
    return own


def _query(request: Request) -> dict[str, str]:
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


def _shown(head: Head) -> dict[str, Any]:
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
