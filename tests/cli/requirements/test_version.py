"""Versions, extensions and capabilities: what is said with every request, and what is not asked."""

from pathlib import Path

import pytest

from dragoman.model.card import RESUME_URI
from dragoman.testing.scripted.agent import ScriptedAgent, SeenRequest
from dragoman.testing.scripted.demo import REQUIRED_EXTENSION
from tests.cli.requirements.desk import Desk, sitting, together

COMPLETED = "TASK_STATE_COMPLETED"


def calls(desk: Desk) -> list[SeenRequest]:
    """Return what the agent was asked, but for its card."""
    return [seen for seen in desk.seen() if seen.method != "card"]


@pytest.mark.cli("A2ACLI_VER_001")
def test_a_version_below_1_0_is_spoken_only_by_who_asks_for_it(folder: Path) -> None:
    strict = {"A2ACLI_STRICT_VERSION": "true"}
    with sitting(folder, scenarios=["0.3-only"]) as desk:
        refused = together(
            lambda: desk.run("send", "hi", "-o", "json", "--strict-version", exit=1),
            lambda: desk.run("send", "hi", "-o", "json", "--a2a-version", "1.0", exit=1),
            lambda: desk.run("task", "list", "-o", "json", env=strict, exit=1),
        )
        for ended in refused:
            assert ended.error["code"] == "VersionNotSupportedError"
            assert "--a2a-version 0.3" in ended.error["hint"]
        assert calls(desk) == []
        (folder / "old.env").write_text("A2ACLI_A2A_VERSION=0.3\n")
        ways = together(
            lambda: desk.json("send", "echo hi", "--a2a-version", "0.3", env=strict),
            lambda: desk.json("send", "echo hi", env={"A2ACLI_A2A_VERSION": "0.3"}),
            lambda: desk.json("send", "echo hi", "--config", "old.env"),
        )
        assert {seen.headers["a2a-version"] for seen in calls(desk)} == {"0.3"}
        assert {seen.version for seen in calls(desk)} == {"0.3"}
        # What is shown has the shapes of 1.0, whatever was spoken.
        for task in (way["task"] for way in ways):
            assert task["status"]["state"] == COMPLETED and "kind" not in task
            assert task["artifacts"][0]["parts"] == [{"text": "hi"}]


def test_an_agent_that_offers_nothing_newer_is_spoken_to_with_a_note(folder: Path) -> None:
    with sitting(folder, scenarios=["0.3-only"]) as desk:
        sent, text = together(
            lambda: desk.run("send", "echo hi", "-o", "json"),
            lambda: desk.run("send", "echo hi"),
        )
        # stdout is as ever; who reads stderr is told what is spoken and how to forbid it.
        assert sent.json["task"]["artifacts"][0]["parts"] == [{"text": "hi"}]
        for ended in (sent, text):
            (note,) = (line for line in ended.err.splitlines() if line.startswith("Note: "))
            assert " 0.3," in note and "--strict-version" in note
        task = sent.json["task"]["id"]
        again, asked = together(
            lambda: desk.run("task", "get", task),
            lambda: desk.run("task", "get", task, "--a2a-version", "0.3"),
        )
        assert "Note: " in again.err and "Note: " not in asked.err
        assert {seen.headers["a2a-version"] for seen in calls(desk)} == {"0.3"}
        assert "(JSONRPC 0.3)" in desk.run("card", "get").fields["Selected"]


def test_a_failing_1_0_is_not_answered_by_speaking_0_3(folder: Path) -> None:
    refuses = {"when": {"version": "1.0"}, "steps": [{"error": "VersionNotSupported"}]}
    both = {"card": {"versions": ["0.3", "1.0"]}, "rules": [refuses]}
    with sitting(folder, ScriptedAgent(both)) as desk:
        failed = desk.run("send", "hi", "-o", "json", exit=1)
        assert failed.error["code"] == "VersionNotSupportedError" and "Note: " not in failed.err
        assert {seen.headers["a2a-version"] for seen in calls(desk)} == {"1.0"}


@pytest.mark.cli("A2ACLI_VER_001")
def test_a_refused_version_is_shown_and_no_other_is_tried(folder: Path) -> None:
    refuses = {"when": {"version": "1.0"}, "steps": [{"error": "VersionNotSupported"}]}
    with sitting(folder, ScriptedAgent({"rules": [refuses]})) as desk:
        failed, unknown = together(
            lambda: desk.run("send", "hi", "-o", "json", exit=1),
            lambda: desk.run("send", "hi", "-o", "json", "--a2a-version", "1.7", exit=1),
        )
        assert failed.error["code"] == unknown.error["code"] == "VersionNotSupportedError"
        assert {seen.headers["a2a-version"] for seen in calls(desk)} == {"1.0"}
        # Both bindings of 1.0 at most, and nothing for a version that nobody speaks.
        assert len(calls(desk)) <= 2
        header = desk.run("send", "hi", "--svc-param", "A2A-Version: 0.3", "-o", "json", exit=2)
        assert header.error["code"] == "A2ACLI_ERR_USAGE"


