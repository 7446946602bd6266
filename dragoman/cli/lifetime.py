"""How long something is good, as people write it: longer than the durations of a run."""

import re
from datetime import timedelta
from typing import Any

import click

from dragoman.model.duration import duration

_LONGEST = timedelta(days=36_500)


class Lifetime(click.ParamType[timedelta]):
    """A time to live, as `90d`, `12h` or `30m`."""

    name = "lifetime"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> timedelta:
        """Read a text."""
        if isinstance(value, timedelta):
            return value
        try:
            days = re.fullmatch(r"(\d{1,6})d", value, re.ASCII)
            found = timedelta(days=int(days[1])) if days else timedelta(seconds=duration(value))
        except (ValueError, OverflowError):
            self.fail("must be a time such as 90d, 12h or 30m", param, ctx)
        if found > _LONGEST:
            self.fail(f"must be at most {_LONGEST.days}d", param, ctx)
        return found
