"""The log of a task: windows, streams, timelines; and that none grows with the log."""

import asyncio
import contextlib
import json
import time
from itertools import pairwise
from typing import Any

import pytest
from harness.serving import Frame, frames
from harness.waiting import eventually, within
from msgspec.structs import replace

from dragoman import Agent, Turn
from dragoman.dialects.v0_3 import V0_3
from dragoman.model.events import StatusUpdate
from dragoman.model.identity import ContextId, Scope, TaskId
from dragoman.model.push import PushConfig
from dragoman.model.record import Recorded
from dragoman.model.task import TaskState, TaskStatus
from dragoman.stores.interface import Append, Create, Survey, TaskPosition, write
from dragoman.testing.promises.samples import numbered, opening
from tests.http.test_access_control import ALICE, BOSS, bearer
from tests.server.operator.operator_site import API, OperatorSite, operator_site


async def windows(site: OperatorSite, task: str, token: str = BOSS, **query: Any) -> list[Any]:
    found: list[Any] = []
    after = 0
    while True:
        page = await site.read(f"/tasks/{task}/events", token, after=after, **query)
        found += page["items"]
        after = page["nextAfter"]
        if not after:
            return found


async def test_windows_of_any_size_make_the_whole_log(location: str) -> None:
    async with operator_site(location=location) as site:
        task = await site.made("7", skill="count")
        whole = (await site.read(f"/tasks/{task}/events", limit=500))["items"]
        last = whole[-1]["position"]
        assert [one["position"] for one in whole] == list(range(1, last + 1))
        assert whole[0]["kind"] == "task" and whole[-1]["kind"] == "status"
        assert whole[0]["at"] and whole[0]["event"]["task"]["id"] == task
        for limit in (1, 2, 3, 500):
            assert await windows(site, task, limit=limit) == whole
        for before in (1, 2, 5, last + 1):
            found = await site.read(f"/tasks/{task}/events", before=before, limit=3)
            assert found["items"] == whole[max(0, before - 4) : before - 1]
        assert (await site.ask(f"/tasks/{task}/events", limit=501)).status_code == 400


async def test_an_owner_sees_what_streams_show_and_what_was_said(location: str) -> None:
    """What the agent's code did is for its operator."""
    async with operator_site(location=location) as site:
        task = await site.made("x", skill="order")
        await site.post("/inbox", {"id": task, "value": {"size": "M"}}, ALICE)
        await within(follow(site, task, BOSS, None))
        whole = await windows(site, task)
        assert {one["kind"] for one in whole} > {"task", "status", "message", "step"}
        for limit in (1, 2, 100):
            own = await windows(site, task, ALICE, limit=limit)
            assert {one["kind"] for one in own} <= {"task", "status", "artifact", "message"}
            shown = [one for one in whole if one["isPublic"] or one["kind"] == "message"]
            assert [one["position"] for one in own] == [one["position"] for one in shown]


async def test_events_are_shown_as_callers_of_each_version_get_them() -> None:
    async with operator_site() as site:
        task = await site.made("2", skill="count")
        stored = [one for one in await windows(site, task) if one["isPublic"]]
        newest = await windows(site, task, version="1.0")
        assert [one["event"] for one in newest] == [one["event"] for one in stored]
        older = await windows(site, task, version="0.3")
        for one, two in zip(stored, older, strict=True):
            recorded = Recorded.of_body(one["position"], json.dumps(one["event"]).encode())
            assert two["event"] == json.loads(V0_3.encode_event(recorded))


async def follow(site: OperatorSite, task: str, token: str, after: int | None) -> list[Frame]:
    headers = bearer(token) | ({} if after is None else {"last-event-id": str(after)})
    path = f"{API}/tasks/{task}/events/stream"
    async with site.http.stream("GET", path, headers=headers) as response:
        assert response.status_code == 200
        assert response.headers["content-type"] == "text/event-stream"
        return [frame async for frame in frames(response)]


async def test_a_stream_has_the_log_from_any_position_to_the_end(location: str) -> None:
    async with operator_site(location=location) as site:
        task = await site.made("4", skill="count")
        whole = (await site.read(f"/tasks/{task}/events", limit=500))["items"]
        for after in (None, 0, 1, 3, len(whole), 10**6):
            found = await within(follow(site, task, BOSS, after))
            start = after if after is not None and after <= len(whole) else 0
            assert [one.data for one in found[:-1]] == whole[start:]
            assert found[-1].event == "end"
            assert [one.id for one in found[:-1]] == [str(one["position"]) for one in whole[start:]]
        shown = [one for one in whole if one["isPublic"] or one["kind"] == "message"]
        assert [one.data for one in await follow(site, task, ALICE, None)][:-1] == shown


