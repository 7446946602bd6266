"""What everything that listens has in common: its options, and the record that says it is ready."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from dragoman.cli.failures import usage
from dragoman.cli.invocation import Invocation
from dragoman.cli.own_options import Duration, added, own, settings_of, typed_option

if TYPE_CHECKING:
    # Heavy: loaded when something is served.
    from dragoman.authoring.agent import Agent
    from dragoman.config import Settings
    from dragoman.server.app import App
    from dragoman.server.process.run import Ready
    from dragoman.server.site import AppPart

# What many type instead of --listen.
HOST_PORT = (
    typed_option(
        "--host",
        default="",
        metavar="<host>",
        help="The host to listen on, instead of --listen (127.0.0.1).",
    ),
    typed_option(
        "--port",
        type=click.IntRange(0, 65535),
        metavar="<port>",
        help="The port to listen on, instead of --listen; 0 takes a free one.",
    ),
)

LISTENING = added(
    [
        own(
            "--listen",
            multiple=True,
            metavar="<host:port>",
            help="Address to listen on, port 0 takes a free one (127.0.0.1:8000). Repeatable.",
        ),
        *HOST_PORT,
        typed_option(
            "--quiet",
            switch=True,
            help="Log only warnings and errors, not each task and refused login.",
        ),
        own(
            "--grpc-listen",
            multiple=True,
            metavar="<host:port>",
            help="Address for gRPC alone; those of --listen take it too. Repeatable.",
        ),
        own("--public-url", metavar="<url>", help="The address peers reach us at, for the card."),
        own(
            "--store",
            metavar="<url>",
            help="Where tasks are kept: a SQLite file, postgresql:// for several machines, or "
            "memory: (in your data folder). A password is better in DRAGOMAN_STORE_FILE, PGPASSWORD"
            " or ~/.pgpass than here, where others see it.",
        ),
        own(
            "--store-session-url",
            metavar="<url>",
            help="The same database without a pooler, where --store goes through one.",
        ),
        own(
            "--bus",
            metavar="<url>",
            help="What wakes replicas on one database: nats://host:4222 (PostgreSQL itself).",
        ),
        own(
            "--read-only",
            switch=True,
            default=None,
            help="Serve what the store has, and change nothing in it (off).",
        ),
        typed_option(
            "--new-store",
            switch=True,
            default=None,
            help="Begin with an empty store where one was whose file is gone.",
        ),
        own("--tls-cert", metavar="<path>", help="Speak TLS with this certificate (PEM)."),
        own("--tls-key", metavar="<path>", help="Its key (PEM), if in a file of its own."),
        own(
            "--client-ca",
            metavar="<path>",
            help="Let in only callers with a certificate of these authorities (PEM).",
        ),
        own("--client-crl", metavar="<path>", help="Those that they have revoked (PEM or DER)."),
        own(
            "--auth",
            multiple=True,
            metavar="<none|bearer|api-key|jwt|oidc|mtls>",
            help="How callers authenticate (bearer if there are tokens, mtls if there is a "
            "--client-ca, else none). Repeatable: a caller needs one of them.",
        ),
        own(
            "--rate-limit",
            metavar="<n/time>",
            help="Requests one principal may make, as 100/60s (no limit).",
        ),
        own(
            "--auth-tokens",
            metavar="<path>",
            help="Bearer tokens (TOML); for one alone set DRAGOMAN_AUTH_TOKEN.",
        ),
        own(
            "--keys", metavar="<path>", help="API keys, kept by dragoman keys; for --auth api-key."
        ),
        own("--jwt-issuer", metavar="<url>", help="Who makes the callers' tokens."),
        own("--jwt-audience", metavar="<name>", help="Whom tokens must be for: us."),
        own("--jwt-keys", metavar="<url|path>", help="The issuer's keys (JWKS or PEM)."),
        own(
            "--hosts",
            metavar="<names>",
            help="Names callers may call us by (any; local names where only this machine calls).",
        ),
        own("--cors", metavar="<origins>", help="Origins whose pages may call us (none)."),
        own(
            "--hooks",
            metavar="<targets>",
            help="Files or modules with EventHooks, which see and change the events of all tasks "
            "(none).",
        ),
        own(
            "--console",
            switch=True,
            default=None,
            help="Serve the console at /console (on; where others call only with --auth).",
        ),
        own(
            "--openai",
            switch=True,
            default=None,
            help="Serve agents to chat programs, as models of the OpenAI API at /v1 (off).",
        ),
        own(
            "--drain",
            type=Duration(),
            metavar="<duration>",
            help="Time that open requests have when the server stops (5s).",
        ),
        own(
            "--allow-private",
            switch=True,
            default=None,
            help="Let pushes go to private addresses and without TLS, for development (off).",
        ),
        typed_option(
            "--public",
            switch=True,
            help="Listen on an address that others reach, without authentication.",
        ),
    ]
)


def served(
    run: Invocation, listen: Sequence[str], auth: Sequence[str], values: dict[str, Any]
) -> "Settings":
    """Return the settings of something that listens; raises `ConfigError` for an unknown one."""
    from dragoman.cli.found_env import check_collector
    from dragoman.config import check_names

    check_collector(run)
    check_names({**run.settings.environment, **run.environment})
    places, ways = ",".join(places_of(listen, values)) or None, ",".join(auth) or None
    if values.pop("quiet", False):
        if values.get("log_level") in ("debug", "info"):
            raise usage("--quiet and --log-level contradict each other")
        values["log_level"] = values.get("log_level") or "warning"
    grpc = ",".join(values.get("grpc_listen", ())) or None
    return settings_of(run, **(values | {"listen": places, "auth": ways, "grpc_listen": grpc}))


def places_of(
    listen: Sequence[str], values: dict[str, Any], otherwise: int = 8000
) -> Sequence[str]:
    """Return where to listen: as --listen says, or --host and --port, which are taken out."""
    host, port = values.pop("host", ""), values.pop("port", None)
    if not host and port is None:
        return listen
    source = click.get_current_context().get_parameter_source("listen")
    if listen and source is click.core.ParameterSource.COMMANDLINE:
        raise usage("--listen has host and port already; leave out --host and --port")
    shown = f"[{host}]" if ":" in host and not host.startswith("[") else host or "127.0.0.1"
    return [f"{shown}:{otherwise if port is None else port}"]


def with_parts(make: "Callable[..., App]") -> "Callable[..., App]":
    """Return what makes an app, with the console and the API of chat programs beside what it
    serves; the settings say whether each is."""
    from dragoman.console.part import ConsolePart

    def make_with(*agents: "Agent", settings: "Settings", **more: Any) -> "App":
        parts: list[AppPart] = [ConsolePart()]
        if settings.server.openai:
            from dragoman.openai.part import OpenAIPart

            parts.append(OpenAIPart())
        return make(*agents, settings=settings, parts=parts, **more)

    return make_with


def console_of(ready: "Ready", settings: "Settings") -> dict[str, str]:
    """Return where the console is, as the record of what is ready says it; nothing: nowhere."""
    from dragoman.server.process.listening import is_local

    only_local = all(is_local(host) for host, _ in settings.addresses())
    is_served = settings.server.console and (only_local or bool(settings.ways()))
    return {"console": f"{ready.urls[0]}/console"} if is_served else {}


def record(agents: "Sequence[Agent]", ready: "Ready") -> dict[str, Any]:
    """Return what a program is told when we are ready."""
    url = ready.urls[0]
    return {
        "url": url,
        "urls": ready.urls,
        "agents": [
            {
                "name": agent.title,
                "url": url if position == 0 else f"{url}/agents/{agent.name}",
                "card": f"{url}/.well-known/agent-card.json"
                if position == 0
                else f"{url}/agents/{agent.name}/.well-known/agent-card.json",
            }
            for position, agent in enumerate(agents)
        ],
        "store": ready.store,
        **({"grpc": list(ready.grpc)} if ready.grpc else {}),
    }


def tell(run: Invocation, found: dict[str, Any], **more: str) -> None:
    """Say that we are ready: one record, which is all that goes to stdout. People read `more`."""
    lines = [("Ready", found["url"])]
    lines += [("Also", url) for url in found["urls"][1:]]
    lines += [("gRPC", place) for place in found.get("grpc", [])]
    if len(found["agents"]) > 1:
        lines += [("Agent", f"{agent['name']} {agent['url']}") for agent in found["agents"]]
    if console := found.get("console"):
        lines.append(("Console", console))
    lines += [("Try", line) for line in found.get("try", [])]
    lines += [(name.capitalize(), value) for name, value in more.items()]
    run.out.record("ready", found, lines)
