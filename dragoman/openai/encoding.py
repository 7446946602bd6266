"""What the encoders of the two shapes of an answer have in common."""

from typing import Any, Protocol

from dragoman.errors import A2AError
from dragoman.model.record import encode
from dragoman.openai.answers import ChatAnswer, TextDelta
from dragoman.openai.errors import ChatError
from dragoman.transports import sse


class AnswerEncoder(Protocol):
    """Writes one answer, whole or in pieces."""

    def begin(self, answer: ChatAnswer) -> bytes:
        """Return what a stream begins with."""
        ...

    def delta(self, delta: TextDelta) -> bytes:
        """Return some more of the answer."""
        ...

    def end(self, answer: ChatAnswer) -> bytes:
        """Return what a stream ends with, once the answer is done."""
        ...

    def failed(self, error: A2AError | ChatError) -> bytes:
        """Return what ends a stream that broke."""
        ...

    def whole(self, answer: ChatAnswer) -> dict[str, Any]:
        """Return the whole answer; raises `ChatError` if there is none."""
        ...


def data_frame(value: Any) -> bytes:
    """Return an event of a stream."""
    return sse.frame(encode(value))
