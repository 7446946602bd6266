"""`dragoman chat` on a terminal, and that it never waits for anyone without one."""

import asyncio
import os
import pty
import signal
import sys
import termios
from asyncio.subprocess import Process
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from harness.processes import ROOT, environment
from harness.serving import app_of, hosting
from harness.waiting import eventually, within

from dragoman import Agent, Turn
from dragoman.testing.scripted.demo import demo
from tests.cli.command import call, fields, home


class Terminal:
    """The other end of a terminal."""

    def __init__(self, side: int, far: int) -> None:
        self._side = side
        self._far = far
        self._before = termios.tcgetattr(side)
        self._seen = b""

    @property
    def is_as_it_was(self) -> bool:
        """Tell whether it shows what is typed, as before."""
        return termios.tcgetattr(self._side)[3] == self._before[3]

    @property
    def shows(self) -> bool:
        """Tell whether it shows what is typed."""
        return bool(termios.tcgetattr(self._side)[3] & termios.ECHO)

    async def rest(self) -> str:
        """Return what was shown until the end, which has been."""
        os.write(self._far, b"<end>")
        return (await self.until("<end>")).removesuffix("<end>").replace("\r\n", "\n")

    async def until(self, text: str) -> str:
        """Return what was shown up to and including a text."""
        while text.encode() not in self._seen:
            self._seen += await within(asyncio.to_thread(os.read, self._side, 4096))
        before, _, self._seen = self._seen.partition(text.encode())
        return (before + text.encode()).decode()

    def type(self, text: str) -> None:
        os.write(self._side, text.encode() + b"\n")

    async def answer(self, shown: str, text: str) -> None:
        """Type a text at the prompt that follows what is shown."""
        await self.until(shown)
        await self.until("> ")
        self.type(text)


@asynccontextmanager
async def chatting(url: str, folder: Path, *words: str) -> AsyncGenerator[tuple[Terminal, Process]]:
    """Talk on a terminal that outlives the command."""
    async with on_terminal(folder, "chat", "-a", url, *words) as found:
        yield found


@asynccontextmanager
async def on_terminal(folder: Path, *words: str) -> AsyncGenerator[tuple[Terminal, Process]]:
    """Run a command on a terminal that outlives it."""
    ours, theirs = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "dragoman", *words),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=folder,
        env=environment(folder) | home(folder) | {"PYTHONPATH": str(ROOT), "TERM": "dumb"},
    )
    try:
        yield Terminal(ours, theirs), process
    finally:
        if process.returncode is None:
            process.kill()
            await within(process.wait())
        os.close(theirs)
        os.close(ours)


async def test_a_dialogue_carries_context_and_task(tmp_path: Path) -> None:
    agent = demo()
    (tmp_path / "note.txt").write_text("from a file")
    async with hosting(agent) as url, chatting(url, tmp_path) as (terminal, process):
        await terminal.answer("Demo agent", "ask")
        await terminal.answer("Which city?", "Rome")
        await terminal.answer("Sunny in Rome", "/file note.txt")
        await terminal.until("goes with the next message")
        terminal.type("echo it")
        await terminal.until("\r\nit\r\n")
        terminal.type("/exit")
        await terminal.until("Context: ")
        assert await within(process.wait()) == 0
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


async def test_an_interrupt_of_a_running_task_tells_its_ids_once(tmp_path: Path) -> None:
    agent = demo()
    async with hosting(agent) as url, chatting(url, tmp_path, "slow 20") as (terminal, process):
        # What an agent says on the way is shown on the way.
        await terminal.until("Progress: Second 1")
        process.send_signal(signal.SIGINT)
        assert await within(process.wait()) == 130
        end = await terminal.rest()
    ((id, one),) = agent.tasks.items()
    assert end.count(f"Task: {id}") == end.count(f"Context: {one.task.context_id}") == 1, end
    assert f"task get -a {url} --wait {id}" in end and end.count("Resume: ") == 1, end


async def test_an_interrupt_at_the_prompt_leaves_and_says_how_to_go_on(tmp_path: Path) -> None:
    agent = demo()
    async with hosting(agent) as url, chatting(url, tmp_path, "ask") as (terminal, process):
        await terminal.until("Which city?")
        await terminal.until("> ")
        process.send_signal(signal.SIGINT)
        assert await within(process.wait()) == 0
        end = await terminal.rest()
        assert terminal.is_as_it_was, "what is typed next is not seen"
    ((id, one),) = agent.tasks.items()
    assert end.count(f"Task: {id}\n") == end.count(f"Context: {one.task.context_id}\n") == 1, end
    assert f'Resume: dragoman send -a {url} --task-id {id} "<reply>"\n' in end
    assert "Error" not in end and "--wait" not in end


