"""`dragoman triggers`: tasks of a gateway that begin by the clock, or when something is posted."""

from typing import Any

import click

from dragoman.cli.failures import usage
from dragoman.cli.gateway.gateway_api import GatewayApi, asks_gateway
from dragoman.cli.gateway.gateway_items import GatewayItems
from dragoman.cli.grammar import CommandPlace, Group, command
from dragoman.cli.hints import again
from dragoman.cli.invocation import Invocation
from dragoman.cli.json_source import read_json
from dragoman.cli.own_options import typed_option
from dragoman.cli.terminal.table import Column

_NONE = {"NOT_FOUND": "triggers list", "AGENT_NOT_FOUND": "agents list"}
_FIELDS = (
    *("result", "id", "name", "agentId", "skillId", "enabled", "text", "webhook", "secret"),
    *("nextDueAt", "runs", "lastAt", "lastTaskId", "lastProblem"),
)
_LABELS = {
    "id": "Trigger",
    "agentId": "Agent",
    "skillId": "Skill",
    "nextDueAt": "Next",
    "lastAt": "Last",
    "lastTaskId": "Last-Task",
    "lastProblem": "Last-Problem",
}

triggers = Group(
    "triggers",
    help="Let a gateway start tasks on a schedule, or by a webhook.",
    places={
        "add": CommandPlace("gateway.triggers:add", "Make a trigger."),
        "list": CommandPlace("gateway.triggers:list_", "List your triggers, newest first."),
        "show": CommandPlace("gateway.triggers:show", "Show a trigger and its last runs."),
        "update": CommandPlace("gateway.triggers:update", "Change a trigger."),
        "pause": CommandPlace("gateway.triggers:pause", "Turn a trigger off."),
        "resume": CommandPlace("gateway.triggers:resume", "Turn a trigger on again."),
        "run": CommandPlace("gateway.triggers:run_", "Start a task of a trigger now."),
        "secret": CommandPlace("gateway.triggers:secret", "Replace the secret of a webhook."),
        "remove": CommandPlace("gateway.triggers:remove", "Remove a trigger."),
    },
)
_TRIGGER = click.argument("trigger", metavar="TRIGGER", help="The id of the trigger.")
_TEXT = click.argument("text", metavar="[TEXT]", required=False, help="The message to the agent.")


@command("add")
@click.argument("agent", metavar="AGENT", help="The agent: its name or id.")
@_TEXT
@typed_option("--name", default="", metavar="<name>", help="Its name (the agent's).")
@typed_option(
    "--cron",
    default="",
    metavar="<expression>",
    help="Begin tasks at these times: minute, hour, day, month, weekday, as '0 9 * * 1-5'.",
)
@typed_option(
    "--zone", default="UTC", metavar="<zone>", help="The time zone of --cron, as Europe/Paris."
)
@typed_option(
    "--missed",
    type=click.Choice(["skip", "once", "all"]),
    default="once",
    help="After a time without the gateway: run none of the missed times, the last, or all.",
)
@typed_option(
    "--webhook",
    switch=True,
    default=False,
    help="Begin a task for each post; the address and the secret are shown.",
)
@typed_option("--skill", default="", metavar="<id>", help="The skill to use.")
@typed_option(
    "--data", default="", metavar="<json>", help="Data for the agent: JSON, a file, or - for stdin."
)
@asks_gateway({"VALIDATION_ERROR": "triggers add --help", "AGENT_NOT_FOUND": "agents list"})
def add(
    run: Invocation,
    api: GatewayApi,
    agent: str,
    text: str | None,
    name: str,
    cron: str,
    zone: str,
    missed: str,
    webhook: bool,
    skill: str,
    data: str,
) -> None:
    """Send TEXT to AGENT at the times of --cron, or for each post with --webhook.

    In TEXT and --data, {/issue/title} stands for that value of the post and {due} for the time.
    Without either, the agent gets the posted body.
    """
    if bool(cron) == webhook:
        raise usage("say when: --cron '0 9 * * *', or --webhook", remedy="--cron '0 9 * * *'")
    body: dict[str, Any] = {"name": name or agent, "agentId": agent, "text": text or ""}
    if skill:
        body["skillId"] = skill
    if data:
        body["data"] = read_json(run, data, "--data")
    if webhook:
        body["webhook"] = True
    else:
        body["schedule"] = {"cron": cron, "zone": zone, "missed": missed}
    made = api.ask("POST", "triggers", body)
    if made.get("webhook"):
        made["webhook"] = f"{api.url}{made['webhook']}"
    _ITEMS.show(run, made)
    run.out.note("Hint", api.command("triggers", "run", made["id"]))


