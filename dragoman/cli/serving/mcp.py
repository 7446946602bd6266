"""`dragoman mcp`: A2A agents, or a whole gateway, for programs that speak MCP."""

import asyncio
import signal
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from dragoman.cli.failures import usage
from dragoman.cli.grammar import command
from dragoman.cli.invocation import Invocation
from dragoman.cli.own_options import added, own, typed_option
from dragoman.cli.serving.listening import LISTENING, served, tell
from dragoman.cli.sources import CommandSettings, Origin

if TYPE_CHECKING:
    # Heavy: loaded when something is served.
    from dragoman.client.client import Client
    from dragoman.mcp.offers import Offers
    from dragoman.server.app import App
    from dragoman.server.process.run import Ready

# Of what listens, what is without effect here: nothing is kept, posted or described by a card.
_IDLE = ("store", "public_url", "allow_private", "grpc_listen")
_WHAT = added(
    [
        typed_option(
            "-a",
            "--agent-card",
            "refs",
            multiple=True,
            metavar="<ref>",
            help="An agent to offer: host, URL, card file or @name. Repeatable.",
        ),
        typed_option(
            "--gateway",
            default="",
            metavar="<url>",
            help="A gateway to offer, with all of its agents.",
        ),
        own(
            "--admin-token",
            default="",
            metavar="<token>",
            help="A token or an API key for the gateway. A flag is visible in the process list and "
            "in your shell's history; better use",
        ),
    ]
)


@command("mcp")
@_WHAT
@LISTENING
def mcp(
    run: Invocation,
    refs: tuple[str, ...],
    gateway: str,
    admin_token: str,
    listen: tuple[str, ...],
    auth: tuple[str, ...],
    public: bool,
    **values: Any,
) -> None:
    """Offer A2A agents (-a) or a gateway (--gateway) as an MCP server.

    It speaks on stdin and stdout, for the program that starts it; with --listen on a port, at /mcp,
    to callers who are let in as they are to agents. All of them act with the credentials that this
    command has.
    """
    if bool(refs) == bool(gateway):
        raise usage(
            "offer agents (-a <ref>) or a gateway (--gateway <url>), one of the two",
            "dragoman mcp --gateway http://127.0.0.1:8000",
        )
    from dragoman.mcp.connection import check_installed

    check_installed()
    offers = _gateway(run, gateway, admin_token) if gateway else _agents(run, refs)
    if not any(map(_is_typed, ("listen", "host", "port"))):
        _on_stdio(offers)
        return
    if idle := [name for name in _IDLE if _is_typed(name)]:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in idle)
        raise usage(f"without effect on dragoman mcp: {flags}")
    _on_port(run, offers, listen, auth, public, values)


def _is_typed(name: str) -> bool:
    source = click.get_current_context().get_parameter_source(name)
    return source is ParameterSource.COMMANDLINE


def _on_stdio(offers: "Offers") -> None:
    from dragoman.mcp.server import on_stdio

    # There is nothing to put in order, and the thread that reads stdin cannot be told to stop.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    asyncio.run(on_stdio(offers))


def _on_port(
    run: Invocation,
    offers: "Offers",
    listen: Sequence[str],
    auth: Sequence[str],
    public: bool,
    values: dict[str, Any],
) -> None:
    from dragoman.mcp.app import PATH, mcp_app
    from dragoman.server.process.run import run as run_server

    settings = served(run, listen, auth, values | {"store": "memory:", "push": False})

    def make(*agents: Any, settings: Any, is_local: bool) -> "App":
        return mcp_app(offers, settings, is_local=is_local)

    def on_ready(ready: "Ready") -> None:
        urls = [f"{url}{PATH}" for url in ready.urls]
        tell(run, {"url": urls[0], "urls": urls, "agents": []})

    run_server([], settings, public=public, on_ready=on_ready, make=make)


def _agents(run: Invocation, refs: Sequence[str]) -> "Offers":
    from dragoman.cli.session import client_of
    from dragoman.mcp.agent_tools import AgentTools

    given = run.settings
    if len(refs) > 1 and (given.bearer or given.api_key or given.svc_param):
        raise usage(
            "--bearer and --api-key are for one agent; log in to each: dragoman auth login",
            "dragoman auth login --help",
        )
    clients: list[Client] = []
    for ref in refs:
        run.redactor.add_reference(ref)
        origins = given.origins | {"agent-card": Origin("flag", 1)}
        run.settings = CommandSettings(**vars(given) | {"agent_card": ref, "origins": origins})
        clients.append(client_of(run))
    run.settings = given
    return AgentTools(clients)


def _gateway(run: Invocation, url: str, token: str) -> "Offers":
    from dragoman.cli.found_env import check_gateway
    from dragoman.cli.session import CONNECT, tls_of
    from dragoman.client.cards.references import with_scheme
    from dragoman.client.gateway_api import KEYS
    from dragoman.egress.egress import Egress
    from dragoman.egress.targets import Anywhere, NotCanonical, read_target
    from dragoman.mcp.gateway_api import McpGatewayApi
    from dragoman.mcp.gateway_tools import GatewayTools

    run.redactor.add(token)
    check_gateway(run)
    try:
        place = read_target(with_scheme(url)).url.rstrip("/")
    except NotCanonical as error:
        raise usage(f"--gateway must be a URL such as http://127.0.0.1:8000: {error}") from None
    if token and not token.isprintable():
        raise usage("--admin-token has a character that no header can have")
    headers: dict[str, str] = {}
    if token:
        is_key = token.startswith(KEYS)
        headers = {"x-api-key": token} if is_key else {"authorization": f"Bearer {token}"}
    tls = tls_of(run, secret=bool(token))
    http = Egress(policy=Anywhere(), tls=tls, connect_timeout=CONNECT, keep_alive=True)
    return GatewayTools(McpGatewayApi(place, http, headers))
