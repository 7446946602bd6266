"""Replicas that die, freeze and are cut off: others have their tasks in time."""

import asyncio
import time
from typing import Any

from proof.cluster.neighbours import moment
from proof.cluster.site import LEASE, Replica, Site
from proof.cluster.tally import Tally
from proof.results import Progress

# Seconds a replica works before it is hurt.
_LIVES = (0.05, 0.6)
# Long enough to be taken over, by whom and however late: chunks, and milliseconds between them.
_WORK = "120 50"
# Leases that a replica stays frozen for, and seconds that a cable stays cut.
_FROZEN_FOR = 1.5


async def kill(site: Site, tally: Tally, count: int, progress: Progress) -> None:
    """`kill -9` of replicas, which start again at once: most are a few seconds old."""
    for n in range(1, count + 1):
        await asyncio.sleep(site.chance.uniform(*_LIVES))
        victim = site.chance.choice(site.servers)
        task_id = await _work_at(site, victim)
        killed_at = time.monotonic()
        victim.kill()
        watch = _watch(site, tally, "killed", task_id, _other(site, victim), killed_at)
        await asyncio.gather(watch, site.replicas.start(victim))
        tally.done["kills"] += 1
        progress(f"kill {n}/{count}, {len(site.load.history.acked):,} acknowledged")


async def freeze(site: Site, tally: Tally, count: int, progress: Progress) -> None:
    """SIGSTOP past the lease: others take over, and what the thawed one writes is refused."""
    for n in range(1, count + 1):
        await asyncio.sleep(site.chance.uniform(*_LIVES))
        victim = site.chance.choice(site.servers)
        task_id = await _work_at(site, victim)
        port, victim.port = victim.port, 0
        frozen_at = time.monotonic()
        victim.freeze()
        try:
            await _watch(site, tally, "frozen", task_id, _other(site, victim), frozen_at)
            rest = frozen_at + _FROZEN_FOR * LEASE - time.monotonic()
            await asyncio.sleep(max(0.0, rest))
        finally:
            victim.thaw()
            victim.port = port
        tally.done["freezes"] += 1
        progress(f"freeze {n}/{count}, {len(site.load.history.acked):,} acknowledged")


async def cut(site: Site, tally: Tally, count: int, progress: Progress) -> None:
    """Cut a replica from PostgreSQL without a word to either; callers still reach it."""
    for n in range(1, count + 1):
        await asyncio.sleep(site.chance.uniform(*_LIVES))
        victim = site.chance.choice(site.servers)
        task_id = await _work_at(site, victim)
        cut_at = time.monotonic()
        _cut(victim)
        try:
            await _watch(site, tally, "cut off", task_id, _other(site, victim), cut_at)
        finally:
            _restore(victim)
        tally.done["cables"] += 1
        progress(f"cable {n}/{count}, {len(site.load.history.acked):,} acknowledged")


def _cut(victim: Replica) -> None:
    if victim.namespace is not None:
        victim.namespace.cut()
    else:
        victim.cable.silence()


def _restore(victim: Replica) -> None:
    if victim.namespace is not None:
        victim.namespace.restore()
    else:
        victim.cable.restore()


def _other(site: Site, than: Any) -> Replica:
    return site.chance.choice([server for server in site.servers if server is not than])


async def _work_at(site: Site, victim: Replica) -> str:
    """Begin a task at a replica that is about to be hurt, and wait until it has said something."""
    return await site.begin_at_last(victim, _WORK)


async def _watch(
    site: Site, tally: Tally, kind: str, task_id: str, asked: Replica, since: float
) -> None:
    began = await asyncio.to_thread(moment)
    taken = await site.taken_over(task_id, asked, since)
    if taken is not None:
        await asyncio.to_thread(tally.took_over, kind, taken, began)
