"""Registered agents: registered, read, found, changed, checked and removed."""

import contextlib
from collections.abc import Awaitable, Callable, Generator, Sequence

from msgspec import UNSET

from dragoman.egress.targets import NotCanonical, read_target
from dragoman.egress.tunnels import is_joined
from dragoman.errors import InvalidParams, PermissionDenied
from dragoman.gateway.api import keys
from dragoman.gateway.api.agent_shapes import (
    Accepted,
    AgentChange,
    AgentPreview,
    AgentQuery,
    AgentRecord,
    Agents,
    Beat,
    NewAgent,
    agent_record,
    changes_of,
    registration_of,
)
from dragoman.gateway.api.asking import is_operator, micro, viewer_of, visible_agent
from dragoman.gateway.api.envelope import ApiRefused, Code
from dragoman.gateway.api.table import Ask, EndpointTable
from dragoman.gateway.registry.registered import Registered
from dragoman.gateway.registry.search import Search
from dragoman.model.identity import LOCAL

_OWN: tuple[Code, ...] = ("AGENT_NOT_FOUND", "FORBIDDEN")
ENDPOINTS = EndpointTable()


@ENDPOINTS.add(
    "POST", "/api/v1/agents", scope="agents:write", status=201, body=NewAgent, errors=("FORBIDDEN",)
)
async def register_agent(ask: Ask) -> AgentRecord:
    """Register an agent; its card is fetched, or made of the request if there is none."""
    body: NewAgent = ask.body
    _check_default(ask, body.is_default)
    _check_named([body.endpoint, *body.replicas, *body.origins])
    with _field_names():
        agent = await ask.gateway.registry.register(registration_of(body), ask.principal)
    return agent_record(ask, agent)


@ENDPOINTS.add(
    "POST", "/api/v1/agent-previews", scope="agents:write", body=NewAgent, errors=("FORBIDDEN",)
)
async def preview_agent(ask: Ask) -> AgentPreview:
    """Read the card of an agent as registering it would, and register nothing"""
    body: NewAgent = ask.body
    _check_default(ask, body.is_default)
    registry = ask.gateway.registry
    with _field_names():
        agent = await registry.register(registration_of(body), ask.principal, dry_run=True)
    own = [one for one in registry.all() if one.owner == ask.principal]
    return AgentPreview(
        agent=agent_record(ask, agent),
        same_address=[one.name for one in own if one.url == agent.url],
        is_name_taken=registry.get(agent.name) is not None,
    )


def _is_own(ask: Ask, agent: Registered) -> bool:
    return agent.owner == ask.principal


def _check_default(ask: Ask, is_wanted: bool) -> None:
    """Raise `PermissionDenied` unless an operator names the default agent: it receives all tasks
    that match no other agent."""
    if is_wanted and ask.principal != LOCAL and not is_operator(ask):
        raise PermissionDenied("Only operators say which agent is the default one")


def _check_named(urls: Sequence[str]) -> None:
    """Raise `InvalidParams` for the address of an agent that dialled out: it leads into a tunnel,
    and only whom the tunnel belongs to is registered there."""
    for url in urls:
        with contextlib.suppress(NotCanonical):
            # What is no address is told later, in its own words.
            if is_joined(read_target(url.strip()).host):
                raise InvalidParams("is of an agent that joins by itself", field="endpoint")


@contextlib.contextmanager
def _field_names() -> Generator[None]:
    """Name a field in errors as this API does."""
    try:
        yield
    except InvalidParams as error:
        if error.field != "url":
            raise
        raise InvalidParams(error.description, field="endpoint") from None


@ENDPOINTS.add("GET", "/api/v1/agents/{id}", scope="agents:read", errors=("AGENT_NOT_FOUND",))
async def get_agent(ask: Ask) -> AgentRecord:
    """Read an agent."""
    return agent_record(ask, visible_agent(ask))


