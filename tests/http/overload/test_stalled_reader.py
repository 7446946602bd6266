"""A reader that opens a stream and never reads must not cost memory: its events wait on disk."""

import json
import socket
import time
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from harness.processes import running
from harness.serving import message

AGENT = """
import asyncio
from dragoman import Agent

agent = Agent("Fountain", "Never runs dry.")

@agent.skill
async def flow(kilobytes: int):
    for _ in range(kilobytes // 4):
        yield "x" * 4096
        await asyncio.sleep(0)
"""
MEGABYTE = 1024 * 1024


def resident(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")


@pytest.mark.requirement("T-11")
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
def test_a_stalled_reader_costs_next_to_nothing(tmp_path: Path) -> None:
    (tmp_path / "fountain.py").write_text(AGENT)
    with running(
        "serve", "fountain.py", "--listen", "127.0.0.1:0", "--store", "tasks.db", cwd=tmp_path
    ) as child:
        url = child.ready()

        def body(kilobytes: int) -> bytes:
            return json.dumps({"message": message(str(kilobytes))}).encode()

        with httpx.Client(base_url=url, timeout=60, trust_env=False) as http:
            # Warm up: the same work, read to its end and then unread; what is loaded when a page is
            # first sealed, and what is loaded soon after the start. Twice, since the heap settles
            # only then.
            for _ in range(2):
                for path in ("/console/tasks", "/api/v1/console/tasks"):
                    assert http.get(path).status_code == 200
                http.post("/message:stream", content=body(8 * 1024))
                http.post("/message:send", content=body(8 * 1024))
                http.get("/tasks", params={"pageSize": 1, "historyLength": 0})
            before = resident(child.process.pid)
            address = urlsplit(url)
            with socket.create_connection((address.hostname, address.port), timeout=60) as stalled:
                content = body(24 * 1024)
                stalled.sendall(
                    b"POST /message:stream HTTP/1.1\r\nHost: [::1]\r\nContent-Length: %d\r\n\r\n"
                    % len(content)
                    + content
                )
                assert stalled.recv(12) == b"HTTP/1.1 200"
                most, end = 0, time.monotonic() + 60
                states = ""
                while "COMPLETED" not in states:
                    assert time.monotonic() < end
                    page = http.get("/tasks", params={"pageSize": 1, "historyLength": 0}).json()
                    states = page["tasks"][0]["status"]["state"]
                    assert page["totalSize"] == 5
                    most = max(most, resident(child.process.pid))
            # The agent was done although nobody read; 24 MB went to disk and not into memory.
            # Some of it may still be in the log that the file is written from.
            kept = sum(file.stat().st_size for file in tmp_path.glob("tasks.db*"))
            assert kept > 40 * MEGABYTE
            assert most - before <= 2 * MEGABYTE, f"grew by {(most - before) / MEGABYTE:.1f} MB"
        assert child.stop() == 0
