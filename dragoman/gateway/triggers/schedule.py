"""When a schedule is due. Pure: the times come from `cronsim`, the rule for missed ones is here.

A time that does not exist because clocks go forward is due at the next one that does; one that
exists twice is due once.
"""

import datetime
import itertools
import zoneinfo
from collections.abc import Iterator
from typing import Literal, NamedTuple

from dragoman.errors import InvalidParams

# What becomes of times that passed while no gateway was there.
Missed = Literal["skip", "once", "all"]
# A time that was reached a little late was not missed.
GRACE = 60_000
# Missed times that are made up for, the latest ones.
MOST_MISSED = 100
_LONGEST_CRON = 200
# Names of whatever zone a machine has: another replica would have another.
_OF_A_MACHINE = ("localtime", "posixrules")
_FIELDS = 5


class DueTimes(NamedTuple):
    """Times that are to be run now, the oldest first, and the next one, in milliseconds; None:
    there is none."""

    now: list[int]
    next: int | None


def check(cron: str, zone: str) -> None:
    """Raise `InvalidParams` for what is no schedule."""
    if len(cron) > _LONGEST_CRON:
        raise InvalidParams("is too long", field="schedule.cron")
    if len(cron.split()) > _FIELDS:
        # The library would take a sixth one for seconds.
        raise InvalidParams(
            "is no cron expression of five fields such as `0 9 * * 1-5`", field="schedule.cron"
        )
    if not _is_zone(zone):
        raise InvalidParams(
            "is no time zone; say one such as Europe/Paris or UTC", field="schedule.zone"
        )
    if next_after(cron, zone, 0) is None:
        raise InvalidParams("is never due", field="schedule.cron")


def _is_zone(name: str) -> bool:
    try:
        zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        return False
    return name not in _OF_A_MACHINE


def next_after(cron: str, zone: str, after: int) -> int | None:
    """Return the first time after another; None: there is none. Raises `InvalidParams`."""
    return next(_times(cron, zone, after), None)


def due_times(cron: str, zone: str, missed: Missed, since: int, now: int) -> DueTimes:
    """Return what is due, given the time that was to be next, and what is next then."""
    found = _passed(cron, zone, since, now)[-MOST_MISSED:]
    following = next_after(cron, zone, now)
    if missed == "once":
        found = found[-1:]
    elif missed == "skip":
        found = [time for time in found[-1:] if now - time <= GRACE]
    return DueTimes(found, following)


def _passed(cron: str, zone: str, since: int, now: int) -> list[int]:
    """Return the latest times up to now, at least as many as are made up for, if there were so
    many; the first of all is `since`."""
    span = MOST_MISSED * 60_000
    # From the end, so that a year of minutes costs no more than an hour of them.
    while (start := now - span) > since:
        found = _until(cron, zone, start, now)
        if len(found) >= MOST_MISSED:
            return found
        span *= 2
    return [since, *_until(cron, zone, since, now)]


def _until(cron: str, zone: str, after: int, now: int) -> list[int]:
    return list(itertools.takewhile(lambda time: time <= now, _times(cron, zone, after)))


def _times(cron: str, zone: str, after: int) -> Iterator[int]:
    try:
        # Brought by an extra.
        from cronsim import CronSim, CronSimError
    except ImportError:
        raise InvalidParams(
            "schedules need an extra here: pip install 'dragoman[schedules]'", field="schedule"
        ) from None
    start = datetime.datetime.fromtimestamp(after / 1000, zoneinfo.ZoneInfo(zone))
    try:
        times = CronSim(cron, start)
    except CronSimError as error:
        raise InvalidParams(
            f"is no cron expression of five fields such as `0 9 * * 1-5` ({error})",
            field="schedule.cron",
        ) from None
    for time in times:
        yield int(time.timestamp() * 1000)
