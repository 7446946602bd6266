"""Every setting, once: the type, the default, the environment name and the line in the docs.

A setting `store` is read from `DRAGOMAN_STORE`; a value given in code or on the command line wins.
`docs/configuration.md` is written from this file, and a test fails when it is stale.
"""

import contextlib
import os
import re
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta
from msgspec.structs import fields

from dragoman.errors import ConfigError
from dragoman.model.card import HTTP_JSON, JSONRPC
from dragoman.model.duration import duration
from dragoman.model.push import hidden

PREFIX = "DRAGOMAN_"
# Where a host is named without one.
_PORT = 8000
# What can be served, by the names people write.
_BINDINGS = {"jsonrpc": JSONRPC, "rest": HTTP_JSON}
_WAYS = ("bearer", "api-key", "jwt", "oidc", "mtls")
VERSIONS = ("1.0", "0.3", "0.2")
HOUSES = ("nexus", "r", "corvid", "selectools", "fasta2a", "0.1")
# Never shown, and read from the file that `DRAGOMAN_<NAME>_FILE` names if not given themselves.
SECRETS = frozenset({"push_secret", "auth_token", "jwt_secret", "store_key", "payment_secret"})
# Variables of ours that are no settings: of single commands, of workers, of tests.
OTHERS = frozenset(
    """
    AGENT COMPARE CONCURRENCY CONNECTIONS CUTS DATA_DIR DISCONNECTS DURATION IMAGES KILLS LIMIT
    LIMIT_P99 MESSAGE NAME PAUSES PAYLOAD PROCESSES RATE READERS RECEIVERS RESTARTS SAMPLES
    SCENARIO SECONDS SEED SENDS SKILL STATUS STRICT TCK TEMPLATE WARMUP
    ADMIN_TOKEN GATEWAY MCP_TOKEN
    CATALOG INHERITED PEERS_DIR WORKER_METRICS
    """.split()  # noqa: SIM905 - forty quoted words are harder to read
)
# What Kubernetes tells every container about a service that is called dragoman, or dragoman-x.
_SERVICE = re.compile(
    r"(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?)"
)
# What people write for a switch, besides true and false.
_SWITCHES = {"on": "true", "yes": "true", "off": "false", "no": "false"}


