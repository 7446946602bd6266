"""The API keys of an agent, for its owner: made, listed, revoked. A key's text is shown once."""

import time
from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from dragoman.errors import InvalidParams, PermissionDenied
from dragoman.gateway.agent_keys import AgentKeys, scopes_of
from dragoman.gateway.agents import Registered
from dragoman.gateway.api.asking import Name, is_operator, note, visible_agent
from dragoman.gateway.api.envelope import Code, Refused
from dragoman.gateway.api.table import Ask, Endpoint
from dragoman.model.instant import stamp
from dragoman.security.api_keys import Key

KeyScope = Literal[
    "*", "agents:read", "agents:write", "agents:heartbeat", "tasks:read", "tasks:write"
]


class NewKey(msgspec.Struct, frozen=True, rename="camel"):
    """A key that is wanted."""

    name: Name
    # Without any: for everything.
    scopes: Annotated[list[KeyScope], Meta(max_length=6)] = []
    # Null: it does not expire.
    expires_in_days: Annotated[int, Meta(ge=1, le=365)] | None = None


class KeyRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A key, without what makes it one."""

    id: str
    name: str
    scopes: list[str]
    state: Literal["active", "expired", "revoked"]
    created_at: str
    expires_at: str | None


class MadeKey(KeyRecord, frozen=True, kw_only=True):
    """A key with its text, which is shown this once."""

    key: str

    def __repr__(self) -> str:
        return f"MadeKey(id={self.id!r}, key='***')"


class Keys(msgspec.Struct, frozen=True):
    """The keys of an agent, in the order they were made."""

    keys: list[KeyRecord]


def _own_agent(ask: Ask) -> Registered:
    agent = visible_agent(ask)
    if agent.owner != ask.principal and not is_operator(ask):
        raise PermissionDenied("The agent belongs to somebody else")
    return agent


def _kept(ask: Ask) -> AgentKeys:
    return AgentKeys(ask.gateway.settings.keys_path())


def _fields(key: Key) -> dict[str, Any]:
    return {
        "id": key.id,
        "name": key.label,
        "scopes": scopes_of(key),
        "state": key.state(time.time()),
        "created_at": _instant(key.created_at),
        "expires_at": _instant(key.expires_at) if key.expires_at is not None else None,
    }


def _instant(at: datetime) -> str:
    return stamp(int(at.timestamp() * 1_000_000))


def _record(ask: Ask, act: str, key_id: str, agent: Registered, reason: str = "") -> None:
    note(ask, act, f"{key_id} {agent.id} {agent.owner}".rstrip(), reason)


async def end_all(ask: Ask, agent: Registered) -> None:
    """End the keys of an agent that was removed: they spoke for it."""
    kept = _kept(ask)
    for key in await kept.all(agent):
        if key.revoked_at is None:
            await kept.revoke(agent, key.id)
            _record(ask, "key.revoke", key.id, agent)


async def _create(ask: Ask) -> MadeKey:
    body: NewKey = ask.body
    agent = _own_agent(ask)
    key, text = await _kept(ask).create(
        agent, body.name, scopes=body.scopes or ["*"], days=body.expires_in_days
    )
    _record(ask, "key.create", key.id, agent, " ".join(scopes_of(key)))
    return MadeKey(**_fields(key), key=text)


async def _list(ask: Ask) -> Keys:
    found = await _kept(ask).all(_own_agent(ask))
    return Keys([KeyRecord(**_fields(key)) for key in found])


async def _revoke(ask: Ask) -> None:
    agent = _own_agent(ask)
    try:
        await _kept(ask).revoke(agent, ask.path["keyId"])
    except InvalidParams:
        raise Refused("NOT_FOUND", "Key not found") from None
    _record(ask, "key.revoke", ask.path["keyId"], agent)


_OWN: tuple[Code, ...] = ("AGENT_NOT_FOUND", "FORBIDDEN")
_PATH = "/api/v1/agents/{id}/api-keys"
ENDPOINTS = [
    Endpoint(
        verb="POST",
        path=_PATH,
        scope="*",
        name="create_key",
        summary="Make an API key for an agent of one's own; its text is shown this once",
        answer=_create,
        status=201,
        body=NewKey,
        reply=MadeKey,
        errors=_OWN,
    ),
    Endpoint(
        verb="GET",
        path=_PATH,
        scope="*",
        name="list_keys",
        summary="Read the API keys of an agent of one's own, without their texts",
        answer=_list,
        reply=Keys,
        errors=_OWN,
    ),
    Endpoint(
        verb="DELETE",
        path=f"{_PATH}/{{keyId}}",
        scope="*",
        name="revoke_key",
        summary="End an API key at once",
        answer=_revoke,
        status=204,
        errors=(*_OWN, "NOT_FOUND"),
    ),
]
