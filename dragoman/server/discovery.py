"""What a server tells of itself: cards, public keys, health, and the versions it speaks.

How a card is built and encoded is in `server/cards.py`; here is who gets which, and at what path.
"""

import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from dragoman.config import Settings
from dragoman.dialects import cards, errors
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
from dragoman.model.card import AgentCard
from dragoman.model.record import encode
from dragoman.security.authentication import Gatekeeper
from dragoman.security.key_scopes import allows_any
from dragoman.server.agent import Agent
from dragoman.server.cards import CardRack, build, offers_extended
from dragoman.server.push import PostRoom
from dragoman.server.request import JSON, Headers, Request
from dragoman.server.routes import CARDS, Access, Answer, Routes

if TYPE_CHECKING:
    # Loaded where a setting names a file for them.
    from dragoman.server.card_file import CardFile
    from dragoman.server.signing import Signer

logger = logging.getLogger("dragoman")

CARD_PATH = "/.well-known/agent-card.json"
_OLD_CARD_PATH = "/.well-known/agent.json"
_OLD_EXTENDED_PATH = "/agent/authenticatedExtendedCard"
_KEYS_PATH = "/.well-known/jwks.json"
# An address for a card that is only looked at.
_SOMEWHERE = "http://localhost"


class Discovery:
    """Answers what callers ask about the agents of an app before they call them."""

    def __init__(
        self, agents: Sequence[Agent], settings: Settings, gatekeeper: Gatekeeper | None = None
    ) -> None:
        self._settings = settings
        ways = gatekeeper.authenticators if gatekeeper is not None else []
        self._ways = ways
        # The headers that a caller is known by.
        read = {b"authorization"}.union(*(way.reads for way in ways))
        self._identifying = b", ".join(sorted(name.title() for name in read))
        self._first = agents[0]
        self._versions = settings.versions()
        file = _card_file(agents, settings, is_guarded=bool(ways))
        self.signer = _signer(settings)
        self._elsewhere: Answer
        # What others sign with.
        self.more_keys: list[Callable[[], Awaitable[list[dict[str, Any]]]]] = []
        started_at = time.time()
        self.racks = [
            CardRack(agent, settings, started_at, file=file, signer=self.signer, ways=ways)
            for agent in agents
        ]

    def add_to(
        self, routes: Routes, posts: Callable[[], PostRoom | None], elsewhere: Answer
    ) -> None:
        """Serve all of it; `elsewhere` answers at the paths of what there is not."""
        self._elsewhere = elsewhere
        shown = Access.PUBLIC if self._settings.card_public else Access.CALLER
        routes.add(CARD_PATH, self._card, shown, CARDS)
        routes.add(_OLD_CARD_PATH, self._card, shown, CARDS)
        # Whether there is one is decided by the card's own rules, where that is public as well.
        is_open = self._settings.extended_card_public
        routes.add(
            _OLD_EXTENDED_PATH,
            self._old_extended_card,
            Access.PUBLIC if is_open else Access.CALLER,
            CARDS,
        )

        async def keys(request: Request) -> None:
            found = await self._keys(posts())
            if found is None or request.verb != "GET":
                await self._elsewhere(request)
            else:
                await document(request, found)

        routes.add(_KEYS_PATH, keys, Access.PUBLIC)

    def base(self, request: Request) -> str:
        """Return the address the caller reaches this agent at."""
        base = self._settings.public_url.rstrip("/")
        root = request.scope.get("root_path", "")
        if not base:
            host = request.header(b"host") or "localhost"
            base = f"{request.scope['scheme']}://{host}{root}"
        is_root = request.mount.agent is self._first
        below = request.scope["path"].startswith(root + request.mount.prefix + "/")
        return base if is_root and not below else base + request.mount.prefix

    # Cards

    async def _card(self, request: Request) -> None:
        if request.verb not in ("GET", "HEAD"):
            await request.refuse_verb("GET, HEAD")
            return
        rack = request.mount.cards
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

    async def extended_card(self, request: Request, dialect: Dialect) -> AgentCard:
        """Return the card with what this caller may see and not everybody; raises what the dialect
        has for an agent without one."""
        if not offers_extended(request.mount.agent, self._settings, self._ways):
            # 1.0 tells "not offered" from "not configured"; 0.3 has one error for both.
            raise UnsupportedOperation if dialect is V1_0 else ExtendedCardNotConfigured
        if not self._settings.extended_card_public and not request.caller.authenticated:
            raise Unauthenticated
        if not allows_any(request.caller, CARDS):
            raise PermissionDenied("The key is not for this", scope="agents:read")
        # Whoever keeps answers for others must not give them this one.
        request.extra.append((b"vary", self._identifying))
        more = await request.mount.agent.skills_for(request.caller)
        return request.mount.cards.card(self.base(request), more=more)

    async def _old_extended_card(self, request: Request) -> None:
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
            # The author's code, which says who sees what.
            logger.exception("the extended card of %s failed", request.mount.agent.title)
            await document(request, errors.jsonrpc(InternalError(), "0.3"), status=500)
        else:
            private = (b"cache-control", b"private, no-store")
            await document(request, cards.v0_2(card), private)

    # Keys

    async def _keys(self, posts: PostRoom | None) -> dict[str, Any] | None:
        """Return the public keys of posts, cards and whatever else is signed, if anything is."""
        of_posts = None if posts is None else posts.keys()
        more = [] if self.signer is None else [self.signer.public()]
        for others in self.more_keys:
            more += await others()
        if not more:
            return of_posts
        return {"keys": [*(of_posts or {}).get("keys", []), *more]}

    # Versions

    def offered(self, dialect: Dialect, request: Request) -> Dialect:
        """Return the dialect to answer in; raises `VersionNotSupported` for one not served."""
        if dialect.version in self._versions:
            return dialect
        # Callers of 0.2 name no version.
        if dialect is V0_3 and V0_2.version in self._versions and not any(request.version):
            return V0_2
        raise VersionNotSupported(supportedVersions=",".join(self._versions))

    def narrow(self, error: A2AError) -> None:
        """Name no version that is not served."""
        if isinstance(error, VersionNotSupported):
            named = str(error.facts.get("supportedVersions", "")).split(",")
            kept = [version for version in named if version in self._versions]
            error.facts["supportedVersions"] = ",".join(kept or self._versions)


