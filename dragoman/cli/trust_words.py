"""`dragoman trust rate` and `dispute`: what a requester has to say of a task that was completed,
told to a running gateway."""

from typing import Any
from urllib.parse import quote

import click

from dragoman.cli.gateway_api import GATEWAY_OPTIONS, NUMBER, GatewayApi, task_path
from dragoman.cli.grammar import command
from dragoman.cli.invocation import Invocation
from dragoman.cli.own import own

_AGENT = own(
    "--agent",
    default="",
    in_environment=False,
    metavar="<agent>",
    help="Who did the task, by name or id (the gateway knows).",
)


@command("rate")
@click.argument("task", metavar="TASK", help="The id of a completed task of yours.")
@click.argument(
    "rating", metavar="RATING", type=click.IntRange(1, 5), help="1, the worst, to 5, the best."
)
@own("--comment", default="", in_environment=False, metavar="<text>", help="What else to say.")
@_AGENT
@NUMBER
@GATEWAY_OPTIONS
def rate(
    run: Invocation,
    task: str,
    rating: int,
    comment: str,
    agent: str,
    number: int | None,
    gateway: str,
    admin_token: str,
) -> None:
    """Rate a completed task of yours, once. It counts for how far its agent is trusted, and moves
    no money: `dragoman credits accept` does."""
    api = GatewayApi(run, gateway, admin_token)
    words = {"rating": rating} | ({"comment": comment} if comment else {})
    _say(run, api, "rate", task, number, agent, words)


@command("dispute")
@click.argument("task", metavar="TASK", help="The id of a completed task of yours.")
@own(
    "--reason",
    required=True,
    in_environment=False,
    metavar="<text>",
    help="Why it was not done; whoever runs the gateway reads it.",
)
@_AGENT
@NUMBER
@GATEWAY_OPTIONS
def dispute(
    run: Invocation,
    task: str,
    reason: str,
    agent: str,
    number: int | None,
    gateway: str,
    admin_token: str,
) -> None:
    """Say that a completed task of yours was not done. A price that is in escrow stays there until
    whoever runs the gateway decides."""
    api = GatewayApi(run, gateway, admin_token)
    _say(run, api, "dispute", task, number, agent, {"reason": reason})


_DONE = {"rate": "rated", "dispute": "disputed"}


def _say(
    run: Invocation,
    api: GatewayApi,
    verb: str,
    task: str,
    number: int | None,
    agent: str,
    words: dict[str, Any],
) -> None:
    if not agent:
        known = api.ask("GET", task_path(task, "escrow"), query={"number": number})
        agent, number = known["agentId"], known["taskNumber"]
    body = {"taskId": task, **words} | ({"taskNumber": number} if number else {})
    found = api.ask("POST", f"trust/{quote(agent.removeprefix('@'), safe='')}/{verb}", body)
    item = {"result": _DONE[verb], "taskId": found["taskId"], "agentId": agent}
    item["trustScore"] = found["trustScore"]
    if run.out.is_json:
        run.out.json(item)
        return
    run.out.field("Result", item["result"])
    run.out.field("Task", item["taskId"])
    run.out.field("Agent", agent)
    run.out.field("Trust", str(item["trustScore"]))
