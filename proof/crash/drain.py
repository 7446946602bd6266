"""SIGTERM under load: streams end with a position, the process ends in time, nothing is lost.

With two processes on one store it is a rolling restart: callers that try again notice nothing.
"""

import asyncio
import random
import time
from collections.abc import Mapping
from pathlib import Path

from proof.crash.callers import CALLERS, PAUSE, Caller, Load, at_rest, finish
from proof.crash.checker import check
from proof.results import Progress, Result, Row, Spread, bound, silent, spread, workplace
from proof.servers import make_replicas

EXIT_WITHIN = 30.0
_LIVES = (0.5, 2.0)


class DrainResult(Result, kw_only=True):
    """How servers ended that were asked to, and what became of their tasks."""

    proof: str = "drain"
    processes: int
    restarts: int
    acked: int
    lost: int
    hanging: int
    changed: int
    doubled: int
    # Streams that were ended with a position to go on from, and those that were just cut.
    ended_streams: int
    broken_streams: int
    # Exits that were not 0, or not in time.
    bad_exits: int
    exit_ms: Spread
    # Requests that were told to come back, and those that were cut off; all were sent again.
    busy: int
    unknown: int
    refused: dict[str, int]

    def rows(self) -> list[Row]:
        """Return the promises."""
        of = f"of {self.acked:,} acknowledged, {self.restarts} restarts"
        lost = self.lost + self.hanging + self.changed + self.doubled
        streams = self.ended_streams + self.broken_streams
        took = f"p50 {self.exit_ms.p50:.0f} ms, max {self.exit_ms.max:.0f} ms"
        return [
            Row(
                "Tasks lost, hanging, changed or doubled by a restart",
                f"{lost} {of}",
                not lost,
                self.bound,
            ),
            Row(
                "Open streams that were cut and not ended",
                f"{self.broken_streams} of {streams}",
                not self.broken_streams,
                bound(streams),
            ),
            Row(
                "Servers that did not end with 0 within 30 s",
                f"{self.bad_exits} of {self.restarts} ({took})",
                not self.bad_exits,
                bound(self.restarts),
            ),
        ]


async def prove(
    restarts: int,
    seed: int,
    *,
    folder: Path,
    processes: int = 2,
    environment: Mapping[str, str] | None = None,
    progress: Progress = silent,
    pause: float = PAUSE,
) -> DrainResult:
    """Run the proof in a folder, on servers with some settings of their own."""
    began = time.monotonic()
    chance = random.Random(seed)
    bad = 0
    took: list[float] = []
    async with (
        make_replicas(folder / "tasks.db", processes, environment) as replicas,
        asyncio.TaskGroup() as group,
    ):
        load = Load(replicas, seed, pause)
        callers = [group.create_task(Caller(load, n).run()) for n in range(CALLERS)]
        try:
            for restart in range(1, restarts + 1):
                await asyncio.sleep(chance.uniform(*_LIVES))
                server = replicas.servers[restart % processes]
                asked_at = time.monotonic()
                code = await server.stop(within=EXIT_WITHIN)
                took.append((time.monotonic() - asked_at) * 1000)
                bad += code != 0
                await replicas.start(server)
                progress(f"restart {restart}/{restarts}, {load.history.messages:,} acknowledged")
            await finish(load)
        finally:
            for caller in callers:
                caller.cancel()
        await at_rest(replicas.store)
        verdict = await asyncio.to_thread(check, load.history, replicas.store)
    acked = len(load.history.acked)
    return DrainResult(
        seed=seed,
        seconds=round(time.monotonic() - began, 1),
        bound=bound(acked),
        processes=processes,
        restarts=restarts,
        acked=acked,
        lost=verdict.lost + verdict.gaps + verdict.torn,
        hanging=verdict.hanging,
        changed=verdict.changed,
        doubled=verdict.doubled,
        ended_streams=load.ended_streams,
        broken_streams=load.broken_streams,
        bad_exits=bad,
        exit_ms=spread(took),
        busy=load.busy,
        unknown=load.unknown,
        refused=dict(load.refused.most_common(10)),
        findings=verdict.findings,
    )


def run(
    restarts: int = 5,
    seed: int = 1,
    *,
    processes: int = 2,
    progress: Progress = silent,
) -> DrainResult:
    """Stop servers under load, start them again, and check that nothing was lost."""
    with workplace() as folder:
        return asyncio.run(
            prove(restarts, seed, folder=folder, processes=processes, progress=progress)
        )
