"""Workflows: graphs of steps over registered agents, and their runs."""

import hashlib

import msgspec
from msgspec import UNSET, UnsetType

from dragoman.gateway.api.asking import Offset, PagedById, idempotency_key, note, page_of
from dragoman.gateway.api.envelope import ApiRefused
from dragoman.gateway.api.table import Ask, EndpointTable
from dragoman.gateway.workflows.plan import Definition
from dragoman.gateway.workflows.workflows import Workflow, WorkflowRun

_RUN = "/api/v1/workflows/{id}/runs/{runId}"
ENDPOINTS = EndpointTable()


class WorkflowQuery(PagedById, frozen=True, kw_only=True):
    """Which part of the list is wanted."""

    offset: Offset = 0


class WorkflowPage(msgspec.Struct, frozen=True):
    """A page of workflows, newest first."""

    workflows: list[Workflow]
    total: int
    limit: int
    offset: int
    # What to send as `after` for the next page; left out: there is none.
    next: str | UnsetType = UNSET


def _missing(what: str) -> ApiRefused:
    return ApiRefused("NOT_FOUND", f"{what} not found")


@ENDPOINTS.add("POST", "/api/v1/workflows", scope="workflows", status=201, body=Definition)
async def create_workflow(ask: Ask) -> Workflow:
    """Define a workflow; steps depend on earlier ones."""
    made = await ask.gateway.workflows.create(ask.principal, ask.body)
    note(ask, "workflow.create", made.id)
    return made


@ENDPOINTS.add("GET", "/api/v1/workflows", scope="workflows", query=WorkflowQuery)
async def list_workflows(ask: Ask) -> WorkflowPage:
    """Read your own workflows, newest first."""
    query: WorkflowQuery = ask.query
    found, total = await ask.gateway.workflows.page(
        ask.principal, limit=query.limit + 1, offset=query.offset, after=query.after
    )
    shown, following = page_of(found, query.limit, lambda one: one.id)
    return WorkflowPage(list(shown), total, query.limit, query.offset, following)


@ENDPOINTS.add("GET", "/api/v1/workflows/{id}", scope="workflows", errors=("NOT_FOUND",))
async def get_workflow(ask: Ask) -> Workflow:
    """Read a workflow and its last ten runs."""
    found = await ask.gateway.workflows.get(ask.principal, ask.path["id"])
    if found is None:
        raise _missing("Workflow")
    return found


@ENDPOINTS.add(
    "POST",
    "/api/v1/workflows/{id}/execute",
    scope="workflows",
    status=202,
    is_keyed=True,
    errors=("NOT_FOUND",),
)
async def execute_workflow(ask: Ask) -> WorkflowRun:
    """Begin a run; answered before its first step begins."""
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


@ENDPOINTS.add("GET", _RUN, scope="workflows", errors=("NOT_FOUND",))
async def get_run(ask: Ask) -> WorkflowRun:
    """Read a run and its steps."""
    run = await ask.gateway.workflows.run(ask.principal, ask.path["runId"])
    return _of_workflow(ask, run)


@ENDPOINTS.add("POST", f"{_RUN}/cancel", scope="workflows", errors=("NOT_FOUND",))
async def cancel_run(ask: Ask) -> WorkflowRun:
    """Cancel a run and the tasks of its steps."""
    workflows = ask.gateway.workflows
    # A run of another workflow is not cancelled.
    _of_workflow(ask, await workflows.run(ask.principal, ask.path["runId"]))
    run = await workflows.cancel(ask.principal, ask.path["runId"])
    run = _of_workflow(ask, run)
    note(ask, "workflow.cancel", f"{run.id} {run.workflow_id}")
    return run


def _of_workflow(ask: Ask, run: WorkflowRun | None) -> WorkflowRun:
    if run is None or run.workflow_id != ask.path["id"]:
        raise _missing("Run")
    return run
