"""Many poor spenders on three gateways, and whoever seals the ledger killed every second: each
spends what it has and no more, is charged once for each completed task, and the chain stays whole.
"""

import asyncio
import contextlib
import itertools
import random
import subprocess
import sys
from base64 import b64encode
from collections.abc import AsyncGenerator
from pathlib import Path

from dragoman.testing.load import HOST
from dragoman.testing.processes import CannotStart, clean_environment
from dragoman.testing.servers import PostgresServer
from proof.client import CallRefused, ConnectionGone, RpcConnection, message
from proof.cluster.database import Database
from proof.cluster.tally import Tally
from proof.crash.checker import History, held_against
from proof.gateway import agent as behind
from proof.gateway.callers import Account
from proof.gateway.site import ask
from proof.results import Progress
from proof.servers import Replicas, Server

GATEWAYS = 3
# What each spender has, what a task costs, and how many it asks for: more than it can pay.
_GRANTED = 20
_PRICE = 1
_ASKED = 30
# Seconds that a spender thinks, at most.
_PAUSE = 1.5
_MICRO = 1_000_000
_BETWEEN_KILLS = 1.0
_AGAIN = (0.05, 0.3)
_REST_WITHIN = 90.0
_VERIFY_WITHIN = 120.0
# Waits a moment for someone who adds to the chain, and ends it in the middle of that.
_WATCH = """
CREATE FUNCTION end_sealer() RETURNS int LANGUAGE plpgsql AS $$
DECLARE
    sealer int;
BEGIN
    FOR n IN 1..300 LOOP
        SELECT pid INTO sealer FROM pg_locks
        WHERE relation = 'chains'::regclass AND granted AND pid <> pg_backend_pid() LIMIT 1;
        IF sealer IS NOT NULL THEN
            RETURN pg_terminate_backend(sealer)::int;
        END IF;
        PERFORM pg_sleep(0.002);
    END LOOP;
    RETURN 0;
END $$
"""
_EVERY_GATEWAY = 3
_STARTS = 5
_TWICE = (
    "SELECT task, count(*) FROM transfers WHERE kind = 'capture' GROUP BY task HAVING count(*) > 1"
)
# What an account has beside what it was given and what its completed tasks cost.
_BALANCES = """
SELECT accounts.owner, balance, held, ahead, coalesce(spent, 0), coalesce(completed, 0)
FROM accounts LEFT JOIN (
    SELECT requester, sum(charged) AS spent, count(*) FILTER (WHERE state LIKE '%COMPLETED%'
        OR state = 'completed') AS completed
    FROM orders GROUP BY requester) AS used ON used.requester = accounts.owner
WHERE kind = 'user' ORDER BY accounts.owner
"""


class Gateway(Server):
    """One gateway on the database."""

    def __init__(self, folder: Path, name: str, url: str, environment: dict[str, str]) -> None:
        super().__init__(folder / "tasks.db", name=name, environment=environment)
        self._url = url

    def command(self) -> list[str]:
        """Return what is run."""
        serve = [sys.executable, "-m", "dragoman", "gateway", "--listen", f"{HOST}:0"]
        return [*serve, "--store", self._url]


class Spender:
    """Asks for more than it can pay, and gives no message up."""

    def __init__(self, market: "Market", party: Account, number: int) -> None:
        self._market = market
        self._party = party
        self._chance = random.Random(f"{market.seed}/{number}")
        self.refused = 0

    async def run(self) -> None:
        """Send every message until it is answered; some to two gateways at once."""
        for n in range(_ASKED):
            id = f"{self._market.seed}-{self._party.name}-{n}"
            params = message("short", id, id)
            params["metadata"] = {"agentId": self._market.agent}
            copies = 2 if self._chance.random() < 0.3 else 1
            await asyncio.gather(*(self._sent(params) for _ in range(copies)))
            await asyncio.sleep(self._chance.uniform(0, _PAUSE))

    async def _sent(self, params: dict[str, object]) -> None:
        history = self._market.history
        sent = history.invoke("SendMessage", params)
        while True:
            connection = RpcConnection(await self._market.gateways.port(), token=self._party.token)
            try:
                history.ack(sent, (await connection.call(sent.method, sent.params))["task"])
                return
            except CallRefused:
                self.refused += 1
                return
            except ConnectionGone:
                await asyncio.sleep(self._chance.uniform(*_AGAIN))
            finally:
                connection.close()


