"""The API keys of an agent, for its owner: made, listed, revoked. Their text is shown once."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from dragoman.errors import InvalidParams, PermissionDenied
from dragoman.gateway.api.asking import Name, is_operator, note, visible_agent
from dragoman.gateway.api.envelope import ApiRefused, Code
from dragoman.gateway.api.table import Ask, EndpointTable
from dragoman.gateway.registry.agent_keys import KeyState, owns
from dragoman.gateway.registry.registered import Registered
from dragoman.model.agent_key import AgentKeyRow
from dragoman.model.clock import stamp
from dragoman.model.identity import LOCAL, Principal

_OWN: tuple[Code, ...] = ("AGENT_NOT_FOUND", "FORBIDDEN")
_PATH = "/api/v1/agents/{id}/api-keys"
ENDPOINTS = EndpointTable()

KeyScope = Literal[
    "*", "agents:read", "agents:write", "agents:heartbeat", "tasks:read", "tasks:write"
]


class NewKey(msgspec.Struct, frozen=True, rename="camel"):
    """A key to make."""

    name: Name
    # Empty: all scopes that the credential which makes it may grant.
    scopes: Annotated[list[KeyScope], Meta(max_length=6)] = []
    # Null: it ends with the credential that makes it.
    expires_in_days: Annotated[int, Meta(ge=1, le=365)] | None = None


class KeyRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A key without its text."""

    id: str
    name: str
    scopes: list[str]
    state: KeyState
    tenant: str | None
    # The credentials above it, the one that made it first. It ends with any of them.
    made_by: list[str]
    created_at: str
    expires_at: str | None


class MadeKey(KeyRecord, frozen=True, kw_only=True):
    """A key with its text, which is shown only now."""

    key: str

    def __repr__(self) -> str:
        return f"MadeKey(id={self.id!r}, key='***')"


class Keys(msgspec.Struct, frozen=True):
    """The keys of an agent, in the order they were made."""

    keys: list[KeyRecord]


def _own_agent(ask: Ask) -> Registered:
    agent = visible_agent(ask)
    is_locals = ask.principal == agent.owner == LOCAL
    if not (owns(agent, ask.caller) or is_locals or is_operator(ask)):
        raise PermissionDenied("The agent belongs to another owner")
    return agent


def _fields(ask: Ask, key: AgentKeyRow) -> dict[str, Any]:
    return {
        "id": key.id,
        "name": key.label,
        "scopes": key.scopes.split(),
        "state": ask.gateway.keys.state(key),
        "tenant": key.tenant,
        "made_by": list(ask.gateway.keys.lineage(key)),
        "created_at": stamp(key.made_at * 1000),
        "expires_at": None if key.expires_at is None else stamp(key.expires_at * 1000),
    }


def _record(ask: Ask, act: str, key: AgentKeyRow) -> None:
    who = Principal(key.tenant or "", key.owner).text
    made_by = " < ".join(ask.gateway.keys.lineage(key))
    note(ask, act, f"{key.id} {key.agent} {who}", f"{key.scopes} made by {made_by}")


async def good_keys(ask: Ask, agent: Registered) -> Sequence[AgentKeyRow]:
    """Return the keys of an agent that were not revoked."""
    return [key for key in await ask.gateway.keys.all(agent) if key.revoked_at is None]


def note_ended(ask: Ask, keys: Sequence[AgentKeyRow]) -> None:
    """Record in the audit log that keys ended with their agent."""
    ask.gateway.keys.look_again()
    for key in keys:
        _record(ask, "key.revoke", key)


@ENDPOINTS.add("POST", _PATH, scope="*", status=201, body=NewKey, errors=_OWN)
async def create_key(ask: Ask) -> MadeKey:
    """Make an API key for an agent of yours; its text is shown only once."""
    body: NewKey = ask.body
    agent = visible_agent(ask)
    maker = ask.request.pass_
    key, text = await ask.gateway.keys.create(
        agent, maker, body.name, scopes=body.scopes, days=body.expires_in_days
    )
    _record(ask, "key.create", key)
    return MadeKey(**_fields(ask, key), key=text)


@ENDPOINTS.add("GET", _PATH, scope="*", errors=_OWN)
async def list_keys(ask: Ask) -> Keys:
    """Read the API keys of an agent of yours, without their texts."""
    found = await ask.gateway.keys.all(_own_agent(ask))
    return Keys([KeyRecord(**_fields(ask, key)) for key in found])


@ENDPOINTS.add("DELETE", f"{_PATH}/{{keyId}}", scope="*", status=204, errors=(*_OWN, "NOT_FOUND"))
async def revoke_key(ask: Ask) -> None:
    """End an API key at once."""
    agent = _own_agent(ask)
    try:
        key = await ask.gateway.keys.revoke(agent, ask.path["keyId"])
    except InvalidParams:
        raise ApiRefused("NOT_FOUND", "Key not found") from None
    _record(ask, "key.revoke", key)
