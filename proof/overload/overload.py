"""Five times as many requests as a server can answer, and one caller far beyond its limit: what is
accepted stays fast, the rest is refused properly, and callers within their share do not notice.

Figures are ratios of what the same server did a moment before and after, round by round, since no
machine is the same for a minute; what was timed while the machine gave one of its processors to
others is left out, at the peak as in the overload. The server has one processor to itself and the
load comes from another, which never sleeps, at the peak as in the overload: on one machine it is
the sender's processor that wakes who waits for an answer, much of what a refusal costs, and over a
network it is not.
"""

import asyncio
import contextlib
import os
import statistics
import time
from collections import Counter
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

from dragoman.errors import ConfigError
from proof.crash.checker import reading
from proof.overload.machine import Interruptions
from proof.overload.volley import SendTally, closed_loop, open_loop, sends
from proof.results import Progress, Result, Row, Spread, bound, silent, spread, until, workplace
from proof.servers import Server

TIMES = 5
# What the promises allow: goodput of the peak, and p99 of what it was then or without the crowd.
GOODPUT = 0.8
SLOWER = 3.0
DISTURBED = 1.5
# Milliseconds after which the load may notice that a request is due, or an answer there: what it
# delays counts against the server.
LATE = 10.0
_ROUNDS = 8
# Callers at the peak, who ask again once they are answered; and those of the overload, each with
# one request at a time. They are so many that each asks again after 60 ms: callers that ask sooner
# are refused after a delay, and requests would then wait for a free caller, not for the server.
_CALLERS = 64
_LEAST_CONNECTIONS = 1000
_ASKS_AGAIN_AFTER = 0.060
_WARMUP = 1.0
# Seconds until a server has noticed, and has done what came before; not counted.
_ONSET = 2.0
_PEAK_SECONDS = 2.0
# Of the peak, what one principal may ask for, and how many keep to half of it.
_SHARE = 0.1
_TIMES_ITS_LIMIT = 10
_OTHERS = 3
_REST_WITHIN = 60.0
# Seconds between two looks of a load that does not sleep.
_BETWEEN_LOOKS = 0.0002


class CannotMeasure(ConfigError):
    """What was measured says nothing about the server."""


class OverloadResult(Result, kw_only=True):
    """What a server did under too much load, beside what it did before."""

    proof: str = "overload"
    rounds: int
    # Requests per second: what was answered at the peak, what was asked for, what was accepted.
    peak: float
    offered: float
    goodput: float
    # The middle of the rounds' ratios.
    goodput_ratio: float
    slower: float
    peak_ms: Spread
    accepted_ms: Spread
    refused_ms: Spread
    accepted: int
    refused: int
    # Answers that are neither a result nor a refusal, by status; 0 is no answer.
    others: dict[int, int]
    lost: int
    # Microseconds of the server's processor: for an answer at the peak, and for any in overload.
    work_at_peak: float
    work_in_overload: float
    # Of the time, what is left out because the machine gave a processor to others.
    left_out: float
    # Of callers within their limit: alone, beside one that uses all of its own, and beside one far
    # beyond it.
    alone_ms: Spread
    fair_ms: Spread
    beside_ms: Spread
    disturbed: float
    limited: int
    # Of those within their limit: asked beside the loud one, and refused.
    within: int
    turned_away: int
    # For how long requests and answers waited for the load itself: in overload, and of callers with
    # a limit.
    late_ms: Spread
    late_beside_ms: Spread

    def rows(self) -> list[Row]:
        """Return the promises."""
        answers = self.accepted + self.refused
        wrong = sum(self.others.values())
        return [
            Row(
                f"Goodput at {TIMES} times the load, of the peak (at least {GOODPUT:.0%})",
                f"{self.goodput_ratio:.0%}: {self.goodput:,.0f}/s of {self.peak:,.0f}/s, "
                f"{self.offered:,.0f}/s offered; without the first {_ONSET:g} s, and the "
                f"{self.left_out:.0%} of the time when others had a processor",
                self.goodput_ratio >= GOODPUT,
            ),
            Row(
                f"p99 of what was accepted, times that at the peak (at most {SLOWER:g})",
                f"{self.slower:.2f}: {self.accepted_ms.p99:.0f} ms, {self.peak_ms.p99:.0f} ms",
                self.slower <= SLOWER,
            ),
            Row(
                "Answers other than 200, 429 and 503",
                f"{wrong} of {answers:,}",
                not wrong,
                bound(answers),
            ),
            Row(
                "Accepted tasks lost",
                f"{self.lost} of {self.accepted:,}",
                not self.lost,
                bound(self.accepted),
            ),
            Row(
                f"p99 of callers beside one at {_TIMES_ITS_LIMIT} times its limit, times theirs "
                f"beside one at its limit (at most {DISTURBED:g})",
                f"{self.disturbed:.2f}: {self.beside_ms.p99:.1f} ms, {self.fair_ms.p99:.1f} ms "
                f"(alone {self.alone_ms.p99:.1f} ms); {self.limited:,} refused; without the first "
                f"{_WARMUP:g} s",
                self.disturbed <= DISTURBED,
            ),
            Row(
                "Requests of theirs that were refused",
                f"{self.turned_away} of {self.within:,}",
                not self.turned_away,
                bound(self.within),
            ),
            Row(
                f"p99 of how late the load itself sent what was due (at most {LATE:g} ms)",
                f"{self.late_ms.p99:.1f} ms in overload, {self.late_beside_ms.p99:.1f} ms with "
                "callers who have a limit",
                max(self.late_ms.p99, self.late_beside_ms.p99) <= LATE,
            ),
        ]


