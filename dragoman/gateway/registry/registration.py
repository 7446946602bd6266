"""What an owner says of an agent when it is registered or changed, and the card made of that.

Limits and addresses are checked here, once. An agent without a card gets one made of what its owner
said. The destinations of a credential are part of what it is sealed with; the secret itself is in
`Secret` alone, which never shows it.
"""

import base64
import hashlib
import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from dragoman.client.credentials.credentials import ApiKey, Bearer, Credential
from dragoman.client.credentials.credentials import schemes as schemes_of
from dragoman.egress.targets import NotCanonical, Target, read_target
from dragoman.errors import ConfigError, InvalidParams
from dragoman.gateway.registry import card_review
from dragoman.gateway.registry.registered import CredentialKind, HouseDialect, Registered
from dragoman.model.card import (
    JSONRPC,
    AgentCapabilities,
    AgentCard,
    AgentInterface,
    AgentSkill,
)
from dragoman.model.message import Json
from dragoman.model.push import is_scheme

LONGEST_NAME, LONGEST_DESCRIPTION = 100, 1000
LONGEST_SLUG = 63
_PRIVATE_LETTERS = 12
MOST_TAGS, LONGEST_TAG = 64, 100
MOST_ADDRESSES = 32
LARGEST_METADATA = 64 * 1024
# Bytes that one registration may have, as many as a card: all of it is in memory.
LARGEST = 256 * 1024
SHORTEST_REFRESH = 10.0
# The security scheme in a card that stands for the credential its owner gave.
OF_GATEWAY = "gateway"
_API_KEY_HEADER = "X-API-Key"
# Names below `/a2a/` that are not agents.
_TAKEN = frozenset({"tasks", "message", "v1"})
_NOT_SLUG = re.compile(r"[^a-z0-9]+")
_LIKE_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
# Headers that would change how a request is read, or where it goes.
_NOT_OURS = frozenset({"host", "content-length", "transfer-encoding", "connection", "cookie"})


class Secret(msgspec.Struct, frozen=True, kw_only=True):
    """A credential that the gateway sends to an agent."""

    kind: CredentialKind
    value: str
    # The header of the kind `header`; of an API key, where the card names none.
    header: str = ""

    def __repr__(self) -> str:
        return f"Secret(kind={self.kind!r}, value='***', header={self.header!r})"

    def check(self) -> None:
        """Raise `InvalidParams` for one that cannot be sent."""
        if self.kind == "header" and not self.header:
            raise InvalidParams("names no header", field="credential.header")
        if self.header and (not is_scheme(self.header) or self.header.lower() in _NOT_OURS):
            raise InvalidParams("is no header for a credential", field="credential.header")
        try:
            self.credential()
        except ConfigError as error:
            raise InvalidParams(str(error), field="credential") from None

    def credential(self) -> Credential:
        """Return it as the client uses it."""
        return Bearer(self.value) if self.kind == "bearer" else ApiKey(self.value)


class Registration(msgspec.Struct, frozen=True, kw_only=True):
    """What an owner says of a new agent: a URL is enough, or a name and a URL."""

    # The URL of its endpoint, its host or its card.
    url: str = ""
    # Empty: the name in its card.
    name: str = ""
    description: str | None = None
    skills: list[AgentSkill] | None = None
    # By skill id: members that a card does not have, such as `inputSchema`.
    schemas: dict[str, dict[str, Any]] = {}
    tags: list[str] = []
    metadata: dict[str, Any] = {}
    # Micro-credits.
    price: int = 0
    replicas: list[str] = []
    repeatable: bool = False
    repeatable_skills: list[str] = []
    keep_message_ids: bool = False
    origins: list[str] = []
    # The callers besides its owner that may use it; empty: all.
    callers: list[str] = []
    dialect: HouseDialect = ""
    is_default: bool = False
    is_paused: bool = False
    credential: Secret | None = None
    # Seconds.
    refresh: float = 3600.0
    # Whether it may be registered by its URL alone although it does not answer yet.
    may_be_away: bool = False
    # Its card, if the caller has it; then none is fetched.
    card: dict[str, Any] | None = None
    # Its card as its owner has it, for an agent that shows none.
    known_card: dict[str, Any] | None = None

    def checked(self) -> "Registration":
        """Return it with addresses in their one spelling; raises `InvalidParams`."""
        changed = AgentChanges(
            **{
                name: getattr(self, name)
                for name in AgentChanges.__struct_fields__
                if name in self.__struct_fields__ and getattr(self, name) not in (None, "")
            }
        ).checked()
        found = {
            name: value
            for name in ("url", "replicas", "origins", "tags", "description")
            if (value := getattr(changed, name)) is not UNSET
        }
        if not self.url and self.card is None:
            raise InvalidParams("is missing: give the URL of the agent", field="url")
        if len(msgspec.json.encode(self.known_card)) > LARGEST:
            raise InvalidParams(f"is larger than {LARGEST} bytes", field="card")
        return msgspec.structs.replace(self, **found)


