"""Tasks of others: a caller that reaches for one is answered as if it had never existed.

Every cell of `matrix.toml` is asked of a real server and compared byte by byte; then the time of
an answer about another's task is held against that about a task that does not exist. The cells of
`routes.toml` are asked of a server and of a gateway.
"""

import asyncio
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from dragoman.config import Settings, StoreSettings
from dragoman.dialects.operations import OperationRow
from dragoman.model import operations as ops
from dragoman.security.vault import vault_of
from dragoman.stores.sqlite import SQLiteStore
from proof.access.bindings import Binding
from proof.access.callers import NEIGHBOUR
from proof.access.matrix import Cell, Scene, Thing, gather
from proof.access.route_proof import AGENT, ask_routes, knowing
from proof.results import Progress, Result, Row, silent, workplace
from proof.servers import Server

# How the time of one may relate to that of the other.
FASTEST, SLOWEST = 0.9, 1.1
# A live task is in the memory of its server, a finished one only in the file.
_FOREIGN = ("working", "finished")
_SHOWN = 10
_AGAIN = 5


class Ratio(msgspec.Struct):
    """How the time to answer about another's task relates to that about no task, which
    is asked for right before or after: the median."""

    operation: str
    binding: str
    state: str
    ratio: float
    # Milliseconds of the latter, the median too.
    never: float


class TenancyResult(Result, kw_only=True):
    """What callers could find out about the tasks of others."""

    proof: str = "tenancy"
    cells: int
    differences: int
    samples: int
    ratios: list[Ratio]
    # Of the table of routes.
    route_cells: int = 0
    route_differences: int = 0

    def rows(self) -> list[Row]:
        """Return the promises."""
        found = sorted(one.ratio for one in self.ratios)
        return [
            Row(
                "Answers that are not what the table says, to the byte",
                f"{self.differences} of {self.cells:,}",
                not self.differences,
            ),
            Row(
                "Answers at the routes of a server and a gateway that are not what the table says",
                f"{self.route_differences} of {self.route_cells:,}",
                not self.route_differences,
            ),
            Row(
                "Time to answer about another's task, divided by that about no task"
                f" ({self.samples} each)",
                f"{found[0]:.2f} to {found[-1]:.2f} over {len(found)} medians",
                found[0] >= FASTEST and found[-1] <= SLOWEST,
            ),
        ]


class _Clock:
    """Times one operation over one binding, by a caller who has nothing."""

    def __init__(self, scene: Scene, row: OperationRow, binding: Binding) -> None:
        self._scene = scene
        self._row, self._binding = row, binding

    async def ratio(self, state: str, samples: int) -> Ratio:
        """Return how the times relate; asked in turn, so that both meet the same weather."""
        thing = self._scene.thing(self._row, self._binding, state)
        cell = Cell(self._row, self._binding, NEIGHBOUR, state)
        foreign: list[float] = []
        never: list[float] = []
        for n in range(samples):
            turns = [(foreign, thing), (never, Thing.imagined())]
            for times, about in turns if n % 2 else reversed(turns):
                times.append((await self._scene.ask(cell, about)).took)
        # By pairs: the two of one moment had the same company on the machine.
        pairs = [one / other for one, other in zip(foreign, never, strict=True)]
        ratio, usual = statistics.median(pairs), statistics.median(never) * 1000
        return Ratio(self._row.v1, self._binding.name, state, round(ratio, 3), round(usual, 3))


async def _times(scene: Scene, samples: int, progress: Progress) -> list[Ratio]:
    found: list[Ratio] = []
    for row, binding in scene.rows():
        if row.operation is ops.GetExtendedCard:
            continue
        progress(f"timing {row.v1} over {binding.name}")
        for state in _FOREIGN:
            clock = _Clock(scene, row, binding)
            one = await clock.ratio(state, samples)
            if not FASTEST <= one.ratio <= SLOWEST:
                # What a busy machine made up does not come again; what is so does.
                one = await clock.ratio(state, _AGAIN * samples)
            found.append(one)
    return found


async def _forget(store: Path) -> None:
    """Delete all finished tasks, as a server does when they are old enough."""
    opened = SQLiteStore(
        store, sealing=vault_of(Settings(stores=StoreSettings(location=str(store))))
    )
    await opened.open()
    try:
        await opened.prune(ended_before=int(time.time() * 1000) + 1, keep=0)
    finally:
        await opened.close()


async def prove(
    samples: int,
    seed: int,
    *,
    folder: Path,
    operations: Sequence[str] = (),
    progress: Progress = silent,
) -> TenancyResult:
    """Run the proof in a folder: of all operations and routes, or of some operations."""
    began = time.monotonic()
    server = Server(folder / "tasks.db", agent=AGENT, environment=knowing(folder))
    scene = Scene(operations=operations)
    try:
        await server.start()
        scene.wire.port = server.port
        progress("making tasks")
        await scene.make("deleted")
        await server.stop()
        scene.wire.close()
        await _forget(server.store)
        await server.start()
        scene.wire.port = server.port
        await scene.make("working", "waiting", "finished")
        # Before the cells: there the owner changes what these are about.
        ratios = await _times(scene, samples, progress)
        progress("asking everything")
        cells, wrong = await gather(scene)
    finally:
        scene.wire.close()
        server.kill()
    at_routes = (0, list[str]()) if operations else await ask_routes(folder, progress)
    odd = [one for one in ratios if not FASTEST <= one.ratio <= SLOWEST]
    late = [f"{one.operation} over {one.binding}, {one.state}: {one.ratio}" for one in odd]
    return TenancyResult(
        seed=seed,
        seconds=round(time.monotonic() - began, 1),
        cells=cells,
        differences=len(wrong),
        samples=samples,
        ratios=ratios,
        route_cells=at_routes[0],
        route_differences=len(at_routes[1]),
        findings=[*wrong[:_SHOWN], *at_routes[1][:_SHOWN], *late[:_SHOWN]],
    )


def run(samples: int = 200, seed: int = 1, *, progress: Progress = silent) -> TenancyResult:
    """Ask everything about the tasks of another, and time it."""
    with workplace() as folder:
        return asyncio.run(prove(samples, seed, folder=folder, progress=progress))
