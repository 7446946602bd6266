"""`dragoman workflows`: graphs of steps over the agents of a running gateway, defined and run."""

import json
from typing import Any
from urllib.parse import quote

import click

from dragoman.cli.agent_said import DRY_RUN
from dragoman.cli.credits import LIMIT, next_token, offset_of
from dragoman.cli.failures import Failure, usage
from dragoman.cli.gateway_api import GATEWAY_OPTIONS, GatewayApi
from dragoman.cli.grammar import Group, Place, command
from dragoman.cli.invocation import Invocation
from dragoman.cli.json_source import read_json
from dragoman.cli.own import PAGE_TOKEN, budget, ending_in_order, show_page

_NO_WORKFLOW = {"NOT_FOUND": "workflows list", "AGENT_NOT_FOUND": "agents list"}
_ENDED = ("completed", "failed", "cancelled")

workflows = Group(
    "workflows",
    help="Define workflows over the agents of a gateway, and run them.",
    places={
        "create": Place("dragoman.cli.workflows:create", "Define a workflow."),
        "list": Place("dragoman.cli.workflows:list_", "List your workflows, newest first."),
        "show": Place("dragoman.cli.workflows:show", "Show a workflow, or one of its runs."),
        "run": Place("dragoman.cli.workflows:run_", "Run a workflow, and wait for its end."),
        "cancel": Place("dragoman.cli.workflows:cancel", "End a run."),
    },
)


@command("create")
@click.argument(
    "source", metavar="FILE", help="The definition: a JSON file, - for stdin, or JSON itself."
)
@DRY_RUN
@GATEWAY_OPTIONS
def create(run: Invocation, source: str, dry_run: bool, gateway: str, admin_token: str) -> None:
    """Define a workflow: a name and up to 20 steps, each with a name, an agentId (a name will do),
    and if you like skillId, input, dependsOn (places of earlier steps, from 0), timeout and
    retryPolicy.
    """
    from dragoman.gateway.workflow_plan import checked

    body = read_json(run, source, "FILE")
    if not isinstance(body, dict):
        raise usage("a definition is a JSON object with a name and steps")
    api = GatewayApi(run, gateway, admin_token, {"VALIDATION_ERROR": "agents list"})
    if dry_run:
        # As the gateway checks it, but for its agents: those it alone knows.
        checked(body, lambda name: True)
        _show(run, {"result": "would be created", **body}, _record)
        return
    made = api.ask("POST", "workflows", body)
    _show(run, made, _record)
    run.out.note("Hint", api.command("workflows", "run", made["id"]))


@command("list")
@LIMIT
@PAGE_TOKEN
@GATEWAY_OPTIONS
def list_(run: Invocation, limit: int, page_token: str, gateway: str, admin_token: str) -> None:
    """List your workflows, newest first."""
    offset = offset_of(page_token, "workflows list")
    api = GatewayApi(run, gateway, admin_token)
    found = api.ask("GET", "workflows", query={"limit": limit, "offset": offset})
    items: list[dict[str, Any]] = found["workflows"]
    token = next_token(offset, len(items), found["total"])
    show_page(run, items, token, lambda item: _record(run, item))


@command("show")
@click.argument("workflow", metavar="WORKFLOW", help="The id of the workflow.")
@click.argument("run_id", metavar="[RUN]", required=False, help="The id of a run of it.")
@GATEWAY_OPTIONS
def show(
    run: Invocation, workflow: str, run_id: str | None, gateway: str, admin_token: str
) -> None:
    """Show a workflow with its last ten runs, or one RUN of it."""
    api = GatewayApi(run, gateway, admin_token, _NO_WORKFLOW)
    if run_id:
        _show(run, api.ask("GET", _path(workflow, "runs", run_id)), _run_record)
    else:
        _show(run, api.ask("GET", _path(workflow)), _record)


