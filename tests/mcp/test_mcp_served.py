"""`dragoman serve --mcp` with another library's client, and loops that are killed between calls."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from harness.processes import running
from harness.serving import message
from harness.waiting import WAIT, wait_until

from dragoman.testing.processes import ServerProcess
from tests.mcp import fifty
from tests.peers.libraries import python_of

PROGRAM = Path(fifty.__file__)
SERVER = f"{sys.executable} {PROGRAM}"

LOOP = f"""
import time
from pathlib import Path
from dragoman.agents.loop import AgentLoop
from dragoman.mcp.tools import McpTools
from dragoman.agents.scripted import ScriptedModel
from dragoman.agents.tools import ToolCall

def hold() -> str:
    Path("held").touch()
    while not Path("gate").exists():
        time.sleep(0.01)
    return "held"

model = ScriptedModel(
    [ToolCall("1", "add_1", {{"n": 1}}), ToolCall("2", "add_2", {{"n": 2}})],
    ToolCall("3", "echo", {{"text": "third"}}),
    ToolCall("4", "hold"),
    lambda request: " ".join(said.text for said in request.messages if said.role == "tool"),
)
tools = McpTools({SERVER!r}, env={{"CALLS": "calls"}})
agent = AgentLoop(model, tools=[tools, hold]).agent("Adder", "Adds.")
"""


@contextmanager
def served(folder: Path) -> Iterator[tuple[ServerProcess, httpx.Client]]:
    options = ("--listen", "127.0.0.1:0", "--store", folder / "tasks.db")
    with (
        running("serve", "adder.py", *options, cwd=folder) as child,
        httpx.Client(base_url=child.ready(), timeout=WAIT, trust_env=False) as http,
    ):
        yield child, http


def test_a_loop_killed_between_calls_of_mcp_tools_repeats_no_finished_one(tmp_path: Path) -> None:
    (tmp_path / "adder.py").write_text(LOOP)
    body = {"message": message("go"), "configuration": {"returnImmediately": True}}
    with served(tmp_path) as (child, http):
        task: Any = http.post("/message:send", json=body).json()["task"]
        wait_until((tmp_path / "held").exists)
        child.process.kill()
        child.process.wait(WAIT)
    (tmp_path / "gate").touch()
    with served(tmp_path) as (child, http):
        wait_until(lambda: "COMPLETED" in http.get(f"/tasks/{task['id']}").text)
        done: Any = http.get(f"/tasks/{task['id']}").json()
        assert child.stop() == 0
    lines = (tmp_path / "calls").read_text().splitlines()
    calls = Counter(line.split()[0] for line in lines)
    assert [calls[name] for name in ("add_1", "add_2", "echo")] == [1, 1, 1]
    (artifact,) = done["artifacts"]
    assert "".join(part["text"] for part in artifact["parts"]).endswith("2 4 third held")


@pytest.mark.peer
def test_an_mcp_server_of_fifty_tools_answers_through_a2a_sdk(tmp_path: Path) -> None:
    python = python_of("a2a-sdk==1.3.0")
    asked = [["echo", {"text": "hello"}], *([f"add_{n}", {"n": 1000}] for n in range(44))]
    with running(
        *("serve", f"mcp:{SERVER}", "--listen", "127.0.0.1:0", "--store", "memory:"), cwd=tmp_path
    ) as child:
        driver = Path(__file__).parent / "driver_a2a_sdk.py"
        done = subprocess.run(
            [python, driver, child.ready(), json.dumps(asked)],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        assert child.stop() == 0
        assert "Traceback" not in child.log
    skills, *tasks = map(json.loads, done.stdout.splitlines())
    assert len(skills) == 50
    assert ["corvid_github_star_repo", "GitHub Star Repo", ["github"]] in skills
    assert {task["status"]["state"] for task in tasks} == {"TASK_STATE_COMPLETED"}
    said = [task["artifacts"][0]["parts"][0]["text"] for task in tasks]
    assert said == ["hello", *(str(1000 + n) for n in range(44))]
