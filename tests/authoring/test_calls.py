"""Calls of other agents that are cut short, counted, guarded and taken up again."""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from harness.serving import Site, app_of, client, hosting, serving
from harness.waiting import eventually, within

from dragoman import Agent, App, Budget, BudgetExceeded, Client, Settings, TaskState, Turn
from dragoman.authoring import agent_call, delegates
from dragoman.authoring.budget import Delegation
from dragoman.authoring.delegates import Delegates, guarded_client
from dragoman.authoring.spending import Spending
from dragoman.config import StoreSettings
from dragoman.errors import A2AError, ConfigError
from dragoman.model.card import AgentCard, AgentInterface
from dragoman.model.events import Delegated
from dragoman.model.identity import Caller, MessageId, new_id
from dragoman.model.message import Message, Part, Role
from dragoman.security.bearer_tokens import BearerTokens
from dragoman.testing.clock import ManualClock
from tests.engine.engines import House, house_over

TOKEN = "a-token-of-the-chief-0123456789"


def helper(runs: list[str], gate: asyncio.Event | None = None, name: str = "Helper") -> Agent:
    agent = Agent(name, "Helps.")

    @agent.skill
    async def help(text: str, turn: Turn) -> str:
        runs.append(text)
        if text == "ask":
            return f"got {(await turn.ask('What?')).text}"
        await turn.say("begun")
        if gate is not None:
            await gate.wait()
        return f"helped {text}"

    return agent


def once(
    url: Any, budget: Budget | None = None, deadline: float | None = None, **more: Any
) -> Agent:
    agent = Agent("Chief", "Has others work.", budget=budget, **more)

    @agent.skill(deadline=deadline)
    async def work(text: str, turn: Turn) -> str:
        try:
            return (await turn.call(url, text)).text
        except BudgetExceeded as error:
            return error.reason

    return agent


async def until(there: Site, state: str) -> None:
    """Wait until an agent has one task, and that is in a state."""

    async def is_so() -> bool:
        tasks = (await there.call("ListTasks", {}))["tasks"]
        return [one["status"]["state"] for one in tasks] == [state]

    await eventually(is_so)


# Cancels


