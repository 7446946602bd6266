"""A process that an operator drains ends in good order, and the others go on; so does one that is
told to stop while it starts."""

import asyncio
import contextlib
import errno
import os
import signal
import socket
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import httpx
import pytest
from harness.processes import environment, running
from harness.serving import message
from harness.waiting import WAIT, eventually, within

from dragoman.testing import watchdog

AGENT = """
from dragoman import Agent

agent = Agent("Echo", "Says what you said.")


@agent.skill
async def say(text: str) -> str:
    return text
"""
HELD = """
import asyncio
from pathlib import Path
from dragoman import Agent

agent = Agent("Held", "Answers when a file is there.")


@agent.skill
async def wait(text: str) -> str:
    Path("begun").touch()
    while not Path("open").exists():
        await asyncio.sleep(0.005)
    return text
"""
PROCESSES = "/api/v1/console/processes"


async def test_one_of_two_workers_is_drained_and_replaced_while_callers_are_served(
    tmp_path: Path,
) -> None:
    (tmp_path / "echo.py").write_text(AGENT)
    options = ("--listen", "127.0.0.1:0", "--store", "tasks.db", "--workers", "2")
    with running("serve", "echo.py", *options, cwd=tmp_path) as child:
        child.ready()

        async def call(verb: str, path: str, **more: Any) -> Any:
            # A connection of its own: any of the workers takes it.
            async with httpx.AsyncClient(base_url=child.url, timeout=WAIT, trust_env=False) as http:
                answer = await http.request(verb, path, **more)
                assert answer.status_code == 200, answer.text
                return answer.json()

        async def living() -> set[int]:
            items = (await call("GET", PROCESSES))["items"]
            return {one["number"] for one in items if one["state"] == "live"}

        before = await living()
        assert len(before) == 2
        # Whichever of them is asked, one drains itself and the next one another.
        for number in sorted(before):
            assert (await call("POST", f"{PROCESSES}/{number}/drain"))["result"]

            async def is_replaced(number: int = number) -> set[int] | None:
                found = await living()
                return found if number not in found and len(found) == 2 else None

            assert await eventually(is_replaced)
            await call("POST", "/message:send", json={"message": message("hello")})
        assert not before & await living()
        audit = (tmp_path / "tasks.db.audit.jsonl").read_text()
        assert audit.count("console.process.drain") == 2


@pytest.mark.parametrize("workers", ["1", "2"])
async def test_a_server_that_ends_refuses_connections_while_it_answers_what_is_under_way(
    tmp_path: Path, workers: str
) -> None:
    """A proxy goes elsewhere at once: a connection that nothing accepts would wait, and fail."""
    (tmp_path / "held.py").write_text(HELD)
    options = ("--listen", "127.0.0.1:0", "--store", "tasks.db", "--workers", workers)
    with running("serve", "held.py", *options, cwd=tmp_path) as child:
        child.ready()
        async with httpx.AsyncClient(base_url=child.url, timeout=WAIT, trust_env=False) as http:
            body = {"message": message("hello")}
            waiting = asyncio.create_task(http.post("/message:send", json=body))
            await eventually((tmp_path / "begun").exists)
            child.signal(signal.SIGTERM)
            await eventually(partial(is_refused, child.port))
            assert not waiting.done() and child.process.poll() is None
            (tmp_path / "open").touch()
            answer = await within(waiting)
        assert answer.status_code == 200 and answer.headers["connection"] == "close"
        assert await asyncio.to_thread(child.process.wait, WAIT) == 0


async def test_a_second_ctrl_c_does_not_wait_for_what_is_under_way(tmp_path: Path) -> None:
    (tmp_path / "held.py").write_text(HELD)
    options = ("--listen", "127.0.0.1:0", "--store", "tasks.db", "--drain", "1h")
    with running("serve", "held.py", *options, cwd=tmp_path) as child:
        child.ready()
        async with httpx.AsyncClient(base_url=child.url, timeout=WAIT, trust_env=False) as http:
            body = {"message": message("hello")}
            waiting = asyncio.create_task(http.post("/message:send", json=body))
            await eventually((tmp_path / "begun").exists)
            child.signal(signal.SIGINT)
            await eventually(partial(is_refused, child.port))
            child.signal(signal.SIGINT)
            assert await asyncio.to_thread(child.process.wait, WAIT) == 130
            with contextlib.suppress(httpx.HTTPError):
                await within(waiting)


def is_refused(port: int) -> bool:
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) == errno.ECONNREFUSED


async def test_a_signal_that_comes_while_the_store_is_opened_ends_the_server(
    tmp_path: Path,
) -> None:
    (tmp_path / "echo.py").write_text(AGENT)
    held = apsw.Connection(str(tmp_path / "tasks.db"))
    held.execute("BEGIN EXCLUSIVE")
    options = ("--listen", "127.0.0.1:0", "--store", "tasks.db")
    with running("serve", "echo.py", *options, cwd=tmp_path) as child:
        status = Path(f"/proc/{child.process.pid}/status")

        def handles_signals() -> bool:
            caught = status.read_text().partition("SigCgt:")[2].split()[0]
            return bool(int(caught, 16) >> signal.SIGTERM - 1 & 1)

        # Opening the file comes after that, and waits for us.
        await eventually(handles_signals)
        child.signal(signal.SIGTERM)
        held.execute("ROLLBACK")
        assert child.process.wait(WAIT) == 0
    held.close()


@pytest.mark.skipif(sys.platform == "win32", reason="sends signals of Unix")
@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_server_that_is_told_to_stop_again_and_again_ends_as_it_was_told_first(
    tmp_path: Path, workers: str
) -> None:
    """Also once its loop is closed, and once Python has given signals their first meaning again."""
    process = started(tmp_path, "--workers", workers)
    while process.poll() is None:
        process.send_signal(signal.SIGTERM)
        time.sleep(0.001)
    assert process.returncode == 0
    assert "Traceback" not in process.communicate()[1]


@pytest.mark.skipif(sys.platform == "win32", reason="sends signals of Unix")
@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_ctrl_c_that_the_shell_tells_workers_too_is_an_interruption(
    tmp_path: Path, workers: str
) -> None:
    process = started(tmp_path, "--workers", workers)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(WAIT) == 130
    process.communicate()


def started(here: Path, *more: str) -> subprocess.Popen[str]:
    """Return a server that leads a group of its own, and is ready."""
    (here / "echo.py").write_text(AGENT)
    words = ("serve", "echo.py", "--listen", "127.0.0.1:0", "--store", "tasks.db", *more)
    process = subprocess.Popen(
        [sys.executable, "-m", "dragoman", *words],
        cwd=here,
        env=environment(here),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    watchdog.watch(process.pid)
    assert process.stdout is not None
    assert process.stdout.readline().startswith("Ready: ")
    return process
