"""Agents with so much money for each task, whose calls go through a gateway that takes it."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from harness.serving import hosting, serving
from harness.waiting import eventually, within

from dragoman import Agent, App, Budget, BudgetExceeded, Client, Settings, TaskState, Turn
from dragoman.authoring import agent_call
from dragoman.config import StoreSettings
from dragoman.errors import A2AError, ConfigError
from dragoman.model.events import StatusUpdate
from dragoman.model.identity import Principal
from dragoman.model.money import COST, MICRO
from dragoman.model.task import Task
from tests.gateway.gateway_site import GatewaySite, gateway


def worker(name: str, gate: asyncio.Event | None = None) -> Agent:
    agent = Agent(name, "Works.")

    @agent.skill
    async def work(text: str, turn: Turn) -> str:
        if text == "ask":
            await turn.ask("What?")
        if gate is not None:
            await gate.wait()
        return f"{name} {text}"

    return agent


def chief(dear: str, free: str, money: str | None) -> Agent:
    """Calls a dear agent and a free one, as often as a message says; asks; calls once more."""
    agent = Agent("Chief", "Has others work.", budget=Budget(money=money))

    async def tried(turn: Turn, url: str, **more: Any) -> str:
        try:
            return (await turn.call(url, "x", **more)).text.lower()
        except BudgetExceeded as error:
            return error.reason

    @agent.skill
    async def work(text: str, turn: Turn) -> str:
        came = [await tried(turn, dear if word == "dear" else free) for word in text.split()]
        await turn.ask("Go on?")
        return ", ".join([*came, await tried(turn, dear), await tried(turn, free)])

    @agent.skill
    async def beside(text: str, turn: Turn) -> str:
        more = {"metadata": {"maxPrice": text}} if text else {}
        calls = (tried(turn, dear, **more), tried(turn, dear, **more), tried(turn, free, **more))
        return ", ".join(await asyncio.gather(*calls))

    @agent.skill
    async def asked(text: str, turn: Turn) -> str:
        waits = await turn.call(dear, "ask", relay=False)
        came = [await tried(turn, dear)]
        await turn.call(dear, "this", task_id=waits.task_id)
        return ", ".join([*came, await tried(turn, dear), await tried(turn, dear)])

    @agent.skill
    async def once(text: str, turn: Turn) -> str:
        return (await turn.call(dear, text)).text

    @agent.skill
    async def mistaken(text: str, turn: Turn) -> str:
        try:
            await turn.call(dear, Path("no such file"))
        except ConfigError:
            return await tried(turn, dear)
        return "nothing is something"

    return agent


async def priced(site: GatewaySite, dear: str, free: str) -> tuple[str, str]:
    """Register two agents of somebody else, one of which costs a credit; return where they are."""
    one = await site.register(dear, owner="bob", price=MICRO)
    two = await site.register(free, owner="bob")
    return site.at(one), site.at(two)


async def paid(site: GatewaySite) -> float:
    """Return what the local user has paid."""
    balance = await site.gateway.ledger.balance(Principal.read(""))
    assert balance.held == 0
    return 1000 - balance.available / MICRO


@asynccontextmanager
async def market(
    folder: Path, gate: asyncio.Event | None = None
) -> AsyncGenerator[tuple[GatewaySite, tuple[str, str]]]:
    """Serve a gateway with an agent that costs one credit and one that costs nothing."""
    async with (
        serving(worker("Dear", gate)) as dear,
        serving(worker("Free")) as free,
        gateway(folder) as site,
    ):
        yield site, await priced(site, dear.url, free.url)


async def test_a_task_spends_no_more_than_its_money_also_after_a_restart(tmp_path: Path) -> None:
    settings = Settings(stores=StoreSettings(location=str(tmp_path / "chief.db")))
    async with market(tmp_path) as (site, at):
        app = App(chief(*at, money="2.5"), settings=settings)
        async with app.running(), Client(app=app) as client:
            asked = await within(client.send("dear free dear dear free"))
            assert asked.state is TaskState.INPUT_REQUIRED, asked.text
        app = App(chief(*at, money="2.5"), settings=settings)
        async with app.running(), Client(app=app) as client:
            done = await within(client.send("yes", task_id=asked.task_id))
        came = ["dear x", "free x", "dear x", "MONEY_LIMIT", "free x", "MONEY_LIMIT", "free x"]
        assert done.text.split(", ") == came
        assert await paid(site) == 2


async def test_a_task_without_a_limit_spends_what_there_is(tmp_path: Path) -> None:
    async with market(tmp_path) as (site, at):
        async with serving(chief(*at, money=None)) as here, Client(here.url) as client:
            asked = await within(client.send("dear dear"))
            done = await within(client.send("yes", task_id=asked.task_id))
            assert done.text == "dear x, dear x, dear x, free x"
        assert await paid(site) == 3


async def test_calls_side_by_side_spend_the_money_together(tmp_path: Path) -> None:
    async with market(tmp_path) as (site, at):
        async with serving(chief(*at, money="2")) as here, Client(here.url) as client:
            skill = {"skillId": "beside"}
            # The first may cost all that there is; then there is nothing for the second.
            all_of_it = await within(client.send("", metadata=skill))
            assert all_of_it.text == "dear x, MONEY_LIMIT, free x"
            # What a call says that it may cost is set aside, and no more.
            shared = await within(client.send("1", metadata=skill))
            assert shared.text == "dear x, dear x, free x"
            too_little = await within(client.send("0.5", metadata=skill))
            assert too_little.text == "MONEY_LIMIT, MONEY_LIMIT, free x"
        assert await paid(site) == 3


async def test_a_call_that_is_never_made_takes_no_money(tmp_path: Path) -> None:
    async with serving(worker("Dear")) as dear, gateway(tmp_path) as site:
        at = await priced(site, dear.url, dear.url)
        async with serving(chief(*at, money="1")) as here, Client(here.url) as client:
            done = await within(client.send("", metadata={"skillId": "mistaken"}))
            assert done.text == "dear x"


async def test_the_money_of_a_task_is_not_that_of_each_message(tmp_path: Path) -> None:
    gate = asyncio.Event()
    async with market(tmp_path, gate) as (site, at):
        async with serving(chief(*at, money="1")) as here, Client(here.url) as client:
            begun = await within(client.send("x", wait=False, metadata={"skillId": "once"}))
            more = {"task_id": begun.task_id, "metadata": {"skillId": "once"}}
            await within(client.send("y", wait=False, **more))
            gate.set()
            done = await within(client.wait(begun.task_id))
            assert done.task is not None and done.state is TaskState.FAILED
            assert "may spend 1.00 credits" in str(done.task.status)
        assert await paid(site) == 1


async def test_what_waits_for_an_answer_keeps_what_is_promised_to_it(tmp_path: Path) -> None:
    async with market(tmp_path) as (site, at):
        async with serving(chief(*at, money="2")) as here, Client(here.url) as client:
            done = await within(client.send("x", metadata={"skillId": "asked"}))
            assert done.text == "MONEY_LIMIT, dear x, MONEY_LIMIT"
        assert await paid(site) == 2


# What nobody knows, or not yet


def messages(at: str, first: Any, *, money: str = "1") -> tuple[Agent, asyncio.Event]:
    """An agent that does something with its first message and calls as often as it can with the
    second; and what ends its first turn."""
    agent, go = Agent("Chief", "Has others work.", budget=Budget(money=money)), asyncio.Event()

    @agent.skill
    async def work(text: str, turn: Turn) -> str:
        if text == "first":
            await first(turn)
            await go.wait()
            return "first"
        came: list[str] = []
        for goes_to in ("second", text, "second"):
            more = {"task_id": goes_to} if goes_to != "second" else {}
            try:
                came.append((await turn.call(at, "x", **more)).text)
            except BudgetExceeded as error:
                came.append(error.reason)
        return ", ".join(came)

    return agent, go


async def in_two(
    agent: Agent, go: asyncio.Event, waits: asyncio.Future[str] | None = None
) -> list[str]:
    """Send an agent two messages for one task; return what came of the second, which is to go on
    with what waits, if anything does."""
    async with serving(agent) as here, Client(here.url) as client:
        begun = await within(client.send("first", wait=False))
        second = "second" if waits is None else await within(waits)
        await within(client.send(second, wait=False, task_id=begun.task_id))
        go.set()
        done = await within(client.wait(begun.task_id))
        return done.text.splitlines()[-1].split(", ")


async def test_a_call_that_is_given_up_may_cost_what_it_was_allowed_in_later_messages_too(
    tmp_path: Path,
) -> None:
    gate = asyncio.Event()
    async with serving(worker("Dear", gate)) as dear, gateway(tmp_path) as site:
        at, _ = await priced(site, dear.url, dear.url)

        async def first(turn: Turn) -> None:
            async for event in turn.follow(at, "x"):
                if isinstance(event, Task | StatusUpdate):
                    return

        agent, go = messages(at, first)
        assert await in_two(agent, go) == ["MONEY_LIMIT"] * 3
        gate.set()
        await settled(site)
        assert await paid(site) == 1


@pytest.mark.parametrize(
    ("money", "came"),
    [
        ("1", ["MONEY_LIMIT", "Dear ask", "MONEY_LIMIT"]),
        ("2", ["Dear x", "Dear ask", "MONEY_LIMIT"]),
        ("3", ["Dear x", "Dear ask", "Dear x"]),
    ],
)
async def test_what_waits_for_an_answer_keeps_its_money_in_later_messages_too(
    tmp_path: Path, money: str, came: list[str]
) -> None:
    waits: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    async with serving(worker("Dear")) as dear, gateway(tmp_path) as site:
        at, _ = await priced(site, dear.url, dear.url)

        async def first(turn: Turn) -> None:
            limit = {"maxPrice": "1"}
            asked = await turn.call(at, "ask", relay=False, metadata=limit)
            waits.set_result(asked.task_id)

        agent, go = messages(at, first, money=money)
        assert await in_two(agent, go, waits) == came
        assert await paid(site) == int(money)


async def test_what_was_answered_counts_once_in_later_messages(tmp_path: Path) -> None:
    async with serving(worker("Dear")) as dear, gateway(tmp_path) as site:
        at, _ = await priced(site, dear.url, dear.url)

        async def first(turn: Turn) -> None:
            asked = await turn.call(at, "ask", relay=False)
            await turn.call(at, "this", task_id=asked.task_id)

        agent, go = messages(at, first, money="2")
        assert await in_two(agent, go) == ["Dear x", "MONEY_LIMIT", "MONEY_LIMIT"]
        assert await paid(site) == 2


def patient(at: str) -> Agent:
    """Has something wait there for as long as its own caller lets it wait."""
    agent = Agent("Patient", "Waits.", budget=Budget(money="1"))

    @agent.skill
    async def work(text: str, turn: Turn) -> str:
        waits = await turn.call(at, "ask", relay=False)
        await turn.ask("Go on?")
        came: list[str] = []
        for more in ({"context_id": "another"}, {}):
            for goes_to in ("", waits.task_id):
                try:
                    came.append((await turn.call(at, "x", task_id=goes_to, **more)).text)
                except BudgetExceeded as error:
                    came.append(error.reason)
                except A2AError:
                    came.append("refused")
        return ", ".join(came)

    return agent


async def test_what_waits_keeps_its_money_through_a_restart_and_an_answer_that_is_refused(
    tmp_path: Path,
) -> None:
    settings = Settings(stores=StoreSettings(location=str(tmp_path / "patient.db")))
    async with serving(worker("Dear")) as dear, gateway(tmp_path) as site:
        at, _ = await priced(site, dear.url, dear.url)
        app = App(patient(at), settings=settings)
        async with app.running(), Client(app=app) as client:
            asked = await within(client.send("x"))
        app = App(patient(at), settings=settings)
        async with app.running(), Client(app=app) as client:
            done = await within(client.send("yes", task_id=asked.task_id))
        assert done.text == "MONEY_LIMIT, refused, MONEY_LIMIT, Dear ask"
        assert await paid(site) == 1


async def settled(site: GatewaySite) -> None:
    """Wait until nothing is held any more."""

    async def is_so() -> bool:
        return not (await site.gateway.ledger.balance(Principal.read(""))).held

    await eventually(is_so)


class Front:
    """A server before a gateway that refuses to say how tasks stand, or holds back answers."""

    def __init__(self, app: App) -> None:
        self._app = app
        self.refuses = False
        self.open = asyncio.Event()
        self.open.set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        first = await receive()
        is_asked = b"GetTask" in first.get("body", b"")
        if self.refuses and is_asked:
            headers = [(b"content-type", b"application/json"), (b"retry-after", b"0")]
            await send({"type": "http.response.start", "status": 429, "headers": headers})
            await send({"type": "http.response.body", "body": b"{}"})
            return
        given = [first]

        async def read() -> Any:
            return given.pop() if given else await receive()

        async def write(message: Any) -> None:
            await self.open.wait()
            await send(message)

        await self._app(scope, read, write)


async def test_what_a_task_cost_is_all_it_may_where_the_gateway_will_not_say(
    tmp_path: Path,
) -> None:
    async with serving(worker("Dear")) as dear, gateway(tmp_path) as site:
        front = Front(site.app)
        async with hosting(front, lifespan="off") as url:
            at, _ = await priced(site, dear.url, dear.url)
            front.refuses = True
            agent = chief(at.replace(site.url, url), at, money="2")
            async with serving(agent) as here, Client(here.url) as client:
                asked = await within(client.send("dear dear"))
                done = await within(client.send("yes", task_id=asked.task_id))
                assert done.text == "dear x, MONEY_LIMIT, MONEY_LIMIT, MONEY_LIMIT"
        assert await paid(site) == 1


async def test_a_call_whose_task_was_never_named_may_have_cost_what_it_was_allowed(
    tmp_path: Path,
) -> None:
    async with serving(worker("Dear")) as dear, gateway(tmp_path) as site:
        front = Front(site.app)
        async with hosting(front, lifespan="off") as url:
            at, _ = await priced(site, dear.url, dear.url)
            there = at.replace(site.url, url)
            came = list[str]()

            async def first(turn: Turn) -> None:
                # Its card is read by this one, which is refused.
                with contextlib.suppress(BudgetExceeded):
                    await turn.call(there, "x", metadata={"maxPrice": "0"})
                front.open.clear()
                try:
                    async with asyncio.timeout(0.5):
                        await turn.call(there, "x")
                except TimeoutError:
                    came.append("late")
                front.open.set()
                try:
                    await turn.call(there, "x")
                except BudgetExceeded as error:
                    came.append(error.reason)

            agent, go = messages(there, first)
            assert await in_two(agent, go) == ["MONEY_LIMIT"] * 3
            assert came == ["late", "MONEY_LIMIT"]
        await settled(site)
        assert await paid(site) == 1


async def test_an_agent_that_is_not_there_costs_nothing_in_later_messages_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_call, "PATIENCE", 0.0)
    async with serving(worker("Dear")) as dear, gateway(tmp_path) as site:
        at, _ = await priced(site, dear.url, dear.url)
        nowhere = "http://127.0.0.1:9"

        async def first(turn: Turn) -> None:
            for _ in range(2):
                with pytest.raises(A2AError):
                    await turn.call(nowhere, "x")

        agent, go = messages(at, first)
        assert await in_two(agent, go) == ["Dear x", "MONEY_LIMIT", "MONEY_LIMIT"]


async def test_a_gateway_tells_what_a_task_cost_to_whoever_named_a_limit(tmp_path: Path) -> None:
    async with market(tmp_path) as (_, at):
        for url, limit, cost in (
            (at[0], "2", "1.00"),
            (at[1], "2", "0.00"),
            (at[0], None, None),
        ):
            async with Client(url) as client:
                metadata = {} if limit is None else {"maxPrice": limit}
                done = await within(client.send("x", metadata=metadata))
                told = await client.get(done.task_id)
                assert told.metadata.get(COST) == cost


def test_money_that_is_no_amount_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="must be an amount of credits"):
        Budget(money="a lot")
    assert Budget(money=2).micro_credits == 2 * MICRO
