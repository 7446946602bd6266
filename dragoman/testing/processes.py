"""Servers as processes of their own: started, ready when they say so, ended by their id.

A server program prints `Ready: ADDRESS` on its standard output once it listens; `dragoman serve`
and `dragoman gateway` do. It ends with this process at the latest. Every wait has a bound. The
methods block: on an event loop call those that wait through `asyncio.to_thread`.
"""

import contextlib
import os
import queue
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar

from dragoman.errors import ConfigError
from dragoman.testing import watchdog

START_WITHIN = 180.0
STOP_WITHIN = 60.0
_READY = "Ready: "
# How much of its log an error message quotes.
_QUOTED = 4000


class CannotStart(ConfigError):
    """A server did not become ready; the message ends with the end of its log."""


def clean_environment() -> dict[str, str]:
    """Return the environment of this process without the settings of Dragoman in it."""
    return {name: value for name, value in os.environ.items() if not name.startswith("DRAGOMAN_")}


class ServerProcess:
    """One running server program. As a context manager it is ended on the way out."""

    # What starts it where no other way is named; from what `subprocess.Popen` is given.
    starts: ClassVar[Callable[..., Any]] = subprocess.Popen

    def __init__(
        self,
        command: Sequence[str | Path],
        *,
        log: Path | None = None,
        cwd: Path | None = None,
        environment: Mapping[str, str] | None = None,
        stdin: int = subprocess.DEVNULL,
        popen: Callable[..., Any] | None = None,
    ) -> None:
        """Start it. Its standard error is appended to `log`; without one it goes to ours. `popen`
        starts it in another way than `starts`."""
        self.url = ""
        self._command = [str(word) for word in command]
        self._log = log
        with contextlib.nullcontext() if log is None else open(log, "ab") as stderr:
            self.process: subprocess.Popen[str] = (popen or self.starts)(
                self._command,
                cwd=cwd,
                env=clean_environment() if environment is None else dict(environment),
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                errors="replace",
            )
        watchdog.watch(self.process.pid)
        self._lines: queue.Queue[str | None] = queue.Queue()
        # Read to its end, so that the server never waits for room in the pipe.
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> "ServerProcess":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as stdout:
            for line in stdout:
                self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self.process.pid

    @property
    def port(self) -> int:
        """The port of its address, once it is ready."""
        return int(self.url.rstrip("/").rpartition(":")[2])

    @property
    def log(self) -> str:
        """What it wrote to its log so far."""
        return "" if self._log is None else self._log.read_text(errors="replace")

    def line(self, start: str = "", within: float = START_WITHIN) -> str:
        """Return the next line of its output that starts so.

        Raises `CannotStart` if it ends before, or prints nothing for that long.
        """
        while True:
            try:
                line = self._lines.get(timeout=within)
            except queue.Empty:
                raise CannotStart(
                    f"{self._name} printed nothing for {within:g} s:\n{self.log[-_QUOTED:]}"
                ) from None
            if line is None:
                code = self.process.wait(STOP_WITHIN)
                raise CannotStart(f"{self._name} ended with {code}:\n{self.log[-_QUOTED:]}")
            if line.startswith(start):
                return line

    def ready(self, within: float = START_WITHIN) -> str:
        """Wait until it serves; return its address. One that does not become ready is killed."""
        try:
            self.url = self.line(_READY, within).removeprefix(_READY).strip()
        except CannotStart:
            self.kill()
            raise
        return self.url

    @property
    def _name(self) -> str:
        return f"`{' '.join(self._command[1:4])}`"

    def signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)

    def kill(self) -> None:
        """End it as a crash would: no signal handler runs, nothing is flushed."""
        self.signal(signal.SIGKILL)
        self._reap(None)

    def stop(self, within: float = STOP_WITHIN) -> int | None:
        """Ask it to end; return its exit code, or None if it had to be killed."""
        self.signal(signal.SIGTERM)
        try:
            return self._reap(within)
        except subprocess.TimeoutExpired:
            self.kill()
            return None

    def _reap(self, within: float | None) -> int:
        # Some programs end with their standard input.
        if self.process.stdin is not None:
            self.process.stdin.close()
        code = self.process.wait(within)
        # Processes it started may hold the pipe a moment longer.
        self._reader.join(STOP_WITHIN)
        return code

    def memory(self) -> int | None:
        """Return its resident bytes, where the system tells."""
        try:
            lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        except OSError:
            return None
        sizes = [line.split()[1] for line in lines if line.startswith("VmRSS:")]
        return int(sizes[0]) * 1024 if sizes else None

    def processor_seconds(self, *, with_children: bool = False) -> float:
        """Return the processor time it has used; 0 where the system does not tell."""
        ticks = 0
        for pid, fields in _stats() if with_children else _stats(self.pid):
            if self.pid in (pid, int(fields[1])):
                ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")


def _stats(*pids: int) -> Iterator[tuple[int, list[str]]]:
    """Yield the fields of `/proc/PID/stat` after the name, of some processes or of all."""
    for name in map(str, pids) if pids else os.listdir("/proc"):
        # A process may end while we look.
        with contextlib.suppress(OSError):
            if name.isdigit():
                text = Path(f"/proc/{name}/stat").read_text()
                yield int(name), text.rpartition(")")[2].split()
