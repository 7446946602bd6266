"""Children that end with this process, also when it is killed.

A small process of its own holds the list of them and reads from a pipe that only we can write to.
When we end, in whatever way, the pipe closes, and it ends the children that are still on the list.
The kernel's own signal at the death of a parent is none: it comes with the end of the thread that
started the child.
"""

import atexit
import signal
import subprocess
import sys
import threading

_END_WITHIN = 60.0
_PROGRAM = """
import os, sys
children = {}
for line in sys.stdin:
    pid, number = map(int, line.split())
    children[pid] = number
for pid, number in children.items():
    try:
        if number:
            os.kill(pid, number)
    except OSError:
        pass
"""


class _Watchdog:
    def __init__(self) -> None:
        # A group of its own: what ends ours must not end it first.
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            text=True,
            bufsize=1,
            start_new_session=True,
        )
        atexit.register(self._process.communicate, timeout=_END_WITHIN)

    def tell(self, pid: int, number: int) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{pid} {number}\n")


_lock = threading.Lock()
_watchdog: _Watchdog | None = None


def watch(pid: int, number: int = signal.SIGKILL) -> None:
    """Send a child a signal should this process end before `forget`."""
    global _watchdog
    with _lock:
        _watchdog = _watchdog or _Watchdog()
        _watchdog.tell(pid, number)


def forget(pid: int) -> None:
    """Leave a child alone, because it has ended: its id may soon be another's."""
    with _lock:
        if _watchdog is not None:
            _watchdog.tell(pid, 0)
