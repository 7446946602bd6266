"""Shares of the loop and of the store: turns are counted by their order, not by time."""

import asyncio
from typing import Any

import pytest
from harness.clock import Clock
from harness.waiting import eventually, within

from dragoman import shares as module
from dragoman.config import EngineSettings, Settings
from dragoman.engine.engine import Engine
from dragoman.engine.log import STORE_IS_FULL
from dragoman.errors import RateLimited
from dragoman.model import operations as ops
from dragoman.model.identity import Caller, Principal
from dragoman.model.task import TaskState as S
from dragoman.service import Call, TaskReply
from dragoman.shares import ASKING, HEAVY, NARROW_EVENTS, PRESENT, PROBED, QUANTUM, Shares
from dragoman.stores.memory import MemoryStore
from proof.sabotage.guards.shares import endless_agent
from tests.engine.engines import House, message

GREEDY, QUIET, OTHER = Principal("", "greedy"), Principal("", "quiet"), Principal("acme", "greedy")


@pytest.fixture
def clock() -> Clock:
    return Clock()


def busy(shares: Shares, *callers: Principal) -> None:
    """Have callers use much."""
    for who in callers:
        shares.use(shares.account(who), HEAVY + 1)


class Loop:
    """Tasks that go on whenever it is their turn, and in which order."""

    def __init__(self, shares: Shares, cost: int = QUANTUM) -> None:
        self._shares = shares
        self._cost = cost
        self._running: list[asyncio.Task[None]] = []
        # Who had a slice, turn of the loop by turn of the loop.
        self.turns: list[list[str]] = [[]]

    def begin(self, who: Principal, name: str, agent: str = "a", cost: int = 0) -> None:
        account = self._shares.account(who)

        async def run() -> None:
            while True:
                await self._shares.turn(account, agent)
                self.turns[-1].append(name)
                self._shares.use(account, cost or self._cost)
                # As for the disk: it is not at once here again.
                await asyncio.sleep(0)

        self._running.append(asyncio.ensure_future(run()))

    async def turn(self, times: int) -> list[str]:
        """Let the loop turn; return all slices of that time in their order."""
        first = len(self.turns)
        for _ in range(times):
            self.turns.append([])
            await asyncio.sleep(0)
        return [name for turn in self.turns[first:] for name in turn]

    async def end(self) -> None:
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)


# Who waits


async def test_who_uses_little_never_waits(clock: Clock) -> None:
    shares = Shares(now=clock)
    shares.saw(QUIET)
    busy(shares, GREEDY)
    account = shares.account(QUIET)
    for _ in range(100):
        turn = shares.turn(account, "a")
        with pytest.raises(StopIteration):
            turn.send(None)


async def test_one_slice_in_each_turn_of_the_loop_while_others_are_there(clock: Clock) -> None:
    shares = Shares(now=clock)
    shares.saw(QUIET)
    clock.now += ASKING + 1
    busy(shares, GREEDY)
    loop = Loop(shares)
    for n in range(24):
        loop.begin(GREEDY, f"{n}")
    await loop.turn(5)
    had = len(loop.turns)
    await loop.turn(100)
    slices = [len(turn) for turn in loop.turns[had:]]
    assert max(slices) == 1, "however many tasks there are"
    assert sum(slices) >= 40, "what nobody else needs is used"
    await loop.end()


async def test_a_caller_who_is_alone_has_more_of_each_turn(clock: Clock) -> None:
    shares = Shares(now=clock)
    busy(shares, GREEDY)
    loop = Loop(shares)
    for n in range(24):
        loop.begin(GREEDY, f"{n}")
    alone = len(await loop.turn(100))
    shares.saw(QUIET)
    clock.now += ASKING + 1
    busy(shares, GREEDY)
    beside = len(await loop.turn(100))
    clock.now += PRESENT + 1
    busy(shares, GREEDY)
    again = len(await loop.turn(100))
    assert alone > 2 * beside < again
    await loop.end()


