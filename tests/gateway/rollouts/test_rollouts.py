"""New versions of agents are tried: what they do reaches no caller, ledger or receiver, and each
task is counted once."""

import asyncio
import json
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from harness.serving import message, serving
from harness.stub_servers import answering
from harness.waiting import eventually, within

from dragoman import Agent, Turn
from dragoman.errors import StoreUnavailable
from dragoman.gateway.registry.registration import AgentChanges
from dragoman.gateway.rollouts import rollouts
from dragoman.gateway.rollouts.definition import (
    MOST_OPEN,
)
from dragoman.model.clock import SystemClock
from dragoman.model.money import MICRO
from dragoman.stores.interface import Survey
from tests.gateway.gateway_site import Restartable
from tests.gateway.rollouts.greeters import OWNER, Books, Greeter, Stage, stage, text_of, versions

pytestmark = pytest.mark.anyio
NAMES = ("ann", "bob", "cleo", "dora", "eve", "finn")


async def test_a_shadowed_task_reaches_its_caller_ledger_and_receiver_once(location: str) -> None:
    async with stage(location, price=MICRO) as site:
        books = Books(site)
        (before,) = await site.greet("warm up")
        id = await site.begin()
        held = await books.transfers()
        with receiver() as (url, posts):
            push = {"taskPushNotificationConfig": {"url": url, "id": "r"}}
            tasks = await site.greet(*NAMES, configuration=push)
            figures = await site.figures_when(id, lambda one: one.judged == len(NAMES))
            ended = [task["id"] for task in tasks]
            states = await eventually(lambda: len(finals(posts)) >= len(NAMES) and finals(posts))
        assert (figures.agreed, figures.failed, figures.dropped) == (len(NAMES), 0, 0)
        assert figures.old.tasks == figures.new.tasks == len(NAMES)
        # Both did each task once, and the old one answered.
        assert sorted(site.new.told) == sorted(NAMES)
        assert site.old.told == ["warm up", *NAMES]
        # A caller sees its own tasks, and nothing of the copies.
        listed = (await site.call("ListTasks", {}))["tasks"]
        assert {one["id"] for one in listed} == {before["id"], *ended}
        assert sorted(states) == sorted(ended), "each receiver is told once, of the caller's task"
        # The ledger has what it would have without the copies, and so does trust.
        assert held and len(await books.transfers()) == len(held) + len(NAMES) * len(own(held))
        assert await books.counted(site.agent.id) == (1 + len(NAMES), 0)
        assert await books.counted(site.candidate.id) == (0, 0)
        await books.check()
        # No credential says that it is this one: the copies are in nobody's lists.
        assert await books.owners("gateway.rollouts") == ["rollout:olga"] * len(NAMES)
        assert await books.owners("gateway") == [""] * (1 + len(NAMES))