class _Round:
    """An overload, and the peaks before and after it."""

    def __init__(
        self, peaks: tuple[SendTally, SendTally], over: SendTally, interrupted: Interruptions
    ) -> None:
        before, after = (_undisturbed(peak, interrupted) for peak in peaks)
        self.over = _undisturbed(over, interrupted)
        seconds = before.seconds + after.seconds
        lasted = peaks[0].seconds + peaks[1].seconds
        # Whether enough is left of both sides to be compared.
        self.counts = seconds > lasted / 2 and self.over.seconds > over.seconds / 2
        self.peak = (before.in_time + after.in_time) / max(seconds, 1e-9)
        self.peak_took = before.accepted + after.accepted
        self.goodput_ratio = self.over.goodput / max(self.peak, 1e-9)
        self.slower = _p99(self.over.accepted) / _p99(self.peak_took)


class _Overload:
    """Peaks, and an overload between each two of them."""

    def __init__(self, server: Server, interrupted: Interruptions) -> None:
        self._server, self._interrupted = server, interrupted
        self._requests = sends()
        self.peaks: list[SendTally] = []
        self.overs: list[SendTally] = []
        self.rounds: list[_Round] = []
        # Requests a second that were offered.
        self.rates: list[float] = []
        # Microseconds of processor for an answer.
        self.work_at_peak: list[float] = []
        self.work_in_overload: list[float] = []

    async def run(self, seconds: float, progress: Progress) -> None:
        """Run all rounds."""
        await self._reach_peak()
        for number in range(1, _ROUNDS + 1):
            await self._exceed(seconds / _ROUNDS)
            # What the crowd left is done before the next one comes.
            await asyncio.sleep(_WARMUP)
            await self._reach_peak()
            before, after = self.peaks[-2:]
            one = _Round((before, after), self.overs[-1], self._interrupted)
            if not one.counts:
                progress(f"round {number}: others had the processors for most of it; left out")
                continue
            self.rounds.append(one)
            progress(
                f"round {number}: peak {one.peak:,.0f}/s, goodput {one.goodput_ratio:.0%}, "
                f"p99 {one.slower:.1f} x"
            )
        if len(self.rounds) <= _ROUNDS / 2:
            raise CannotMeasure("others have the processors of this machine for most of the time")

    async def _reach_peak(self) -> None:
        spent = self._server.process.processor_seconds()
        port = self._server.port
        peak = await closed_loop(port, self._requests, _CALLERS, _PEAK_SECONDS, _WARMUP)
        spent = (
            (self._server.process.processor_seconds() - spent)
            * _PEAK_SECONDS
            / (_PEAK_SECONDS + _WARMUP)
        )
        self.work_at_peak.append(spent * 1e6 / max(1, sum(peak.answers.values())))
        self.peaks.append(peak)

    async def _exceed(self, lasts: float) -> None:
        rate = TIMES * self.peaks[-1].goodput
        self.rates.append(rate)
        spent = self._server.process.processor_seconds()
        port = self._server.port
        connections = max(_LEAST_CONNECTIONS, int(rate * _ASKS_AGAIN_AFTER))
        over = await open_loop(port, self._requests, rate, lasts, connections, _ONSET)
        spent = (self._server.process.processor_seconds() - spent) * lasts / (lasts + _ONSET)
        self.work_in_overload.append(spent * 1e6 / max(1, sum(over.answers.values())))
        self.overs.append(over)


