"""`dragoman up` and `dragoman gateway`: the gateway, with a demo agent to begin with or without."""

import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from dragoman.cli.failures import usage
from dragoman.cli.grammar import command
from dragoman.cli.invocation import Invocation
from dragoman.cli.own_options import Duration, added, own, typed_option
from dragoman.cli.serving.listening import (
    LISTENING,
    console_of,
    record,
    served,
    tell,
    with_parts,
)

if TYPE_CHECKING:
    # Heavy: loaded when something is served.
    from dragoman.authoring.agent import Agent
    from dragoman.config import Settings
    from dragoman.server.process.run import Ready

F = TypeVar("F", bound=Callable[..., Any])


def tries(url: str, settings: "Settings") -> list[str]:
    """Return commands that work as they are, the first one first."""
    from dragoman.cli.hints import activation

    skill = """--data '{"to": 5}' --skill count"""
    found = [
        *activation(),
        f'dragoman send -a {url} "hello"',
        f"dragoman send -a {url} {skill} --stream",
        f"dragoman agents list --gateway {url}",
        f"dragoman task list -a {url}",
    ]
    # An address with a password in it is not repeated.
    if not settings.is_postgres:
        found.append(f"dragoman tasks tail --store {shlex.quote(settings.store_name)}")
    return found


def _store(store: str | None, folder: str) -> str | None:
    """Return where the tasks are: what was typed wins over what was configured."""
    if not folder:
        return store
    ctx = click.get_current_context()
    is_typed = [
        ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
        for name in ("store", "data_dir")
    ]
    if all(is_typed):
        raise usage("--store is a file and --data-dir its folder; give one of them")
    if store is not None and not is_typed[1]:
        return store
    return str(_make_folder(Path(folder)) / "tasks.db")


def _make_folder(folder: Path) -> Path:
    """Make the folder for a store: unlike that of --store, it is ours to make."""
    from dragoman.errors import ConfigError

    try:
        folder.expanduser().mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no folder has such a name"
        raise ConfigError(f"--data-dir {folder}: cannot be made ({reason})") from None
    return folder


def _data_dir(function: F) -> F:
    return own(
        "--data-dir",
        default="",
        metavar="<dir>",
        help="The folder for the store, made if need be (your data folder).",
    )(function)


_CARRYING = added(
    [
        own(
            "--allow",
            metavar="<hosts>",
            help="Hosts or networks that agents may be at although they are not public (none; "
            "all of this machine and its networks where only this machine calls).",
        ),
        own(
            "--routing",
            type=click.Choice(["trust", "cheapest", "fastest", "round-robin", "learning"]),
            help="How to choose among agents that can do a task (trust).",
        ),
        own(
            "--forward-attempts",
            type=click.IntRange(1, 10),
            metavar="<n>",
            help="How often a message is sent to agents that do not answer (3).",
        ),
        own(
            "--escrow",
            type=Duration(),
            metavar="<duration>",
            help="Time to accept or dispute a completed task before it is paid, as 72h (0: paid "
            "at once).",
        ),
    ]
)


@command("up")
@LISTENING
@_CARRYING
@_data_dir
@typed_option("--no-demo", switch=True, default=False, help="Start without the demo agent.")
def up(
    run: Invocation,
    listen: tuple[str, ...],
    auth: tuple[str, ...],
    public: bool,
    store: str | None,
    data_dir: str,
    no_demo: bool,
    **values: Any,
) -> None:
    """Start a gateway with a demo agent, on a local file or a database, and say what to try.

    Agents are kept, tasks and the ledger too: stop it with Ctrl-C, start it again, and they are
    still there. The next step is an agent of your own: dragoman init, dragoman agents register.
    """
    settings = served(run, listen, auth, values | {"store": _store(store, data_dir)})
    from dragoman.gateway.app import gateway_app
    from dragoman.server.demo_agent import DemoAddress, demo_agent
    from dragoman.server.process.run import run as run_server

    # Where callers are asked who they are, or the certificate is of its own making, it would have
    # to be given a credential to call itself.
    may_call = not settings.ways() and not settings.http.tls_cert
    place = DemoAddress() if may_call else None
    agents = [] if no_demo else [demo_agent(place)]

    def on_ready(ready: "Ready") -> None:
        found = _described(agents, ready) | console_of(ready, settings)
        found["try"] = tries(found["url"], settings)
        tell(run, found, store=ready.store)
        if place is not None and agents:
            place.tell(f"{found['url']}/a2a/{agents[0].name}")

    make = with_parts(gateway_app)
    run_server(agents, settings, public=public, on_ready=on_ready, make=make)


@command("gateway")
@LISTENING
@_CARRYING
@_data_dir
@own(
    "--workers",
    type=click.IntRange(1, 256),
    metavar="<n>",
    help="Processes that serve, on one port and one store (1).",
)
def gateway(
    run: Invocation,
    listen: tuple[str, ...],
    auth: tuple[str, ...],
    public: bool,
    store: str | None,
    data_dir: str,
    **values: Any,
) -> None:
    """Serve a gateway. Register agents with it, and it forwards tasks to them.

    It is what dragoman up starts, without the demo agent.
    """
    settings = served(run, listen, auth, values | {"store": _store(store, data_dir)})
    from dragoman.gateway.app import gateway_app
    from dragoman.server.process.run import run as run_server

    def on_ready(ready: "Ready") -> None:
        tell(run, _described([], ready) | console_of(ready, settings))

    again = [sys.executable, "-m", "dragoman", *run.argv]
    make = with_parts(gateway_app)
    run_server([], settings, public=public, on_ready=on_ready, command=again, make=make)


def _described(agents: "Sequence[Agent]", ready: "Ready") -> dict[str, Any]:
    """Return what a program is told when a gateway is ready; its agents are below `/a2a`."""
    url = ready.urls[0]
    found = record([], ready)
    found["agents"] = [
        {
            "name": agent.title,
            "url": f"{url}/a2a/{agent.name}",
            "card": f"{url}/a2a/{agent.name}/.well-known/agent-card.json",
        }
        for agent in agents
    ]
    found["api"] = f"{url}/api/v1/openapi.json"
    return found
