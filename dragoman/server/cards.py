"""Cards as served: built from the agent, in the shape a request asks for, with validators."""

import hashlib
import time
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from dragoman.authoring.agent import Agent
from dragoman.config import Settings
from dragoman.dialects import cards
from dragoman.dialects.negotiate import card_shape
from dragoman.errors import ConfigError
from dragoman.model.card import (
    GRPC,
    HTTP_JSON,
    JSONRPC,
    ONCE_URI,
    RESUME_URI,
    SCHEMAS_URI,
    AgentCapabilities,
    AgentCard,
    AgentExtension,
    AgentInterface,
    AgentSkill,
)
from dragoman.model.message import Json
from dragoman.model.patterns import late_pattern
from dragoman.model.record import encode
from dragoman.model.requests import REQUESTS_URI
from dragoman.model.task import TRANSITIONS_URI
from dragoman.security.authentication import Authenticator
from dragoman.transports.grpc.hosts import host_of

if TYPE_CHECKING:
    # Loaded where a setting names a file for them.
    from dragoman.server.card_file import CardFile
    from dragoman.server.signing import Signer

Headers = list[tuple[bytes, bytes]]
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
# Clients of REST 0.3 put `/v1` after it themselves.
_PATHS = {JSONRPC: "/a2a", HTTP_JSON: ""}
# The path of one of several agents.
_AGENT_PATH = late_pattern(r"/((?:agents|a2a)/[^/]+)/?\Z")
_SHAPES = {
    "1.0": cards.v1_0,
    "0.3": cards.v0_3,
    "0.2": cards.v0_2,
    "hybrid": cards.hybrid,
}


class GrpcPlace(msgspec.Struct):
    """Whether this process serves gRPC, and on which port; 0: on that of everything else."""

    is_served: bool = False
    port: int = 0


def build(
    agent: Agent,
    base: str,
    settings: Settings,
    *,
    more: Sequence[AgentSkill] = (),
    ways: Sequence[Authenticator] = (),
    grpc: GrpcPlace | None = None,
) -> AgentCard:
    """Return an agent's card for callers who reach it at a base address and authenticate in one of
    some ways. `more` are skills that only some callers see."""
    skills = [_guarded(skill.card, skill.scopes, ways) for skill in agent.skills.values()]
    skills += more
    return AgentCard(
        name=agent.title,
        description=agent.description,
        supported_interfaces=[
            interface
            for version in _offered_versions(settings)
            for binding in settings.bindings()
            if (interface := _interface(binding, version, base, settings, grpc)) is not None
        ],
        version=agent.version,
        capabilities=AgentCapabilities(
            streaming=agent.streaming,
            push_notifications=settings.push.enabled,
            extended_agent_card=offers_extended(agent, settings, ways),
            extensions=offered_extensions(agent, settings),
        ),
        default_input_modes=agent.input_modes,
        default_output_modes=agent.output_modes,
        skills=skills,
        provider=agent.provider,
        documentation_url=agent.documentation_url,
        icon_url=agent.icon_url,
        security_schemes={name: one for way in ways for name, one in way.schemes.items()},
        security_requirements=_requirements(ways),
    )


def _interface(
    binding: str, version: str, base: str, settings: Settings, grpc: GrpcPlace | None
) -> AgentInterface | None:
    """Return one interface of an agent; None: it has none like that."""
    if binding != GRPC:
        return AgentInterface((base + _PATHS[binding]) or "/", binding, version)
    if grpc is None or not grpc.is_served or version == "0.2":
        return None
    parts = urlsplit(base)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname or ""
    port = grpc.port or parts.port or (443 if parts.scheme == "https" else 80)
    url = settings.cards.grpc_url or f"{host}:{port}"
    # An rpc has no path, but a tenant may be one; versions before 1.0 have only the host.
    below = _AGENT_PATH.search(parts.path) if parts.path else None
    if below is None or version == "1.0":
        return AgentInterface(url, binding, version, below[1] if below is not None else "")
    domain = settings.cards.grpc_domain
    if not domain:
        return None
    return AgentInterface(f"{host_of(below[1], domain)}:{url.rpartition(':')[2]}", binding, version)