@pytest.mark.cli("A2ACLI_VER_002")
def test_a_required_extension_is_asked_for_or_the_agent_is_not_called(folder: Path) -> None:
    with sitting(folder, scenarios=["required-extension"]) as desk:
        refused = desk.run("send", "hi", "-o", "json", exit=1)
        assert refused.error["code"] == "ExtensionSupportRequiredError"
        assert refused.error["a2aCode"] is None
        line = f"dragoman send hi -o json -a {desk.url} --extension {REQUIRED_EXTENSION}"
        assert refused.error["hint"] == line
        assert calls(desk) == []
        together(
            lambda: desk.run("send", "echo hi", "--extension", REQUIRED_EXTENSION),
            lambda: desk.run("task", "list", env={"A2ACLI_EXTENSION": REQUIRED_EXTENSION}),
            lambda: desk.run(
                *("task", "list", "--transport", "rest", "--extension", "urn:other"),
                *("--extension", REQUIRED_EXTENSION),
            ),
        )
        asked = [sent_extensions(seen) for seen in calls(desk)]
        assert len(asked) == 3 and all(REQUIRED_EXTENSION in one for one in asked)
        assert any("urn:other" in one for one in asked)


@pytest.mark.cli("A2ACLI_VER_002")
def test_a_required_extension_that_we_know_is_declared_unasked(folder: Path) -> None:
    known = [{"uri": RESUME_URI, "required": True}, {"uri": "urn:optional"}]
    script = {"card": {"extensions": known}, "cursors": True}
    with sitting(folder, ScriptedAgent(script)) as desk:
        assert COMPLETED in desk.run("send", "echo hi").out
        assert [sent_extensions(seen) for seen in calls(desk)] == [{RESUME_URI}]


def sent_extensions(seen: SeenRequest) -> set[str]:
    """Return the extensions a request asks for."""
    named = seen.headers.get("a2a-extensions", "").split(",")
    return {one.strip() for one in named if one.strip()}


@pytest.mark.cli("A2ACLI_VER_003")
def test_what_the_card_does_not_offer_is_not_asked_for(folder: Path) -> None:
    with sitting(folder, scenarios=["no-push"]) as desk:
        push = ("task", "push-config")
        rows = [
            ("create", "t", "--url", "http://127.0.0.1:9/"),
            ("get", "t", "c"),
            ("list", "t"),
            ("delete", "t", "c"),
            ("listen", "t"),
        ]
        failed = together(
            *(lambda r=row: desk.run(*push, *r, "-o", "json", exit=1) for row in rows),
            lambda: desk.run("card", "get", "--extended", "-o", "json", exit=1),
        )
        *pushes, extended = [ended.error for ended in failed]
        assert {one["code"] for one in pushes} == {"PushNotificationNotSupportedError"}
        assert extended["code"] == "UnsupportedOperationError"
        assert all(one["a2aCode"] is None and one["hint"] for one in (*pushes, extended))
        assert calls(desk) == []


@pytest.mark.cli("A2ACLI_VER_003")
def test_an_agent_that_does_not_stream_is_polled(folder: Path) -> None:
    with sitting(folder, scenarios=["no-streaming"]) as desk:
        task, _ = desk.begin("slow 1")
        poll = ("--poll-interval", "100ms")
        lines, followed, waited = together(
            lambda: desk.run("send", "slow 1", "--stream", "-o", "json", *poll).lines,
            lambda: desk.json("task", "subscribe", task, *poll),
            lambda: desk.run("send", "slow 1", "-o", "json", *poll),
        )
        # No event is invented: each line is the task as it was found.
        assert len(lines) > 1 and all([*line] == ["task"] for line in lines)
        for end in (lines[-1]["task"], followed, waited.json["task"]):
            assert end["status"]["state"] == COMPLETED
        methods = {seen.method for seen in calls(desk)}
        assert methods == {"SendMessage", "GetTask"}
        sent = [seen.json["params"] for seen in desk.seen("SendMessage")]
        assert all(one["configuration"]["returnImmediately"] for one in sent)
        # An id that can be lost to an interrupt is told while there is none.
        assert f"Waiting: task {waited.json['task']['id']} " in waited.err
