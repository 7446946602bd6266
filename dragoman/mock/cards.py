"""The card of a scripted agent, in whatever shape and state the script wants it."""

import hashlib
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec
from msgspec import UNSET

from dragoman.dialects import cards, negotiate
from dragoman.mock.access import Gate
from dragoman.mock.connection import Connection
from dragoman.mock.script import Card, Offer
from dragoman.model.card import (
    JSONRPC,
    AgentCapabilities,
    AgentCard,
    AgentExtension,
    AgentInterface,
)

if TYPE_CHECKING:
    from dragoman.mock.signing import Signer

PATH, OLD_PATH = "/.well-known/agent-card.json", "/.well-known/agent.json"
PATHS = (PATH, OLD_PATH)
OLD_EXTENDED_PATH = "/agent/authenticatedExtendedCard"


class Cards:
    """Builds and serves the card."""

    def __init__(
        self, card: Card, gate: Gate, extensions: list[AgentExtension] | None = None
    ) -> None:
        self._card = card
        self._gate = gate
        self._offers = card.offers()
        self._extensions = [*card.extensions, *(extensions or [])]
        self._signer = _signer(card.sign_key) if card.sign_key else None
        # Paths the script gave to interfaces of its own, the longest first.
        self._paths = sorted(
            ((_path_of(offer), offer.binding) for offer in self._offers if _path_of(offer)),
            key=lambda entry: -len(entry[0]),
        )

    def binding_of(self, path: str) -> tuple[str, str]:
        """Return the rest of a path below an interface's own, and its binding if that is clear."""
        for prefix, binding in self._paths:
            if path == prefix or path.startswith(prefix + "/"):
                return path.removeprefix(prefix) or "/", binding
        return path, ""

    def build(self, base: str, *, extended: bool = False) -> AgentCard:
        """Return the card for callers who reach the agent at a base address."""
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
        """Return the extended card as 0.2 reads it."""
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

    def shape(self, connection: Connection) -> str | None:
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
        # One document for both generations cannot be signed for each: what 1.0 covers is 1.0's.
        shape = negotiate.card_shape(*connection.version)
        return "1.0" if self._card.sign_key and shape == "hybrid" else shape

    async def serve(self, connection: Connection) -> None:
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


def _path_of(offer: Offer) -> str:
    """Return the path an interface was given, without the slash at its end."""
    path = urlsplit(offer.url).path if "://" in offer.url else offer.url
    return path.rstrip("/")


def _url(offer: Offer, base: str) -> str:
    if "://" in offer.url:
        return offer.url
    if offer.url:
        return base + offer.url
    return f"{base}/a2a" if offer.binding == JSONRPC else base


def _signer(key: str) -> "Signer":
    # The libraries of signatures are an extra, asked for only by those who sign.
    from dragoman.mock.signing import Signer

    return Signer(key)
