"""All settings, in groups by room."""

from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec

from dragoman.config.data_folder import data_folder, make_data_folder
from dragoman.config.formats import (
    ListenAddress,
    read_choices,
    read_listen_address,
    read_listen_addresses,
)
from dragoman.config.gateway import GatewaySettings
from dragoman.config.group import fields_of, refusal
from dragoman.config.http import HttpSettings
from dragoman.config.security import WAYS, EgressSettings, PushSettings, SecuritySettings
from dragoman.config.serving import (
    BINDINGS,
    HOUSES,
    VERSIONS,
    CardSettings,
    DialectSettings,
    ServerSettings,
    TelemetrySettings,
)
from dragoman.config.tasks import EngineSettings, StoreSettings
from dragoman.errors import ConfigError
from dragoman.model.patterns import late_pattern

# What is not to be in the name of a file.
_UNSAFE = late_pattern(r"[^A-Za-z0-9._-]")


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How agents are served; raises `ConfigError` when it is made with a value that is not
    allowed."""

    stores: StoreSettings = msgspec.field(default_factory=StoreSettings)
    engine: EngineSettings = msgspec.field(default_factory=EngineSettings)
    server: ServerSettings = msgspec.field(default_factory=ServerSettings)
    http: HttpSettings = msgspec.field(default_factory=HttpSettings)
    security: SecuritySettings = msgspec.field(default_factory=SecuritySettings)
    cards: CardSettings = msgspec.field(default_factory=CardSettings)
    dialects: DialectSettings = msgspec.field(default_factory=DialectSettings)
    push: PushSettings = msgspec.field(default_factory=PushSettings)
    egress: EgressSettings = msgspec.field(default_factory=EgressSettings)
    gateway: GatewaySettings = msgspec.field(default_factory=GatewaySettings)
    telemetry: TelemetrySettings = msgspec.field(default_factory=TelemetrySettings)

    def __post_init__(self) -> None:
        for field in fields_of(type(self)):
            group = getattr(self, field.name)
            if type(group) is not field.type:
                raise refusal(field.name, group, f"must be {field.type.__name__}")

    def store_path(self) -> Path:
        """Return the SQLite file."""
        if self.is_postgres:
            raise ConfigError("store: this needs a SQLite file; the store is on PostgreSQL")
        path = self.stores.location.removeprefix("sqlite:")
        return Path(path).expanduser() if path else data_folder() / "tasks.db"

    @property
    def is_postgres(self) -> bool:
        """Whether tasks are stored in PostgreSQL."""
        return self.stores.is_postgres

    @property
    def store_name(self) -> str:
        """The store as people are shown it: no password in it."""
        if self.is_postgres:
            parts = urlsplit(self.stores.location)
            return f"postgresql://{parts.netloc.rpartition('@')[2]}{parts.path}"
        is_memory = self.stores.location == "memory:"
        return self.stores.location if is_memory else str(self.store_path())

    def beside_store(self, suffix: str) -> Path:
        """Return the file beside the store with its name and a suffix. What belongs to a database
        is in the user's data folder."""
        if self.is_postgres:
            return data_folder() / f"{self._database_name()}{suffix}"
        store = self.store_path()
        return store.parent / f"{store.name}{suffix}"

    def _database_name(self) -> str:
        """Return what files of a database are called: by its host and name, and its port where
        that is not the usual one. All users of the database have the same."""
        parts = urlsplit(self.stores.location)
        hosts = parts.netloc.rpartition("@")[2].removesuffix(":5432") or "localhost"
        name = f"{hosts}-{unquote(parts.path).strip('/') or 'postgres'}"
        return _UNSAFE.sub("_", name)

    @property
    def has_own_folder(self) -> bool:
        """Whether the store is in the user's data folder, which is ours to make."""
        return self.is_postgres or not self.stores.location.removeprefix("sqlite:")

    def make_own_folder(self) -> None:
        """Make the user's data folder if files of the store belong there."""
        if self.has_own_folder and not self.security.audit:
            make_data_folder()

    def keys_path(self) -> Path:
        """Return the file of API keys."""
        keys = self.security.api_keys
        return Path(keys).expanduser() if keys else data_folder() / "keys.json"

    def audit_path(self) -> Path | None:
        """Return the file of the audit log; None: there is none."""
        audit = self.security.audit
        if audit == "off" or (not audit and self.stores.location == "memory:"):
            return None
        if audit:
            return Path(audit).expanduser()
        return self.beside_store(".audit.jsonl")

    def bindings(self) -> list[str]:
        """Return the bindings to serve, by the names of the card."""
        return [BINDINGS[name] for name in read_choices(self.dialects.transport, BINDINGS)]

    def versions(self) -> list[str]:
        """Return the versions of the protocol to serve, the newest first."""
        return read_choices(self.dialects.a2a_version, VERSIONS)

    def houses(self) -> list[str]:
        """Return the dialects of single systems to serve."""
        return read_choices(self.dialects.houses, HOUSES, "none")

    def ways(self) -> list[str]:
        """Return how callers authenticate; none: they do not."""
        if not self.security.auth:
            has_tokens = self.security.auth_token or self.security.auth_tokens
            if has_tokens:
                return ["bearer"]
            return ["mtls"] if self.http.client_ca else []
        return read_choices(self.security.auth, WAYS, "none")

    def addresses(self) -> list[ListenAddress]:
        """Return hosts and ports to listen on."""
        return read_listen_addresses(self.http.listen)

    def grpc_addresses(self) -> list[ListenAddress]:
        """Return hosts and ports on which only gRPC is served."""
        return [read_listen_address(text) for text in self.http.grpc_listen]
