"""What is shown: the payload on stdout, and everything about the run on stderr.

Text is one `Label: value` per line, or a block: a `Label:` line, the content, an empty line. What
agents say is escaped, so that it can neither move a cursor nor end a block. JSON is the protocol's
own, in the shapes of 1.0. Bytes are the same on a terminal and in a pipe.
"""

import os
import re
import sys
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from dragoman.cli.failures import Failure
from dragoman.cli.redaction import Redactor
from dragoman.cli.sources import CommandSettings
from dragoman.model.patterns import CONTROLS_BUT_LAYOUT, json_escaped, late_pattern

if TYPE_CHECKING:
    # Heavy: loaded by the commands that have something to show.
    from dragoman.cli.terminal.live_line import LiveLine
    from dragoman.cli.terminal.table import Column
    from dragoman.model.artifact import Artifact
    from dragoman.model.events import ArtifactUpdate, StatusUpdate
    from dragoman.model.message import Message, Part
    from dragoman.model.task import Task

    Shown = Task | Message | StatusUpdate | ArtifactUpdate

_INDENT = 2
_NONE: Mapping[str, str] = {}
# Where the second word of a member's name begins.
_INNER = late_pattern("(?<=[a-z])(?=[A-Z])")


def escaped(text: str) -> str:
    """Return a text that a terminal shows and does not obey."""
    return CONTROLS_BUT_LAYOUT.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    number = ord(match.group())
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}"


def one_line(text: str) -> str:
    """Return a text as the value of a field."""
    return escaped(text).replace("\n", "\\n")


class Unwritable(Exception):
    """Stdout takes nothing, such as on a disk that is full."""


