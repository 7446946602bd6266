"""`dragoman bench`: load on an agent of this machine, and on no other by accident."""

import json
from collections.abc import Generator
from pathlib import Path

import pytest
from harness.processes import run, running

from dragoman.testing.processes import ServerProcess

AGENT = """
from dragoman import Agent, TaskFailed

agent = Agent("Target", "Is asked a lot.")

@agent.skill
def echo(text: str) -> str:
    if text == "fail":
        raise TaskFailed("no")
    return text
"""


@pytest.fixture
def target(tmp_path: Path) -> Generator[ServerProcess]:
    (tmp_path / "target.py").write_text(AGENT)
    options = ("--listen", "127.0.0.1:0", "--store", "memory:")
    with running("serve", "target.py", *options, cwd=tmp_path) as child:
        child.ready()
        yield child


BRIEFLY = ("--duration", "300ms", "--warmup", "0", "--concurrency", "2")


def test_figures_are_of_every_kind_of_request(target: ServerProcess, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    words = ("--scenario", "mixed", "--report", report, "--strict", "-o", "json")
    ended = run("bench", target.url, *BRIEFLY, *words, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    figures = json.loads(ended.stdout)
    assert figures == json.loads(report.read_text())
    assert figures["requests"] > 3 and figures["errors"] == {}
    assert figures["perSecond"] > 0 and figures["operations"].keys() == {"send", "stream", "get"}
    latency = figures["latency"]
    assert 0 < latency["p50"] <= latency["p90"] <= latency["p99"] <= latency["max"]


def test_a_rate_is_kept(target: ServerProcess, tmp_path: Path) -> None:
    words = ("--rate", "20", "--duration", "500ms", "--warmup", "100ms")
    ended = run("bench", "-a", target.url, *words, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    lines = dict(line.split(": ", 1) for line in ended.stdout.splitlines())
    assert lines["Scenario"] == "send" and lines["Errors"] == "0"
    assert int(lines["Requests"]) == 10 and lines["P99"].endswith(" ms")


def test_failures_and_slowness_count_for_those_who_are_strict(
    target: ServerProcess, tmp_path: Path
) -> None:
    (tmp_path / "payload.txt").write_text("fail")
    words = ("--payload", "payload.txt", "-o", "json")
    ended = run("bench", target.url, *BRIEFLY, *words, cwd=tmp_path)
    figures = json.loads(ended.stdout)
    assert ended.returncode == 0 and "Warning: " in ended.stderr
    assert figures["errors"] == {"TASK_STATE_FAILED": figures["requests"]}
    assert run("bench", target.url, *BRIEFLY, *words, "--strict", cwd=tmp_path).returncode == 1
    words = ("--limit-p99", "0.000001", "--strict")
    slow = run("bench", target.url, *BRIEFLY, *words, cwd=tmp_path)
    assert slow.returncode == 1 and "above --limit-p99" in slow.stderr


def test_an_agent_of_another_machine_is_left_alone(tmp_path: Path) -> None:
    ended = run("bench", "http://192.0.2.1/", *BRIEFLY, "-o", "json", cwd=tmp_path)
    error = json.loads(ended.stdout)["error"]
    assert ended.returncode == 2 and "--yes" in error["message"]
    card = {
        "name": "Far",
        "description": "Away.",
        "version": "1",
        "supportedInterfaces": [
            {"url": "http://192.0.2.1/", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
        ],
        "capabilities": {},
        "defaultInputModes": [],
        "defaultOutputModes": [],
        "skills": [],
    }
    # A card of this machine may lead elsewhere.
    (tmp_path / "card.json").write_text(json.dumps(card))
    ended = run("bench", "./card.json", *BRIEFLY, cwd=tmp_path)
    assert ended.returncode == 2 and "192.0.2.1" in ended.stderr
