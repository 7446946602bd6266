"""The card in force: pinned when the agent is registered, and replaced by a later one at once or
after its owner accepts it, depending on what it changes. Pure: agents in, agents out."""

from typing import Any
from urllib.parse import urlsplit

from msgspec import UnsetType
from msgspec.structs import replace

from dragoman.client.cards import interfaces
from dragoman.client.cards.cards import Fetched
from dragoman.egress.tunnels import joined_name
from dragoman.errors import InvalidParams, UnsupportedOperation
from dragoman.gateway.registry import card_review
from dragoman.gateway.registry.registered import Registered, named_callers
from dragoman.gateway.registry.registration import (
    LONGEST_DESCRIPTION,
    LONGEST_NAME,
    AgentChanges,
    Registration,
    destinations,
)
from dragoman.model.card import AgentCard

# Versions of an agent that are known to have been replaced, the latest ones.
_MOST_REPLACED = 16


def pinned(agent: Registered, raw: dict[str, Any], url: str) -> Registered:
    """Return an agent with a card in force; raises `InvalidParams` for one that is refused."""
    card = card_review.read(raw, url or agent.url)
    card_review.check_origins(card, raw, destinations(agent))
    return _in_force(agent, card, raw, url)


def reviewed(agent: Registered, fetched: Fetched) -> Registered:
    """Return an agent after its card was read: unchanged, with the later card in force, or with the
    later card held."""
    raw, url = fetched.raw, fetched.url
    digest = card_review.digest(raw)
    if digest == agent.card_digest:
        # The agent may have gone back to the pinned card.
        return replace(agent, pending=None, pending_reason="", card_url=url)
    if digest == agent.refused_digest:
        return replace(agent, pending=None, pending_reason="", card_url=url)
    try:
        card = card_review.read(raw, url)
    except InvalidParams as error:
        return _held(agent, raw, error.public)
    reasons: list[str] = []
    if agent.card is not None:
        before = card_review.read(agent.card, agent.card_url or agent.url)
        reasons = card_review.changes(before, agent.card, card, raw)
    for place, origin in card_review.foreign(card, raw, destinations(agent)):
        reasons.append(f"{place} is at {origin}, which is not registered (origins)")
    if reasons:
        return _held(agent, raw, "; ".join(reasons))
    return _in_force(agent, card, raw, url)


def strays(agent: Registered) -> str:
    """Return the origins of the held card that its owner did not allow; empty: none."""
    if agent.pending is None:
        return ""
    try:
        card = card_review.read(agent.pending, agent.card_url or agent.url)
    except InvalidParams:
        return ""
    found = card_review.foreign(card, agent.pending, destinations(agent))
    return ", ".join(dict.fromkeys(one.origin for one in found))


def accepted(agent: Registered, digest: str) -> Registered:
    """Return an agent with the held card in force, if it is the one of this digest; raises
    `InvalidParams` for another, or if it still leads to an origin that its owner did not allow."""
    return pinned(agent, _held_card(agent, digest), agent.card_url)


def refused(agent: Registered, digest: str) -> Registered:
    """Return an agent without the held card, if it is the one of this digest; raises as `accepted`
    does. The same card is not held again."""
    _held_card(agent, digest)
    return replace(agent, pending=None, pending_reason="", refused_digest=digest)


def _held_card(agent: Registered, digest: str) -> dict[str, Any]:
    if agent.pending is None:
        raise UnsupportedOperation(f"{agent.name} has no card that is held")
    if digest != card_review.digest(agent.pending):
        raise InvalidParams("is not that of the card that is held", field="digest")
    return agent.pending


def _held(agent: Registered, raw: dict[str, Any], reason: str) -> Registered:
    return replace(agent, pending=raw, pending_reason=reason)


def _in_force(agent: Registered, card: AgentCard, raw: dict[str, Any], url: str) -> Registered:
    texts: dict[str, Any] = {}
    if "title" not in agent.said:
        texts["title"] = card.name.strip()[:LONGEST_NAME] or agent.title
    if "description" not in agent.said:
        texts["description"] = card.description[:LONGEST_DESCRIPTION]
    if "skills" not in agent.said:
        texts["skills"] = card.skills
    return replace(
        agent,
        card=raw,
        card_url=url,
        card_digest=card_review.digest(raw),
        pending=None,
        pending_reason="",
        **texts,
    )


