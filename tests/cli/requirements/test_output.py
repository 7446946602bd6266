"""What stands on stdout and stderr, in both formats, on success and on failure."""

import json
import os
import pty
import re
import subprocess
import sys
import threading
import tty
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dragoman.testing.scripted.demo import demo
from dragoman.testing.scripted.serve import hosted
from tests.cli.requirements.desk import Desk, Ended, sitting, together

LABEL = re.compile(r"[A-Z][A-Za-z0-9-]*: .*|[A-Z][A-Za-z0-9-]*:")
BLOCKS = {"Text:", "Data:", "Description:", "Metadata:"}


def grammar(text: str) -> list[str]:
    """Return the labels of a text output; fails where it is not made of fields and blocks."""
    labels: list[str] = []
    lines = iter(text.split("\n")[:-1])
    for line in lines:
        assert LABEL.fullmatch(line), repr(line)
        labels.append(line.partition(":")[0])
        if line in BLOCKS:
            for content in lines:
                if not content:
                    break
            else:
                raise AssertionError("a block without an end")
    return labels


@pytest.mark.cli("A2ACLI_OUT_001")
def test_stdout_is_pure_and_has_ids_and_state_in_every_mode(desk: Desk) -> None:
    task = desk.json("send", "ask")["task"]
    running, _ = desk.begin("hang")
    loud = ("--debug", "--verbose")
    commands: list[tuple[str, ...]] = [
        ("send", "parts"),
        ("send", "echo x", "--async"),
        ("task", "get", task["id"], "--history", "5"),
        ("task", "subscribe", task["id"]),
        ("task", "list", "--limit", "3"),
        ("task", "cancel", running),
    ]

    def runs(mode: tuple[str, ...]) -> list[tuple[tuple[str, ...], Ended]]:
        if "--stream" in mode:
            mine = [words for words in commands if "--async" not in words]
        else:
            mine = commands
        works: list[Callable[[], Ended]] = [
            lambda w=words: desk.run(*w, *loud, *mode) for words in mine
        ]
        return list(zip(mine, together(*works), strict=True))

    for _, ended in runs(()):
        assert {"Task", "Context", "State"} <= set(grammar(ended.out))
        assert ended.err.count("Debug: ") > 2
    for words, ended in runs(("-o", "json")):
        assert_ids(ended.json, words)
    for words, ended in runs(("-o", "json", "--stream")):
        for line in ended.lines:
            assert_ids(line, words)


def assert_ids(document: Any, words: tuple[str, ...]) -> None:
    """A task has its ids under their own names, and a state."""
    assert isinstance(document, dict)
    if "tasks" in document:
        for task in document["tasks"]:
            assert_ids(task, words)
        return
    wrapped = document.get("task", document)
    if inner := document.get("statusUpdate") or document.get("artifactUpdate"):
        assert inner["taskId"] and inner["contextId"], words
        return
    assert wrapped["id"] and wrapped["contextId"] and wrapped["status"]["state"], words


