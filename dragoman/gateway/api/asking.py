"""What several endpoints share: types of fields, pages, and how tasks and agents are found."""

import contextlib
import uuid
from collections.abc import Callable, Generator, Sequence
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from dragoman.errors import InvalidParams, NoAgentAvailable, TaskNotFound
from dragoman.gateway.api.envelope import ApiRefused
from dragoman.gateway.api.record import TaskRecord, record
from dragoman.gateway.api.table import Ask
from dragoman.gateway.money.task_reference import AmbiguousTask, TaskReference
from dragoman.gateway.registry.registered import Registered
from dragoman.model import operations as ops
from dragoman.model.clock import stamp
from dragoman.model.identity import OPERATOR, Principal, Scope, TaskId, is_id
from dragoman.model.money import LARGEST, MICRO
from dragoman.model.record import TaskReading
from dragoman.model.task import Task
from dragoman.service import Call, TaskReply
from dragoman.stores.interface.orders import OrderRow

# The agent whose tasks these are: forwarding is an agent's code like any other.
GATEWAY = "gateway"
MOST = 100
_MAX_KEY = 255
_Row = TypeVar("_Row")
_Cursor = TypeVar("_Cursor", str, int)

Name = Annotated[str, Meta(min_length=1, max_length=100)]
Credits = Annotated[float, Meta(ge=0, le=LARGEST // MICRO)]
Limit = Annotated[int, Meta(ge=1, le=MOST)]
Offset = Annotated[int, Meta(ge=0, le=1_000_000_000)]


class Paged(msgspec.Struct, frozen=True, kw_only=True):
    """Which part of a list is wanted."""

    limit: Limit = 20
    offset: Offset = 0


class PagedById(msgspec.Struct, frozen=True, kw_only=True):
    """Which part of a list is wanted that goes on by a cursor: `next` of the page before. What
    comes or goes meanwhile neither repeats nor hides others."""

    limit: Limit = 20
    after: Annotated[str, Meta(max_length=36, pattern="^([0-9a-f-]{36})?$")] = ""


class PagedByTask(msgspec.Struct, frozen=True, kw_only=True):
    """The same of a list about tasks: `next` is the gateway's number of the last one."""

    limit: Limit = 20
    after: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)] = 0


def page_of(
    rows: Sequence[_Row], limit: int, cursor: Callable[[_Row], _Cursor]
) -> tuple[Sequence[_Row], _Cursor | UnsetType]:
    """Return the rows of a page, and its `next` if one more row than the page has was found."""
    shown = rows[:limit]
    return shown, cursor(shown[-1]) if len(rows) > limit else UNSET


def micro(amount: float) -> int:
    """Return credits as whole micro-credits: a number of JSON may have more decimals."""
    return round(amount * MICRO)


def is_uuid(text: str) -> bool:
    """Tell whether a text is a UUID as people write them."""
    try:
        return str(uuid.UUID(text)) == text.lower()
    except ValueError:
        return False


def scope_of(ask: Ask) -> Scope:
    """Return the scope of the caller's tasks."""
    return Scope.of(GATEWAY, ask.caller.tenant or "", ask.caller)


def visible_agent(ask: Ask) -> Registered:
    """Return the agent in the path, if the caller may know of it."""
    try:
        return ask.gateway.registry.visible(ask.path["id"], viewer_of(ask))
    except NoAgentAvailable:
        raise no_agent(ask.path["id"]) from None


def is_operator(ask: Ask) -> bool:
    """Tell whether the caller is an operator."""
    return OPERATOR in ask.caller.scopes


def viewer_of(ask: Ask) -> Principal | None:
    """Return the viewer; None: an operator, who sees everything."""
    return None if is_operator(ask) else ask.principal


def note(ask: Ask, act: str, object: str, reason: str = "", outcome: str = "done") -> None:
    """Write a line to the audit log. Nothing of a message may be in it."""
    ask.gateway.audit.record(
        act,
        outcome=outcome,
        who=ask.principal.text,
        object=object,
        reason=reason,
        address=ask.request.address,
    )


def no_agent(ref: str) -> ApiRefused:
    """Return the error for an agent that does not exist."""
    return ApiRefused("AGENT_NOT_FOUND", "Agent not found", agentId=ref)


def task_id_of(ask: Ask) -> TaskId:
    """Return the task's id in the path, if it can be one."""
    text = ask.path["id"]
    if not is_id(text):
        raise not_a_task_id()
    return TaskId(text)


def not_a_task_id() -> ApiRefused:
    """Return the error for an id that cannot be that of a task."""
    return ApiRefused("VALIDATION_ERROR", "id: is not the id of a task, which is a UUID")


async def reading_of(ask: Ask, task_id: TaskId) -> TaskReading:
    """Return a task of the caller. One of another caller is not found, like one that never was."""
    operation = ops.GetTask(task_id=task_id, tenant=ask.caller.tenant or "")
    try:
        reply = await ask.gateway.service.answer(Call(operation=operation, caller=ask.caller))
    except TaskNotFound:
        raise missing_task(task_id) from None
    assert isinstance(reply, TaskReply), "a task is read as a task"
    return reply.reading


def missing_task(task_id: str) -> ApiRefused:
    """Return the error for a task that does not exist; an id that is not a UUID is an invalid
    request."""
    return ApiRefused("TASK_NOT_FOUND", "Task not found") if is_uuid(task_id) else not_a_task_id()


def idempotency_key(ask: Ask) -> str:
    """Return the key under which a request may be repeated; empty: there is none."""
    key = ask.request.header(b"idempotency-key")
    if key is None:
        return ""
    if len(key) > _MAX_KEY or not is_id(key):
        raise InvalidParams(
            f"has 1 to {_MAX_KEY} visible ASCII characters", field="Idempotency-Key"
        )
    return key


TaskNumber = Annotated[int, Meta(ge=1, le=1 << 53)]


class NumberQuery(msgspec.Struct, frozen=True):
    """Which of several tasks of one id is meant, by the gateway's number."""

    number: TaskNumber | msgspec.UnsetType = msgspec.UNSET


def reference(id: str, number: int | msgspec.UnsetType) -> TaskReference:
    """Return which task a request means."""
    return TaskReference(id, 0 if number is msgspec.UNSET else number)


@contextlib.contextmanager
def one_task(task_id: str) -> Generator[None]:
    """Refuse an id that is of no task of the caller, or of several: with a list of these."""
    try:
        yield
    except TaskNotFound:
        raise missing_task(task_id) from None
    except AmbiguousTask as error:
        candidates = [_meaning(one) for one in error.tasks[:MOST]]
        raise ApiRefused("CONFLICT", error.public, taskId=task_id, tasks=candidates) from None


def _meaning(order: OrderRow) -> dict[str, Any]:
    return {
        "number": order.task,
        "agentId": order.agent,
        "requester": order.requester.text,
        "payee": order.payee.text,
        "price": order.price / MICRO,
        "beganAt": stamp(order.began_at * 1000),
    }


async def row_of(ask: Ask, task_id: str) -> OrderRow | None:
    """Return the order of a task of the caller's."""
    return await ask.gateway.ledger.store.order_in(scope_of(ask), task_id)


async def shown_task(ask: Ask, task: Task, row: OrderRow | None = None) -> TaskRecord:
    """Return a task of the caller's as it is shown; `row` spares a look where it is at hand."""
    return record(task, row or await row_of(ask, task.id))