@command("show")
@_TRIGGER
@asks_gateway(_NONE)
def show(run: Invocation, api: GatewayApi, trigger: str) -> None:
    """Show a trigger, when it is due, and what came of it last."""
    _ITEMS.show(run, api.ask("GET", _ITEMS.path(trigger)))


@command("update")
@_TRIGGER
@_TEXT
@typed_option("--name", default="", metavar="<name>", help="Another name.")
@typed_option(
    "--data", default="", metavar="<json>", help="Data for the agent: JSON, a file, or - for stdin."
)
@typed_option("--cron", default="", metavar="<expression>", help="When tasks begin.")
@typed_option("--zone", default="", metavar="<zone>", help="The time zone of --cron.")
@typed_option(
    "--missed",
    type=click.Choice(["skip", "once", "all"]),
    default=None,
    help="What becomes of times that pass without the gateway.",
)
@asks_gateway(_NONE | {"VALIDATION_ERROR": "triggers update --help"})
def update(
    run: Invocation,
    api: GatewayApi,
    trigger: str,
    text: str | None,
    name: str,
    data: str,
    cron: str,
    zone: str,
    missed: str | None,
) -> None:
    """Change a trigger; what is not given stays. A time that is due already is not lost."""
    body: dict[str, Any] = {}
    for field, value in (("name", name), ("text", text)):
        if value:
            body[field] = value
    if data:
        body["data"] = read_json(run, data, "--data")
    given = {"cron": cron, "zone": zone, "missed": missed}
    plan = {field: value for field, value in given.items() if value}
    if plan:
        before: dict[str, Any] = api.ask("GET", _ITEMS.path(trigger)).get("schedule") or {}
        body["schedule"] = {"cron": "", **before, **plan}
    if not body:
        raise usage("say what to change: TEXT, or an option", again(run, "<text>"))
    _ITEMS.show(run, api.ask("PATCH", _ITEMS.path(trigger), body))


@command("pause")
@_TRIGGER
@asks_gateway(_NONE)
def pause(run: Invocation, api: GatewayApi, trigger: str) -> None:
    """Turn a trigger off; times that pass are not made up for."""
    _ITEMS.show(run, api.ask("PATCH", _ITEMS.path(trigger), {"enabled": False}))


@command("resume")
@_TRIGGER
@asks_gateway(_NONE)
def resume(run: Invocation, api: GatewayApi, trigger: str) -> None:
    """Turn a trigger on again."""
    _ITEMS.show(run, api.ask("PATCH", _ITEMS.path(trigger), {"enabled": True}))


@command("run")
@_TRIGGER
@asks_gateway(_NONE)
def run_(run: Invocation, api: GatewayApi, trigger: str) -> None:
    """Begin a task now, beside the schedule."""
    begun = api.ask("POST", _ITEMS.path(trigger, "run"))
    if run.out.is_json:
        run.out.json(begun)
    else:
        run.out.field("Task", begun["taskId"])


@command("secret")
@_TRIGGER
@asks_gateway(_NONE)
def secret(run: Invocation, api: GatewayApi, trigger: str) -> None:
    """Give the webhook of a trigger another secret; the one before ends at once."""
    _ITEMS.show(run, api.ask("POST", _ITEMS.path(trigger, "secret")))


@command("remove")
@_TRIGGER
@asks_gateway(_NONE)
def remove(run: Invocation, api: GatewayApi, trigger: str) -> None:
    """Remove a trigger; the tasks that it began stay."""
    api.ask("DELETE", _ITEMS.path(trigger))
    _ITEMS.show(run, {"result": "removed", "id": trigger})


def _record(run: Invocation, item: dict[str, Any]) -> None:
    if schedule := item.get("schedule"):
        cron, zone = schedule["cron"], schedule.get("zone", "UTC")
        missed = schedule.get("missed", "once")
        item = item | {"schedule": f"{cron} ({zone}, missed: {missed})"}
    if item.get("enabled") is False:
        # What is not so is left out elsewhere; that a trigger is off is worth a line.
        item = item | {"enabled": "no"}
    run.out.fields(item, _LABELS, (*_FIELDS[:6], "schedule", *_FIELDS[6:]))


_ITEMS = GatewayItems("triggers", _record)
list_ = _ITEMS.listing(
    "List your triggers, newest first.",
    (
        Column("trigger", "id", "id"),
        Column("name", "name"),
        Column("agent", "agentId"),
        Column("skill", "skillId"),
        Column("schedule", "schedule/cron"),
        Column("enabled", "enabled"),
        Column("next", "nextDueAt", "age"),
        Column("runs", "runs", "number"),
        Column("last problem", "lastProblem"),
    ),
    empty="no trigger is defined; `dragoman triggers add --help` says how",
)