async def test_the_time_of_a_dialogue_may_be_over_at_its_prompt(tmp_path: Path) -> None:
    words = ("--timeout", "3s", "echo hi")
    async with hosting(demo()) as url, chatting(url, tmp_path, *words) as (terminal, process):
        await terminal.until("\r\nhi\r\n")
        assert await within(process.wait()) == 5
        end = await terminal.rest()
    assert "A2ACLI_ERR_TIMEOUT" in end and end.count("Context: ") == 1, end


async def test_a_dialogue_is_left_by_either_word(tmp_path: Path) -> None:
    async with hosting(demo()) as url, chatting(url, tmp_path, "echo hi") as (terminal, process):
        await terminal.answer("\r\nhi\r\n", "/quit")
        assert await within(process.wait()) == 0
        end = await terminal.rest()
    assert "is no command" not in end
    assert "Resume: dragoman send -a" in end and "--context-id" in end


async def test_an_interrupt_before_a_task_is_known_tells_the_context(tmp_path: Path) -> None:
    agent = demo()
    holds, asked = asyncio.Event(), asyncio.Event()

    async def silent(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and holds.is_set():
            asked.set()
            while (await receive())["type"] != "http.disconnect":
                pass
            return
        await agent(scope, receive, send)

    async with hosting(silent) as url, chatting(url, tmp_path, "echo hi") as (terminal, process):
        await terminal.until("\r\nhi\r\n")
        await terminal.until("> ")
        holds.set()
        terminal.type("echo never")
        await within(asked.wait())
        process.send_signal(signal.SIGINT)
        assert await within(process.wait()) == 130
        end = await terminal.rest()
    ((_, one),) = agent.tasks.items()
    assert end.count(f"Context: {one.task.context_id}\n") == 1 and "interrupted" in end, end


async def test_the_answer_to_a_sensitive_question_is_not_shown(tmp_path: Path) -> None:
    agent = Agent("Discreet", "Asks for a password.")

    @agent.skill
    async def work(text: str, turn: Turn) -> str:
        answer = await turn.ask("Password?", sensitive=True)
        return f"{len(answer.text)} characters"

    async with (
        hosting(app_of(agent)) as url,
        chatting(url, tmp_path) as (terminal, process),
    ):
        await terminal.until("> ")
        terminal.type("go")
        await terminal.until("Password?")
        await terminal.until("> ")
        # Typed before the terminal stops showing, it would be seen for reasons that are not ours.
        await eventually(lambda: not terminal.shows)
        terminal.type("/hush-7412")
        shown = await terminal.until("10 characters")
        shown += await terminal.until("> ")
        assert "7412" not in shown
        terminal.type("/exit")
        assert await within(process.wait()) == 0
        assert terminal.is_as_it_was and "7412" not in await terminal.rest()


async def test_choices_forms_and_tools_are_asked_for_one_after_the_other(tmp_path: Path) -> None:
    agent = Agent("Asker", "Asks.")

    @agent.skill
    async def work(text: str, turn: Turn) -> str:
        where = await turn.choose("Where to?", ["north", "south"])
        seen = await asyncio.gather(turn.tool("look", {"at": where}), turn.confirm("Sure?"))
        return f"went {where} {seen}"

    async with (
        hosting(app_of(agent)) as url,
        chatting(url, tmp_path, "go") as (terminal, process),
    ):
        await terminal.until("Where to?")
        await terminal.answer("2) south", "west")
        await terminal.answer("not one of the choices", "2")
        await terminal.answer('the result of look({"at":"south"})', "7")
        await terminal.answer("yes or no", "yes")
        await terminal.answer("went south [7, True]", "/exit")
        assert await within(process.wait()) == 0


async def test_a_form_is_filled_in_field_by_field(tmp_path: Path) -> None:
    agent = Agent("Asker", "Asks.")
    form = {
        "type": "object",
        "required": ["size"],
        "properties": {"size": {"enum": ["S", "M"]}, "count": {"type": "integer"}},
    }

    @agent.skill
    async def work(text: str, turn: Turn) -> str:
        first = await turn.fill("What shall it be?", form)
        second = await turn.fill("And then?", {"type": "string"})
        return f"ordered {first} {second}"

    async with (
        hosting(app_of(agent)) as url,
        chatting(url, tmp_path, "go") as (terminal, process),
    ):
        await terminal.until("What shall it be?")
        await terminal.answer("2) M", "L")
        await terminal.answer("not one of the choices", "2")
        await terminal.answer("count - a whole number, may be left out", "")
        await terminal.answer("And then?", "cake")
        await terminal.answer("ordered {'size': 'M'} cake", "/exit")
        assert await within(process.wait()) == 0
