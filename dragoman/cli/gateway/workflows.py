"""`dragoman workflows`: graphs of steps over the agents of a running gateway, defined and run."""

import json
from typing import Any

import click

from dragoman.cli.failures import Failure, usage
from dragoman.cli.gateway.agent_options import DRY_RUN
from dragoman.cli.gateway.gateway_api import GatewayApi, asks_gateway
from dragoman.cli.gateway.gateway_items import GatewayItems
from dragoman.cli.grammar import CommandPlace, Group, command
from dragoman.cli.invocation import Invocation
from dragoman.cli.json_source import read_json
from dragoman.cli.own_options import budget, ending_in_order
from dragoman.cli.terminal.table import Column

_NO_WORKFLOW = {"NOT_FOUND": "workflows list", "AGENT_NOT_FOUND": "agents list"}
_ENDED = ("completed", "failed", "cancelled")

workflows = Group(
    "workflows",
    help="Define workflows over the agents of a gateway, and run them.",
    places={
        "create": CommandPlace("gateway.workflows:create", "Define a workflow."),
        "list": CommandPlace("gateway.workflows:list_", "List your workflows, newest first."),
        "show": CommandPlace("gateway.workflows:show", "Show a workflow, or one of its runs."),
        "run": CommandPlace("gateway.workflows:run_", "Run a workflow and wait for its end."),
        "cancel": CommandPlace("gateway.workflows:cancel", "Cancel a run."),
    },
)


@command("create")
@click.argument(
    "source", metavar="FILE", help="The definition: a JSON file, - for stdin, or JSON itself."
)
@DRY_RUN
@asks_gateway({"VALIDATION_ERROR": "agents list"})
def create(run: Invocation, api: GatewayApi, source: str, dry_run: bool) -> None:
    """Define a workflow: a name and up to 20 steps, each with a name, an agentId (a name will do),
    and optionally skillId, input, dependsOn (places of earlier steps, from 0), timeout and
    retryPolicy.
    """
    from dragoman.gateway.workflows.plan import checked

    body = read_json(run, source, "FILE")
    if not isinstance(body, dict):
        raise usage("a definition is a JSON object with a name and steps")
    if dry_run:
        # As the gateway checks it, except for the agents, which only the gateway knows.
        checked(body, lambda name: True)
        _ITEMS.show(run, {"result": "would be created", **body})
        return
    made = api.ask("POST", "workflows", body)
    _ITEMS.show(run, made)
    run.out.note("Hint", api.command("workflows", "run", made["id"]))


@command("show")
@click.argument("workflow", metavar="WORKFLOW", help="The id of the workflow.")
@click.argument("run_id", metavar="[RUN]", required=False, help="The id of a run of it.")
@asks_gateway(_NO_WORKFLOW)
def show(run: Invocation, api: GatewayApi, workflow: str, run_id: str | None) -> None:
    """Show a workflow with its last ten runs, or one RUN of it."""
    if run_id:
        _ITEMS.show(run, api.ask("GET", _ITEMS.path(workflow, "runs", run_id)), _run_record)
    else:
        _ITEMS.show(run, api.ask("GET", _ITEMS.path(workflow)))


@command("run", defaults={"wait": "true"})
@click.argument("workflow", metavar="WORKFLOW", help="The id of the workflow.")
@asks_gateway(_NO_WORKFLOW)
def run_(run: Invocation, api: GatewayApi, workflow: str) -> None:
    """Run a workflow and wait for its end; --async returns at once. The exit code does not say how
    the run ended: see its status."""
    from dragoman.cli.calling.send import check_delivery

    check_delivery(run)
    begun: Any = None
    try:
        with budget(run):
            begun = api.ask("POST", _ITEMS.path(workflow, "execute"))
            if not run.settings.waits and not run.settings.stream:
                _ITEMS.show(run, begun, _run_record)
                run.out.note("Hint", api.command("workflows", "show", workflow, begun["id"]))
                return
            # Before waiting: an interrupt must not lose the id.
            run.out.note("Waiting", f"run {begun['id']} of workflow {workflow}")
            with ending_in_order():
                found = api.poll(_ITEMS.path(workflow, "runs", begun["id"]), _Progress(run).see)
    except Failure as failure:
        if begun is not None:
            # The run goes on in the gateway.
            failure.hint = api.command("workflows", "show", workflow, begun["id"])
        failure.hint = failure.hint or api.command("workflows", "show", workflow)
        raise
    if not run.settings.stream:
        _ITEMS.show(run, found, _run_record)
    if found["status"] != "completed":
        run.out.warn(f"run {found['id']} ended {found['status']}")


class _Progress:
    """Shows what changed in a run since it was last read."""

    def __init__(self, run: Invocation) -> None:
        self._run = run
        self._last: dict[str, Any] = {}
        self._steps: dict[int, str] = {}

    def see(self, found: dict[str, Any]) -> bool:
        """Show what is new; return whether the run has ended."""
        if self._run.settings.stream:
            if found != self._last:
                _ITEMS.show(self._run, found, _run_record)
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
@asks_gateway(_NO_WORKFLOW)
def cancel(run: Invocation, api: GatewayApi, workflow: str, run_id: str) -> None:
    """Cancel a run and the tasks of its steps."""
    _ITEMS.show(run, api.ask("POST", _ITEMS.path(workflow, "runs", run_id, "cancel")), _run_record)


def _record(run: Invocation, item: dict[str, Any]) -> None:
    run.out.fields(item, {"id": "Workflow"}, ("result", "id", "name", "description"))
    for index, step in enumerate(item.get("steps", [])):
        after = ", ".join(map(str, step.get("dependsOn", [])))
        words = f"{index} {step.get('name', '')} by {step.get('agentId', '')}"
        run.out.field("Step", words + (f" after {after}" if after else ""))
    for one in item.get("runs", []):
        run.out.field("Run", f"{one['id']} {one['status']} {one['createdAt']}")


def _run_record(run: Invocation, item: dict[str, Any]) -> None:
    labels = {"id": "Run", "workflowId": "Workflow"}
    run.out.fields(item, labels, ("id", "workflowId", "status"))
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


_ITEMS = GatewayItems("workflows", _record)
list_ = _ITEMS.listing(
    "List your workflows, newest first.",
    (
        Column("workflow", "id", "id"),
        Column("name", "name"),
        Column("age", "created_at", "age"),
    ),
    empty="no workflow is defined; `dragoman workflows create <file>` defines one",
)