class Mute:
    """An app whose first stream says nothing until it is left."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.is_asked = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        is_first = scope["type"] == "http" and scope["method"] == "POST"
        if not is_first or self.is_asked.is_set():
            await self.app(scope, receive, send)
            return
        self.is_asked.set()

        async def nothing(_: Any) -> None:
            return

        await self.app(scope, receive, nothing)


async def test_a_cancel_before_the_agent_has_said_anything_reaches_it() -> None:
    runs = list[str]()
    app = app_of(helper(runs, asyncio.Event()))
    mute = Mute(app)
    async with hosting(mute) as url, client(url) as http:
        there = Site(url, http, app)
        async with serving(once(url)) as here, Client(here.url) as caller:
            task = await within(caller.send("x", wait=False))
            await within(mute.is_asked.wait())
            await until(there, "TASK_STATE_WORKING")
            await within(caller.cancel(task.task_id))
            await until(there, "TASK_STATE_CANCELED")
        assert runs == ["x"]
        app.end_streams()


async def test_a_cancel_reaches_an_agent_whose_events_wait_to_be_read() -> None:
    runs, seen = list[str](), asyncio.Event()
    agent = Agent("Chief", "Has others work.")
    async with serving(helper(runs, asyncio.Event())) as there:

        @agent.skill
        async def work(text: str, turn: Turn) -> None:
            async for _ in turn.follow(there.url, text):
                seen.set()
                await asyncio.Event().wait()

        async with serving(agent) as here, Client(here.url) as caller:
            task = await within(caller.send("x", wait=False))
            await within(seen.wait())
            await within(caller.cancel(task.task_id))
            await until(there, "TASK_STATE_CANCELED")


async def test_what_was_given_before_a_restart_is_canceled_with_credentials(
    tmp_path: Path,
) -> None:
    runs = list[str]()
    tokens = BearerTokens(tokens={TOKEN: Caller("chief", True)})
    app = App(
        helper(runs, asyncio.Event()),
        settings=Settings(stores=StoreSettings(location="memory:")),
        authenticators=[tokens],
    )
    async with hosting(app) as url, client(url) as http, clocked(tmp_path) as (house, clock):
        http.headers["authorization"] = f"Bearer {TOKEN}"
        there = Site(url, http, app)
        async with Client(url, bearer=TOKEN) as before, Client(url, bearer=TOKEN) as after:
            await house.start(once(before, deadline=60))
            await within(house.send("x", wait=False))
            await until(there, "TASK_STATE_WORKING")
            # The process is not there when the time of the task is over.
            await house.die()
            clock.move_to(clock.now() + 61_000)
            await house.start(once(after, deadline=60, clients=[after]))
            await until(there, "TASK_STATE_CANCELED")


# Where calls go


async def test_an_agent_elsewhere_cannot_send_calls_to_private_addresses() -> None:
    runs = list[str]()
    async with serving(helper(runs)) as there:
        async with Client(there.url) as looking:
            own = await looking.look()

        def moved(*interfaces: tuple[str, str]) -> AgentCard:
            """Return the card of an agent that is first of all elsewhere, in no binding we know."""
            found = [AgentInterface(url, binding, "1.0") for url, binding in interfaces]
            return msgspec.structs.replace(own, supported_interfaces=found)

        async with guarded_client(moved((there.url, "JSONRPC"))) as near:
            assert (await within(near.send("x"))).text == "helped x"
        by_name = there.url.replace("127.0.0.1", "localhost")
        async with guarded_client(moved((by_name, "PIGEON"), (there.url, "JSONRPC"))) as other:
            assert (await within(other.send("x"))).text == "helped x"
        near_and_far = ("https://agent.example.com", "PIGEON"), (there.url, "JSONRPC")
        metadata = (there.url, "PIGEON"), ("http://169.254.169.254", "JSONRPC")
        for places in (near_and_far, metadata):
            one = guarded_client(moved(*places))
            with pytest.raises(A2AError, match=r"not public|not allowed"):
                await within(one.send("y"))
            await one.close()
        assert runs == ["x", "x"]


async def test_of_many_clients_those_that_nobody_uses_are_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(delegates, "MOST_IDLE", 2)
    kept = Delegates()
    async with serving(helper([])) as there:
        urls = [f"{there.url}/?{number}" for number in range(4)]
        found: list[Client] = []
        with kept.client(there.url) as used:
            for url in urls:
                with kept.client(url) as one:
                    found.append(one)
            with kept.client(urls[-1]) as again:
                assert again is found[-1]
            assert (await within(used.send("x"))).text == "helped x"
        for old in found[:2]:
            with pytest.raises(ConfigError, match="closed"):
                await within(old.send("x"))
    await kept.close()


# Budgets


async def test_a_call_under_way_is_stopped_when_its_time_is_over() -> None:
    runs = list[str]()
    async with (
        serving(helper(runs, asyncio.Event())) as there,
        serving(once(there.url, Budget(seconds=2))) as here,
        Client(here.url) as caller,
    ):
        assert (await within(caller.send("x"))).text == "TIME_LIMIT"
        await until(there, "TASK_STATE_CANCELED")


async def test_calls_side_by_side_spend_the_time_together() -> None:
    spending = Spending(Budget(seconds=60), ManualClock())
    with (
        spending.running(59.0),
        spending.running(0.9),
        pytest.raises(BudgetExceeded, match="60 s") as caught,
    ):
        async with asyncio.timeout(60), spending.waiting():
            await asyncio.Event().wait()
    assert caught.value.reason == "TIME_LIMIT"


async def test_time_that_ran_while_nobody_followed_is_spent(tmp_path: Path) -> None:
    async with (
        serving(helper([], asyncio.Event())) as there,
        clocked(tmp_path) as (house, clock),
    ):
        agent = once(there.url, Budget(seconds=60))
        await house.start(agent)
        task = await within(house.send("x", wait=False))
        await until(there, "TASK_STATE_WORKING")
        await house.die()
        clock.move_to(clock.now() + 61_000)
        await house.start(agent)
        done = await within(house.reaches(task.id, TaskState.COMPLETED))
        assert done.artifacts[0].parts[0].text == "TIME_LIMIT"
        await until(there, "TASK_STATE_CANCELED")
        await agent.delegation.close()


def pausing(url: str) -> Agent:
    agent = Agent("Tester", "Has to pause.", budget=Budget(cooldown=60))

    @agent.skill
    async def work(text: str, turn: Turn) -> str:
        came: list[str] = []
        for _ in range(2):
            try:
                came.append((await turn.call(url, text)).text)
            except BudgetExceeded as error:
                came.append(error.reason)
            await turn.ask("Go on?")
        return ", ".join(came)

    return agent


@asynccontextmanager
async def clocked(folder: Path) -> AsyncGenerator[tuple[House, ManualClock]]:
    house = house_over("sqlite", folder)
    house.clock = clock = ManualClock(time.time_ns() // 1_000_000)
    yield house, clock
    await house.stop()


@pytest.mark.parametrize(("seconds", "came"), [(59, "COOLDOWN"), (61, "helped x")])
async def test_a_pause_between_calls_is_as_long_for_a_process_that_ended(
    tmp_path: Path, seconds: int, came: str
) -> None:
    async with serving(helper([])) as there, clocked(tmp_path) as (house, clock):
        agent = pausing(there.url)
        await house.start(agent)
        task = await within(house.send("x"))
        clock.move_to(clock.now() + seconds * 1000)
        await house.restart()
        await within(house.send("yes", task=task.id))
        done = await within(house.send("yes", task=task.id))
        assert [a.parts[0].text for a in done.artifacts] == [f"helped x, {came}"]
        await agent.delegation.close()


async def test_the_answer_to_a_question_is_no_call_of_its_own() -> None:
    runs = list[str]()
    by_hand = Agent("By hand", "Answers itself.", budget=Budget(calls=1))
    async with serving(helper(runs)) as there:

        @by_hand.skill
        async def work(text: str, turn: Turn) -> str:
            asked = await turn.call(there.url, text, relay=False)
            answer = await turn.call(there.url, "that", task_id=asked.task_id)
            try:
                await turn.call(there.url, text)
            except BudgetExceeded as error:
                return f"{answer.text} {error.reason}"
            return answer.text

        async with serving(once(there.url, Budget(calls=1))) as here, Client(here.url) as caller:
            asked = await within(caller.send("ask"))
            assert asked.state is TaskState.INPUT_REQUIRED
            done = await within(caller.send("this", task_id=asked.task_id))
            assert done.text == "got this"
        async with serving(by_hand) as here, Client(here.url) as caller:
            assert (await within(caller.send("ask"))).text == "got that INVOCATION_LIMIT"


def repeated(url: str, budget: Budget, seen: list[str]) -> tuple[Agent, asyncio.Event]:
    """An agent that calls once for each message, for as long as it likes; and what ends its first
    turn."""
    agent, go = Agent("Chief", "Has others work.", budget=budget), asyncio.Event()

    @agent.skill
    async def work(text: str, turn: Turn) -> None:
        try:
            async with asyncio.timeout(1.5):
                await turn.call(url, text)
        except TimeoutError:
            seen.append("late")
        except BudgetExceeded as error:
            seen.append(error.reason)
        except A2AError:
            seen.append("failed")
        if text == "1":
            await go.wait()

    return agent, go


async def told(agent: Agent, go: asyncio.Event, *texts: str) -> None:
    """Send an agent messages for one task, and wait for its end."""
    async with serving(agent) as here, Client(here.url) as caller:
        begun = await within(caller.send("1", wait=False))
        for text in texts:
            await within(caller.send(text, wait=False, task_id=begun.task_id))
        go.set()
        await within(caller.wait(begun.task_id))


async def test_the_time_of_a_call_that_was_given_up_is_spent_in_later_messages_too() -> None:
    seen = list[str]()
    async with serving(helper([], asyncio.Event())) as there:
        await told(*repeated(there.url, Budget(seconds=2.25), seen), "2", "3")
    # The second has what the first one left.
    assert seen == ["late", "TIME_LIMIT", "TIME_LIMIT"]


async def test_a_call_that_no_task_came_of_is_counted_in_later_messages_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(agent_call, "PATIENCE", 0.0)
    seen = list[str]()
    await told(*repeated("http://127.0.0.1:9", Budget(calls=2), seen), "2", "3")
    assert seen == ["failed", "failed", "INVOCATION_LIMIT"]


def test_nobody_is_told_of_the_end_of_a_task_that_nobody_named() -> None:
    unnamed = Delegated(0, 0, "Helper", "http://127.0.0.1:9", "", seconds=1.0)
    # Whoever is told is told by a loop, and here is none.
    Delegation(Budget()).withdraw([unnamed])


# Circles


def circle(name: str, runs: list[str], urls: dict[str, str], budget: Budget) -> Agent:
    agent = Agent(name, "Has the next one do it.", budget=budget)

    @agent.skill
    async def work(text: str, turn: Turn) -> str:
        runs.append(name)
        return (await turn.call(urls[name], text)).text

    return agent


@pytest.mark.parametrize(
    ("budget", "said", "came", "text"),
    [
        (Budget(), 1, "ABA", "Invocation loop"),
        (Budget(rounds=1), 1, "ABABA", "Invocation loop"),
        (Budget(rounds=9), 1, "ABABABABA", "depth limit"),
        (Budget(depth=3, rounds=9), 1, "ABAB", "depth limit"),
        (Budget(depth=3, rounds=9), -100, "ABAB", "depth limit"),
        (Budget(depth=3, rounds=9), 2, "ABA", "depth limit"),
        (Budget(depth=3, rounds=9), True, "ABAB", "depth limit"),
    ],
)
async def test_agents_that_call_each_other_in_a_circle_come_to_an_end(
    budget: Budget, said: Any, came: str, text: str
) -> None:
    runs, urls = list[str](), dict[str, str]()
    async with (
        serving(circle("A", runs, urls, budget)) as a,
        serving(circle("B", runs, urls, budget)) as b,
        Client(a.url) as caller,
    ):
        urls.update(A=b.url, B=a.url)
        done = await within(caller.send("x", metadata={"depth": said}))
        assert text in done.text
        assert "".join(runs) == came


async def test_a_task_does_not_wait_for_itself_or_for_one_that_waits_for_it() -> None:
    """The helper is called, and calls back into the task that waits for it."""
    agent = Agent("Chief", "Has others work.")
    back, urls = Agent("Back", "Calls back."), list[str]()

    @back.skill
    async def call_back(text: str, turn: Turn) -> str:
        (above,) = turn.message.reference_task_ids
        return (await turn.call(urls[0], "x", task_id=above)).text

    async with serving(back) as there:

        @agent.skill
        async def work(text: str, turn: Turn) -> str:
            return (await turn.call(there.url, text)).text

        @agent.skill
        async def itself(text: str, turn: Turn) -> str:
            return (await turn.call(urls[0], text, task_id=turn.task_id)).text

        async with serving(agent) as here, Client(here.url) as caller:
            urls.append(here.url)
            for skill in ("work", "itself"):
                done = await within(caller.send("x", metadata={"skillId": skill}))
                assert done.text == "Invocation loop: the task would wait for itself."


async def test_what_a_caller_refers_to_is_no_circle_and_goes_no_further() -> None:
    runs = list[str]()
    async with (
        serving(helper(runs)) as there,
        serving(once(there.url)) as here,
        Client(here.url) as caller,
    ):
        before = await within(caller.send("ask"))
        said = Message(
            MessageId(new_id()), Role.USER, [Part(text="x")], reference_task_ids=[before.task_id]
        )
        done = await within(caller.send(said))
        assert done.text == "helped x"
        (last, _) = (await there.call("ListTasks", {"historyLength": 5}))["tasks"]
        assert last["history"][0]["referenceTaskIds"] == [done.task_id]


async def test_cards_of_one_name_are_not_one_agent_to_a_budget() -> None:
    agent = Agent("Chief", "Has others work.", budget=Budget(agents=1))
    async with (
        serving(helper([])) as first,
        serving(helper([])) as second,
        Client(first.url) as one,
        Client(second.url) as two,
    ):
        cards = [await one.look(), await two.look()]

        @agent.skill
        async def work(text: str, turn: Turn) -> str:
            came: list[str] = []
            for place in (0, 0, 1):
                try:
                    came.append((await turn.call(cards[place], text)).text)
                except BudgetExceeded as error:
                    came.append(error.reason)
            return ", ".join(came)

        async with serving(agent) as here, Client(here.url) as caller:
            done = await within(caller.send("x"))
            assert done.text == "helped x, helped x, UNIQUE_AGENT_LIMIT"


# Code that goes on


def impatient(url: str, how: str) -> Agent:
    agent = Agent("Impatient", "Does not wait.")

    @agent.skill
    async def work(text: str, turn: Turn) -> str:
        came = "came"
        if how == "follow":
            async with contextlib.aclosing(turn.follow(url, text)) as events:
                came = type(await anext(events)).__name__
        else:
            try:
                async with asyncio.timeout(2):
                    await turn.call(url, text)
            except TimeoutError:
                came = "late"
        return f"{came}, {(await turn.ask('Go on?')).text}"

    return agent


@pytest.mark.parametrize(("how", "came"), [("follow", "Task"), ("call", "late")])
async def test_a_call_that_the_code_gave_up_is_given_up_again(
    tmp_path: Path, how: str, came: str
) -> None:
    runs, settings = (
        list[str](),
        Settings(stores=StoreSettings(location=str(tmp_path / "chief.db"))),
    )
    async with serving(helper(runs, asyncio.Event())) as there:
        app = App(impatient(there.url, how), settings=settings)
        async with app.running(), Client(app=app) as caller:
            asked = await within(caller.send("x"))
            assert asked.text == "Go on?"
        app = App(impatient(there.url, how), settings=settings)
        async with app.running(), Client(app=app) as caller:
            done = await within(caller.send("yes", task_id=asked.task_id))
            assert done.text == f"{came}, yes"
        assert runs == ["x"]


async def test_a_cancel_after_a_restart_reaches_an_agent_that_waits(tmp_path: Path) -> None:
    settings = Settings(stores=StoreSettings(location=str(tmp_path / "chief.db")))
    async with serving(helper([])) as there:
        app = App(once(there.url), settings=settings)
        async with app.running(), Client(app=app) as caller:
            asked = await within(caller.send("ask"))
        app = App(once(there.url), settings=settings)
        async with app.running(), Client(app=app) as caller:
            await within(caller.cancel(asked.task_id))
            await until(there, "TASK_STATE_CANCELED")
