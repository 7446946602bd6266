"""What commands that play an agent share: where they listen, and how they say that they do."""

import signal
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from dragoman.cli.failures import usage
from dragoman.cli.invocation import Invocation
from dragoman.cli.own_options import added, own, typed_option
from dragoman.cli.serving.listening import HOST_PORT, places_of

if TYPE_CHECKING:
    # Brings the server: loaded when one is started.
    from dragoman.testing.scripted.serve import App, ListenOptions

PLAYING = added(
    [
        own(
            "--listen",
            default="127.0.0.1:0",
            metavar="<host:port>",
            help="Address to listen on, port 0 takes a free one.",
        ),
        *HOST_PORT,
        own(
            "--public-url",
            default="",
            metavar="<url>",
            help="The address callers reach it at, for the card (as each request says).",
        ),
        own("--tls-cert", default="", metavar="<path>", help="Speak TLS with this certificate."),
        own("--tls-key", default="", metavar="<path>", help="Its key, if in a file of its own."),
        own(
            "--client-ca",
            default="",
            metavar="<path>",
            help="Let in only callers with a certificate of these authorities.",
        ),
        typed_option("--public", switch=True, help="Listen on an address that others reach."),
    ]
)


def place_of(given: dict[str, Any]) -> "ListenOptions":
    """Return where to listen."""
    from dragoman.config import load_settings
    from dragoman.testing.scripted.serve import ListenOptions

    listen = ",".join(places_of([given["listen"]], given, otherwise=0))
    (host, port), *others = load_settings({}, listen=listen).addresses()
    if others:
        raise usage("--listen takes one address here")
    place = ListenOptions(
        host,
        port,
        tls_cert=given["tls_cert"],
        tls_key=given["tls_key"],
        client_ca=given["client_ca"],
        public_url=given["public_url"],
    )
    if not place.is_local and not given["public"]:
        raise usage(
            f"{host} is reachable by others; listen on 127.0.0.1, or say --public if you mean it"
        )
    return place


def ready(run: Invocation, url: str, more: Mapping[str, Any]) -> None:
    """Say that we are ready: one record, which is all that goes to stdout."""
    lines = [(name.capitalize(), str(value)) for name, value in more.items()]
    run.out.record("ready", {"url": url, **more}, [("Ready", url), *lines])


def serve(run: Invocation, app: "App", place: "ListenOptions", **more: Any) -> int:
    """Serve an app until a signal, and return which it was; says where once it can be called."""
    from dragoman.testing.scripted.serve import run as serve_app

    return serve_app(app, place, lambda url: ready(run, url, more))


def leave(number: int) -> None:
    """End the command after a signal: Ctrl-C is told from an orderly stop."""
    if number == signal.SIGINT:
        raise click.exceptions.Exit(128 + number)
