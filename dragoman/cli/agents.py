"""`dragoman agents`: the agents of a gateway, registered, looked at, changed and removed.

It asks a running gateway. What the gateway is to show an agent comes from a variable or a file,
never from the command line, and is shown nowhere.
"""

import sys
from typing import Any

import click

from dragoman.cli.agent_items import described, item_of, show_record
from dragoman.cli.agent_said import DESCRIPTION, DRY_RUN, OFFLINE, agent_at, body_of, said_of
from dragoman.cli.failures import usage
from dragoman.cli.gateway_api import GATEWAY_OPTIONS, GatewayApi, path_of
from dragoman.cli.grammar import Group, Place, command
from dragoman.cli.invocation import Invocation
from dragoman.cli.own import PAGE_TOKEN, YES, show_page

_DIGEST = 64

agents = Group(
    "agents",
    help="Register agents with a gateway and look after them.",
    places={
        "register": Place("dragoman.cli.agents:register", "Register an agent."),
        "list": Place("dragoman.cli.agents:list_", "List agents, the most trusted first."),
        "show": Place("dragoman.cli.agents:show", "Show an agent and its card."),
        "update": Place("dragoman.cli.agents:update", "Change an agent."),
        "probe": Place("dragoman.cli.agents:probe", "See whether an agent answers."),
        "accept": Place("dragoman.cli.agents:accept", "Accept a card that was held."),
        "remove": Place("dragoman.cli.agents:remove", "Remove an agent."),
    },
)


@command("register")
@click.argument("ref", metavar="REF")
@DESCRIPTION
@OFFLINE
@DRY_RUN
@GATEWAY_OPTIONS
def register(
    run: Invocation,
    ref: str,
    offline: bool,
    dry_run: bool,
    gateway: str,
    admin_token: str,
    **said: Any,
) -> None:
    """Register an agent by its host, its URL or the file of its card.

    Its card is fetched and pinned: calls and credentials go where it says today, within its own
    origin and those that --origin names. Where nobody answers, it is registered as offline if it
    has a name, and the exit is 1 unless --offline says that this is meant.
    """
    api = GatewayApi(run, gateway, admin_token)
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
@said_of("--tag", "tags", multiple=True, metavar="<tag>", help="With any of these. Repeatable.")
@said_of(
    "--health",
    type=click.Choice(["online", "degraded", "offline"]),
    metavar="<online|degraded|offline>",
    help="Only those in this state.",
)
@said_of("--text", default="", metavar="<words>", help="With these words in what they say.")
@said_of("--skill", default="", metavar="<id>", help="With this skill.")
@said_of(
    "--limit", type=click.IntRange(1, 100), default=50, metavar="<1..100>", help="Page size (50)."
)
@PAGE_TOKEN
@GATEWAY_OPTIONS
def list_(
    run: Invocation,
    tags: tuple[str, ...],
    health: str | None,
    text: str,
    skill: str,
    limit: int,
    page_token: str,
    gateway: str,
    admin_token: str,
) -> None:
    """List the agents that are online, and your own in any state; the most trusted first."""
    if page_token and not (page_token.isdecimal() and page_token.isascii()):
        raise usage("--page-token is not one of `dragoman agents list`")
    offset = int(page_token or 0)
    found = GatewayApi(run, gateway, admin_token).ask(
        "GET",
        "agents",
        query={
            "skillTags": ",".join(tags),
            "status": health or "",
            "text": text,
            "skill": skill,
            "limit": limit,
            "offset": offset,
        },
    )
    items = [item_of(agent, card=False) for agent in found["agents"]]
    end = offset + len(items)
    token = str(end) if items and end < found["total"] else ""
    show_page(run, items, token, lambda item: show_record(run, item))


@command("show")
@click.argument("agent", metavar="AGENT")
@GATEWAY_OPTIONS
def show(run: Invocation, agent: str, gateway: str, admin_token: str) -> None:
    """Show an agent: its state, and with -o json its card."""
    _show(run, item_of(GatewayApi(run, gateway, admin_token).ask("GET", path_of(agent))))


