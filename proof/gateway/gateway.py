"""`kill -9` of a gateway and of the agents behind it, under load: what was acknowledged comes to
its end, says what it would have said undisturbed, and is paid for once.

One agent has three replicas of which one comes and goes all the time, half the time without its
memory; its tasks may be repeated. The other is alone, and works once on what it is told. Dialogues
are held with that one: only who asked knows what an answer is to.
"""

import asyncio
import random
import time
from collections.abc import Mapping
from pathlib import Path

from proof.client import CallRefused, RpcConnection
from proof.crash.callers import at_rest
from proof.crash.checker import TERMINAL, Verdict, check
from proof.gateway.agent import WALKED
from proof.gateway.callers import (
    PAUSE,
    Account,
    ExpectedTask,
    GatewayCaller,
    GatewayLoad,
    text_of,
)
from proof.gateway.checks import (
    Money,
    Prices,
    check_money,
    check_once,
    check_walks,
    count_moves,
    count_runs,
)
from proof.gateway.result import GatewayResult, Takeovers
from proof.gateway.site import FixedServer, GatewayProcesses
from proof.results import Progress, bound, silent, workplace

# Seconds for which an agent is down.
DOWN = (0.0, 0.5)
# The same of the replica that comes and goes.
FLAPS_UP, FLAPS_DOWN = (0.5, 5.0), (0.2, 5.0)
# Connections of each party.
CALLERS = 3
# Seconds in which callers have to have seen everything through, and then everything has to rest.
SEEN_WITHIN, REST_WITHIN = 120.0, 120.0
# How often it is timed how long another process takes, where one is there.
TAKEOVERS = 20
_PRICES = {"pair": "0.5", "many": "1.25", "once": "0.333333"}
_MICRO = {"pair": 500_000, "many": 1_250_000, "once": 333_333}
_PARTIES = ("ada", "bob", "ann", "ben")
_OWNERS = {"pair": "ada", "many": "ann", "once": "ben"}


class _Run:
    """One run."""

    def __init__(
        self,
        folder: Path,
        seed: int,
        pause: float,
        environment: Mapping[str, str] | None,
        make: type[GatewayProcesses],
    ) -> None:
        self.chance = random.Random(f"{seed}/kills")
        self.parties = {name: Account(name, f"token-of-{name}-{seed:012}") for name in _PARTIES}
        owners = {name: self.parties[owner] for name, owner in _OWNERS.items()}
        self.site = make(folder, list(self.parties.values()), owners, seed, environment)
        self.load = GatewayLoad(self.site.gateways, seed, [], pause)
        self.prices: dict[str, Prices] = {}
        self.ids: dict[str, str] = {}
        self.kills = self.gateway_kills = self.agent_kills = self.flaps = 0

    async def open(self) -> None:
        """Start everything and register the agents."""
        site = self.site
        await site.start()
        for name in site.names:
            owner = _OWNERS[name]
            self.ids[name] = id = await site.register(name, float(_PRICES[name]))
            self.prices[id] = Prices(f"token:{owner}", _MICRO[name])
            self.load.agents.append(id)

    async def flap(self) -> None:
        """Let one replica come and go, with and without its memory."""
        server, chance = self.site.replicas[-1], random.Random(f"{self.load.seed}/flap")
        while not self.load.stopping.is_set():
            server.kill()
            self.flaps += 1
            if chance.random() < 0.5:
                server.forget()
            await asyncio.sleep(chance.uniform(*FLAPS_DOWN))
            await server.start()
            await asyncio.sleep(chance.uniform(*FLAPS_UP))

    async def kill(self) -> None:
        """Kill something and start it again."""
        chance, site = self.chance, self.site
        await asyncio.sleep(chance.uniform(*site.lives))
        upstreams = [site.once, *site.replicas[:-1], *site.pair]
        victims: list[FixedServer] = [site.gateway]
        drawn = chance.random()
        if drawn < 0.5:
            victims = [site.once if drawn < 0.25 else chance.choice(upstreams)]
        elif drawn < 0.6:
            victims = [site.gateway, chance.choice(upstreams)]
        for server in victims:
            server.kill()
        self.kills += 1
        self.gateway_kills += site.gateway in victims
        self.agent_kills += len(victims) - (site.gateway in victims)
        async with asyncio.TaskGroup() as group:
            for server in victims:
                group.create_task(self._start(server, chance.uniform(*DOWN)))

    async def _start(self, server: FixedServer, down: float) -> None:
        if server is self.site.gateway:
            await self.site.gateways.start(server)
        else:
            await asyncio.sleep(down)
            await server.start()

    async def through_the_api(self, verdict: Verdict) -> int:
        """Hold what each caller is told of its tasks to what an undisturbed run says; return how
        many differ."""
        differing = 0
        lines = {
            name: RpcConnection(await self.site.gateways.port(), token=party.token)
            for name, party in self.parties.items()
        }
        try:
            for wanted in self.load.wanted_tasks:
                if not wanted.task_id:
                    continue
                try:
                    task = await lines[wanted.party.name].call("GetTask", {"id": wanted.task_id})
                except CallRefused as error:
                    verdict.add("lost", f"task {wanted.task_id} of {wanted.party.name}: {error}")
                    continue
                state = task["status"]["state"]
                if state not in TERMINAL:
                    verdict.add("lost", f"task {wanted.task_id} ({wanted.kind}) is {state}")
                elif problem := differs(wanted, state, text_of(task)):
                    differing += 1
                    said = task["status"].get("message", {}).get("parts", "")
                    if differing <= 5:
                        fact = f"task {wanted.task_id} ({wanted.kind}, {wanted.text}): {problem}"
                        verdict.findings.append(f"differing: {fact} {said}")
        finally:
            for line in lines.values():
                line.close()
        return differing


