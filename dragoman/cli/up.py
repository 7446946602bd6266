"""`dragoman up`: the demo agent, and what to try with it."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from dragoman.cli.failures import usage
from dragoman.cli.grammar import command
from dragoman.cli.invocation import Invocation
from dragoman.cli.listening import LISTENING, record, served, tell
from dragoman.cli.own import own

if TYPE_CHECKING:
    # Heavy: loaded when something is served.
    from dragoman.server.run import Ready


def tries(url: str, store: str) -> list[str]:
    """Return commands that work as they are, the first one first."""
    skill = """--data '{"to": 5}' --metadata '{"skillId": "count"}'"""
    found = [
        f'dragoman send -a {url} "hello"',
        f"dragoman send -a {url} {skill} --stream",
        f"dragoman card get -a {url}",
        f"dragoman task list -a {url}",
    ]
    if store != "memory:":
        found.append(f"dragoman tasks tail --store {shlex.quote(store)}")
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
    return str(Path(folder) / "tasks.db")


@command("up")
@LISTENING
@own(
    "--data-dir",
    default="",
    metavar="<dir>",
    help="The folder for the store, made if need be (your data folder).",
)
def up(
    run: Invocation,
    listen: tuple[str, ...],
    auth: tuple[str, ...],
    public: bool,
    store: str | None,
    data_dir: str,
    **values: Any,
) -> None:
    """Start the demo agent on a local file and say what to try.

    Tasks are kept: stop it with Ctrl-C, start it again, and they are still there. The next step is
    an agent of your own: dragoman init.
    """
    settings = served(run, listen, auth, values | {"store": _store(store, data_dir)})
    from dragoman.server.demo import agent
    from dragoman.server.run import run as run_server

    def on_ready(ready: "Ready") -> None:
        found = record([agent], ready)
        found["try"] = tries(found["url"], ready.store)
        tell(run, found)
        if not run.out.is_json:
            run.out.field("Store", ready.store)

    run_server([agent], settings, public=public, on_ready=on_ready)
