"""Registered agents: said, read, found, changed, and whether they are there."""

import contextlib
from collections.abc import Generator

from msgspec import UNSET

from dragoman.errors import InvalidParams, PermissionDenied
from dragoman.gateway.api import keys
from dragoman.gateway.api.agent_shapes import (
    Accepted,
    AgentChange,
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
from dragoman.gateway.api.envelope import Code, Refused
from dragoman.gateway.api.table import Ask, Endpoint
from dragoman.gateway.search import Search
from dragoman.model.identity import LOCAL


async def _register(ask: Ask) -> AgentRecord:
    body: NewAgent = ask.body
    _check_default(ask, body.is_default)
    with _in_our_words():
        agent = await ask.gateway.registry.register(registration_of(body), ask.principal)
    return agent_record(ask, agent)


def _check_default(ask: Ask, is_wanted: bool) -> None:
    """Refuse that somebody's agent gets everything that was meant for nobody in particular."""
    if is_wanted and ask.principal != LOCAL and not is_operator(ask):
        raise PermissionDenied("Only operators say which agent is the default one")


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
    _check_default(ask, body.is_default is True)
    with _in_our_words():
        agent = await ask.gateway.registry.update(
            ask.path["id"], changes_of(body), ask.principal, operator=is_operator(ask)
        )
    return agent_record(ask, agent)


async def _remove(ask: Ask) -> None:
    registry = ask.gateway.registry
    agent = registry.get(ask.path["id"])
    good = await keys.good_keys(ask, agent) if agent is not None else ()
    # Its keys end in the same transaction.
    await registry.remove(ask.path["id"], ask.principal, operator=is_operator(ask))
    keys.note_ended(ask, good)


async def _beat(ask: Ask) -> AgentRecord:
    body: Beat = ask.body
    metadata = None if body.metadata is UNSET else body.metadata
    agent = await ask.gateway.registry.heartbeat(
        ask.path["id"], body.status, metadata, ask.principal, operator=is_operator(ask)
    )
    return agent_record(ask, agent)


async def _probe(ask: Ask) -> AgentRecord:
    agent = await ask.gateway.registry.probe(
        ask.path["id"], ask.principal, operator=is_operator(ask)
    )
    return agent_record(ask, agent)


async def _accept(ask: Ask) -> AgentRecord:
    body: Accepted = ask.body
    ref = ask.path["id"]
    try:
        agent = await ask.gateway.registry.accept(
            ref, body.digest, ask.principal, operator=is_operator(ask)
        )
    except InvalidParams as error:
        if error.field != "digest":
            raise
        raise Refused(
            "CONFLICT",
            "Another card is held by now: look at pending_card, then accept its pending_digest",
            agentId=ref,
        ) from None
    return agent_record(ask, agent)


_OWN: tuple[Code, ...] = ("AGENT_NOT_FOUND", "FORBIDDEN")
ENDPOINTS = [
    Endpoint(
        verb="POST",
        path="/api/v1/agents",
        scope="agents:write",
        name="register_agent",
        summary="Register an agent; its card is fetched, and made of what is said if there is none",
        answer=_register,
        status=201,
        body=NewAgent,
        reply=AgentRecord,
        errors=("FORBIDDEN",),
    ),
    Endpoint(
        verb="GET",
        path="/api/v1/agents",
        scope="agents:read",
        name="list_agents",
        summary="Read one's own agents and those of others that are online",
        answer=_find,
        query=AgentQuery,
        reply=Agents,
    ),
    Endpoint(
        verb="GET",
        path="/api/v1/discover",
        scope="agents:read",
        name="discover_agents",
        summary="Find agents by text, skill, tags, trust, price and status, the most trusted first",
        answer=_find,
        query=AgentQuery,
        reply=Agents,
    ),
    Endpoint(
        verb="GET",
        path="/api/v1/agents/{id}",
        scope="agents:read",
        name="get_agent",
        summary="Read an agent",
        answer=_get,
        reply=AgentRecord,
        errors=("AGENT_NOT_FOUND",),
    ),
    Endpoint(
        verb="PATCH",
        path="/api/v1/agents/{id}",
        scope="agents:write",
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
        scope="agents:write",
        name="remove_agent",
        summary="Remove an agent of one's own",
        answer=_remove,
        status=204,
        errors=_OWN,
    ),
    Endpoint(
        verb="POST",
        path="/api/v1/agents/{id}/heartbeat",
        scope="agents:heartbeat",
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
        scope="agents:write",
        name="probe_agent",
        summary="Find out whether an agent of one's own answers, and read its card again",
        answer=_probe,
        reply=AgentRecord,
        errors=_OWN,
    ),
    Endpoint(
        verb="POST",
        path="/api/v1/agents/{id}/accept",
        scope="agents:write",
        name="accept_card",
        summary="Accept a card that changes where calls or credentials go, by its digest",
        answer=_accept,
        body=Accepted,
        reply=AgentRecord,
        errors=(*_OWN, "CONFLICT"),
    ),
]