def differs(wanted: ExpectedTask, state: str, text: str) -> str:
    """Return how a task ended otherwise than it would have undisturbed, or nothing."""
    if wanted.kind == "cancel" and state == "TASK_STATE_CANCELED":
        return ""
    if state != "TASK_STATE_COMPLETED":
        return f"it is {state}"
    if wanted.kind == "walk":
        # Which steps it names is held against those that are recorded.
        words = text.split()
        is_whole = words[:1] == ["walk"] and len(words) == 1 + WALKED
        return "" if is_whole else f"{text!r} is no walk"
    return "" if text == wanted.expected else f"{text!r} is not {wanted.expected!r}"


async def prove(
    kills: int,
    seed: int,
    *,
    folder: Path,
    environment: Mapping[str, str] | None = None,
    progress: Progress = silent,
    pause: float = PAUSE,
    callers: int = CALLERS,
    make: type[GatewayProcesses] = GatewayProcesses,
) -> GatewayResult:
    """Run the proof in a folder, with the processes that `make` makes."""
    began = time.monotonic()
    run = _Run(folder, seed, pause, environment, make)
    load, site = run.load, run.site
    try:
        await run.open()
        async with asyncio.TaskGroup() as group:
            people = [
                group.create_task(GatewayCaller(load, party, n).run())
                for party in run.parties.values()
                for n in range(callers)
            ]
            flapping = group.create_task(run.flap())
            while run.kills < kills or site.cuts < site.cuts_per_kill * kills:
                await run.kill()
                acked = sum(bool(wanted.task_id) for wanted in load.wanted_tasks)
                cut = f", {site.cuts} cuts" if site.cuts else ""
                done = f"kill {run.kills}/{kills}{cut}, {acked:,} tasks"
                progress(f"{done}, {load.resumed} resumed")
            load.stopping.set()
            progress("waiting for callers to see their tasks through")
            await asyncio.wait(people, timeout=SEEN_WITHIN)
            for person in people:
                person.cancel()
            await flapping
        progress("waiting for every task to rest")
        await at_rest(site.gateway.store, REST_WITHIN)
        progress("comparing what callers were told with what is stored")
        verdict = await asyncio.to_thread(check, load.history, site.gateway.store)
        differing = await run.through_the_api(verdict)
        money = await asyncio.to_thread(check_money, site.gateway.store, run.prices)
        steps = 0
        for server in (site.once, *site.pair[:1]):
            mine = [one for one in load.wanted_tasks if one.agent == run.ids[server.name]]
            check_once(server.store, mine, verdict)
            steps += check_walks(server.store, verdict)
        # Last: the tasks of it are not among those that were compared.
        takeovers = await site.take_over(min(TAKEOVERS, kills), progress)
        seconds = round(time.monotonic() - began, 1)
        return _result(run, verdict, differing, money, steps, takeovers, seconds)
    finally:
        await site.close()


def _result(
    run: _Run,
    verdict: Verdict,
    differing: int,
    money: Money,
    steps: int,
    takeovers: Takeovers,
    seconds: float,
) -> GatewayResult:
    load, site = run.load, run.site
    acked = [wanted for wanted in load.wanted_tasks if wanted.task_id]
    for wanted in acked:
        if wanted.kind not in ("left", "cancel") and not wanted.is_seen:
            verdict.add("lost", f"task {wanted.task_id} ({wanted.kind}): no caller saw its end")
    return GatewayResult(
        seed=load.seed,
        seconds=seconds,
        bound=bound(len(acked)),
        bound_per_kill=bound(run.kills),
        kills=run.kills,
        gateway_kills=run.gateway_kills,
        agent_kills=run.agent_kills,
        flaps=run.flaps,
        tasks=len(acked),
        streams=sum(wanted.is_followed for wanted in acked),
        lost=verdict.lost + verdict.hanging,
        differing=differing,
        changed=verdict.changed,
        doubled=verdict.doubled,
        steps=steps,
        repeated=verdict.repeated,
        takeovers=takeovers,
        gaps=verdict.gaps + verdict.torn + load.history.told.torn,
        captures=money.captures,
        double_charges=money.double_charges,
        uncharged=money.uncharged,
        sum=money.sum,
        holds=money.holds,
        worked_once=count_runs(site.runs["once"]),
        worked_many=count_runs(site.runs["many"]),
        moves=count_moves(site.gateway.store),
        unknown=load.unknown,
        resumed=load.resumed,
        cuts=site.cuts,
        refused=dict(load.refused.most_common(10)),
        findings=[*verdict.findings, *money.findings],
    )


def run(
    kills: int = 60, seed: int = 1, *, progress: Progress = silent, pause: float = PAUSE
) -> GatewayResult:
    """Kill a gateway and agents behind it, and check everything that was promised."""
    with workplace() as folder:
        return asyncio.run(prove(kills, seed, folder=folder, progress=progress, pause=pause))
