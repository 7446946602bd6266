"""`dragoman join` as it is typed, with processes that are killed."""

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.processes import run
from harness.waiting import WAIT, within

from dragoman import Client
from dragoman.testing.processes import ServerProcess, clean_environment

pytestmark = pytest.mark.anyio
AGENT = '''
from dragoman import Agent, Turn

agent = Agent("Walker", "Takes steps.")


@agent.skill(default=True)
async def walk(text: str, turn: Turn) -> str:
    """Take a step, ask, take another."""
    first = await turn.step("first", lambda: text.upper())
    answer = await turn.ask("And then?")
    return f"{first}, {answer.text}, attempt {turn.attempt}"
'''


def dragoman(folder: Path, name: str, *words: str) -> ServerProcess:
    environment = clean_environment() | {"DRAGOMAN_LEASE": "2"}
    command = [sys.executable, "-m", "dragoman", *words]
    return ServerProcess(command, log=folder / f"{name}.log", environment=environment)


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[ServerProcess]:
    words = ["gateway", "--listen", "127.0.0.1:0", "--store", str(tmp_path / "gateway.db")]
    with dragoman(tmp_path, "gateway", *words) as process:
        process.ready()
        yield process


async def test_another_process_goes_on_where_one_was_killed(
    gateway: ServerProcess, tmp_path: Path
) -> None:
    code = tmp_path / "walker.py"
    code.write_text(AGENT)
    words = ["join", gateway.url, str(code), "--store", str(tmp_path / "agent.db")]
    with dragoman(tmp_path, "one", *words) as one, dragoman(tmp_path, "two", *words) as two:
        joined = [await asyncio.to_thread(process.line, "Joined: ", WAIT) for process in (one, two)]
        assert joined == [f"Joined: {gateway.url}/a2a/walker"] * 2
        async with Client(f"{gateway.url}/a2a/walker") as client:
            asked = await within(client.send("hello"))
            one.kill()
            answered = await within(client.send("on", task_id=asked.task_id))
            assert answered.text.startswith("HELLO, on")
            again = await within(client.send("bye"))
            assert again.state == asked.state
        assert await asyncio.to_thread(two.stop) == 0


async def test_what_is_no_gateway_is_told_so(gateway: ServerProcess, tmp_path: Path) -> None:
    code = tmp_path / "walker.py"
    code.write_text(AGENT)
    listen = ["--listen", "127.0.0.1:0", "--store", "memory:"]
    with dragoman(tmp_path, "other", "serve", str(code), *listen) as other:
        await asyncio.to_thread(other.ready)
        words = ["join", other.url, str(code), "--store", "memory:"]
        with dragoman(tmp_path, "lost", *words) as lost:
            assert await asyncio.to_thread(lost.process.wait, WAIT) != 0
            assert "no gateway that agents can join" in lost.log


async def test_an_old_version_is_told_the_command_that_joins_under_another_name(
    gateway: ServerProcess, tmp_path: Path
) -> None:
    code = tmp_path / "walker.py"
    code.write_text(AGENT)
    words = ["join", gateway.url, str(code), "--store", "memory:"]

    async def typed(*args: str) -> str:
        done = await asyncio.to_thread(run, *args, "--gateway", gateway.url, cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    with (
        dragoman(tmp_path, "old", *words) as old,
        dragoman(tmp_path, "new", *words, "--name", "walker-2") as new,
    ):
        for process in (old, new):
            await asyncio.to_thread(process.line, "Joined: ", WAIT)
        await typed("agents", "update", "walker", "--repeatable")
        begun = await typed("rollouts", "start", "walker", "walker-2")
        await typed("rollouts", "promote", begun.splitlines()[0].removeprefix("Rollout: "))
        old.kill()
        with dragoman(tmp_path, "again", *words, "--name=walker") as again:
            assert await asyncio.to_thread(again.process.wait, WAIT) != 0
            assert "a new version is in its place as walker" in again.log
            assert f"Hint: dragoman {' '.join(words)} --name '<name>'" in again.log