@pytest.mark.parametrize("hours", (-1, 1))
async def test_a_rollout_is_about_the_tasks_that_end_after_its_beginning_whatever_clocks_say(
    location: str, hours: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stage(location) as site:
        await site.greet("before")
        moved = SystemClock().now() + hours * 3_600_000

        def now(_: SystemClock) -> int:
            return moved

        with monkeypatch.context() as patched:
            patched.setattr(SystemClock, "now", now)
            id = await site.begin()
        await site.greet("ann", "bob")
        await site.figures_when(id, lambda one: one.judged >= 2)
        assert site.new.told == ["ann", "bob"]
        assert (await site.found(id)).figures.old.tasks == 2


def own(kinds: list[str]) -> list[str]:
    """Return the transfers of a task, without those that open accounts."""
    return [kind for kind in kinds if kind in ("hold", "capture", "release")]


@contextmanager
def receiver() -> Generator[tuple[str, list[Any]]]:
    """Yield the address of a receiver and what was posted to it."""
    posts: list[Any] = []

    def handle(verb: str, path: str, headers: dict[str, str], body: bytes) -> Any:
        posts.append(json.loads(body))
        return 200, {}, b""

    with answering(handle) as port:
        yield f"http://127.0.0.1:{port}/", posts


def finals(posts: list[Any]) -> list[str]:
    """Return the ids of tasks whose end was posted."""
    found: list[str] = []
    for post in posts:
        update: Any = post.get("statusUpdate") or {}
        if update.get("status", {}).get("state") == "TASK_STATE_COMPLETED":
            found.append(update["taskId"])
        task: Any = post.get("task") or {}
        if task.get("status", {}).get("state") == "TASK_STATE_COMPLETED":
            found.append(task["id"])
    return found


async def test_each_task_counts_once_whatever_process_ends_where(
    location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stage(location) as site:
        id = await site.begin()
        await site.greet(*NAMES)
        change = site.gateway.store.rollouts.change
        writes = 0

        async def dies(row: Any) -> bool:
            nonlocal writes
            writes += 1
            if writes % 2:
                # Half of the times before the write, half of the times after it.
                if writes % 4 == 1:
                    await change(row)
                raise StoreUnavailable("killed")
            return await change(row)

        with monkeypatch.context() as broken:
            broken.setattr(site.gateway.store.rollouts, "change", dies)

            async def is_counted() -> bool:
                try:
                    await site.gateway.trust.digest()
                    await site.rollouts.sweep()
                except StoreUnavailable:
                    pass
                # What another process would not know either.
                site.rollouts._judging.keep(())  # pyright: ignore[reportPrivateUsage] - as a crash
                return (await site.found(id)).figures.judged >= len(NAMES)

            await eventually(is_counted)
        figures = await site.figures_when(id, lambda one: one.judged == len(NAMES))
        assert figures.agreed == figures.new.tasks == figures.old.tasks == len(NAMES)
        assert sorted(site.new.told) == sorted(NAMES), "one copy of each"


async def test_a_gateway_that_starts_again_goes_on_with_the_copies(tmp_path: Path) -> None:
    location = str(tmp_path / "gateway.db")
    release = asyncio.Event()

    async def slow(text: str, turn: Turn) -> str:
        await release.wait()
        return f"Good day to you, {text}, and a fine one"

    async with versions() as given:
        given[1].answer = slow
        async with stage(location, given) as site:
            id = await site.begin()
            (task,) = await site.greet("ann")
            assert text_of(task).startswith("Good day")
            await site.figures_when(id, lambda _: given[1].told)
        release.set()
        async with stage(location, given) as site:
            figures = await site.figures_when(id, lambda one: one.judged)
            assert (figures.judged, figures.agreed, figures.old.tasks) == (1, 1, 1)
            assert given[1].told == ["ann"]


# What a new version may do


def other(text: str, turn: Turn) -> Any:
    return "Something else that has nothing to do with it"


def data(text: str, turn: Turn) -> Any:
    return {"greeting": text}


def fails(text: str, turn: Turn) -> Any:
    raise ValueError(text)


async def asks(text: str, turn: Turn) -> Any:
    return (await turn.ask("Who are you?")).text


async def hangs(text: str, turn: Turn) -> Any:
    await asyncio.Event().wait()


def much(text: str, turn: Turn) -> Any:
    return "Good day to you! " * 200_000


def deep(text: str, turn: Turn) -> Any:
    found: Any = {}
    for _ in range(20):
        found = {"more": found}
    return found


async def test_how_answers_differ_is_counted_and_callers_see_none_of_it() -> None:
    expected = {
        "ann": (None, "agreed"),
        "bob": (other, "text"),
        "cleo": (data, "structure"),
        "dora": (fails, "failed"),
        "eve": (asks, "failed"),
        "finn": (hangs, "failed"),
        "gus": (much, "text"),
        "hugo": (deep, "structure"),
    }
    async with stage("memory:") as site:
        usual = site.new.answer

        def answer(text: str, turn: Turn) -> Any:
            return (expected[text][0] or usual)(text, turn)

        site.new.answer = answer
        id = await site.begin(timeout_seconds=3)
        tasks = await within(site.greet(*expected))
        assert all(text_of(task).startswith("Good day to you, ") for task in tasks)
        figures = await site.figures_when(id, lambda one: one.judged == len(expected))
        found = await site.found(id)
        names = {task["id"]: name for task, name in zip(tasks, expected, strict=True)}
        results = {names[one.task_id]: one.result for one in found.recent}
        assert results == {name: result for name, (_, result) in expected.items()}
        assert (figures.agreed, figures.text, figures.structure, figures.failed) == (1, 2, 2, 3)
        assert figures.new.failed == 3 and figures.old.failed == 0
        reasons = {names[one.task_id]: one.reason for one in found.recent}
        assert reasons["eve"] == "it asked back" and "time" in reasons["finn"].lower()
        books = Books(site)
        assert await books.counted(site.agent.id) == (len(expected), 0)
        assert await books.counted(site.candidate.id) == (0, 0)
        assert len((await site.call("ListTasks", {}))["tasks"]) == len(expected)
        await eventually(lambda: copies_have_ended(site))


async def copies_have_ended(site: Stage) -> bool:
    rows = await site.gateway.store.survey(Survey(limit=1000, agent="gateway.rollouts"))
    return all(row.standing.state.is_terminal for row in rows)


async def test_copies_that_are_too_many_are_dropped_and_counted() -> None:
    async with stage("memory:") as site:
        site.new.answer = hangs
        id = await site.begin(timeout_seconds=60)
        count = MOST_OPEN + 6
        await within(asyncio.gather(*(site.greet(f"n{number}") for number in range(count))))
        figures = await site.figures_when(id, lambda one: one.old.tasks == count)
        assert figures.dropped == 6
        await eventually(lambda: len(site.new.told) == 8)
        assert len((await site.found(id)).open) == MOST_OPEN
        # What is under way ends with the rollout, and is not counted as a failure.
        await site.rollouts.roll_back(id, OWNER, "enough")
        ended = await site.found(id)
        assert (ended.figures.dropped, ended.figures.failed, ended.open) == (count, 0, [])

        await eventually(lambda: copies_have_ended(site))
        assert len(site.new.told) == 8


async def test_a_new_version_that_is_away_leaves_the_ledger_alone() -> None:
    async with versions() as given, Restartable(given[1].agent) as gone:
        given[1].url = gone.url
        async with stage("memory:", given, price=MICRO) as site:
            id = await site.begin(timeout_seconds=2)
            await gone.stop()
            (task,) = await site.greet("ann")
            assert text_of(task).startswith("Good day")
            figures = await site.figures_when(id, lambda one: one.judged)
            assert (figures.failed, figures.agreed) == (1, 0)
            books = Books(site)
            assert len(own(await books.transfers())) == 2
            assert await books.counted(site.candidate.id) == (0, 0)
            await books.check()


async def test_a_caller_cannot_say_where_its_copy_goes() -> None:
    async with stage("memory:") as site, serving(Greeter("Stranger").agent) as third:
        stranger = await site.register(third.url, "mallory", repeatable=True)
        site.new.answer = fails
        id = await site.begin()
        for named in (site.agent.id, site.agent.name):
            sent = message("ann", metadata={"agentId": named, "race": 1, "timeoutSeconds": 900})
            await site.call("SendMessage", {"message": sent})
        await site.figures_when(id, lambda one: one.judged == 2)
        assert site.new.told == ["ann", "ann"] and site.old.told == ["ann", "ann"]
        assert await Books(site).counted(stranger.id) == (0, 0)


async def test_a_task_that_asked_back_is_not_copied() -> None:
    async with stage("memory:") as site:
        site.old.answer = asks
        id = await site.begin()
        (task,) = await site.greet("ann")
        sent = message("me", taskId=task["id"], contextId=task["contextId"])
        assert text_of(await site.send_message(sent)) == "me"
        figures = await site.figures_when(id, lambda one: one.skipped)
        assert (figures.skipped, figures.judged, site.new.told) == (1, 0, [])


async def test_tasks_that_are_not_safe_to_repeat_are_not_copied() -> None:
    async with stage("memory:") as site:
        id = await site.begin()
        changes = AgentChanges(repeatable=False)
        await site.gateway.registry.update(site.agent.id, changes, OWNER)
        await site.greet("ann")
        await site.figures_when(id, lambda one: one.old.tasks == 1)
        assert (await site.found(id)).open == [] and site.new.told == []
        await site.rollouts.roll_back(id, OWNER, "enough")
        row = await site.rollouts.one(await begin_unsafe(site), None)
        await site.greet("bob")
        assert row is not None and site.old.told == ["ann", "bob"] and site.new.told == []


GREET_ALONE = AgentChanges(repeatable=False, repeatable_skills=["greet"])


def naming(text: str, **metadata: str) -> dict[str, Any]:
    return message(text, metadata=dict(metadata))


@pytest.mark.parametrize("mode", ("shadow", "canary"))
async def test_only_tasks_of_the_skills_that_are_safe_to_repeat_reach_the_new_version(
    location: str, mode: str
) -> None:
    async with versions() as given:
        async with stage(location, given) as site:
            await site.gateway.registry.update(site.agent.id, GREET_ALONE, OWNER)
            id = await site.begin(mode=mode)
            sent = [
                {"message": naming("ann", skillId="greet")},
                {"message": message("bob"), "metadata": {"skill": "greet"}},
                {"message": naming("ten", skillId="pay")},
                # It names no skill: the agent decides.
                {"message": message("cleo")},
                # An agent reads the message first.
                {"message": naming("nine", skill="pay"), "metadata": {"skillId": "greet"}},
            ]
            path = f"/a2a/{site.agent.name}"
            for one in sent:
                done = (await site.call("SendMessage", one, path=path))["task"]
                assert done["status"]["state"] == "TASK_STATE_COMPLETED"
            await site.figures_when(id, lambda one: one.judged == 2 and one.old.tasks >= 3)
            assert site.new.told == ["ann", "bob"]
            assert site.old.told[-3:] == ["pay ten", "cleo", "pay nine"]
        if location != "memory:":
            async with stage(location, given) as site:
                assert site.agent.repeatable_skills == ["greet"]


async def test_a_task_is_not_copied_once_its_skill_is_not_safe_to_repeat_any_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Only this test looks.
    monkeypatch.setattr(rollouts, "TICK", 3_600_000)
    async with stage("memory:") as site:
        registry = site.gateway.registry
        await registry.update(site.agent.id, GREET_ALONE, OWNER)
        id = await site.begin()
        await site.send_message(naming("ann", skillId="greet"))
        assert not await site.look_and_tell(site.new, "ann")
        assert len((await site.found(id)).open) == 1
        await registry.update(site.agent.id, AgentChanges(repeatable_skills=["pay"]), OWNER)
        figures = await site.figures_when(id, lambda one: one.skipped)
        assert (figures.skipped, figures.judged, site.new.told) == (1, 0, [])


async def test_a_skill_that_the_gateway_supposed_by_the_words_is_not_one_that_was_named() -> None:
    async with stage("memory:") as site:
        await site.gateway.registry.update(
            site.agent.id, AgentChanges(repeatable=False, repeatable_skills=["pay"]), OWNER
        )
        id = await site.begin()
        await site.call("SendMessage", {"message": message("pay pays")})
        figures = await site.figures_when(id, lambda one: one.skipped)
        assert (figures.judged, site.old.told, site.new.told) == (0, ["pay pays"], [])


async def begin_unsafe(site: Stage) -> str:
    """Begin a canary, and withdraw what was declared of its agent."""
    registry = site.gateway.registry
    await registry.update(site.agent.id, AgentChanges(repeatable=True), OWNER)
    id = await site.begin(mode="canary")
    await registry.update(site.agent.id, AgentChanges(repeatable=False), OWNER)
    return id


async def test_an_end_by_its_owner_meanwhile_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    async with stage("memory:") as site:
        may_answer, is_looking = asyncio.Event(), asyncio.Event()

        async def slow(text: str, turn: Turn) -> str:
            await may_answer.wait()
            return text

        site.new.answer = slow
        id = await site.begin()
        await site.greet("ann")
        await site.figures_when(id, lambda _: site.new.told)
        trust = site.gateway.store.accounting.trust
        after = trust.after

        async def ends_it(*given: Any) -> Any:
            # By now the look has judged the copy, and has yet to write that.
            if await copies_have_ended(site) and not is_looking.is_set():
                is_looking.set()
                await site.rollouts.roll_back(id, OWNER, "enough")
            return await after(*given)

        monkeypatch.setattr(trust, "after", ends_it)
        may_answer.set()
        await eventually(lambda: copies_have_ended(site))
        await site.rollouts.sweep()
        found = await site.found(id)
        assert (found.state, found.figures.judged, found.figures.dropped) == ("rolledBack", 0, 1)


async def test_tasks_of_other_agents_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollouts, "_READ", 2)
    async with stage("memory:") as site, serving(Greeter("Stranger").agent) as third:
        stranger = await site.register(third.url)
        id = await site.begin()
        for number in range(5):
            path = f"/a2a/{stranger.name}"
            await site.call("SendMessage", {"message": message(f"n{number}")}, path=path)
        await site.greet("ann")
        figures = await site.figures_when(id, lambda one: one.judged)
        assert (figures.judged, figures.old.tasks) == (1, 1)


# The owner's check


def checker(told: list[Any]) -> Agent:
    agent = Agent("Checker", "Tells whether an answer is right.")

    @agent.skill(default=True)
    async def agrees(asked: dict[str, Any], before: dict[str, Any] | None, after: dict[str, Any]):
        """Tells whether an answer is right."""
        told.append((asked["text"], before and before["text"], after["text"]))
        return {"agrees": asked["text"] in after["text"]}

    return agent


@pytest.mark.parametrize("mode", ("shadow", "canary"))
async def test_the_owners_check_has_the_last_word(mode: str) -> None:
    told: list[Any] = []
    async with stage("memory:") as site, serving(checker(told)) as third:
        check = await site.register(third.url, OWNER.owner)
        site.new.answer = lambda text, _: (
            "Good day to you, anonymous, and a fine one" if text == "bob" else "Hello " + text
        )
        id = await site.begin(mode=mode, max_distance=1.0, check_agent_id=check.name)
        await site.greet("ann", "bob")
        figures = await site.figures_when(id, lambda one: one.judged == 2)
        assert (figures.agreed, figures.check, figures.failed) == (1, 1, 0)
        before = "Good day to you, ann, and a fine one" if mode == "shadow" else None
        assert ("ann", before, "Hello ann") in told and len(told) == 2
        assert await Books(site).counted(check.id) == (0, 0)
