"""PostgreSQL that is killed, restarted, or whose replies are lost on the way."""

import asyncio

from proof.cluster.site import Site
from proof.cluster.tally import Tally
from proof.results import Progress

# Seconds PostgreSQL lives before it is hurt, and is away.
_LIVES = (0.3, 2.0)
_AWAY = (0.0, 1.0)
# Seconds between two replies that a cable loses; work goes on in between.
_BETWEEN = (0.2, 0.6)
_LOSING_WITHIN = 60.0
_GONE = "SELECT count(*) FROM workers WHERE gone_at IS NOT NULL"


async def lose_replies(site: Site, tally: Tally, count: int, progress: Progress) -> None:
    """Lose the reply after the commit: the replica cannot know, and has to find out."""

    def lost() -> int:
        return sum(cable.lost for cable in site.cables)

    deadline = asyncio.get_running_loop().time() + _LOSING_WITHIN + count
    while lost() < count and asyncio.get_running_loop().time() < deadline:
        for cable in site.cables:
            cable.to_lose = 1
        await asyncio.sleep(site.chance.uniform(*_BETWEEN))
        progress(f"reply {lost()}/{count}, {len(site.load.history.acked):,} acknowledged")
    for cable in site.cables:
        cable.to_lose = 0
    tally.done["replies"] += lost()
    if lost() < count:
        tally.broke_off("replies", TimeoutError(f"{lost()} of {count} were lost in time"))


async def kill(site: Site, tally: Tally, count: int, progress: Progress) -> None:
    """SIGKILL of the postmaster, under load."""
    for n in range(1, count + 1):
        await asyncio.sleep(site.chance.uniform(*_LIVES))
        await asyncio.to_thread(site.server.kill)
        await asyncio.sleep(site.chance.uniform(*_AWAY))
        await site.restart_server()
        tally.done["server-kills"] += 1
        progress(f"server kill {n}/{count}, {len(site.load.history.acked):,} acknowledged")
    await _serving_again(site, tally)


async def restart(site: Site, tally: Tally, count: int, progress: Progress) -> None:
    """Stop it in good order and start it again, with living replicas: none loses a task by it."""
    before = await site.database.number(_GONE)
    for n in range(1, count + 1):
        await asyncio.sleep(site.chance.uniform(*_LIVES))
        await asyncio.to_thread(site.server.stop)
        await asyncio.sleep(site.chance.uniform(*_AWAY))
        await site.restart_server()
        tally.done["restarts"] += 1
        progress(f"restart {n}/{count}, {len(site.load.history.acked):,} acknowledged")
    await _serving_again(site, tally)
    if buried := await site.database.number(_GONE) - before:
        tally.buried += buried
        tally.find(f"buried: {buried} living replicas after {count} restarts")


async def _serving_again(site: Site, tally: Tally) -> None:
    """Wait until every replica takes work."""
    for server in site.servers:
        await site.begin_at_last(server, "1 1")
