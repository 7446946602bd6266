"""The line that says what is waited for: on a terminal alone, and nothing of it is left."""

import contextlib
import os
import pty
import re
import struct
import sys
import termios
from collections.abc import Iterator
from fcntl import ioctl

import pytest
from harness.waiting import wait_until

from dragoman.cli.output import Output
from dragoman.cli.redaction import Redactor
from dragoman.cli.sources import CommandSettings
from dragoman.cli.terminal.live_line import elapsed


class Screen:
    """A terminal of 40 columns whose stderr is ours."""

    def __init__(self) -> None:
        self._ours, theirs = pty.openpty()
        ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 40, 0, 0))
        os.set_blocking(self._ours, False)
        self.stream = open(theirs, "w", encoding="utf-8")  # noqa: SIM115 - for the whole test
        self.seen = ""

    def has(self, text: str) -> bool:
        with contextlib.suppress(OSError):
            self.seen += os.read(self._ours, 65536).decode("utf-8", "replace")
        return text in self.seen

    def close(self) -> None:
        self.stream.close()
        os.close(self._ours)


@pytest.fixture
def screen() -> Iterator[Screen]:
    found = Screen()
    yield found
    found.close()


def test_a_wait_is_shown_on_a_terminal_and_taken_away_before_anything_else(
    screen: Screen, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Here, since pytest sets its own before each phase of a test.
    monkeypatch.setattr(sys, "stderr", screen.stream)
    monkeypatch.setenv("TERM", "xterm")
    out = Output(CommandSettings(), Redactor())
    with out.waiting_for("connecting"):
        wait_until(lambda: screen.has("connecting"))
        out.progress("working \x1b[2J " + "words " * 20)
        wait_until(lambda: screen.has("working"))
        out.note("Note", "here")
        wait_until(lambda: screen.has("Note: here"))
    wait_until(lambda: screen.has("Note: here"))
    drawn = screen.seen.split("\r\x1b[K")
    # Each drawing fits in the terminal's line, and what others say draws nothing.
    assert all(len(line) < 40 and "\x1b" not in line for line in drawn if "working" in line)
    assert re.search("\r\x1b\\[KNote: here", screen.seen)
    out.progress("over")
    assert not out.is_live


def test_a_program_sees_nothing_of_a_wait(capfd: pytest.CaptureFixture[str]) -> None:
    out = Output(CommandSettings(), Redactor())
    with out.waiting_for("connecting"):
        assert not out.is_live
        out.progress("working")
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0.4, "0s"), (59.9, "59s"), (125, "2m05s"), (3725, "1h02m")]
)
def test_times_are_read_at_a_glance(seconds: float, shown: str) -> None:
    assert elapsed(seconds) == shown