class _Neighbours:
    """Callers within their limit: alone, beside one that uses its own up, and beside one far beyond
    its own."""

    def __init__(self, server: Server, limit: int) -> None:
        self._server = server
        self._limit = limit
        self._lines = [sends(_token(n)) for n in range(_OTHERS + 1)]
        self.alone: list[SendTally] = []
        self.fair: list[SendTally] = []
        self.beside: list[SendTally] = []
        self.loud: list[SendTally] = []

    async def _quiet(self, seconds: float) -> list[SendTally]:
        rate = self._limit / 2
        lines = self._lines[:_OTHERS]
        return await asyncio.gather(
            *(open_loop(self._server.port, line, rate, seconds, 32, _WARMUP) for line in lines)
        )

    async def look(self, seconds: float) -> None:
        """Run one round."""
        self.alone += await self._quiet(seconds)
        self.fair += (await self._beside(1, seconds))[0]
        beside, of_loud = await self._beside(_TIMES_ITS_LIMIT, seconds)
        self.beside += beside
        self.loud.append(of_loud)

    def ratios(self, interrupted: Interruptions) -> list[float]:
        """Return of each round what those beside the loudest took, in times of what they did
        beside one within its limit."""
        found: list[float] = []
        for place in range(0, len(self.fair), _OTHERS):
            some = slice(place, place + _OTHERS)
            beside = _pooled(self.beside[some], interrupted)
            fair = _pooled(self.fair[some], interrupted)
            # Where nothing is left of a round, it tells nothing.
            if beside and fair:
                found.append(_p99(beside) / _p99(fair))
        if len(found) <= _ROUNDS / 2:
            raise CannotMeasure("others have the processors of this machine for most of the time")
        return found

    async def warm_up(self) -> None:
        """Let the server load what it loads for the first ones."""
        await self._quiet(_WARMUP)

    async def _beside(self, times: float, seconds: float) -> tuple[list[SendTally], SendTally]:
        # What it may ask for at once it has asked for in the warm-up.
        rate = self._limit * times
        loud = open_loop(self._server.port, self._lines[-1], rate, seconds + _WARMUP, 200)
        return await asyncio.gather(self._quiet(seconds), loud)


async def prove(
    seconds: float, seed: int, *, folder: Path, progress: Progress = silent
) -> OverloadResult:
    """Run the proof in a folder."""
    began = time.monotonic()
    interrupted = Interruptions()
    with own_processor() as processor, awake(processor is not None):
        async with interrupted.watched():
            async with serving(Server(folder / "tasks.db"), processor) as server:
                overload = _Overload(server, interrupted)
                await overload.run(seconds, progress)
                tallies = [*overload.peaks, *overload.overs]
                lost = await _lost(server, tallies)
            rounds = overload.rounds
            peak = statistics.median([one.peak for one in rounds])
            limit = max(1, int(peak * _SHARE))
            shared = _shared(folder, limit)
            async with serving(shared, processor) as server:
                neighbours = _Neighbours(server, limit)
                await neighbours.warm_up()
                for number in range(1, _ROUNDS + 1):
                    await neighbours.look(max(2.0, seconds / _ROUNDS / 2))
                    progress(f"neighbours, round {number}")
                more = [*neighbours.alone, *neighbours.fair, *neighbours.beside, *neighbours.loud]
                lost += await _lost(server, more)
    parts = [*tallies, *more]
    alone = _pooled(neighbours.alone, interrupted)
    fair = _pooled(neighbours.fair, interrupted)
    beside = _pooled(neighbours.beside, interrupted)
    quiet = sum(_undisturbed(tally, interrupted).seconds for tally in parts)
    return OverloadResult(
        seed=seed,
        seconds=round(time.monotonic() - began, 1),
        rounds=len(rounds),
        peak=round(peak, 1),
        offered=round(statistics.median(overload.rates), 1),
        goodput=round(statistics.median([one.over.goodput for one in rounds]), 1),
        goodput_ratio=round(statistics.median([one.goodput_ratio for one in rounds]), 3),
        slower=round(statistics.median([one.slower for one in rounds]), 2),
        peak_ms=_spread([took for one in rounds for took in one.peak_took]),
        accepted_ms=_spread([took for one in rounds for took in one.over.accepted]),
        refused_ms=_spread([took for tally in overload.overs for took in tally.refused]),
        accepted=sum(len(tally.accepted) for tally in parts),
        refused=sum(len(tally.refused) for tally in parts),
        others=dict(sum((Counter(tally.others) for tally in parts), Counter[int]())),
        lost=lost,
        work_at_peak=round(statistics.median(overload.work_at_peak), 1),
        work_in_overload=round(statistics.median(overload.work_in_overload), 1),
        left_out=round(1 - quiet / sum(tally.seconds for tally in parts), 3),
        alone_ms=_spread(alone),
        fair_ms=_spread(fair),
        beside_ms=_spread(beside),
        disturbed=round(statistics.median(neighbours.ratios(interrupted)), 2),
        limited=sum(len(tally.refused) for tally in neighbours.loud),
        within=sum(sum(tally.answers.values()) for tally in neighbours.beside),
        turned_away=sum(len(tally.refused) for tally in neighbours.beside),
        late_ms=_lateness(overload.overs),
        late_beside_ms=_lateness([*neighbours.fair, *neighbours.beside, *neighbours.loud]),
    )


