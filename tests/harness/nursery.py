"""Processes that start at once: one interpreter has loaded the command and forks for each run.

A run is a process of its own with its own streams, folder, environment and signals, and enters
where the installed script does. Loading everything anew for each would take most of the time.
"""

import atexit
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO

ROOT = Path(__file__).parents[2]
_LENGTH = 8
_LONGEST = 60


def run(
    words: Sequence[str], cwd: Path, env: Mapping[str, str], stdin: bytes | None, within: float
) -> tuple[int, bytes, bytes]:
    """Run `dragoman` to its end; return its exit code, stdout and stderr."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, _input(stdin) as given:
        with socket.socket(socket.AF_UNIX) as line:
            line.settimeout(within)
            line.connect(_nursery())
            request = json.dumps([list(words), str(cwd), dict(env)]).encode()
            head = len(request).to_bytes(_LENGTH)
            socket.send_fds(line, [head], [given.fileno(), out.fileno(), err.fileno()])
            line.sendall(request)
            code = int(line.makefile().readline() or "-99")
        for stream in (out, err):
            stream.seek(0)
        return code, out.read(), err.read()


def _input(stdin: bytes | None) -> IO[bytes]:
    if stdin is None:
        return open(os.devnull, "rb")
    file = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
    file.write(stdin)
    file.seek(0)
    return file


@cache
def _nursery() -> str:
    """Start the interpreter; it ends when this process does, because its stdin closes."""
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
    import select

    from dragoman.cli import main

    for place in main.COMMANDS.values():
        importlib.import_module("dragoman.cli." + place.target.partition(":")[0])
    for name in ("cli.session", "client.client", "cli.debug", "cli.checking.conformance_checks"):
        importlib.import_module(f"dragoman.{name}")
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
    """Start one command, and tell how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    head, fds, _, _ = socket.recv_fds(line, _LENGTH, 3)
    words, cwd, env = json.loads(line.makefile("rb").read(int.from_bytes(head)))
    if (child := os.fork()) == 0:
        _become(words, cwd, env, fds)
    # Whoever asked has given up by then.
    signal.signal(signal.SIGALRM, lambda *_: os.kill(child, signal.SIGKILL))
    signal.alarm(_LONGEST)
    _, status = os.waitpid(child, 0)
    line.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
    os._exit(0)


def _become(words: list[str], cwd: str, env: dict[str, str], fds: list[int]) -> None:
    from dragoman.cli.main import main

    for number, fd in enumerate(fds):
        os.dup2(fd, number)
    os.chdir(cwd)
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
