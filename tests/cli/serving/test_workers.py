"""`dragoman serve --workers`: several processes, one port, one file, and one end for all."""

import json
import os
import select
import signal
import socket
import sys
from collections import Counter
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from harness.processes import run, running
from harness.serving import message
from harness.waiting import WAIT

from dragoman.testing.processes import CannotStart, ServerProcess

AGENT = """
import os
from dragoman import Agent

agent = Agent("Many", "Says who it is.")
print("loaded")

@agent.skill(default=True)
async def who(text: str) -> str:
    return f"{os.getpid()} {os.getppid()}"
"""
MOST = 200


@contextmanager
def several(here: Path, count: int, *more: str) -> Generator[ServerProcess]:
    (here / "many.py").write_text(AGENT)
    options = ("--listen", "127.0.0.1:0", "--store", "tasks.db", "--workers", str(count), *more)
    with running("serve", "many.py", *options, cwd=here) as child:
        yield child


def asked(url: str) -> tuple[int, int, str]:
    """Return the process that answered, its parent, and the task; the connection is a new one."""
    body = {"message": message("who?")}
    answer = httpx.post(f"{url}/message:send", json=body, timeout=WAIT, trust_env=False)
    task: Any = answer.json()["task"]
    worker, parent = task["artifacts"][0]["parts"][0]["text"].split()
    return int(worker), int(parent), task["id"]


def gone(process: int) -> bool:
    try:
        handle = os.pidfd_open(process)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], WAIT)[0])
    finally:
        os.close(handle)


def found(url: str, count: int) -> dict[int, str]:
    """Return the workers and a task of each."""
    workers: dict[int, str] = {}
    for _ in range(MOST):
        worker, _, task = asked(url)
        workers[worker] = task
        if len(workers) == count:
            return workers
    raise AssertionError(f"only {workers.keys()} answer")


def test_workers_share_the_port_and_the_tasks(tmp_path: Path) -> None:
    with several(tmp_path, 2) as child:
        url = child.ready()
        assert asked(url)[1] == child.process.pid
        tasks = found(url, 2)
        for task in tasks.values():
            for _ in range(4):
                answer = httpx.get(f"{url}/tasks/{task}", timeout=WAIT, trust_env=False)
                assert answer.json()["status"]["state"] == "TASK_STATE_COMPLETED"
        assert child.stop() == 0
        assert all(gone(worker) for worker in tasks)
        assert "Traceback" not in child.log
    # What workers print is not the record: nothing but that was on stdout.
    assert child.log.count("loaded") == 2


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux deals connections out")
def test_connections_that_come_together_go_to_all_workers(tmp_path: Path) -> None:
    with several(tmp_path, 2) as child, ExitStack() as stack:
        url = child.ready()
        port = int(url.rpartition(":")[2])
        busy, _ = found(url, 2)
        # Whoever is awake would take all that wait, if it could.
        os.kill(busy, signal.SIGSTOP)
        stack.callback(os.kill, busy, signal.SIGCONT)
        callers = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port), WAIT))
            for _ in range(64)
        ]
        for caller in callers:
            body = json.dumps({"message": message("who?")})
            caller.sendall(
                b"POST /message:send HTTP/1.1\r\nHost: 127.0.0.1\r\n"
                b"Content-Type: application/json\r\nConnection: close\r\n"
                b"Content-Length: %d\r\n\r\n%b" % (len(body), body.encode())
            )
        answered: list[socket.socket] = []
        while len(answered) < 10:
            answered = select.select(callers, [], [], WAIT)[0]
            assert answered, "nobody answers"
        os.kill(busy, signal.SIGCONT)
        workers: Counter[str] = Counter()
        for caller in callers:
            with caller.makefile("rb") as file:
                answer = file.read().partition(b"\r\n\r\n")[2]
            task: Any = json.loads(answer)["task"]
            workers[task["artifacts"][0]["parts"][0]["text"]] += 1
        # Fewer of 64 would come once in a hundred million times.
        assert len(workers) == 2 and min(workers.values()) >= 10, workers


def test_an_address_that_somebody_has_is_not_shared_with_them(tmp_path: Path) -> None:
    with several(tmp_path, 2) as child:
        port = child.ready().rpartition(":")[2]
        options = ("--listen", f"127.0.0.1:{port}", "--store", "other.db", "--workers", "2")
        answer = run("serve", "many.py", *options, cwd=tmp_path)
        assert answer.returncode != 0 and "Address already in use" in answer.stderr


def test_one_record_says_that_all_are_ready(tmp_path: Path) -> None:
    with several(tmp_path, 2, "-o", "json", "--stream") as child:
        assert child.line("{").startswith('{"ready":')
        assert child.stop() == 0
        with pytest.raises(CannotStart, match="ended with 0"):
            child.line("{")


def test_when_one_ends_all_of_them_end(tmp_path: Path) -> None:
    with several(tmp_path, 2) as child:
        first, second = found(child.ready(), 2)
        os.kill(first, signal.SIGKILL)
        assert child.process.wait(WAIT) == 1
        assert gone(second)
        assert f"worker {first} ended" in child.log


def test_workers_end_when_nobody_watches_them(tmp_path: Path) -> None:
    with several(tmp_path, 2) as child:
        workers = found(child.ready(), 2)
        child.process.kill()
        assert all(gone(worker) for worker in workers)


def test_a_file_of_keys_that_is_missing_is_said_once(tmp_path: Path) -> None:
    (tmp_path / "many.py").write_text(AGENT)
    words = ("--listen", "127.0.0.1:0", "--store", "tasks.db", "--workers", "2")
    keys = ("--auth", "api-key", "--keys", "none.json")
    refused = run("serve", "many.py", *words, *keys, cwd=tmp_path)
    assert refused.returncode == 2
    assert refused.stderr.count("dragoman keys create") == 1
    assert "worker" not in refused.stderr


def test_what_keeps_workers_from_starting_is_said_once(tmp_path: Path) -> None:
    (tmp_path / "many.py").write_text(AGENT)
    (tmp_path / "tasks.db").write_text("this is no database, whatever its name says" * 99)
    words = ("--listen", "127.0.0.1:0", "--store", "tasks.db", "--workers", "3")
    ended = run("serve", "many.py", *words, cwd=tmp_path)
    assert ended.returncode == 2 and ended.stderr.count("tasks.db") == 1, ended.stderr
    assert "Traceback" not in ended.stderr