class Output:
    """Writes the results of a run, in the format that was asked for."""

    def __init__(self, settings: CommandSettings, redactor: Redactor) -> None:
        self.is_json = settings.is_json
        self._settings = settings
        self.is_stream = settings.stream
        self.is_verbose = settings.verbose
        self.is_debug = settings.debug
        self._redactor = redactor
        # The artifact whose text is being shown as it comes, and whether its line is empty.
        self._open = ""
        self._line_is_empty = True
        self._warned: set[str] = set()
        # What a terminal shows while something is waited for.
        self._live: LiveLine | None = None

    # stdout

    def write(self, text: str) -> None:
        """Write text as it is, at once."""
        # Half of a character is shown and does not end the run.
        with self._undisturbed():
            _send(sys.stdout.buffer, text.encode("utf-8", "backslashreplace"))

    def json(self, body: bytes | Any) -> None:
        """Write one document: indented, or a compact line with `--stream`."""
        # A program reads the same; a terminal that shows it obeys nothing of what was said.
        self.write(json_escaped(_document(body, is_line=self.is_stream)) + "\n")

    def field(self, label: str, value: str) -> None:
        """Write one line."""
        self.close()
        self.write(_line(label, value))

    def record(self, name: str, found: Any, lines: Iterable[tuple[str, str]]) -> None:
        """Write all that a server says on stdout, in one piece. Many read its first line and leave:
        the server goes on."""
        try:
            if self.is_json:
                self.json({name: found})
            else:
                self.write("".join([_line(label, value) for label, value in lines]))
        except BrokenPipeError:
            drop_stdout()

    def item(
        self, item: Mapping[str, Any], labels: Mapping[str, str] = _NONE, names: Iterable[str] = ()
    ) -> None:
        """Write one thing: as a document, or as its fields."""
        if self.is_json:
            self.json(item)
        else:
            self.fields(item, labels, names)

    def fields(
        self, item: Mapping[str, Any], labels: Mapping[str, str] = _NONE, names: Iterable[str] = ()
    ) -> None:
        """Write a line for each member that has a value: of all, or of those named, in their order.
        A label is the name of a member, as `Balance-After`, unless `labels` has another."""
        for name in names or item:
            value = item.get(name)
            if isinstance(value, list):
                value = " ".join(map(str, cast("list[object]", value)))
            if value is None or value is False or value == "":
                continue
            label = labels.get(name) or _INNER.sub("-", name[:1].upper() + name[1:])
            text = "yes" if value is True else f"{value:g}" if type(value) is float else str(value)
            self.field(label, text)

    def table(self, items: "Sequence[Mapping[str, Any]]", columns: "Sequence[Column]") -> None:
        """Write a list as a table, as wide as the terminal."""
        from dragoman.cli.terminal.table import Screen, drawn

        self.close()
        self.write(self._redactor.text(drawn(items, columns, Screen.here())))

    def block(self, label: str, content: str) -> None:
        """Write a block; an empty line inside it becomes a space, or it would end it."""
        self.close()
        lines = [line or " " for line in escaped(content).split("\n")]
        self.write("\n".join([f"{one_line(label)}:", *lines, "", ""]))

    def close(self) -> None:
        """End the text that was shown as it came."""
        if self._open:
            self.write((" \n" if self._line_is_empty else "\n") + "\n")
            self._open = ""

    def _continue(self, artifact: "Artifact", text: str) -> None:
        """Write more of a text, in the block that is open for it."""
        id = artifact.artifact_id
        if self._open != id:
            self.close()
            self.field("Artifact", _title(artifact))
            self.write("Text:\n")
            self._open, self._line_is_empty = id, True
        pieces: list[str] = []
        for piece in re.split("(\n)", escaped(text)):
            if piece == "\n":
                pieces.append(" \n" if self._line_is_empty else "\n")
                self._line_is_empty = True
            elif piece:
                pieces.append(piece)
                self._line_is_empty = False
        self.write("".join(pieces))

    # stderr

    def note(self, label: str, text: str) -> None:
        """Say something about the run."""
        line = f"{label}: {one_line(self._redactor.text(text))}\n"
        # A note that cannot be written is no reason to fail.
        with suppress(Unwritable), self._undisturbed():
            _send(sys.stderr.buffer, line.encode("utf-8", "backslashreplace"))

    @contextmanager
    def waiting_for(self, text: str) -> Generator[None]:
        """Show a person what is waited for, and for how long, until it is over; `progress` says
        more of it. Programs and logs see nothing of it."""
        from dragoman.cli.terminal.live_line import LiveLine, can_draw

        if self._live is not None or self.is_debug or not can_draw():
            yield
            return
        with LiveLine(text) as self._live:
            try:
                yield
            finally:
                live, self._live = self._live, None
                with live.hidden():
                    pass

    @property
    def is_table(self) -> bool:
        """Whether lists are tables."""
        return self._settings.is_table

    @property
    def is_live(self) -> bool:
        """Whether a person sees what `progress` says."""
        return self._live is not None

    def progress(self, text: str) -> None:
        """Say what is being done now, to a person who waits."""
        if self._live is not None:
            self._live.show(self._redactor.text(text))

    def _undisturbed(self) -> AbstractContextManager[None]:
        return nullcontext() if self._live is None else self._live.hidden()

    def warn(self, text: str) -> None:
        """Say what the caller should know though the run goes on."""
        if text not in self._warned:
            self._warned.add(text)
            self.note("Warning", text)

    def debug(self, text: str) -> None:
        """Say how it works, to those who asked."""
        if self.is_debug:
            self.note("Debug", text)

    def fail(self, failure: Failure) -> None:
        """Say what went wrong: as the document or last line, or on stderr."""
        shown = Failure(
            failure.code,
            self._redactor.text(failure.message),
            hint=self._redactor.text(failure.hint) if failure.hint else None,
            a2a_code=failure.a2a_code,
        )
        if self.is_json:
            import json

            indent = None if self.is_stream else _INDENT
            separators = (",", ":") if self.is_stream else None
            text = json.dumps(
                shown.envelope(), ensure_ascii=False, indent=indent, separators=separators
            )
            self.write(json_escaped(text) + "\n")
            return
        self.close()
        self.note("Error", shown.code)
        self.note("Message", shown.message)
        if shown.hint:
            self.note("Hint", shown.hint)
        if shown.a2a_code is not None:
            self.note("A2A-Code", str(shown.a2a_code))

    # The protocol's own things as text

    def task(self, task: "Task", *, history: bool = False) -> None:
        """Write a task: ids and state first, then what it says and made."""
        self.field("Task", task.id)
        self.field("Context", task.context_id)
        self._status(task)
        for artifact in task.artifacts:
            self.artifact(artifact)
        if history or self.is_verbose:
            for message in task.history:
                self.message(message)
        self._metadata(task.metadata)

    def _status(self, about: "Task | StatusUpdate") -> None:
        status = about.status
        self.field("State", status.name)
        if status.timestamp:
            self.field("Updated", status.timestamp)
        if status.message is not None:
            self.message(status.message)

    def message(self, message: "Message") -> None:
        """Write a message."""
        self.field("Message", f"{message.message_id} ({message.role.value})")
        if self.is_verbose and message.reference_task_ids:
            self.field("References", ", ".join(message.reference_task_ids))
        self.parts(message.parts)
        self._metadata(message.metadata)

    def answer(self, message: "Message") -> None:
        """Write a message that is the whole answer: with the ids it has."""
        if message.task_id:
            self.field("Task", message.task_id)
        if message.context_id:
            self.field("Context", message.context_id)
        self.message(message)

    def artifact(self, artifact: "Artifact") -> None:
        """Write an artifact."""
        self.field("Artifact", _title(artifact))
        if self.is_verbose and artifact.description:
            self.block("Description", artifact.description)
        self.parts(artifact.parts if self.is_verbose else joined(artifact.parts))
        self._metadata(artifact.metadata)

    def parts(self, parts: "list[Part]") -> None:
        """Write parts, each in its way."""
        import msgspec

        for part in parts:
            if isinstance(part.text, str):
                self.block("Text", part.text)
            elif part.data is not msgspec.UNSET:
                body = msgspec.json.format(msgspec.json.encode(part.data), indent=_INDENT)
                self.block("Data", body.decode())
            elif isinstance(part.raw, bytes):
                name = part.filename or "unnamed"
                self.field("File", f"{name} ({part.type}, {len(part.raw)} bytes)")
            elif isinstance(part.url, str):
                kind = f" ({part.media_type})" if part.media_type else ""
                name = f"{part.filename} " if part.filename else ""
                self.field("File", f"{name}{part.url}{kind}")
            self._metadata(part.metadata)

    def _metadata(self, metadata: dict[str, Any]) -> None:
        if self.is_verbose and metadata:
            import msgspec

            body = msgspec.json.format(msgspec.json.encode(metadata), indent=_INDENT)
            self.block("Metadata", body.decode())

    def event(self, event: "Shown") -> None:
        """Write one event of a stream, in the format that was asked for."""
        from dragoman.model.artifact import Artifact
        from dragoman.model.events import ArtifactUpdate, StatusUpdate
        from dragoman.model.message import Message

        if self.is_json:
            self.json(stream_response(event))
            return
        match event:
            case ArtifactUpdate(artifact=Artifact(parts=[part])) if (
                isinstance(part.text, str) and not self.is_verbose
            ):
                # Chunks of one text are one text, readable as it comes.
                self._continue(event.artifact, part.text)
            case ArtifactUpdate():
                self.artifact(event.artifact)
                self._metadata(event.metadata)
            case StatusUpdate():
                self.field("Task", event.task_id)
                self.field("Context", event.context_id)
                self._status(event)
                self._metadata(event.metadata)
            case Message():
                self.answer(event)
            case _:
                self.task(event)


