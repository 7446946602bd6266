"""`dragoman serve`: an author's agents, or any program, on a port."""

import sys
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

import click

from dragoman.cli.failures import usage
from dragoman.cli.grammar import command
from dragoman.cli.invocation import Invocation
from dragoman.cli.own_options import added, own, typed_option
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
    from dragoman.authoring.loading import Find
    from dragoman.compat.selectools.server import A2AServer
    from dragoman.server.process.run import Ready

_SPECIAL = added(
    [
        own(
            "--transport",
            multiple=True,
            metavar="<jsonrpc|rest|grpc>",
            help="Serve this binding and no other that is not named (all). Repeatable.",
        ),
        own(
            "--a2a-version",
            multiple=True,
            metavar="<1.0|0.3|0.2>",
            help="Serve this version and no other that is not named (all). Repeatable.",
        ),
        own(
            "--workers",
            type=int,
            metavar="<n>",
            help="How many processes serve, on one port and one SQLite file (1).",
        ),
        own(
            "--card",
            metavar="<path>",
            help="Show the members of this file (.json, .toml) in the card: name, skills' texts.",
        ),
        own(
            "--sign-key", metavar="<path>", help="Sign the card with this private key (PEM or JWK)."
        ),
        own(
            "--card-shape",
            type=click.Choice(["auto", "1.0", "0.3", "0.2"]),
            help="The shape of the card: by request, or always one (auto).",
        ),
        own(
            "--error-table",
            type=click.Choice(["1.0.1", "1.0.0"]),
            help="Which specification's HTTP statuses errors have (1.0.1).",
        ),
        own(
            "--version-mode",
            type=click.Choice(["infer", "strict"]),
            help="What a request without A2A-Version speaks (infer).",
        ),
        typed_option(
            "--i-accept-data-loss",
            "accept_data_loss",
            switch=True,
            default=None,
            help="Use settings that lose acknowledged tasks when the power fails.",
        ),
        own(
            "--idempotency",
            switch=True,
            default=None,
            help="Answer a repeated message with its first task (on).",
        ),
        own(
            "--client-task-ids",
            switch=True,
            default=None,
            help="Let 0.x callers name tasks that do not exist yet (off).",
        ),
        own(
            "--extended-card-public",
            switch=True,
            default=None,
            help="Show the extended card without authentication (off).",
        ),
        own(
            "--audit",
            metavar="<path>",
            help="The file of the audit log, or off (beside the store).",
        ),
        own(
            "--otlp-endpoint",
            metavar="<url>",
            help="Send traces and metrics to this collector (nowhere).",
        ),
        own(
            "--log-format",
            type=click.Choice(["text", "json"]),
            help="Lines of log for people or for programs (text).",
        ),
        own(
            "--log-level",
            type=click.Choice(["debug", "info", "warning", "error"]),
            help="The lowest level to log (info).",
        ),
        own(
            "--access-log",
            switch=True,
            default=None,
            help="Log each request: its operation, version, outcome and time (off).",
        ),
    ]
)


@command("serve")
@click.argument("targets", nargs=-1, metavar="[TARGET]...")
@typed_option(
    "--exec",
    "program",
    default="",
    metavar="<command>",
    help="Serve a program: messages on its stdin, artifacts from its stdout. No shell.",
)
@typed_option(
    "--exec-format",
    type=click.Choice(["text", "json"]),
    default="text",
    help="What the program speaks: text, or a JSON object on each line (text).",
)
@typed_option(
    "--mcp",
    "mcp_servers",
    multiple=True,
    metavar="<command|url>",
    help="Serve the tools of an MCP server as skills: a command line or an address. Repeatable.",
)
@typed_option(
    "--mcp-tools",
    default="",
    metavar="<names>",
    help="The tools of MCP servers that may be used, with commas (all).",
)
@own(
    "--mcp-token",
    default="",
    metavar="<token>",
    help="Bearer token for MCP servers at an address. A flag is visible in the process list "
    "and in your shell's history; better use",
)
@LISTENING
@_SPECIAL
@typed_option("--reload", switch=True, help="Restart when a file of the agent changes.")
def serve(
    run: Invocation,
    targets: tuple[str, ...],
    program: str,
    exec_format: str,
    mcp_servers: tuple[str, ...],
    mcp_tools: str,
    mcp_token: str,
    listen: tuple[str, ...],
    auth: tuple[str, ...],
    public: bool,
    reload: bool,
    transport: tuple[str, ...],
    a2a_version: tuple[str, ...],
    **values: Any,
) -> None:
    """Serve agents: TARGET is a file (my_agent.py), module:name, the address of a chat model
    (http://127.0.0.1:11434/v1#llama3), or mcp: and an MCP server, as for --mcp.

    Several targets share the port, each under /agents/NAME; the first also has the root. Stop it
    with SIGTERM or Ctrl-C.
    """
    servers = [*(one[4:] for one in targets if one.startswith("mcp:")), *mcp_servers]
    targets = tuple(one for one in targets if not one.startswith("mcp:"))
    if not targets and not program and not servers:
        raise usage("name a TARGET: my_agent.py, module:agent or --exec", "dragoman serve --help")
    if reload:
        from dragoman.server.process.reload import run_reloading

        run_reloading(targets)
        return
    from dragoman.agents.adapters.detect import agent_at
    from dragoman.authoring.loading import load_agents
    from dragoman.server.app import App
    from dragoman.server.process.run import run as run_server

    found: list[A2AServer] = []
    agents = load_agents(targets, _finding(found), agent_at)
    if program:
        agents.append(_program(program, speaks_json=exec_format == "json"))
    if servers:
        from dragoman.mcp.skills import mcp_agents

        run.redactor.add(mcp_token)
        allowed = [name.strip() for name in mcp_tools.split(",") if name.strip()]
        agents += mcp_agents(servers, permissions=allowed or None, token=mcp_token)
    # After them: a module may set variables.
    settings = served(
        run,
        listen,
        auth,
        values
        | {
            "transport": ",".join(transport) or None,
            "a2a_version": ",".join(a2a_version) or None,
        },
    )

    def on_ready(ready: "Ready") -> None:
        # A server of another library's kind has its own paths, and no console.
        tell(run, record(agents, ready) | ({} if found else console_of(ready, settings)))

    again = [sys.executable, "-m", "dragoman", *run.argv]
    make: Callable[..., App] = with_parts(App)
    if found:
        if len(agents) > 1:
            raise usage("an A2AServer has the port to itself: name it alone")
        # Who has its token is let in, besides whom the options let in.
        make, public = found[0].app, public or found[0].has_token
    run_server(agents, settings, public=public, on_ready=on_ready, command=again, make=make)


def _finding(found: "list[A2AServer]") -> "Find":
    """Return what makes an agent of a module's content; servers of selectools' kind are noted."""
    from dragoman.agents.adapters.detect import agent_in

    def find(module: ModuleType, attribute: str, target: str) -> "Agent":
        from dragoman.compat.selectools.found import server_in

        server = server_in(module, attribute, target)
        if server is None:
            return agent_in(module, attribute, target)
        found.append(server)
        return server.served

    return find


def _program(command: str, *, speaks_json: bool) -> "Agent":
    if speaks_json:
        from dragoman.agents.adapters.json_lines import json_lines_agent

        return json_lines_agent(command)
    from dragoman.authoring.program import program_agent

    return program_agent(command)
