"""A process with few descriptors: it says how many callers it takes, those who wait make room, and
more connections than there are descriptors neither stop it nor keep it busy."""

import asyncio
import contextlib
import re
import socket
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from harness.processes import run, running

from dragoman.egress import descriptors
from dragoman.testing.processes import ServerProcess
from tests.http.overload.test_memory import AGENT, _address, _exchange, _text, processor_seconds
from tests.http.wire import get, post

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there is no such limit")
LIMIT = 100
LIMITED = f"""
import resource, runpy, sys
resource.setrlimit(resource.RLIMIT_NOFILE, ({LIMIT}, {LIMIT}))
runpy.run_module("dragoman", run_name="__main__", alter_sys=True)
"""


@contextmanager
def _served(folder: Path) -> Generator[tuple[ServerProcess, int]]:
    (folder / "large.py").write_text(AGENT)
    arguments = ("serve", "large.py", "--listen", "127.0.0.1:0")
    with running(*arguments, cwd=folder, command=("-c", LIMITED)) as child:
        yield child, _address(child.ready())


def _connect(port: int, stack: ExitStack) -> socket.socket:
    one = stack.enter_context(socket.socket())
    one.setblocking(False)
    one.connect_ex(("127.0.0.1", port))
    return one


async def test_idle_connections_make_room_where_descriptors_are_few(tmp_path: Path) -> None:
    with _served(tmp_path) as (child, port), ExitStack() as stack:
        assert re.search(rf"max_connections: \d+ instead of 10500.*{LIMIT} files", child.log)
        for _ in range(3):
            for _ in range(2 * LIMIT):
                _connect(port, stack)
            assert (await _exchange(port, get(b"/healthz"))).status == 200
            made = await _exchange(port, post(_text(10)))
            assert made.value["result"]["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
        if sys.platform == "linux":
            before = processor_seconds(child.process.pid)
            await asyncio.sleep(1)  # what it does while nothing comes
            assert processor_seconds(child.process.pid) - before < 0.5
        assert child.process.poll() is None


async def test_those_who_have_their_answer_and_send_on_make_room_too(tmp_path: Path) -> None:
    """Nobody needs to be known for a refusal, after which the rest of a body is waited for."""
    large = b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 99999999\r\n\r\nab"
    with _served(tmp_path) as (_, port), ExitStack() as stack:
        for _ in range(3):
            for _ in range(LIMIT):
                one = stack.enter_context(socket.create_connection(("127.0.0.1", port), 60))
                with contextlib.suppress(OSError):
                    one.sendall(large)
            for _ in range(5):
                assert (await _exchange(port, get(b"/healthz"))).status == 200


def test_connections_follow_the_limit_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(descriptors, "_raise_limit", lambda wanted: None)
    monkeypatch.setattr(descriptors, "_open_now", lambda: 20)
    shares = {}
    for most in (30, 64, 256, 1024, 4096, 20_000):
        monkeypatch.setattr(descriptors, "limit", lambda most=most: most)
        shares[most] = descriptors.for_callers(10_500).connections
        assert shares[most] + 20 < most
    assert shares == {30: 1, 64: 12, 256: 177, 1024: 753, 4096: 3436, 20_000: 10_500}
    monkeypatch.setattr(descriptors, "limit", lambda: 1024)
    assert descriptors.for_peers(4_000) == 256
    assert descriptors.for_callers(50).connections == 50


def test_the_doctor_tells_how_many_callers_there_may_be(tmp_path: Path) -> None:
    done = run("doctor", "-o", "json", cwd=tmp_path, env={"DRAGOMAN_MAX_CONNECTIONS": "9000000"})
    found = re.search(r'"check":\s*"connections".{0,300}', done.stdout, re.DOTALL)
    assert found is not None and "9,000,000" in found[0] and "warning" in found[0], done.stdout