def drop_stdout() -> None:
    """The reader is gone. The interpreter would complain when it flushes at its end."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())
    os.close(devnull)


def _line(label: str, value: str) -> str:
    return one_line(f"{label}: {value}").rstrip(" ") + "\n"


def _title(artifact: "Artifact") -> str:
    return artifact.artifact_id + (f" ({artifact.name})" if artifact.name else "")


def stream_response(event: "Shown") -> bytes:
    """Return an event as 1.0 has it, whatever its peer speaks: also the answer to a send."""
    from dragoman.dialects.v1_0_shapes import without_extra
    from dragoman.model.record import encode_event

    return _as_received(event, encode_event(without_extra(event)))


def bare(task: "Task") -> bytes:
    """Return a task as 1.0 has it."""
    from dragoman.dialects.v1_0_shapes import without_extra
    from dragoman.model.record import encode

    return _as_received(task, encode(without_extra(task)))


def _as_received(event: "Shown", body: bytes) -> bytes:
    """Return the JSON of an event with its state as the peer named it, if we do not know it."""
    import msgspec

    from dragoman.model.message import Message

    status = None if isinstance(event, Message) else getattr(event, "status", None)
    if status is None or status.name == status.state.value:
        return body
    value = msgspec.json.decode(body)
    (value if "status" in value else next(iter(value.values())))["status"]["state"] = status.name
    return msgspec.json.encode(value)


def joined(parts: "list[Part]") -> "list[Part]":
    """Return the parts of an artifact with neighbouring chunks of its text in one."""
    from dragoman.model.message import Part

    found: list[Part] = []
    for part in parts:
        last = found[-1] if found else None
        is_chunk = isinstance(part.text, str) and not part.filename
        if is_chunk and last is not None and isinstance(last.text, str) and not last.filename:
            found[-1] = Part(text=last.text + str(part.text), media_type=last.media_type)
        else:
            found.append(part)
    return found


def _document(body: Any, *, is_line: bool) -> str:
    import msgspec

    try:
        encoded = body if isinstance(body, bytes) else msgspec.json.encode(body)
        return msgspec.json.format(encoded, indent=-1 if is_line else _INDENT).decode()
    except (UnicodeEncodeError, msgspec.DecodeError):
        # Half a character, such as in the name of a file: it is escaped, and does not end the run.
        import json

        value = json.loads(body) if isinstance(body, bytes) else msgspec.to_builtins(body)
        separators = (",", ":") if is_line else None
        return json.dumps(value, indent=None if is_line else _INDENT, separators=separators)


def _send(stream: BinaryIO, body: bytes) -> None:
    try:
        stream.write(body)
        stream.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise Unwritable(error.strerror or str(error)) from None
