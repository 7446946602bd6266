"""Tasks: read, cancelled, polled, listed, followed; and what the agent is asked meanwhile."""

import signal
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from harness.waiting import wait_until

from dragoman.testing.scripted.agent import ScriptedAgent
from tests.cli.requirements.desk import Desk, sitting, together

COMPLETED = "TASK_STATE_COMPLETED"
FAST = ("--poll-interval", "200ms")


def params(seen: Any) -> dict[str, Any]:
    return seen.json["params"]


@pytest.mark.cli("A2ACLI_TASK_GET_001")
def test_a_task_shows_state_artifacts_and_as_much_history_as_was_asked_for(desk: Desk) -> None:
    task, _ = desk.begin("parts")
    desk.run("task", "get", task, "--wait", *FAST)
    before = len(desk.seen("GetTask"))
    text = desk.run("task", "get", task, "--history", "2")
    desk.run("task", "get", task, "-o", "json")
    with_length, without = desk.seen("GetTask")[before:]
    assert params(with_length)["historyLength"] == 2
    assert "historyLength" not in params(without)
    assert text.fields["State"] == COMPLETED and text.fields["Task"] == task
    assert "Artifact: answer (All kinds)" in text.out and "Text:\nA text." in text.out
    assert "(ROLE_USER)" in text.out and "Text:\nparts\n" in text.out


@pytest.mark.cli("A2ACLI_TASK_CANCEL_001")
def test_cancelling_twice_is_fine_and_a_finished_task_is_the_protocols_error(desk: Desk) -> None:
    task, _ = desk.begin("hang")
    for _ in range(2):
        ended = desk.run("task", "cancel", task)
        assert ended.fields["State"] == "TASK_STATE_CANCELED" and ended.err == ""
    done = desk.json("send", "echo x")["task"]["id"]
    failed = desk.run("task", "cancel", done, "-o", "json", exit=1)
    assert failed.error["code"] == "TaskNotCancelableError"
    assert failed.error["a2aCode"] == -32002


@pytest.mark.cli("A2ACLI_TASK_POLL_001")
def test_a_get_asks_once_and_with_wait_until_the_task_rests(desk: Desk) -> None:
    with desk.slowed_by(GetTask=6):
        task, _ = desk.begin("slow 1")
        asked = desk.during(lambda: desk.run("task", "get", task))
        assert [seen.method for seen in asked if seen.method != "card"] == ["GetTask"]
        words = ("task", "get", task, "--wait", "--history", "3", *FAST)
        asked = desk.during(lambda: desk.run(*words))
    polls = [params(seen)["historyLength"] for seen in asked if seen.method == "GetTask"]
    # Polls want no history; what is shown in the end is what the caller asked for.
    assert len(polls) >= 4 and polls[-1] == 3 and polls.count(0) >= len(polls) - 2
    assert desk.json("task", "get", task)["status"]["state"] == COMPLETED


@pytest.mark.cli("A2ACLI_TASK_POLL_002")
def test_polling_keeps_its_interval_backs_off_and_ends_with_its_time(folder: Path) -> None:
    times: list[float] = []

    class Timed(ScriptedAgent):
        async def _serve(self, connection: Any, seen: Any) -> None:
            # Before the answer: from that the interval counts.
            if b"GetTask" in seen.body:
                times.append(time.monotonic())
            await super()._serve(connection, seen)

    script = {"rules": [{"steps": [{"state": "working"}, {"hang": True}]}]}
    with sitting(folder, Timed(script)) as desk:
        task, _ = desk.begin("hang")
        words = ("task", "get", task, "--wait", "-o", "json")
        late = desk.run(*words, "--poll-interval", "100ms", "--timeout", "2s", exit=5)
        assert late.error["code"] == "A2ACLI_ERR_TIMEOUT"
        assert f"--wait {task}" in late.error["hint"]
        gaps = [after - before for before, after in pairwise(times)]
        # The first look is a read of its own; the interval is between polls.
        assert 3 <= len(gaps) <= 20 and all(gap > 0.09 for gap in gaps[1:])
        assert desk.json("task", "get", task)["status"]["state"] == "TASK_STATE_WORKING"