@ENDPOINTS.add("GET", "/api/v1/agents", scope="agents:read", query=AgentQuery)
@ENDPOINTS.add(
    "GET",
    "/api/v1/discover",
    scope="agents:read",
    query=AgentQuery,
    name="discover_agents",
    summary="Find agents by text, skill, tags, trust, price and status, the most trusted first",
)
async def list_agents(ask: Ask) -> Agents:
    """Read your own agents and those of others that are online."""
    query: AgentQuery = ask.query
    score, _, name = query.after.partition(":")
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
        after=(int(score), name) if name else None,
    )
    found = ask.gateway.registry.search(search, ask.gateway.trust.score)
    # A list that its owner or an operator reads again and again shows a changed card soon.
    known = found.agents if is_operator(ask) else [one for one in found.agents if _is_own(ask, one)]
    ask.gateway.registry.health.look(known)
    shown = [agent_record(ask, agent) for agent in found.agents]
    following = UNSET if found.next is None else "{}:{}".format(*found.next)
    return Agents(shown, found.total, query.limit, query.offset, following)


@ENDPOINTS.add("PATCH", "/api/v1/agents/{id}", scope="agents:write", body=AgentChange, errors=_OWN)
async def update_agent(ask: Ask) -> AgentRecord:
    """Change an agent of yours."""
    body: AgentChange = ask.body
    _check_default(ask, body.is_default is True)
    named = [body.endpoint, *(body.replicas or ()), *(body.origins or ())]
    _check_named([url for url in named if url is not UNSET])
    with _field_names():
        agent = await ask.gateway.registry.update(
            ask.path["id"], changes_of(body), ask.principal, operator=is_operator(ask)
        )
    return agent_record(ask, agent)


@ENDPOINTS.add("DELETE", "/api/v1/agents/{id}", scope="agents:write", status=204, errors=_OWN)
async def remove_agent(ask: Ask) -> None:
    """Remove an agent of yours."""
    registry = ask.gateway.registry
    agent = registry.get(ask.path["id"])
    good = await keys.good_keys(ask, agent) if agent is not None else ()
    # Its keys end in the same transaction.
    await registry.remove(ask.path["id"], ask.principal, operator=is_operator(ask))
    keys.note_ended(ask, good)


@ENDPOINTS.add(
    "POST",
    "/api/v1/agents/{id}/heartbeat",
    scope="agents:heartbeat",
    body=Beat,
    is_body_optional=True,
    errors=_OWN,
)
async def heartbeat(ask: Ask) -> AgentRecord:
    """Report that an agent of yours is there."""
    body: Beat = ask.body
    metadata = None if body.metadata is UNSET else body.metadata
    agent = await ask.gateway.registry.heartbeat(
        ask.path["id"], body.status, metadata, ask.principal, operator=is_operator(ask)
    )
    return agent_record(ask, agent)


@ENDPOINTS.add("POST", "/api/v1/agents/{id}/probe", scope="agents:write", errors=_OWN)
async def probe_agent(ask: Ask) -> AgentRecord:
    """Find out whether an agent of yours answers, and read its card again."""
    agent = await ask.gateway.registry.probe(
        ask.path["id"], ask.principal, operator=is_operator(ask)
    )
    return agent_record(ask, agent)


@ENDPOINTS.add(
    "POST",
    "/api/v1/agents/{id}/accept",
    scope="agents:write",
    body=Accepted,
    errors=(*_OWN, "CONFLICT"),
)
async def accept_card(ask: Ask) -> AgentRecord:
    """Accept a card that changes where calls or credentials go, by its digest."""
    return await _decide(ask, ask.gateway.registry.accept)


@ENDPOINTS.add(
    "POST",
    "/api/v1/agents/{id}/refuse",
    scope="agents:write",
    body=Accepted,
    errors=(*_OWN, "CONFLICT"),
)
async def refuse_card(ask: Ask) -> AgentRecord:
    """Refuse a card that is held, by its digest: the one before stays in force."""
    return await _decide(ask, ask.gateway.registry.refuse)


async def _decide(ask: Ask, decide: Callable[..., Awaitable[Registered]]) -> AgentRecord:
    body: Accepted = ask.body
    ref = ask.path["id"]
    try:
        agent = await decide(ref, body.digest, ask.principal, operator=is_operator(ask))
    except InvalidParams as error:
        if error.field != "digest":
            raise
        raise ApiRefused(
            "CONFLICT",
            "Another card is held now: read pending_card, then its pending_digest",
            agentId=ref,
        ) from None
    return agent_record(ask, agent)
