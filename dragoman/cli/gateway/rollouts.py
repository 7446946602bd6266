"""`dragoman rollouts`: new versions of agents, tried at a gateway beside the old ones."""

from typing import Any

import click

from dragoman.cli.failures import usage
from dragoman.cli.gateway.gateway_api import GatewayApi, asks_gateway
from dragoman.cli.gateway.gateway_items import GatewayItems
from dragoman.cli.grammar import CommandPlace, Group, command
from dragoman.cli.invocation import Invocation
from dragoman.cli.own_options import typed_option
from dragoman.cli.terminal.table import Column

_HELP = "dragoman rollouts start --help"
_NONE = {"NOT_FOUND": "rollouts list", "CONFLICT": "rollouts list"}
_FIELDS = (
    *("id", "agent", "candidate", "mode", "share", "state", "reason", "judged", "agreed"),
    *("agreement", "distance", "differ", "failed", "old", "new", "open", "dropped", "skipped"),
)
_LABELS = {"id": "Rollout", "candidate": "New-Version"}

rollouts = Group(
    "rollouts",
    help="Try a new version of an agent at a gateway, beside the old one.",
    places={
        "start": CommandPlace("gateway.rollouts:start", "Try a new version of an agent."),
        "list": CommandPlace("gateway.rollouts:list_", "List your rollouts, newest first."),
        "show": CommandPlace("gateway.rollouts:show", "Show a rollout and its figures."),
        "update": CommandPlace("gateway.rollouts:update", "Change its mode or share."),
        "promote": CommandPlace("gateway.rollouts:promote", "Replace the old version."),
        "rollback": CommandPlace("gateway.rollouts:rollback", "Keep the old version."),
    },
)
_ROLLOUT = click.argument("rollout", metavar="ROLLOUT", help="The id of the rollout.")


@command("start")
@click.argument("agent", metavar="AGENT", help="The agent: its name or id.")
@click.argument("candidate", metavar="CANDIDATE", help="Its new version: its name or id.")
@typed_option(
    "--mode",
    type=click.Choice(["shadow", "canary"]),
    default="shadow",
    help="shadow: a copy goes to CANDIDATE, AGENT answers; canary: CANDIDATE answers.",
)
@typed_option("--share", default="10%", metavar="<percent>", help="The share of tasks.")
@typed_option(
    "--max-distance",
    type=float,
    default=0.2,
    metavar="<0..1>",
    help="How far the two answers may differ: 0 is identical.",
)
@typed_option(
    "--check", default="", metavar="<agent>", help="Your own agent that judges the answers."
)
@typed_option(
    "--task-timeout", type=int, default=60, metavar="<seconds>", help="How long a copy may take."
)
@typed_option(
    "--after",
    type=int,
    default=0,
    metavar="<tasks>",
    help="Promote or roll back by itself after so many tasks.",
)
@typed_option(
    "--agreement",
    default="95%",
    metavar="<percent>",
    help="With --after: the share that must agree.",
)
@typed_option(
    "--failures", default="1%", metavar="<percent>", help="With --after: the share that may fail."
)
@typed_option(
    "--within",
    type=int,
    default=0,
    metavar="<seconds>",
    help="With --after: roll back if there were too few tasks in this time.",
)
@asks_gateway({"VALIDATION_ERROR": "rollouts start --help", "AGENT_NOT_FOUND": "agents list"})
def start(
    run: Invocation,
    api: GatewayApi,
    agent: str,
    candidate: str,
    mode: str,
    share: str,
    max_distance: float,
    check: str,
    task_timeout: int,
    after: int,
    agreement: str,
    failures: str,
    within: int,
) -> None:
    """Give some tasks of AGENT to CANDIDATE, as copies or instead.

    Both are registered agents of yours. AGENT has to be safe to repeat (--repeatable). CANDIDATE
    gets no other tasks from here on.
    """
    body: dict[str, Any] = {
        "agentId": agent,
        "candidateId": candidate,
        "mode": mode,
        "share": _part(share, "--share"),
        "maxDistance": max_distance,
        "timeoutSeconds": task_timeout,
    }
    if check:
        body["checkAgentId"] = check
    if after:
        body["rule"] = {
            "least": after,
            "agreement": _part(agreement, "--agreement"),
            "failures": _part(failures, "--failures"),
        } | ({"withinSeconds": within} if within else {})
    elif within:
        raise usage("--within needs --after", _HELP)
    made = api.ask("POST", "rollouts", body)
    _ITEMS.show(run, made)
    run.out.note("Hint", api.command("rollouts", "show", made["id"]))


