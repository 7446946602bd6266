"""`dragoman send`, and what all commands that talk to an agent share: ids, waiting, signals."""

import asyncio
import json
import shlex
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from harness.processes import ROOT, environment
from harness.serving import Site, hosting, serving
from harness.waiting import within

from dragoman import Agent, Message, Part, TaskFailed, Turn
from dragoman.cli.calling.send import parts_of
from dragoman.cli.failures import Failure
from dragoman.cli.grammar import GivenOption
from dragoman.cli.invocation import Invocation
from dragoman.testing.scripted.demo import demo
from tests.cli.command import call, document, fields, home, inside, lines, typed

agent = Agent("Scripted", "Answers.")


@agent.skill(default=True)
def echo(text: str) -> str:
    return f"echo: {text}"


@agent.skill
async def ask(text: str, turn: Turn) -> str:
    return (await turn.ask("Well?")).text


@agent.skill
def fail(text: str) -> str:
    raise TaskFailed("It broke.")


@agent.skill
async def slow(text: str) -> AsyncIterator[str]:
    yield "begun"
    await asyncio.Event().wait()


@agent.skill
async def parts(message: Message) -> list[Part]:
    return message.parts


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with serving(agent) as found:
        yield found


def skill(name: str) -> tuple[str, str]:
    return "--skill", name


