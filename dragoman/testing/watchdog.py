"""Children that end with this process, also when it is killed.

A small process of its own holds the list of them and reads from a pipe that only we can write to.
When we end, in whatever way, the pipe closes, and it ends the children that are still running. It
holds a handle of each, never its bare id, which is soon another process's. Where the system has no
such handles (Linux has), nothing is watched. The kernel's own signal at the death of a parent is
none: it comes with the end of the thread that started the child.
"""

import atexit
import os
import signal
import subprocess
import sys
import threading

_END_WITHIN = 60.0
_PROGRAM = """
import os, select, signal, sys
ended, signals = select.poll(), {}
for line in sys.stdin:
    for handle, _ in ended.poll(0):
        ended.unregister(handle)
        os.close(handle)
        del signals[handle]
    pid, number = map(int, line.split())
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        continue
    ended.register(handle, select.POLLIN)
    signals[handle] = number
for handle, number in signals.items():
    try:
        signal.pidfd_send_signal(handle, number)
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
    """Send a child a signal should this process end before it. Call it before anything waits for
    the child: until then its id is its own."""
    global _watchdog
    if not hasattr(os, "pidfd_open"):
        return
    with _lock:
        _watchdog = _watchdog or _Watchdog()
        _watchdog.tell(pid, number)
