"""`dragoman up`: the demo agent, and what to try with it."""

import shlex
from typing import TYPE_CHECKING, Any

from dragoman.cli.grammar import command
from dragoman.cli.invocation import Invocation
from dragoman.cli.listening import LISTENING, record, served, tell

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


@command("up")
@LISTENING
def up(run: Invocation, listen: tuple[str, ...], auth: str, public: bool, **values: Any) -> None:
    """Start the demo agent on a local file and say what to try.

    Tasks are kept: stop it with Ctrl-C, start it again, and they are still there. The next step is
    an agent of your own: dragoman init. --timeout does not apply.
    """
    settings = served(run, listen, auth, values)
    from dragoman.server.demo import agent
    from dragoman.server.run import run as run_server

    def on_ready(ready: "Ready") -> None:
        found = record([agent], ready)
        found["try"] = tries(found["url"], ready.store)
        tell(run, found)
        if not run.out.is_json:
            run.out.field("Store", ready.store)

    run_server([agent], settings, public=public, on_ready=on_ready)
