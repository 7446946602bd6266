"""What a card may contain, and which changes of it wait for its owner. Pure.

A card decides where calls and credentials go. One that names another origin than the registered
one is refused unless that origin is allowed. A later one that sends calls or credentials elsewhere,
or is signed with other keys, is held. Texts, examples and skills apply at once.
"""

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast
from urllib.parse import urlsplit

from dragoman.client.cards import cards
from dragoman.egress.targets import NotCanonical, read_target
from dragoman.errors import CardInvalid, InvalidParams
from dragoman.model.card import AgentCard
from dragoman.security import base64url

# More than known cards have, and few enough to search in.
MOST_SKILLS = 200
MOST_INTERFACES = 32
LONGEST_TEXT = 10_000


class Foreign(NamedTuple):
    """A place in a card that leads to another origin."""

    place: str
    origin: str


def read(raw: Any, url: str) -> AgentCard:
    """Return a card with absolute addresses; raises `InvalidParams` if it is not a card."""
    try:
        card = cards.read(raw, url=url).card
    except CardInvalid as error:
        raise InvalidParams(error.public, field="card") from None
    if len(card.skills) > MOST_SKILLS:
        raise InvalidParams(f"has more than {MOST_SKILLS} skills", field="card.skills")
    if len(card.supported_interfaces) > MOST_INTERFACES:
        raise InvalidParams(f"has more than {MOST_INTERFACES} interfaces", field="card")
    texts = [card.name, card.description, *(skill.description for skill in card.skills)]
    if any(len(text) > LONGEST_TEXT for text in texts):
        raise InvalidParams(f"has a text of more than {LONGEST_TEXT} characters", field="card")
    return card


def digest(raw: Mapping[str, Any]) -> str:
    """Return the digest by which a card is pinned: equal for equal cards, however formatted."""
    text = json.dumps(raw, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def check_origins(card: AgentCard, raw: Mapping[str, Any], named: Collection[str]) -> None:
    """Raise `InvalidParams` for a card that leads to an origin its owner did not name."""
    found = foreign(card, raw, named)
    if found:
        places = "; ".join(f"{one.place} is at {one.origin}" for one in found[:3])
        allowed = ", ".join(dict.fromkeys(one.origin for one in found[:3]))
        raise InvalidParams(
            f"the card leads to an origin that was not registered ({places}). If calls and "
            f"credentials may go there, allow it: origins: [{allowed}], or --origin {allowed}",
            field="origins",
        )


def foreign(card: AgentCard, raw: Mapping[str, Any], named: Collection[str]) -> list[Foreign]:
    """Return the places of a card that lead to another origin than those that were named."""
    origins, hosts = {_origin(url) for url in named}, {_host(url) for url in named}
    found: list[Foreign] = []
    for place, url in _addresses(card, raw):
        origin = _origin(url)
        # Another binding has addresses without a scheme, often at a port of its own.
        is_named = origin in origins if origin else _host(url) in hosts
        if not is_named:
            found.append(Foreign(place, cards.printable(origin or _host(url))))
    return found


def changes(before: AgentCard, raw_before: Any, after: AgentCard, raw_after: Any) -> list[str]:
    """Return why a later card has to be accepted by its owner; []: it does not."""
    reasons: list[str] = []
    old, new = _interfaces(before), _interfaces(after)
    if old != new:
        added = sorted({one[0] for one in new} - {one[0] for one in old})
        reasons.append(f"its addresses change{_name_list(added)}")
    if before.security_schemes != after.security_schemes:
        names = sorted(
            name
            for name in {*before.security_schemes, *after.security_schemes}
            if before.security_schemes.get(name) != after.security_schemes.get(name)
        )
        reasons.append(f"how callers authenticate changes{_name_list(names)}")
    elif before.security_requirements != after.security_requirements:
        reasons.append("what callers must authenticate with changes")
    security_of = {skill.id: skill.security_requirements for skill in before.skills}
    skills = [
        skill.id
        for skill in after.skills
        if security_of.get(skill.id, []) != skill.security_requirements
    ]
    if skills:
        reasons.append(f"what skills ask of callers changes{_name_list(skills)}")
    signers = _signers(raw_before)
    if signers != _signers(raw_after):
        reasons.append(
            "it is signed with other keys" if signers else "it is signed, and was not before"
        )
    return reasons


def _name_list(names: Sequence[str]) -> str:
    return f": {cards.printable(', '.join(names[:5]))}" if names else ""


def _interfaces(card: AgentCard) -> set[tuple[str, str, str, str]]:
    return {
        (one.url, one.protocol_binding, one.protocol_version, one.tenant)
        for one in card.supported_interfaces
    }


def _addresses(card: AgentCard, raw: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield every address of a card that a call or a credential may go to, or a key come from."""
    for index, interface in enumerate(card.supported_interfaces):
        yield f"supportedInterfaces[{index}].url", interface.url
    for name, scheme in card.security_schemes.items():
        yield from _urls(scheme, f"securitySchemes.{cards.printable(name)}")
    for index, header in enumerate(_headers(raw)):
        if isinstance(url := header.get("jku"), str):
            yield f"signatures[{index}].jku", url


def _urls(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for name, inner in cast("dict[str, Any]", value).items():
            place = f"{path}.{cards.printable(name)}"
            # Names of scopes are free text, not addresses.
            if isinstance(inner, str) and name.lower().endswith("url"):
                yield place, inner
            elif name != "scopes":
                yield from _urls(inner, place)


def _headers(raw: Any) -> Iterator[dict[str, Any]]:
    """Yield the protected headers of a card's signatures; {} for one that cannot be read."""
    fields = cast("dict[str, Any]", raw) if isinstance(raw, dict) else {}
    signatures = fields.get("signatures")
    for entry in cast("list[Any]", signatures) if isinstance(signatures, list) else []:
        signature = cast("dict[str, Any]", entry) if isinstance(entry, dict) else {}
        try:
            header = json.loads(base64url.decode(str(signature.get("protected", ""))))
        except (ValueError, RecursionError):
            header = None
        yield cast("dict[str, Any]", header) if isinstance(header, dict) else {}


def _signers(raw: Any) -> set[tuple[str, str]]:
    return {(str(header.get("kid", "")), str(header.get("jku", ""))) for header in _headers(raw)}


def _origin(url: str) -> str:
    """Return the origin of a URL; empty for an address of another kind."""
    try:
        return read_target(url.strip()).origin
    except NotCanonical:
        return ""


def _host(address: str) -> str:
    """Return the host of an address with or without a scheme; the text itself if it has none."""
    text = address.strip()
    try:
        found = urlsplit(text if "//" in text else f"//{text}").hostname
    except ValueError:
        found = None
    return found or text
