"""What all deliveries of a gateway share: the registered agents, and what it takes to call them."""

from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from dragoman.config import Settings
from dragoman.gateway.delivery.push_inbox import PushInbox
from dragoman.gateway.delivery.upstreams import Upstreams
from dragoman.gateway.hops import HopLog
from dragoman.gateway.router import Router
from dragoman.stores.interface import Store


class DeliveryContext(msgspec.Struct, frozen=True):
    """What deliveries share."""

    # The id of this gateway among gateways.
    gateway_id: str
    store: Store
    settings: Settings
    upstreams: Upstreams
    router: Router
    push_inbox: PushInbox
    # Runs a coroutine in the background.
    spawn: Callable[[Coroutine[Any, Any, None]], None]
    # What was said to agents of late, where a task asks for it.
    hops: HopLog = msgspec.field(default_factory=HopLog)
