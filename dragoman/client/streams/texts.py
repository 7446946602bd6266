"""The text of a stream: what its agent produces, piece by piece, and what it says at its end."""

from collections.abc import Iterator

from dragoman.client.streams.shown_task import Shown
from dragoman.client.streams.stream import Stream
from dragoman.model.events import ArtifactUpdate
from dragoman.model.message import Message, Part
from dragoman.model.task import Task


class StreamTexts:
    """The texts of one stream."""

    def __init__(self, *, is_new: bool = True) -> None:
        """A task that goes on, and so is not new, opens with what it produced before."""
        self._is_new = is_new
        self._has_any = False

    def of(self, event: Shown) -> Iterator[str]:
        """Yield what the agent produced with an event."""
        for text in self._texts(event):
            if text:
                self._has_any = True
                yield text

    def _texts(self, event: Shown) -> list[str]:
        if isinstance(event, Message):
            return [event.text]
        parts: list[Part] = []
        if isinstance(event, ArtifactUpdate):
            parts = event.artifact.parts
        elif isinstance(event, Task) and self._is_new:
            parts = [part for artifact in event.artifacts for part in artifact.parts]
        return [part.text for part in parts if isinstance(part.text, str)]

    def last(self, events: Stream) -> str:
        """Return what an agent that produced no text said with its last status; one that tells
        everything at once has it in its task."""
        if self._has_any:
            return ""
        task = events.task
        last_message = task.status.message if task is not None else None
        text = last_message.text if last_message is not None else ""
        return text or events.answer.text