class AgentChanges(msgspec.Struct, frozen=True, kw_only=True):
    """What changes of an agent. What is left out stays, and so does its name in addresses."""

    url: str | UnsetType = UNSET
    # Its title, not its name in addresses.
    name: str | UnsetType = UNSET
    description: str | UnsetType = UNSET
    skills: list[AgentSkill] | UnsetType = UNSET
    schemas: dict[str, dict[str, Any]] | UnsetType = UNSET
    tags: list[str] | UnsetType = UNSET
    metadata: dict[str, Any] | UnsetType = UNSET
    price: int | UnsetType = UNSET
    replicas: list[str] | UnsetType = UNSET
    repeatable: bool | UnsetType = UNSET
    repeatable_skills: list[str] | UnsetType = UNSET
    keep_message_ids: bool | UnsetType = UNSET
    origins: list[str] | UnsetType = UNSET
    callers: list[str] | UnsetType = UNSET
    dialect: HouseDialect | UnsetType = UNSET
    is_default: bool | UnsetType = UNSET
    is_paused: bool | UnsetType = UNSET
    # None: it gets no credential any more.
    credential: Secret | UnsetType | None = UNSET
    refresh: float | UnsetType = UNSET

    def checked(self) -> "AgentChanges":
        """Return it with addresses in their one spelling; raises `InvalidParams`."""
        found: dict[str, Any] = {}
        if self.name is not UNSET:
            _check_text("name", self.name, LONGEST_NAME, least=1)
        if self.description is not UNSET:
            _check_text("description", self.description, LONGEST_DESCRIPTION)
        if self.skills is not UNSET:
            _check_skills(self.skills)
        if self.repeatable_skills is not UNSET:
            _check_ids("repeatableSkills", self.repeatable_skills)
        if self.tags is not UNSET:
            found["tags"] = _tags(self.tags)
        if self.price is not UNSET and self.price < 0:
            raise InvalidParams("must not be negative", field="pricePerTask")
        if self.refresh is not UNSET and not self.refresh >= SHORTEST_REFRESH:
            raise InvalidParams(f"must be at least {SHORTEST_REFRESH:g} s", field="refresh")
        if self.metadata is not UNSET:
            check_metadata(self.metadata)
        if self.url is not UNSET:
            found["url"] = target_of(self.url, "url").url
        if self.replicas is not UNSET:
            found["replicas"] = [target_of(url, "replicas").url for url in _few(self.replicas)]
        if self.origins is not UNSET:
            named = [target_of(url, "origins").origin for url in _few(self.origins)]
            found["origins"] = list(dict.fromkeys(named))
        if isinstance(self.credential, Secret):
            self.credential.check()
        said = msgspec.structs.replace(self, credential=UNSET)
        if len(msgspec.json.encode(said)) > LARGEST:
            raise InvalidParams(f"is larger than {LARGEST} bytes in all", field="agent")
        return msgspec.structs.replace(self, **found)


def target_of(url: str, field: str) -> Target:
    """Return where a URL leads; raises `InvalidParams`."""
    try:
        return read_target(url.strip())
    except NotCanonical as error:
        raise InvalidParams(
            f"must be a URL such as https://agent.example.com: {error}", field=field
        ) from None


def check_metadata(metadata: Mapping[str, Any]) -> None:
    """Raise `InvalidParams` for metadata that is too large."""
    if len(msgspec.json.encode(metadata)) > LARGEST_METADATA:
        raise InvalidParams(f"is larger than {LARGEST_METADATA} bytes", field="metadata")


def _check_text(field: str, text: str, most: int, *, least: int = 0) -> None:
    if not least <= len(text.strip()) or len(text) > most:
        raise InvalidParams(f"must have {least} to {most} characters", field=field)


