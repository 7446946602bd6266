"""Lists as tables: as wide as the terminal, and nothing in a cell moves a cursor."""

import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from datetime import UTC, datetime
from fcntl import ioctl
from pathlib import Path

import pytest
from harness.processes import environment
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.cli.terminal.table import Column, Screen, age, columns_of, drawn
from dragoman.model.patterns import CONTROLS
from tests.cli.command import home, inside

NOW = datetime(2026, 11, 17, 12, tzinfo=UTC)
COLUMNS = (
    Column("state", "status/state", "state"),
    Column("task", "id", "id"),
    Column("words", "words"),
    Column("age", "at", "age"),
    Column("cost", "cost|price", "number"),
)


def item(words: str, **more: object) -> dict[str, object]:
    return {"status": {"state": "TASK_STATE_FAILED"}, "id": "t-1", "words": words, **more}


def test_a_table_has_aligned_columns_and_leaves_out_those_without_a_value() -> None:
    items = [item("hello", price=1.5), item("two words", at="2026-11-17T11:58:00Z", cost=20)]
    assert drawn(items, COLUMNS, Screen(), NOW).splitlines() == [
        "STATE   TASK  WORDS      AGE  COST",
        "failed  t-1   hello            1.5",
        "failed  t-1   two words  2m     20",
    ]
    assert "AGE" not in drawn(items[:1], COLUMNS, Screen(), NOW)


def test_colours_and_glyphs_are_for_terminals_that_show_them() -> None:
    text = drawn([item("x")], COLUMNS, Screen(80, has_colours=True, has_glyphs=True), NOW)
    assert "\x1b[31m✗ failed\x1b[0m" in text
    assert "\x1b" not in drawn([item("x")], COLUMNS, Screen(80, has_glyphs=True), NOW)


@settings(max_examples=50, deadline=None)
@given(st.text(max_size=60), st.integers(40, 200))
def test_no_cell_gets_out_of_its_line_or_wider_than_the_terminal(words: str, width: int) -> None:
    lines = drawn([item(words), item("x")], COLUMNS, Screen(width), NOW).split("\n")
    assert len(lines) == 4 and lines[-1] == ""
    for line in lines:
        assert not CONTROLS.search(line) and columns_of(line) <= width


def test_ids_are_never_cut_and_texts_give_way() -> None:
    long = item("words " * 40) | {"id": "0" * 36}
    line = drawn([long], COLUMNS, Screen(60), NOW).splitlines()[1]
    assert "0" * 36 in line and line.endswith("…") and columns_of(line) <= 60


@pytest.mark.parametrize(
    ("instant", "shown"),
    [
        ("2026-11-17T11:59:55Z", "5s"),
        ("2026-11-17T09:00:00+00:00", "3h"),
        ("2026-11-10T12:00:00Z", "7d"),
        ("2026-11-17T12:05:00Z", "+5m"),
        ("2026-11-17T12:00:00Z", "0s"),
        ("\x1b[2J", "\\x1b[2J"),
    ],
)
def test_ages_have_one_unit(instant: str, shown: str) -> None:
    assert age(instant, NOW) == shown


def on_terminal(*words: str, cwd: Path, columns: int = 90, **env: str) -> str:
    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-m", "dragoman", *words],
        cwd=cwd,
        env=environment(cwd) | home(cwd) | {"TERM": "xterm", **env},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    found = b""
    while True:
        try:
            chunk = os.read(ours, 65536)
        except OSError:
            break
        if not chunk:
            break
        found += chunk
    assert process.wait(60) == 0
    os.close(ours)
    return found.decode().replace("\r\n", "\n")


def test_a_terminal_gets_a_table_a_pipe_records_and_both_what_they_ask_for(tmp_path: Path) -> None:
    checks = ("doctor", "--check", "proxy", "--check", "clock")
    table = on_terminal(*checks, cwd=tmp_path)
    assert "\x1b[1mLEVEL" in table and "✓ ok" in table and "0 problems, 0 warnings" in table
    plain = on_terminal(*checks, "-o", "text", cwd=tmp_path, NO_COLOR="1")
    piped = inside(*checks, cwd=tmp_path)
    assert plain == piped.stdout and piped.stdout.startswith("Check: clock\nLevel: ok\n")
    asked = inside(*checks, "-o", "table", cwd=tmp_path)
    assert re.match(r"LEVEL +CHECK +FINDING\nok +clock", asked.stdout)
    assert json.loads(inside(*checks, "-o", "json", cwd=tmp_path).stdout)["findings"]
