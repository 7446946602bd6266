"""`dragoman inbox`: what waits for a person over all agents, answered while processes come and
go."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from harness.processes import START_WITHIN, environment, running
from harness.serving import message
from harness.waiting import WAIT, within

from dragoman.testing.processes import ServerProcess
from tests.cli.calling.test_chat import on_terminal
from tests.cli.command import home, inside
from tests.telemetry.collector import collecting

AGENTS = """
from dragoman import Agent, Turn

deploys = Agent("Deploys", "Deploys after somebody agreed.")
bank = Agent("Bank", "Pays.")

@deploys.skill
async def deploy(text: str, turn: Turn) -> str:
    runs = await turn.step("count", lambda: 1)
    is_wanted = await turn.confirm(f"Deploy {text}?")
    return f"deployed {text} {is_wanted} {runs}"

@deploys.skill
async def pick(text: str, turn: Turn) -> str:
    where = await turn.choose("Where to?", ["north", "south"])
    form = {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}}
    return f"{where} {(await turn.fill('How many?', form))['n']}"

@bank.skill
async def pay(text: str, turn: Turn) -> str:
    code = await turn.ask("Your code?", sensitive=True)
    return f"paid with {len(code.text)} characters"
"""
HUSH = "hush-90817"


@contextmanager
def served(folder: Path, **env: str) -> Generator[ServerProcess]:
    (folder / "both.py").write_text(AGENTS)
    options = ("--listen", "127.0.0.1:0", "--store", "tasks.db", "--verbose", "--debug")
    with running("serve", "both.py", *options, cwd=folder, env=env) as child:
        child.ready()
        yield child


def send(child: ServerProcess, text: str, skill: str = "", agent: str = "deploys") -> Any:
    more = {"metadata": {"skillId": skill}} if skill else {}
    answer = httpx.post(
        f"{child.url}/agents/{agent}/message:send",
        json={"message": message(text, **more)},
        timeout=WAIT,
        trust_env=False,
    )
    return answer.json()["task"]


def inbox(folder: Path, *words: str) -> Any:
    ended = inside("inbox", *words, "--store", "tasks.db", "-o", "json", cwd=folder)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def typed(folder: Path, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dragoman", *words],
        cwd=folder,
        env=environment(folder) | home(folder),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=START_WITHIN,
    )


def end(child: ServerProcess, task: Any, agent: str = "deploys") -> str:
    """Wait until a task has ended; return its text."""
    with httpx.stream(
        "POST",
        f"{child.url}/agents/{agent}/tasks/{task['id']}:subscribe",
        timeout=WAIT,
        trust_env=False,
        headers={"Last-Event-ID": "1", "A2A-Version": "1.0"},
    ) as events:
        assert events.status_code == 200
        for line in events.iter_lines():
            found = json.loads(line.removeprefix("data: ")) if line.startswith("data: ") else {}
            update = found.get("artifactUpdate")
            if update:
                return update["artifact"]["parts"][0]["text"]
    raise AssertionError("it ended without a result")


def _lines(folder: Path) -> list[str]:
    return (folder / "tasks.db.audit.jsonl").read_text().splitlines()


def kill(child: ServerProcess) -> None:
    os.kill(child.process.pid, signal.SIGKILL)
    child.process.wait(WAIT)


def everything(folder: Path) -> bytes:
    """Return all that is on disk: stores, logs, the audit log."""
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


def test_an_approval_waits_while_every_process_is_killed_and_a_secret_is_nowhere(
    tmp_path: Path,
) -> None:
    """Asked by one process, answered while none runs, completed by a third."""
    with served(tmp_path) as first:
        approval = send(first, "v2")
        secret = send(first, "bill", agent="bank")
        kill(first)
    with served(tmp_path) as second:
        kill(second)
    one, two = inbox(tmp_path, "list")["items"]
    assert (one["agent"], one["kind"], one["prompt"]) == ("deploys", "confirmation", "Deploy v2?")
    assert (two["agent"], two["kind"], two["sensitive"]) == ("bank", "text", True)
    assert inbox(tmp_path, "show", one["id"]) == inbox(tmp_path, "show", approval["id"]) == one
    text = inside("inbox", "show", two["id"], "--store", "tasks.db", cwd=tmp_path).stdout
    assert f"Request: {two['id']}\nKind: text (secret)\n" in text
    none = inside("inbox", "show", "nothing", "--store", "tasks.db", cwd=tmp_path)
    assert none.returncode == 1 and "Hint: dragoman inbox list" in none.stderr
    left = inbox(tmp_path, "answer", one["id"], "yes")
    assert left["result"] == "left for the agent, until it is served"
    # Not as an argument, which others on the machine can read.
    refused = typed(tmp_path, "inbox", "answer", two["id"], HUSH, "--store", "tasks.db")
    assert refused.returncode == 2 and "stdin" in refused.stderr
    words = ("inbox", "answer", two["id"], "--store", "tasks.db", "--debug", "--verbose")
    said = typed(tmp_path, *words, stdin=f"{HUSH}\n")
    assert said.returncode == 0, said.stderr
    with collecting() as traces:
        told = {"DRAGOMAN_OTLP_ENDPOINT": traces.url, "OTEL_BSP_SCHEDULE_DELAY": "100"}
        with served(tmp_path, **told) as third:
            finished(third, approval, secret)
        traces.wait(lambda seen: len(seen.named("agent[bank]")) > 0)
        assert not any(HUSH.encode() in body for body in traces.bodies)
    assert inbox(tmp_path, "list")["items"] == []
    logs = first.log + second.log + third.log + said.stdout + said.stderr
    assert HUSH not in logs and HUSH.encode() not in everything(tmp_path)


def finished(third: ServerProcess, approval: Any, secret: Any) -> None:
    assert end(third, approval) == "deployed v2 True 1"
    assert end(third, secret, "bank") == "paid with 10 characters"


def test_answers_reach_a_server_that_runs(tmp_path: Path) -> None:
    with served(tmp_path) as child:
        task = send(child, "x", "pick")
        (item,) = inbox(tmp_path, "list")["items"]
        assert item["choices"] == ["north", "south"] and item["taskId"] == task["id"]
        assert inbox(tmp_path, "answer", task["id"], "2")["result"] == "answered"
        (item,) = inbox(tmp_path, "list", "--task-id", task["id"])["items"]
        assert item["kind"] == "form"
        assert inbox(tmp_path, "answer", item["id"], '{"n": 4}')["result"] == "answered"
        assert end(child, task) == "south 4"
        acts = [json.loads(line)["act"] for line in _lines(tmp_path)]
        assert acts.count("inbox.answer") == 2


async def test_a_form_is_filled_in_on_a_terminal_field_by_field(tmp_path: Path) -> None:
    with served(tmp_path) as child:
        task = await asyncio.to_thread(send, child, "x", "pick")
        words = ("inbox", "answer", task["id"], "--store", "tasks.db")
        answered = await asyncio.to_thread(typed, tmp_path, *words, "1")
        assert answered.returncode == 0, answered.stderr
        async with on_terminal(tmp_path, *words) as (terminal, process):
            await terminal.answer("n - a whole number", "four")
            await terminal.answer("must be a whole number", "4")
            assert await within(process.wait()) == 0
        assert await asyncio.to_thread(end, child, task) == "north 4"


def test_no_question_is_lost_behind_those_that_came_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.cli.calling.inbox._PAGE", 2)
    with served(tmp_path) as child:
        tasks = [send(child, f"v{number}")["id"] for number in range(5)]
        assert [item["taskId"] for item in inbox(tmp_path, "list")["items"]] == tasks


def test_a_question_that_a_gateway_of_the_same_store_passed_on_is_there_once(
    tmp_path: Path,
) -> None:
    options = ("--listen", "127.0.0.1:0", "--store", "tasks.db")
    with running("up", *options, cwd=tmp_path) as child:
        child.ready()
        answer = httpx.post(
            f"{child.url}/a2a/dragoman-demo/message:send",
            json={"message": message("tea", metadata={"skillId": "order"})},
            timeout=WAIT,
            trust_env=False,
        )
        task = answer.json()["task"]
        (item,) = inbox(tmp_path, "list")["items"]
        assert item["taskId"] == task["id"]
        inbox(tmp_path, "answer", item["id"], "Rua 7")
        assert inbox(tmp_path, "list")["items"] == []


def test_the_inbox_of_an_agent_that_is_called(tmp_path: Path) -> None:
    with served(tmp_path) as child:
        send(child, "v3")
        ref = f"{child.url}/agents/deploys"
        shown = inside("inbox", "list", "-a", ref, cwd=tmp_path)
        assert shown.returncode == 0, shown.stderr
        assert "Prompt: Deploy v3?" in shown.stdout and "Answer: yes or no" in shown.stdout
        (id,) = [line[9:] for line in shown.stdout.splitlines() if line.startswith("Request: ")]
        refused = inside("inbox", "answer", id, "perhaps", "-a", ref, cwd=tmp_path)
        assert refused.returncode == 2 and "neither yes nor no" in refused.stderr
        done = inside("inbox", "answer", id, "no", "-a", ref, cwd=tmp_path)
        assert done.returncode == 0 and "deployed v3 False 1" in done.stdout
        again = inside("inbox", "answer", id, "no", "-a", ref, cwd=tmp_path)
        assert "nothing of this id waits" in again.stderr


def test_a_task_that_waits_for_a_form_names_the_command_that_asks_field_by_field(
    tmp_path: Path,
) -> None:
    with served(tmp_path) as child:
        ref = f"{child.url}/agents/deploys"
        choice = inside("send", "-a", ref, "--skill", "pick", "x", cwd=tmp_path)
        assert "Hint:" not in choice.stderr, "a reply in words will do"
        task = choice.stdout.partition("Task: ")[2].split()[0]
        form = inside("send", "-a", ref, "--task-id", task, "north", cwd=tmp_path)
        assert f"Hint: dragoman inbox answer -a {ref} {task}" in form.stderr


@pytest.mark.parametrize(
    ("kind", "text", "result"),
    [
        ("choice", "2", "b"),
        ("choice", "a", "a"),
        ("confirmation", "Y", True),
        ("form", '{"n": 1}', {"n": 1}),
        ("tool", "7", 7),
        ("tool", "free text", "free text"),
        ("text", " as it is ", " as it is "),
    ],
)
def test_what_is_typed_is_what_is_meant(kind: Any, text: str, result: Any) -> None:
    from dragoman.cli.calling.answer_prompt import value_of
    from dragoman.model.requests import Request

    assert value_of(Request("1", kind, choices=["a", "b"]), text) == result
