"""`dragoman chat` on a terminal, and that it never waits for anyone without one."""

import asyncio
import os
import pty
import sys
from pathlib import Path

from serving import ROOT, environment, hosting, within

from cli.calling import call, fields, home
from dragoman.mock.demo import demo


class Terminal:
    """The other end of a terminal."""

    def __init__(self, side: int) -> None:
        self._side = side
        self._seen = b""

    async def until(self, text: str) -> str:
        """Return what was shown up to and including a text."""
        while text.encode() not in self._seen:
            self._seen += await within(asyncio.to_thread(os.read, self._side, 4096))
        before, _, self._seen = self._seen.partition(text.encode())
        return (before + text.encode()).decode()

    def type(self, text: str) -> None:
        os.write(self._side, text.encode() + b"\n")


async def test_a_dialogue_carries_context_and_task(tmp_path: Path) -> None:
    agent = demo()
    (tmp_path / "note.txt").write_text("from a file")
    async with hosting(agent) as url:
        ours, theirs = pty.openpty()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "dragoman", "chat", "-a", url),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=tmp_path,
            env=environment(tmp_path) | home(tmp_path) | {"PYTHONPATH": str(ROOT), "TERM": "dumb"},
        )
        os.close(theirs)
        terminal = Terminal(ours)
        await terminal.until("Demo agent")
        await terminal.until("> ")
        terminal.type("ask")
        await terminal.until("Which city?")
        await terminal.until("> ")
        terminal.type("Rome")
        await terminal.until("Sunny in Rome")
        await terminal.until("> ")
        terminal.type("/file note.txt")
        await terminal.until("goes with the next message")
        terminal.type("echo it")
        await terminal.until("\r\nit\r\n")
        terminal.type("/exit")
        await terminal.until("Context: ")
        assert await within(process.wait()) == 0
        os.close(ours)
    sent = [seen.json["params"]["message"] for seen in agent.calls("SendStreamingMessage")]
    assert "taskId" not in sent[0] and "contextId" not in sent[0]
    assert sent[1]["taskId"] and sent[1]["contextId"] == sent[2]["contextId"]
    assert "taskId" not in sent[2]
    assert sent[2]["parts"][1]["filename"] == "note.txt"


async def test_without_a_terminal_it_sends_once_or_refuses(tmp_path: Path) -> None:
    async with hosting(demo()) as url:
        once = await call("chat", "-a", url, "echo hello", cwd=tmp_path)
        assert once.returncode == 0 and fields(once.stdout)["State"] == "TASK_STATE_COMPLETED"
    refused = await call("chat", "-a", "localhost:1", cwd=tmp_path)
    assert refused.returncode == 2 and "terminal" in refused.stderr
