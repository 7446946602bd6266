"""A dialogue on a terminal, and that without one nobody is waited for."""

import contextlib
import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Generator
from typing import Any

import pytest

from tests.cli.requirements.desk import WITHIN, Desk

PROMPT = "> "


class Terminal:
    """A person's end of a terminal on which a command runs."""

    def __init__(self, side: int, process: "subprocess.Popen[bytes]") -> None:
        self._side = side
        self.process = process
        self._shown = b""

    def type(self, text: str) -> None:
        """Type a line."""
        os.write(self._side, text.encode() + b"\n")

    def leave(self) -> None:
        """Type the key that ends an input."""
        os.write(self._side, b"\x04")

    def until(self, text: str) -> str:
        """Return what was shown up to and including a text."""
        ends_at = time.monotonic() + WITHIN
        while text.encode() not in self._shown:
            left = ends_at - time.monotonic()
            ready, _, _ = select.select([self._side], [], [], max(left, 0))
            assert ready, f"{text!r} never came: {self._shown!r}"
            self._shown += self._read()
        before, _, self._shown = self._shown.partition(text.encode())
        return (before + text.encode()).decode()

    def _read(self) -> bytes:
        try:
            found = os.read(self._side, 4096)
        except OSError:
            # Linux says so when the other side has closed.
            found = b""
        assert found, f"it ended: {self._shown!r}"
        return found

    def rest(self) -> str:
        """Return what is shown until the command ends."""
        with contextlib.suppress(AssertionError):
            while True:
                self._shown += self._read()
        assert self.process.wait(WITHIN) == 0
        return self._shown.decode().replace("\r\n", "\n")


@contextlib.contextmanager
def chatting(desk: Desk, *words: str) -> Generator[Terminal]:
    """Run the command on a terminal."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "dragoman", "chat", "-a", desk.url, *words],
        cwd=desk.folder,
        env=desk.environment({"TERM": "dumb"}),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    try:
        yield Terminal(ours, process)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(WITHIN)
        os.close(ours)


def messages(desk: Desk, before: int) -> list[dict[str, Any]]:
    """Return the messages that the agent got since."""
    sent = [one for one in desk.seen()[before:] if one.method.startswith("Send")]
    return [one.json["params"]["message"] for one in sent]


@pytest.mark.cli("A2ACLI_CHAT_001")
def test_a_dialogue_carries_its_context_always_and_its_task_while_that_waits(desk: Desk) -> None:
    before = len(desk.seen())
    with chatting(desk) as terminal:
        terminal.until(PROMPT)
        terminal.type("ask")
        terminal.until("Which city?")
        terminal.until(PROMPT)
        terminal.type("Rome")
        terminal.until("Sunny in Rome")
        terminal.until(PROMPT)
        terminal.type("ask")
        terminal.until("Which city?")
        terminal.until(PROMPT)
        terminal.type("/exit")
        end = terminal.rest()
    first, second, third = messages(desk, before)
    assert "taskId" not in first and "contextId" not in first
    asked = desk.agent.tasks[second["taskId"]]
    assert second["contextId"] == asked.task.context_id
    assert asked.state.value == "TASK_STATE_COMPLETED"
    assert third["contextId"] == second["contextId"] and "taskId" not in third
    # Both are told, so that one can go on by other means.
    waiting = [id for id, one in desk.agent.tasks.items() if one.state.is_interrupted]
    assert re.search(rf"^Context: {re.escape(third['contextId'])}$", end, re.M)
    assert any(f"\nTask: {id}\n" in end for id in waiting)


@pytest.mark.cli("A2ACLI_CHAT_001")
def test_a_dialogue_goes_on_from_given_ids_and_through_a_failure(desk: Desk) -> None:
    task, context = desk.begin("ask")
    before = len(desk.seen())
    with chatting(desk, "--task-id", task, "Paris") as terminal:
        terminal.until("Sunny in Paris")
        terminal.until(PROMPT)
        terminal.type("error TaskNotFound")
        terminal.until("TaskNotFoundError")
        terminal.until(PROMPT)
        terminal.type("echo still here")
        terminal.until("\r\nstill here\r\n")
        terminal.until(PROMPT)
        terminal.leave()
        assert f"Context: {context}" in terminal.rest()
    first, _, last = messages(desk, before)
    assert first["taskId"] == task and last["contextId"] == context


@pytest.mark.cli("A2ACLI_CHAT_001")
@pytest.mark.parametrize("is_terminal", [False, True], ids=["pipe", "terminal and pipe"])
def test_without_a_terminal_at_both_ends_it_sends_once_or_refuses_and_reads_nothing(
    desk: Desk, is_terminal: bool
) -> None:
    # Nobody ever writes to it, and it is not closed: who reads it waits for ever.
    held, stdin = pty.openpty() if is_terminal else reversed(os.pipe())
    try:
        for words, exit in ((["echo once"], 0), ([], 2)):
            ran = subprocess.run(
                [sys.executable, "-m", "dragoman", "chat", *words, "-a", desk.url],
                cwd=desk.folder,
                env=desk.environment(),
                stdin=stdin,
                capture_output=True,
                timeout=WITHIN,
            )
            assert ran.returncode == exit, ran.stderr
            if words:
                assert b"State: TASK_STATE_COMPLETED" in ran.stdout and b"once" in ran.stdout
            else:
                assert b"A2ACLI_ERR_USAGE" in ran.stderr and ran.stdout == b""
    finally:
        os.close(held)
        os.close(stdin)