def _about(text: str, **limits: Any) -> Meta:
    return Meta(description=text, **limits)


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How an agent is served."""

    store: Annotated[
        str,
        _about(
            "Where tasks are kept: a SQLite file (a path, or `sqlite:` and a path), or `memory:`. "
            "Empty: `tasks.db` in the user's data folder."
        ),
    ] = ""
    store_key: Annotated[
        str,
        _about(
            "What secrets in the store are sealed with: a key of 32 bytes in base64, and older "
            "ones after it while they change, separated by commas. Empty: as in `store_key_file`."
        ),
    ] = ""
    store_key_file: Annotated[
        str,
        _about(
            "A file with these keys, one a line. Empty: the file beside the store that has its "
            "name and `.key`; the first server makes it."
        ),
    ] = ""
    synchronous: Annotated[
        Literal["full", "normal", "off"],
        _about(
            "How SQLite waits for the disk. Below `full` a power cut loses acknowledged tasks, so "
            "it is refused unless `accept_data_loss` is on."
        ),
    ] = "full"
    accept_data_loss: Annotated[
        bool, _about("Whether settings that lose acknowledged tasks may be used.")
    ] = False
    new_store: Annotated[
        bool,
        _about(
            "Whether to begin with an empty store where one was whose file is gone. For one start "
            "alone: left on, it would hide that a store was lost."
        ),
    ] = False
    audit: Annotated[
        str,
        _about(
            "The file of the audit log, or `off`. Empty: the file beside the store that has its "
            "name and `.audit.jsonl`; none for `memory:`."
        ),
    ] = ""
    listen: Annotated[
        str,
        _about(
            "The address to listen on, `host:port`; port 0 takes a free one. Several are separated "
            "by commas."
        ),
    ] = "127.0.0.1:8000"
    tls_cert: Annotated[
        str, _about("A certificate (PEM) to speak TLS with. Empty: plain HTTP.")
    ] = ""
    tls_key: Annotated[str, _about("Its private key (PEM), if that is in a file of its own.")] = ""
    client_ca: Annotated[
        str,
        _about("Authorities (PEM): only callers with a certificate of theirs are let in."),
    ] = ""
    client_crl: Annotated[
        str,
        _about(
            "Certificates that those authorities have revoked (PEM or DER), read again when the "
            "file changes. One that is out of date lets nobody in."
        ),
    ] = ""
    proxies: Annotated[
        str,
        _about(
            "Addresses or networks of proxies whose word counts, separated by commas. What others "
            "claim in a proxy's headers is ignored."
        ),
    ] = ""
    proxy_cert_header: Annotated[
        str,
        _about(
            "The header in which those proxies hand over a caller's certificate: `Client-Cert` "
            "(RFC 9440), `X-Forwarded-Client-Cert` (Envoy), or any other, with a URL-encoded PEM. "
            "The proxy must remove it from what callers send."
        ),
    ] = ""
    auth_token: Annotated[
        str,
        _about("A bearer token that lets its holder in, of at least 16 characters."),
    ] = ""
    auth_tokens: Annotated[
        str,
        _about(
            "A file (TOML) of bearer tokens, one table for each holder: `token`, and if wanted "
            "`scopes` and `tenant`. Read again when it changes: without the file nobody is let in "
            "by it, and while it cannot be understood, what it said before holds."
        ),
    ] = ""
    keys: Annotated[
        str,
        _about(
            "The file of API keys, kept by `dragoman keys`. Empty: `keys.json` in the user's data "
            "folder. Read again when it changes, as `auth_tokens` is."
        ),
    ] = ""
    api_key_header: Annotated[str, _about("The header that brings an API key.")] = "X-API-Key"
    auth: Annotated[
        str,
        _about(
            "How callers prove who they are: `bearer` (tokens), `api-key`, `jwt`, `oidc`, `mtls`; "
            "of several, separated by commas, any one will do. `none`: they are not asked. Empty: "
            "`bearer` if there are tokens, `mtls` if there is a `client_ca`, else `none`."
        ),
    ] = ""
    jwt_issuer: Annotated[
        str, _about("Who makes the tokens (`iss`), word for word. `oidc` finds its keys there.")
    ] = ""
    jwt_audience: Annotated[
        str, _about("Whom tokens must be for (`aud`): us, by any of these names (commas).")
    ] = ""
    jwt_keys: Annotated[
        str,
        _about("The issuer's public keys: the URL or the file of a JWKS, or a file in PEM."),
    ] = ""
    jwt_secret: Annotated[
        str,
        _about("A secret shared with the issuer, of at least 32 bytes, for tokens signed by HMAC."),
    ] = ""
    jwt_algorithms: Annotated[
        str,
        _about(
            "Algorithms a token may be signed with (commas). Empty: those that fit the keys: "
            "RS, PS, ES and EdDSA for public keys, HS for a secret."
        ),
    ] = ""
    jwt_leeway: Annotated[
        float, _about("Seconds that the issuer's clock may be off.", ge=0, le=600)
    ] = 60.0
    jwt_type: Annotated[
        str,
        _about(
            "The `typ` a token must have: `at+jwt` (RFC 9068), and no other. Empty: `at+jwt`, "
            "`JWT` or none."
        ),
    ] = ""
    jwt_owner_claim: Annotated[str, _about("The claim that says whose tasks a caller sees.")] = (
        "sub"
    )
    jwt_tenant_claim: Annotated[
        str, _about("The claim that names the caller's tenant. Empty: tokens name none.")
    ] = ""
    oauth_token_url: Annotated[
        str, _about("Where callers get tokens, for the card: its scheme is then OAuth 2.")
    ] = ""
    oauth_authorization_url: Annotated[
        str, _about("Where people log in for tokens by authorization code, for the card.")
    ] = ""
    oauth_device_url: Annotated[str, _about("Where devices ask for tokens, for the card.")] = ""
    oauth_scopes: Annotated[str, _about("Scopes the issuer knows, for the card (commas).")] = ""
    hosts: Annotated[
        str,
        _about(
            "Names callers may call us by in `Host`, separated by commas. Empty: any, except that "
            "a server only this machine reaches goes by its local names and that of `public_url`."
        ),
    ] = ""
    cors: Annotated[
        str,
        _about(
            "Origins whose pages may call us from a browser, separated by commas; `*`: all. "
            "Empty: none."
        ),
    ] = ""
    card_public: Annotated[
        bool, _about("Whether the card is shown to callers who do not say who they are.")
    ] = True
    public_url: Annotated[
        str,
        _about("The address peers reach us at, for the card. Empty: as the request says."),
    ] = ""
    version_mode: Annotated[
        Literal["infer", "strict"],
        _about(
            "What a request without `A2A-Version` speaks: judged by its method (`infer`) or "
            "always 0.3 (`strict`)."
        ),
    ] = "infer"
    transport: Annotated[
        str,
        _about(
            "The bindings that are served, and offered by the card: `jsonrpc`, `rest`, separated "
            "by commas. Empty: all."
        ),
    ] = ""
    dialects: Annotated[
        str,
        _about(
            "Dialects of single systems that are served besides: `nexus` (`/api/v1/a2a`), `r` "
            "(`/api/a2a`), `corvid` (`/a2a/tasks`), `selectools` (`/a2a`), `fasta2a`, and `0.1`, "
            "the ancestor of these; separated by commas. Empty: all; `none`."
        ),
    ] = ""
    nexus_sync: Annotated[
        bool,
        _about("Whether a message at `/api/v1/a2a` is answered when its task rests, not at once."),
    ] = False
    rx_rest_wrap: Annotated[
        bool,
        _about(
            "Whether events at `/v1/message:stream` are in a JSON-RPC envelope for callers of `r`."
        ),
    ] = False
    require_text_part: Annotated[
        bool, _about("Whether a message of 0.x at `/a2a` without a text is refused.")
    ] = False
    cancel_on_disconnect: Annotated[
        bool,
        _about("Whether a task is canceled when the caller leaves the stream it began it with."),
    ] = False
    max_depth: Annotated[
        int, _about("How often agents of `corvid` may have passed a task on.", ge=1, le=10)
    ] = 3
    corvid_rate: Annotated[
        str,
        _about(
            "Tasks that one source agent may send to `/a2a/tasks/send`, as `rate_limit` is "
            "written: corvid's own would be `5/60s`. Callers that do not say who they are share "
            "one source. `off`: no limit."
        ),
    ] = "off"
    a2a_version: Annotated[
        str,
        _about(
            "The versions of the protocol that are served, and offered by the card: `1.0`, `0.3`, "
            "`0.2`, separated by commas. Empty: all."
        ),
    ] = ""
    card: Annotated[
        str,
        _about(
            "A file (`.json` or `.toml`) whose members stand in the card instead of the agent's "
            "own: name, description, provider, texts of skills, security schemes."
        ),
    ] = ""
    sign_key: Annotated[
        str,
        _about(
            "A private key (PEM or JWK) that signs the card; its public half is at "
            "`/.well-known/jwks.json`. Needs `public_url` and the extra `jwt`."
        ),
    ] = ""
    workers: Annotated[
        int, _about("Processes that serve, on one port and one SQLite file.", ge=1, le=256)
    ] = 1
    card_shape: Annotated[
        Literal["auto", "1.0", "0.3", "0.2"],
        _about("The shape of the card: by request (`auto`), or always one."),
    ] = "auto"
    error_table: Annotated[
        Literal["1.0.1", "1.0.0"],
        _about("Which specification's HTTP statuses and content type REST errors have."),
    ] = "1.0.1"
    idempotency: Annotated[
        bool, _about("Whether a repeated message is answered by the task it made before.")
    ] = True
    client_task_ids: Annotated[
        bool, _about("Whether 0.x callers may name a task that does not exist yet.")
    ] = False
    extended_card_public: Annotated[
        bool, _about("Whether the extended card is shown without authentication.")
    ] = False
    push: Annotated[bool, _about("Whether callers may have a task's events posted to them.")] = True
    push_secret: Annotated[
        str,
        _about(
            "What posts are signed with: one or more `whsec_` secrets, separated by commas while "
            "they change. Empty: one that lives with the store; `dragoman push secret` prints it."
        ),
    ] = ""
    push_tokens: Annotated[
        bool,
        _about(
            "Whether posts also carry a signed JWT, whose keys are at `/.well-known/jwks.json`. "
            "Needs the extra `jwt`."
        ),
    ] = False
    push_timeout: Annotated[float, _about("Seconds a receiver has to take a post.", gt=0)] = 15.0
    push_slots: Annotated[int, _about("Posts on their way at once.", ge=1)] = 256
    allow: Annotated[
        str,
        _about(
            "Addresses we may dial although they are not public: hosts, `host:port` or networks, "
            "separated by commas."
        ),
    ] = ""
    allow_private: Annotated[
        bool,
        _about(
            "Whether we may dial any private address, loopback included, and without TLS. For "
            "development."
        ),
    ] = False
    card_max_age: Annotated[int, _about("Seconds a card may be cached.", ge=0)] = 300
    max_body_bytes: Annotated[int, _about("The largest request body.", ge=1024)] = 10 * 1024 * 1024
    max_json_values: Annotated[
        int,
        _about(
            "Values in one JSON body of a caller, or in one answer or event of an agent that a "
            "gateway forwards to: objects, arrays, texts, numbers and names of members. They are "
            "counted before any of them is made; more are refused as no JSON that is accepted "
            "(400, `-32700`).",
            ge=1_000,
        ),
    ] = 200_000
    max_connections: Annotated[
        int, _about("Open connections of one process; those that wait make room first.", ge=1)
    ] = 10_500
    max_connections_per_address: Annotated[
        int,
        _about(
            "Open connections of one process from one address; 0: no limit, as behind a proxy, "
            "where all come from one.",
            ge=0,
        ),
    ] = 0
    max_events: Annotated[
        int, _about("Events in one task's log; more end it as failed.", ge=10, le=1_000_000)
    ] = 100_000
    max_task_bytes: Annotated[
        int, _about("Bytes in one task's log; more end it as failed.", ge=1024)
    ] = 256 * 1024 * 1024
    max_stored_bytes: Annotated[
        int,
        _about(
            "Bytes that the logs of one principal's tasks may have in the store, together: then "
            "its tasks end as failed and new ones are refused, until old ones are forgotten. 0: no "
            "limit, and none where callers are not known.",
            ge=0,
        ),
    ] = 8 * 1024 * 1024 * 1024
    max_live_tasks: Annotated[
        int, _about("Tasks running at once; further ones are refused as overload.", ge=1)
    ] = 10_000
    max_queued_messages: Annotated[
        int, _about("Messages waiting behind one running task.", ge=1)
    ] = 100
    max_streams: Annotated[int, _about("Open streams; further ones are refused.", ge=1)] = 10_000
    rate_limit: Annotated[
        str,
        _about(
            "Requests one principal may make, `100/60s`: that many at once, and as many in each "
            "60 seconds. Empty: no limit, since only you know how fast your agents work together, "
            "and overload is refused anyway. Each of several `workers` counts for itself."
        ),
    ] = ""
    rate_limit_agent: Annotated[
        str,
        _about(
            "Requests a principal may make for one agent, which it names in `X-Source-Agent`. "
            "Empty: no limit."
        ),
    ] = ""
    rate_limit_address: Annotated[
        str,
        _about(
            "Requests that may come from one address, known or not; of IPv6, from one /64. Behind "
            "a proxy name it in `proxies`. Empty: no limit."
        ),
    ] = ""
    rate_limit_failures: Annotated[
        str,
        _about(
            "Credentials that do not hold, from one address that is not of this machine: beyond "
            "that nobody there is let in for a while. `off`: no limit."
        ),
    ] = "20/60s"
    quota: Annotated[
        str,
        _about(
            "Tasks one principal may begin, `1000/d`, in whatever way: also runs of workflows and "
            "each of their steps, each agent of a race, and what agents of the same process are "
            "called for. Counted since the process started. Empty: no limit."
        ),
    ] = ""
    max_requests_per_caller: Annotated[
        int,
        _about(
            "Requests of one principal that are answered at once, open streams among them. Where "
            "callers are not known, of one address that is not of this machine.",
            ge=1,
        ),
    ] = 256
    max_bytes_per_caller: Annotated[
        int,
        _about(
            "Bytes that all requests of one principal hold at once, from their first byte until "
            "the answer is taken: of each its body or its answer, whichever is longer. Beyond that "
            "it is told to come back (429). Callers that are not known share those of their "
            "address. One request alone is let in whatever its size.",
            ge=64 * 1024,
        ),
    ] = 256 * 1024 * 1024
    max_streams_per_caller: Annotated[
        int, _about("Open streams of one principal, or of such an address.", ge=1)
    ] = 100
    max_tasks_per_caller: Annotated[
        int, _about("Tasks of one principal that run at once.", ge=1)
    ] = 1_000
    max_agents_per_owner: Annotated[
        int, _about("Agents one owner may register with a gateway.", ge=1)
    ] = 1_000
    agent_concurrency: Annotated[
        int,
        _about("Tasks a gateway has one registered agent work on at once; others wait.", ge=1),
    ] = 1_000
    agent_queue: Annotated[
        int,
        _about("Tasks that may wait for one registered agent; further ones fail.", ge=0),
    ] = 10_000
    forward_attempts: Annotated[
        int,
        _about(
            "How often a gateway sends a message to agents that do not answer, the first after one "
            "second and each later one after twice as long.",
            ge=1,
            le=10,
        ),
    ] = 3
    forward_timeout: Annotated[
        float,
        _about(
            "Seconds an agent has to begin its answer before the gateway tries again; those that "
            "would repeat the work of a message have `forward_patience`.",
            gt=0,
        ),
    ] = 30.0
    forward_patience: Annotated[
        float,
        _about(
            "Seconds an agent that has a task may be out of reach, or show no sign of life, before "
            "the gateway gives the task up, or to another agent.",
            gt=0,
        ),
    ] = 300.0
    forward_quiet: Annotated[
        float,
        _about(
            "Seconds an agent that has a task may be silent before the gateway asks it how the "
            "task stands; at most a third of `forward_patience`.",
            gt=0,
        ),
    ] = 30.0
    routing: Annotated[
        Literal["trust", "cheapest", "fastest", "round-robin", "learning"],
        _about("How a gateway chooses among agents that can do a task."),
    ] = "trust"
    heartbeat_interval: Annotated[
        float,
        _about(
            "Seconds between two signs of life of a registered agent: after one without any it is "
            "degraded, after three offline.",
            gt=0,
        ),
    ] = 60.0
    trust_policy: Annotated[
        Literal["nexus", "corvid"], _about("How a gateway makes scores of what it observed.")
    ] = "nexus"
    trust_cap: Annotated[
        int,
        _about("Tasks of one requester and day that count for one agent's score.", ge=1),
    ] = 20
    platform_fee: Annotated[
        str, _about("What a gateway keeps of a price, as a share of it: `0.05`.")
    ] = "0.05"
    initial_credits: Annotated[
        str, _about("Credits that everyone has to begin with at a gateway.")
    ] = "1000"
    escrow: Annotated[
        float,
        _about(
            "Seconds that the price of a completed task stays reserved at a gateway, for its "
            "requester to accept or dispute it; then it is paid. 0: it is paid at once.",
            ge=0,
            le=31_536_000,
        ),
    ] = 0.0
    payment_secret: Annotated[
        str,
        _about(
            "What the test provider of payments signs its posts with. Empty: nothing can be bought."
        ),
    ] = ""
    threads: Annotated[int, _about("Threads for agents written as plain functions.", ge=1)] = 32
    loop_blocked_after: Annotated[
        float,
        _about(
            "Seconds for which an agent's code may hold the event loop before the log and the "
            "metrics name it; 0: it is not watched.",
            ge=0,
        ),
    ] = 1.0
    max_attempts: Annotated[
        int,
        _about(
            "How often the process may die while a task alone is under way there, without its "
            "getting anywhere, before the task is given up as failed.",
            ge=1,
        ),
    ] = 3
    suspect_seconds: Annotated[
        float,
        _about(
            "Seconds for which a task that was under way when two processes died runs alone; "
            "each time it outlives them and is still suspected doubles them, up to 32 times. "
            "Other tasks wait meanwhile: six times as long, or for one such longer turn.",
            gt=0,
        ),
    ] = 5.0
    lease: Annotated[
        float,
        _about(
            "Seconds after which a process that gives no sign of life loses its tasks to another "
            "one on the same store. One that ended loses them at once.",
            ge=1,
        ),
    ] = 30.0
    max_block_seconds: Annotated[
        float,
        _about(
            "Seconds a blocking 0.x send waits before it answers with the task as it is; 0: no "
            "limit.",
            ge=0,
        ),
    ] = 0.0
    cancel_grace: Annotated[
        float, _about("Seconds an agent has to stop before it is stopped.", ge=0)
    ] = 5.0
    drain: Annotated[
        float, _about("Seconds open requests have to finish when the server stops.", ge=0)
    ] = 5.0
    keepalive: Annotated[
        float, _about("Seconds of silence before a stream gets a comment.", gt=0)
    ] = 15.0
    otlp_endpoint: Annotated[
        str,
        _about(
            "Where traces and metrics are sent (OTLP over HTTP), such as `http://127.0.0.1:4318`. "
            "Empty: as `OTEL_EXPORTER_OTLP_ENDPOINT` says, else nowhere. Needs the extra "
            "`telemetry`."
        ),
    ] = ""
    trace_events: Annotated[
        bool,
        _about(
            "Whether each event of a task has a span of its own where traces are sent. Otherwise "
            "it is an event of the span of its turn, which costs less."
        ),
    ] = False
    hooks: Annotated[
        str,
        _about(
            "Files or modules with `EventHooks` for the events of all tasks, with commas: "
            "`redact.py,audit:hooks`. They are called in this order, after those of the agents."
        ),
    ] = ""
    metrics: Annotated[
        bool, _about("Whether `/metrics` is served, to callers with the scope of an operator.")
    ] = True
    log_format: Annotated[
        Literal["text", "json"], _about("Lines of log for people (`text`) or for programs.")
    ] = "text"
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], _about("The least that is logged.")
    ] = "info"
    access_log: Annotated[
        bool,
        _about(
            "Whether each request is logged: its route, operation, version, status, time, caller "
            "and address."
        ),
    ] = False
    retain_seconds: Annotated[int, _about("How long finished tasks are kept.", ge=86_400)] = (
        30 * 86_400
    )
    retain_tasks: Annotated[int, _about("How many finished tasks are kept.", ge=1)] = 1_000_000

    def __repr__(self) -> str:
        shown = ((name, getattr(self, name)) for name in self.__struct_fields__)
        words = [
            f"{name}={hidden(value) if name in SECRETS else repr(value)}" for name, value in shown
        ]
        return f"Settings({', '.join(words)})"

    def store_path(self) -> Path:
        """Return the SQLite file."""
        if self.store.startswith(("postgres:", "postgresql:")):
            raise ConfigError("store: there is no store on PostgreSQL yet; name a SQLite file")
        path = self.store.removeprefix("sqlite:")
        return Path(path).expanduser() if path else data_folder() / "tasks.db"

    @property
    def has_own_folder(self) -> bool:
        """Whether the store is in the user's data folder, which is ours to make."""
        return not self.store.removeprefix("sqlite:")

    def make_own_folder(self) -> None:
        """Make the user's data folder if files of the store are to be there."""
        if self.has_own_folder and not self.audit:
            make_data_folder()

    def keys_path(self) -> Path:
        """Return the file of API keys."""
        return Path(self.keys).expanduser() if self.keys else data_folder() / "keys.json"

    def audit_path(self) -> Path | None:
        """Return the file of the audit log; None: there is none."""
        if self.audit == "off" or (not self.audit and self.store == "memory:"):
            return None
        if self.audit:
            return Path(self.audit).expanduser()
        store = self.store_path()
        return store.with_name(f"{store.name}.audit.jsonl")

    def bindings(self) -> list[str]:
        """Return the bindings to serve, by the names of the card."""
        return [_BINDINGS[name] for name in _chosen("transport", self.transport, _BINDINGS)]

    def versions(self) -> list[str]:
        """Return the versions of the protocol to serve, the newest first."""
        return _chosen("a2a_version", self.a2a_version, VERSIONS)

    def houses(self) -> list[str]:
        """Return the dialects of single systems to serve."""
        if self.dialects.strip().lower() == "none":
            return []
        return _chosen("dialects", self.dialects, HOUSES, "none")

    def hook_targets(self) -> list[str]:
        """Return where the hooks are that see and change the events of all tasks."""
        return [target.strip() for target in self.hooks.split(",") if target.strip()]

    def ways(self) -> list[str]:
        """Return how callers prove who they are; none: they are not asked."""
        if not self.auth.strip():
            found = ["bearer"] if self.auth_token or self.auth_tokens else []
            return found or (["mtls"] if self.client_ca else [])
        if self.auth.strip().lower() == "none":
            return []
        return _chosen("auth", self.auth, _WAYS, "none")

    def addresses(self) -> list[tuple[str, int]]:
        """Return hosts and ports to listen on."""
        found = [_address(text.strip()) for text in self.listen.split(",") if text.strip()]
        if not found:
            raise ConfigError("listen: names no address; write 127.0.0.1:8000")
        return found