class Market:
    """Gateways on one database, and an agent that costs something."""

    def __init__(self, folder: Path, seed: int, spenders: int) -> None:
        self.seed = seed
        self.history = History()
        self.server = PostgresServer(folder / "postgres")
        self.database = Database(self.server, "")
        self.gateways = Replicas([])
        self.agent = ""
        self.url = ""
        self._folder = folder
        self.parties = [Account(f"spender-{n}", f"{seed}-token-{n}-" + "x" * 24)
                        for n in range(spenders)]  # fmt: skip
        self._seller = Account("seller", f"{seed}-token-of-the-seller-" + "x" * 24)
        tokens = folder / "tokens.toml"
        tokens.touch(mode=0o600)
        everyone = [*self.parties, self._seller]
        tokens.write_text("".join(f'[{one.name}]\ntoken = "{one.token}"\n' for one in everyone))
        self.environment = clean_environment() | {
            "DRAGOMAN_AUTH_TOKENS": str(tokens),
            "DRAGOMAN_ALLOW": HOST,
            "DRAGOMAN_INITIAL_CREDITS": str(_GRANTED),
            "DRAGOMAN_LEASE": "2",
            "DRAGOMAN_MAX_ATTEMPTS": "1000",
            "DRAGOMAN_FORWARD_ATTEMPTS": "10",
            "DRAGOMAN_STORE_KEY": b64encode(random.Random(seed).randbytes(32)).decode(),
            "XDG_DATA_HOME": str(folder),
        }
        # It works once on a message, however often that comes.
        lasting = clean_environment() | {"XDG_DATA_HOME": str(folder)}
        self._works = Server(
            folder / "agent.db", agent=Path(behind.__file__), name="agent", environment=lasting
        )

    async def open(self) -> None:
        """Start everything."""
        await asyncio.to_thread(self.server.start)
        self.url = await asyncio.to_thread(self.server.make_database)
        self.database.name = self.url.rpartition("/")[2]
        await self._works.start()
        gateways = [
            Gateway(self._folder, f"gateway-{n}", self.url, self.environment)
            for n in range(GATEWAYS)
        ]
        self.gateways.servers = gateways
        await self.gateways.start(gateways[0])
        await asyncio.gather(*(self.gateways.start(one) for one in gateways[1:]))
        await self.database.rows(_WATCH)
        said = {
            "name": "works",
            "pricePerTask": float(_PRICE),
            "endpoint": f"http://{HOST}:{self._works.port}",
        }
        answer = await ask(gateways[0].port, "POST", "/api/v1/agents", self._seller, said)
        self.agent = answer["data"]["id"]

    async def close(self) -> None:
        """End everything."""
        self.gateways.kill_all()
        self._works.kill()
        await asyncio.to_thread(self.server.kill)

    def verified(self) -> str:
        """Return what `dragoman ledger verify` finds wrong; nothing if the ledger is whole."""
        done = subprocess.run(
            [sys.executable, "-m", "dragoman", "ledger", "verify", "--store", self.url],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_VERIFY_WITHIN,
        )
        return "" if done.returncode == 0 else (done.stdout + done.stderr)[-400:]


@contextlib.asynccontextmanager
async def _market(folder: Path, seed: int, spenders: int) -> AsyncGenerator[Market]:
    await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
    market = await asyncio.to_thread(Market, folder, seed, spenders)
    try:
        await market.open()
        yield market
    finally:
        await market.close()


async def spend(folder: Path, seed: int, tally: Tally, count: int, progress: Progress) -> None:
    """Let so many spenders spend while whoever seals is killed, then look at the books."""
    async with _market(folder, seed, count) as market:
        spenders = [Spender(market, party, n) for n, party in enumerate(market.parties)]
        spending = asyncio.gather(*(spender.run() for spender in spenders))
        killing = asyncio.ensure_future(_kill_sealers(market, tally, progress))
        try:
            await spending
        finally:
            killing.cancel()
            await asyncio.gather(killing, return_exceptions=True)
        for server in market.gateways.servers:
            if not server.is_up:
                await _start_again(market, server, tally)
        await market.database.at_rest(_REST_WITHIN)
        await _judge(market, tally)
        tally.done["spenders"] += count


async def _kill_sealers(market: Market, tally: Tally, progress: Progress) -> None:
    """End the session that seals and, now and then, a gateway: its own seals too."""
    chance = random.Random(f"{market.seed}/kills")
    starting: asyncio.Task[None] | None = None
    try:
        for n in itertools.count(1):
            await asyncio.sleep(_BETWEEN_KILLS)
            tally.done["sealers ended"] += await market.database.number("SELECT end_sealer()")
            if n % _EVERY_GATEWAY == 0 and (starting is None or starting.done()):
                victim = chance.choice(market.gateways.servers)
                victim.kill()
                starting = asyncio.ensure_future(_start_again(market, victim, tally))
                tally.done["gateways killed"] += 1
            progress(f"{tally.done['sealers ended']} sealers ended, "
                     f"{len(market.history.acked):,} acknowledged")  # fmt: skip
    finally:
        if starting is not None:
            await asyncio.gather(starting, return_exceptions=True)


async def _start_again(market: Market, victim: Server, tally: Tally) -> None:
    """Start a gateway as a supervisor would: a session that it needs to start may be ended too."""
    for left in reversed(range(_STARTS)):
        try:
            await market.gateways.start(victim)
            return
        except CannotStart:
            if not left:
                raise
            tally.done["gateways started twice"] += 1


async def _judge(market: Market, tally: Tally) -> None:
    """Hold the books against what callers were told."""
    tasks = await market.database.tasks()
    tally.add(market.history, held_against(market.history, tasks))
    if wrong := await asyncio.to_thread(market.verified):
        tally.unbalanced += 1
        tally.find(f"ledger: {wrong}")
    for task, times in await market.database.rows(_TWICE):
        tally.double_charges += 1
        tally.find(f"money: task {task} was charged {times} times")
    tally.charges += await market.database.number(
        "SELECT count(*) FROM transfers WHERE kind = 'capture'"
    )
    for owner, *numbers in await market.database.rows(_BALANCES):
        balance, held, ahead, spent, completed = (int(number) for number in numbers)
        if not owner.endswith(tuple(party.name for party in market.parties)):
            continue
        left = _GRANTED * _MICRO - spent
        if (balance, held, ahead) != (left, 0, 0) or spent != completed * _PRICE * _MICRO:
            tally.unbalanced += 1
            tally.find(f"money: {owner} has {balance}, {held} held, {ahead} ahead, spent {spent}")
    ((total,),) = await market.database.rows("SELECT sum(balance) FROM accounts")
    if int(total):
        tally.unbalanced += 1
        tally.find(f"money: all balances together are {total}")
