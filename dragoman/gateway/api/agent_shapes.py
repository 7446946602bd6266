"""Agents as this API takes and shows them."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from dragoman.egress.errors import EgressError
from dragoman.gateway.api.asking import Credits, Name, Paged, is_operator, micro
from dragoman.gateway.api.record import credit
from dragoman.gateway.api.table import Ask
from dragoman.gateway.registry.card_review import digest
from dragoman.gateway.registry.registered import HouseDialect, Registered, Status
from dragoman.gateway.registry.registration import AgentChanges, Registration, Secret
from dragoman.model.card import AgentSkill
from dragoman.model.clock import stamp
from dragoman.security.secret_text import hidden_value

_Url = Annotated[str, Meta(min_length=1, max_length=2000)]
_Tags = Annotated[list[Name], Meta(max_length=64)]
# The member of the metadata that has the parts of the trust score.
_COMPONENTS = "trust_components"
_Description = Annotated[str, Meta(max_length=1000)]


class SkillRecord(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """A skill of an agent."""

    id: Name
    name: Name
    description: str = ""
    tags: list[str] = []
    examples: list[str] = []
    input_schema: dict[str, Any] | UnsetType = UNSET
    output_schema: dict[str, Any] | UnsetType = UNSET


class CredentialGiven(msgspec.Struct, frozen=True):
    """The credential that the gateway sends to the agent. Stored sealed and never shown again."""

    kind: Literal["bearer", "apiKey", "header"]
    value: Annotated[str, Meta(min_length=1, max_length=10_000)]
    header: str = ""

    def __repr__(self) -> str:
        return f"CredentialGiven(kind={self.kind!r}, value='***', header={self.header!r})"


class NewAgent(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """An agent to register: its address, and what its card does not say."""

    endpoint: _Url
    name: Annotated[str, Meta(max_length=100)] = ""
    description: _Description | None = None
    skills: Annotated[list[SkillRecord], Meta(max_length=200)] | None = None
    tags: _Tags = []
    metadata: dict[str, Any] = {}
    price_per_task: Credits = 0
    replicas: Annotated[list[_Url], Meta(max_length=32)] = []
    origins: Annotated[list[_Url], Meta(max_length=32)] = []
    # Whether a task may be done twice: of any skill, or of these alone.
    repeatable: bool = False
    repeatable_skills: Annotated[list[Name], Meta(max_length=200)] = []
    # Forward callers' message ids unchanged: for an agent that only one tenant uses.
    keep_message_ids: bool = False
    # The callers besides its owner that may use it; empty: all.
    callers: Annotated[list[str], Meta(max_length=1000)] = []
    # Seconds after which its card is read again.
    refresh: Annotated[float, Meta(ge=60, le=31_536_000)] = 3600.0
    dialect: HouseDialect = ""
    is_default: bool = False
    # Give it no tasks yet.
    is_paused: bool = False
    # Its card, for an agent that shows none at its address, such as one that has gRPC alone.
    card: dict[str, Any] | None = None
    # Register it by its address alone although it does not answer yet.
    offline: bool = False
    credential: CredentialGiven | None = None


class AgentChange(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Changes of an agent; what is left out stays."""

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
    repeatable_skills: Annotated[list[Name], Meta(max_length=200)] | UnsetType = UNSET
    keep_message_ids: bool | UnsetType = UNSET
    callers: Annotated[list[str], Meta(max_length=1000)] | UnsetType = UNSET
    refresh: Annotated[float, Meta(ge=60, le=31_536_000)] | UnsetType = UNSET
    dialect: HouseDialect | UnsetType = UNSET
    is_default: bool | UnsetType = UNSET
    # Whether it gets no further tasks until this is false again; those it has go on.
    is_paused: bool | UnsetType = UNSET
    # None: it gets no credential any more.
    credential: CredentialGiven | UnsetType | None = UNSET


class CircuitRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A circuit that is not closed: calls of an agent failed, and do not go out."""

    # Of all callers, or of one.
    endpoint: str
    caller: str | None
    state: Literal["open", "half-open"]
    # How often it opened in a row, and seconds until a call may try.
    opened: int
    retry_in: float


class PerformanceRecord(msgspec.Struct, frozen=True):
    """What tasks that this gateway gave to an agent came to; older ones count less."""

    # All tasks that ended, and the share of those that succeeded; null: there are none yet.
    tasks: int
    success_rate: float | None
    # Milliseconds of those that succeeded; null: there are none yet.
    p50_ms: float | None
    p95_ms: float | None


class ConformanceRecord(msgspec.Struct, frozen=True):
    """How close an agent keeps to the protocol: 100, less 5 for each finding in its card, less 20
    for each kind of deviation in its answers since this process began."""

    score: int
    findings: list[str]
    deviations: list[str]


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
    repeatable_skills: list[str]
    keep_message_ids: bool
    is_default: bool
    is_paused: bool
    refresh: float
    agent_card: dict[str, Any] | None
    last_heartbeat: str | None
    last_seen_at: str | None
    created_at: str
    updated_at: str
    # For the owner and operators: a later card that is held, why, and the digest by which it is
    # accepted.
    pending_card: dict[str, Any] | None = None
    pending_reason: str | None = None
    pending_digest: str | None = None
    # For the owner and operators: when a later card came into force or was held.
    card_changed_at: str | None = None
    performance: PerformanceRecord
    conformance: ConformanceRecord
    # For the owner and operators: further addresses, and how many calls may be tried again at
    # present; null: it was not called yet.
    replicas: list[str] = []
    retries_left: int | None = None
    # For the owner and operators: the other callers that may use it; empty: all.
    callers: list[str] = []
    # For the owner and operators, of an agent that is not online: why the last check did not reach
    # it.
    status_reason: str | None = None
    # For the owner and operators: why calls of it do not go out, as far as this process knows.
    circuits: list[CircuitRecord] = []


class AgentPreview(msgspec.Struct, frozen=True, kw_only=True):
    """An agent as it would be registered."""

    agent: AgentRecord
    # The names of the caller's agents at the same address.
    same_address: list[str]
    # Whether another agent has its name: it would get a number after it.
    is_name_taken: bool


class Accepted(msgspec.Struct, frozen=True):
    """Which card is accepted or refused: the `pending_digest` of the one that the owner read."""

    digest: Annotated[str, Meta(min_length=64, max_length=64)]


class AgentQuery(Paged, frozen=True, rename="camel", kw_only=True):
    """Which agents are searched for; a field that is left out does not matter."""

    text: Annotated[str, Meta(max_length=200)] = ""
    skill: Annotated[str, Meta(max_length=200)] = ""
    # Any of these, with commas in between.
    skill_tags: Annotated[str, Meta(max_length=400)] = ""
    category: Annotated[str, Meta(max_length=100)] = ""
    min_trust_score: Annotated[int, Meta(ge=0, le=100)] = 0
    max_price: Credits | UnsetType = UNSET
    status: Status | UnsetType = UNSET
    # `next` of the page before: agents that come or go meanwhile neither repeat nor hide others.
    after: Annotated[str, Meta(max_length=200, pattern=r"^([0-9]{1,3}:[^\n]+)?$")] = ""


class Agents(msgspec.Struct, frozen=True):
    """A page of agents, the most trusted first, equal ones by their slugs."""

    agents: list[AgentRecord]
    total: int
    limit: int
    offset: int
    # What to send as `after` for the next page: trust and slug of the last agent; left out: there
    # is none.
    next: str | UnsetType = UNSET


class Beat(msgspec.Struct, frozen=True):
    """A heartbeat. Without a status the agent is online."""

    status: Status = "online"
    metadata: dict[str, Any] | UnsetType = UNSET


def agent_record(ask: Ask, agent: Registered) -> AgentRecord:
    """Return an agent as this API shows it to a caller."""
    is_mine = agent.owner == ask.principal
    is_known = is_mine or is_operator(ask)
    schemas: dict[str, dict[str, Any]] = agent.schemas
    return AgentRecord(
        id=agent.id,
        slug=agent.name,
        name=agent.title,
        description=agent.description,
        # The query may contain a secret of the owner.
        endpoint=agent.url if is_mine else agent.url.partition("?")[0],
        skills=[_skill_record(skill, schemas.get(skill.id, {})) for skill in agent.skills],
        tags=agent.tags,
        metadata=_metadata(ask, agent),
        price_per_task=credit(agent.price),
        status=agent.status,
        trust_score=ask.gateway.trust.score(agent.id),
        is_mine=is_mine,
        repeatable=agent.repeatable,
        repeatable_skills=agent.repeatable_skills,
        keep_message_ids=agent.keep_message_ids,
        is_default=agent.is_default,
        is_paused=agent.is_paused,
        refresh=agent.refresh,
        agent_card=agent.card if is_mine else hidden_value(agent.card, _unchanged),
        last_heartbeat=_instant(agent.beat_at),
        last_seen_at=_instant(agent.last_seen_at),
        created_at=stamp(agent.created_at * 1000),
        updated_at=stamp(agent.updated_at * 1000),
        pending_card=agent.pending if is_known else None,
        pending_reason=(agent.pending_reason or None) if is_known else None,
        pending_digest=digest(agent.pending) if is_known and agent.pending is not None else None,
        card_changed_at=_instant(agent.card_changed_at) if is_known else None,
        performance=_performance(ask, agent),
        conformance=_conformance(ask, agent),
        # As the endpoint's, a query may contain a secret of the owner.
        replicas=[url if is_mine else url.partition("?")[0] for url in agent.replicas]
        if is_known
        else [],
        retries_left=_retries_left(ask, agent) if is_known else None,
        callers=agent.callers if is_known else [],
        status_reason=_absence(ask, agent) if is_known else None,
        circuits=_circuits(ask, agent) if is_known else [],
    )


def _performance(ask: Ask, agent: Registered) -> PerformanceRecord:
    found = ask.gateway.trust.performance.figures(agent.id)
    return PerformanceRecord(
        tasks=found.tasks,
        success_rate=round(found.successes / found.observed, 4) if found.observed else None,
        p50_ms=round(found.p50_ms, 1) or None,
        p95_ms=round(found.p95_ms, 1) or None,
    )


def _conformance(ask: Ask, agent: Registered) -> ConformanceRecord:
    findings = ask.gateway.registry.card_findings(agent)
    upstream = ask.gateway.upstreams.find(agent.id)
    deviations = [] if upstream is None else sorted(upstream.deviations)
    score = max(0, 100 - 5 * len(findings) - 20 * len(deviations))
    return ConformanceRecord(score, findings, deviations)


def _retries_left(ask: Ask, agent: Registered) -> int | None:
    upstream = ask.gateway.upstreams.find(agent.id)
    return None if upstream is None else upstream.budget.left()


def _circuits(ask: Ask, agent: Registered) -> list[CircuitRecord]:
    upstream = ask.gateway.upstreams.find(agent.id)
    return [
        CircuitRecord(
            # The query may contain a secret of the owner.
            endpoint=url.partition("?")[0],
            caller=None if caller is None else caller.text,
            state="half-open" if found.state == "half-open" else "open",
            opened=found.opened,
            retry_in=round(found.retry_in, 1),
        )
        for url, caller, found in (upstream.circuits.tripped() if upstream is not None else ())
    ]


def _absence(ask: Ask, agent: Registered) -> str | None:
    """Return why an agent was not reached. Only callers that may know our network learn the reason:
    others could scan it."""
    reason = "" if agent.status == "online" else ask.gateway.registry.health.absence(agent.id)
    if not reason:
        return None
    return reason if ask.gateway.may_know(ask.caller) else EgressError.public


def _metadata(ask: Ask, agent: Registered) -> dict[str, Any]:
    """Return the metadata of an agent with what was observed of it, which its owner cannot set."""
    metadata = {name: value for name, value in agent.metadata.items() if name != _COMPONENTS}
    if agent.owner != ask.principal:
        metadata = hidden_value(metadata)
    observed = ask.gateway.trust.components(agent.id)
    return {**metadata, _COMPONENTS: observed} if observed else metadata


def _unchanged(text: str) -> str:
    """The texts of a card are public, as they were signed."""
    return text


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
    """Return the members of skills that a card does not have."""
    found: dict[str, dict[str, Any]] = {}
    for one in records:
        both = {"inputSchema": one.input_schema, "outputSchema": one.output_schema}
        if schemas := {name: schema for name, schema in both.items() if schema is not UNSET}:
            found[one.id] = schemas
    return found


def _secret(given: CredentialGiven | None) -> Secret | None:
    if given is None:
        return None
    return Secret(kind=given.kind, value=given.value, header=given.header)


def registration_of(body: NewAgent) -> Registration:
    """Return the registration that a body asks for."""
    return Registration(
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
        repeatable_skills=body.repeatable_skills,
        keep_message_ids=body.keep_message_ids,
        origins=body.origins,
        callers=body.callers,
        refresh=body.refresh,
        dialect=body.dialect,
        is_default=body.is_default,
        is_paused=body.is_paused,
        may_be_away=body.offline,
        known_card=body.card,
        credential=_secret(body.credential),
    )


def changes_of(body: AgentChange) -> AgentChanges:
    """Return the changes that a body asks for."""
    same = ("name", "description", "tags", "metadata", "replicas", "repeatable", "origins")
    more = ("callers", "refresh", "dialect", "is_default", "is_paused", "keep_message_ids")
    also = ("repeatable_skills",)
    changes: dict[str, Any] = {name: getattr(body, name) for name in (*same, *more, *also)}
    if body.skills is not UNSET:
        changes |= {"skills": _skills(body.skills), "schemas": _schemas(body.skills)}
    if body.price_per_task is not UNSET:
        changes["price"] = micro(body.price_per_task)
    if body.credential is not UNSET:
        changes["credential"] = _secret(body.credential)
    return AgentChanges(url=body.endpoint, **changes)
