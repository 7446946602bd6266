"""`dragoman tasks`: the store as it is, read while a server works on it."""

import json
import signal
from collections.abc import Generator
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from harness.commands import invoke
from harness.processes import run, running
from harness.serving import message
from harness.waiting import WAIT

from dragoman.cli.invocation import Invocation
from dragoman.cli.operating import tasks
from dragoman.stores.interface.inspection import TailPosition, TaskFilter
from dragoman.testing.processes import ServerProcess

AGENT = """
import asyncio
from dragoman import Agent, Turn

agent = Agent("Kept", "Is looked into.")

@agent.skill(default=True)
async def echo(text: str):
    for word in text.split():
        yield word

@agent.skill
async def ask(text: str, turn: Turn) -> str:
    return (await turn.ask("Well?")).text
"""


@pytest.fixture
def server(tmp_path: Path) -> Generator[ServerProcess]:
    (tmp_path / "kept.py").write_text(AGENT)
    options = ("--listen", "127.0.0.1:0", "--store", "tasks.db")
    with running("serve", "kept.py", *options, cwd=tmp_path) as child:
        child.ready()
        yield child


def send(child: ServerProcess, text: str, **more: Any) -> Any:
    body = {"message": message(text, **more)}
    answer = httpx.post(f"{child.url}/message:send", json=body, timeout=WAIT, trust_env=False)
    return answer.json()["task"]


def asked(folder: Path, *words: str) -> Any:
    ended = invoke("tasks", *words, "--store", folder / "tasks.db", "-o", "json")
    assert ended.exit_code == 0, ended.output
    return json.loads(ended.stdout)


