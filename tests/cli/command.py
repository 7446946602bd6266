"""The command as somebody types it, in a home of its own; its agent is in this process.

`call` runs it inside this process, which is many times faster; `typed` is the real thing.
"""

import asyncio
import contextlib
import io
import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any
from unittest import mock

from harness.processes import environment, run
from harness.waiting import within

from dragoman.cli.main import main

Ended = CompletedProcess[str]


def home(folder: Path) -> dict[str, str]:
    """Return an environment whose files are all in a folder."""
    return {
        "HOME": str(folder),
        "XDG_CONFIG_HOME": str(folder / "config"),
        "XDG_CACHE_HOME": str(folder / "cache"),
    }


async def typed(*arguments: str | Path, cwd: Path, env: Mapping[str, str] | None = None) -> Ended:
    """Run the command to its end, in a process of its own."""
    given = home(cwd) | dict(env or {})
    return await within(asyncio.to_thread(run, *arguments, cwd=cwd, env=given))


async def call(*arguments: str | Path, cwd: Path, env: Mapping[str, str] | None = None) -> Ended:
    """Run the command to its end, in a thread."""
    words = [str(argument) for argument in arguments]
    given = environment(cwd) | home(cwd) | dict(env or {})
    return await within(asyncio.to_thread(_inside, words, cwd, given))


def inside(*arguments: str | Path, cwd: Path, env: Mapping[str, str] | None = None) -> Ended:
    """Run the command to its end, here."""
    words = [str(argument) for argument in arguments]
    return _inside(words, cwd, environment(cwd) | home(cwd) | dict(env or {}))


def _inside(words: list[str], cwd: Path, env: Mapping[str, str]) -> Ended:
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", newline="\n") for _ in range(2))
    with (
        contextlib.chdir(cwd),
        mock.patch.dict(os.environ, env, clear=True),
        mock.patch.multiple(sys, stdout=out, stderr=err, stdin=io.StringIO()),
    ):
        try:
            main(words)
        except SystemExit as ended:
            code = int(ended.code or 0)
        shown = [stream.buffer.getvalue().decode() for stream in (out, err)]  # type: ignore[attr-defined]  # a BytesIO
    _check_hint(words, *shown)
    return Ended(words, code, *shown)


def _check_hint(words: list[str], out: str, err: str) -> None:
    """Whatever goes wrong has the next command to type: here for every failure of every test."""
    assert not re.search(r'"error": .*"hint": ?null', out, re.DOTALL), (words, out)
    if re.search("^Error: ", err, re.MULTILINE):
        assert re.search("^Hint: .", err, re.MULTILINE), (words, err)


def document(ended: Ended, exit: int = 0) -> Any:
    """Return the one JSON document that a run wrote."""
    assert ended.returncode == exit, ended.stderr + ended.stdout
    return json.loads(ended.stdout)


def lines(ended: Ended, exit: int = 0) -> list[Any]:
    """Return the lines of JSON that a run wrote."""
    assert ended.returncode == exit, ended.stderr + ended.stdout
    return [json.loads(line) for line in ended.stdout.splitlines()]


def fields(text: str) -> dict[str, str]:
    """Return the one-line fields of a text output; of repeated ones the last."""
    pairs = (line.split(": ", 1) for line in text.splitlines() if ": " in line)
    return {pair[0]: pair[1] for pair in pairs}