@pytest.mark.cli("A2ACLI_TASK_POLL_002")
def test_errors_on_the_way_are_outlasted_and_five_in_a_row_are_not(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    busy = {"error": "Overloaded", "http": 503, "retryAfter": "1"}
    for nth, exit in (([1], 0), ([], 3)):
        rules = [
            {"when": {"method": "GetTask", "nth": nth}, "steps": [busy]},
            {"steps": [{"state": "working"}, {"wait": 0.3}, {"state": "completed"}]},
        ]
        with sitting(tmp_path_factory.mktemp("busy"), ScriptedAgent({"rules": rules})) as desk:
            task, _ = desk.begin("x")
            since = time.monotonic()
            words = ("task", "get", task, "--wait", "--poll-interval", "100ms", "-o", "json")
            ended = desk.run(*words, exit=exit)
            assert time.monotonic() - since > 0.9, "Retry-After counts"
            if exit:
                assert ended.error["code"] == "A2ACLI_ERR_UNREACHABLE"


@pytest.mark.cli("A2ACLI_TASK_POLL_002")
@pytest.mark.parametrize("words", [("send", "hang"), ("task", "get", "--wait")])
def test_an_interrupt_after_the_id_was_told_does_not_lose_it(
    desk: Desk, words: tuple[str, ...]
) -> None:
    if words[0] == "task":
        words = (*words, desk.begin("hang")[0], *FAST)
    process = desk.start(*words)
    assert process.stderr is not None and process.stdout is not None
    told = process.stderr.readline().decode() if words[0] == "send" else ""
    if told:
        assert told.startswith("Waiting: task ")
        task = told.split()[2]
    else:
        task = words[3]
        wait_until(
            lambda: any(
                seen.method == "GetTask" and task.encode() in seen.body for seen in desk.seen()
            )
        )
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130 and out == b""
    assert f"Task: {task}" in err.decode() and f"--wait {task}" in err.decode()
    assert desk.json("task", "get", task)["status"]["state"] == "TASK_STATE_WORKING"


@pytest.mark.cli("A2ACLI_TASK_POLL_003")
def test_waiting_stops_at_an_interruption_and_goes_on_where_a_state_says_nothing(
    desk: Desk,
) -> None:
    asked, auth, late, future = together(
        lambda: desk.run("send", "ask", "-o", "json"),
        lambda: desk.run("send", "auth", "-o", "json"),
        lambda: desk.run("send", "unspecified", "-o", "json", "--timeout", "1200ms", exit=5),
        lambda: desk.run("send", "future 1", "-o", "json"),
    )
    assert asked.json["task"]["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
    assert auth.json["task"]["status"]["state"] == "TASK_STATE_AUTH_REQUIRED"
    assert late.error["code"] == "A2ACLI_ERR_TIMEOUT"
    assert future.json["task"]["status"]["state"] == COMPLETED
    task, _ = desk.begin("unspecified 1")
    waited = desk.run("task", "get", task, "--wait", "-o", "json", *FAST)
    assert waited.json["status"]["state"] == COMPLETED


@pytest.mark.cli("A2ACLI_TASK_POLL_004")
def test_a_stream_that_breaks_is_waited_for_to_the_end(desk: Desk) -> None:
    for ended in together(
        lambda: desk.run("send", "cut 1", "-o", "json", *FAST),
        lambda: desk.run("send", "close", "-o", "json", *FAST),
        lambda: desk.run("send", "byte 300", "-o", "json", *FAST),
    ):
        assert ended.json["task"]["status"]["state"] == COMPLETED
        assert ended.json["task"]["artifacts"]


@pytest.mark.cli("A2ACLI_TASK_LIST_001")
def test_a_list_is_walked_once_by_its_cursor_and_filtered_by_the_agent(folder: Path) -> None:
    with sitting(folder, scenarios=["tasks"]) as desk:
        whole, lines = together(
            lambda: desk.json("task", "list", "--all", "--limit", "50"),
            lambda: desk.run("task", "list", "--stream", "-o", "json", "--limit", "50").lines,
        )
        ids = [task["id"] for task in whole["tasks"]]
        assert len(ids) == len(set(ids)) == 120 and whole["nextPageToken"] == ""
        assert [task["id"] for task in lines] == ids
        tokens = [params(seen).get("pageToken", "") for seen in desk.seen("ListTasks")]
        assert len(tokens) == 6 and tokens.count("") == 2
        page = desk.run("task", "list", "--limit", "7")
        assert page.out.count("\nTask: ") + page.out.startswith("Task: ") == 7
        token = page.fields["Next-Page"]
        second = desk.json("task", "list", "--limit", "7", "--page-token", token)
        assert [task["id"] for task in second["tasks"]] == ids[7:14]
        context = whole["tasks"][5]["contextId"]
        filters = ("--status", "input-required", "--context-id", context)
        desk.run("task", "list", *filters, "--since", "2026-01-31T12:00:00Z")
        asked = params(desk.seen("ListTasks")[-1])
        assert asked["status"] == "TASK_STATE_INPUT_REQUIRED" and asked["contextId"] == context
        assert asked["statusTimestampAfter"].startswith("2026-01-31T12:00:00")


@pytest.mark.cli("A2ACLI_TASK_SUBSCRIBE_001")
def test_a_running_task_is_joined_from_its_task_to_its_end(desk: Desk) -> None:
    with desk.slowed_by(SubscribeToTask=2):
        task, _ = desk.begin("slow 1")
        other, _ = desk.begin("slow 1")
        events, last = together(
            lambda: desk.run("task", "subscribe", task, "-o", "json", "--stream").lines,
            lambda: desk.json("task", "subscribe", other),
        )
    assert events[0]["task"]["id"] == task
    assert {next(iter(event)) for event in events[1:]} <= {"statusUpdate", "artifactUpdate"}
    assert events[-1]["statusUpdate"]["status"]["state"] == COMPLETED
    assert (last["id"], last["status"]["state"]) == (other, COMPLETED)
    assert last["artifacts"], "folded from the events"


@pytest.mark.cli("A2ACLI_TASK_SUBSCRIBE_002")
def test_a_subscription_is_taken_up_again_after_each_cut(desk: Desk) -> None:
    def cut_twice() -> tuple[str, Any]:
        events = desk.run("send", "cut 2 2", "-o", "json", "--stream").lines
        return events[0]["task"]["id"], events

    task, events = cut_twice()
    assert events[-1]["statusUpdate"]["status"]["state"] == COMPLETED
    about = [seen for seen in desk.seen() if task.encode() in seen.body]
    # The first event of a subscription is the Task, so nobody has to ask for it.
    assert [seen.method for seen in about] == ["SubscribeToTask"] * 2
    assert sum("task" in event for event in events) >= 1
    # It ended while nobody looked: then a read shows how.
    ended = desk.run("task", "subscribe", task, "-o", "json")
    assert ended.json["status"]["state"] == COMPLETED
