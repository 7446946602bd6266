"""What callers ask before they call: cards, public keys, and the versions that are served.

How a card is built and encoded is in `server/cards.py`; here is which caller gets which, and where.
"""

import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from dragoman.authoring.agent import Agent
from dragoman.config import Settings, refusal
from dragoman.dialects import cards, errors
from dragoman.dialects.cards import CARD_PATH
from dragoman.dialects.dialect import Dialect
from dragoman.dialects.v0_2 import V0_2
from dragoman.dialects.v0_3 import V0_3
from dragoman.dialects.v1_0 import V1_0
from dragoman.errors import (
    A2AError,
    ConfigError,
    ExtendedCardNotConfigured,
    InternalError,
    PermissionDenied,
    Unauthenticated,
    UnsupportedOperation,
    VersionNotSupported,
)
from dragoman.http.documents import document, unauthenticated
from dragoman.http.request import HttpRequest
from dragoman.http.routes import CARDS, Access, Answer, Routes
from dragoman.model.card import AgentCard
from dragoman.security.authentication import Gatekeeper
from dragoman.security.keys.key_scopes import allows_any
from dragoman.server.cards import CardRack, GrpcPlace, build, offers_extended
from dragoman.server.mounts import mount_of
from dragoman.server.push_service import PushService

if TYPE_CHECKING:
    # Loaded where a setting names a file for them.
    from dragoman.server.card_file import CardFile
    from dragoman.server.signing import Signer

logger = logging.getLogger("dragoman")

_OLD_CARD_PATH = "/.well-known/agent.json"
_OLD_EXTENDED_PATH = "/agent/authenticatedExtendedCard"
_KEYS_PATH = "/.well-known/jwks.json"
# The address in a card that is only checked.
_CHECKED_AT = "http://localhost"


