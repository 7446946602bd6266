"""Agents with so much money for each task, whose calls go through a gateway that takes it."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from carrying import GatewaySite, gateway
from serving import serving, within

from dragoman import Agent, App, Budget, BudgetExceeded, Client, Settings, TaskState, Turn
from dragoman.errors import ConfigError
from dragoman.model.money import COST, MICRO


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
    balance = await site.gateway.ledger.balance("")
    assert balance.held == 0
    return 1000 - balance.available / MICRO


async def test_a_task_spends_no_more_than_its_money_also_after_a_restart(tmp_path: Path) -> None:
    settings = Settings(store=str(tmp_path / "chief.db"))
    async with (
        serving(worker("Dear")) as dear,
        serving(worker("Free")) as free,
        gateway(tmp_path) as site,
    ):
        at = await priced(site, dear.url, free.url)
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
    async with (
        serving(worker("Dear")) as dear,
        serving(worker("Free")) as free,
        gateway(tmp_path) as site,
    ):
        at = await priced(site, dear.url, free.url)
        async with serving(chief(*at, money=None)) as here, Client(here.url) as client:
            asked = await within(client.send("dear dear"))
            done = await within(client.send("yes", task_id=asked.task_id))
            assert done.text == "dear x, dear x, dear x, free x"
        assert await paid(site) == 3


async def test_calls_side_by_side_spend_the_money_together(tmp_path: Path) -> None:
    async with (
        serving(worker("Dear")) as dear,
        serving(worker("Free")) as free,
        gateway(tmp_path) as site,
    ):
        at = await priced(site, dear.url, free.url)
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
    async with (
        serving(worker("Dear", gate)) as dear,
        serving(worker("Free")) as free,
        gateway(tmp_path) as site,
    ):
        at = await priced(site, dear.url, free.url)
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
    async with (
        serving(worker("Dear")) as dear,
        serving(worker("Free")) as free,
        gateway(tmp_path) as site,
    ):
        at = await priced(site, dear.url, free.url)
        async with serving(chief(*at, money="2")) as here, Client(here.url) as client:
            done = await within(client.send("x", metadata={"skillId": "asked"}))
            assert done.text == "MONEY_LIMIT, dear x, MONEY_LIMIT"
        assert await paid(site) == 2


async def test_a_gateway_tells_what_a_task_cost_to_whoever_named_a_limit(tmp_path: Path) -> None:
    async with (
        serving(worker("Dear")) as dear,
        serving(worker("Free")) as free,
        gateway(tmp_path) as site,
    ):
        at = await priced(site, dear.url, free.url)
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
