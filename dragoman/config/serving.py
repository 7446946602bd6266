"""The settings of the process, its cards, its dialects and its telemetry."""

from functools import partial
from typing import Annotated, Literal

import msgspec

from dragoman.config.formats import (
    read_choices,
    read_domain,
    read_listen_address,
    read_rate,
    read_web_address,
    unless_empty,
)
from dragoman.config.group import SettingsGroup, about
from dragoman.model.card import GRPC, HTTP_JSON, JSONRPC

# Bindings by the names of the setting.
BINDINGS = {"jsonrpc": JSONRPC, "rest": HTTP_JSON, "grpc": GRPC}
VERSIONS = ("1.0", "0.3", "0.2")
HOUSES = ("nexus", "r", "corvid", "selectools", "fasta2a", "0.1")


class ServerSettings(SettingsGroup, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the process serves."""

    workers: Annotated[
        int, about("Processes that serve, on one port and one SQLite file.", ge=1, le=256)
    ] = 1
    threads: Annotated[int, about("Threads for agents written as plain functions.", ge=1)] = 32
    loop_blocked_after: Annotated[
        float,
        about(
            "Seconds for which an agent's code may block the event loop before the "
            "log and the metrics name it; 0: do not watch.",
            ge=0,
        ),
    ] = 1.0
    drain: Annotated[
        float, about("Seconds open requests have to finish when the server stops.", ge=0)
    ] = 5.0
    console: Annotated[
        bool,
        about(
            "Whether the console is served at `/console`. It needs a server that "
            "only this machine can reach, or callers that authenticate. Needs the extra `console`."
        ),
    ] = True
    openai: Annotated[
        bool,
        about(
            "Whether agents are served to chat programs too, as models of the OpenAI API: "
            "`/v1/models`, `/v1/chat/completions`, `/v1/responses`."
        ),
    ] = False
    openai_cancel_on_disconnect: Annotated[
        bool,
        about(
            "Whether a task is canceled when the chat program that waits for its answer "
            "disconnects."
        ),
    ] = True
    hooks: Annotated[
        list[str],
        about(
            "Files or modules with `EventHooks` for the events of all tasks: "
            "`redact.py,audit:hooks`. They are called in this order, after those of the agents."
        ),
    ] = msgspec.field(default_factory=list[str])


class CardSettings(SettingsGroup, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The agent card: its content, who sees it, how it is signed."""

    file: Annotated[
        str,
        about(
            "A file (`.json` or `.toml`) whose members "
            "replace those of the agent's card: name, description, provider, texts of skills, "
            "security schemes.",
            name="card",
        ),
    ] = ""
    public_url: Annotated[
        str,
        about(
            "The address at which peers reach the server, for the card. Empty: that of the "
            "request.",
            check=unless_empty(read_web_address),
        ),
    ] = ""
    grpc_url: Annotated[
        str,
        about(
            "Where peers reach the server over gRPC, `host:port`, for the card. Empty: the host of "
            "the card's other addresses, with the port of `grpc_listen` or else with theirs.",
            check=unless_empty(read_listen_address),
        ),
    ] = ""
    grpc_domain: Annotated[
        str,
        about(
            "A domain in which each of several agents has a host: `NAME.a2a.DOMAIN` at a gateway, "
            "`NAME.agents.DOMAIN` at a server. Callers over gRPC 0.3 need it, because a request "
            "there names no agent; the cards offer it. Empty: they reach only the first agent.",
            check=unless_empty(read_domain),
        ),
    ] = ""
    public: Annotated[
        bool,
        about("Whether the card is shown to callers that do not authenticate.", name="card_public"),
    ] = True
    extended_public: Annotated[
        bool,
        about(
            "Whether the extended card is shown without authentication.",
            name="extended_card_public",
        ),
    ] = False
    shape: Annotated[
        Literal["auto", "1.0", "0.3", "0.2"],
        about("The shape of the card: by request (`auto`), or always this.", name="card_shape"),
    ] = "auto"
    max_age: Annotated[int, about("Seconds a card may be cached.", name="card_max_age", ge=0)] = 300
    sign_key: Annotated[
        str,
        about(
            "A private key (PEM or JWK) that signs the card; its public half is at "
            "`/.well-known/jwks.json`. Needs `public_url` and the extra `jwt`."
        ),
    ] = ""


class DialectSettings(SettingsGroup, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which versions, bindings and dialects are served, and how."""

    a2a_version: Annotated[
        list[str],
        about(
            "The versions of the protocol that are served, and offered by the card: `1.0`, `0.3`, "
            "`0.2`. Empty: all.",
            check=partial(read_choices, known=VERSIONS),
        ),
    ] = msgspec.field(default_factory=list[str])
    transport: Annotated[
        list[str],
        about(
            "The bindings that are served, and offered by the card: `jsonrpc`, `rest`, `grpc`. "
            "Empty: all; gRPC where the extra `grpc` is installed.",
            check=partial(read_choices, known=BINDINGS),
        ),
    ] = msgspec.field(default_factory=list[str])
    houses: Annotated[
        list[str],
        about(
            "Further dialects of single systems to serve: `nexus` (`/api/v1/a2a`), `r` "
            "(`/api/a2a`), `corvid` (`/a2a/tasks`), `selectools` (`/a2a`), `fasta2a`, and `0.1`, "
            "the ancestor of these. Empty: all of them. `none`: none of them.",
            name="dialects",
            check=partial(read_choices, known=HOUSES, alone="none"),
        ),
    ] = msgspec.field(default_factory=list[str])
    grpc_reflection: Annotated[
        Literal["auto", "on", "off"],
        about(
            "Whether gRPC tells callers what it serves (server reflection). `auto`: yes, unless "
            "callers have to authenticate."
        ),
    ] = "auto"
    version_mode: Annotated[
        Literal["infer", "strict"],
        about(
            "The version of a request without `A2A-Version`: inferred from "
            "its method (`infer`) or always 0.3 (`strict`)."
        ),
    ] = "infer"
    error_table: Annotated[
        Literal["1.0.1", "1.0.0"],
        about("The release of A2A 1.0 whose statuses errors have, over REST 1.0 and gRPC."),
    ] = "1.0.1"
    client_task_ids: Annotated[
        bool, about("Whether 0.x callers may name a task that does not exist yet.")
    ] = False
    max_block_seconds: Annotated[
        float,
        about(
            "Seconds a blocking 0.x send waits before it answers with the task as it is; 0: no "
            "limit.",
            ge=0,
        ),
    ] = 0.0
    cancel_on_disconnect: Annotated[
        bool,
        about("Whether a task is canceled when its caller closes the stream that began it."),
    ] = False
    require_text_part: Annotated[
        bool, about("Whether a message of 0.x at `/a2a` without a text is refused.")
    ] = False
    nexus_sync: Annotated[
        bool,
        about("Whether a message at `/api/v1/a2a` waits until its task ends or asks something."),
    ] = False
    rx_rest_wrap: Annotated[
        bool,
        about(
            "Whether events at `/v1/message:stream` are in a JSON-RPC envelope for callers of `r`."
        ),
    ] = False
    max_depth: Annotated[
        int, about("How often agents of `corvid` may have passed a task on.", ge=1, le=10)
    ] = 3
    corvid_rate: Annotated[
        str,
        about(
            "Tasks that one source agent may send to `/a2a/tasks/send`, as `rate_limit` is "
            "written: corvid's own would be `5/60s`. Callers that name no source share one. `off`: "
            "no limit.",
            check=read_rate,
        ),
    ] = "off"


class TelemetrySettings(SettingsGroup, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Traces, metrics and logs."""

    otlp_endpoint: Annotated[
        str,
        about(
            "Where traces and metrics are sent (OTLP over HTTP), such as `http://127.0.0.1:4318`. "
            "Empty: as `OTEL_EXPORTER_OTLP_ENDPOINT` says, else nowhere. Needs the extra "
            "`telemetry`.",
            check=unless_empty(read_web_address),
        ),
    ] = ""
    trace_events: Annotated[
        bool,
        about(
            "Whether each event of a task gets its own span in traces. Otherwise it is "
            "an event in the span of its turn, which costs less."
        ),
    ] = False
    metrics: Annotated[
        bool, about("Whether `/metrics` is served, to callers with the scope of an operator.")
    ] = True
    log_format: Annotated[
        Literal["text", "json"], about("Lines of log for people (`text`) or for programs.")
    ] = "text"
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], about("The lowest level to log.")
    ] = "info"
    access_log: Annotated[
        bool,
        about(
            "Whether each request is logged: its route, operation, version, status, time, caller "
            "and address."
        ),
    ] = False
