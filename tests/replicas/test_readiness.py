"""A replica says which part is down, and is ready again when the part is back."""

import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from harness.processes import running
from harness.waiting import wait_until

from dragoman.testing.processes import ServerProcess
from dragoman.testing.servers import NatsServer, PostgresServer

AGENT = """
from dragoman import Agent
agent = Agent("echo", description="Echoes.")

@agent.skill
async def echo(text: str) -> str:
    "Echo."
    return text
"""
_SYNC = {"synchronous_standby_names": "*"}
Parts = Callable[[], tuple[int, str, list[str]]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "echo.py").write_text(AGENT)
    return tmp_path


@pytest.fixture
def servers() -> Iterator[Path]:
    """Give a folder for servers that run as another user: pytest's own are closed to them whenever
    another run begins."""
    with tempfile.TemporaryDirectory(prefix="dragoman-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@pytest.fixture
def postgres(servers: Path) -> Iterator[PostgresServer]:
    server = PostgresServer(servers / "postgres").start()
    yield server
    server.stop()


def parts_of(server: ServerProcess) -> Parts:
    def ask() -> tuple[int, str, list[str]]:
        answer = httpx.get(f"{server.url}/readyz", timeout=30)
        found: dict[str, Any] = answer.json()
        return (
            answer.status_code,
            found["status"],
            [one["part"] for one in found.get("parts", [])],
        )

    return ask


def send(url: str, text: str) -> httpx.Response:
    message = {"messageId": text.replace(" ", "-"), "role": "ROLE_USER", "parts": [{"text": text}]}
    call = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": message}}
    return httpx.post(url, json=call, headers={"A2A-Version": "1.0"}, timeout=120)


def test_a_bus_that_is_down_makes_a_replica_degraded_and_not_unready(
    folder: Path, postgres: PostgresServer
) -> None:
    bus = NatsServer(folder).start()
    words = ("serve", "echo.py", "--listen", "127.0.0.1:0", "--bus", bus.url)
    with running(*words, "--store", postgres.make_database(), cwd=folder) as server:
        server.ready()
        parts = parts_of(server)
        wait_until(lambda: parts() == (200, "ok", []))
        bus.kill()
        wait_until(lambda: parts() == (200, "degraded", ["bus"]))
        assert send(server.url, "still served").json()["result"]


def test_a_database_that_is_away_makes_a_replica_unready_until_it_is_back(
    folder: Path, postgres: PostgresServer
) -> None:
    store = postgres.make_database()
    words = ("serve", "echo.py", "--listen", "127.0.0.1:0", "--store", store)
    with running(*words, cwd=folder) as server:
        server.ready()
        parts = parts_of(server)
        assert parts() == (200, "ok", [])
        postgres.stop()
        wait_until(lambda: parts() == (503, "unavailable", ["database"]))
        # To start the process again would mend nothing.
        assert httpx.get(f"{server.url}/healthz").status_code == 200
        assert "127.0.0.1" not in httpx.get(f"{server.url}/readyz").text
        postgres.start()
        wait_until(lambda: parts() == (200, "ok", []))


@pytest.mark.skipif(sys.platform == "win32", reason="no signals that freeze")
def test_a_standby_that_does_not_answer_is_named_while_writes_wait(
    folder: Path, servers: Path
) -> None:
    primary = PostgresServer(servers / "primary", **_SYNC).start()
    standby = PostgresServer(servers / "standby").start_as_standby(primary)
    receiver = 0
    try:
        words = ("serve", "echo.py", "--listen", "127.0.0.1:0")
        with running(*words, "--store", primary.make_database(), cwd=folder) as server:
            server.ready()
            parts = parts_of(server)
            assert send(server.url, "first").json()["result"]
            assert parts() == (200, "ok", [])
            # It is what the primary hears of; its parent would go on by itself.
            receiver = int(standby.sql("SELECT pid FROM pg_stat_wal_receiver"))
            os.kill(receiver, signal.SIGSTOP)
            answers: list[httpx.Response] = []
            waiting = threading.Thread(target=lambda: answers.append(send(server.url, "waits")))
            waiting.start()
            wait_until(lambda: parts() == (503, "unavailable", ["standby"]))
            os.kill(receiver, signal.SIGCONT)
            waiting.join(60)
            # Nothing was called off meanwhile.
            assert answers[0].json()["result"]
            wait_until(lambda: parts() == (200, "ok", []))
    finally:
        if receiver:
            os.kill(receiver, signal.SIGCONT)
        standby.stop()
        primary.stop()