def test_tasks_are_listed_page_by_page_and_chosen(server: ServerProcess, tmp_path: Path) -> None:
    done = [send(server, "a b")["id"] for _ in range(3)]
    open_task = send(server, "x", metadata={"skillId": "ask"})
    everything = [open_task["id"], *reversed(done)]
    first = asked(tmp_path, "list", "--limit", "3")
    rest = asked(tmp_path, "list", "--limit", "3", "--page-token", first["nextPageToken"])
    assert [item["id"] for item in first["items"] + rest["items"]] == everything
    assert rest["nextPageToken"] == ""
    (item,) = asked(tmp_path, "list", "--status", "input-required")["items"]
    assert item["id"] == open_task["id"] and item["contextId"] == open_task["contextId"]
    assert item["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
    assert item["status"]["timestamp"] == open_task["status"]["timestamp"]
    assert item["metadata"]["dragoman:agent"] == "kept"
    for words, count in (
        (("--context-id", open_task["contextId"]), 1),
        (("--task-id", done[0]), 1),
        (("--agent", "kept"), 4),
        (("--agent", "nobody"), 0),
        (("--since", open_task["status"]["timestamp"]), 1),
        (("--since", "2199-01-01T00:00:00Z"), 0),
    ):
        assert len(asked(tmp_path, "list", *words)["items"]) == count, words
    shown = run("tasks", "list", "--store", "tasks.db", "--limit", "1", cwd=tmp_path).stdout
    assert shown.splitlines()[0] == f"Task: {open_task['id']}"
    assert shown.splitlines()[-1].startswith("Next-Page: 1")


def test_a_task_is_shown_as_its_agent_shows_it(server: ServerProcess, tmp_path: Path) -> None:
    task = send(server, "a b")
    assert asked(tmp_path, "show", task["id"]) == task
    whole = asked(tmp_path, "show", task["id"], "--verbose")
    assert whole["task"] == task
    assert [entry["position"] for entry in whole["log"]] == list(range(1, len(whole["log"]) + 1))
    assert whole["log"][0]["event"]["task"]["id"] == task["id"]
    waiting = send(server, "x", metadata={"skillId": "ask"})
    assert asked(tmp_path, "show", waiting["id"]) == waiting
    missing = run("tasks", "show", "none", "--store", "tasks.db", "-o", "json", cwd=tmp_path)
    assert missing.returncode == 1
    assert json.loads(missing.stdout)["error"]["code"] == "TaskNotFoundError"
    nowhere = run("tasks", "list", "--store", "none.db", cwd=tmp_path)
    assert nowhere.returncode == 2 and not (tmp_path / "none.db").exists()


def places(events: list[Any]) -> list[tuple[str, int]]:
    """Return which events these are: their tasks, and their places in the logs."""
    found: list[tuple[str, int]] = []
    for event in events:
        (content,) = event.values()
        id = content.get("taskId") or content["id"]
        found.append((id, content["metadata"]["dragoman:position"]))
    return found


def log(folder: Path, id: str) -> list[tuple[str, int]]:
    """Return what a stream shows of a task."""
    public = {"task", "statusUpdate", "artifactUpdate"}
    entries = asked(folder, "show", id, "--verbose")["log"]
    return [(id, entry["position"]) for entry in entries if entry["event"].keys() <= public]


def test_a_tail_goes_on_where_an_earlier_one_was(server: ServerProcess, tmp_path: Path) -> None:
    first = send(server, "a b")["id"]
    waiting = send(server, "x", metadata={"skillId": "ask"})["id"]
    seen = asked(tmp_path, "tail")
    assert places(seen["items"]) == log(tmp_path, first) + log(tmp_path, waiting)
    last = asked(tmp_path, "tail", "--limit", "2")
    assert places(last["items"]) == log(tmp_path, waiting)[-2:]
    position = seen["nextPageToken"]
    assert asked(tmp_path, "tail", "--since", position)["items"] == []
    had = set(log(tmp_path, waiting))
    send(server, "yes", taskId=waiting, metadata={"skillId": "ask"})
    second = send(server, "c d")["id"]
    more: list[tuple[str, int]] = []
    # In small pages, so that the position stands within tasks too.
    while page := asked(tmp_path, "tail", "--since", position, "--limit", "2"):
        more += places(page["items"])
        if page["nextPageToken"] == position:
            break
        position = page["nextPageToken"]
    new = [place for place in log(tmp_path, waiting) if place not in had]
    assert more == new + log(tmp_path, second) and len(new) > 1
    wrong = run("tasks", "tail", "--store", "tasks.db", "--since", "p1_x", cwd=tmp_path)
    assert wrong.returncode == 2


def test_a_live_tail_misses_nothing_and_says_where_it_was(
    server: ServerProcess, tmp_path: Path
) -> None:
    before = send(server, "old")["id"]
    words = ("tasks", "tail", "--store", "tasks.db", "--stream", "-o", "json")
    with running(*words, cwd=tmp_path) as child:
        shown = [json.loads(child.line())]
        while places(shown) != log(tmp_path, before):
            shown.append(json.loads(child.line()))
        ids = [send(server, "a b c")["id"] for _ in range(3)]
        waiting = send(server, "x", metadata={"skillId": "ask"})["id"]
        expected = {place for id in (before, *ids, waiting) for place in log(tmp_path, id)}
        while set(places(shown)) != expected:
            shown.append(json.loads(child.line()))
        assert len(shown) == len(expected), "nothing twice"
        child.process.send_signal(signal.SIGTERM)
        assert json.loads(child.line())["error"]["message"] == "interrupted"
        assert child.process.wait(WAIT) == 143
        position = child.log.splitlines()[-1].removeprefix("Position: ")
    # Ended between a line and noting its place, it shows that line again; it never skips one.
    assert {*places(asked(tmp_path, "tail", "--since", position)["items"])} <= expected
    send(server, "yes", taskId=waiting, metadata={"skillId": "ask"})
    after = asked(tmp_path, "tail", "--since", position)["items"]
    assert {*places(after)} - expected == {*log(tmp_path, waiting)} - expected


def test_the_tail_of_one_task_ends_with_it(server: ServerProcess, tmp_path: Path) -> None:
    waiting = send(server, "x", metadata={"skillId": "ask"})["id"]
    words = ("tasks", "tail", "--store", "tasks.db", "--task-id", waiting, "--stream")
    with running(*words, cwd=tmp_path) as child:
        child.line("State: TASK_STATE_INPUT_REQUIRED")
        send(server, "somebody else's")
        send(server, "yes", taskId=waiting, metadata={"skillId": "ask"})
        child.line("State: TASK_STATE_COMPLETED")
        assert child.process.wait(WAIT) == 0
    late = run(*words, "--timeout", "5s", cwd=tmp_path)
    assert late.returncode == 0 and "TASK_STATE_COMPLETED" in late.stdout
    ended = run("tasks", "tail", "--store", "tasks.db", "--stream", "--timeout", "1s", cwd=tmp_path)
    assert ended.returncode == 5 and "Position: p" in ended.stderr


def test_an_idle_tail_says_where_it_is_once(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    monkeypatch.setattr(tasks, "_TELL", -1.0)
    nothing = cast(Any, None)
    tail = tasks.Tail(Invocation(environment={}), nothing, nothing, TaskFilter(), 1)
    for highest in (1, 1, 2, 2):
        tail._tell(TailPosition(highest, {}))
    told = capfdbinary.readouterr().err.decode().splitlines()
    assert told == [f"Position: {TailPosition(highest, {})}" for highest in (1, 2)]


def test_a_tail_in_the_background_ends_by_an_interrupt(
    server: ServerProcess, tmp_path: Path
) -> None:
    send(server, "a")
    # As a shell starts what is followed by `&`.
    code = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); "
        "import os; os.execv(sys.executable, [sys.executable, '-m', 'dragoman', *sys.argv[1:]])"
    )
    words = ("tasks", "tail", "--store", "tasks.db", "--stream")
    with running(*words, cwd=tmp_path, command=("-c", code)) as child:
        child.line("State: TASK_STATE_COMPLETED")
        child.process.send_signal(signal.SIGINT)
        assert child.process.wait(WAIT) == 130
        assert "interrupted" in child.log
