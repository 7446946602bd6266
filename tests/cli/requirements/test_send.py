"""Sending: what goes out, what is waited for, and that no part of an answer is lost."""

import base64
import time
from pathlib import Path
from typing import Any

import pytest

from dragoman.testing.scripted.agent import SeenRequest
from tests.cli.requirements.desk import Desk, sitting, together


def message(seen: SeenRequest) -> dict[str, Any]:
    """Return the message of a send."""
    return (seen.json.get("params") or seen.json)["message"]


def sends(found: list[SeenRequest]) -> list[SeenRequest]:
    return [seen for seen in found if seen.method.startswith("Send")]


@pytest.mark.cli("A2ACLI_SEND_001", "A2ACLI_INTERACT_003")
def test_a_message_starts_an_interaction_and_invents_no_id_of_the_server(desk: Desk) -> None:
    results: list[Any] = []
    found = sends(
        desk.during(lambda: results.extend(desk.json("send", "echo hi") for _ in range(2)))
    )
    for seen in found:
        said = message(seen)
        assert said["messageId"] and said["role"] == "ROLE_USER"
        assert said["parts"] == [{"text": "echo hi"}]
        assert "taskId" not in said and "contextId" not in said
    assert len({message(seen)["messageId"] for seen in found}) == 2
    # A context is not a session: two fresh ones stay apart.
    assert len({result["task"]["contextId"] for result in results}) == 2


