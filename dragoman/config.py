"""Every setting, once: the type, the default, the environment name and the line in the docs.

A setting `store` is read from `DRAGOMAN_STORE`; a value given in code or on the command line wins.
`docs/configuration.md` is written from this file, and a test fails when it is stale.
"""

import os
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta
from msgspec.structs import fields

from dragoman.errors import ConfigError
from dragoman.model.card import HTTP_JSON, JSONRPC
from dragoman.model.push import hidden

PREFIX = "DRAGOMAN_"
# Where a host is named without one.
_PORT = 8000
# What can be served, by the names people write.
_BINDINGS = {"jsonrpc": JSONRPC, "rest": HTTP_JSON}
VERSIONS = ("1.0", "0.3", "0.2")
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
        Literal["1.0.1", "1.0.0"], _about("Which specification's HTTP statuses errors have.")
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
    max_events: Annotated[
        int, _about("Events in one task's log; more end it as failed.", ge=10, le=1_000_000)
    ] = 100_000
    max_task_bytes: Annotated[
        int, _about("Bytes in one task's log; more end it as failed.", ge=1024)
    ] = 256 * 1024 * 1024
    max_live_tasks: Annotated[
        int, _about("Tasks running at once; further ones are refused as overload.", ge=1)
    ] = 10_000
    max_queued_messages: Annotated[
        int, _about("Messages waiting behind one running task.", ge=1)
    ] = 100
    max_streams: Annotated[int, _about("Open streams; further ones are refused.", ge=1)] = 10_000
    threads: Annotated[int, _about("Threads for agents written as plain functions.", ge=1)] = 32
    max_attempts: Annotated[
        int,
        _about(
            "How often the code may die on a task without getting anywhere before the task is "
            "given up as failed.",
            ge=1,
        ),
    ] = 3
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
    retain_seconds: Annotated[int, _about("How long finished tasks are kept.", ge=86_400)] = (
        30 * 86_400
    )
    retain_tasks: Annotated[int, _about("How many finished tasks are kept.", ge=1)] = 1_000_000

    def __repr__(self) -> str:
        shown = ((name, getattr(self, name)) for name in self.__struct_fields__)
        words = [
            f"{name}={hidden(value) if name == 'push_secret' else repr(value)}"
            for name, value in shown
        ]
        return f"Settings({', '.join(words)})"

    def store_path(self) -> Path:
        """Return the SQLite file."""
        if self.store.startswith(("postgres:", "postgresql:")):
            raise ConfigError("store: there is no store on PostgreSQL yet; name a SQLite file")
        path = self.store.removeprefix("sqlite:")
        return Path(path).expanduser() if path else data_folder() / "tasks.db"

    def bindings(self) -> list[str]:
        """Return the bindings to serve, by the names of the card."""
        return [_BINDINGS[name] for name in _chosen("transport", self.transport, _BINDINGS)]

    def versions(self) -> list[str]:
        """Return the versions of the protocol to serve, the newest first."""
        return _chosen("a2a_version", self.a2a_version, VERSIONS)

    def addresses(self) -> list[tuple[str, int]]:
        """Return hosts and ports to listen on."""
        found = [_address(text.strip()) for text in self.listen.split(",") if text.strip()]
        if not found:
            raise ConfigError("listen: names no address; write 127.0.0.1:8000")
        return found


def _chosen(setting: str, text: str, known: Collection[str]) -> list[str]:
    """Return the known names that a comma list has; all of them for an empty one."""
    names = {name.strip().lower() for name in text.split(",") if name.strip()}
    if unknown := sorted(names - {*known}):
        raise ConfigError(f"{setting}: {unknown[0]} is not served; choose of {', '.join(known)}")
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


def data_folder() -> Path:
    """Return the folder for this user's data."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "dragoman"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home())) / "dragoman"
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "dragoman"


def load(environment: Mapping[str, str], **given: Any) -> Settings:
    """Return the settings: what was given, else the environment, else the defaults."""
    names = Settings.__struct_fields__
    values: dict[str, Any] = {
        name: environment[PREFIX + name.upper()]
        for name in names
        if PREFIX + name.upper() in environment
    }
    for name in values.keys() & _BOOLS:
        values[name] = _SWITCHES.get(values[name].lower(), values[name])
    values |= {name: value for name, value in given.items() if value is not None}
    try:
        return msgspec.convert(values, Settings, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"settings: {error}") from None