async def test_a_stream_shows_what_happens_while_it_is_read() -> None:
    async with operator_site() as site:
        task = await site.made("x", skill="order")

        async def until_the_end() -> list[str]:
            kinds: list[str] = []
            path = f"{API}/tasks/{task}/events/stream"
            async with site.http.stream("GET", path, headers=bearer(BOSS)) as response:
                async for frame in frames(response):
                    if frame.event == "end":
                        return kinds
                    if frame.data is None:
                        continue
                    kinds.append(frame.data["kind"])
                    state = frame.data["event"].get("statusUpdate", {}).get("status", {})
                    if state.get("state") == "TASK_STATE_INPUT_REQUIRED":
                        body = {"id": task, "value": {"size": "M"}}
                        assert (await site.post("/inbox", body, ALICE)).status_code == 200
            raise AssertionError("the stream ended without its end")

        kinds = await within(until_the_end())
        assert "step" in kinds and "message" in kinds and kinds[0] == "task"


async def test_a_timeline_has_states_steps_and_questions() -> None:
    async with operator_site() as site:
        task = await site.made("x", skill="order")
        await site.post("/inbox", {"id": task, "value": {"size": "S"}}, ALICE)
        await within(follow(site, task, BOSS, None))
        found = await site.read(f"/tasks/{task}/transitions")
        assert found["nextAfter"] == 0
        states = [one["state"] for one in found["items"] if "state" in one]
        assert states[0] == "TASK_STATE_SUBMITTED" and states[-1] == "TASK_STATE_COMPLETED"
        assert "TASK_STATE_INPUT_REQUIRED" in states
        assert any(one["kind"] == "ask" and "ask" in one["text"] for one in found["items"])
        own = (await site.read(f"/tasks/{task}/transitions", ALICE))["items"]
        assert {one["kind"] for one in own} == {"task", "status", "message", "artifact"}


async def test_a_timeline_counts_chunks_that_were_recorded_one_after_the_other(
    location: str,
) -> None:
    """It reads the first of each run alone: what lies between two other events is chunks."""
    agent = Agent("Writer", "writes, and says where it is")

    @agent.skill
    async def write_on(text: str, turn: Turn) -> str:
        for name in text.split():
            async with turn.artifact(name=name) as made:
                for word in ("one", "two", "three"):
                    await made.write(word)
                await turn.say(f"{name} is almost written")
                await made.write("four")
            await turn.say(f"{name} is written")
        return "a summary"

    async with operator_site(agent, location=location) as site:
        task = await site.made("intro report", skill="write_on")
        whole = await windows(site, task)
        runs: list[tuple[int, int, str]] = []
        names: dict[str, str] = {}
        for before, one in pairwise(whole):
            if one["kind"] == "artifact":
                if before["kind"] == "artifact":
                    begin, count, name = runs.pop()
                    runs.append((begin, count + 1, name))
                else:
                    made = one["event"]["artifactUpdate"]["artifact"]
                    name = names.setdefault(made["artifactId"], made.get("name"))
                    runs.append((one["position"], 1, name))
        assert [name for *_, name in runs] == [*("intro", "intro", "report", "report", "write_on")]
        assert runs[0][1] >= 3
        for token in (BOSS, ALICE):
            items = (await site.read(f"/tasks/{task}/transitions", token))["items"]
            assert [one["position"] for one in items] == sorted(one["position"] for one in items)
            made = [one for one in items if one["kind"] == "artifact"]
            assert [(one["position"], one["chunks"], one["text"]) for one in made] == runs
        # From the middle of a run on, and with nothing behind the last chunks.
        begin, count, name = runs[0]
        rest = (await site.read(f"/tasks/{task}/transitions", after=begin))["items"]
        assert (rest[0]["position"], rest[0]["chunks"]) == (begin + 1, count - 1)


async def test_chunks_at_the_end_of_a_log_are_counted() -> None:
    agent = Agent("Writer", "writes, and does not end")

    @agent.skill
    async def wait(text: str, turn: Turn) -> None:
        async with turn.artifact(name="report") as made:
            for _ in range(3):
                await made.write(text)
            await asyncio.Event().wait()

    async with operator_site(agent) as site:
        task = await site.made(skill="wait")

        async def is_counted() -> bool:
            found = await site.read(f"/tasks/{task}/transitions")
            last = found["items"][-1]
            return last.get("chunks") == 3 and found["nextAfter"] == 0

        await eventually(is_counted)


