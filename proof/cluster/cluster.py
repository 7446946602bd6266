"""Replicas on PostgreSQL under load, and every part of it hurt: what was acknowledged is there,
once, comes to an end, and is paid for once.

Each section hurts one thing as often as its count says. Sections that need the same site share one;
at the end of a site everything its callers were told is held against what is stored. A section
that cannot be run to its end is told as such, and the others are run all the same.
"""

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import msgspec

from dragoman.errors import ConfigError
from dragoman.testing.servers import NatsServer, PostgresServer
from proof.cluster import clocks, money, operator, promises, replicas, servers, standby, wakeups
from proof.cluster.namespaces import namespaces
from proof.cluster.site import LEASE, REPLICAS, Site, open_site
from proof.cluster.tally import Moved, Tally
from proof.results import Progress, Result, Row, Spread, bound, silent, spread, workplace

logger = logging.getLogger("proof")

# Seconds that a section may take, and for each time that it does what it does: only a hang does.
_LONGEST, _EACH = 600.0, 60.0
# Seconds of a lease that no section waits for.
STEADY_LEASE = 30.0
# Milliseconds until another replica goes on, by what was done to the first, and that in words.
LIMITS = {
    "killed": (1000.0, "Tasks of a killed replica go on"),
    "frozen": ((LEASE + 1) * 1000, "Tasks of a frozen replica go on"),
    "cut off": (5000.0, "Tasks of a replica that was cut off go on"),
    # With the making of the next standby, without which nothing is acknowledged.
    "behind a failover": (60_000.0, "Every replica takes work again after a failover"),
}
# How much longer all that may take while others use the machine.
_PATIENCE = 10
# Milliseconds until a reader that is not rung looks by itself, on a busy machine.
MOST_LAG = 5000.0

Hurt = Callable[[Site, Tally, int, Progress], Awaitable[None]]
# Runs sections on a site that it makes.
Stage = Callable[["Run", "list[tuple[Section, int]]"], Awaitable[None]]


class Run(NamedTuple):
    """What every section is given."""

    folder: Path
    seed: int
    tally: Tally
    progress: Progress
    # When no further section is begun.
    until: float

    @contextlib.asynccontextmanager
    async def section(self, name: str, count: int) -> AsyncGenerator[None]:
        """Run a section: for as long as it may take, and what it raises is noted."""
        async with self.guarded([name], count):
            with self.tally.timed(name):
                yield
        self.progress(f"{name}: {self.tally.seconds[name]:.0f} s; {self.tally.summary()}")

    @contextlib.asynccontextmanager
    async def guarded(self, names: Sequence[str], count: int) -> AsyncGenerator[None]:
        """Note what is raised in the midst of sections: the figures of others are not lost by it.
        Those that had their time are not blamed."""
        try:
            async with asyncio.timeout(_LONGEST + _EACH * count):
                yield
        except Exception as error:
            logger.exception("broke off: %s", ", ".join(names))
            for name in names:
                if len(names) == 1 or name not in self.tally.seconds:
                    self.tally.broke_off(name, error)


class Section(NamedTuple):
    """One thing that is hurt, and how often."""

    name: str
    stage: Stage
    hurt: Hurt | None
    times: int
    about: str


