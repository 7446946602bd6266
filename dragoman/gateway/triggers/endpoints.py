"""Triggers: tasks that begin by themselves, at a time or when something is posted."""

from typing import Any

import msgspec
from msgspec import UNSET

from dragoman.gateway.api.asking import PagedById, idempotency_key, note, page_of, viewer_of
from dragoman.gateway.api.envelope import ApiRefused
from dragoman.gateway.api.table import Ask, EndpointTable
from dragoman.gateway.triggers.definition import NewTrigger, TriggerChange, TriggerSchedule
from dragoman.gateway.triggers.triggers import read
from dragoman.gateway.triggers.webhook_endpoint import PATH
from dragoman.model.clock import stamp
from dragoman.stores.interface.triggers import TriggerRow

_ONE = "/api/v1/triggers/{id}"
ENDPOINTS = EndpointTable()


class TriggerRun(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One run of a trigger: the task that it began, or why it began none."""

    at: str
    task_id: str | None = None
    problem: str | None = None


class TriggerRecord(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A trigger, and what came of it last."""

    id: str
    name: str
    agent_id: str
    skill_id: str = ""
    text: str = ""
    data: Any = UNSET
    schedule: TriggerSchedule | None = None
    # The path that posts go to.
    webhook: str | None = None
    # Shown when it is made, and when it is replaced.
    secret: str | None = None
    enabled: bool
    created_at: str
    next_due_at: str | None = None
    # Tasks that it began.
    runs: int
    last_at: str | None = None
    last_task_id: str | None = None
    # Why no task began the last time.
    last_problem: str | None = None
    # What came of the last ten runs, the latest first.
    recent_runs: list[TriggerRun] = []
    # Whether it is the caller's own.
    is_mine: bool

    def __repr__(self) -> str:
        return f"TriggerRecord(id={self.id!r}, name={self.name!r})"


class TriggerPage(msgspec.Struct, frozen=True):
    """A page of triggers, newest first."""

    triggers: list[TriggerRecord]
    total: int
    limit: int
    # What to send as `after` for the next page: the id of the last trigger; left out: there is
    # none.
    next: str | msgspec.UnsetType = UNSET


class TriggeredTask(msgspec.Struct, frozen=True, rename="camel"):
    """The task that a trigger began."""

    task_id: str


def _missing() -> ApiRefused:
    return ApiRefused("NOT_FOUND", "Trigger not found")


@ENDPOINTS.add("POST", "/api/v1/triggers", scope="triggers", status=201, body=NewTrigger)
async def create_trigger(ask: Ask) -> TriggerRecord:
    """Have tasks begin at a time, or when another program posts something."""
    row = await ask.gateway.triggers.create(ask.principal, ask.body)
    note(ask, "trigger.create", row.id)
    return _record(ask, row, ask.gateway.triggers.secret_text(row))


@ENDPOINTS.add("GET", "/api/v1/triggers", scope="triggers", query=PagedById)
async def list_triggers(ask: Ask) -> TriggerPage:
    """Read your own triggers, newest first; operators read all."""
    query: PagedById = ask.query
    rows, total = await ask.gateway.triggers.page(
        viewer_of(ask), limit=query.limit + 1, after=query.after
    )
    shown, following = page_of(rows, query.limit, lambda row: row.id)
    return TriggerPage([_record(ask, row) for row in shown], total, query.limit, following)


@ENDPOINTS.add("GET", _ONE, scope="triggers", errors=("NOT_FOUND",))
async def get_trigger(ask: Ask) -> TriggerRecord:
    """Read a trigger."""
    row = await ask.gateway.triggers.one(ask.path["id"], viewer_of(ask))
    if row is None:
        raise _missing()
    return _record(ask, row)


@ENDPOINTS.add("PATCH", _ONE, scope="triggers", body=TriggerChange, errors=("NOT_FOUND",))
async def change_trigger(ask: Ask) -> TriggerRecord:
    """Change a trigger, or turn it off or on."""
    row = await ask.gateway.triggers.change(ask.path["id"], viewer_of(ask), ask.body)
    if row is None:
        raise _missing()
    note(ask, "trigger.change", row.id)
    return _record(ask, row)


@ENDPOINTS.add("DELETE", _ONE, scope="triggers", status=204, errors=("NOT_FOUND",))
async def remove_trigger(ask: Ask) -> None:
    """Remove a trigger; the tasks that it began stay."""
    if not await ask.gateway.triggers.remove(ask.path["id"], viewer_of(ask)):
        raise _missing()
    note(ask, "trigger.remove", ask.path["id"])


@ENDPOINTS.add(
    "POST", f"{_ONE}/run", scope="triggers", status=202, is_keyed=True, errors=("NOT_FOUND",)
)
async def run_trigger(ask: Ask) -> TriggeredTask:
    """Begin a task of your trigger now, beside its schedule."""
    row = await ask.gateway.triggers.one(ask.path["id"], ask.principal)
    if row is None:
        raise _missing()
    task_id = await ask.gateway.triggers.run_once(row, idempotency_key(ask))
    note(ask, "trigger.run", row.id)
    return TriggeredTask(task_id)


@ENDPOINTS.add("POST", f"{_ONE}/secret", scope="triggers", errors=("NOT_FOUND",))
async def replace_trigger_secret(ask: Ask) -> TriggerRecord:
    """Give the webhook of your trigger another secret; the one before ends at once."""
    row = await ask.gateway.triggers.replace_secret(ask.path["id"], ask.principal)
    if row is None:
        raise _missing()
    note(ask, "trigger.secret", row.id)
    return _record(ask, row, ask.gateway.triggers.secret_text(row))


def _record(ask: Ask, row: TriggerRow, secret: str = "") -> TriggerRecord:
    found = read(row)
    last = found.last
    return TriggerRecord(
        id=row.id,
        name=found.name,
        agent_id=found.agent_id,
        skill_id=found.skill_id,
        text=found.text,
        data=found.data,
        schedule=found.schedule,
        webhook=f"{PATH}{row.id}" if found.webhook else None,
        secret=secret if secret and found.webhook else None,
        enabled=found.enabled,
        created_at=stamp(row.made_at * 1000),
        next_due_at=None if row.due_at is None else stamp(row.due_at * 1000),
        runs=found.runs,
        last_at=None if last is None else stamp(last.at * 1000),
        last_task_id=(last.task_id or None) if last is not None else None,
        last_problem=(last.problem or None) if last is not None else None,
        recent_runs=[
            TriggerRun(
                at=stamp(run.at * 1000),
                task_id=run.task_id or None,
                problem=run.problem or None,
            )
            for run in found.recent
        ],
        is_mine=row.owner == ask.principal,
    )
