"""When a schedule is due, and what becomes of times that passed unseen."""

from collections.abc import Iterator
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from dragoman.errors import InvalidParams
from dragoman.gateway.triggers import schedule
from dragoman.gateway.triggers.schedule import GRACE, Missed, check, due_times, next_after

HOURLY = "0 * * * *"
HOUR = 3_600_000


def at(text: str, zone: str = "UTC") -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp() * 1000)


def shown(milliseconds: int | None, zone: str = "UTC") -> str:
    assert milliseconds is not None
    return datetime.fromtimestamp(milliseconds / 1000, ZoneInfo(zone)).isoformat()


def test_the_next_time_is_by_the_clock_of_the_zone() -> None:
    found = next_after("30 9 * * 1-5", "Europe/Paris", at("2026-11-20T12:00"))
    assert shown(found, "Europe/Paris") == "2026-11-23T09:30:00+01:00"


def test_a_time_that_clocks_skip_is_due_at_the_next_that_exists() -> None:
    found = next_after("30 2 * * *", "Europe/Paris", at("2026-03-28T12:00"))
    assert shown(found, "Europe/Paris") == "2026-03-29T03:00:00+02:00"


def test_a_time_that_exists_twice_is_due_once() -> None:
    first = next_after("30 2 * * *", "Europe/Paris", at("2026-10-24T12:00"))
    assert first is not None
    second = next_after("30 2 * * *", "Europe/Paris", first)
    assert shown(first, "Europe/Paris").startswith("2026-10-25T02:30")
    assert shown(second, "Europe/Paris").startswith("2026-10-26T02:30")


@pytest.mark.parametrize(
    ("missed", "hours"), [("skip", []), ("once", [5]), ("all", [0, 1, 2, 3, 4, 5])]
)
def test_times_that_passed_unseen_are_made_up_for_by_the_rule(
    missed: Missed, hours: list[int]
) -> None:
    since = at("2026-11-17T00:00")
    found = due_times(HOURLY, "UTC", missed, since, since + 5 * HOUR + 2 * GRACE)
    assert found.now == [since + hour * HOUR for hour in hours]
    assert found.next == since + 6 * HOUR


@pytest.mark.parametrize("missed", ["skip", "once", "all"])
def test_a_time_that_is_reached_a_little_late_was_not_missed(missed: Missed) -> None:
    since = at("2026-11-17T00:00")
    found = due_times(HOURLY, "UTC", missed, since, since + GRACE)
    assert found == ([since], since + HOUR)


def test_a_year_of_missed_times_is_made_up_for_by_the_last_hundred() -> None:
    since = at("2025-11-17T00:00")
    found = due_times(HOURLY, "UTC", "all", since, at("2026-11-17T00:00"))
    assert len(found.now) == 100 and found.now[-1] == at("2026-11-17T00:00")


def test_ten_years_of_missed_minutes_are_not_gone_through(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[int] = []
    times = schedule._times  # pyright: ignore[reportPrivateUsage]  # what is counted

    def counted(cron: str, zone: str, after: int) -> Iterator[int]:
        for time in times(cron, zone, after):
            looked_at.append(time)
            yield time

    monkeypatch.setattr(schedule, "_times", counted)
    found = due_times("* * * * *", "UTC", "all", at("2016-11-17T00:00"), at("2026-11-17T00:00"))
    assert found.now[0] == at("2026-11-16T22:21") and len(found.now) == 100
    assert len(looked_at) < 1000


@pytest.mark.parametrize(
    ("cron", "zone"),
    [
        ("", "UTC"),
        ("* * * *", "UTC"),
        ("* * * * * *", "UTC"),
        ("61 * * * *", "UTC"),
        ("rm -rf", "UTC"),
        ("0 0 30 2 *", "UTC"),
        ("* * * * *" * 50, "UTC"),
        (HOURLY, "Mars/Olympus"),
        (HOURLY, "../../etc/passwd"),
        (HOURLY, ""),
        (HOURLY, "localtime"),
        (HOURLY, "posixrules"),
    ],
)
def test_what_is_no_schedule_is_refused(cron: str, zone: str) -> None:
    with pytest.raises(InvalidParams):
        check(cron, zone)
