"""`dragoman chat`: a dialogue with an agent, on a terminal and nowhere else.

What belongs together stays together: the context always, the task while it waits for an answer.
Nothing of it is kept when the dialogue ends.
"""

import asyncio
import contextlib
import mimetypes
import sys
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dragoman.cli.failures import INTERNAL, Failure, explain, usage
from dragoman.cli.grammar import command
from dragoman.cli.invocation import Invocation, is_terminal

if TYPE_CHECKING:
    # Heavy: loaded when an agent is called.
    from dragoman.cli.calling.form_prompt import FormDialogue
    from dragoman.cli.session import Session
    from dragoman.client.answer import Answer
    from dragoman.model.message import Part
    from dragoman.model.requests import Request

_PROMPT = "> "
_HELP = """/file <path>  send a file with the next message
/help         show this
/exit         leave (or /quit, Ctrl-D, Ctrl-C)
"""
_LEAVING = ("/exit", "/quit")


@command("chat", defaults={"wait": "true"})
@click.argument("text", required=False)
def chat(run: Invocation, text: str | None) -> None:
    """Talk with an agent; TEXT is the first message.

    Without a terminal, TEXT is sent once, and without TEXT there is nothing to do.
    """
    from dragoman.cli.session import Session, talk

    if not (is_terminal(sys.stdin) and is_terminal(sys.stdout)) or run.settings.is_json:
        if text is None:
            from dragoman.cli.hints import again

            raise usage("chat needs a terminal, or a text", again(run, "hello"))
        _send_once(run, text)
        return

    dialogues: list[Dialogue] = []

    async def work(session: Session) -> None:
        dialogues.append(Dialogue(session))
        with _terminal_as_it_was():
            await dialogues[0].run(text)

    try:
        talk(run, work)
    except Failure as failure:
        # Who leaves while nothing is under way has missed nothing.
        if failure.code != INTERNAL or not dialogues or not dialogues[0].is_left:
            raise


def _send_once(run: Invocation, text: str) -> None:
    from dragoman.cli.calling.send import deliver
    from dragoman.cli.session import Session, talk
    from dragoman.model.message import Part

    ids = {"task_id": run.settings.task_id, "context_id": run.settings.context_id}

    async def work(session: Session) -> None:
        await deliver(session, [Part(text=text)], ids)

    talk(run, work)