def _shared(folder: Path, limit: int) -> Server:
    """Return a server that knows its callers, each of whom has a limit."""
    tokens = folder / "tokens.toml"
    tables = (f'[caller-{n}]\ntoken = "{_token(n)}"\n' for n in range(_OTHERS + 1))
    tokens.write_text("".join(tables))
    tokens.chmod(0o600)
    settings = {"DRAGOMAN_AUTH_TOKENS": str(tokens), "DRAGOMAN_RATE_LIMIT": f"{limit}/1s"}
    return Server(folder / "shared.db", name="shared", environment=settings)


def run(seconds: int = 30, seed: int = 1, *, progress: Progress = silent) -> OverloadResult:
    """Offer five times what a server can do, then have one caller ask ten times its share."""
    import uvloop

    with workplace() as folder:
        return uvloop.run(prove(seconds, seed, folder=folder, progress=progress))


# Processors


@contextlib.contextmanager
def own_processor() -> Generator[int | None]:
    """Keep this process to one processor; the value is another one, if there is."""
    if not hasattr(os, "sched_setaffinity") or len(ours := os.sched_getaffinity(0)) < 2:
        yield None
        return
    first, *_, last = sorted(ours)
    os.sched_setaffinity(0, {last})
    try:
        yield first
    finally:
        os.sched_setaffinity(0, ours)


@contextlib.contextmanager
def awake(has_processor: bool) -> Generator[None]:
    """Keep our loop from sleeping, where it takes nothing from the server: then it need not be
    woken for each answer."""
    task = asyncio.create_task(_spin()) if has_processor else None
    try:
        yield
    finally:
        if task is not None:
            task.cancel()


async def _spin() -> None:
    # There is nothing to wait for: not to sleep is all that is wanted. Nor to look all the time,
    # which takes locks that the server needs for each answer.
    while True:
        until = time.perf_counter() + _BETWEEN_LOOKS
        while time.perf_counter() < until:
            pass
        await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def serving(server: Server, processor: int | None) -> AsyncGenerator[Server]:
    try:
        await server.start()
        if processor is not None:
            for thread in os.listdir(f"/proc/{server.pid}/task"):
                os.sched_setaffinity(int(thread), {processor})
        yield server
    finally:
        server.kill()


# Results


def _is_at_rest(store: Path) -> bool:
    with reading(store) as file:
        return not file.unfinished()


async def _lost(server: Server, tallies: list[SendTally]) -> int:
    """Return how many tasks were accepted and did not come to their end in the store."""
    await until(lambda: _is_at_rest(server.store), _REST_WITHIN)
    with reading(server.store) as file:
        kept = {row[0] for row in file.rows("SELECT id FROM tasks WHERE state = 3")}
    return sum(task.decode() not in kept for tally in tallies for task in tally.tasks)


def _token(number: int) -> str:
    return f"proof-token-of-caller-{number}"


def _undisturbed(tally: SendTally, interrupted: Interruptions) -> SendTally:
    return tally.within(interrupted.quiet(tally.began, tally.began + tally.seconds))


def _pooled(tallies: list[SendTally], interrupted: Interruptions) -> list[float]:
    return [took for tally in tallies for took in _undisturbed(tally, interrupted).accepted]


def _spread(times: list[float]) -> Spread:
    return spread([took * 1000 for took in times])


def _lateness(tallies: list[SendTally]) -> Spread:
    return _spread([late for tally in tallies for late in tally.lateness])


def _p99(times: list[float]) -> float:
    return max(spread([took * 1e6 for took in times]).p99, 1.0)
