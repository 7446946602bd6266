"""The figures of the last minutes, and a stream that tells when lists have changed."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import msgspec

from dragoman.server.operator.events import serve_stream
from dragoman.server.operator.live import LOOK_EVERY
from dragoman.server.operator.shapes import Shape, instant
from dragoman.server.operator.table import OperatorAsk, OperatorRows
from dragoman.telemetry.sampling import EVERY, SampledFigures

ENDPOINTS = OperatorRows()


class AgentSample(Shape, frozen=True):
    """Figures of one agent."""

    started: float = 0
    ended: float = 0
    failed: float = 0
    # Milliseconds that its code worked on a message.
    p50: float = 0
    p99: float = 0


class Sample(Shape, frozen=True):
    """Figures of some seconds, of all workers of this port."""

    number: int
    at: str
    seconds: float
    started: float
    ended: float
    failed: float
    running: float
    waiting: float
    streams: float
    requests: float
    errors: float
    refused: float
    # Milliseconds from a request that sends a message to its answer or first event.
    p50: float
    p99: float
    memory: float
    agents: dict[str, AgentSample]


class Samples(Shape, frozen=True):
    """The last fifteen minutes."""

    every: float
    items: list[Sample]


def _shown(one: SampledFigures) -> Sample:
    agents = {name: AgentSample(**found._asdict()) for name, found in one.agents.items()}
    fields: dict[str, Any] = one._asdict() | {"at": instant(one.at), "agents": agents}
    return Sample(**fields)


@ENDPOINTS.add("GET", "/samples", is_for_operators=True)
async def read_samples(ask: OperatorAsk) -> Samples:
    """Read the figures of the last fifteen minutes, of all workers of this port."""
    return Samples(every=EVERY, items=[_shown(one) for one in list(ask.live.ring.samples)])


@ENDPOINTS.add("GET", "/changes", streams=True)
async def follow_changes(ask: OperatorAsk) -> None:
    """Hear when the list of tasks has changed: `change`, at most once a second."""
    await serve_stream(ask, _changes(ask))


async def _changes(ask: OperatorAsk) -> AsyncGenerator[bytes]:
    number, seen = 0, None
    while True:
        place = await ask.live.latest(ask.viewer)
        if place != seen:
            seen = place
            number += 1
            data = msgspec.json.encode({"revision": number})
            yield b"id: %d\nevent: change\ndata: %b\n\n" % (number, data)
        await asyncio.sleep(LOOK_EVERY)
