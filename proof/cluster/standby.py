"""A primary with a synchronous standby: what was acknowledged is on both, whichever is left."""

import asyncio
import contextlib
import os
import signal
import time
from pathlib import Path

from dragoman.testing.processes import CannotStart
from dragoman.testing.servers import PostgresServer
from proof.cluster.cable import to_port
from proof.cluster.neighbours import moment
from proof.cluster.site import Site
from proof.cluster.tally import Tally
from proof.results import Progress

_AT_WORK = (0.5, 2.0)
_FROZEN_FOR = (1.0, 3.0)
_IN_STEP = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'"
_WITHIN = 60.0
_BETWEEN_LOOKS = 0.1


class Pair:
    """The primary and the standby of a site, which change places."""

    def __init__(self, folder: Path, primary: PostgresServer) -> None:
        self._folder = folder
        self._count = 0
        self.primary = primary
        self.standby: PostgresServer | None = None

    async def have_standby(self) -> PostgresServer:
        """Make a standby of the primary, and wait until commits wait for it."""
        if self.standby is None:
            self._count += 1
            standby = PostgresServer(self._folder / f"standby-{self._count}")
            self.standby = await asyncio.to_thread(standby.start_as_standby, self.primary)
        await asyncio.to_thread(self.primary.sql, "ALTER SYSTEM SET synchronous_standby_names='*'")
        await asyncio.to_thread(self.primary.sql, "SELECT pg_reload_conf()")
        await self.in_step()
        return self.standby

    async def in_step(self) -> None:
        """Wait until the standby confirms commits."""
        until = time.monotonic() + _WITHIN
        while not int(await asyncio.to_thread(self.primary.sql, _IN_STEP)):
            if time.monotonic() > until:
                raise CannotStart("the standby did not come into step")
            await asyncio.sleep(_BETWEEN_LOOKS)

    async def fail_over(self, site: Site) -> None:
        """Kill the primary; the standby takes its place, and the cables lead there."""
        standby = self.standby
        assert standby is not None
        await asyncio.to_thread(self.primary.kill)
        await asyncio.to_thread(standby.promote)
        self.primary, self.standby = standby, None
        site.server = site.database.server = standby
        for cable in site.cables:
            cable.connect = to_port(standby.port)
            cable.cut()

    def end(self) -> None:
        """End the standby; the site ends the primary."""
        if self.standby is not None:
            signal_all(self.standby.pid, signal.SIGCONT)
            self.standby.kill()


async def fail_over(site: Site, pair: Pair, tally: Tally, count: int, progress: Progress) -> None:
    """Kill the primary under load and promote its standby."""
    for n in range(1, count + 1):
        await pair.have_standby()
        await asyncio.sleep(site.chance.uniform(*_AT_WORK))
        began = await asyncio.to_thread(moment)
        await pair.fail_over(site)
        # Commits wait for a standby: the new primary needs one before it acknowledges.
        await pair.have_standby()
        for server in site.servers:
            await site.begin_at_last(server, "1 1")
        tally.took_over("behind a failover", (time.monotonic() - began.at) * 1000, began)
        tally.done["failovers"] += 1
        progress(f"failover {n}/{count}, {len(site.load.history.acked):,} acknowledged")


async def freeze(site: Site, pair: Pair, tally: Tally, count: int, progress: Progress) -> None:
    """Freeze the only standby: writes wait and are not acknowledged. Every second time the primary
    dies while they wait."""
    for n in range(1, count + 1):
        standby = await pair.have_standby()
        await asyncio.sleep(site.chance.uniform(*_AT_WORK))
        signal_all(standby.pid, signal.SIGSTOP)
        # What is acknowledged from here on was on its way.
        await asyncio.sleep(site.chance.uniform(*_FROZEN_FOR))
        if n % 2:
            signal_all(standby.pid, signal.SIGCONT)
        else:
            await asyncio.to_thread(pair.primary.kill)
            signal_all(standby.pid, signal.SIGCONT)
            await pair.fail_over(site)
            await pair.have_standby()
        for server in site.servers:
            await site.begin_at_last(server, "1 1")
        tally.done["standbys frozen"] += 1
        progress(f"standby frozen {n}/{count}, {len(site.load.history.acked):,} acknowledged")


def signal_all(pid: int, number: int) -> None:
    """Send a signal to a server and its processes: it is those that replicate."""
    for one in (pid, *_children(pid)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(one, number)


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            if int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(name))
    return found