def _chosen(setting: str, text: str, known: Collection[str], alone: str = "") -> list[str]:
    """Return the known names that a comma list has; all of them for an empty one.

    One that only goes alone is not among them, but can be chosen.
    """
    names = {name.strip().lower() for name in text.split(",") if name.strip()}
    for name in sorted(names - {*known}):
        if name == alone:
            raise ConfigError(f"{setting}: {name} goes with no other; leave one of them out")
        choice = [alone, *known] if alone else [*known]
        raise ConfigError(
            f"{setting}: {name} is not served{_meant(name, choice)}; choose of {', '.join(choice)}"
        )
    return [name for name in known if not names or name in names]


def _address(text: str) -> tuple[str, int]:
    """Return host and port of `host:port`, `[::1]:port`, a host, or a port of this machine."""
    host, colon, port = text.rpartition(":")
    if not colon and text.isdecimal():
        host, port = "", text
    elif not colon or text.endswith("]") or (":" in host and not host.endswith("]")):
        host, port = text, str(_PORT)
    if not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"listen: {text} is no address; write 127.0.0.1:8000")
    return host.strip("[]") or "127.0.0.1", int(port)


# `off` is a word of other settings as well.
_BOOLS = {f.name for f in fields(Settings) if get_args(f.type)[0] is bool}
_FLOATS = {f.name for f in fields(Settings) if get_args(f.type)[0] is float}


