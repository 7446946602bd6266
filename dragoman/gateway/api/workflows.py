"""Workflows: graphs of steps over registered agents, and their runs."""

import hashlib

import msgspec

from dragoman.gateway.api.asking import Paged, idempotency_key, note
from dragoman.gateway.api.envelope import Refused
from dragoman.gateway.api.table import Ask, Endpoint
from dragoman.gateway.workflow_plan import Definition
from dragoman.gateway.workflows import Run, Workflow


class WorkflowQuery(Paged, frozen=True, kw_only=True):
    """Which part of the list is wanted."""


class WorkflowPage(msgspec.Struct, frozen=True):
    """A page of workflows, newest first."""

    workflows: list[Workflow]
    total: int
    limit: int
    offset: int


def _missing(what: str) -> Refused:
    return Refused("NOT_FOUND", f"{what} not found")


async def _create(ask: Ask) -> Workflow:
    made = await ask.gateway.workflows.create(ask.principal, ask.body)
    note(ask, "workflow.create", made.id)
    return made


async def _list(ask: Ask) -> WorkflowPage:
    query: WorkflowQuery = ask.query
    found, total = await ask.gateway.workflows.page(
        ask.principal, limit=query.limit, offset=query.offset
    )
    return WorkflowPage(list(found), total, query.limit, query.offset)


async def _get(ask: Ask) -> Workflow:
    found = await ask.gateway.workflows.get(ask.principal, ask.path["id"])
    if found is None:
        raise _missing("Workflow")
    return found


async def _execute(ask: Ask) -> Run:
    key = idempotency_key(ask)
    if key:
        named = f"{ask.path['id']}\0{key}".encode()
        key = f"key-{hashlib.blake2b(named, digest_size=16).hexdigest()}"
    run = await ask.gateway.workflows.execute(
        ask.principal,
        ask.path["id"],
        scopes=ask.caller.scopes,
        key=key,
        place=ask.caller.place,
    )
    if run is None:
        raise _missing("Workflow")
    note(ask, "workflow.run", f"{run.id} {run.workflow_id}")
    return run


async def _run(ask: Ask) -> Run:
    run = await ask.gateway.workflows.run(ask.principal, ask.path["runId"])
    return _of_workflow(ask, run)


async def _cancel(ask: Ask) -> Run:
    workflows = ask.gateway.workflows
    # Of another workflow, it is not cancelled by mistake.
    _of_workflow(ask, await workflows.run(ask.principal, ask.path["runId"]))
    run = await workflows.cancel(ask.principal, ask.path["runId"])
    run = _of_workflow(ask, run)
    note(ask, "workflow.cancel", f"{run.id} {run.workflow_id}")
    return run


def _of_workflow(ask: Ask, run: Run | None) -> Run:
    if run is None or run.workflow_id != ask.path["id"]:
        raise _missing("Run")
    return run


_RUN = "/api/v1/workflows/{id}/runs/{runId}"
ENDPOINTS = [
    Endpoint(
        verb="POST",
        path="/api/v1/workflows",
        scope="workflows",
        name="create_workflow",
        summary="Define a workflow; steps depend on earlier ones",
        answer=_create,
        status=201,
        body=Definition,
        reply=Workflow,
    ),
    Endpoint(
        verb="GET",
        path="/api/v1/workflows",
        scope="workflows",
        name="list_workflows",
        summary="Read one's own workflows, newest first",
        answer=_list,
        query=WorkflowQuery,
        reply=WorkflowPage,
    ),
    Endpoint(
        verb="GET",
        path="/api/v1/workflows/{id}",
        scope="workflows",
        name="get_workflow",
        summary="Read a workflow and its last ten runs",
        answer=_get,
        reply=Workflow,
        errors=("NOT_FOUND",),
    ),
    Endpoint(
        verb="POST",
        path="/api/v1/workflows/{id}/execute",
        scope="workflows",
        name="execute_workflow",
        summary="Begin a run; answered before its first step is",
        answer=_execute,
        status=202,
        reply=Run,
        is_keyed=True,
        errors=("NOT_FOUND",),
    ),
    Endpoint(
        verb="GET",
        path=_RUN,
        scope="workflows",
        name="get_run",
        summary="Read how a run stands",
        answer=_run,
        reply=Run,
        errors=("NOT_FOUND",),
    ),
    Endpoint(
        verb="POST",
        path=f"{_RUN}/cancel",
        scope="workflows",
        name="cancel_run",
        summary="End a run and what is under way for it",
        answer=_cancel,
        reply=Run,
        errors=("NOT_FOUND",),
    ),
]
