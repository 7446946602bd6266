"""The load of the proof of overload: it counts what came of each request, and waits for none."""

import asyncio
import time
from types import SimpleNamespace

import pytest
from harness.serving import serving

from dragoman import Agent
from dragoman.testing import load as module
from dragoman.testing.load import Load
from proof.overload.overload import OverloadResult, awake
from proof.overload.volley import NO_TASK, SendTally, closed_loop, open_loop, sends
from proof.results import Spread


def echo() -> Agent:
    agent = Agent("Echo", "Repeats.")

    @agent.skill
    async def echo(text: str) -> str:
        return text

    return agent


def port(url: str) -> int:
    return int(url.rpartition(":")[2])


async def test_callers_who_wait_are_counted_with_their_tasks() -> None:
    async with serving(echo()) as site:
        tally = await closed_loop(port(site.url), sends(), 4, 0.3, 0.1)
        assert set(tally.answers) == {200} and not tally.others
        assert len(tally.tasks) == len(tally.accepted) == tally.answers[200]
        assert 0 < tally.in_time <= len(tally.accepted)
        assert len(set(tally.tasks)) == len(tally.tasks)
        assert tally.goodput == tally.in_time / tally.seconds
        (task,) = (await site.task(tally.tasks[0].decode()),)
        assert task["status"]["state"] == "TASK_STATE_COMPLETED"


async def test_refusals_are_told_from_results_and_from_mistakes() -> None:
    async with serving(echo(), rate_limit="3/60s") as site:
        tally = await open_loop(port(site.url), sends(), 50, 0.4, 4)
        assert len(tally.accepted) == 3 and tally.answers[429] == len(tally.refused) > 3
        assert not tally.others
    tally = SendTally()
    tally.take(200, b'{"error":{}}')
    tally.take(500, b"")
    assert tally.others == {NO_TASK: 1, 500: 1}


async def test_requests_without_a_connection_wait_from_when_they_were_due() -> None:
    async with serving(echo()) as site:
        tally = await open_loop(port(site.url), sends(), 30_000, 0.4, 1)
        assert tally.unsent > 0
        assert max(tally.accepted) > 0.1
        # How late the load was is told of all, also while it has no free caller.
        assert len(tally.lateness) > sum(tally.answers.values()) + tally.unsent / 2


async def test_a_load_that_was_held_up_says_for_how_long(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.perf_counter
    late = 0.0

    class Caller:
        def begin(self, due: float) -> None:
            nonlocal late
            late = 1000.0
            load.free(self)

        def abandon(self) -> None:
            """Nothing is under way."""

    load = Load(SendTally, count=2, rate=1000)
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: now() + late))
    tally = await load.run([Caller()])
    assert len(tally.lateness) == 2
    assert tally.lateness[0] < 500 < 990 < tally.lateness[1]


async def test_the_load_does_not_sleep_where_it_has_a_processor() -> None:
    others = len(asyncio.all_tasks())
    with awake(False):
        assert len(asyncio.all_tasks()) == others
    with awake(True):
        for _ in range(3):
            assert len(asyncio.all_tasks()) == others + 1
            await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(asyncio.all_tasks()) == others


def test_every_promise_can_be_broken() -> None:
    good = OverloadResult(
        seed=1,
        rounds=1,
        peak=1000,
        offered=5000,
        goodput=900,
        goodput_ratio=0.9,
        slower=2.0,
        peak_ms=Spread(),
        accepted_ms=Spread(),
        refused_ms=Spread(),
        accepted=10,
        refused=10,
        others={},
        lost=0,
        work_at_peak=1,
        work_in_overload=1,
        left_out=0.0,
        alone_ms=Spread(),
        fair_ms=Spread(),
        beside_ms=Spread(),
        disturbed=1.2,
        limited=5,
        within=10,
        turned_away=0,
        late_ms=Spread(),
        late_beside_ms=Spread(),
    )
    assert good.kept
    for field, value in (
        ("goodput_ratio", 0.79),
        ("slower", 3.1),
        ("others", {500: 1}),
        ("lost", 1),
        ("disturbed", 1.6),
        ("turned_away", 1),
        ("late_ms", Spread(p99=10.1)),
        ("late_beside_ms", Spread(p99=10.1)),
    ):
        bad = OverloadResult(
            **{name: getattr(good, name) for name in good.__struct_fields__} | {field: value}
        )
        assert [row.kept for row in bad.rows()].count(False) == 1, field
