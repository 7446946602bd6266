"""`dragoman join`: an agent on any machine, served by a gateway that it dials out to."""

from typing import TYPE_CHECKING, Any

import click

from dragoman.cli.failures import Failure, code_of, usage
from dragoman.cli.grammar import command
from dragoman.cli.hints import again
from dragoman.cli.invocation import Invocation
from dragoman.cli.own_options import added, own, settings_of, typed_option

if TYPE_CHECKING:
    # Heavy: loaded when something is served.
    from dragoman.server.process.run import Ready
    from dragoman.tunnels.frames import Welcome

_OPTIONS = added(
    [
        typed_option(
            "--name",
            "join_name",
            default="",
            metavar="<name>",
            help="Its name at the gateway, if not the agent's own. Processes of one name and owner "
            "are one agent.",
        ),
        own(
            "--store",
            metavar="<url>",
            help="Where its tasks are kept: a SQLite file, postgresql://, or memory: (in your data "
            "folder).",
        ),
        own(
            "--log-level",
            type=click.Choice(["debug", "info", "warning", "error"]),
            help="The lowest level to log (info).",
        ),
    ]
)


@command("join")
@click.argument("gateway", metavar="GATEWAY", help="The URL of the gateway.")
@click.argument("target", metavar="TARGET", help="The agent: what `serve` takes.")
@_OPTIONS
def join(run: Invocation, gateway: str, target: str, join_name: str, **values: Any) -> None:
    """Connect an agent to a gateway and serve it from there: no port, no public address.

    Use the same credential as for other commands: A2ACLI_BEARER or A2ACLI_API_KEY, best a key of
    the agent. Stop it with SIGTERM or Ctrl-C. Unfinished tasks continue when you start it again.
    """
    try:
        from dragoman.server.process.joining import AgentRefused, Joining, credential_headers
    except ImportError:
        raise usage("joining needs an extra", "pip install 'dragoman[join]'") from None
    from dragoman.agents.adapters.detect import agent_at, agent_in
    from dragoman.authoring.loading import load_agents
    from dragoman.client.cards.references import with_scheme
    from dragoman.client.gateway_api import KEYS
    from dragoman.server.process.run import run as run_server

    gateway = with_scheme(gateway)
    agents = load_agents((target,), agent_in, agent_at)
    settings = settings_of(run, **values)
    name = join_name or agents[0].name

    def on_joined(welcome: "Welcome") -> None:
        url = f"{gateway.rstrip('/')}/a2a/{welcome.agent}"
        found = {"url": url, "agent": welcome.agent, "gateway": gateway}
        run.out.record("joined", found, [("Joined", url)])

    def on_ready(ready: "Ready") -> None:
        """The agent works on its tasks; whether it is connected is told apart."""

    token, key = run.settings.bearer, run.settings.api_key
    if token.startswith(KEYS):
        token, key = "", token
    run.redactor.add(token)
    run.redactor.add(key)
    headers = credential_headers(key=key, token=token)
    joining = Joining(gateway, name, headers, on_joined)
    try:
        run_server(agents, settings, public=False, on_ready=on_ready, join=joining)
    except AgentRefused as error:
        # What it refuses is the name, or this credential under it.
        hint = again(run, "--name", "<name>", without=("--name",))
        raise Failure(code_of(error), error.public, hint=hint) from error
