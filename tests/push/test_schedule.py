"""When a post is tried again, to the second."""

import asyncio
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from random import Random

import pytest
from harness.waiting import within

from dragoman.model.clock import SystemClock
from dragoman.push.schedule import (
    LONGEST_WISH,
    PAUSES,
    TRIES,
    next_try,
    retry_after,
)
from dragoman.testing.clock import ManualClock

NOW = 1_700_000_000_000
HOUR = 3_600_000


def test_ten_tries_take_75_hours_35_minutes_and_5_seconds() -> None:
    assert TRIES == 10
    assert timedelta(milliseconds=sum(PAUSES)) == timedelta(hours=75, minutes=35, seconds=5)


def test_a_pause_varies_by_a_fifth_and_uses_all_of_it() -> None:
    random = Random(1)
    for tries in range(1, TRIES):
        pauses = [next_try(tries, NOW, 0, random) - NOW for _ in range(2000)]
        assert PAUSES[tries] * 0.8 - 1 <= min(pauses) < PAUSES[tries] * 0.82
        assert PAUSES[tries] * 1.18 < max(pauses) <= PAUSES[tries] * 1.2


def test_a_receiver_may_wish_for_later_but_not_for_sooner_or_for_ever() -> None:
    random = Random(1)
    assert next_try(1, NOW, HOUR, random) == NOW + HOUR
    assert next_try(9, NOW, HOUR, random) > NOW + 19 * HOUR
    assert next_try(1, NOW, 90 * HOUR, random) == NOW + LONGEST_WISH == NOW + 24 * HOUR


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ("120", 120_000),
        (" 0 ", 0),
        ("", 0),
        ("-5", 0),
        ("1.5", 0),
        ("soon", 0),
        ("٣", 0),
        ("9" * 30, LONGEST_WISH),
        ("Fri, 31 Dec 9999 23:59:59 -2400", 0),
    ],
)
def test_a_wish_is_seconds_or_nothing(value: str, wanted: int) -> None:
    assert retry_after(value, NOW) == wanted


def test_a_wish_may_be_a_date() -> None:
    at = datetime.fromtimestamp(NOW / 1000, UTC)
    assert retry_after(format_datetime(at + timedelta(hours=2), usegmt=True), NOW) == 2 * HOUR
    assert retry_after(format_datetime(at - timedelta(hours=2), usegmt=True), NOW) == 0
    # Without a zone it is taken as UTC.
    assert retry_after(f"{at + timedelta(hours=1):%a, %d %b %Y %H:%M:%S}", NOW) == HOUR


async def test_the_clock_of_the_machine_waits_as_long_as_it_says() -> None:
    clock = SystemClock()
    began = time.monotonic()
    await within(clock.wait_until(clock.now() + 30))
    assert time.monotonic() - began > 0.02
    await within(clock.wait_until(clock.now() - 1))


async def test_a_manual_clock_wakes_in_the_order_of_time() -> None:
    clock, woken = ManualClock(NOW), list[int]()

    async def sleeper(after: int) -> None:
        await clock.wait_until(NOW + after)
        woken.append(after)

    async with asyncio.TaskGroup() as group:
        for after in (30, 10, 20, 0):
            group.create_task(sleeper(after))
        assert await clock.leap() == NOW + 10
        clock.move_to(NOW + 100)
    assert woken == [0, 10, 20, 30] and clock.waiting == 0
