"""`dragoman trust rate` and `dispute`: a requester's rating of a completed task, or its dispute."""

from typing import Any
from urllib.parse import quote

import click

from dragoman.cli.gateway.gateway_api import NUMBER, GatewayApi, asks_gateway, task_path
from dragoman.cli.grammar import command
from dragoman.cli.invocation import Invocation
from dragoman.cli.own_options import typed_option

_AGENT = typed_option(
    "--agent",
    default="",
    metavar="<agent>",
    help="The agent that did the task, by name or id (the gateway knows it).",
)


@command("rate")
@click.argument("task", metavar="TASK", help="The id of a completed task of yours.")
@click.argument(
    "rating", metavar="RATING", type=click.IntRange(1, 5), help="1, the worst, to 5, the best."
)
@typed_option("--comment", default="", metavar="<text>", help="A comment.")
@_AGENT
@NUMBER
@asks_gateway()
def rate(
    run: Invocation,
    api: GatewayApi,
    task: str,
    rating: int,
    comment: str,
    agent: str,
    number: int | None,
) -> None:
    """Rate a completed task of yours, once. The rating counts for the trust in its agent and moves
    no money: `dragoman credits accept` does."""
    words = {"rating": rating} | ({"comment": comment} if comment else {})
    _say(run, api, "rate", task, number, agent, words)


@command("dispute")
@click.argument("task", metavar="TASK", help="The id of a completed task of yours.")
@typed_option(
    "--reason",
    required=True,
    metavar="<text>",
    help="Why it was not done; the operator of the gateway reads it.",
)
@_AGENT
@NUMBER
@asks_gateway()
def dispute(
    run: Invocation,
    api: GatewayApi,
    task: str,
    reason: str,
    agent: str,
    number: int | None,
) -> None:
    """Dispute a completed task of yours because it was not done. A price that is in escrow stays
    there until the operator of the gateway decides."""
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
    run.out.item(item, {"taskId": "Task", "agentId": "Agent", "trustScore": "Trust"})