class ClusterResult(Result, kw_only=True):
    """What became of acknowledged messages."""

    proof: str = "cluster"
    # Tasks of which some caller read a success, and those stored.
    acked: int
    tasks: int
    lost: int
    # Messages recorded twice, and attempts that began twice.
    doubled: int
    hanging: int
    # Holes in logs, and streams that are no contiguous range of their log.
    gaps: int
    changed: int
    repeated: int
    double_charges: int
    unbalanced: int
    charges: int
    # Replicas that lived and were marked gone after a restart of PostgreSQL.
    buried: int
    promises: int
    broken_promises: int
    # How often each thing was done, and for how many seconds.
    done: dict[str, int]
    spent: dict[str, float]
    takeovers: dict[str, Spread]
    # The same while other programs used the machine.
    crowded: dict[str, Spread]
    # The longest silence of a stream while wake-ups were lost.
    lags: dict[str, Spread]
    # Requests whose outcome was not known; they were sent again.
    unknown: int
    # A file that was moved to a database, and what its callers noticed.
    moved: Moved | None = None
    # Sections that were not run to their end, and why.
    unfinished: dict[str, str] = msgspec.field(default_factory=dict[str, str])

    def rows(self) -> list[Row]:
        """Return the promises."""
        return [
            *self._tasks(),
            *self._buried(),
            *self._takeovers(),
            *self._lags(),
            *self._money(),
            *self._promises(),
            *([] if self.moved is None else [self.moved.row()]),
            *self._unfinished(),
        ]

    def _tasks(self) -> list[Row]:
        if not self.tasks and not self.acked:
            return []
        of = f"of {self.acked:,} acknowledged"
        counts = ", ".join(f"{count} {name}" for name, count in self.done.items())
        return [
            *(
                Row(promise, f"{count} {of}", not count, self.bound)
                for promise, count in (
                    (f"Tasks lost on PostgreSQL ({counts})", self.lost),
                    ("Messages recorded twice, attempts begun twice", self.doubled),
                    ("Tasks left hanging", self.hanging),
                    ("Ended tasks that changed", self.changed),
                    ("Recorded steps taken again", self.repeated),
                    ("Gaps in logs and in streams of any replica", self.gaps),
                )
            ),
        ]

    def _buried(self) -> list[Row]:
        if not (restarts := self.done.get("restarts", 0)):
            return []
        figure = f"{self.buried} of {REPLICAS} in {restarts} restarts"
        return [Row("Living replicas taken for dead after a restart", figure, not self.buried)]

    def _takeovers(self) -> list[Row]:
        rows = [
            Row(_promise(kind), _times(times), times.max <= LIMITS[kind][0])
            for kind, times in self.takeovers.items()
        ]
        return rows + [
            Row(
                f"{_promise(kind)}, while others used the machine",
                _times(times),
                times.max <= _PATIENCE * LIMITS[kind][0],
            )
            for kind, times in self.crowded.items()
        ]

    def _lags(self) -> list[Row]:
        times = [lag.max for lag in self.lags.values()]
        if not times:
            return []
        shown = ", ".join(f"{lag.max:.0f} ms ({way})" for way, lag in self.lags.items())
        return [
            Row(
                "Longest silence of a stream while wake-ups are lost", shown, max(times) <= MOST_LAG
            )
        ]

    def _money(self) -> list[Row]:
        if not self.charges:
            return []
        wrong = self.double_charges + self.unbalanced
        figure = f"{self.double_charges} and {self.unbalanced} of {self.charges:,} charges"
        return [
            Row("Tasks charged twice, accounts that do not balance", figure, not wrong,
                bound(self.charges))
        ]  # fmt: skip

    def _promises(self) -> list[Row]:
        if not self.promises:
            return []
        figure = f"{self.broken_promises} broken of {self.promises}"
        return [
            Row("Promises of a store, every group submitted twice", figure,
                not self.broken_promises)
        ]  # fmt: skip

    def _unfinished(self) -> list[Row]:
        """Return what was not tried as it should have been: it is no figure, and no success."""
        return [
            Row(f"The section {name} was run to its end", why, kept=False)
            for name, why in self.unfinished.items()
        ]


def _promise(kind: str) -> str:
    limit, words = LIMITS[kind]
    return f"{words} within {limit / 1000:g} s"


def _times(times: Spread) -> str:
    shown = f"p50 {times.p50:.0f} ms, p99 {times.p99:.0f} ms, max {times.max:.0f} ms"
    return f"{shown} ({times.count} seen)"


# The stages


async def _plain(run: Run, sections: list[tuple[Section, int]]) -> None:
    """Three replicas, one server, a proxy between."""
    async with open_site(run.folder / "plain", run.seed) as site:
        await _hurt(run, site, sections)


async def _steady(run: Run, sections: list[tuple[Section, int]]) -> None:
    """The same with a lease that outlives a restart: only a missing grace costs a task."""
    async with open_site(run.folder / "steady", run.seed, lease=STEADY_LEASE) as site:
        await _hurt(run, site, sections)