class Discovery:
    """Answers what callers ask about the agents of an app before they call them."""

    def __init__(
        self, agents: Sequence[Agent], settings: Settings, gatekeeper: Gatekeeper | None = None
    ) -> None:
        self._settings = settings
        ways = gatekeeper.authenticators if gatekeeper is not None else []
        self._ways = ways
        # The headers that identify a caller.
        read = {b"authorization"}.union(*(way.reads for way in ways))
        self._identifying = b", ".join(sorted(name.title() for name in read))
        self._first = agents[0] if agents else None
        self._versions = settings.versions()
        # Where gRPC is served, if it is.
        self.grpc = GrpcPlace()
        file = _card_file(agents, settings, is_guarded=bool(ways))
        self.signer = _signer(settings)
        self._elsewhere: Answer
        # Public keys of other parts that sign.
        self.more_keys: list[Callable[[], Awaitable[list[dict[str, Any]]]]] = []
        started_at = time.time()
        self.racks = [
            CardRack(
                agent,
                settings,
                started_at,
                file=file,
                signer=self.signer,
                ways=ways,
                grpc=self.grpc,
            )
            for agent in agents
        ]

    def add_to(
        self, routes: Routes, posts: Callable[[], PushService | None], elsewhere: Answer
    ) -> None:
        """Serve all of it; `elsewhere` answers where there is no such document."""
        self._elsewhere = elsewhere
        shown = Access.PUBLIC if self._settings.cards.public else Access.CALLER
        routes.add(CARD_PATH, self._card, shown, CARDS)
        routes.add(_OLD_CARD_PATH, self._card, shown, CARDS)
        # Whether there is one is decided by the card's own rules, where the path is public too.
        is_open = self._settings.cards.extended_public
        routes.add(
            _OLD_EXTENDED_PATH,
            self._old_extended_card,
            Access.PUBLIC if is_open else Access.CALLER,
            CARDS,
        )

        async def keys(request: HttpRequest) -> None:
            found = await self._keys(posts())
            if found is None or request.verb != "GET":
                await self._elsewhere(request)
            else:
                await document(request, found)

        routes.add(_KEYS_PATH, keys, Access.PUBLIC)

    def base(self, request: HttpRequest) -> str:
        """Return the address the caller reaches this agent at."""
        base = self._settings.cards.public_url.rstrip("/")
        root = request.scope.get("root_path", "")
        if not base:
            host = request.header(b"host") or _local_name(request)
            base = f"{request.scope['scheme']}://{host}{root}"
        mount = mount_of(request)
        below = request.scope["path"].startswith(root + mount.prefix + "/")
        return base if mount.agent is self._first and not below else base + mount.prefix

    # Cards

    async def _card(self, request: HttpRequest) -> None:
        if request.verb not in ("GET", "HEAD"):
            await request.refuse_verb("GET, HEAD")
            return
        rack = mount_of(request).cards
        shape = rack.shape(*request.version, is_old_path=request.path == _OLD_CARD_PATH)
        if shape is None:
            await self._elsewhere(request)
            return
        served = rack.serve(self.base(request), shape, request.scope["headers"])
        headers = [*served.headers, (b"content-length", b"%d" % len(served.body))]
        if served.status == 304:
            headers = served.headers
        body = b"" if request.verb == "HEAD" else served.body
        await request.respond(served.status, headers, body)

    def public_card(self, request: HttpRequest) -> AgentCard:
        """Return the card that every caller may read."""
        return mount_of(request).cards.card(self.base(request))

    async def extended_card(self, request: HttpRequest, dialect: Dialect) -> AgentCard:
        """Return the card with the skills that only some callers see, as far as this one does;
        raises what the dialect has for an agent without one."""
        mount = mount_of(request)
        if not offers_extended(mount.agent, self._settings, self._ways):
            # 1.0 tells "not offered" from "not configured"; 0.3 has one error for both.
            raise UnsupportedOperation if dialect is V1_0 else ExtendedCardNotConfigured
        if not self._settings.cards.extended_public and not request.caller.authenticated:
            raise Unauthenticated
        if not allows_any(request.caller, CARDS):
            raise PermissionDenied("The key is not for this", scope="agents:read")
        # A shared cache must not give this answer to another caller.
        request.extra = [*request.extra, (b"vary", self._identifying)]
        more = await mount.agent.skills_for(request.caller)
        return mount.cards.card(self.base(request), more=more)

    async def _old_extended_card(self, request: HttpRequest) -> None:
        """0.2 reads the extended card by a plain GET."""
        if self._versions == [V1_0.version]:
            await self._elsewhere(request)
            return
        if request.verb != "GET":
            await request.refuse_verb("GET")
            return
        try:
            card = await self.extended_card(request, V0_2)
        except Unauthenticated as error:
            await unauthenticated(request, error)
        except ExtendedCardNotConfigured as error:
            # The callers of this path speak 0.x, which fixes no shape for it.
            await document(request, errors.jsonrpc(error, "0.3"), status=404)
        except MemoryError:
            raise
        except Exception:
            # From the author's code, which chooses the skills of a caller.
            logger.exception("the extended card of %s failed", mount_of(request).agent.title)
            await document(request, errors.jsonrpc(InternalError(), "0.3"), status=500)
        else:
            private = (b"cache-control", b"private, no-store")
            await document(request, cards.v0_2(card), private)

    # Keys

    async def _keys(self, posts: PushService | None) -> dict[str, Any] | None:
        """Return the public keys of posts, cards and other parts; None: nothing is signed."""
        of_posts = None if posts is None else posts.keys()
        more = [] if self.signer is None else [self.signer.public()]
        for others in self.more_keys:
            more += await others()
        if not more:
            return of_posts
        return {"keys": [*(of_posts or {}).get("keys", []), *more]}

    # Versions

    def offered(self, dialect: Dialect, request: HttpRequest) -> Dialect:
        """Return the dialect to answer in; raises `VersionNotSupported` for one not served."""
        if dialect.version in self._versions:
            return dialect
        # Callers of 0.2 name no version.
        if dialect is V0_3 and V0_2.version in self._versions and not any(request.version):
            return V0_2
        raise VersionNotSupported(supportedVersions=",".join(self._versions))

    def narrow(self, error: A2AError) -> None:
        """Leave versions that are not served out of an error's list."""
        if isinstance(error, VersionNotSupported):
            named = str(error.facts.get("supportedVersions", "")).split(",")
            served = [version for version in named if version in self._versions]
            error.facts["supportedVersions"] = ",".join(served or self._versions)


def _local_name(request: HttpRequest) -> str:
    """Return where a request came in that does not say which name its caller used."""
    host, port = request.scope.get("server") or ("localhost", None)
    name = f"[{host}]" if ":" in host else host
    return name if port is None else f"{name}:{port}"


def _card_file(
    agents: Sequence[Agent], settings: Settings, *, is_guarded: bool
) -> "CardFile | None":
    """Return the file whose members replace those of the agent's card."""
    if not settings.cards.file or not agents:
        return None
    from dragoman.server.card_file import CardFile

    if len(agents) > 1:
        raise ConfigError(f"card: a file is the card of one agent, and {len(agents)} are served")
    file = CardFile(settings.cards.file)
    if is_guarded and file.names_schemes:
        raise ConfigError(
            f"card: {settings.cards.file}: securitySchemes and securityRequirements are those of "
            "--auth; "
            "leave them out, or take callers as they come: --auth none"
        )
    extended = agents[0].extended_skills
    # What a function returns is not known before a caller asks.
    more = () if extended is None or callable(extended) else extended
    file.check(build(agents[0], _CHECKED_AT, settings, more=more))
    return file


def _signer(settings: Settings) -> "Signer | None":
    """Return what signs the cards."""
    if not settings.cards.sign_key:
        return None
    if not settings.cards.public_url:
        # Otherwise we would sign whatever address a caller writes into its Host header.
        reason = "needs public_url: the address is part of what is signed"
        raise refusal("sign_key", settings.cards.sign_key, reason, remedy="--public-url <url>")
    from dragoman.server.signing import Signer

    return Signer(settings.cards.sign_key)