@command("update")
@click.argument("agent", metavar="AGENT")
@said_of("--url", metavar="<url>", help="Where it is; its card is fetched there and pinned.")
@said_of("--accept", metavar="<digest>", help="Accept the card that was held, by its digest.")
@DESCRIPTION
@said_of("--no-token", switch=True, help="Show it nothing any more.")
@OFFLINE
@DRY_RUN
@GATEWAY_OPTIONS
def update(
    run: Invocation,
    agent: str,
    url: str | None,
    accept: str | None,
    no_token: bool,
    offline: bool,
    dry_run: bool,
    gateway: str,
    admin_token: str,
    **said: Any,
) -> None:
    """Change an agent: what is not named stays. A list that is named replaces the one before."""
    api = GatewayApi(run, gateway, admin_token)
    body = body_of(run, said)
    if url:
        body["endpoint"] = url
    if no_token:
        if "credential" in body:
            raise usage("--no-token and a token cannot both be meant")
        body["credential"] = None
    if not (body or accept):
        raise usage("what is to change? name it: --price 2, --tag maps, --accept <digest>")
    if dry_run:
        result = "would be changed" + (", its card accepted" if accept else "")
        _show(run, {"result": result, "name": agent, **described(body)})
        return
    # First: accepting may need an origin that is allowed by the same command.
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
@GATEWAY_OPTIONS
def probe(run: Invocation, agent: str, gateway: str, admin_token: str) -> None:
    """See whether an agent answers, and look at its card."""
    _show(run, item_of(GatewayApi(run, gateway, admin_token).ask("POST", path_of(agent, "probe"))))


@command("accept")
@click.argument("agent", metavar="AGENT")
@click.argument(
    "digest", metavar="DIGEST", help="Of the card that is held; `dragoman agents show` tells it."
)
@GATEWAY_OPTIONS
def accept(run: Invocation, agent: str, digest: str, gateway: str, admin_token: str) -> None:
    """Put the card of an agent in force that was held, because it changes where calls or
    credentials go.

    `dragoman agents show` tells its digest. If the agent shows yet another card meanwhile, that one
    is not accepted.
    """
    api = GatewayApi(run, gateway, admin_token)
    _show(run, item_of(api.ask("POST", path_of(agent, "accept"), _digest(digest))))


def _digest(text: str) -> dict[str, str]:
    if len(text) != _DIGEST:
        raise usage(f"a digest has {_DIGEST} digits and letters: `dragoman agents show` tells it")
    return {"digest": text.lower()}


@command("remove")
@click.argument("agent", metavar="AGENT")
@YES
@DRY_RUN
@GATEWAY_OPTIONS
def remove(
    run: Invocation, agent: str, yes: bool, dry_run: bool, gateway: str, admin_token: str
) -> None:
    """Remove an agent: its address ends, and what the gateway showed it is forgotten."""
    api = GatewayApi(run, gateway, admin_token)
    if not (yes or dry_run):
        raise usage("this ends the agent's address; --yes does it, --dry-run says what it would")
    item = item_of(api.ask("GET", path_of(agent)), card=False)
    if not dry_run:
        api.ask("DELETE", path_of(agent))
    _show(run, {"result": "would be removed" if dry_run else "removed", **item})


def _check_taken(run: Invocation, body: dict[str, Any], agent: dict[str, Any]) -> None:
    """Say what a gateway passed over: one of another release may not know it."""
    if "refresh" in body and agent.get("refresh") != body["refresh"]:
        run.out.warn("--refresh was not taken: this gateway does not say how often it looks")


def _check_health(run: Invocation, agent: dict[str, Any], is_meant: bool) -> None:
    """Exit with 1 for an agent that does not answer at the address that was just given: a typo is
    no success."""
    if agent["health"] != "offline" or is_meant:
        return
    reason = f": {agent['healthReason']}" if agent.get("healthReason") else ""
    run.out.warn(f"nobody answers at {agent['url']}{reason}")
    run.out.note("Hint", f"dragoman agents update {agent['name']} --url <url>")
    sys.exit(1)


def _show(run: Invocation, item: dict[str, Any]) -> None:
    if run.out.is_json:
        run.out.json(item)
    else:
        show_record(run, item)
    if item.get("pendingReason"):
        run.out.warn(f"a later card is held: {item['pendingReason']}")
        run.out.note("Hint", f"dragoman agents show {item['name']} -o json")
        run.out.note("Hint", f"dragoman agents accept {item['name']} {item['pendingDigest']}")
