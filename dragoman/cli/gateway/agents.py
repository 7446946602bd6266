"""`dragoman agents`: the agents of a running gateway, registered, shown, changed and removed.

A token for an agent comes from a variable or a file, never from the command line, and is not shown.
"""

import sys
from typing import Any

import click

from dragoman.cli.failures import usage
from dragoman.cli.gateway.agent_items import COLUMNS, described, item_of, show_record, tell_unpaid
from dragoman.cli.gateway.agent_options import (
    DESCRIPTION,
    DRY_RUN,
    OFFLINE,
    agent_at,
    body_of,
)
from dragoman.cli.gateway.gateway_api import (
    GatewayApi,
    asks_gateway,
    path_of,
)
from dragoman.cli.grammar import CommandPlace, Group, command
from dragoman.cli.invocation import Invocation
from dragoman.cli.own_options import PAGE_TOKEN, YES, show_page, typed_option

_DIGEST = 64

agents = Group(
    "agents",
    help="Register agents with a gateway and manage them.",
    places={
        "register": CommandPlace("gateway.agents:register", "Register an agent."),
        "list": CommandPlace("gateway.agents:list_", "List agents, the most trusted first."),
        "show": CommandPlace("gateway.agents:show", "Show an agent and its card."),
        "update": CommandPlace("gateway.agents:update", "Change an agent."),
        "probe": CommandPlace("gateway.agents:probe", "Check whether an agent answers."),
        "accept": CommandPlace("gateway.agents:accept", "Accept a card that was held."),
        "remove": CommandPlace("gateway.agents:remove", "Remove an agent."),
    },
)


@command("register")
@click.argument("ref", metavar="REF")
@DESCRIPTION
@OFFLINE
@DRY_RUN
@asks_gateway()
def register(
    run: Invocation,
    api: GatewayApi,
    ref: str,
    offline: bool,
    dry_run: bool,
    **said: Any,
) -> None:
    """Register an agent by its host, its URL or the file of its card.

    Its card is fetched and pinned: calls and credentials go where it says today, within its own
    origin and those that --origin names. An agent that does not answer is registered as offline if
    it has a name, and the exit is 1 unless --offline is given.
    """
    body = agent_at(ref) | body_of(run, said)
    if offline:
        body["offline"] = True
    if dry_run:
        _show(run, {"result": "would be registered", **described(body)})
        return
    answer = api.ask("POST", "agents", body)
    agent = item_of(answer)
    result = "registered as offline" if agent["health"] == "offline" else "registered"
    _show(run, {"result": result, **agent, "address": f"{api.url}/a2a/{agent['name']}"})
    _check_taken(run, body, answer)
    _check_health(run, agent, offline)


@command("list")
@typed_option(
    "--tag", "tags", multiple=True, metavar="<tag>", help="With any of these. Repeatable."
)
@typed_option(
    "--health",
    type=click.Choice(["online", "degraded", "offline"]),
    help="Only those in this state.",
)
@typed_option("--text", default="", metavar="<words>", help="With these words in their texts.")
@typed_option("--skill", default="", metavar="<id>", help="With this skill.")
@typed_option(
    "--limit", type=click.IntRange(1, 100), default=50, metavar="<1..100>", help="Page size (50)."
)
@PAGE_TOKEN
@asks_gateway()
def list_(
    run: Invocation,
    api: GatewayApi,
    tags: tuple[str, ...],
    health: str | None,
    text: str,
    skill: str,
    limit: int,
    page_token: str,
) -> None:
    """List the agents that are online, and your own in any state; the most trusted first."""
    query = {
        "limit": limit,
        "skillTags": ",".join(tags),
        "status": health,
        "text": text,
        "skill": skill,
    }
    found, token = api.page("agents", "agents", page_token, query)
    items = [item_of(agent, card=False) for agent in found]
    show_page(
        run,
        items,
        token,
        lambda item: show_record(run, item),
        columns=COLUMNS,
        empty="no agent is registered; `dragoman agents register <url>` registers one",
    )
    tell_unpaid(run, items)


@command("show")
@click.argument("agent", metavar="AGENT")
@asks_gateway()
def show(run: Invocation, api: GatewayApi, agent: str) -> None:
    """Show an agent: its state, and with -o json its card."""
    _show(run, item_of(api.ask("GET", path_of(agent))))