async def unauthenticated(request: Request, error: Unauthenticated) -> None:
    """Ask for credentials, whatever the binding: that is a matter of HTTP."""
    challenge = (b"www-authenticate", request.challenge.encode())
    await document(request, {"error": {"message": error.public}}, challenge, status=401)


async def denied(request: Request, error: PermissionDenied) -> None:
    """Say that a known caller may not do this: only where everybody knows that it exists."""
    headers: Headers = []
    # Its words are those of bearer tokens; for other credentials there are none.
    if (scope := error.facts.get("scope")) and "bearer" in request.challenge.lower():
        asked = f'Bearer error="insufficient_scope", scope="{scope}"'
        headers.append((b"www-authenticate", asked.encode()))
    await document(request, {"error": {"message": error.public}}, *headers, status=403)


async def document(
    request: Request, value: Any, *headers: tuple[bytes, bytes], status: int = 200
) -> None:
    """Send JSON that is of no version of the protocol."""
    body = encode(value)
    length = (b"content-length", b"%d" % len(body))
    await request.respond(status, [(b"content-type", JSON), length, *headers], body)


def _card_file(
    agents: Sequence[Agent], settings: Settings, *, is_guarded: bool
) -> "CardFile | None":
    """Return what stands in the card instead of the agent's own words."""
    if not settings.card:
        return None
    from dragoman.server.card_file import CardFile

    if len(agents) > 1:
        raise ConfigError(f"card: a file is the card of one agent, and {len(agents)} are served")
    file = CardFile(settings.card)
    if is_guarded and file.names_schemes:
        raise ConfigError(
            f"card: {settings.card}: securitySchemes and securityRequirements are those of --auth; "
            "leave them out, or take callers as they come: --auth none"
        )
    extended = agents[0].extended_skills
    # What a function returns is not known before somebody asks.
    more = () if extended is None or callable(extended) else extended
    file.check(build(agents[0], _SOMEWHERE, settings, more=more))
    return file


def _signer(settings: Settings) -> "Signer | None":
    """Return who signs the cards."""
    if not settings.sign_key:
        return None
    if not settings.public_url:
        # Otherwise our signature would be under whatever address a caller writes as the host.
        raise ConfigError("sign_key needs public_url: the address is part of what is signed")
    from dragoman.server.signing import Signer

    return Signer(settings.sign_key)
