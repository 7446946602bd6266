"""Server processes: started, ready when they say so, ended by their id."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from harness.waiting import wait_until

from dragoman.testing.processes import CannotStart, ServerProcess, clean_environment

READY = "print('starting', flush=True); print('Ready: http://127.0.0.1:8123', flush=True)\n"
# In pieces: a signal that comes just before a sleep is handled after it.
WAITS = "import time\nfor _ in range(6000): time.sleep(0.1)\n"
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"


def program(*parts: str) -> list[str]:
    return [sys.executable, "-c", "".join(parts)]


def test_a_server_is_ready_at_the_address_it_prints(tmp_path: Path) -> None:
    with ServerProcess(program(READY, WAITS), log=tmp_path / "log") as server:
        assert server.ready() == server.url == "http://127.0.0.1:8123"
        assert server.port == 8123
        assert server.process.poll() is None
    assert server.process.returncode == -signal.SIGTERM


def test_what_ends_before_it_is_ready_is_told_with_its_log(tmp_path: Path) -> None:
    code = "import sys; print('no such store', file=sys.stderr); sys.exit(3)\n"
    with (
        ServerProcess(program(code), log=tmp_path / "log") as server,
        pytest.raises(CannotStart, match=r"(?s)ended with 3.*no such store"),
    ):
        server.ready()


def test_what_says_nothing_is_killed_and_told() -> None:
    with ServerProcess(program(WAITS)) as server:
        with pytest.raises(CannotStart, match="printed nothing"):
            server.ready(within=0.1)
        assert server.process.returncode == -signal.SIGKILL


def test_a_server_that_does_not_stop_is_killed() -> None:
    server = ServerProcess(program(DEAF, READY, WAITS))
    server.ready()
    assert server.stop(within=0.1) is None
    assert server.process.returncode == -signal.SIGKILL
    # Ended already: nothing is signalled any more.
    server.kill()


def test_an_exit_code_is_told() -> None:
    ends = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n"
    server = ServerProcess(program(ends, READY, WAITS))
    server.ready()
    assert server.stop() == 7


def test_settings_of_the_shell_are_not_those_of_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAGOMAN_STORE", "elsewhere")
    monkeypatch.setenv("OTHER", "stays")
    assert "DRAGOMAN_STORE" not in clean_environment() and clean_environment()["OTHER"] == "stays"
    shows = "import os; print('Ready: ' + os.environ.get('DRAGOMAN_STORE', 'none'), flush=True)\n"
    with ServerProcess(program(shows)) as server:
        assert server.ready() == "none"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the system does not tell")
def test_memory_and_processor_time_are_those_of_the_process() -> None:
    busy = "sum(range(3_000_000))\n"
    with ServerProcess(program(busy, READY, WAITS)) as server:
        server.ready()
        assert (server.memory() or 0) > 1_000_000
        alone = server.processor_seconds()
        assert 0 < alone <= server.processor_seconds(with_children=True)


STARTS = """
from pathlib import Path
from dragoman.testing.processes import ServerProcess
from dragoman.testing.servers import NatsServer
ended = ServerProcess({program!r})
ended.stop()
kept = ServerProcess({program!r})
print(ended.pid, kept.pid, NatsServer(Path({folder!r})).start().pid, flush=True)
input()
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_server_ends_with_the_process_that_started_it(tmp_path: Path, how: int) -> None:
    code = STARTS.format(program=program(WAITS), folder=str(tmp_path))
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        ended, *running = map(int, parent.stdout.readline().split())
        assert not is_running(ended) and all(map(is_running, running))
        parent.send_signal(how)
    wait_until(lambda: not any(map(is_running, running)))


def is_running(pid: int) -> bool:
    try:
        # Nobody may wait for the children of a process that was killed.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
