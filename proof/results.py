"""What a proof returns: promises in plain words with the figures that were found."""

import asyncio
import contextlib
import shutil
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from dragoman.testing.load import percentile

Progress = Callable[[str], None]
Json = dict[str, Any]
# Facts of a kind of violation that are told.
_TOLD_OF_EACH = 5


def silent(text: str) -> None:
    """Show no progress."""


@contextlib.contextmanager
def workplace() -> Generator[Path]:
    """Make a folder for a run and remove it afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="dragoman-proof-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def until(condition: Callable[[], bool], within: float) -> bool:
    """Wait until a condition holds; return whether it came to hold in time."""
    deadline = time.monotonic() + within
    while not condition():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.05)
    return True


class Violations(msgspec.Struct):
    """How often each promise was broken: an attribute each; and the facts of the first few."""

    findings: list[str] = []

    def add(self, kind: str, fact: str) -> None:
        """Count a violation."""
        count: int = getattr(self, kind)
        setattr(self, kind, count + 1)
        if count < _TOLD_OF_EACH:
            self.findings.append(f"{kind}: {fact}")


class Row(msgspec.Struct):
    """One promise in plain words, the figure that was found, and whether it was kept."""

    promise: str
    figure: str
    kept: bool
    # With no failure in n trials the true rate is below this, at 95 %.
    bound: float | None = None


class Result(msgspec.Struct, kw_only=True):
    """What a proof found. Each proof adds its figures and says its promises as rows."""

    proof: str
    seed: int
    seconds: float = 0.0
    bound: float | None = None
    # What was wrong, with the ids that show it; the first few of each kind.
    findings: list[str] = []
    # The same probes on ours and on another runtime, if that was asked for.
    compare: Json | None = None

    def rows(self) -> list[Row]:
        """Return the promises this proof is about."""
        raise NotImplementedError

    @property
    def kept(self) -> bool:
        """Whether every promise was kept."""
        return all(row.kept for row in self.rows())


def bound(trials: int) -> float | None:
    """Return the rule of three: below this at 95 %, if nothing failed in so many trials."""
    return 3 / trials if trials else None


class Spread(msgspec.Struct):
    """How a time was distributed, in milliseconds."""

    count: int = 0
    p50: float = 0.0
    p99: float = 0.0
    max: float = 0.0


def spread(times: Sequence[float]) -> Spread:
    """Return the distribution of times in milliseconds."""
    if not times:
        return Spread()

    def at(share: float) -> float:
        return round(percentile(times, share), 1)

    return Spread(len(times), at(0.5), at(0.99), at(1.0))
