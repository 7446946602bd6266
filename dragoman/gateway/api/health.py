"""Whether the gateway answers."""

import time
from typing import Literal

import msgspec

from dragoman.gateway.api.table import Ask, Endpoint
from dragoman.http.routes import Access
from dragoman.model.clock import stamp
from dragoman.telemetry import figures


class Health(msgspec.Struct, frozen=True):
    """The gateway answers."""

    status: Literal["ok"]
    service: str
    version: str
    timestamp: str


async def _health(ask: Ask) -> Health:
    return Health("ok", "dragoman-gateway", figures.release(), stamp(time.time_ns() // 1000))


ENDPOINTS = [
    Endpoint(
        verb="GET",
        path=path,
        name=name,
        summary="Tell whether the gateway answers",
        answer=_health,
        access=Access.PROBE,
        reply=Health,
        is_bare=True,
    )
    for path, name in (("/health", "health"), ("/api/v1/health", "api_health"))
]