def _check_skills(skills: Sequence[AgentSkill]) -> None:
    if len(skills) > card_review.MOST_SKILLS:
        raise InvalidParams(f"are more than {card_review.MOST_SKILLS}", field="skills")
    for index, skill in enumerate(skills):
        _check_text(f"skills[{index}].id", skill.id, LONGEST_NAME, least=1)
        _check_text(f"skills[{index}].name", skill.name, LONGEST_NAME, least=1)
    if len({skill.id for skill in skills}) < len(skills):
        raise InvalidParams("have one id twice", field="skills")


def _check_ids(field: str, ids: Sequence[str]) -> None:
    if len(ids) > card_review.MOST_SKILLS:
        raise InvalidParams(f"are more than {card_review.MOST_SKILLS}", field=field)
    for index, id in enumerate(ids):
        _check_text(f"{field}[{index}]", id, LONGEST_NAME, least=1)


def _tags(tags: Sequence[str]) -> list[str]:
    if len(tags) > MOST_TAGS:
        raise InvalidParams(f"are more than {MOST_TAGS}", field="tags")
    for index, tag in enumerate(tags):
        _check_text(f"tags[{index}]", tag, LONGEST_TAG, least=1)
    return list(dict.fromkeys(tag.strip() for tag in tags))


def _few(addresses: Sequence[str]) -> Sequence[str]:
    if len(addresses) > MOST_ADDRESSES:
        raise InvalidParams(f"are more than {MOST_ADDRESSES}", field="replicas")
    return addresses


def slug(text: str) -> str:
    """Return the name of an agent in addresses: lower case letters, digits and hyphens."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
    found = _NOT_SLUG.sub("-", plain).strip("-")[:LONGEST_SLUG].strip("-")
    # A name must not look like an id: the agent of that id may be gone and still be asked for.
    is_taken = found in _TAKEN or _LIKE_ID.fullmatch(found) is not None
    return f"{found}-agent" if is_taken else found or "agent"


def private_name(name: str, id: str, secret: bytes) -> str:
    """Return the name in addresses of an agent that is for some callers: it ends with letters that
    cannot be guessed. So no owner is refused a name because of it and learns that it exists, and no
    other agent can be registered in its place."""
    mark = hashlib.blake2b(id.encode(), key=secret[:64], person=b"agent name").digest()
    ending = base64.b32encode(mark).decode().lower()[:_PRIVATE_LETTERS]
    if name.endswith(f"-{ending}"):
        return name
    return f"{name[: LONGEST_SLUG - _PRIVATE_LETTERS - 1].rstrip('-')}-{ending}"


def destinations(agent: Registered) -> list[str]:
    """Return all addresses that its owner named: secrets go nowhere else."""
    return [agent.url, *agent.replicas, *agent.origins]


def card_of(agent: Registered) -> AgentCard:
    """Return the card by which an agent is called: its own, or one made of its registration."""
    if agent.card is not None:
        card = card_review.read(agent.card, agent.card_url or agent.url)
    else:
        card = AgentCard(
            name=agent.title,
            description=agent.description,
            supported_interfaces=[AgentInterface(agent.url, JSONRPC, "0.3")],
            version="1.0.0",
            capabilities=AgentCapabilities(streaming=False, push_notifications=False),
            default_input_modes=["text/plain"],
            default_output_modes=["text/plain"],
            skills=agent.skills,
            security_schemes={"bearer": {"httpAuthSecurityScheme": {"scheme": "bearer"}}},
        )
    return _with_credential(card, agent)


def _with_credential(card: AgentCard, agent: Registered) -> AgentCard:
    """Return a card that asks for the credential its owner gave, if it does not by itself."""
    if not agent.credential:
        return card
    scheme: Json = {"httpAuthSecurityScheme": {"scheme": "bearer"}}
    if agent.credential != "bearer":
        name = agent.credential_header or _API_KEY_HEADER
        scheme = {"apiKeySecurityScheme": {"location": "header", "name": name}}
    if agent.credential == "header":
        # The owner named the header: what the card asks for does not count.
        return msgspec.structs.replace(
            card, security_schemes={OF_GATEWAY: scheme}, security_requirements=[]
        )
    sample = Secret(kind=agent.credential, value="x").credential()
    fits = any(sample.fits(found) for found in schemes_of(card).values())
    if fits or card.security_requirements:
        return card
    schemes = {**card.security_schemes, OF_GATEWAY: scheme}
    return msgspec.structs.replace(card, security_schemes=schemes)
