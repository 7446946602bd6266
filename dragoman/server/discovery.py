"""What a server tells of itself: cards, public keys, health, and the versions it speaks.

How a card is built and encoded is in `server/cards.py`; here is who gets which, and at what path.
"""

import time
from collections.abc import Sequence
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
    Unauthenticated,
    UnsupportedOperation,
    VersionNotSupported,
)
from dragoman.model.card import AgentCard
from dragoman.model.record import encode
from dragoman.server.agent import Agent
from dragoman.server.cards import CardRack, build
from dragoman.server.push import PostRoom
from dragoman.server.request import JSON, Request, not_allowed, respond

if TYPE_CHECKING:
    # Loaded where a setting names a file for them.
    from dragoman.server.card_file import CardFile
    from dragoman.server.signing import Signer

_CARD_PATH = "/.well-known/agent-card.json"
_OLD_CARD_PATH = "/.well-known/agent.json"
_OLD_EXTENDED_PATH = "/agent/authenticatedExtendedCard"
_HEALTH_PATH = "/health"
_KEYS_PATH = "/.well-known/jwks.json"
# An address for a card that is only looked at.
_SOMEWHERE = "http://localhost"


class Discovery:
    """Answers what callers ask about the agents of an app before they call them."""

    def __init__(self, agents: Sequence[Agent], settings: Settings) -> None:
        self._settings = settings
        self._first = agents[0]
        self._versions = settings.versions()
        file = _card_file(agents, settings)
        self._signer = _signer(settings)
        started_at = time.time()
        self.racks = [
            CardRack(agent, settings, started_at, file=file, signer=self._signer)
            for agent in agents
        ]

    async def answer(self, request: Request, health: str, posts: PostRoom | None) -> bool:
        """Answer a request about the server itself; False if it is about something else."""
        path, is_get = request.path, request.verb == "GET"
        if path in (_CARD_PATH, _OLD_CARD_PATH):
            return await self._card(request, is_old_path=path == _OLD_CARD_PATH)
        if path == _OLD_EXTENDED_PATH:
            return await self._old_extended_card(request)
        if path == _HEALTH_PATH and is_get:
            await _health(request, health)
            return True
        if path == _KEYS_PATH and is_get and (keys := self._keys(posts)) is not None:
            await _document(request, keys)
            return True
        return False

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

    async def _card(self, request: Request, *, is_old_path: bool) -> bool:
        if request.verb not in ("GET", "HEAD"):
            await not_allowed(request.send, "GET, HEAD")
            return True
        rack = request.mount.cards
        shape = rack.shape(*request.version, is_old_path=is_old_path)
        if shape is None:
            return False
        served = rack.serve(self.base(request), shape, request.scope["headers"])
        headers = [*served.headers, (b"content-length", b"%d" % len(served.body))]
        if served.status == 304:
            headers = served.headers
        body = b"" if request.verb == "HEAD" else served.body
        await respond(request.send, served.status, headers, body)
        return True

    def extended_card(self, request: Request, dialect: Dialect) -> AgentCard:
        """Return the card with what not everybody may see; raises what the dialect has for an
        agent without one."""
        if request.mount.agent.extended_skills is None:
            # 1.0 tells "not offered" from "not configured"; 0.3 has one error for both.
            raise UnsupportedOperation if dialect is V1_0 else ExtendedCardNotConfigured
        if not self._settings.extended_card_public:
            raise Unauthenticated
        return request.mount.cards.card(self.base(request), extended=True)

    async def _old_extended_card(self, request: Request) -> bool:
        """0.2 reads the extended card by a plain GET."""
        if self._versions == [V1_0.version]:
            return False
        if request.verb != "GET":
            await not_allowed(request.send, "GET")
            return True
        try:
            card = self.extended_card(request, V0_2)
        except Unauthenticated as error:
            await unauthenticated(request, error)
        except ExtendedCardNotConfigured as error:
            # The callers of this path speak 0.x, which fixes no shape for it.
            await _document(request, errors.jsonrpc(error, "0.3"), status=404)
        else:
            private = (b"cache-control", b"private, no-store")
            await _document(request, cards.v0_2(card), private)
        return True

    # Keys

    def _keys(self, posts: PostRoom | None) -> dict[str, Any] | None:
        """Return the public keys of posts and of cards, if anything is signed with one."""
        of_posts = None if posts is None else posts.keys()
        if self._signer is None:
            return of_posts
        return {"keys": [*(of_posts or {}).get("keys", []), self._signer.public()]}

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
    challenge = (b"www-authenticate", b"Bearer")
    await _document(request, {"error": {"message": error.public}}, challenge, status=401)


async def _health(request: Request, health: str) -> None:
    """Tell whoever balances load whether to send us anything."""
    if health == "ok":
        await _document(request, {"status": health})
    else:
        await _document(request, {"status": health}, (b"retry-after", b"1"), status=503)


async def _document(
    request: Request, value: Any, *headers: tuple[bytes, bytes], status: int = 200
) -> None:
    """Send JSON that is of no version of the protocol."""
    body = encode(value)
    length = (b"content-length", b"%d" % len(body))
    await respond(request.send, status, [(b"content-type", JSON), length, *headers], body)


def _card_file(agents: Sequence[Agent], settings: Settings) -> "CardFile | None":
    """Return what stands in the card instead of the agent's own words."""
    if not settings.card:
        return None
    from dragoman.server.card_file import CardFile

    if len(agents) > 1:
        raise ConfigError(f"card: a file is the card of one agent, and {len(agents)} are served")
    file = CardFile(settings.card)
    file.check(build(agents[0], _SOMEWHERE, settings, extended=True))
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