def data_folder() -> Path:
    """Return the folder for this user's data."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "dragoman"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home())) / "dragoman"
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "dragoman"


def make_data_folder() -> None:
    """Make the folder for this user's data, for the user alone; raises `ConfigError`."""
    folder = data_folder()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"{folder}: the folder for your data cannot be made ({error.strerror}); name a file by "
            "--store"
        ) from None


def check_names(environment: Mapping[str, str]) -> None:
    """Refuse a variable that looks like a setting and is none: whoever wrote it relies on it."""
    known = [*Settings.__struct_fields__, *(f"{name}_file" for name in SECRETS)]
    settings = {name.upper() for name in known}
    for name in sorted(environment):
        word = name.removeprefix(PREFIX)
        if word != name and word not in settings | OTHERS and not _SERVICE.fullmatch(word):
            near = _meant(word, settings, PREFIX)
            raise ConfigError(f"{name} is no setting{near}; unset it, or correct it")


def _meant(word: str, known: Collection[str], prefix: str = "") -> str:
    """Return the known word that was perhaps meant, as part of a sentence; empty: none is near."""
    from difflib import get_close_matches

    near = get_close_matches(word, known, 1)
    return f", perhaps {prefix}{near[0]} was meant" if near else ""


def load(environment: Mapping[str, str], **given: Any) -> Settings:
    """Return the settings: what was given, else the environment, else the defaults."""
    names = Settings.__struct_fields__
    values: dict[str, Any] = {
        name: environment[PREFIX + name.upper()]
        for name in names
        if PREFIX + name.upper() in environment
    }
    # A file that is a setting of its own is read by whoever needs it, and again when it changes.
    for name in SECRETS - {name.removesuffix("_file") for name in names if name.endswith("_file")}:
        if path := environment.get(f"{PREFIX}{name.upper()}_FILE"):
            if values.get(name):
                raise ConfigError(f"{name}: given itself and as a file; unset one of the two")
            values[name] = _secret(name, path)
    for name in values.keys() & _BOOLS:
        values[name] = _SWITCHES.get(values[name].lower(), values[name])
    for name in values.keys() & _FLOATS:
        # What is no duration either is told like all that is wrong.
        with contextlib.suppress(ValueError):
            values[name] = duration(values[name])
    values |= {name: value for name, value in given.items() if value is not None}
    try:
        return msgspec.convert(values, Settings, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"settings: {error}") from None


def _secret(name: str, path: str) -> str:
    """Return the secret in a file, without the newline that editors add."""
    variable = f"{PREFIX}{name.upper()}_FILE"
    try:
        text = Path(path).expanduser().read_text("utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(f"{variable}: {path} cannot be read ({reason})") from None
    text = text.removesuffix("\n").removesuffix("\r")
    if not text:
        raise ConfigError(f"{variable}: {path} is empty; write the secret into it")
    return text
