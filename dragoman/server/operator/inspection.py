"""What the tools of the command line read of the server's store: by name, for one elsewhere."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from dragoman.errors import ConfigError, UnsupportedOperation
from dragoman.push.request import origin
from dragoman.server.operator.shapes import Name, Shape
from dragoman.server.operator.table import OperatorAsk, OperatorRows
from dragoman.stores.interface import DeadLetter, Push

ENDPOINTS = OperatorRows()
# Threads of their own: a check of a whole ledger keeps no other work of the process waiting.
_readers = ThreadPoolExecutor(2, thread_name_prefix="inspection")


class StoreInspection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A read of the store: what of it, as `ledger.balances`, and with which arguments."""

    read: Name
    arguments: dict[str, Any] = {}


class InspectedStore(Shape, frozen=True):
    """What a read of the store returned."""

    value: Any


class TrustRulesItem(Shape, frozen=True):
    """How a gateway makes scores of what it observed."""

    policy: str
    cap: int


@ENDPOINTS.add("POST", "/inspection", body=StoreInspection, is_for_operators=True)
async def inspect_store(ask: OperatorAsk) -> InspectedStore:
    """Read the store as a tool beside it would.

    For `dragoman tasks`, `inbox`, `ledger`, `trust` and `push` with `--gateway`: names and shapes
    are those of one release."""
    body: StoreInspection = ask.body
    settings = ask.site.settings
    if settings.stores.location == "memory:":
        raise UnsupportedOperation("the tasks of this server are in its memory alone")
    ask.record_read("console.store.read", body.read)
    loop = asyncio.get_running_loop()

    def read() -> bytes:
        # Loaded when an operator first looks into the store from elsewhere.
        from dragoman.stores import remote

        found = remote.read(settings, body.read, body.arguments)
        return remote.encode(_shown(found) if body.read.startswith("health.") else found)

    try:
        return InspectedStore(value=msgspec.Raw(await loop.run_in_executor(_readers, read)))
    except ConfigError as error:
        raise UnsupportedOperation(str(error)) from None


@ENDPOINTS.add("GET", "/trust-rules", is_for_operators=True)
async def read_trust_rules(ask: OperatorAsk) -> TrustRulesItem:
    """Read how scores are made of what was observed."""
    gateway = ask.site.settings.gateway
    return TrustRulesItem(policy=gateway.trust_policy, cap=gateway.trust_cap)


def _shown(found: list[DeadLetter] | list[tuple[Push, int]]) -> list[Any]:
    """Return receivers and letters with no more of an address than the console shows."""
    shown: list[Any] = []
    for one in found:
        if isinstance(one, DeadLetter):
            shown.append(msgspec.structs.replace(one, url=origin(one.url)))
        else:
            push, last = one
            config = msgspec.structs.replace(push.config, url=origin(push.config.url))
            shown.append((msgspec.structs.replace(push, config=config), last))
    return shown