async def test_a_message_leads_to_a_task_as_text_and_the_next_command(
    site: Site, tmp_path: Path
) -> None:
    ended = await typed("send", "-a", site.url, "hello", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    found = fields(ended.stdout)
    assert found["State"] == "TASK_STATE_COMPLETED"
    assert "Text:\necho: hello\n\n" in ended.stdout
    assert ended.stderr == f"Waiting: task {found['Task']} context {found['Context']}\n"
    words = shlex.split(found["Resume"])
    assert words == [
        "dragoman",
        "send",
        "-a",
        site.url,
        "--context-id",
        found["Context"],
        "<message>",
    ]
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not any(found["Task"] in path.read_text() for path in files)


async def test_the_printed_command_goes_on_with_the_task(site: Site, tmp_path: Path) -> None:
    first = await call("send", "-a", site.url, *skill("ask"), "hi", cwd=tmp_path)
    found = fields(first.stdout)
    assert first.returncode == 0 and found["State"] == "TASK_STATE_INPUT_REQUIRED"
    assert f"Warning: task {found['Task']} waits in TASK_STATE_INPUT_REQUIRED" in first.stderr
    again = await call(*shlex.split(found["Resume"])[1:], cwd=tmp_path)
    more = fields(again.stdout)
    assert (more["Task"], more["State"]) == (found["Task"], "TASK_STATE_COMPLETED")
    assert "<reply>" in again.stdout
    third = await call("send", "-a", site.url, "--task-id", found["Task"], "x", cwd=tmp_path)
    assert third.returncode == 1 and "--debug" in third.stderr
    assert await site.total() == 1


async def test_json_is_one_document_or_a_line_for_each_event(site: Site, tmp_path: Path) -> None:
    one = document(await call("send", "-a", site.url, "-o", "json", "x", cwd=tmp_path))
    assert one["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
    events = lines(await call("send", "-a", site.url, "-o", "json", "--stream", "x", cwd=tmp_path))
    assert "task" in events[0]
    assert events[-1]["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"
    env = {"A2ACLI_STREAM": "1", "A2ACLI_OUTPUT": "json", "A2ACLI_AGENT_CARD": site.url}
    assert "task" in document(await call("send", "x", cwd=tmp_path, env=env))


async def test_async_returns_ids_at_once_and_a_failed_task_is_a_warning(
    site: Site, tmp_path: Path
) -> None:
    quick = await call("send", "-a", site.url, *skill("slow"), "--async", "x", cwd=tmp_path)
    found = fields(quick.stdout)
    assert quick.returncode == 0 and found["Task"] and found["Context"]
    assert found["Resume"].startswith("dragoman task get -a ")
    failed = await call("send", "-a", site.url, *skill("fail"), "x", cwd=tmp_path)
    assert failed.returncode == 0 and "Warning: task" in failed.stderr
    assert "ended TASK_STATE_FAILED" in failed.stderr and "It broke." in failed.stdout


async def test_when_the_time_is_over_the_task_goes_on(site: Site, tmp_path: Path) -> None:
    words = ("send", "-a", site.url, *skill("slow"), "--timeout", "700ms", "-o", "json", "x")
    late = await call(*words, cwd=tmp_path)
    error = document(late, 5)["error"]
    assert error["code"] == "A2ACLI_ERR_TIMEOUT"
    task = error["hint"].split()[-1]
    said = fields(late.stderr)
    assert (said["Task"], said["State"]) == (task, "TASK_STATE_WORKING") and said["Context"]
    follow = ("task", "subscribe", "-a", site.url, task, "--timeout", "700ms")
    again = await call(*follow, cwd=tmp_path)
    assert again.returncode == 5 and fields(again.stderr)["State"] == "TASK_STATE_WORKING"
    assert error["hint"].startswith("dragoman task get -a ") and "--wait" in error["hint"]
    assert (await site.task(task))["status"]["state"] == "TASK_STATE_WORKING"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_leaves_the_ids_and_the_next_command(
    site: Site, tmp_path: Path, number: signal.Signals
) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "dragoman", "send", "-a", site.url, *skill("slow"), "-o", "json", "x"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
        env=environment(tmp_path) | home(tmp_path) | {"PYTHONPATH": str(ROOT)},
    )
    assert process.stderr is not None
    waiting = (await within(process.stderr.readline())).decode()
    task = waiting.split()[2]
    process.send_signal(number)
    out, err = await within(process.communicate())
    assert process.returncode == 128 + number
    error = json.loads(out)["error"]
    assert (error["code"], error["message"]) == ("A2ACLI_ERR_INTERNAL", "interrupted")
    assert f"Task: {task}" in err.decode() and f"--wait {task}" in err.decode()
    assert "State: TASK_STATE_" in err.decode() and "Context: \n" not in err.decode()


async def test_debug_shows_the_wire_without_secrets(site: Site, tmp_path: Path) -> None:
    words = ("send", "-a", site.url, "--debug", "-o", "json", "--svc-param", "x-pass:hunter22", "q")
    ended = await call(*words, cwd=tmp_path, env={"A2ACLI_BEARER": "tok3n-of-mine"})
    document(ended)
    assert '"text": "q"' in ended.stderr and "a2a-version: 1.0" in ended.stderr
    assert "x-pass: <redacted>" in ended.stderr
    assert "--bearer is not sent" in ended.stderr
    assert "hunter22" not in ended.stderr and "tok3n" not in ended.stderr


async def test_parts_arrive_in_their_order(site: Site, tmp_path: Path) -> None:
    (tmp_path / "x.bin").write_bytes(b"\x00\x01")
    (tmp_path / "d.json").write_text('{"n": 1}')
    words = ("send", "-a", site.url, *skill("parts"), "-o", "json", "first")
    more = ("--file", "x.bin", "--media-type", "application/pdf", "--data", "d.json")
    last = ("--text", "last", "--file", "https://example.com/f")
    task = document(await call(*words, *more, *last, cwd=tmp_path))["task"]
    assert [part for part in task["history"][0]["parts"]] == [
        {"text": "first"},
        {"raw": "AAE=", "filename": "x.bin", "mediaType": "application/pdf"},
        {"data": {"n": 1}, "mediaType": "application/json"},
        {"text": "last"},
        {"url": "https://example.com/f"},
    ]


def of(folder: Path, *said: tuple[str, str]) -> list[Part]:
    run = Invocation((), {})
    run.folder = folder
    return parts_of(run, [GivenOption(*one) for one in said])


def test_a_type_is_inferred_only_without_one(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    (tmp_path / "b").write_text("x")
    found = of(tmp_path, ("file", "a.txt"), ("file", "b"), ("data", "[1]"), ("media_type", "x/y"))
    assert [part.media_type for part in found] == ["text/plain", "application/octet-stream", "x/y"]


@pytest.mark.parametrize(
    ("said", "says"),
    [
        ([], "needs a text"),
        ([("media_type", "a/b")], "after the part"),
        ([("text", "x"), ("media_type", "a/b"), ("media_type", "a/b")], "after the part"),
        ([("text", "x"), ("media_type", "nonsense")], "media type"),
        ([("", "x"), ("", "y")], "one text"),
        ([("file", "missing")], "missing: No such file"),
        ([("data", "{nonsense")], "not JSON"),
        ([("data", "[NaN]")], "not JSON"),
    ],
)
def test_parts_that_make_no_sense_are_a_usage_error(
    tmp_path: Path, said: list[tuple[str, str]], says: str
) -> None:
    with pytest.raises(Failure, match=says) as caught:
        of(tmp_path, *said)
    assert caught.value.exit == 2


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("send", "x"), "-a <ref>"),
        (("send", "-a", "x", "--async", "--wait", "x"), "exclude"),
        (("send", "-a", "x", "--async", "--stream", "x"), "exclude"),
        (("send", "-a", "x", "--continue", "x"), "No such option: --continue"),
        (("send", "-a", "x", "-o", "jsonl", "x"), "--stream"),
        (("send", "-a", "x", "--poll-interval", "1ms", "x"), "100ms"),
    ],
)
def test_what_makes_no_sense_is_exit_2(words: tuple[str, ...], says: str, tmp_path: Path) -> None:
    ended = inside(*words, cwd=tmp_path)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert says in ended.stderr