class Dialogue:
    """Messages and answers, one after the other."""

    def __init__(self, session: "Session") -> None:
        self._session = session
        self._task_id = session.settings.task_id
        self._context_id: str = session.settings.context_id
        self._files: list[Part] = []
        self._is_busy = False
        # What the agent waits for, by its shape, and whether the answer is hidden.
        self._requests: list[Request] = []
        self._is_sensitive = False
        # The form that is being filled in, if the agent waits for one.
        self._form: FormDialogue | None = None
        # Whether it ended at its prompt.
        self.is_left = False

    async def run(self, text: str | None) -> None:
        """Talk until the person leaves."""
        _history()
        out = self._session.out
        out.note("Agent", f"{self._session.agent.card.name} (/help, /exit)")
        try:
            if text is not None:
                await self._say(text)
            while (line := await _line(hidden=self._is_sensitive)) not in (None, *_LEAVING):
                assert line is not None
                if self._form is not None and (self._is_sensitive or not line.startswith("/")):
                    await self._fill(line)
                elif self._is_sensitive:
                    # Not a command, however it begins: it would be shown again.
                    await self._say(line)
                elif line == "/help":
                    out.write(_HELP)
                elif line.startswith("/file"):
                    self._attach(line.removeprefix("/file").strip())
                elif line.startswith("/"):
                    out.note("Error", f"{line.split()[0]} is no command: /help shows them")
                elif line.strip():
                    await self._say(line)
            self._leave("" if line else "\n")
        except asyncio.CancelledError:
            run = self._session.run
            # What is known of a task under way is told at the end of the run.
            if not self._is_busy or not run.task_id:
                self._leave("\n")
                self.is_left = not self._is_busy
                run.context_id = ""
            raise

    def _leave(self, before: str) -> None:
        """Tell where one can go on by other means."""
        from dragoman.cli.hints import command, filled

        self.is_left = True
        session, out = self._session, self._session.out
        # Below what was typed.
        out.write(before)
        if self._context_id:
            out.field("Context", self._context_id)
        if self._task_id:
            out.field("Task", self._task_id)
            line = command(session.run, "send", "--task-id", self._task_id)
            out.field("Resume", filled(line, "<reply>"))
        elif self._context_id:
            out.field("Resume", session.resume_context(self._context_id))

    def _attach(self, name: str) -> None:
        from dragoman.model.message import Part

        out, path = self._session.out, Path(name).expanduser()
        try:
            body = path.read_bytes()
        except OSError as error:
            out.note("Error", f"{name or '/file'}: {error.strerror or 'which file?'}")
            return
        kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
        self._files.append(Part(raw=body, filename=path.name, media_type=kind))
        out.note("File", f"{path.name} ({kind}, {len(body)} bytes) goes with the next message")

    async def _fill(self, line: str) -> None:
        """Take an answer to a field of a form; the last one sends the form."""
        from dragoman.cli.calling.answer_prompt import parts_with, show_field

        assert self._form is not None, "asked by the caller"
        try:
            self._form.take(line)
            if self._form.question is None:
                content = parts_with(self._requests[0], self._form.value)
                self._form = None
                await self._send(content)
                return
        except Failure as failure:
            self._session.out.note("Error", failure.message)
            self._begin_form()
            return
        show_field(self._form.question, self._session.out.note)

    def _begin_form(self) -> None:
        """Begin with the first field of the form that is waited for."""
        from dragoman.cli.calling.answer_prompt import show_field
        from dragoman.cli.calling.form_prompt import FormDialogue

        self._form = FormDialogue(self._requests[0].schema)
        if self._form.question is not None:
            show_field(self._form.question, self._session.out.note)

    async def _say(self, text: str) -> None:
        try:
            content = self._message_from(text)
        except Failure as failure:
            self._session.out.note("Error", failure.message)
            return
        await self._send(content)

    async def _send(self, parts: "list[Part]") -> None:
        from dragoman.errors import A2AError

        content = [*parts, *self._files]
        self._session.know(self._task_id, self._context_id)
        self._is_busy = True
        try:
            await self._deliver(content)
        except A2AError as error:
            # One message that fails does not end the dialogue.
            self._session.out.fail(explain(error))
        else:
            self._files = []
        self._is_busy = False
        # At the prompt nothing is under way.
        run = self._session.run
        run.task_id, run.context_id, run.status = "", "", None

    def _message_from(self, text: str) -> "list[Part]":
        """Return what is typed as a message, or as the answer to what is waited for."""
        from dragoman.cli.calling.answer_prompt import parts_of
        from dragoman.model.message import Part

        if not self._requests:
            return [Part(text=text)]
        return parts_of(self._requests[0], text)

    async def _deliver(self, content: "list[Part]") -> None:
        from dragoman.model.events import ArtifactUpdate, StatusUpdate

        session, out = self._session, self._session.out
        stream = session.agent.stream(
            content,
            task_id=self._task_id,
            context_id=self._context_id,
            metadata=session.settings.metadata or None,
            poll_interval=session.settings.explicit_interval,
        )
        text = _Text(out)
        async with stream:
            async for event in stream:
                # Known before they are told: a dialogue shows no ids on the way.
                self._context_id = event.context_id or self._context_id
                session.know(stream.task_id, self._context_id)
                if isinstance(event, ArtifactUpdate):
                    text.show(event.artifact.parts)
                elif isinstance(event, StatusUpdate) and event.status.message is not None:
                    text.end()
                session.progress(event)
        answer = stream.answer
        text.end()
        # What no artifact said: a question, an answer in one message, files and data.
        if not text.is_told or (answer.state is not None and answer.state.is_interrupted):
            text.show([part for part in answer.parts if not _is_request(part)])
            text.end()
        self._context_id = answer.context_id or self._context_id
        is_waiting = answer.state is not None and answer.state.is_interrupted
        self._task_id = answer.task_id if is_waiting else ""
        self._wait_for(answer)
        if answer.state is not None and answer.state.is_resting and not _is_good(answer.state):
            out.note("State", answer.state.value)

    def _wait_for(self, answer: "Answer") -> None:
        """Say how the first of what the agent waits for is answered."""
        from dragoman.cli.calling.answer_prompt import described
        from dragoman.client.requests import requests_of

        found = requests_of(answer)
        self._is_sensitive = any(request.sensitive for request in found[:1])
        # A bare question is answered by whatever is said.
        self._requests = [request for request in found if request.is_declared]
        self._form = None
        for request in self._requests[:1]:
            if len(self._requests) > 1:
                self._session.out.note("Question", f"{request.prompt} (1 of {len(found)})")
            if request.kind == "form":
                if request.problem:
                    self._session.out.note("Error", request.problem)
                self._begin_form()
                return
            for line in described(request):
                self._session.out.note("Answer", line)


def _is_request(part: "Part") -> bool:
    from dragoman.model.requests import INPUT_REQUEST, TOOL_USE

    return part.media_type in (INPUT_REQUEST, TOOL_USE)


def _is_good(state: Any) -> bool:
    return state.name == "COMPLETED"


class _Text:
    """An answer as it comes."""

    def __init__(self, out: Any) -> None:
        self._out = out
        self._is_open = False
        self.is_told = False

    def show(self, parts: "list[Part]") -> None:
        from dragoman.cli.output import escaped

        for part in parts:
            self.is_told = True
            if isinstance(part.text, str):
                self._out.write(escaped(part.text))
                self._is_open = not part.text.endswith("\n")
            else:
                self.end()
                self._out.parts([part])

    def end(self) -> None:
        if self._is_open:
            self._out.write("\n")
            self._is_open = False


@contextlib.contextmanager
def _terminal_as_it_was() -> Generator[None]:
    """Undo at the end what reading lines does to a terminal: it may be cut short."""
    try:
        import termios
    except ImportError:
        # Where there is none, nothing is done to it either.
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _history() -> None:
    """Let earlier lines come back by the arrow keys; they live as long as the dialogue."""
    with contextlib.suppress(ImportError):
        # Reading a line uses it by being loaded.
        import readline

        readline.set_auto_history(True)


async def _line(*, hidden: bool = False) -> str | None:
    """Return what a person types, without showing it if it is sensitive; None at the end."""
    loop = asyncio.get_running_loop()
    typed: asyncio.Future[str | None] = loop.create_future()

    def settle(line: str | None) -> None:
        if not typed.done():
            typed.set_result(line)

    def read() -> None:
        try:
            line: str | None = getpass.getpass(_PROMPT) if hidden else input(_PROMPT)
        except (EOFError, KeyboardInterrupt, ValueError):
            line = None
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(settle, line)

    import getpass
    import threading

    # A daemon: a signal ends the command while it waits for input.
    threading.Thread(target=read, daemon=True).start()
    return await typed
