"""The API keys of the server, for its operators: made, listed, followed by others, ended."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from dragoman.errors import ConfigError, InvalidParams, TaskNotFound
from dragoman.server.operator.shapes import Done, Name, Shape
from dragoman.server.operator.table import OperatorAsk, OperatorRows
from dragoman.server.server_keys import ServerKeys, audited

ENDPOINTS = OperatorRows()
# Changes of keys are for operators, and of those not for the key of an agent that only reads.
_CHANGES = {"is_for_operators": True, "scope": "tasks:write"}
# As `dragoman keys create` takes it.
KeyName = Annotated[str, Meta(pattern=r"^[\x21-\x7e]{1,200}$")]
Seconds = Annotated[int, Meta(ge=1, le=100 * 365 * 86400)]


class KeyToMake(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"
):
    """An API key to make."""

    owner: KeyName
    scopes: Annotated[list[KeyName], Meta(max_length=100)] = []
    # The only tenant it may act in.
    tenant: Name | None = None
    # Null: until it is revoked.
    expires_seconds: Seconds | None = None


class KeyRotation(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"
):
    """How a key is followed by another: for how long both are good, and the successor alone."""

    overlap_seconds: Annotated[int, Meta(ge=0, le=100 * 365 * 86400)] = 86400
    expires_seconds: Seconds | None = None


class KeyItem(Shape, frozen=True):
    """An API key, without its text."""

    id: str
    # active, expired, revoked or refused; of an agent's key also that it ended with its parent.
    state: str
    owner: str
    scopes: list[str]
    tenant: str | None
    # Of an agent's key: whose, how it was called, and the credentials above it.
    agent: str | None
    name: str | None
    parent: str | None
    made_by: list[str]
    created_at: str
    expires_at: str | None
    revoked_at: str | None
    followed_by: str | None


class MadeKeyItem(KeyItem, frozen=True):
    """An API key with its text, which is shown only now."""

    key: str
    # Of a successor: the key before it, and until when that one is good.
    replaces: str | UnsetType = UNSET
    replaced_until: str | UnsetType = UNSET

    def __repr__(self) -> str:
        return f"MadeKeyItem(id={self.id!r}, key='***')"


class KeyItems(Shape, frozen=True):
    """API keys of the server."""

    items: list[KeyItem]


@ENDPOINTS.add("GET", "/keys", is_for_operators=True)
async def list_keys(ask: OperatorAsk) -> KeyItems:
    """List the API keys of the server's file, then those of agents, in the order they were made.

    Their texts are stored nowhere."""
    found = await asyncio.to_thread(_ring(ask).items)
    return KeyItems(items=msgspec.convert(found, list[KeyItem]))


@ENDPOINTS.add("GET", "/keys/{id}", is_for_operators=True)
async def show_key(ask: OperatorAsk) -> KeyItem:
    """Show an API key, without its text."""
    return msgspec.convert(await _known(ask), KeyItem)


@ENDPOINTS.add("POST", "/keys", body=KeyToMake, **_CHANGES)
async def create_key(ask: OperatorAsk) -> MadeKeyItem:
    """Make an API key in the server's file; its text is shown only now."""
    body: KeyToMake = ask.body
    lifetime = _lifetime(body.expires_seconds)
    return await _made(
        ask, "key.create", lambda: _ring(ask).create(body.owner, body.scopes, body.tenant, lifetime)
    )


@ENDPOINTS.add("POST", "/keys/{id}/rotate", body=KeyRotation, **_CHANGES)
async def rotate_key(ask: OperatorAsk) -> MadeKeyItem:
    """Make the successor of an API key, which ends after a while; its text is shown only now."""
    body: KeyRotation = ask.body
    id, overlap = (await _known(ask))["id"], timedelta(seconds=body.overlap_seconds)
    lifetime = _lifetime(body.expires_seconds)
    return await _made(ask, "key.rotate", lambda: _ring(ask).rotate(id, overlap, lifetime))


@ENDPOINTS.add("POST", "/keys/{id}/revoke", **_CHANGES)
async def revoke_key(ask: OperatorAsk) -> Done:
    """End an API key at once, of the server's file or of an agent."""
    id = (await _known(ask))["id"]
    item = await asyncio.to_thread(_ring(ask).revoke, id)
    ask.record("key.revoke", *audited(item))
    return Done(result="revoked")


def _ring(ask: OperatorAsk) -> ServerKeys:
    return ServerKeys(ask.site.settings)


async def _known(ask: OperatorAsk) -> dict[str, Any]:
    """Return the key that the path names."""
    id = ask.path["id"]
    try:
        return await asyncio.to_thread(_ring(ask).item, id)
    except ConfigError:
        raise TaskNotFound(f"There is no key {id}") from None


async def _made(ask: OperatorAsk, act: str, make: Callable[[], dict[str, Any]]) -> MadeKeyItem:
    try:
        item = await asyncio.to_thread(make)
    except ConfigError as error:
        raise InvalidParams(str(error)) from None
    ask.record(act, *audited(item))
    return msgspec.convert(item, MadeKeyItem)


def _lifetime(seconds: int | None) -> timedelta | None:
    return None if seconds is None else timedelta(seconds=seconds)
