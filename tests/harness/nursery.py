"""Processes that start at once: one interpreter has loaded the command and forks for each run.

A run is a process of its own with its own streams, folder, environment and signals, and enters
where the installed script does. Loading everything anew for each would take most of the time.
"""

import atexit
import gc
import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).parents[2]
_LENGTH = 8
# What commands and servers load when they need it.
_LOADED = (
    "dragoman.cli.session",
    "dragoman.cli.debug",
    "dragoman.cli.checking.conformance_checks",
    "dragoman.client.client",
    "dragoman.agents.adapters.detect",
    "dragoman.console.console",
    "dragoman.console.part",
    "dragoman.gateway.app",
    "dragoman.openai.part",
    "dragoman.server.endpoints.houses",
    "dragoman.server.operator.admin",
    "dragoman.server.operator.api",
    "dragoman.server.operator.tasks.words",
    "dragoman.server.process.run",
    "dragoman.stores.postgres",
    "dragoman.stores.sqlite",
    "importlib.metadata",
    "uvloop",
    # What opening a store loads.
    "cryptography.hazmat.primitives.ciphers.aead",
    "dragoman.stores.sqlite.gateway",
    "encodings.idna",
)
# The words of a command before those of `dragoman`.
_OF_PYTHON = 3
_STDERR = 2


def run(
    words: Sequence[str], cwd: Path, env: Mapping[str, str], stdin: bytes | None, within: float
) -> tuple[int, bytes, bytes]:
    """Run `dragoman` to its end; return its exit code, stdout and stderr."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, _input(stdin) as given:
        process = Process(words, cwd, env, [given.fileno(), out.fileno(), err.fileno()])
        try:
            code = process.wait(within)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        for stream in (out, err):
            stream.seek(0)
        return code, out.read(), err.read()


class Process:
    """A command that runs; it has what is used of `subprocess.Popen`."""

    stdin: IO[str] | None = None

    def __init__(
        self, words: Sequence[str], cwd: Path, env: Mapping[str, str], streams: Sequence[int]
    ) -> None:
        request = json.dumps([list(words), str(cwd), dict(env)]).encode()
        with socket.socket(socket.AF_UNIX) as line:
            line.connect(start())
            socket.send_fds(line, [len(request).to_bytes(_LENGTH)], list(streams))
            line.sendall(request)
            # Its process tells its id, and at its end its code.
            self._told = line.makefile()
        self._lock = threading.Lock()
        self.pid = int(self._told.readline())
        self.stdout: IO[str] | None = None
        self.returncode: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        """Return its exit code once it has ended."""
        code = self._code(timeout)
        if code is None:
            raise subprocess.TimeoutExpired("dragoman", timeout or 0)
        return code

    def poll(self) -> int | None:
        """Return its exit code, if it has ended."""
        return self._code(0)

    def _code(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._told], [], [], timeout)[0]:
            with self._lock:
                if self.returncode is None:
                    self.returncode = int(self._told.readline())
                    self._told.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it as a crash would."""
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)


def popen(command: Sequence[str], **given: Any) -> Any:
    """Start a program as `subprocess.Popen` does; `python -m dragoman …` without a terminal or a
    pipe to its stdin starts here."""
    is_ours = list(command[:_OF_PYTHON]) == [sys.executable, "-m", "dragoman"]
    if not is_ours or given["stdin"] != subprocess.DEVNULL:
        return subprocess.Popen(command, **given)
    return _server(command[_OF_PYTHON:], given["cwd"], given["env"], given["stderr"])


def _server(
    words: Sequence[str], cwd: Path | None, env: Mapping[str, str], stderr: IO[bytes] | None
) -> Process:
    ours, theirs = os.pipe()
    log = _STDERR if stderr is None else stderr.fileno()
    with open(os.devnull, "rb") as stdin, open(theirs, "wb") as stdout:
        process = Process(words, cwd or Path.cwd(), env, [stdin.fileno(), stdout.fileno(), log])
    process.stdout = open(ours, errors="replace")  # noqa: SIM115 - who reads it closes it
    return process


def _input(stdin: bytes | None) -> IO[bytes]:
    if stdin is None:
        return open(os.devnull, "rb")
    file = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
    file.write(stdin)
    file.seek(0)
    return file


@cache
def start() -> str:
    """Start the interpreter, once for this process and its forks; return where it listens. It ends
    with the last of them, because its stdin closes."""
    path = str(Path(tempfile.mkdtemp(prefix="nursery-")) / "line")
    process = subprocess.Popen(
        [sys.executable, __file__, path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "tests"), str(ROOT)])},
    )
    assert process.stdout is not None and process.stdout.readline() == b"ready\n"
    atexit.register(_end, process)
    return path


def _end(process: subprocess.Popen[bytes]) -> None:
    process.communicate(timeout=60)


def _serve(path: str) -> None:
    import importlib

    from dragoman.cli import main

    for place in main.COMMANDS.values():
        importlib.import_module("dragoman.cli." + place.target.partition(":")[0])
    for name in _LOADED:
        importlib.import_module(name)
    # What is loaded stays: a fork that looked through it would copy it.
    gc.collect()
    gc.freeze()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(64)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while sys.stdin not in select.select([listener, sys.stdin], [], [])[0]:
        line, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            _mind(line)
        line.close()
    os.unlink(path)
    os.rmdir(os.path.dirname(path))


def _mind(line: socket.socket) -> None:
    """Start one command, and tell its id and how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    head, fds, _, _ = socket.recv_fds(line, _LENGTH, 3)
    words, cwd, env = json.loads(line.makefile("rb").read(int.from_bytes(head)))
    if (child := os.fork()) == 0:
        line.close()
        _become(words, cwd, env, fds)
    for fd in fds:
        os.close(fd)
    with suppress(OSError):
        line.sendall(f"{child}\n".encode())
        _end_with(line, child)
        _, status = os.waitpid(child, 0)
        line.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
    os._exit(0)


def _end_with(line: socket.socket, child: int) -> None:
    """Wait for the end of a command, and end it if the test that asked for it is gone."""
    if hasattr(os, "pidfd_open"):
        handle = os.pidfd_open(child)
        if handle not in select.select([handle, line], [], [])[0]:
            os.kill(child, signal.SIGKILL)


def _become(words: list[str], cwd: str, env: dict[str, str], fds: list[int]) -> None:
    from dragoman.cli.main import main

    for number, fd in enumerate(fds):
        os.dup2(fd, number)
        os.close(fd)
    os.chdir(cwd)
    # As of `python -m dragoman` there, in an environment that has our root.
    sys.path[:2] = [cwd]
    os.environ.clear()
    os.environ.update(env)
    sys.argv = ["dragoman", *words]
    random.seed()
    code: object = 1
    try:
        main()
    except SystemExit as ended:
        code = ended.code or 0
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 1)


if __name__ == "__main__":
    _serve(sys.argv[1])