@pytest.mark.cli("A2ACLI_SEND_002", "A2ACLI_OUT_006")
def test_a_send_waits_for_the_end_and_async_gives_the_ids_at_once(desk: Desk) -> None:
    def timed() -> tuple[float, Any]:
        since = time.monotonic()
        return desk.json("send", "slow 3"), time.monotonic() - since

    # The agent works longer than a test may wait for a command.
    at_once = desk.json("send", "slow 600", "--async")["task"]
    assert at_once["status"]["state"] in ("TASK_STATE_SUBMITTED", "TASK_STATE_WORKING")
    assert at_once["id"] and at_once["contextId"]
    (waited, seconds), text = together(timed, lambda: desk.run("send", "slow 3", "--no-wait"))
    assert seconds > 2.5 and waited["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
    assert text.fields["Task"] and text.fields["Context"]


@pytest.mark.cli("A2ACLI_SEND_003")
def test_streams_plain_agents_and_bare_messages_all_come_to_an_end(
    desk: Desk, tmp_path_factory: pytest.TempPathFactory
) -> None:
    streamed, text = together(
        lambda: desk.run("send", "stream 3", "-o", "json", "--stream").lines,
        lambda: desk.run("send", "stream 3", "--stream").out,
    )
    kinds = [next(iter(event)) for event in streamed]
    assert kinds[0] == "task" and kinds.count("artifactUpdate") >= 3
    assert streamed[-1]["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"
    assert "chunk 1 chunk 2 chunk 3" in text
    assert text.rstrip().splitlines()[-1].startswith("Resume: ")
    with sitting(tmp_path_factory.mktemp("plain"), scenarios=["no-streaming"]) as plain:
        one, polled = together(
            lambda: plain.json("send", "echo x"),
            lambda: plain.run("send", "echo x", "-o", "json", "--stream").lines,
        )
        assert one["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
        assert all(set(event) == {"task"} for event in polled)
        assert polled[-1]["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
        assert plain.seen("SendStreamingMessage") == []
        first = plain.seen("SendMessage")[0].json["params"]
        assert first["configuration"]["returnImmediately"] is True
    with sitting(tmp_path_factory.mktemp("talk"), scenarios=["message-only"]) as talker:
        said, lines, words = together(
            lambda: talker.json("send", "hi"),
            lambda: talker.run("send", "hi", "-o", "json", "--stream").lines,
            lambda: talker.run("send", "hi"),
        )
        assert said["message"]["parts"][0]["text"] == "You said: hi"
        assert len(lines) == 1 and "message" in lines[0]
        assert "You said: hi" in words.out and words.fields["Context"]


@pytest.mark.cli("A2ACLI_SEND_004")
def test_every_kind_of_part_is_shown_and_json_has_it_as_it_came(desk: Desk) -> None:
    text, document = together(
        lambda: desk.run("send", "parts"), lambda: desk.json("send", "parts")["task"]
    )
    assert "Text:\nA text.\n\n" in text.out
    assert "Data:\n{" in text.out and '"answer": 42' in text.out
    assert "File: raw.bin (application/octet-stream, 12 bytes)" in text.out
    assert "File: report.pdf https://example.com/report.pdf (application/pdf)" in text.out
    stage = desk.agent.tasks[document["id"]]
    raw, (artifact,) = base64.b64encode(b"\x00\x01raw bytes\xff").decode(), document["artifacts"]
    assert artifact["name"] == "All kinds" and len(stage.task.artifacts[0].parts) == 4
    assert artifact["parts"][0] == {"text": "A text."}
    assert artifact["parts"][1]["data"] == {"answer": 42, "list": [1, "two", None]}
    assert (artifact["parts"][2]["raw"], artifact["parts"][2]["filename"]) == (raw, "raw.bin")
    assert artifact["parts"][3] == {
        "url": "https://example.com/report.pdf",
        "filename": "report.pdf",
        "mediaType": "application/pdf",
    }


@pytest.mark.cli("A2ACLI_SEND_005")
def test_a_media_type_belongs_to_the_part_before_it(desk: Desk) -> None:
    (desk.folder / "x.bin").write_bytes(b"%PDF")
    (desk.folder / "y.txt").write_bytes(b"plain")
    words = ("--file", "x.bin", "--media-type", "application/pdf", "--file", "y.txt", "--async")
    (seen,) = sends(desk.during(lambda: desk.run("send", *words)))
    typed, inferred = message(seen)["parts"]
    assert (typed["filename"], typed["mediaType"]) == ("x.bin", "application/pdf")
    assert (inferred["filename"], inferred["mediaType"]) == ("y.txt", "text/plain")
    before = len(sends(desk.seen()))
    for wrong in (
        ("--media-type", "application/pdf", "--file", "x.bin"),
        ("--file", "x.bin", "--media-type", "a/b", "--media-type", "c/d"),
    ):
        assert desk.run("send", *wrong, "-o", "json", exit=2).error["code"] == "A2ACLI_ERR_USAGE"
    assert len(sends(desk.seen())) == before


@pytest.mark.cli("A2ACLI_SEND_006")
def test_parts_arrive_in_the_order_they_were_written(desk: Desk) -> None:
    (desk.folder / "a.txt").write_text("file")
    link = "https://example.com/a.png"
    words = ("--text", "one", "--file", "a.txt", "--data", "-", "--text", "two", "--file", link)
    (seen,) = sends(desk.during(lambda: desk.run("send", *words, "--async", input='{"n": 1}')))
    first, file, data, last, url = message(seen)["parts"]
    assert (first["text"], last["text"]) == ("one", "two")
    assert base64.b64decode(file["raw"]) == b"file"
    assert (data["data"], data["mediaType"]) == ({"n": 1}, "application/json")
    assert url["url"] == link
    twice = desk.run("send", "--data", "-", "--data", "-", "-o", "json", input="{}", exit=2)
    assert twice.error["code"] == "A2ACLI_ERR_USAGE"


@pytest.mark.cli("A2ACLI_SEND_001")
def test_a_file_is_known_by_its_base_name_only(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "secret-place").mkdir()
    path = tmp_path / "secret-place" / "r.csv"
    path.write_text("a,b")
    (seen,) = sends(desk.during(lambda: desk.run("send", "--file", path, "--async")))
    assert message(seen)["parts"][0]["filename"] == "r.csv"
    assert b"secret-place" not in seen.body