def registered(agent: Registered, said: Registration) -> Registered:
    """Return an agent as its owner describes it; its card is not read here."""
    same = ("schemas", "tags", "metadata", "price", "replicas", "origins", "callers")
    safe = ("repeatable", "repeatable_skills")
    found: dict[str, Any] = {name: getattr(said, name) for name in (*same, *safe)}
    found["callers"] = named_callers(said.callers, agent.owner)
    written = {"title": said.name.strip(), "description": said.description, "skills": said.skills}
    texts = {name: value for name, value in written.items() if value not in (None, "")}
    return replace(
        agent,
        dialect=said.dialect,
        is_default=said.is_default,
        is_paused=said.is_paused,
        keep_message_ids=said.keep_message_ids,
        refresh=said.refresh,
        credential=said.credential.kind if said.credential else "",
        credential_header=said.credential.header if said.credential else "",
        said=sorted(texts),
        **found,
        **texts,
    )


def with_card_of(agent: Registered, other: Registered) -> Registered:
    """Return an agent with the card of the same agent at another address."""
    return replace(
        agent,
        url=other.url,
        title=other.title,
        description=other.description,
        skills=other.skills,
        card=other.card,
        card_url=other.card_url,
        card_digest=other.card_digest,
        pending=None,
        pending_reason="",
    )


def in_place_of(agent: Registered, other: Registered) -> Registered:
    """Return an agent that is reached, and described, as another one is."""
    left, taken = (
        [name for url in (one.url, *one.replicas) if (name := joined_name(url))]
        for one in (agent, other)
    )
    replaced = [name for name in dict.fromkeys([*agent.replaced, *left]) if name not in taken]
    moved = replace(
        agent,
        url=other.url,
        replicas=other.replicas,
        tunnels=other.tunnels,
        replaced=replaced[-_MOST_REPLACED:],
        # Of the version before: this one may be probed instead.
        beat_at=other.beat_at,
        origins=other.origins,
        dialect=other.dialect,
        schemas=other.schemas,
        keep_message_ids=other.keep_message_ids,
        credential=other.credential,
        credential_header=other.credential_header,
    )
    if other.card is not None:
        return pinned(moved, other.card, other.card_url)
    described = {name: getattr(other, name) for name in ("description", "skills")}
    texts = {name: value for name, value in described.items() if name not in agent.said}
    return replace(
        moved, card=None, card_url="", card_digest="", pending=None, pending_reason="", **texts
    )


def address_of(raw: dict[str, Any]) -> str:
    """Return the address of the agent according to a card."""
    return interfaces.address_of(card_review.read(raw, ""))


def changed(agent: Registered, said: AgentChanges) -> Registered:
    """Return an agent with its owner's changes; its card is not read here."""
    found: dict[str, Any] = {
        name: value
        for name in said.__struct_fields__
        if name not in ("name", "credential")
        and not isinstance(value := getattr(said, name), UnsetType)
    }
    if not isinstance(said.callers, UnsetType):
        found["callers"] = named_callers(said.callers, agent.owner)
    if not isinstance(said.name, UnsetType):
        found["title"] = said.name.strip()
    texts = {"title", "description", "skills"} & found.keys()
    found["said"] = sorted({*agent.said, *texts})
    if not isinstance(said.credential, UnsetType):
        found["credential"] = said.credential.kind if said.credential else ""
        found["credential_header"] = said.credential.header if said.credential else ""
    return replace(agent, **found)


def check_repeatable_skills(agent: Registered) -> None:
    """Raise `InvalidParams` if a skill that is safe to repeat is none of an agent whose skills are
    known: it would be a slip of the pen."""
    known = [skill.id for skill in agent.skills]
    unknown = [id for id in agent.repeatable_skills if id not in known] if known else []
    if unknown:
        words = f"{unknown[0]!r} is none of its skills: {', '.join(known)}"
        raise InvalidParams(words, field="repeatableSkills")


def host_of(url: str) -> str:
    """Return the title of an agent of which only the URL is known."""
    return urlsplit(url).hostname or "agent"
