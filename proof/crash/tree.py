"""Agents that call agents that call agents, each killed at random: every task comes to its one end,
nothing is done twice, and a cancel at the root reaches every leaf.

Each level is a process on a store of its own. A task has two below it on the next level, so that a
root has eight leaves, and its result is what all of them made.
"""

import asyncio
import random
import time
from pathlib import Path

from dragoman.client.client import Client
from dragoman.errors import A2AError
from dragoman.model.task import TaskState
from proof.crash.checker import reading
from proof.gateway.site import FixedServer
from proof.results import Progress, Result, Row, Spread, bound, silent, spread, until, workplace

AGENT = Path(__file__).parent / "tree_agent.py"
LEVELS = 4
_LEAVES = 2 ** (LEVELS - 1)
_ROOTS = 12
_CANCELED = 5
# Seconds a server lives before it is killed.
_LIVES = (0.1, 0.9)
_REST_WITHIN = 120.0
CANCEL_WITHIN = 2.0
# As the file has them: completed, canceled.
_COMPLETED, _CANCELED_STATE = 3, 5


class TreeResult(Result, kw_only=True):
    """What became of trees of tasks whose servers were killed."""

    proof: str = "tree"
    kills: int
    roots: int
    tasks: int
    lost: int
    # Children that were begun twice for one step, and leaves whose work the result does not show.
    doubled: int
    wrong: int
    # Milliseconds from a cancel at the root to the end of its last leaf.
    cancel_ms: Spread
    left: int

    def rows(self) -> list[Row]:
        """Return the promises."""
        of = f"of {self.tasks:,} tasks in {self.roots} trees, {self.kills} kills"
        return [
            Row(
                "Trees that did not come to their end",
                f"{self.lost} {of}",
                not self.lost,
                bound(self.roots),
            ),
            Row(
                "Children begun twice", f"{self.doubled} {of}", not self.doubled, bound(self.tasks)
            ),
            Row("Results that are not what the leaves made", f"{self.wrong}", not self.wrong),
            Row(
                f"Leaves that ran on {CANCEL_WITHIN:g} s after their root was canceled",
                f"{self.left} of {self.cancel_ms.count * _LEAVES}; the last one ended after "
                f"{self.cancel_ms.p50:.0f} ms (max {self.cancel_ms.max:.0f})",
                not self.left,
            ),
        ]


class Branch(FixedServer):
    """The agents of one level."""

    agent = AGENT


class Tree:
    """Four servers, each calling the next."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self.levels: list[Branch] = []
        below = ""
        for number in reversed(range(LEVELS)):
            environment = {
                "TREE_BELOW": below,
                "DRAGOMAN_LEASE": "1",
                "DRAGOMAN_MAX_ATTEMPTS": "999",
            }
            store = folder / f"level-{number}.db"
            server = Branch(store, chance, environment=environment)
            below = server.url
            self.levels.insert(0, server)

    async def start(self) -> None:
        for server in self.levels:
            await server.start()

    def end(self) -> None:
        for server in self.levels:
            server.kill()

    @property
    def url(self) -> str:
        return self.levels[0].url

    def count(self, level: int, state: int | None = None) -> int:
        """Return how many tasks a level has, of those in a state."""
        with reading(self.levels[level].store) as file:
            where = "" if state is None else f" WHERE state = {state}"
            ((found,),) = file.rows(f"SELECT count(*) FROM tasks{where}")
        return int(found)


async def _killed(tree: Tree, kills: int, chance: random.Random, progress: Progress) -> int:
    for number in range(kills):
        await asyncio.sleep(chance.uniform(*_LIVES))
        server = chance.choice(tree.levels)
        server.kill()
        await server.start()
        if number % 20 == 19:
            progress(f"{number + 1} kills")
    return kills


async def _rooted(tree: Tree, number: int) -> list[str]:
    """Have one tree do its work; return what its leaves made."""
    deadline = time.monotonic() + _REST_WITHIN
    message_id, task_id = f"root-{number}", ""
    while True:
        try:
            async with Client(tree.url) as client:
                if not task_id:
                    sent = await client.send(f"t{number}", message_id=message_id, wait=False)
                    task_id = sent.task_id
                async with asyncio.timeout(_REST_WITHIN):
                    answer = await client.wait(task_id)
                is_done = answer.state is TaskState.COMPLETED
                return answer.text.split() if is_done else []
        except (A2AError, TimeoutError):
            if time.monotonic() > deadline:
                return []
            await asyncio.sleep(0.1)


async def _canceled(tree: Tree, number: int) -> float:
    """Cancel a tree that waits; return the seconds until its last leaf has ended."""
    held = tree.count(LEVELS - 1, _CANCELED_STATE)
    async with Client(tree.url) as client:
        sent = await client.send(f"c{number}", metadata={"skillId": "hold"}, wait=False)
        working = tree.count(LEVELS - 1)
        wanted = working - working % _LEAVES + _LEAVES
        await until(lambda: tree.count(LEVELS - 1) >= wanted, _REST_WITHIN)
        # The leaves wait now; so do all above them.
        await asyncio.sleep(0.2)
        began = time.monotonic()
        await client.cancel(sent.task_id)
        while tree.count(LEVELS - 1, _CANCELED_STATE) < held + _LEAVES:
            if time.monotonic() - began > 10 * CANCEL_WITHIN:
                break
            await asyncio.sleep(0.01)
        return time.monotonic() - began


async def prove(
    kills: int, seed: int, *, folder: Path, at_once: int = _ROOTS, progress: Progress = silent
) -> TreeResult:
    """Run the proof in a folder, so many trees at once."""
    began = time.monotonic()
    chance = random.Random(seed)
    tree = Tree(folder, chance)
    try:
        await tree.start()
        killing = asyncio.create_task(_killed(tree, kills, chance, progress))
        made: list[list[str]] = []
        roots = 0
        while not killing.done() or roots < at_once:
            made += await asyncio.gather(*(_rooted(tree, roots + n) for n in range(at_once)))
            roots += at_once
        await killing
        counts = [tree.count(level) for level in range(LEVELS)]
        wanted = [roots * 2**level for level in range(LEVELS)]
        lost = sum(not words for words in made)
        everything = [word for words in made for word in words]
        wrong = sum(len(words) != _LEAVES for words in made if words)
        wrong += len(everything) - len(set(everything))
        took = [await _canceled(tree, number) for number in range(_CANCELED)]
    finally:
        tree.end()
    return TreeResult(
        seed=seed,
        seconds=round(time.monotonic() - began, 1),
        kills=kills,
        roots=roots,
        tasks=sum(counts),
        lost=lost,
        doubled=sum(max(0, count - most) for count, most in zip(counts, wanted, strict=True)),
        wrong=wrong,
        cancel_ms=spread([seconds * 1000 for seconds in took]),
        left=sum(seconds > CANCEL_WITHIN for seconds in took),
    )


def run(kills: int = 200, seed: int = 1, *, progress: Progress = silent) -> TreeResult:
    """Kill the servers of trees of tasks, then cancel some of these."""
    with workplace() as folder:
        return asyncio.run(prove(kills, seed, folder=folder, progress=progress))
