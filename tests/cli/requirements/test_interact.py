"""Conversations: which ids are sent, what is refused, and the line that goes on."""

from pathlib import Path
from typing import Any

import pytest

from tests.cli.requirements.desk import Desk, sitting, together


def last_message(desk: Desk) -> dict[str, Any]:
    sent = [seen for seen in desk.seen() if seen.method.startswith("Send")]
    return sent[-1].json["params"]["message"]


@pytest.mark.cli("A2ACLI_INTERACT_001")
def test_a_context_goes_on_with_a_task_of_its_own(desk: Desk) -> None:
    first = desk.json("send", "echo one")["task"]
    second = desk.json("send", "echo two", "--context-id", first["contextId"])["task"]
    said = last_message(desk)
    assert said["contextId"] == first["contextId"] and "taskId" not in said
    assert second["contextId"] == first["contextId"] and second["id"] != first["id"]


@pytest.mark.cli("A2ACLI_INTERACT_002")
def test_a_task_goes_on_alone_or_with_its_context_and_a_refusal_is_loud(desk: Desk) -> None:
    for with_context in (False, True):
        task = desk.json("send", "ask")["task"]
        more = ("--context-id", task["contextId"]) if with_context else ()
        ended = desk.json("send", "Paris", "--task-id", task["id"], *more)["task"]
        assert ended["id"] == task["id"]
        assert ended["status"]["state"] == "TASK_STATE_COMPLETED"
        said = last_message(desk)
        assert said["taskId"] == task["id"] and ("contextId" in said) is with_context
    waiting, other = desk.json("send", "ask")["task"], desk.json("send", "echo x")["task"]
    refused = (
        ("--task-id", "no-such-task"),
        ("--task-id", other["id"]),
        ("--task-id", waiting["id"], "--context-id", other["contextId"]),
    )
    before, sends = len(desk.agent.tasks), len(desk.seen("SendStreamingMessage"))
    for ids in refused:
        failed = desk.run("send", "hello", *ids, "-o", "json", exit=1)
        assert failed.error["code"].endswith("Error")
        listed = "task list" if "no-such-task" in ids else "--debug"
        assert listed in failed.error["hint"]
    assert len(desk.agent.tasks) == before
    assert len(desk.seen("SendStreamingMessage")) == sends + len(refused), "one try each"


@pytest.mark.cli("A2ACLI_INTERACT_003")
def test_two_contexts_stay_apart_and_no_send_inherits_one(desk: Desk) -> None:
    one, two = (desk.json("send", f"echo {n}")["task"]["contextId"] for n in "ab")
    third = desk.json("send", "echo c", "--context-id", one)["task"]["contextId"]
    desk.run("send", "echo d")
    assert one != two and third == one
    assert "contextId" not in last_message(desk) and "taskId" not in last_message(desk)


@pytest.mark.cli("A2ACLI_INTERACT_004")
def test_the_printed_line_continues_the_task_in_a_shell(desk: Desk) -> None:
    asked = desk.run("send", "ask", "--api-key", "not-for-the-line")
    found = asked.fields
    assert found["State"] == "TASK_STATE_INPUT_REQUIRED" and found["Context"]
    assert "not-for-the-line" not in asked.out + asked.err
    answered = desk.shell(found["Resume"], reply="Rome")
    assert answered.exit == 0, answered.err
    assert answered.fields["Task"] == found["Task"]
    assert "Sunny in Rome" in answered.out
    # After the end, the context goes on.
    again = desk.shell(answered.fields["Resume"], message="echo more")
    assert again.fields["Context"] == found["Context"] and again.fields["Task"] != found["Task"]
    # Under way, the line asks for the task.
    with desk.slowed_by(GetTask=1):
        task, _ = desk.begin("slow 1")
        waited = desk.shell(desk.run("task", "get", task).fields["Resume"])
    assert waited.fields["Task"] == task and waited.fields["State"] == "TASK_STATE_COMPLETED"


@pytest.mark.cli("A2ACLI_INTERACT_004", "A2ACLI_OUT_001")
def test_every_command_about_a_task_tells_both_ids_and_the_state(desk: Desk) -> None:
    task = desk.json("send", "ask")["task"]
    canceled, _ = desk.begin("hang")
    for ended in together(
        lambda: desk.run("task", "get", task["id"]),
        lambda: desk.run("task", "subscribe", task["id"]),
        lambda: desk.run("task", "download", task["id"]),
        lambda: desk.run("task", "list", "--context-id", task["contextId"]),
        lambda: desk.run("task", "cancel", canceled),
    ):
        assert {"Task", "Context", "State"} <= ended.fields.keys()


@pytest.mark.cli("A2ACLI_INTERACT_005")
def test_nothing_of_a_conversation_is_kept(folder: Path) -> None:
    with sitting(folder) as desk:
        first = desk.run("send", "ask").fields
        desk.run("task", "get", first["Task"])
        desk.run("send", "echo again")
        said = last_message(desk)
        assert "taskId" not in said and "contextId" not in said
        for path in desk.files():
            body = path.read_bytes()
            assert first["Task"].encode() not in body and first["Context"].encode() not in body
        for flag in ("--continue", "--resume", "--last"):
            assert desk.run("send", flag, "x", "-o", "json", exit=2).error["code"] == (
                "A2ACLI_ERR_USAGE"
            )