def offers_extended(agent: Agent, settings: Settings, ways: Sequence[Authenticator]) -> bool:
    """Tell whether there is a card for authenticated callers: none where callers cannot
    authenticate, unless the settings make it public."""
    return agent.extended_skills is not None and (bool(ways) or settings.cards.extended_public)


def _requirements(ways: Sequence[Authenticator], scopes: Iterable[str] = ()) -> list[Json]:
    """Return what a caller must show: any one of the ways, with some scopes."""
    schemes = {name: scheme for way in ways for name, scheme in way.schemes.items()}
    # Some clients read only the first of several, and most of those have a bearer token.
    names = sorted(schemes, key=lambda name: "httpAuthSecurityScheme" not in schemes[name])
    return [{"schemes": {name: {"list": sorted(scopes)}}} for name in names]


def _guarded(
    skill: AgentSkill, scopes: Collection[str], ways: Sequence[Authenticator]
) -> AgentSkill:
    """Return a skill as the card shows it: with the scopes it takes."""
    if not scopes or skill.security_requirements:
        return skill
    return msgspec.structs.replace(skill, security_requirements=_requirements(ways, scopes))


def _offered_versions(settings: Settings) -> list[str]:
    """Return the versions of the interfaces, the newest first.

    A server of 0.3 answers 0.2 as well, so 0.2 is listed only where 0.3 is not.
    """
    versions = settings.versions()
    return [version for version in versions if version != "0.2" or "0.3" not in versions]


def offered_extensions(agent: Agent, settings: Settings) -> list[AgentExtension]:
    """Return the agent's own extensions and those every agent of ours has."""
    extensions = list(agent.extensions)
    if agent.streaming:
        extensions.append(
            AgentExtension(
                uri=RESUME_URI,
                description="Streams carry SSE ids; Last-Event-ID resumes them, ended tasks too.",
            )
        )
    extensions.append(
        AgentExtension(
            uri=TRANSITIONS_URI,
            description="GetTask shows the states that a task went through, in its metadata.",
        )
    )
    if settings.engine.idempotency:
        extensions.append(
            AgentExtension(
                uri=ONCE_URI,
                description="The same message sent again leads to the same task.",
            )
        )
    if any(skill.takes_turn for skill in agent.skills.values()):
        extensions.append(
            AgentExtension(
                uri=REQUESTS_URI,
                description="Choices, forms and calls of tools are data parts, answered by id.",
            )
        )
    schemas = {
        skill.card.id: skill.schema()
        for skill in agent.skills.values()
        if len(skill.parameters) > 1 or any(one.kind is not str for one in skill.parameters)
    }
    results = {
        skill.card.id: found
        for skill in agent.skills.values()
        if (found := skill.result_schema()) is not None
    }
    if schemas or results:
        extensions.append(
            AgentExtension(
                uri=SCHEMAS_URI,
                description="JSON Schemas of the skills' arguments and results, by skill id.",
                params={"schemas": schemas, "results": results},
            )
        )
    return extensions


class ServedCard(msgspec.Struct, frozen=True):
    """A card ready to go out."""

    status: int
    headers: Headers
    body: bytes