async def _cabled(run: Run, sections: list[tuple[Section, int]]) -> None:
    """Three replicas in networks of their own, where the machine lets us."""
    folder = run.folder / "cabled"
    with namespaces(REPLICAS) as networks:
        server = None
        if networks:
            server = PostgresServer(folder / "postgres", listen_addresses="*")
            await asyncio.to_thread(server.start)
            await asyncio.to_thread(_let_in, server, networks[0].host)
        else:
            run.tally.done["cables are silent proxies"] = 1
        # In a network a cut is noticed long before the lease ends; behind a proxy, whose ends stay
        # alive, by the lease alone.
        lease = STEADY_LEASE if networks else LEASE
        async with open_site(
            folder, run.seed, server=server, namespaces=networks, lease=lease
        ) as site:
            await _hurt(run, site, sections)


async def _clocked(run: Run, sections: list[tuple[Section, int]]) -> None:
    """The same with process clocks that are an hour apart from PostgreSQL's, to both sides."""
    folder = run.folder / "clocked"
    hours = [clocks.shifted(run.folder, seconds) for seconds in (3600.0, -3600.0, 0.0)]
    async with open_site(folder, run.seed, environments=hours) as site:
        await _hurt(run, site, sections)


async def _railed(run: Run, sections: list[tuple[Section, int]]) -> None:
    """The same with NATS for wake-ups."""
    folder = run.folder / "railed"
    await asyncio.to_thread(folder.mkdir)
    nats = NatsServer(folder)
    await asyncio.to_thread(nats.start)

    async def hurt(site: Site, tally: Tally, count: int, progress: Progress) -> None:
        await wakeups.kill_nats(site, nats, tally, count, progress)

    try:
        bus = ["--bus", nats.url]
        async with open_site(folder, run.seed, lease=STEADY_LEASE, options=bus) as site:
            await _hurt(run, site, [(one._replace(hurt=hurt), count) for one, count in sections])
    finally:
        await asyncio.to_thread(nats.kill)


async def _promised(run: Run, sections: list[tuple[Section, int]]) -> None:
    """The promises of a store, in a process of their own."""
    for section, count in sections:
        async with run.section(section.name, count):
            for _ in range(count):
                found, broken = await asyncio.to_thread(promises.keep, run.folder)
                run.tally.promises += found
                run.tally.broken_promises += len(broken)
                for name in broken:
                    run.tally.find(f"promise: {name}")


async def _paid(run: Run, sections: list[tuple[Section, int]]) -> None:
    """Gateways whose callers pay."""
    for section, count in sections:
        async with run.section(section.name, count):
            await money.spend(run.folder / "paid", run.seed, run.tally, count, run.progress)


async def _moved(run: Run, sections: list[tuple[Section, int]]) -> None:
    """A gateway on a file, which becomes three on a database."""
    for section, count in sections:
        async with run.section(section.name, count):
            for n in range(count):
                folder = run.folder / f"moved-{n}"
                await operator.move_file(folder, run.seed, run.tally, run.progress)
                run.tally.done["files moved"] += 1


async def _paired(run: Run, sections: list[tuple[Section, int]]) -> None:
    """The same behind a primary with a synchronous standby."""
    folder = run.folder / "paired"
    async with open_site(folder, run.seed, lease=STEADY_LEASE) as site:
        pair = standby.Pair(folder, site.server)

        def on_pair(section: Section) -> Section:
            deed = standby.freeze if section.name == "standbys" else standby.fail_over

            async def hurt(site: Site, tally: Tally, count: int, progress: Progress) -> None:
                await deed(site, pair, tally, count, progress)

            return section._replace(hurt=hurt)

        try:
            await _hurt(run, site, [(on_pair(section), count) for section, count in sections])
        finally:
            await asyncio.to_thread(pair.end)


def _let_in(server: PostgresServer, host: str) -> None:
    network = f"{host.rpartition('.')[0]}.0/24"
    with open(server.data / "pg_hba.conf", "a") as file:
        file.write(f"host all all {network} trust\n")
    server.sql("SELECT pg_reload_conf()")


async def _hurt(run: Run, site: Site, sections: Iterable[tuple[Section, int]]) -> None:
    for section, count in sections:
        if time.monotonic() > run.until:
            break
        async with run.section(section.name, count):
            assert section.hurt is not None
            await section.hurt(site, run.tally, count, run.progress)
    run.progress("waiting for every task to rest, then comparing")
    async with run.section("checking", 1):
        verdict = await site.settle()
        run.tally.add(site.load.history, verdict)
        run.tally.unknown += site.load.unknown


