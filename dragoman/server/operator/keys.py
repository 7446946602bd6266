"""The API keys of the server, for its operators: made, listed, followed by others, ended."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import msgspec

from dragoman.errors import ConfigError, InvalidParams, TaskNotFound
from dragoman.server.operator.shapes import (
    Done,
    KeyItem,
    KeyItems,
    KeyRotation,
    KeyToMake,
    MadeKeyItem,
)
from dragoman.server.operator.table import OperatorAsk, OperatorRows
from dragoman.server.server_keys import ServerKeys, audited

ENDPOINTS = OperatorRows()
# Changes of keys are for operators, and of those not for the key of an agent that only reads.
_CHANGES = {"is_for_operators": True, "scope": "tasks:write"}


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