@command("run", defaults={"wait": "true"})
@click.argument("workflow", metavar="WORKFLOW", help="The id of the workflow.")
@GATEWAY_OPTIONS
def run_(run: Invocation, workflow: str, gateway: str, admin_token: str) -> None:
    """Run a workflow and wait for its end; --async returns at once. How a run ended is not how this
    command exits: look at its status."""
    from dragoman.cli.send import check_delivery

    check_delivery(run)
    api = GatewayApi(run, gateway, admin_token, _NO_WORKFLOW)
    look = api.command("workflows", "show", workflow)
    try:
        with budget(run):
            begun = api.ask("POST", _path(workflow, "execute"))
            look = api.command("workflows", "show", workflow, begun["id"])
            if not run.settings.waits and not run.settings.stream:
                _show(run, begun, _run_record)
                run.out.note("Hint", look)
                return
            # At once: an interrupt must not lose the id.
            run.out.note("Waiting", f"run {begun['id']} of workflow {workflow}")
            with ending_in_order():
                found = api.poll(_path(workflow, "runs", begun["id"]), _Progress(run).see)
    except Failure as failure:
        # What was begun goes on without us.
        failure.hint = failure.hint or look
        raise
    if not run.settings.stream:
        _show(run, found, _run_record)
    if found["status"] != "completed":
        run.out.warn(f"run {found['id']} ended {found['status']}")


class _Progress:
    """Tells of a run what changed since the last look."""

    def __init__(self, run: Invocation) -> None:
        self._run = run
        self._last: dict[str, Any] = {}
        self._steps: dict[int, str] = {}

    def see(self, found: dict[str, Any]) -> bool:
        """Show what is new; tell whether the run is over."""
        if self._run.settings.stream:
            if found != self._last:
                _show(self._run, found, _run_record)
        else:
            for step in found["steps"]:
                status = step.get("status", "pending")
                if status not in (self._steps.get(step["index"]), "pending"):
                    self._steps[step["index"]] = status
                    self._run.out.note("Progress", f"{step['name']}: {status}")
        self._last = found
        return found["status"] in _ENDED


@command("cancel")
@click.argument("workflow", metavar="WORKFLOW", help="The id of the workflow.")
@click.argument("run_id", metavar="RUN", help="The id of a run of it.")
@GATEWAY_OPTIONS
def cancel(run: Invocation, workflow: str, run_id: str, gateway: str, admin_token: str) -> None:
    """End a run, and the tasks that are under way for it."""
    api = GatewayApi(run, gateway, admin_token, _NO_WORKFLOW)
    _show(run, api.ask("POST", _path(workflow, "runs", run_id, "cancel")), _run_record)


def _path(workflow: str, *steps: str) -> str:
    return "/".join(["workflows", *(quote(step, safe="") for step in (workflow, *steps))])


def _show(run: Invocation, item: dict[str, Any], record: Any) -> None:
    if run.out.is_json:
        run.out.json(item)
    else:
        record(run, item)


def _record(run: Invocation, item: dict[str, Any]) -> None:
    if "result" in item:
        run.out.field("Result", item["result"])
    run.out.field("Workflow", str(item.get("id", "")))
    run.out.field("Name", str(item.get("name", "")))
    if item.get("description"):
        run.out.field("Description", str(item["description"]))
    for index, step in enumerate(item.get("steps", [])):
        after = ", ".join(map(str, step.get("dependsOn", [])))
        words = f"{index} {step.get('name', '')} by {step.get('agentId', '')}"
        run.out.field("Step", words + (f" after {after}" if after else ""))
    for one in item.get("runs", []):
        run.out.field("Run", f"{one['id']} {one['status']} {one['createdAt']}")


def _run_record(run: Invocation, item: dict[str, Any]) -> None:
    run.out.field("Run", item["id"])
    run.out.field("Workflow", item["workflowId"])
    run.out.field("Status", item["status"])
    for step in item["steps"]:
        task = f" task {step['taskId']}" if step.get("taskId") else ""
        status = step.get("status", "pending")
        run.out.field("Step", f"{step['index']} {step['name']} {status}{task}")
        if step.get("error"):
            run.out.field("Error", step["error"])
        if "output" in step and step["output"] is not None:
            _output(run, step["output"])
    if item.get("error"):
        run.out.field("Error", item["error"])


def _output(run: Invocation, output: Any) -> None:
    if isinstance(output, str):
        run.out.block("Text", output)
    else:
        run.out.block("Data", json.dumps(output, indent=2, ensure_ascii=False))
