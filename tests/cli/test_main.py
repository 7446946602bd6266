"""The border: whatever goes wrong is told, nothing unexplained gets out, and bytes are bytes."""

import asyncio
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from harness.processes import ROOT, environment
from harness.serving import hosting
from harness.waiting import within

from dragoman.cli.invocation import Invocation
from dragoman.cli.operating import config
from dragoman.testing.scripted.demo import demo
from tests.cli.command import home, inside, typed


def test_a_mistake_of_ours_is_a_sentence_with_the_name_of_its_class(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(run: Invocation) -> None:
        raise ZeroDivisionError("tok3n-of-mine is no number")

    monkeypatch.setattr(config.show, "callback", broken)
    env = {"A2ACLI_BEARER": "tok3n-of-mine"}
    ended = inside("config", "show", "-o", "json", cwd=tmp_path, env=env)
    error = json.loads(ended.stdout)["error"]
    assert (ended.returncode, error["code"]) == (1, "A2ACLI_ERR_INTERNAL")
    assert error["message"] == "ZeroDivisionError: <redacted> is no number"
    assert ended.stderr == ""
    assert error["hint"] == "dragoman config show -o json --debug"
    traced = inside("config", "show", "--debug", cwd=tmp_path, env=env)
    assert "Debug: Traceback" in traced.stderr and "tok3n" not in traced.stderr


async def start(folder: Path, *words: str, **streams: int) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "dragoman", *words),
        stdin=subprocess.DEVNULL,
        cwd=folder,
        env=environment(folder) | home(folder) | {"PYTHONPATH": str(ROOT)},
        **streams,
    )


async def test_a_closed_stdout_ends_the_run_quietly(tmp_path: Path) -> None:
    async with hosting(demo()) as url:
        words = ("send", "-a", url, "--stream", "-o", "json", "stream 200")
        ours, theirs = os.pipe()
        process = await start(tmp_path, *words, stdout=theirs, stderr=subprocess.PIPE)
        os.close(theirs)
        await within(asyncio.to_thread(os.read, ours, 1))
        os.close(ours)
        _, err = await within(process.communicate())
    assert process.returncode == 0
    assert b"Traceback" not in err and b"Error" not in err


async def test_bytes_are_the_same_on_a_terminal_and_in_a_pipe(tmp_path: Path) -> None:
    piped = await typed("card", "get", "--help", "--all", cwd=tmp_path)
    ours, theirs = pty.openpty()
    process = await start(tmp_path, "card", "get", "--help", "--all", stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown = b""
    while b"--trust-origin" not in shown or not shown.endswith(b"\n"):
        shown += await within(asyncio.to_thread(os.read, ours, 65536))
    assert await within(process.wait()) == 0
    os.close(ours)
    assert shown.replace(b"\r\n", b"\n").decode() == piped.stdout


def test_the_version_is_shown_at_every_level(tmp_path: Path) -> None:
    for words in (("-v",), ("send", "--version"), ("task", "get", "-v")):
        ended = inside(*words, cwd=tmp_path)
        assert ended.returncode == 0 and ended.stdout.startswith("dragoman ")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is full")
@pytest.mark.parametrize(
    "words",
    [("-o", "json", "config", "show"), ("config", "show"), ("-o", "json", "send"), ("--help",)],
)
async def test_a_stdout_that_takes_nothing_is_exit_1_and_no_trace(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    process = await start(tmp_path, *words, stdout=full, stderr=subprocess.PIPE)
    os.close(full)
    _, err = await within(process.communicate())
    assert process.returncode == 1
    assert b"No space left on device" in err and b"Traceback" not in err
    assert b"Exception ignored" not in err and len(err.splitlines()) <= 3


def test_a_mistake_of_the_user_has_a_hint_and_no_trace(tmp_path: Path) -> None:
    ended = inside("send", "-a", "localhost:1", "x", "--bearer", "a b", "--debug", cwd=tmp_path)
    assert ended.returncode == 2 and "Traceback" not in ended.stderr
    assert "Hint: dragoman send --help\n" in ended.stderr
    ended = inside("send", "-o", "jsonl", "x", cwd=tmp_path)
    assert ended.returncode == 2
    assert "Hint: dragoman send x -o json --stream\n" in ended.stderr
