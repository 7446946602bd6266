"""The card of a scripted agent, in the shape that the script asks for."""

import hashlib
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec
from msgspec import UNSET

from dragoman.dialects import cards, negotiate
from dragoman.model.card import (
    GRPC,
    JSONRPC,
    AgentCapabilities,
    AgentCard,
    AgentExtension,
    AgentInterface,
)
from dragoman.testing.scripted.access import Gate
from dragoman.testing.scripted.connection import ScriptedConnection
from dragoman.testing.scripted.script import Card, ScriptedInterface

if TYPE_CHECKING:
    from dragoman.testing.scripted.signing import ScriptedSigner

PATH, OLD_PATH = "/.well-known/agent-card.json", "/.well-known/agent.json"
PATHS = (PATH, OLD_PATH)
OLD_EXTENDED_PATH = "/agent/authenticatedExtendedCard"


class ScriptedCards:
    """Builds and serves the card."""

    def __init__(
        self, card: Card, gate: Gate, extensions: list[AgentExtension] | None = None
    ) -> None:
        self._card = card
        self._gate = gate
        self._offers = card.offers()
        self._extensions = [*card.extensions, *(extensions or [])]
        self._signer = _signer(card.sign_key) if card.sign_key else None
        # Paths of interfaces in the script, the longest first.
        self._paths = sorted(
            ((_path_of(offer), offer.binding) for offer in self._offers if _path_of(offer)),
            key=lambda entry: -len(entry[0]),
        )

    def binding_of(self, path: str) -> tuple[str, str]:
        """Return the rest of a path below that of an interface, and its binding if it is known."""
        for prefix, binding in self._paths:
            if path == prefix or path.startswith(prefix + "/"):
                return path.removeprefix(prefix) or "/", binding
        return path, ""

    def build(self, base: str, *, extended: bool = False) -> AgentCard:
        """Return the card for callers at a base address."""
        card = self._card
        skills = [*card.skills, *(card.extended or [])] if extended else card.skills
        return AgentCard(
            name=card.name,
            description=card.description,
            supported_interfaces=[
                AgentInterface(
                    url=_url(offer, base),
                    protocol_binding=offer.binding,
                    protocol_version=offer.version,
                    tenant=offer.tenant,
                )
                for offer in self._offers
            ],
            version=card.version,
            capabilities=AgentCapabilities(
                streaming=card.streaming,
                push_notifications=card.push,
                extensions=self._extensions,
                extended_agent_card=True if card.extended is not None else None,
            ),
            default_input_modes=card.input_modes,
            default_output_modes=card.output_modes,
            skills=skills,
            security_schemes=self._gate.schemes(base) | card.security_schemes,
            security_requirements=card.security_requirements or self._gate.requirements(base),
        )

    def extended(self, base: str) -> AgentCard | None:
        """Return the extended card, if there is one."""
        return None if self._card.extended is None else self.build(base, extended=True)

    def extended_shape(self, base: str) -> Any:
        """Return the extended card in the shape of 0.2."""
        card = self.extended(base)
        return None if card is None else cards.v0_2(card)

    def value(self, base: str, shape: str) -> Any:
        """Return the document of the card in a shape."""
        if self._card.raw is not UNSET:
            return self._card.raw
        card = self.build(base)
        match shape:
            case "0.2":
                value = cards.v0_2(card)
            case "0.3":
                value = cards.v0_3(card)
            case "1.0":
                value = cards.v1_0(card)
            case _:
                value = cards.hybrid(card)
        value = value | self._card.extra
        if self._signer is not None and shape != "0.2":
            signed = self._signer.signed(value)
            if self._card.forged:
                signed |= {"description": f"{value['description']} Forged."}
            return signed
        return value

    def shape(self, connection: ScriptedConnection) -> str | None:
        """Return the shape for a request; None: this agent has no card there."""
        versions = [offer.version for offer in self._offers]
        has_new = any(not version.startswith("0.") for version in versions)
        has_0_3 = any(version.startswith("0.3") for version in versions)
        is_old_path = connection.path == OLD_PATH
        if not has_new:
            if not has_0_3:
                return "0.2" if is_old_path else None
            return "0.2" if is_old_path and "0.2" in versions else "0.3"
        if not any(version.startswith("0.") for version in versions):
            return None if is_old_path else "1.0"
        if is_old_path:
            return "0.3"
        # A hybrid document cannot be signed for both generations: a signed card is 1.0.
        shape = negotiate.card_shape(*connection.version)
        return "1.0" if self._card.sign_key and shape == "hybrid" else shape

    async def serve(self, connection: ScriptedConnection) -> None:
        """Answer a request for the card."""
        shape = self.shape(connection)
        if shape is None or connection.verb not in ("GET", "HEAD"):
            await connection.answer(404 if shape is None else 405, b"{}")
            return
        raw = self._card.raw
        body = (
            raw.encode()
            if isinstance(raw, str)
            else msgspec.json.encode(self.value(connection.base, shape))
        )
        etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
        headers = [
            (b"etag", etag.encode()),
            (b"cache-control", self._card.cache_control.encode()),
            (b"vary", b"A2A-Version"),
        ]
        if connection.headers.get("if-none-match") == etag:
            await connection.answer(304, b"", headers=headers)
            return
        await connection.answer(200, body, headers=headers)


def _path_of(offer: ScriptedInterface) -> str:
    """Return the path of an interface, without a slash at its end."""
    path = urlsplit(offer.url).path if "://" in offer.url else offer.url
    return path.rstrip("/")


def _url(offer: ScriptedInterface, base: str) -> str:
    if "://" in offer.url:
        return offer.url
    if offer.url:
        return base + offer.url
    if offer.binding == GRPC:
        return base.partition("://")[2].partition("/")[0]
    return f"{base}/a2a" if offer.binding == JSONRPC else base


def _signer(key: str) -> "ScriptedSigner":
    # The libraries for signatures are an extra: loaded only if a key is given.
    from dragoman.testing.scripted.signing import ScriptedSigner

    return ScriptedSigner(key)
