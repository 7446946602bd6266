"""A line on a terminal that says what is being waited for, and for how long.

It is drawn on stderr alone, and only on a terminal; it appears once something takes a while, is
taken away before anything else is written, and leaves nothing behind.
"""

import os
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress

from dragoman.cli.terminal.table import fitted
from dragoman.model.patterns import CONTROLS

# Seconds before it appears, and between two drawings.
_AFTER = 0.5
_EVERY = 0.25
_MARKS = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_ERASE = "\r\x1b[K"


class LiveLine:
    """One line that is drawn again and again by a thread of its own: the work may block."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._began = time.monotonic()
        self._lock = threading.RLock()
        self._is_drawn = False
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="live-line", daemon=True)

    def show(self, text: str) -> None:
        """Say what is being done now: one line, whatever is in it."""
        with self._lock:
            self._text = " ".join(CONTROLS.sub(" ", text).split())

    @contextmanager
    def hidden(self) -> Generator[None]:
        """Take the line away while something else is written."""
        with self._lock:
            self._erase()
            yield

    def _run(self) -> None:
        wait = _AFTER
        while not self._is_over.wait(wait):
            wait = _EVERY
            with self._lock:
                if not self._is_over.is_set():
                    self._draw()

    def _draw(self) -> None:
        seconds = time.monotonic() - self._began
        mark = _MARKS[int(seconds / _EVERY) % len(_MARKS)]
        width = _columns() - 1
        self._write(f"{_ERASE}{fitted(f'{mark} {elapsed(seconds)}  {self._text}', width)}")
        self._is_drawn = True

    def _erase(self) -> None:
        if self._is_drawn:
            self._write(_ERASE)
            self._is_drawn = False

    def _write(self, text: str) -> None:
        # A line that cannot be drawn is no reason to fail.
        with suppress(OSError, ValueError):
            sys.stderr.buffer.write(text.encode("utf-8", "backslashreplace"))
            sys.stderr.buffer.flush()

    def __enter__(self) -> "LiveLine":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over.set()
        with self._lock:
            self._erase()


def can_draw() -> bool:
    """Tell whether a person looks at stderr, on a terminal that can take a line away."""
    stream = sys.stderr
    is_terminal = stream is not None and stream.isatty()  # pyright: ignore[reportUnnecessaryComparison]  # None where it was closed before we began
    return is_terminal and os.environ.get("TERM", "dumb") != "dumb"


def _columns() -> int:
    with suppress(OSError, ValueError):
        return max(20, os.get_terminal_size(sys.stderr.fileno()).columns)
    return 80


def elapsed(seconds: float) -> str:
    """Return a time as people read it: `5s`, `2m05s`, `1h02m`."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes}m{rest:02d}s" if minutes < 60 else f"{minutes // 60}h{minutes % 60:02d}m"