@command("update")
@click.argument("agent", metavar="AGENT")
@typed_option("--url", metavar="<url>", help="Its address; its card is fetched there and pinned.")
@typed_option("--accept", metavar="<digest>", help="Accept the card that was held, by its digest.")
@DESCRIPTION
@typed_option("--no-token", switch=True, help="Send it no token any more.")
@OFFLINE
@DRY_RUN
@asks_gateway()
def update(
    run: Invocation,
    api: GatewayApi,
    agent: str,
    url: str | None,
    accept: str | None,
    no_token: bool,
    offline: bool,
    dry_run: bool,
    **said: Any,
) -> None:
    """Change an agent: what is not given stays. A list that is given replaces the one before."""
    body = body_of(run, said)
    if url:
        body["endpoint"] = url
    if no_token:
        if "credential" in body:
            raise usage("--no-token and a token cannot both be meant")
        body["credential"] = None
    if not (body or accept):
        raise usage(
            "what is to change? name it: --price 2, --tag maps, --accept <digest>",
            remedy="--price 2",
        )
    if dry_run:
        result = "would be changed" + (", its card accepted" if accept else "")
        _show(run, {"result": result, "name": agent, **described(body)})
        return
    # First: accepting may need an origin that the same command allows.
    found: Any = api.ask("PATCH", path_of(agent), body) if body else {}
    if accept:
        found = api.ask("POST", path_of(agent, "accept"), _digest(accept))
    agent_now = item_of(found)
    _show(run, {"result": "changed", **agent_now})
    _check_taken(run, body, found)
    if url:
        _check_health(run, agent_now, offline)


@command("probe")
@click.argument("agent", metavar="AGENT")
@asks_gateway()
def probe(run: Invocation, api: GatewayApi, agent: str) -> None:
    """Check whether an agent answers, and read its card."""
    _show(run, item_of(api.ask("POST", path_of(agent, "probe"))))


@command("accept")
@click.argument("agent", metavar="AGENT")
@click.argument(
    "digest", metavar="DIGEST", help="Of the card that is held; `dragoman agents show` tells it."
)
@asks_gateway()
def accept(run: Invocation, api: GatewayApi, agent: str, digest: str) -> None:
    """Put a held card in force. A card is held if it changes where calls or credentials go.

    `dragoman agents show` tells its digest. If the agent shows another card meanwhile, that one
    is not accepted.
    """
    _show(run, item_of(api.ask("POST", path_of(agent, "accept"), _digest(digest))))


def _digest(text: str) -> dict[str, str]:
    if len(text) != _DIGEST:
        raise usage(
            f"a digest has {_DIGEST} digits and letters: `dragoman agents show` tells it",
            "dragoman agents list",
        )
    return {"digest": text.lower()}


@command("remove")
@click.argument("agent", metavar="AGENT")
@YES
@DRY_RUN
@asks_gateway()
def remove(run: Invocation, api: GatewayApi, agent: str, yes: bool, dry_run: bool) -> None:
    """Remove an agent: its address ends, and its credential is deleted."""
    if not (yes or dry_run):
        raise usage(
            "this ends the agent's address; --yes does it, --dry-run says what it would",
            remedy="--dry-run",
        )
    item = item_of(api.ask("GET", path_of(agent)), card=False)
    if not dry_run:
        api.ask("DELETE", path_of(agent))
    _show(run, {"result": "would be removed" if dry_run else "removed", **item})


def _check_taken(run: Invocation, body: dict[str, Any], agent: dict[str, Any]) -> None:
    """Warn of what the gateway ignored: one of another release may not know it."""
    if "refresh" in body and agent.get("refresh") != body["refresh"]:
        run.out.warn("--refresh had no effect: this gateway does not support it")


def _check_health(run: Invocation, agent: dict[str, Any], is_meant: bool) -> None:
    """Exit with 1 for an agent that does not answer at its new address: it may be a typo."""
    if agent["health"] != "offline" or is_meant:
        return
    reason = f": {agent['healthReason']}" if agent.get("healthReason") else ""
    run.out.warn(f"no agent answers at {agent['url']}{reason}")
    run.out.note("Hint", f"dragoman agents update {agent['name']} --url <url>")
    sys.exit(1)


def _show(run: Invocation, item: dict[str, Any]) -> None:
    if run.out.is_json:
        run.out.json(item)
    else:
        show_record(run, item)
    tell_unpaid(run, [item])
    if item.get("pendingReason"):
        run.out.warn(f"a later card is held: {item['pendingReason']}")
        run.out.note("Hint", f"dragoman agents show {item['name']} -o json")
        run.out.note("Hint", f"dragoman agents accept {item['name']} {item['pendingDigest']}")
