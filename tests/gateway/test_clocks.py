"""Replicas whose clocks differ record and judge times by the store's."""

import time
from pathlib import Path

import pytest
from harness.serving import serving

from dragoman.model.clock import stamp
from dragoman.model.request_metadata import DEADLINE
from dragoman.model.task import TaskState
from dragoman.stores.memory import MemoryStore
from dragoman.stores.sqlite import SQLiteStore
from tests.gateway.gateway_site import gateway, workshop

AHEAD = 3_600_000


async def test_a_gateway_whose_clock_is_an_hour_ahead_keeps_the_stores_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # That of the agent is right.
    for kind in (SQLiteStore, MemoryStore):
        monkeypatch.setattr(kind, "clock_offset", -AHEAD)
    async with serving(workshop()) as upstream, gateway(tmp_path) as site:
        agent, one = await site.register(upstream.url), site.gateway
        assert one.keys is not None
        right = time.time() * 1000 - AHEAD
        found = {
            "registry": agent.created_at,
            "ledger": one.ledger._at(),
            "trust": one.trust._at(),
            "keys": one.keys._now() * 1000,
            "triggers": one.triggers.clock.now(),
            "rollouts": one.rollouts._clock.now(),
            "workflows": one.workflows._clock.now(),
            "siblings": one.joined.siblings._now() * 1000,
        }
        wrong = {name: at - right for name, at in found.items() if abs(at - right) > 60_000}
        assert not wrong
        # In half an hour; by the gateway's own clock half an hour ago.
        ends = stamp(int(right + AHEAD / 2) * 1000)
        async with site.client(agent) as caller:
            answer = await caller.send("hi", metadata={DEADLINE: ends})
        assert answer.task is not None and answer.task.status.state is TaskState.COMPLETED