async def test_there_are_pauses_between_slices_while_others_ask_for_things(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PAUSE", 3600.0)
    shares = Shares(now=clock)
    busy(shares, GREEDY, OTHER)
    loop = Loop(shares)
    loop.begin(GREEDY, "greedy")
    assert len(await loop.turn(100)) > 10, "one who only works asks for nothing"
    shares.saw(GREEDY)
    assert len(await loop.turn(100)) > 10, "neither does it ask beside itself"
    shares.saw("probe")
    await loop.turn(5)
    assert not await loop.turn(100)
    await loop.end()


async def test_after_a_pause_the_next_has_its_turn(clock: Clock) -> None:
    shares = Shares(now=clock)
    busy(shares, GREEDY)
    shares.saw(QUIET)
    loop = Loop(shares)
    for n in range(3):
        loop.begin(GREEDY, f"{n}")
    await eventually(lambda: {"0", "1", "2"} <= {name for turn in loop.turns for name in turn})
    await loop.end()


async def test_another_caller_is_present_for_a_while_and_asks_for_a_moment(clock: Clock) -> None:
    shares = Shares(now=clock)
    account = shares.account(GREEDY)
    shares.saw(GREEDY)
    assert not shares.is_shared(account)
    shares.saw(QUIET)
    shares.saw(GREEDY)
    assert shares.is_shared(account)
    clock.now += PRESENT + 1
    shares.saw(GREEDY)
    assert not shares.is_shared(account)


async def test_a_health_check_counts_as_another_caller_for_an_instant_only(clock: Clock) -> None:
    shares = Shares(now=clock)
    account = shares.account(GREEDY)
    shares.saw(GREEDY)
    shares.saw_probe()
    assert shares.is_shared(account)
    assert shares.is_asked(account)
    clock.now += PROBED
    assert not shares.is_shared(account)
    assert not shares.is_asked(account)


async def test_callers_take_turns_however_many_tasks_they_have(clock: Clock) -> None:
    shares = Shares(now=clock)
    busy(shares, GREEDY, QUIET, OTHER)
    loop = Loop(shares)
    for n in range(24):
        loop.begin(GREEDY, "greedy", agent=f"{n}")
    # One alone is not always there when it could go on.
    for _ in range(4):
        loop.begin(QUIET, "quiet")
        loop.begin(OTHER, "other")
    await loop.turn(50)
    had = await loop.turn(300)
    counts = {name: had.count(name) for name in ("greedy", "quiet", "other")}
    assert counts["quiet"] >= counts["greedy"] * 0.8, counts
    assert counts["other"] >= counts["greedy"] * 0.8, "of another tenant, it is another caller"
    await loop.end()


async def test_agents_of_one_caller_take_turns(clock: Clock) -> None:
    shares = Shares(now=clock)
    shares.saw(QUIET)
    clock.now += ASKING + 1
    busy(shares, GREEDY)
    loop = Loop(shares)
    for _ in range(20):
        loop.begin(GREEDY, "noisy", agent="noisy")
    for _ in range(2):
        loop.begin(GREEDY, "calm", agent="calm")
    await loop.turn(50)
    had = await loop.turn(200)
    assert had.count("calm") >= had.count("noisy") * 0.8
    await loop.end()


async def test_who_takes_more_with_each_slice_has_fewer(clock: Clock) -> None:
    shares = Shares(now=clock)
    busy(shares, GREEDY, QUIET)
    loop = Loop(shares)
    for _ in range(8):
        loop.begin(GREEDY, "large", cost=8 * QUANTUM)
        loop.begin(QUIET, "small")
    await loop.turn(50)
    had = await loop.turn(400)
    assert had.count("small") > 4 * had.count("large") > 0
    await loop.end()


async def test_one_that_is_called_off_while_it_waits_takes_no_turn(clock: Clock) -> None:
    shares = Shares(now=clock)
    shares.saw(QUIET)
    busy(shares, GREEDY)
    account = shares.account(GREEDY)
    waiting = [asyncio.ensure_future(shares.turn(account, "a")) for _ in range(5)]
    await asyncio.sleep(0)
    for task in waiting[:4]:
        task.cancel()
    await within(waiting[4])
    await asyncio.gather(*waiting, return_exceptions=True)
    await within(shares.turn(account, "a"))


def test_the_use_of_many_callers_is_remembered_in_bounded_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MOST_ACCOUNTS", 10)
    shares = Shares()
    for n in range(100):
        shares.account(Principal("", f"{n}"))
    assert shares.remembered == 10


# In the engine


async def begun(engine: Engine, owner: str, text: str = "hi", skill: str = "") -> str:
    caller = Caller(owner, authenticated=True)
    operation = ops.SendMessage(message=message(text, skill=skill), wait=False)
    reply = await within(engine.answer(Call(operation=operation, caller=caller)))
    assert isinstance(reply, TaskReply)
    return reply.reading.task.id


async def read(engine: Engine, owner: str, task_id: str) -> Any:
    operation = ops.GetTask(task_id=task_id)  # type: ignore[arg-type]  # an id of the engine's own
    caller = Caller(owner, authenticated=True)
    reply = await within(engine.answer(Call(operation=operation, caller=caller)))
    assert isinstance(reply, TaskReply)
    return reply.reading.task


async def test_endless_tasks_of_one_caller_hold_a_turn_for_one_slice(clock: Clock) -> None:
    store = MemoryStore()
    await store.open()
    shares = Shares(now=clock)
    engine = Engine(
        endless_agent(), store, Settings(engine=EngineSettings(max_events=1_000_000)), shares=shares
    )
    account = shares.account(GREEDY)
    # All at once: what runs alone meanwhile writes thousands of events.
    await asyncio.gather(*(begun(engine, "greedy") for _ in range(24)))
    await eventually(lambda: account.is_heavy)
    shares.saw(QUIET)
    await eventually(lambda: account.is_narrow)
    clock.now += ASKING + 1
    for _ in range(50):
        await asyncio.sleep(0)
    most = 0
    for _ in range(200):
        before = account.used
        await asyncio.sleep(0)
        most = max(most, account.used - before)
    assert 0 < most <= 1.5 * QUANTUM, "a slice, in each turn of the loop"
    await engine.stop()


async def test_a_slice_ends_with_its_time(clock: Clock) -> None:
    shares = Shares(now=clock)
    shares.saw(QUIET)
    busy(shares, GREEDY)
    await within(shares.turn(shares.account(GREEDY), "a"))
    assert not shares.is_late
    clock.now += 2 * module.NARROW_SECONDS
    assert shares.is_late
    assert NARROW_EVENTS > 1


# In the store


async def test_tasks_at_their_callers_share_of_the_store_end_and_new_ones_are_refused() -> None:
    store = MemoryStore()
    await store.open()
    shares = Shares(most_stored=100_000)
    engine = Engine(endless_agent(), store, Settings(), shares=shares)
    tasks = await asyncio.gather(*(begun(engine, "greedy") for _ in range(3)))
    for task_id in tasks:

        async def is_over(task_id: str = task_id) -> bool:
            return (await read(engine, "greedy", task_id)).status.state.is_terminal

        await eventually(is_over)
        ended = await read(engine, "greedy", task_id)
        assert ended.status.state is S.FAILED and ended.status.message.text == STORE_IS_FULL
    assert await store.stored(GREEDY) < 250_000
    with pytest.raises(RateLimited, match="share of the store"):
        await begun(engine, "greedy")
    assert (await read(engine, "quiet", await begun(engine, "quiet", skill="echo"))).id
    await engine.stop()
    # Another process knows it by looking.
    again = Engine(endless_agent(), store, Settings(), shares=Shares(most_stored=100_000))

    async def is_refused() -> bool:
        try:
            await begun(again, "greedy", skill="echo")
        except RateLimited:
            return True
        return False

    await eventually(is_refused)
    await again.stop()


class _Replicas:
    workers = 3


async def test_what_other_replicas_write_is_looked_up_long_before_a_caller_is_full(
    clock: Clock,
) -> None:
    store = MemoryStore()
    await store.open()
    alone = Shares(now=clock, most_stored=3000)
    shares = Shares(now=clock, most_stored=3000, limits=_Replicas())
    for one in (alone, shares):
        account = one.account(GREEDY)
        assert one.is_unmeasured(account)
        await one.measure(account, store)
        one.store(account, 99)
        clock.now += 1.0
        assert not one.is_unmeasured(account)
        # Three that wrote as much may have written a tenth of what was left.
        one.store(account, 2)
        assert one.is_unmeasured(account) is (one is shares)


async def test_what_was_forgotten_makes_room_again(clock: Clock) -> None:
    store = MemoryStore()
    await store.open()
    shares = Shares(now=clock, most_stored=1000)
    account = shares.account(GREEDY)
    shares.store(account, 2000)
    assert account.is_full and shares.is_unmeasured(account)
    await shares.measure(account, store)
    assert not account.is_full and account.stored == 0
    assert not shares.is_unmeasured(account)
    # Callers who are not known share one room, which nobody may close.
    unknown = shares.account("192.0.2.1")
    shares.store(unknown, 2000)
    assert not unknown.is_full and not shares.is_unmeasured(unknown)


async def test_code_that_ignores_the_limit_is_stopped(house: House) -> None:
    await house.start(endless_agent(), max_events=50)
    task = await house.send("hi", skill="stubborn", wait=False)
    failed = await house.reaches(task.id, S.FAILED)
    assert failed.status.message is not None
    assert failed.status.message.text == "The task grew beyond its limit of 50 events."
    await eventually(lambda: house.engine.live_tasks == 0)