@command("show")
@_ROLLOUT
@asks_gateway(_NONE)
def show(run: Invocation, api: GatewayApi, rollout: str) -> None:
    """Show a rollout, its figures, and the latest tasks that did not agree."""
    found = api.ask("GET", _ITEMS.path(rollout))
    _ITEMS.show(run, found)
    if not run.out.is_json:
        for one in found["recent"]:
            if one["result"] != "agreed":
                _show_difference(run, one)


@command("update")
@_ROLLOUT
@typed_option(
    "--mode",
    type=click.Choice(["shadow", "canary"]),
    default=None,
    help="Who answers from here on; the figures begin anew.",
)
@typed_option("--share", default="", metavar="<percent>", help="The share of tasks.")
@asks_gateway(_NONE | {"VALIDATION_ERROR": "rollouts update --help"})
def update(run: Invocation, api: GatewayApi, rollout: str, mode: str | None, share: str) -> None:
    """Make a shadow a canary, or the reverse, or give it another share of the tasks."""
    body: dict[str, Any] = {"mode": mode} if mode else {}
    if share:
        body["share"] = _part(share, "--share")
    if not body:
        raise usage("say what to change", remedy="--mode canary")
    _ITEMS.show(run, api.ask("PATCH", _ITEMS.path(rollout), body))


@command("promote")
@_ROLLOUT
@asks_gateway(_NONE)
def promote(run: Invocation, api: GatewayApi, rollout: str) -> None:
    """Put the new version in the agent's place: its address, its card, its credential."""
    _ITEMS.show(run, api.ask("POST", _ITEMS.path(rollout, "promote")))


@command("rollback")
@_ROLLOUT
@asks_gateway(_NONE)
def rollback(run: Invocation, api: GatewayApi, rollout: str) -> None:
    """Leave the old version in its place."""
    _ITEMS.show(run, api.ask("POST", _ITEMS.path(rollout, "rollback")))


def _part(text: str, name: str) -> float:
    """Return a share that is given in percent, or as a part of 1."""
    number = text.strip().removesuffix("%")
    try:
        return float(number) / 100 if text.strip().endswith("%") else float(number)
    except ValueError:
        raise usage(f"{name} is a percentage such as 10%", _HELP) from None


def _record(run: Invocation, item: dict[str, Any]) -> None:
    counted = item["figures"]
    differ = {
        "structure": counted["structureDiffers"],
        "text": counted["textDiffers"],
        "check": counted["checkFailed"],
    }
    shown = {
        **item,
        **counted,
        "share": f"{item['share']:.4%}".rstrip("0%").rstrip(".") + "%",
        "differ": ", ".join(f"{name} {count}" for name, count in differ.items() if count),
        "old": _version(counted["old"]),
        "new": _version(counted["new"]),
    }
    run.out.fields(shown, _LABELS, _FIELDS)


def _version(counted: dict[str, Any]) -> str:
    took = counted["milliseconds"]
    mean = "" if took is None else f", {took} ms on average"
    return f"{counted['tasks']} tasks, {counted['failed']} failed{mean}"


def _show_difference(run: Invocation, one: dict[str, Any]) -> None:
    distance = one.get("distance")
    said = [one["result"], one.get("reason", "")]
    said += [] if distance is None else [f"distance {distance}"]
    run.out.field("Task", f"{one['taskId']} ({', '.join(word for word in said if word)})")


_ITEMS = GatewayItems("rollouts", _record)
list_ = _ITEMS.listing(
    "List your rollouts, newest first.",
    (
        Column("rollout", "id", "id"),
        Column("agent", "agent"),
        Column("new version", "candidate"),
        Column("mode", "mode"),
        Column("state", "state"),
        Column("judged", "figures/judged", "number"),
        Column("agreed", "figures/agreed", "number"),
        Column("failed", "figures/failed", "number"),
        Column("reason", "reason"),
    ),
    empty="no version is tried; `dragoman rollouts start --help` says how",
)