@pytest.mark.cli("A2ACLI_OUT_002")
def test_json_is_one_terminal_document_whatever_the_environment_says(desk: Desk) -> None:
    plain, forced, follow = together(
        lambda: desk.run("send", "stream 3", "-o", "json"),
        lambda: desk.run("send", "stream 3", env={"A2ACLI_STREAM": "1", "A2ACLI_OUTPUT": "json"}),
        lambda: desk.run("task", "list", "--limit", "1", "-o", "json", env={"A2ACLI_STREAM": "1"}),
    )
    for ended in (plain, forced):
        assert ended.json.keys() == {"task"} and ended.out.endswith("}\n")
        assert ended.json["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
        text = "".join(part["text"] for part in ended.json["task"]["artifacts"][0]["parts"])
        assert text == "chunk 1 chunk 2 chunk 3 "
    assert follow.json["tasks"]


@pytest.mark.cli("A2ACLI_OUT_003")
def test_lines_come_as_things_happen_and_the_last_is_the_end(desk: Desk) -> None:
    is_read = threading.Event()
    with desk.slowed(is_read.is_set):
        process = desk.start("send", "slow 1", "-o", "json", "--stream")
        assert process.stdout is not None
        # The agent is still at it: what is read was not kept back.
        assert "task" in json.loads(process.stdout.readline())
        is_read.set()
        out, _ = process.communicate(timeout=60)
    rest = [json.loads(line) for line in out.splitlines()]
    assert all(b"  " not in line for line in out.splitlines()), "compact"
    assert rest[-1]["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"
    assert process.returncode == 0


@pytest.mark.cli("A2ACLI_OUT_003")
def test_when_the_agent_dies_the_last_line_is_the_error(folder: Path) -> None:
    agent = demo()
    with hosted(agent) as url:
        desk = Desk(folder, url, agent)
        words = ("send", "hang", "-o", "json", "--stream", "--poll-interval", "100ms")
        process = desk.start(*words, "--timeout", "5s")
        assert process.stdout is not None
        first = json.loads(process.stdout.readline())
    out, err = process.communicate(timeout=60)
    last = json.loads(out.splitlines()[-1])
    # It is looked for again until the time is over: it may come back.
    ends = {"A2ACLI_ERR_UNREACHABLE": 3, "A2ACLI_ERR_TIMEOUT": 5}
    assert process.returncode == ends[last["error"]["code"]], (out, err)
    assert first["task"]["id"] in last["error"]["hint"]


ERRORS = {
    "TaskNotFound": ("TaskNotFoundError", -32001),
    "TaskNotCancelable": ("TaskNotCancelableError", -32002),
    "PushNotSupported": ("PushNotificationNotSupportedError", -32003),
    "UnsupportedOperation": ("UnsupportedOperationError", -32004),
    "ContentTypeNotSupported": ("ContentTypeNotSupportedError", -32005),
    "InvalidAgentResponse": ("InvalidAgentResponseError", -32006),
    "ExtendedCardNotConfigured": ("ExtendedAgentCardNotConfiguredError", -32007),
    "ExtensionRequired": ("ExtensionSupportRequiredError", -32008),
    "VersionNotSupported": ("VersionNotSupportedError", -32009),
    "-32602": ("InvalidParamsError", -32602),
    "-32600": ("InvalidRequestError", -32600),
}


@pytest.mark.cli("A2ACLI_OUT_004", "A2ACLI_EXIT_001")
def test_an_error_of_the_protocol_has_its_name_on_every_binding(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    for binding in ("JSONRPC", "HTTP+JSON"):
        is_rpc = binding == "JSONRPC"
        # One binding each: a client may turn to the other one when a version is refused.
        with sitting(
            tmp_path_factory.mktemp("home"), scenarios=["1.0-only"], bindings=[binding]
        ) as desk:
            # Bare numbers are of JSON-RPC.
            names = [name for name in ERRORS if is_rpc or not name.startswith("-")]
            for name in names:
                ended = desk.run("send", f"error {name}", "-o", "json", exit=1)
                error, (code, number) = ended.error, ERRORS[name]
                assert set(ended.json) == {"error"}
                assert set(error) == {"code", "message", "hint", "a2aCode"}
                assert error["code"] == code and error["message"]
                assert error["hint"] is None or error["hint"]
                assert error["a2aCode"] == number if is_rpc else 400 <= error["a2aCode"] < 600
            text = desk.run("send", "error TaskNotFound", exit=1)
            assert text.out == "" and "Error: TaskNotFoundError\n" in text.err
            assert f"A2A-Code: {-32001 if is_rpc else 404}" in text.err
            assert "Hint: " in text.err and "Message: " in text.err


@pytest.mark.cli("A2ACLI_OUT_004")
def test_a_parser_failure_is_told_in_the_format_that_was_asked_for(desk: Desk) -> None:
    for words, env in (
        (("send", "--no-such", "-o", "json"), {}),
        (("sned", "-o=json"), {}),
        (("send",), {"A2ACLI_OUTPUT": "json"}),
    ):
        failed = desk.run(*words, env=env, exit=2)
        assert failed.error["code"] == "A2ACLI_ERR_USAGE" and failed.error["hint"]


@pytest.mark.cli("A2ACLI_OUT_005")
def test_text_is_fields_and_blocks_and_nothing_an_agent_says_gets_out_of_one(desk: Desk) -> None:
    ended = desk.run("send", "hostile")
    labels = grammar(ended.out)
    assert labels.count("Task") == 1, "a line of a block is no field"
    assert "\x1b" not in ended.out and "\u202e" not in ended.out
    assert "\\x1b[31mred" in ended.out and "\\u202e" in ended.out
    inside = ended.out.split("Text:\n")[1].split("\n\n")[0]
    assert "\n \n" in inside and "Task: forged" in inside
    for words in (("send", "parts"), ("task", "list", "--limit", "2"), ("send", "fail")):
        assert {"Task", "Context", "State"} <= set(grammar(desk.run(*words, "--stream").out))


@pytest.mark.cli("A2ACLI_OUT_005")
def test_a_terminal_gets_the_bytes_a_pipe_gets(desk: Desk) -> None:
    task = desk.json("send", "parts")["task"]["id"]
    words = ("task", "get", task, "--verbose")
    piped = desk.run(*words).out.encode()
    ours, theirs = pty.openpty()
    # Raw: the terminal itself would turn line ends.
    tty.setraw(theirs)
    process = subprocess.Popen(
        [sys.executable, "-m", "dragoman", *words, "-a", desk.url],
        cwd=desk.folder,
        env=desk.environment({"TERM": "xterm-256color", "COLUMNS": "20"}),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    shown = b""
    try:
        while chunk := os.read(ours, 65536):
            shown += chunk
    except OSError:
        # Linux says so when the other end is closed.
        pass
    os.close(ours)
    assert process.wait(60) == 0 and shown == piped


@pytest.mark.cli("A2ACLI_OUT_007")
def test_debug_shows_the_wire_on_stderr_and_no_secret(
    desk: Desk, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with sitting(tmp_path_factory.mktemp("secret"), auth="bearer") as guarded:
        env = {"A2ACLI_BEARER": "demo-secret", "A2ACLI_SVC_PARAM": "x-tenant-key:hunter22"}
        ended = guarded.run("send", "echo visible-text", "--debug", "-o", "json", env=env)
        assert '"method": "SendStreamingMessage"' in ended.err and "visible-text" in ended.err
        assert "TASK_STATE_COMPLETED" in ended.err, "answers too"
        assert "authorization" in ended.err.lower()
        assert "demo-secret" not in ended.err and "hunter22" not in ended.err
        assert ended.json.keys() == {"task"} and "SendStreamingMessage" not in ended.out
        assert guarded.seen("SendStreamingMessage")[0].headers["x-tenant-key"] == "hunter22"
    quiet = desk.run("send", "echo x", "-o", "json")
    assert "Debug: " not in quiet.err
