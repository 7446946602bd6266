"""`dragoman demo-server`: the built-in script, an agent that does whatever an agent may do."""

from typing import Any, cast, get_args

import click

from dragoman.cli.failures import usage
from dragoman.cli.grammar import Command, is_help_full
from dragoman.cli.invocation import Invocation
from dragoman.cli.option import option
from dragoman.cli.serving.mock import offered
from dragoman.cli.serving.script_options import PLAYING, leave, place_of, serve

_AUTH = (
    "none",
    "bearer",
    "api-key",
    "api-key-query",
    "api-key-cookie",
    "basic",
    "oauth2",
    "oidc",
    "mtls",
)

# What a short help explains; the rest shows how things go wrong.
_USUAL_WORDS = ("echo", "slow", "stream", "parts", "message", "ask", "auth", "fail,", "files")


class _WithTables(Command):
    """Shows the words and the scenarios in its help; they are read from the script itself."""

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the text, and the two tables below it."""
        from dragoman.testing.scripted.demo import SCENARIOS, WORDS

        super().format_help_text(ctx, formatter)
        is_full = is_help_full(ctx)
        words = [row for row in WORDS if is_full or row[0].split()[0] in _USUAL_WORDS]
        with formatter.section("What to say"):
            formatter.write_dl(words)
            if not is_full:
                more = len(WORDS) - len(words)
                formatter.write_text(f"and {more} more: {ctx.command_path} --help --all")
        if is_full:
            with formatter.section("Scenarios"):
                formatter.write_dl([(name, about) for name, (about, _) in SCENARIOS.items()])


@click.command("demo-server", cls=_WithTables)
@PLAYING
@option(
    "--scenario",
    multiple=True,
    metavar="<name>",
    help="A change, by its name; --help --all lists them. Repeatable.",
)
@option("--latency", default="0", metavar="<duration>", help="Wait before each answer.")
@option("--tenant", default="", metavar="<name>", help="The tenant of the card's interfaces.")
@option(
    "--auth",
    type=click.Choice(_AUTH),
    default="none",
    metavar="<way>",
    help=f"What callers have to show: {', '.join(_AUTH)}. The secret is demo-secret, the user and "
    "the client demo.",
)
@option("--sign-key", default="", metavar="<path>", help="Private key that signs the card.")
def demo_server(
    run: Invocation,
    scenario: tuple[str, ...],
    latency: str,
    tenant: str,
    auth: str,
    sign_key: str,
    **given: Any,
) -> None:
    """Serve a demo agent. The first word of a message chooses what it does.

    --transport says which bindings the card offers, in this order. Nothing is kept: when it ends,
    its tasks are gone.
    """
    from dragoman.testing.scripted.demo import demo
    from dragoman.testing.scripted.script import AccessKind, seconds

    place = place_of(given)
    if auth == "mtls" and not place.client_ca:
        raise usage(
            "--auth mtls needs --tls-cert, --tls-key and --client-ca",
            remedy="--tls-cert <path> --tls-key <path> --client-ca <path>",
        )
    assert auth in get_args(AccessKind)
    agent = demo(
        scenarios=scenario,
        bindings=offered(run),
        latency=seconds(latency),
        tenant=tenant,
        auth=cast(AccessKind, auth),
        sign_key=sign_key,
    )
    has_secret = auth not in ("none", "mtls")
    secret = {"secret": agent.script.access.secret} if has_secret else {}
    leave(serve(run, agent, place, **secret))
