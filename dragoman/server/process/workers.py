"""Several processes on one port and one store: their parent starts them and ends them together.

Each has a socket to its parent. It reports there that it serves; end of file says that the other
side is gone. The parent replaces a worker that was drained, and restarts none that failed: it ends
all, and its supervisor restarts the whole.
"""

import itertools
import logging
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from dragoman.errors import ConfigError

logger = logging.getLogger("dragoman")

# In the environment of a worker only, and only until it has read it: descriptors by number, the
# socket to the parent first.
_VARIABLE = "DRAGOMAN_INHERITED"
_READY = b"r"
# The exit code after Ctrl-C, as shells have it.
INTERRUPTED = 128 + signal.SIGINT
# How workers end that are asked to: by Ctrl-C too, of which the shell tells them, and by the signal
# itself while they start.
_IN_ORDER = frozenset({0, INTERRUPTED, -signal.SIGINT, -signal.SIGTERM})
# Seconds beyond the time for open requests before a worker that does not end is killed.
_GRACE = 10.0


class Inherited(msgspec.Struct, frozen=True):
    """The sockets that a worker inherits from its parent."""

    channel: socket.socket
    listeners: list[socket.socket]

    def tell_ready(self) -> None:
        """Tell the parent that we serve."""
        self.channel.sendall(_READY)


def inherited() -> Inherited | None:
    """Return what our parent handed over; None: this process is not a worker."""
    text = os.environ.pop(_VARIABLE, "")
    if not text:
        return None
    channel, *listeners = map(int, text.split(","))
    for descriptor in (channel, *listeners):
        # A program that an agent starts must not hold the port open, nor the socket to the parent.
        os.set_inheritable(descriptor, False)
    return Inherited(socket.socket(fileno=channel), [_tcp(number) for number in listeners])


def _tcp(descriptor: int) -> socket.socket:
    found = socket.socket(fileno=descriptor)
    # Declared as TCP, because asyncio sends small answers at once only on such sockets.
    return socket.socket(
        found.family, socket.SOCK_STREAM, socket.IPPROTO_TCP, fileno=found.detach()
    )


class _Worker(msgspec.Struct, frozen=True):
    process: subprocess.Popen[bytes]
    channel: socket.socket


def supervise(
    command: Sequence[str],
    listeners: Sequence[Sequence[socket.socket]],
    *,
    drain: float,
    on_ready: Callable[[], None],
) -> int:
    """Run workers until a signal comes or one of them ends; return the exit code for all. There is
    one for each group of listeners."""
    if sys.platform == "win32":
        raise ConfigError("workers: there is no way to share a port on this system; start one")
    with _signals() as signals:
        workers: list[_Worker] = []
        try:
            for group in listeners:
                workers.append(_start(command, group))
            was_asked = _watch(
                workers, signals, on_ready, lambda place: _start(command, listeners[place])
            )
        finally:
            # Otherwise the kernel would take connections that no worker accepts, until we end.
            for listener in itertools.chain(*listeners):
                listener.close()
            codes = _end(workers, drain + _GRACE)
            for worker in workers:
                worker.channel.close()
        if not was_asked or not _IN_ORDER.issuperset(codes):
            return 1
        # The wake-up descriptor carries the numbers.
        return INTERRUPTED if signal.SIGINT in signals.recv(16) else 0


def _start(command: Sequence[str], listeners: Sequence[socket.socket]) -> _Worker:
    ours, theirs = socket.socketpair()
    with theirs:
        descriptors = [theirs.fileno(), *(listener.fileno() for listener in listeners)]
        process = subprocess.Popen(
            command,
            env={**os.environ, _VARIABLE: ",".join(map(str, descriptors))},
            stdin=subprocess.DEVNULL,
            # Only the parent writes its record to stdout.
            stdout=sys.stderr.fileno(),
            pass_fds=descriptors,
        )
    return _Worker(process, ours)


def _watch(
    workers: list[_Worker],
    signals: socket.socket,
    on_ready: Callable[[], None],
    start: Callable[[int], _Worker],
) -> bool:
    """Wait until a signal comes or a worker fails; tell whether it was a signal. One that ended in
    good order was drained, and another one takes its place."""
    starting = {*range(len(workers))}
    with selectors.DefaultSelector() as selector:
        selector.register(signals, selectors.EVENT_READ)
        for place, worker in enumerate(workers):
            selector.register(worker.channel, selectors.EVENT_READ, place)
        while True:
            ready = [key for key, _ in selector.select()]
            if any(key.fileobj is signals for key in ready):
                return True
            for key in ready:
                place: int = key.data
                worker = workers[place]
                if _receive(worker.channel) == _READY:
                    if starting == {place}:
                        on_ready()
                    starting.discard(place)
                elif place in starting or _code(worker.process) != 0:
                    logger.error("worker %d ended, so all of them end", worker.process.pid)
                    return False
                else:
                    logger.info("worker %d was drained; another one starts", worker.process.pid)
                    selector.unregister(worker.channel)
                    worker.channel.close()
                    workers[place] = start(place)
                    selector.register(workers[place].channel, selectors.EVENT_READ, place)


def _code(process: subprocess.Popen[bytes]) -> int | None:
    """Return how a worker ended that closed its channel; None: it did not."""
    try:
        return process.wait(_GRACE)
    except subprocess.TimeoutExpired:
        return None


def _receive(channel: socket.socket) -> bytes:
    try:
        return channel.recv(1)
    except ConnectionResetError:
        return b""


def _end(workers: Sequence[_Worker], within: float) -> list[int]:
    """End all workers; return their exit codes."""
    for worker in workers:
        worker.process.terminate()
    until = time.monotonic() + within
    for worker in workers:
        try:
            worker.process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            worker.process.kill()
    return [worker.process.wait() for worker in workers]


@contextmanager
def _signals() -> Generator[socket.socket]:
    """Give a socket that becomes readable when a signal asks us to end."""
    readable, written = socket.socketpair()
    written.setblocking(False)

    def note(number: int, frame: Any) -> None:
        """The wake-up descriptor reports it."""

    with readable, written:
        numbers = (signal.SIGINT, signal.SIGTERM)
        descriptor = signal.set_wakeup_fd(written.fileno(), warn_on_full_buffer=False)
        for number in numbers:
            signal.signal(number, note)
        try:
            yield readable
        finally:
            # All workers have ended, and this process ends as it was asked to first.
            for number in numbers:
                signal.signal(number, signal.SIG_IGN)
            signal.set_wakeup_fd(descriptor)
