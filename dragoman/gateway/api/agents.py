"""Registered agents: said, read, found, changed, and whether they are there."""

import contextlib
from collections.abc import Generator
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from dragoman.errors import InvalidParams
from dragoman.gateway.agents import HouseDialect, Registered, Status
from dragoman.gateway.api.asking import (
    Credits,
    Name,
    Paged,
    is_operator,
    micro,
    viewer_of,
    visible_agent,
)
from dragoman.gateway.api.envelope import Code
from dragoman.gateway.api.record import credit
from dragoman.gateway.api.table import Ask, Endpoint
from dragoman.gateway.registration import Changes, Registration, Secret
from dragoman.gateway.search import Search
from dragoman.model.card import AgentSkill
from dragoman.model.instant import stamp

_Url = Annotated[str, Meta(min_length=1, max_length=2000)]
_Tags = Annotated[list[Name], Meta(max_length=64)]
_Description = Annotated[str, Meta(max_length=1000)]


class SkillRecord(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """One thing an agent can do."""

    id: Name
    name: Name
    description: str = ""
    tags: list[str] = []
    examples: list[str] = []
    input_schema: dict[str, Any] | UnsetType = UNSET
    output_schema: dict[str, Any] | UnsetType = UNSET


class CredentialGiven(msgspec.Struct, frozen=True):
    """What the gateway shows the agent when it calls it. Kept sealed and never shown again."""

    kind: Literal["bearer", "apiKey", "header"]
    value: Annotated[str, Meta(min_length=1, max_length=10_000)]
    header: str = ""

    def __repr__(self) -> str:
        return f"CredentialGiven(kind={self.kind!r}, value='***', header={self.header!r})"


class NewAgent(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """An agent that is registered: where it is, and what its card does not say."""

    endpoint: _Url
    name: Annotated[str, Meta(max_length=100)] = ""
    description: _Description | None = None
    skills: Annotated[list[SkillRecord], Meta(max_length=200)] | None = None
    tags: _Tags = []
    metadata: dict[str, Any] = {}
    price_per_task: Credits = 0
    replicas: Annotated[list[_Url], Meta(max_length=32)] = []
    origins: Annotated[list[_Url], Meta(max_length=32)] = []
    repeatable: bool = False
    dialect: HouseDialect = ""
    is_default: bool = False
    credential: CredentialGiven | None = None


class AgentChange(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """What is said anew of an agent; what is left out stays."""

    endpoint: _Url | UnsetType = UNSET
    name: Name | UnsetType = UNSET
    description: _Description | UnsetType = UNSET
    skills: Annotated[list[SkillRecord], Meta(max_length=200)] | UnsetType = UNSET
    tags: _Tags | UnsetType = UNSET
    metadata: dict[str, Any] | UnsetType = UNSET
    price_per_task: Credits | UnsetType = UNSET
    replicas: Annotated[list[_Url], Meta(max_length=32)] | UnsetType = UNSET
    origins: Annotated[list[_Url], Meta(max_length=32)] | UnsetType = UNSET
    repeatable: bool | UnsetType = UNSET
    dialect: HouseDialect | UnsetType = UNSET
    is_default: bool | UnsetType = UNSET
    # None: it is shown nothing any more.
    credential: CredentialGiven | UnsetType | None = UNSET


class AgentRecord(msgspec.Struct, frozen=True, kw_only=True):
    """An agent. `slug` is its name in addresses, `/a2a/{slug}`."""

    id: str
    slug: str
    name: str
    description: str
    endpoint: str
    skills: list[SkillRecord]
    tags: list[str]
    metadata: dict[str, Any]
    price_per_task: float
    status: Status
    trust_score: int
    is_mine: bool
    repeatable: bool
    is_default: bool
    agent_card: dict[str, Any] | None
    last_heartbeat: str | None
    last_seen_at: str | None
    created_at: str
    updated_at: str
    # Of one's own: a later card that waits until its owner has looked at it, and why.
    pending_card: dict[str, Any] | None = None
    pending_reason: str | None = None


class AgentQuery(Paged, frozen=True, rename="camel", kw_only=True):
    """Which agents are looked for; what is left out does not matter."""

    text: Annotated[str, Meta(max_length=1000)] = ""
    skill: Annotated[str, Meta(max_length=200)] = ""
    # Any of these, with commas in between.
    skill_tags: Annotated[str, Meta(max_length=2000)] = ""
    category: Annotated[str, Meta(max_length=100)] = ""
    min_trust_score: Annotated[int, Meta(ge=0, le=100)] = 0
    max_price: Credits | UnsetType = UNSET
    status: Status | UnsetType = UNSET


class Agents(msgspec.Struct, frozen=True):
    """A page of agents, the most trusted first."""

    agents: list[AgentRecord]
    total: int
    limit: int
    offset: int


class Beat(msgspec.Struct, frozen=True):
    """A sign of life. One that says nothing says that the agent is online."""

    status: Status = "online"
    metadata: dict[str, Any] | UnsetType = UNSET


def agent_record(ask: Ask, agent: Registered) -> AgentRecord:
    """Return an agent as this API shows it to whoever asks."""
    is_mine = agent.owner == ask.owner
    schemas: dict[str, dict[str, Any]] = agent.schemas
    return AgentRecord(
        id=agent.id,
        slug=agent.name,
        name=agent.title,
        description=agent.description,
        endpoint=agent.url,
        skills=[_skill_record(skill, schemas.get(skill.id, {})) for skill in agent.skills],
        tags=agent.tags,
        metadata=agent.metadata,
        price_per_task=credit(agent.price),
        status=agent.status,
        trust_score=ask.gateway.trust.score(agent.id),
        is_mine=is_mine,
        repeatable=agent.repeatable,
        is_default=agent.is_default,
        agent_card=agent.card,
        last_heartbeat=_instant(agent.beat_at),
        last_seen_at=_instant(agent.last_seen_at),
        created_at=stamp(agent.created_at * 1000),
        updated_at=stamp(agent.updated_at * 1000),
        pending_card=agent.pending if is_mine else None,
        pending_reason=(agent.pending_reason or None) if is_mine else None,
    )


def _instant(milliseconds: int) -> str | None:
    return stamp(milliseconds * 1000) if milliseconds else None


def _skill_record(skill: AgentSkill, schemas: dict[str, Any]) -> SkillRecord:
    return SkillRecord(
        id=skill.id,
        name=skill.name,
        description=skill.description,
        tags=skill.tags,
        examples=skill.examples,
        input_schema=schemas.get("inputSchema", UNSET),
        output_schema=schemas.get("outputSchema", UNSET),
    )


def _skills(records: list[SkillRecord]) -> list[AgentSkill]:
    return [
        AgentSkill(one.id, one.name, one.description, one.tags, one.examples) for one in records
    ]


def _schemas(records: list[SkillRecord]) -> dict[str, dict[str, Any]]:
    """Return what the skills of a card have no member for."""
    found: dict[str, dict[str, Any]] = {}
    for one in records:
        both = {"inputSchema": one.input_schema, "outputSchema": one.output_schema}
        if said := {name: schema for name, schema in both.items() if schema is not UNSET}:
            found[one.id] = said
    return found


def _secret(given: CredentialGiven | None) -> Secret | None:
    if given is None:
        return None
    return Secret(kind=given.kind, value=given.value, header=given.header)


async def _register(ask: Ask) -> AgentRecord:
    body: NewAgent = ask.body
    registration = Registration(
        url=body.endpoint,
        name=body.name,
        description=body.description,
        skills=None if body.skills is None else _skills(body.skills),
        schemas=_schemas(body.skills or []),
        tags=body.tags,
        metadata=body.metadata,
        price=micro(body.price_per_task),
        replicas=body.replicas,
        repeatable=body.repeatable,
        origins=body.origins,
        dialect=body.dialect,
        is_default=body.is_default,
        credential=_secret(body.credential),
    )
    with _in_our_words():
        agent = await ask.gateway.registry.register(registration, ask.owner)
    return agent_record(ask, agent)


@contextlib.contextmanager
def _in_our_words() -> Generator[None]:
    """Name a field as callers of this API do."""
    try:
        yield
    except InvalidParams as error:
        if error.field != "url":
            raise
        raise InvalidParams(error.description, field="endpoint") from None


async def _get(ask: Ask) -> AgentRecord:
    return agent_record(ask, visible_agent(ask))


async def _find(ask: Ask) -> Agents:
    query: AgentQuery = ask.query
    search = Search(
        text=query.text,
        skill=query.skill,
        tags=[tag.strip() for tag in query.skill_tags.split(",") if tag.strip()],
        category=query.category,
        min_trust=query.min_trust_score,
        max_price=None if query.max_price is UNSET else micro(query.max_price),
        status=None if query.status is UNSET else query.status,
        viewer=viewer_of(ask),
        limit=query.limit,
        offset=query.offset,
    )
    found = ask.gateway.registry.search(search)
    shown = [agent_record(ask, agent) for agent in found.agents]
    return Agents(shown, found.total, query.limit, query.offset)


async def _change(ask: Ask) -> AgentRecord:
    body: AgentChange = ask.body
    same = ("name", "description", "tags", "metadata", "replicas", "repeatable", "origins")
    said: dict[str, Any] = {name: getattr(body, name) for name in (*same, "dialect", "is_default")}
    if body.skills is not UNSET:
        said |= {"skills": _skills(body.skills), "schemas": _schemas(body.skills)}
    if body.price_per_task is not UNSET:
        said["price"] = micro(body.price_per_task)
    if body.credential is not UNSET:
        said["credential"] = _secret(body.credential)
    changes = Changes(url=body.endpoint, **said)
    with _in_our_words():
        agent = await ask.gateway.registry.update(
            ask.path["id"], changes, ask.owner, operator=is_operator(ask)
        )
    return agent_record(ask, agent)


async def _remove(ask: Ask) -> None:
    await ask.gateway.registry.remove(ask.path["id"], ask.owner, operator=is_operator(ask))


async def _beat(ask: Ask) -> AgentRecord:
    body: Beat = ask.body
    metadata = None if body.metadata is UNSET else body.metadata
    agent = await ask.gateway.registry.heartbeat(
        ask.path["id"], body.status, metadata, ask.owner, operator=is_operator(ask)
    )
    return agent_record(ask, agent)


async def _probe(ask: Ask) -> AgentRecord:
    agent = await ask.gateway.registry.probe(ask.path["id"], ask.owner, operator=is_operator(ask))
    return agent_record(ask, agent)


async def _accept(ask: Ask) -> AgentRecord:
    agent = await ask.gateway.registry.accept(ask.path["id"], ask.owner, operator=is_operator(ask))
    return agent_record(ask, agent)


_OWN: tuple[Code, ...] = ("AGENT_NOT_FOUND", "FORBIDDEN")
ENDPOINTS = [
    Endpoint(
        verb="POST",
        path="/api/v1/agents",
        name="register_agent",
        summary="Register an agent; its card is fetched, and made of what is said if there is none",
        answer=_register,
        status=201,
        body=NewAgent,
        reply=AgentRecord,
    ),
    Endpoint(
        verb="GET",
        path="/api/v1/agents",
        name="list_agents",
        summary="Read one's own agents and those of others that are online",
        answer=_find,
        query=AgentQuery,
        reply=Agents,
    ),
    Endpoint(
        verb="GET",
        path="/api/v1/discover",
        name="discover_agents",
        summary="Find agents by text, skill, tags, trust, price and status, the most trusted first",
        answer=_find,
        query=AgentQuery,
        reply=Agents,
    ),
    Endpoint(
        verb="GET",
        path="/api/v1/agents/{id}",
        name="get_agent",
        summary="Read an agent",
        answer=_get,
        reply=AgentRecord,
        errors=("AGENT_NOT_FOUND",),
    ),
    Endpoint(
        verb="PATCH",
        path="/api/v1/agents/{id}",
        name="update_agent",
        summary="Change an agent of one's own",
        answer=_change,
        body=AgentChange,
        reply=AgentRecord,
        errors=_OWN,
    ),
    Endpoint(
        verb="DELETE",
        path="/api/v1/agents/{id}",
        name="remove_agent",
        summary="Remove an agent of one's own",
        answer=_remove,
        status=204,
        errors=_OWN,
    ),
    Endpoint(
        verb="POST",
        path="/api/v1/agents/{id}/heartbeat",
        name="heartbeat",
        summary="Say that an agent of one's own is there",
        answer=_beat,
        body=Beat,
        is_body_optional=True,
        reply=AgentRecord,
        errors=_OWN,
    ),
    Endpoint(
        verb="POST",
        path="/api/v1/agents/{id}/probe",
        name="probe_agent",
        summary="Find out whether an agent of one's own answers, and read its card again",
        answer=_probe,
        reply=AgentRecord,
        errors=_OWN,
    ),
    Endpoint(
        verb="POST",
        path="/api/v1/agents/{id}/accept",
        name="accept_card",
        summary="Accept a card that changes where calls or credentials go",
        answer=_accept,
        reply=AgentRecord,
        errors=_OWN,
    ),
]
