"""`dragoman mock`: an agent that plays a script."""

from pathlib import Path
from typing import Any

import click

from dragoman.cli.failures import usage
from dragoman.cli.grammar import command
from dragoman.cli.invocation import Invocation
from dragoman.cli.option import option
from dragoman.cli.serving.script_options import PLAYING, leave, place_of, serve


@command("mock")
@click.argument("script", metavar="SCRIPT")
@PLAYING
@option("--seed", type=int, metavar="<n>", help="The random seed, for --fail-rate.")
@option("--latency", default="", metavar="<duration>", help="Wait before each answer.")
@option(
    "--fail-rate",
    type=click.FloatRange(0, 1),
    metavar="<p>",
    help="The share of calls that fail, from 0 to 1.",
)
def mock(
    run: Invocation,
    script: str,
    seed: int | None,
    latency: str,
    fail_rate: float | None,
    **given: Any,
) -> None:
    """Serve an agent that plays SCRIPT: a file that ends in .json, .toml or .yaml.

    A script has a card and rules; a rule says when it holds and what the agent does then. See
    docs/testing.md. --transport says which bindings the card offers, in this order.
    """
    import msgspec

    from dragoman.testing.scripted.agent import ScriptedAgent
    from dragoman.testing.scripted.script import read, seconds

    place = place_of(given)
    played = read(Path(script))
    changed: dict[str, Any] = {}
    if seed is not None:
        changed["seed"] = seed
    if latency:
        changed["latency"] = seconds(latency)
    if fail_rate is not None:
        changed["fail_rate"] = fail_rate
    if run.settings.transport:
        changed["card"] = msgspec.structs.replace(played.card, bindings=offered(run), interfaces=[])
    agent = ScriptedAgent(msgspec.structs.replace(played, **changed))
    leave(serve(run, agent, place, agent=played.card.name))


def offered(run: Invocation) -> list[str]:
    """Return the bindings to offer."""
    from dragoman.model.card import GRPC
    from dragoman.server.process.grpc_serving import is_installed

    if GRPC in run.settings.transport and not is_installed():
        raise usage("gRPC is not installed", "pip install 'dragoman[grpc]'")
    return run.settings.transport