# How often in a quick run, all on one site; the order is this one.
QUICK = {"replies": 20, "freezes": 1, "kills": 1, "server-kills": 1}
# Seconds after which a quick run begins no further section.
QUICK_WITHIN = 28.0

SECTIONS: tuple[Section, ...] = (
    Section("promises", _promised, None, 1, "The promises, every group submitted twice."),
    Section("replies", _plain, servers.lose_replies, 300, "Replies lost after a commit."),
    Section("kills", _plain, replicas.kill, 200, "Replicas killed."),
    Section("freezes", _plain, replicas.freeze, 50, "Replicas frozen past their lease."),
    Section("listeners", _steady, wakeups.lose, 12, "Listeners ended, cut, silenced, pooled."),
    Section("restarts", _steady, servers.restart, 10, "Restarts of PostgreSQL."),
    Section("server-kills", _steady, servers.kill, 30, "PostgreSQL killed."),
    Section("nats", _railed, None, 6, "NATS killed."),
    Section("failovers", _paired, None, 5, "Synchronous failovers of PostgreSQL."),
    Section("standbys", _paired, None, 4, "The only standby frozen."),
    Section("clocks", _clocked, replicas.kill, 6, "Kills where clocks differ by an hour."),
    Section("spenders", _paid, None, 20, "Poor spenders on three gateways."),
    Section("operator", _moved, None, 1, "A file moved to three replicas, one of them killed."),
    Section("cables", _cabled, replicas.cut, 20, "Replicas cut off from PostgreSQL."),
)


def chosen(counts: dict[str, int | None], only: str, quick: bool) -> list[tuple[Section, int]]:
    """Return the sections to run with their counts; raises `ConfigError` for a name of none."""
    names = [name.strip() for name in only.split(",") if name.strip()]
    known = {section.name: section for section in SECTIONS}
    if unknown := [name for name in names if name not in known]:
        raise ConfigError(f"--only: {unknown[0]} is none of {', '.join(known)}")
    found: list[tuple[Section, int]] = []
    for name in QUICK if quick else known:
        section = known[name]
        asked = counts.get(name.replace("-", "_"))
        count = asked if asked is not None else QUICK[name] if quick else section.times
        if count and (not names or name in names):
            found.append((section._replace(stage=_plain) if quick else section, count))
    return found


async def prove(
    sections: list[tuple[Section, int]],
    seed: int,
    *,
    folder: Path,
    progress: Progress = silent,
    within: float = math.inf,
) -> ClusterResult:
    """Run sections in a folder."""
    began = time.monotonic()
    tally = Tally()
    run = Run(folder, seed, tally, progress, began + within)
    for stage, found in groupby(sections, lambda one: one[0].stage):
        some = list(found)
        names = [section.name for section, _ in some]
        async with run.guarded(names, sum(count for _, count in some)):
            await stage(run, some)
    return ClusterResult(
        seed=seed,
        seconds=round(time.monotonic() - began, 1),
        bound=bound(tally.acked),
        acked=tally.acked,
        tasks=tally.tasks,
        lost=tally.lost,
        doubled=tally.doubled,
        hanging=tally.hanging,
        gaps=tally.gaps,
        changed=tally.changed,
        repeated=tally.repeated,
        double_charges=tally.double_charges,
        unbalanced=tally.unbalanced,
        charges=tally.charges,
        buried=tally.buried,
        promises=tally.promises,
        broken_promises=tally.broken_promises,
        done=dict(tally.done),
        spent=dict(tally.seconds),
        takeovers={kind: spread(times) for kind, times in tally.takeovers.items()},
        crowded={kind: spread(times) for kind, times in tally.crowded.items()},
        lags={way: spread(times) for way, times in tally.lags.items()},
        unknown=tally.unknown,
        moved=tally.moved,
        unfinished=dict(tally.unfinished),
        findings=tally.findings,
    )


def run(
    seed: int = 1,
    *,
    quick: bool = False,
    only: str = "",
    progress: Progress = silent,
    **counts: int | None,
) -> ClusterResult:
    """Hurt every part of a cluster and check everything that was promised."""
    sections = chosen(counts, only, quick)
    with workplace() as folder:
        within = QUICK_WITHIN if quick else math.inf
        proving = prove(sections, seed, folder=folder, progress=progress, within=within)
        return asyncio.run(proving)