async def test_a_timeline_says_when_steps_were_and_how_long_they_took() -> None:
    agent = Agent("Walker", "does it step by step")

    @agent.skill
    async def walk(text: str, turn: Turn) -> str:
        await turn.step("first", asyncio.sleep, 0.01)
        with contextlib.suppress(ValueError):
            await turn.step("wrong", int, "x")
        await turn.sleep(0.02, name="rest")
        return "there"

    async with operator_site(agent) as site:
        task = await site.made("x", skill="walk")
        items = (await site.read(f"/tasks/{task}/transitions"))["items"]
        steps = {one["text"]: one for one in items if one["kind"] in ("step", "sleep")}
        assert list(steps) == ["first", "failure wrong", "sleep rest"]
        times = [one["at"] for one in items if one["kind"] != "artifact"]
        assert all(times) and times == sorted(times)
        assert steps["first"]["seconds"] >= 0.01 and steps["sleep rest"]["seconds"] == 0.02
        assert [steps[name]["kind"] for name in steps] == ["step", "step", "sleep"]
        whole = (await site.read(f"/tasks/{task}/events", limit=50))["items"]
        assert all(one["at"] for one in whole if one["kind"] == "step")


@pytest.mark.parametrize("events", [100_000])
async def test_a_long_task_is_read_by_windows(tmp_path: Any, events: int) -> None:
    """What a window costs does not grow with the log before and after it."""
    async with operator_site(location=str(tmp_path / "tasks.db")) as site:
        store, scope = site.app.store, Scope("clerk", "", "token:alice")
        first = numbered([opening("long", "c")])
        standing = TaskPosition(TaskState.WORKING, 1000, 1)
        made = Create(scope, TaskId("long"), ContextId("c"), [], first, standing, None)
        number = await write(store, made)
        status = TaskStatus(TaskState.WORKING, timestamp="2026-01-01T00:00:00.000Z")
        update = StatusUpdate(TaskId("long"), ContextId("c"), status)
        for begin in range(2, events, 5000):
            block = [
                Recorded.of_event(seq, update)
                for seq in range(begin, min(begin + 5000, events + 1))
            ]
            after = TaskPosition(TaskState.WORKING, 1000, block[-1].seq)
            head = await store.head(scope, TaskId("long"))
            assert head is not None
            fence = head.fence
            await write(
                store, Append(number, scope, standing, fence, fence, [], block, after, None)
            )
            standing = after
        began = time.perf_counter()
        for place in (0, events // 2, events - 150):
            window = await site.read("/tasks/long/events", after=place, limit=100)
            assert window["items"][0]["position"] == place + 1
            assert len(window["items"]) == 100
        await site.read("/tasks/long")
        timeline = await site.read("/tasks/long/transitions")
        assert timeline["nextAfter"] >= 500
        took = time.perf_counter() - began
        print(f"five reads of a log of {events} events took {took * 1000:.0f} ms")
        # Reading all of it takes many times as long; a busy machine does not.
        assert took < 5


async def test_what_receivers_were_sent_is_told_and_why_to_operators_alone() -> None:
    async with operator_site() as site:
        task = await site.made("x", ALICE)
        store = site.app.store
        (head,) = await store.survey(Survey(limit=1))
        config = PushConfig("https://hook.example/secret", "h", TaskId(task))
        push = await store.put_push(head.number, config, 0, most=5)
        assert push is not None
        failing = replace(push, cursor=1, tries=2, failing_since=1000, problem="answered 500")
        await store.settle(failing)
        path = f"/tasks/{task}/transitions"
        taken, late = (await site.read(path))["pushes"]
        assert (taken["kind"], taken["position"]) == ("delivered", 1)
        assert (late["kind"], late["position"], late["tries"]) == ("failing", 2, 2)
        assert late["url"] == "https://hook.example" and late["problem"] == "answered 500"
        own = (await site.read(path, ALICE))["pushes"]
        assert [one["kind"] for one in own] == ["delivered", "failing"]
        assert "500" not in str(own) and "secret" not in str(own)
        await store.settle(replace(failing, is_open=False))
        assert [one["kind"] for one in (await site.read(path))["pushes"]] == ["delivered", "dead"]