async def test_an_agent_that_is_not_there_is_exit_3(tmp_path: Path) -> None:
    away = document(await call("send", "-a", "localhost:1", "-o", "json", "x", cwd=tmp_path), 3)
    assert away["error"]["code"] == "A2ACLI_ERR_UNREACHABLE"
    gone = document(await call("send", "-a", "./no.json", "-o", "json", "x", cwd=tmp_path), 3)
    assert gone["error"]["code"] == "A2ACLI_ERR_CARD_NOT_FOUND"


async def test_a_task_that_wants_authorization_names_both_ways_on(tmp_path: Path) -> None:
    async with hosting(demo()) as url:
        ended = await call("send", "-a", url, "-o", "json", "auth", cwd=tmp_path)
    said, task = fields(ended.stderr), document(ended)["task"]["id"]
    assert said["Resume"] == f'dragoman send -a {url} --task-id {task} "<reply>"'
    assert said["Hint"] == f"dragoman task subscribe -a {url} {task} --until terminal"


async def test_a_connection_that_breaks_is_told_once_for_each_time(tmp_path: Path) -> None:
    async with hosting(demo()) as url:
        ended = await call("send", "-a", url, "--stream", "-o", "json", "cut 2 1", cwd=tmp_path)
        whole = await call("send", "-a", url, "--stream", "-o", "json", "stream 2", cwd=tmp_path)
    assert lines(ended)[-1]["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"
    assert ended.stderr.count("Note: the connection broke; trying again\n") == 1
    assert "Note" not in whole.stderr


async def test_short_values_of_headers_leave_the_next_command_alone(
    site: Site, tmp_path: Path
) -> None:
    ref = site.url.removeprefix("http://")
    words = ("send", "-a", ref, "--svc-param", "X-Tenant:1", "--svc-param", "X-Env:a", "hi")
    ended = await call(*words, cwd=tmp_path)
    assert shlex.split(fields(ended.stdout)["Resume"])[:4] == ["dragoman", "send", "-a", ref]
    slow = await call(*words, *skill("slow"), "--timeout", "700ms", cwd=tmp_path)
    assert fields(slow.stderr)["Hint"].startswith(f"dragoman task get -a {ref} --wait ")


@pytest.mark.parametrize(
    ("version", "binding"),
    [("1.0", "jsonrpc"), ("1.0", "rest"), ("0.3", "jsonrpc"), ("0.3", "rest"), ("0.2", "jsonrpc")],
)
async def test_a_skill_is_named_by_its_id_or_its_name(
    site: Site, tmp_path: Path, version: str, binding: str
) -> None:
    words = ("send", "-a", site.url, "-o", "json", "x", "--a2a-version", version)
    for name in ("fail", "FAIL"):
        ended = await call(*words, "--transport", binding, "--skill", name, cwd=tmp_path)
        assert document(ended)["task"]["status"]["state"] == "TASK_STATE_FAILED"
        assert "Note" not in ended.stderr


async def test_a_skill_that_the_card_lacks_is_for_the_agent_to_judge(
    site: Site, tmp_path: Path
) -> None:
    words = ("send", "-a", site.url, "-o", "json", "x", "--skill", "ekko")
    ended = await call(*words, cwd=tmp_path)
    assert document(ended, 1)["error"]["code"] == "InvalidParamsError"
    assert "no skill ekko (it has: echo, ask, fail, slow, parts)" in fields(ended.stderr)["Note"]
    both = await call(*words, "--metadata", '{"skillId": "echo"}', cwd=tmp_path)
    assert document(both, 2)["error"]["message"] == "--skill and --metadata both name a skill"