class CardRack:
    """Cards of one agent, each shape and address encoded once."""

    MAX_ADDRESSES = 64

    def __init__(
        self,
        agent: Agent,
        settings: Settings,
        started_at: float,
        *,
        file: "CardFile | None" = None,
        signer: "Signer | None" = None,
        ways: Sequence[Authenticator] = (),
        grpc: GrpcPlace | None = None,
    ) -> None:
        self._agent = agent
        self._grpc = grpc
        self._settings = settings
        self._started_at = int(started_at)
        self._last_modified = _http_date(self._started_at)
        self._file = file
        self._signer = signer
        self._ways = ways
        # A shared cache must not show a private card to other callers.
        self._caching = b"public" if settings.cards.public else b"private"
        versions = settings.versions()
        self._is_newer = "1.0" in versions
        # The shapes of 0.x, for the current path and for the old one.
        self._older = next((version for version in versions if version != "1.0"), None)
        self._oldest = versions[-1] if self._older else None
        self._bodies: dict[tuple[str, str], tuple[bytes, bytes]] = {}
        if self._older is None and settings.cards.shape in ("0.3", "0.2"):
            raise ConfigError(
                f"card_shape: there is no card of {settings.cards.shape} where only 1.0 is served"
            )

    def card(self, base: str, *, more: Sequence[AgentSkill] = ()) -> AgentCard:
        """Return the card as it is shown at an address."""
        card = build(self._agent, base, self._settings, more=more, ways=self._ways, grpc=self._grpc)
        if self._file is not None:
            card = self._file.onto(card)
        return card if self._signer is None else self._signer.signed(card)

    def digest(self) -> str:
        """Return a digest of the card that does not depend on the address it is shown at."""
        card = self.card(self._settings.cards.public_url or "http://localhost")
        return hashlib.sha256(encode(msgspec.structs.replace(card, signatures=[]))).hexdigest()

    def shape(self, header: str | None, query: str | None, *, is_old_path: bool) -> str | None:
        """Return the shape for a request; None: there is no card. The old path has the old one."""
        if self._settings.cards.shape != "auto":
            return self._settings.cards.shape
        if is_old_path:
            return self._oldest
        if not self._is_newer:
            return self._older
        shape = card_shape(header, query)
        if shape == "1.0" or self._older is None:
            return "1.0"
        # The hybrid document has the shape of 0.3.
        return shape if self._older == "0.3" else {"0.3": "0.2", "hybrid": "1.0"}[shape]

    def serve(self, base: str, shape: str, request: Iterable[tuple[bytes, bytes]]) -> ServedCard:
        """Return the card, or 304 if the caller has it."""
        body, etag = self._body(base, shape)
        headers = dict(request)
        common: Headers = [
            (b"etag", etag),
            (b"last-modified", self._last_modified),
            (b"cache-control", b"%b, max-age=%d" % (self._caching, self._settings.cards.max_age)),
            (b"vary", b"A2A-Version, Accept"),
        ]
        if self._is_fresh(headers, etag):
            return ServedCard(304, common, b"")
        kind = b"application/json"
        if b"application/a2a+json" in headers.get(b"accept", b""):
            kind = b"application/a2a+json"
        return ServedCard(200, [(b"content-type", kind), *common], body)

    def _body(self, base: str, shape: str) -> tuple[bytes, bytes]:
        found = self._bodies.get((base, shape))
        if found is None:
            if len(self._bodies) >= self.MAX_ADDRESSES:
                # The base comes from the Host header: a caller must not fill our memory with it.
                self._bodies.clear()
            value: Any = _SHAPES[shape](self.card(base))
            body = encode(value)
            etag = b'"%b"' % hashlib.sha256(body).hexdigest()[:32].encode()
            found = self._bodies[base, shape] = (body, etag)
        return found

    def _is_fresh(self, headers: dict[bytes, bytes], etag: bytes) -> bool:
        tags = headers.get(b"if-none-match")
        if tags is not None:
            given = [tag.strip().removeprefix(b"W/") for tag in tags.split(b",")]
            return b"*" in given or etag in given
        since = headers.get(b"if-modified-since")
        if since is None:
            return False
        from email.utils import parsedate_to_datetime

        try:
            return parsedate_to_datetime(since.decode("latin-1")).timestamp() >= self._started_at
        except (ValueError, OverflowError):
            return False


def _http_date(seconds: int) -> bytes:
    """Return a time as HTTP writes it: in English, whatever the language of the machine."""
    at = time.gmtime(seconds)
    day, month = _DAYS[at.tm_wday], _MONTHS[at.tm_mon - 1]
    return time.strftime(f"{day}, %d {month} %Y %H:%M:%S GMT", at).encode()
