"""Section 5: what happens to a task, whose it is, and what is refused."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from harness.serving import Site, serving
from harness.stub_servers import listening
from harness.waiting import within

from tests.wire_rules.conftest import Gates, make
from tests.wire_rules.rules import (
    INVALID_PARAMS,
    UNKNOWN,
    at_once,
    code_of,
    new,
    old,
    rpc,
    state,
    task_of,
)

MOVES = {
    "hold": ["SUBMITTED", "WORKING", "WORKING", "COMPLETED"],
    "ask": ["SUBMITTED", "WORKING", "INPUT_REQUIRED"],
    "authorize": ["SUBMITTED", "WORKING", "AUTH_REQUIRED"],
    "reject": ["SUBMITTED", "WORKING", "REJECTED"],
    "crash": ["SUBMITTED", "WORKING", "FAILED"],
}


async def eventually(site: Site, id: str, *states: str) -> Any:
    """Return a task once it is in one of the states."""
    async with asyncio.timeout(60):
        while True:
            task = await site.task(id)
            if state(task).removeprefix("TASK_STATE_") in states:
                return task


def texts(task: Any) -> list[str]:
    return [message["parts"][0]["text"] for message in task["history"]]


# States


@pytest.mark.requirement("5.1-moves")
@pytest.mark.parametrize("skill", MOVES)
async def test_states_follow_each_other_as_the_table_says(
    site: Site, gates: Gates, skill: str
) -> None:
    gates["x"].set()
    seen: list[str] = []
    async with asyncio.timeout(60), site.stream("SendStreamingMessage", new(skill)) as stream:
        async for frame in stream:
            ((_, event),) = frame.result.items()
            if "status" in event:
                seen.append(state(event).removeprefix("TASK_STATE_"))
            if seen == MOVES[skill]:
                break
    assert seen == MOVES[skill]


@pytest.mark.requirement("T-1", "T-2")
@pytest.mark.parametrize("skill", ["echo", "crash", "reject"])
async def test_a_task_that_ended_takes_no_message_and_stays_as_it_is(
    site: Site, skill: str
) -> None:
    task = await site.task((await task_of(site, new(skill)))["id"])
    for method, params in (
        ("SendMessage", new(taskId=task["id"])),
        ("SendStreamingMessage", new(taskId=task["id"])),
        ("message/send", old(taskId=task["id"])),
    ):
        assert await code_of(site, method, params) == -32004
    assert await code_of(site, "CancelTask", {"id": task["id"]}) == -32002
    assert await site.task(task["id"]) == task


@pytest.mark.requirement("T-2", "5.2-contextId-only")
async def test_further_work_is_a_new_task_of_the_same_context(site: Site) -> None:
    first = await task_of(site, new())
    params = new(contextId=first["contextId"], referenceTaskIds=[first["id"]])
    second = await task_of(site, params)
    assert second["id"] != first["id"] and second["contextId"] == first["contextId"]
    assert second["history"][0]["referenceTaskIds"] == [first["id"]]
    assert await site.task(first["id"]) == first


@pytest.mark.requirement("T-3")
async def test_a_message_to_a_running_task_waits_behind_its_turn(site: Site, gates: Gates) -> None:
    task = await task_of(site, at_once(new("hold", "queue")))
    for text in ("second", "third"):
        gates[text].set()
        await task_of(site, at_once(new("hold", text, taskId=task["id"])))
    running = await site.task(task["id"])
    assert state(running) == "TASK_STATE_WORKING"
    gates["queue"].set()
    done = await eventually(site, task["id"], "COMPLETED")
    said = [message for message in done["history"] if message["role"] == "ROLE_USER"]
    assert [message["parts"][0]["text"] for message in said] == ["queue", "second", "third"]


@pytest.mark.requirement("T-4", "5.2-taskId-only", "5.2-both")
async def test_an_answer_resumes_a_task_that_waits_for_it(site: Site) -> None:
    for with_context in (False, True):
        task = await task_of(site, new("ask", "Bus"))
        assert state(task) == "TASK_STATE_INPUT_REQUIRED"
        ids = {"taskId": task["id"]}
        if with_context:
            ids["contextId"] = task["contextId"]
        done = await task_of(site, new("ask", "Oslo", **ids))
        assert (done["id"], done["contextId"]) == (task["id"], task["contextId"])
        assert done["artifacts"][0]["parts"] == [{"text": "Bus to Oslo"}]
        assert texts(done) == ["Bus", "Where?", "Oslo"]


@pytest.mark.requirement("T-5")
async def test_once_there_is_a_task_the_answer_is_that_task(site: Site) -> None:
    result = await site.call("SendMessage", new("say_and_reply", "hi"))
    assert result.keys() == {"task"}
    assert state(result["task"]) == "TASK_STATE_COMPLETED"
    assert result["task"]["status"]["message"]["parts"] == [{"text": "hi"}]
    events = await site.events("SendStreamingMessage", new("say_and_reply", "hi"))
    kinds = [next(iter(event.result)) for event in events]
    assert kinds[0] == "task" and "message" not in kinds


@pytest.mark.requirement("T-7")
async def test_a_task_whose_server_died_does_not_stay_working(tmp_path: Path) -> None:
    gates = Gates(asyncio.Event)
    store = str(tmp_path / "tasks.db")
    async with serving(make(gates), store=store) as site:
        held = await task_of(site, at_once(new("hold", "a")))
        await eventually(site, held["id"], "WORKING")
    gates["a"].set()
    async with serving(make(gates), store=store) as site:
        await eventually(site, held["id"], "COMPLETED")
        held = await task_of(site, at_once(new("hold", "b")))
        await eventually(site, held["id"], "WORKING")
    gates["b"].set()
    # An orderly stop is no attempt of the agent's, so it does not count against it.
    async with serving(make(gates), store=store, max_attempts=1) as site:
        await eventually(site, held["id"], "COMPLETED")


# Identity


@pytest.mark.requirement("5.2-new", "5.2-ids")
async def test_a_message_without_ids_makes_a_task_in_a_context_of_its_own(site: Site) -> None:
    tasks = [await task_of(site, new()) for _ in range(20)]
    ids = {task["id"] for task in tasks} | {task["contextId"] for task in tasks}
    assert len(ids) == 40
    # The last 62 bits of each are noise: no two share their first or their last half.
    for place in (slice(19, 27), slice(28, 36)):
        assert len({id[place] for id in ids}) == 40
    older = await site.call("message/send", old())
    assert older["contextId"] and older["contextId"] not in ids


@pytest.mark.requirement("5.2-mismatch")
async def test_a_task_and_a_context_that_do_not_match_are_refused(site: Site) -> None:
    task = await task_of(site, new("ask"))
    for method, params in (
        ("SendMessage", new(taskId=task["id"], contextId="other")),
        ("SendStreamingMessage", new(taskId=task["id"], contextId="other")),
        ("message/send", old(taskId=task["id"], contextId="other")),
    ):
        assert await code_of(site, method, params) == INVALID_PARAMS
    assert await site.task(task["id"]) == task


@pytest.mark.requirement("5.2-client-context")
async def test_a_context_the_client_invented_is_kept(site: Site) -> None:
    assert (await task_of(site, new(contextId="my:own/context")))["contextId"] == "my:own/context"
    assert (await site.call("message/send", old(contextId="mine-2")))["contextId"] == "mine-2"


@pytest.mark.requirement("5.2-stamped")
async def test_stored_messages_bear_the_ids_of_task_and_context(site: Site) -> None:
    task = await task_of(site, new("ask"))
    done = await task_of(site, new("ask", taskId=task["id"]))
    assert len(done["history"]) == 3
    for message in done["history"]:
        assert message["taskId"] == task["id"]
        assert message["contextId"] == task["contextId"]


# Waiting


@pytest.mark.requirement("T-19", "T-20")
async def test_a_send_waits_for_the_end_or_for_a_question(site: Site, gates: Gates) -> None:
    waiting = asyncio.create_task(task_of(site, new("hold", "wait", contextId="wait")))
    async with asyncio.timeout(60):
        while not (page := await site.call("ListTasks", {"contextId": "wait"}))["tasks"]:
            pass
    assert not waiting.done()
    at = await task_of(site, at_once(new("hold", "wait")))
    assert state(at) in ("TASK_STATE_SUBMITTED", "TASK_STATE_WORKING")
    gates["wait"].set()
    task = await within(waiting)
    assert task["id"] == page["tasks"][0]["id"]
    assert state(task) == "TASK_STATE_COMPLETED"
    assert task["artifacts"][0]["parts"] == [{"text": "wait"}]
    assert state(await task_of(site, new("ask"))) == "TASK_STATE_INPUT_REQUIRED"


@pytest.mark.requirement("T-21", "T-56", "T-59")
async def test_an_agent_that_needs_credentials_says_so_and_takes_messages(site: Site) -> None:
    task = await task_of(site, new("authorize"))
    assert state(task) == "TASK_STATE_AUTH_REQUIRED"
    assert task["status"]["message"]["parts"] == [{"text": "Log in at the bank."}]
    still = await task_of(site, new("authorize", "why?", taskId=task["id"]))
    assert state(still) == "TASK_STATE_AUTH_REQUIRED"
    assert still["status"]["message"]["parts"][0]["text"].startswith("Not why?.")
    done = await task_of(site, new("authorize", "done", taskId=task["id"]))
    assert state(done) == "TASK_STATE_COMPLETED"


@pytest.mark.requirement("T-23")
async def test_only_a_blocking_send_of_0_x_can_be_cut_off() -> None:
    gates = Gates(asyncio.Event)
    async with serving(make(gates), max_block_seconds=0.05) as site:
        params = old("hold") | {"configuration": {"blocking": True}}
        assert state(await site.call("message/send", params)) == "working"
        waiting = asyncio.create_task(task_of(site, new("hold")))
        # Another 0.x send outlasts its patience while this one of 1.0 still waits.
        await site.call("message/send", old("hold"))
        await site.call("message/send", old("hold"))
        assert not waiting.done()
        gates["x"].set()
        assert state(await within(waiting)) == "TASK_STATE_COMPLETED"


# Repetition and cancelling


@pytest.mark.requirement("T-32")
async def test_the_same_message_again_leads_to_the_same_task(site: Site) -> None:
    params = new("echo", "once")
    first, again = await task_of(site, params), await task_of(site, params)
    assert first == again
    events = await site.events("SendStreamingMessage", params)
    assert events[0].result["task"]["id"] == first["id"]
    changed = {"message": params["message"] | {"parts": [{"text": "twice"}]}}
    other = await task_of(site, changed)
    assert other["id"] != first["id"] and other["artifacts"][0]["parts"] == [{"text": "twice"}]


@pytest.mark.requirement("T-33", "T-34")
async def test_cancel_returns_the_canceled_task_and_only_once(site: Site) -> None:
    task = await task_of(site, at_once(new("hold", "cancel")))
    canceled = await site.call("CancelTask", {"id": task["id"]})
    assert canceled["id"] == task["id"] and state(canceled) == "TASK_STATE_CANCELED"
    assert await code_of(site, "CancelTask", {"id": task["id"]}) == -32002
    assert await code_of(site, "CancelTask", {"id": UNKNOWN}) == -32001


# Content


@pytest.mark.requirement("T-62")
async def test_a_role_must_be_known_and_is_kept_as_sent(site: Site) -> None:
    for role in ("ROLE_UNSPECIFIED", 0, "user", "ROLE_SYSTEM", "", None):
        assert await code_of(site, "SendMessage", new(role=role)) == INVALID_PARAMS
    older = old()
    older["message"]["role"] = "system"
    assert await code_of(site, "message/send", older) == INVALID_PARAMS
    task = await task_of(site, new(role="ROLE_AGENT"))
    assert task["history"][0]["role"] == "ROLE_AGENT"


@pytest.mark.requirement("T-66")
async def test_references_to_unknown_tasks_are_ignored(site: Site) -> None:
    theirs = await task_of(site, new() | {"tenant": "theirs"})
    task = await task_of(site, new(referenceTaskIds=[UNKNOWN, theirs["id"]]))
    assert state(task) == "TASK_STATE_COMPLETED"


@pytest.mark.requirement("T-53")
async def test_no_address_in_a_part_is_fetched(site: Site) -> None:
    visits: asyncio.Queue[bytes] = asyncio.Queue()

    async def visited(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        visits.put_nowait(await reader.readline())

    async with listening(visited) as port:
        part = {"url": f"http://127.0.0.1:{port}/", "mediaType": "text/plain"}
        task = await task_of(site, new("take", parts=[part]))
        assert state(task) == "TASK_STATE_COMPLETED"
        # Whoever connected before us comes before us.
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"ours\n")
        assert await within(visits.get()) == b"ours\n"
        writer.close()
    assert visits.empty()


@pytest.mark.requirement("T-52")
async def test_what_is_too_large_is_refused_and_makes_nothing() -> None:
    async with serving(make(Gates(asyncio.Event)), max_body_bytes=200_000) as site:
        nested: Any = 1
        for _ in range(100):
            nested = [nested]
        for params, code, status in (
            (new("echo", "x" * 200_000), -32600, 413),
            (new(parts=[{"text": "x"}] * 1001), INVALID_PARAMS, 400),
            (new(parts=[{"data": nested}]), -32700, 400),
            (new(metadata={"k": "x" * 70_000}), INVALID_PARAMS, 400),
        ):
            answer = (await site.post(rpc("SendMessage", params))).json()
            assert answer["error"]["code"] == code
            assert (await site.http.post("/message:send", json=params)).status_code == status
        assert await site.total() == 0
