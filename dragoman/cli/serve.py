"""`dragoman serve`: an author's agent on a port."""

from collections.abc import Callable
from typing import Any

import click

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def listening_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of everything that listens; each also has its DRAGOMAN_ variable."""
    options: list[Decorator] = [
        click.option("--host", help="Address to listen on (127.0.0.1)."),
        click.option("--port", type=int, help="Port to listen on; 0 takes a free one (8000)."),
        click.option(
            "--store",
            metavar="FILE",
            help="SQLite file for the tasks, or `memory:` (in your data folder).",
        ),
        click.option("--public-url", help="The address peers reach us at, for the card."),
        click.option(
            "--allow-private/--no-allow-private",
            default=None,
            help="Let pushes go to private addresses and without TLS, for development (off).",
        ),
        click.option(
            "--public",
            is_flag=True,
            help="Listen on an address that others reach, without authentication.",
        ),
    ]
    for option in reversed(options):
        function = option(function)
    return function


def special_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the switches that suites and unusual peers need."""
    options: list[Decorator] = [
        click.option("--card-shape", type=click.Choice(["auto", "1.0", "0.3", "0.2"])),
        click.option(
            "--error-table",
            type=click.Choice(["1.0.1", "1.0.0"]),
            help="Which specification's HTTP statuses errors have (1.0.1).",
        ),
        click.option(
            "--version-mode",
            type=click.Choice(["infer", "strict"]),
            help="What a request without A2A-Version speaks (infer).",
        ),
        click.option(
            "--i-accept-data-loss",
            "accept_data_loss",
            is_flag=True,
            default=None,
            help="Use settings that lose acknowledged tasks when the power fails.",
        ),
        click.option(
            "--idempotency/--no-idempotency",
            default=None,
            help="Answer a repeated message with its first task (on).",
        ),
        click.option(
            "--client-task-ids/--no-client-task-ids",
            default=None,
            help="Let 0.x callers name tasks that do not exist yet (off).",
        ),
        click.option(
            "--extended-card-public/--no-extended-card-public",
            default=None,
            help="Show the extended card without authentication (off).",
        ),
    ]
    for option in reversed(options):
        function = option(function)
    return function


@click.command()
@click.argument("targets", nargs=-1, required=True, metavar="TARGET...")
@listening_options
@special_options
@click.option("--reload", is_flag=True, help="Start again when a file of the agent changes.")
def serve(targets: tuple[str, ...], reload: bool, public: bool, **given: Any) -> None:
    """Serve agents: TARGET is a file (my_agent.py) or module:name.

    Several targets share the port, each under /agents/NAME; the first also has the root.
    Every setting can come from the environment: --port is DRAGOMAN_PORT.
    """
    if reload:
        from dragoman.server.reload import run_reloading

        run_reloading(targets)
        return
    from dragoman.server.load import load_agents
    from dragoman.server.run import run

    run(load_agents(targets), public=public, given=given)
