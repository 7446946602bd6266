"""The load generator: what is begun when, and that every request is accounted for."""

import asyncio
import math
from dataclasses import dataclass, field

import pytest
from harness.stub_servers import listening
from harness.waiting import within

from dragoman.testing.load import (
    HOLE,
    NO_ANSWER,
    Load,
    Tally,
    fresh,
    percentile,
    rpc,
    run_on_connections,
)

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


@dataclass
class Statuses(Tally):
    taken: list[int] = field(default_factory=list[int])
    in_time: int = 0

    def take(self, status: int, body: bytes, expected: bytes, took: float, at: float) -> None:
        self.taken.append(status)

    def end_window(self) -> None:
        self.in_time = len(self.taken)


class Caller:
    """Is answered when a test says so."""

    def __init__(self, load: Load[Statuses]) -> None:
        self.load = load
        self.begun: list[float] = []
        self.is_abandoned = False

    def begin(self, due: float) -> None:
        self.begun.append(due)
        asyncio.get_running_loop().call_soon(self.load.free, self)

    def abandon(self) -> None:
        self.is_abandoned = True


class Silent(Caller):
    """Is never answered."""

    def begin(self, due: float) -> None:
        self.begun.append(due)


def requests() -> bytes:
    return rpc("SendMessage", {"id": HOLE})


async def test_a_number_of_requests_is_made_to_the_last_one() -> None:
    load = Load(Statuses, count=25)
    callers = [Caller(load) for _ in range(4)]
    await within(load.run(callers))
    assert sum(len(caller.begun) for caller in callers) == 25


async def test_each_caller_asks_at_least_once_however_little_time_there_is() -> None:
    load = Load(Statuses, seconds=0.0)
    callers = [Caller(load) for _ in range(8)]
    await within(load.run(callers))
    assert [len(caller.begun) for caller in callers] == [1] * 8


async def test_at_a_rate_requests_are_due_at_fixed_times_and_wait_for_a_free_caller() -> None:
    load = Load(Statuses, seconds=0.2, rate=100, drain=0.0)
    (caller,) = callers = [Silent(load)]
    tally = await within(load.run(callers))
    assert len(caller.begun) == 1 and tally.unsent > 0 and caller.is_abandoned
    load = Load(Statuses, seconds=0.2, rate=100)
    (caller,) = callers = [Caller(load)]
    tally = await within(load.run(callers))
    gaps = [b - a for a, b in zip(caller.begun, caller.begun[1:], strict=False)]
    assert all(gap == pytest.approx(0.01) for gap in gaps) and len(gaps) > 0


async def test_answers_of_the_warm_up_are_kept_apart() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            if head.startswith(b"POST"):
                await reader.readexactly(int(head.lower().partition(b"length: ")[2].split()[0]))
            writer.write(OK)

    load = Load(Statuses, seconds=0.1, warmup=0.1)
    async with listening(talk) as port:
        tally = await within(run_on_connections(load, port, fresh(requests()), 3))
    assert tally is load.tally is not load.early
    assert set(load.early.taken) == {200} and {*tally.taken} <= {200}
    assert tally.in_time <= len(tally.taken) and tally.began >= load.early.began + 0.1


async def test_a_lost_connection_is_counted_once_and_ends_its_caller() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK)
        # The next request, the first of the load, is not answered.
        await reader.readuntil(b"\r\n\r\n")

    async with listening(talk) as port:
        load = Load(Statuses, count=100)
        tally = await within(run_on_connections(load, port, fresh(requests()), 5))
    assert tally.taken == [NO_ANSWER] * 5


def test_every_copy_of_a_request_has_an_id_of_its_own_and_the_same_length() -> None:
    copies = fresh(requests())
    (first, one), (second, other) = next(copies), next(copies)
    assert one != other and one in first and other in second and len(first) == len(second)


def test_a_percentile_is_a_value_that_was_measured() -> None:
    times = [5.0, 1.0, 3.0, 2.0]
    assert [percentile(times, share) for share in (0.0, 0.5, 0.51, 1.0)] == [1.0, 2.0, 3.0, 5.0]
    assert math.isnan(percentile([], 0.5))
